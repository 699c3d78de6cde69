"""Where Spark's Python workers are forked from: a process that has imported what they need, so that each is there at
once, also the one that follows a failed task. Spark's own daemon has each worker import Spark's part after the fork,
lest a library start a thread before it: none of these does. Spark starts it: `python -m headrace.flows.spark.daemon`.
Owns nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any
from zipimport import zipimporter

import pandas  # noqa: F401
from pyspark import TaskContext, worker
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers  # noqa: F401
from pyspark.util import PythonEvalType

from headrace.flows.reading import ranges  # noqa: F401
from headrace.flows.spark.session import LOCATE
from headrace.kernels import arrow_partials  # noqa: F401
from headrace.log.open import import_readers


def forget_archives() -> None:
    """Each worker has Python look again at where modules are found, and Python 3.11 then reads the directory of Spark's
    archive of modules, once for each package in it: 120 ms. An archive that is needed again is known again."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


ONE_BY_ONE = {PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF}
MANY_AT_ONCE = {PythonEvalType.SQL_SCALAR_PANDAS_UDF, PythonEvalType.SQL_SCALAR_ARROW_UDF}


def locating(read: Callable[..., Any]) -> Callable[..., Any]:
    """How Spark's worker reads a function; in a search for bad records the function notes at which row it failed."""

    def read_function(serializer: Any, info: Any, kind: int, *rest: Any, **named: Any) -> Any:
        made, task = read(serializer, info, kind, *rest, **named), TaskContext.get()
        if kind not in ONE_BY_ONE | MANY_AT_ONCE or task is None or task.getLocalProperty(LOCATE) is None:
            return made
        return tuple(located(each, many=kind in MANY_AT_ONCE) if callable(each) else each for each in made)

    return read_function


def located(function: Callable[..., Any], *, many: bool) -> Callable[..., Any]:
    """The function, with a note to its first error that says which of all rows it was. `many`: it takes columns."""
    before = 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal before
        columns = [*given, *named.values()] if many else []
        try:
            made = function(*given, **named)
        except Exception as error:
            row = before + (_first_bad(function, given, named, len(columns[0])) if columns else 0)
            error.add_note(f"headrace: row {row}")
            raise
        before += len(columns[0]) if columns else 1
        return made

    call.__code__ = call.__code__.replace(co_filename=worker.__file__)  # Spark leaves its own lines out of tracebacks
    return call


def _first_bad(function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], rows: int) -> int:
    start, stop = 0, rows
    while stop - start > 1:
        middle = (start + stop) // 2
        part = slice(start, middle)
        try:
            function(*(each[part] for each in given), **{name: each[part] for name, each in named.items()})
            start = middle
        except Exception:
            stop = middle
    return start


if __name__ == "__main__":
    worker.read_single_udf = locating(worker.read_single_udf)
    forget_archives()
    import_readers()
    gc.freeze()  # a worker collects garbage after each task, and looked at all that was imported: 40 ms each time
    manager()
