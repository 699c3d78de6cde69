"""The topic of a captured table: made, or given the columns that it lacks. Knows no database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from headrace.cdc.rows import Shape
    from headrace.log.contract import Log

__all__ = ["fit_topic"]


def fit_topic(log: Log, name: str, shape: Shape) -> str | None:
    """The topic has the columns of the shape from now on; why not, if it has another key. Whatever else the log has
    against it is raised."""
    topic = log.create_topic(name, shape.schema, key=shape.key_names, exist_ok=True)
    if topic.settings.key != shape.key_names:
        return f"topic {name!r} has the key {topic.settings.key}, the table {shape.key_names}: delete the topic"
    there = {column.name: column for column in topic.schema}
    ours = {column.name: column for column in shape.schema}
    if any(column.name not in there or there[column.name].type != column.type for column in shape.schema):
        missing = [column for column in shape.schema if column.name not in there]
        topic.alter(schema=pa.schema([*(ours.get(name, column) for name, column in there.items()), *missing]))
    return None
