"""A runner for tests, one of several that share a store: `python -m tests.flows.runner_of_many LOG HOME VIEWS HOW`.
HOW may be "alone", "standby", "share", or a failpoint, at which it is killed.
Flows without a JVM over one log; says "started" when it runs, ends when its input does."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from pathlib import Path

import headrace as hr
from headrace import failpoints
from headrace.places import Home
from tests.flows.sparkless import Sparkless

FLOWS = ("one", "two", "three", "four")


def made(log: Path) -> Sparkless:
    return Sparkless(log, hr.tumbling("4 seconds"), names=("records",), within=10**6)


def main() -> None:
    log, home, views, how = sys.argv[1:]
    if how in failpoints.KNOWN:
        failpoints.arm(how, "kill", skip=9)
    with made(Path(log)) as flow:
        place = Home.at(Path(home), log=log, views=views)
        with closing(flow.running(*FLOWS, place=place)) as app:
            threading.Thread(target=lambda: (sys.stdin.read(), app.stop()), daemon=True).start()
            app.start(wait=(lambda: True) if how == "standby" else None, share=how == "share")
            print("started", flush=True)
            app.wait()


if __name__ == "__main__":
    main()
