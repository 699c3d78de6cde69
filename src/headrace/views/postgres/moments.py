"""A view in Postgres as one commit left it: its rows, and what the store says of them. Owns how that holds while
another version takes the place of the view.

A transaction reads rows as of its snapshot, but Postgres finds a table by the name that it has now: after a switch or a
rebuild that is another version's table, which may have no row yet that the snapshot has. So a reader locks the tables,
which waits for a switch and for no commit, and begins again if their names are of other tables than before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from psycopg import errors as pg

from headrace.errors import StorageError
from headrace.views.postgres import keyed, schema
from headrace.views.postgres.connections import Connection, Pool
from headrace.views.sql.flow_rows import spec_of

__all__ = ["moment_of"]

TRIES = 20


@contextlib.contextmanager
def moment_of(pool: Pool, view: str, settings: str = "") -> Iterator[Connection]:
    """A transaction that reads the view. UnknownView if there is no store."""
    for _ in range(TRIES):
        with pool.reading(settings) as db:
            schema.refuse_other_format(db, pool.address, view)
            if _is_held(db, pool.address.schema, view):
                yield db
                return
    raise StorageError(path=pool.address.shown, why=f"view {view!r} was made again each time it was about to be read")


def _is_held(db: Connection, in_schema: str, view: str) -> bool:
    """Whether the view's tables are those of the snapshot. They stay it until the transaction ends."""
    spec = spec_of(db, view)
    if spec is None or not spec.tables:
        return True
    tables = keyed.tables_of(spec).values()
    try:
        db.run(f"LOCK TABLE {', '.join(table.name for table in tables)} IN ACCESS SHARE MODE")
    except pg.UndefinedTable:
        return False
    names = [keyed.table_name(spec.name, table.spec.name) for table in tables]
    same = "c.oid = to_regclass(format('%I.%I', n.nspname, c.relname))"  # that they have now
    there = "pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"  # that they had then
    where = f"n.nspname = $1 AND c.relname = ANY($2) AND {same}"
    (count,) = db.run(f"SELECT count(*) FROM {there} WHERE {where}", [in_schema, names]).fetchone()
    return bool(count == len(names))
