"""Where Spark's Python workers are forked from: a process that has imported what they need, so that each is there at
once, also the one that follows a failed task. Spark's own daemon has each worker import Spark's part after the fork,
lest a library start a thread before it: none of these does. Spark starts it: `python -m headrace.flows.daemon`. Owns
nothing."""

from __future__ import annotations

import gc
import sys
from zipimport import zipimporter

import pandas  # noqa: F401
from pyspark import worker  # noqa: F401
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers  # noqa: F401

from headrace.flows import arrow_partials, ranges  # noqa: F401
from headrace.log.embedded import append, deliveries, log, reading, retention  # noqa: F401


def forget_archives() -> None:
    """Each worker has Python look again at where modules are found, and Python 3.11 then reads the directory of Spark's
    archive of modules, once for each package in it: 120 ms. An archive that is needed again is known again."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_archives()
    gc.freeze()  # a worker collects garbage after each task, and looked at all that was imported: 40 ms each time
    manager()
