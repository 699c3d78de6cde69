"""The tables of flows and watchers in SQLite; `views.sql` says what is in them."""

from __future__ import annotations

from headrace.views.sqlite.kept import KEPT
from headrace.views.sqlite.keyed import NULLS, TYPES

__all__ = ["MIGRATIONS", "SCHEMA"]

BEGINS = (
    "CREATE TABLE _begins (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset_first INTEGER NOT NULL, progress UTC_TIMESTAMP, PRIMARY KEY (flow, topic, partition)) WITHOUT ROWID"
)
"""Where flows began: apart from where they are, which is written with every commit."""
BURIED = (
    "CREATE TABLE _buried (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset INTEGER NOT NULL, PRIMARY KEY (flow, topic, partition, offset)) WITHOUT ROWID"
)
"""Records that flows gave up."""
MARKS = (
    "CREATE TABLE _marks (flow TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "
    "offset INTEGER NOT NULL, progress UTC_TIMESTAMP, arrived UTC_TIMESTAMP, raised INTEGER NOT NULL, "
    "PRIMARY KEY (flow, topic, partition, offset)) WITHOUT ROWID"
)
"""How far topics had come, of which only reading tells."""
MIGRATIONS = {"5": MARKS}
"""By format: what makes the next one of it, for whoever opens the file to write first. Readers read all of these."""
LEDGER = (
    "CREATE TABLE _ledger (flow TEXT NOT NULL, window_start UTC_TIMESTAMP NOT NULL, window_end UTC_TIMESTAMP NOT NULL, "
    "on_time INTEGER NOT NULL, corrected INTEGER NOT NULL, dropped INTEGER NOT NULL, untimed INTEGER NOT NULL, "
    "PRIMARY KEY (flow, window_start, window_end)) WITHOUT ROWID"
)
"""'' as start and end: what belongs to no window."""

WATCHERS = (
    "CREATE TABLE _watchers (flow TEXT NOT NULL, watcher TEXT NOT NULL, read INTEGER NOT NULL, "
    "ends_at UTC_TIMESTAMP NOT NULL, PRIMARY KEY (flow, watcher)) WITHOUT ROWID",
    # bytes_upto: those of this commit's changes and of all before that are still here
    "CREATE TABLE _changes (flow TEXT NOT NULL, sequence INTEGER NOT NULL, bytes_upto INTEGER NOT NULL, "
    "rows BLOB NOT NULL, PRIMARY KEY (flow, sequence)) WITHOUT ROWID",
)

SCHEMA = (
    "CREATE TABLE _meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE _flows (flow TEXT PRIMARY KEY, app TEXT NOT NULL, spec TEXT NOT NULL, epoch INTEGER NOT NULL, "
    "sequence INTEGER NOT NULL, frontier UTC_TIMESTAMP, closed UTC_TIMESTAMP, unchanged UTC_TIMESTAMP, "
    "relayed INTEGER NOT NULL, pid INTEGER, host TEXT, started_at UTC_TIMESTAMP, committed_at UTC_TIMESTAMP) "
    "WITHOUT ROWID",
    "CREATE TABLE _positions (flow TEXT NOT NULL, topic TEXT NOT NULL, topic_id TEXT NOT NULL, "
    "partition INTEGER NOT NULL, offset_next INTEGER NOT NULL, progress UTC_TIMESTAMP, arrived UTC_TIMESTAMP, "
    "PRIMARY KEY (flow, topic, partition)) WITHOUT ROWID",
    LEDGER,
    BEGINS,
    BURIED,
    MARKS,
    NULLS,
    KEPT,
    TYPES,
    # Rows on their way out, as an Arrow stream; base counts the rows that went to the target before.
    "CREATE TABLE _outbox (flow TEXT NOT NULL, sequence INTEGER NOT NULL, number INTEGER NOT NULL, "
    "target TEXT NOT NULL, base INTEGER NOT NULL, rows BLOB NOT NULL, PRIMARY KEY (flow, sequence, number)) "
    "WITHOUT ROWID",
    "CREATE TABLE _carried (flow TEXT NOT NULL, target TEXT NOT NULL, records INTEGER NOT NULL, "
    "PRIMARY KEY (flow, target)) WITHOUT ROWID",
    # Positions: what a flow had read when it had written no more than that; see `origins`.
    "CREATE TABLE _steps (flow TEXT NOT NULL, sequence INTEGER NOT NULL, read TEXT NOT NULL, written TEXT NOT NULL, "
    "PRIMARY KEY (flow, sequence)) WITHOUT ROWID",
    *WATCHERS,
)
