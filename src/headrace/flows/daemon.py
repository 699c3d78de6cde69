"""Where Spark's Python workers are forked from: a process that has imported what they need, so that each is there at
once, also the one that follows a failed task. Spark's own daemon has each worker import Spark's part after the fork,
lest a library start a thread before it: none of these does. Spark starts it: `python -m headrace.flows.daemon`. Owns
nothing."""

from __future__ import annotations

import gc

import pandas  # noqa: F401
from pyspark import worker  # noqa: F401
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers  # noqa: F401

from headrace.flows import arrow_partials, ranges  # noqa: F401
from headrace.log.embedded import append, deliveries, log, reading, retention  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # a worker collects garbage after each task, and looked at all that was imported: 40 ms each time
    manager()
