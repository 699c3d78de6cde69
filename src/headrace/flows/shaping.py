"""What the transforms behind an aggregation make of its results, in the midst of a commit. Owns the difference between
a program that fails and surroundings that do: no record is to blame for a result, so nothing is divided and tried
again in smaller batches; the program is to be mended."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.errors import PySparkException

from headrace.errors import HeadraceError, TransformFailed
from headrace.flows.query import FlowQuery

__all__ = ["first_line", "shaping"]


def shaping(query: FlowQuery) -> Callable[[pa.Table], pa.Table] | None:
    """The transforms as a store calls them; None when there are none."""
    flow = query.compiled.flow
    if not flow.after:
        return None

    def shape(rows: pa.Table) -> pa.Table:
        try:
            return query.shaped(rows)
        except Exception as error:
            if _of_the_surroundings(error):
                raise
            raise TransformFailed(flow=flow.name, why=first_line(error)) from error

    return shape


def _of_the_surroundings(error: Exception) -> bool:
    """A lost session, a job that was cancelled: Spark has no name for what happened."""
    if isinstance(error, PySparkException):
        return error.getCondition() is None and type(error).__name__ == "UnknownException"
    return isinstance(error, OSError) or type(error).__module__.startswith("py4j.")


def first_line(error: BaseException) -> str:
    """What a person reads first. Of an error in a worker, what the user's function raised."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if not isinstance(error, HeadraceError) and "Traceback" in str(error):
        return lines[-1]
    return lines[0]
