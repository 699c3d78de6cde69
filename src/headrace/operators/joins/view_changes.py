"""The changes of a view as the changelog of a table: what a join reads of a view. Pure.

A row that comes is an upsert, a row that goes is a delete. A view's changes lie in one partition, in the order in which
its rows changed: so the offset alone orders them. When a row arrived is the row's own: the latest arrival of the
records that it was made of."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.joins.changelog import CHANGE
from headrace.schema import ID_COLUMN
from headrace.views.contract import CHANGE as OF_CHANGES
from headrace.views.contract import CORRECTIONS, MARK, OP, fed_in, wholes_in

__all__ = ["ORDER", "ROW", "VIEW_CORRECTIONS", "changelog_of", "changelog_schema"]

ORDER = ("/offset",)
"""What orders the changes of a view."""
ROW = "/row"
"""Which row it is, of a view whose rows have an `_id`: joined rows have one of their own."""
VIEW_CORRECTIONS = "/corrections"
"""How many corrections the view's row has. Columns whose names begin with a slash are not passed on."""


def _shown(names: Sequence[str]) -> list[str]:
    """The columns that readers of the view see, of those of its changes."""
    hidden = {*OF_CHANGES, *MARK, *wholes_in(names), *fed_in(names)}
    return [name for name in names if name not in hidden]


def changelog_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the view's rows, `VIEW_CORRECTIONS` and `CHANGE`."""
    fields = [schema.field(name) for name in _shown(schema.names)]
    named = [each.with_name(ROW) if each.name == ID_COLUMN else each for each in fields]
    return pa.schema([*named, pa.field(VIEW_CORRECTIONS, pa.int64()), pa.field(CHANGE, pa.string())])


def changelog_of(changes: pa.Table) -> pa.Table:
    """Changes, with their metadata, as records of a changelog."""
    ops = pc.if_else(pc.equal(changes[OP], "-"), "delete", "upsert")
    corrections = changes[CORRECTIONS]
    rows = changes.select(_shown(changes.column_names))
    rows = rows.rename_columns([ROW if name == ID_COLUMN else name for name in rows.column_names])
    return rows.append_column(CHANGE, ops).append_column(VIEW_CORRECTIONS, corrections)
