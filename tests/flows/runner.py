"""The program that is killed, and a process that runs it, to be stopped: `python -m tests.flows.runner HOME PORT`, with
the JVM that listens on the port; the first line of its input is what the JVM wants to hear."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.errors import FlowFenced
from headrace.flows.spark.session import borrowed
from tests.flows.shop import app_of


def program(home: Path | str = ":temp:", spark: Any = None) -> hr.App:
    """Every batch is a Spark job; kills while batches are folded on the driver are in `test_kills_sparkless`."""
    app = app_of(home, spark, names=("hopping_few",), driver_rows=0)
    app.stream("events").transform(lambda df: df.where("word = 'a'")).to_topic("only_a", durability="os")
    return app


def main(home: str, port: str) -> int:
    with program(home, borrowed(int(port), sys.stdin.readline().strip())) as app:
        app.start()
        print("running", flush=True)
        try:
            app.wait()
        except FlowFenced as error:
            print(f"fenced {error.flow}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
