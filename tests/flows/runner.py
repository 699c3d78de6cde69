"""A process that runs the tests' app, to be killed: `python -m tests.flows.runner HOME drain|follow [POINT SKIP]`."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace import failpoints
from headrace.errors import FlowFenced
from tests.flows.shop import app_of

NAMES = ("hopping_correct",)


def main(home: str, how: str, point: str = "", skip: str = "0") -> int:
    settings = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"
    with app_of(Path(home), settings, names=NAMES) as app:
        app.stream("events").transform(lambda df: df.where("word = 'a'")).to_topic("only_a", durability="os")
        if how == "follow":
            app.start()
            print("running", flush=True)
            try:
                app.wait()
            except FlowFenced as error:
                print(f"fenced {error.flow}", flush=True)
            return 0
        app.running.check()
        if point:
            failpoints.arm(point, "kill", skip=int(skip))
        app.drain(batch_rows=25)
        print("drained", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
