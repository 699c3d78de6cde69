"""How the schema of a topic that headrace writes grows with its program. Owns the rule; knows no log."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import IncompatibleSchema
from headrace.schema import evolve

__all__ = ["grown"]


def grown(known: pa.Schema, given: pa.Schema) -> pa.Schema:
    """The columns of both schemas. Of two types, the wider one; if neither is wider, the given one, which is then
    refused."""

    def one(field: pa.Field) -> pa.Field:
        if field.name not in given.names:
            return field
        other = given.field(field.name)
        try:
            evolve(pa.schema([other]), pa.schema([field]))
        except IncompatibleSchema:
            return other
        return field

    return pa.schema([*map(one, known), *(field for field in given if field.name not in known.names)])
