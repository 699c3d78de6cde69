"""Programs of joins that run without a JVM. They have no transforms and no windows: so all that they need of Spark's
analyser is which columns a frame has. Everything else is the real thing, from the log to the store, helper flows and
topics between them included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from headrace.flows.compiler import reads
from headrace.flows.reading import ranges
from headrace.flows.spark import session
from headrace.views.values import arrow_type

__all__ = ["without_spark"]


class _Frame:
    """No records, with these columns."""

    def __init__(self, schema: StructType) -> None:
        self.schema, self.columns, self.sparkSession = schema, schema.names, _Session()

    def drop(self, *names: str) -> _Frame:
        return _Frame(StructType([field for field in self.schema if field.name not in names]))

    def withColumnRenamed(self, old: str, new: str) -> _Frame:
        renamed = [StructField(new if field.name == old else field.name, field.dataType) for field in self.schema]
        return _Frame(StructType(renamed))


class _Session:
    def createDataFrame(self, _: list[Any], schema: StructType) -> _Frame:
        return _Frame(schema)


def _struct(ddl: str) -> StructType:
    """Of plain types, as Spark's parser makes it."""
    columns = [column.strip().replace("`", "").split(" ", 1) for column in ddl.split(",")]
    return from_arrow_schema(pa.schema([(name, arrow_type(kind)) for name, kind in columns]))


def without_spark(put: Callable[[Any, str, Any], object] = setattr) -> None:
    """Puts these in the place of Spark: in this process, or as a test's `monkeypatch.setattr` does."""
    put(session, "make", lambda *_, **__: (_Session(), False))
    put(session, "refuse_lost", lambda *_: None)
    put(session, "master_of", lambda _: "local[2]")
    put(ranges, "struct", _struct)
    put(reads, "columns_needed", lambda _, __, schema: frozenset(schema.names))
