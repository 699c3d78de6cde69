"""The process of the demo that runs the shop's flows, to be killed: `python -m headrace.demo.worker HOME [BATCH_ROWS]`.
It does what `headrace run` does, and two things more: it says on standard output how far it is, a JSON object in each
line, and it answers what it is asked on standard input: `audit`, which recomputes the views, and `status`. It ends when
nobody can ask it any more."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from headrace import app as apps
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.app import App

SPARK = {"spark.python.unix.domain.socket.enabled": "false"}
"""The path of a socket must be short, and a temporary directory in a temporary directory may not be."""


def main(home: str, *batch_rows: str) -> None:
    apps.overrides.update(home=home, spark=SPARK)
    from headrace.demo.shop import app

    if batch_rows:
        app.batch_rows = int(batch_rows[0])
    try:
        _warm(app)
        _say(spark=True)
        app.start()
        _say(running=os.getpid())
        threading.Thread(target=_wait, args=(app,), daemon=True).start()
        for question in sys.stdin:
            if question.strip() == "status":
                _say(flows={each.flow: dataclasses.asdict(each) for each in app.status()})
                continue
            audited = app.audit()
            told = [f"{each.row} {each.column}: {each.stored}, not {each.expected}" for each in audited.differences]
            _say(views=audited.views, rows=audited.rows, differences=told)
    except HeadraceError as error:
        _say(error=str(error))
    os._exit(0)  # the home is a temporary one: nothing is worth a slow good-bye


def _warm(app: App) -> None:
    """Starts Spark. What the first batch will need of it, and its Python workers, are loaded while the flow is being
    checked: on two cores that saves seconds."""

    def nothing(batches: Iterator[Any]) -> Iterator[Any]:
        from headrace.flows.reading import ranges  # noqa: F401

        yield from batches

    some = app.running.spark.range(8, numPartitions=1).mapInArrow(nothing, "id bigint")
    one = some.groupBy("id").agg({"id": "collect_set"})
    threading.Thread(target=one.toArrow, daemon=True).start()


def _wait(app: App) -> None:
    try:
        app.wait()
    except HeadraceError as error:
        _say(error=str(error))
        os._exit(1)


def _say(**facts: object) -> None:
    print(json.dumps(facts, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
