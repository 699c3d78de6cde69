"""The tables of flows and watchers in Postgres; `views.sql` says what is in them. Owns their format, makes them, and
reads all that there are as bytes, for who looks for some."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import UnknownView, UnsupportedFormat
from headrace.views.postgres.address import Address
from headrace.views.postgres.connections import Connection, pool_of, quoted

__all__ = ["FORMAT", "dumped", "exists", "make", "refuse_other_format"]

FORMAT = "3"
_NAME = 'text COLLATE "C" NOT NULL'
_LEASES = (
    f"_leases (name {_NAME} PRIMARY KEY, holder text NOT NULL, pid bigint NOT NULL, host text NOT NULL, "
    "ends_at timestamptz NOT NULL)"
)
_MARKS = (
    f'_marks (flow {_NAME}, topic {_NAME}, partition integer NOT NULL, "offset" bigint NOT NULL, '
    "progress timestamptz, arrived timestamptz, raised integer NOT NULL, "
    'PRIMARY KEY (flow, topic, partition, "offset"))'
)
MIGRATIONS = {"1": (f"CREATE TABLE {_LEASES}",), "2": (f"CREATE TABLE {_MARKS}",)}
"""By format: what makes the next one of it, in the transaction of whoever opens the store to write first. Readers read
all of these."""
TABLES = (
    _LEASES,
    f"_meta (name {_NAME} PRIMARY KEY, value text NOT NULL)",
    f"_flows (flow {_NAME} PRIMARY KEY, app text NOT NULL, spec text NOT NULL, epoch bigint NOT NULL, "
    "sequence bigint NOT NULL, frontier timestamptz, closed timestamptz, unchanged timestamptz, "
    "relayed bigint NOT NULL, pid bigint, host text, started_at timestamptz, committed_at timestamptz) "
    "WITH (fillfactor = 50)",
    f"_positions (flow {_NAME}, topic {_NAME}, topic_id text NOT NULL, partition integer NOT NULL, "
    "offset_next bigint NOT NULL, progress timestamptz, arrived timestamptz, PRIMARY KEY (flow, topic, partition)) "
    "WITH (fillfactor = 50)",
    # '-infinity' as start and end: what belongs to no window.
    f"_ledger (flow {_NAME}, window_start timestamptz NOT NULL, window_end timestamptz NOT NULL, "
    "on_time bigint NOT NULL, corrected bigint NOT NULL, dropped bigint NOT NULL, untimed bigint NOT NULL, "
    "PRIMARY KEY (flow, window_start, window_end))",
    f"_begins (flow {_NAME}, topic {_NAME}, partition integer NOT NULL, offset_first bigint NOT NULL, "
    "progress timestamptz, PRIMARY KEY (flow, topic, partition))",
    f'_buried (flow {_NAME}, topic {_NAME}, partition integer NOT NULL, "offset" bigint NOT NULL, '
    'PRIMARY KEY (flow, topic, partition, "offset"))',
    _MARKS,
    f"_outbox (flow {_NAME}, sequence bigint NOT NULL, number integer NOT NULL, target text NOT NULL, "
    "base bigint NOT NULL, rows bytea NOT NULL, PRIMARY KEY (flow, sequence, number))",
    f"_carried (flow {_NAME}, target {_NAME}, records bigint NOT NULL, PRIMARY KEY (flow, target))",
    f"_steps (flow {_NAME}, sequence bigint NOT NULL, read text NOT NULL, written text NOT NULL, "
    "PRIMARY KEY (flow, sequence))",
    f"_watchers (flow {_NAME}, watcher {_NAME}, read bigint NOT NULL, ends_at timestamptz NOT NULL, "
    "PRIMARY KEY (flow, watcher))",
    f"_changes (flow {_NAME}, sequence bigint NOT NULL, bytes_upto bigint NOT NULL, rows bytea NOT NULL, "
    "PRIMARY KEY (flow, sequence))",
)
_LOCK = 0x6865_6164_7261_6365 & 0x7FFF_FFFF_FFFF_FFFF
"""For as long as a transaction makes the tables: of two that want to, one waits."""


def exists(db: Connection, schema: str) -> bool:
    """By the rows of the catalog: what `to_regclass` says may be of before the transaction that this one waited for."""
    named = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    return db.run(f"{named} WHERE n.nspname = $1 AND c.relname = '_meta'", [schema]).fetchone() is not None


def make(db: Connection, address: Address) -> None:
    """The schema and its tables, if there are none."""
    if not exists(db, address.schema):
        db.run("SELECT pg_advisory_xact_lock($1)", [_LOCK])
        if not exists(db, address.schema):
            known = db.run("SELECT 1 FROM pg_namespace WHERE nspname = $1", [address.schema]).fetchone()
            if known is None:  # one that is there may be somebody's gift to a user who can make none
                db.run(f"CREATE SCHEMA {quoted(address.schema)}")
            for table in TABLES:
                db.run(f"CREATE TABLE {quoted(address.schema)}.{table}")
            db.run("INSERT INTO _meta VALUES ('format', $1), ('id', gen_random_uuid()::text)", [FORMAT])
    refuse_other_format(db, address)
    if _format(db) != FORMAT:
        _migrate(db)


def _format(db: Connection, lock: str = "") -> str:
    (found,) = db.run(f"SELECT value FROM _meta WHERE name = 'format'{lock}").fetchone() or ("none",)
    return str(found)


def _migrate(db: Connection) -> None:
    """Of two that open the store at once, one does it."""
    while (known := _format(db, " FOR UPDATE")) != FORMAT:
        for statement in MIGRATIONS[known]:
            db.run(statement)
        db.run("UPDATE _meta SET value = $1 WHERE name = 'format'", [str(int(known) + 1)])


def refuse_other_format(db: Connection, address: Address, view: str = "") -> None:
    """UnknownView if there is no store."""
    if not exists(db, address.schema):
        raise UnknownView(view=view, known=[])
    found = _format(db)
    if found != FORMAT and found not in MIGRATIONS:
        why = f"written in format {found}, this headrace reads {FORMAT}: "
        older = found.isdecimal() and int(found) < int(FORMAT)
        drop = f"DROP SCHEMA {address.schema} CASCADE, and run the apps: they make their views again from the log"
        raise UnsupportedFormat(path=address.shown, why=why + (drop if older else "upgrade headrace"))


def dumped(address: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Each table of the schema with its rows, all as of one moment. A text is there as UTF-8, a binary value as it
    is."""
    parsed = Address.parse(address)
    with pool_of(parsed).reading() as db:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1"
        for (table,) in db.run(tables, [parsed.schema]).fetchall():
            copy = f"COPY {quoted(parsed.schema)}.{quoted(table)} TO STDOUT (FORMAT binary)"
            with db.raw.cursor() as cursor, cursor.copy(copy) as rows:
                yield table, (bytes(row) for row in rows)
