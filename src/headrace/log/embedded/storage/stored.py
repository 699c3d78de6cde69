"""The columns of a stored batch: the users' own, what was kept beside them, and metadata that differs by row. Owns
which there are, by a frame's flags."""

from __future__ import annotations

import pyarrow as pa

from headrace.log.embedded.storage.frames import EXTRA, PER_ROW
from headrace.schema import storage_schema

INSTANT = pa.timestamp("us", tz="UTC")
PER_ROW_FIELDS = [pa.field("_offset", pa.int64()), pa.field("_arrived_at", INSTANT), pa.field("_progress", INSTANT)]


def stored_schema(schema: pa.Schema, flags: int) -> pa.Schema:
    """What a frame's body holds: users' columns, what was kept beside them, and per-row metadata."""
    stored = storage_schema(schema, "keep" if flags & EXTRA else "forbid")
    return pa.schema([*stored, *PER_ROW_FIELDS]) if flags & PER_ROW else stored
