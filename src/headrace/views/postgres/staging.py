"""Rows that Spark's workers copy into Postgres before the commit that adds them. Owns the staging tables: their names,
how they are filled, and that none is left for ever. `keyed` merges and drops them in the commit's transaction.

A staging table has the columns of the table that it is for. It is not logged, so a server that crashes empties it; the
commit counts its rows and is refused then. What no commit has added goes when its flow begins again, or is dropped: of
a batch that failed, of a task that ran twice, of a runner that was fenced."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.views.contract import FlowSpec, Staged
from headrace.views.postgres.address import Address
from headrace.views.postgres.connections import Connection, pool_of, quoted
from headrace.views.postgres.keyed import tables_of
from headrace.views.postgres.values import csv_of, declared
from headrace.views.values import sort_by_key

__all__ = ["PostgresStager", "sweep"]


def _prefix(flow: str) -> str:
    """No flow's name begins so."""
    return f"~staged/{hashlib.sha256(flow.encode()).hexdigest()[:16]}/"


@dataclass(frozen=True)
class PostgresStager:
    address: str = field(repr=False)
    spec: FlowSpec
    table: str

    def put(self, rows: pa.Table) -> list[Staged]:
        """In the order of their keys: then rows of one page of an index are merged together."""
        table = tables_of(self.spec)[self.table]
        columns = ", ".join(f"{quoted(name)} {declared(arrow)}" for name, arrow in table.types.items())
        out = []
        with pool_of(Address.parse(self.address)).writing() as db:
            for nulls, some, _ in table.by_nulls(sort_by_key(rows, table.key), table.key):
                place = _prefix(self.spec.name) + uuid.uuid4().hex
                db.run(f"CREATE UNLOGGED TABLE {quoted(place)} ({columns}) WITH (autovacuum_enabled = false)")
                db.copy_in(quoted(place), table.names, csv_of(some, table.types))
                out.append(Staged(place, some.num_rows, tuple(sorted(nulls))))
        return out

    def rows(self, staged: Sequence[Staged]) -> pa.Table:
        table = tables_of(self.spec)[self.table]
        with pool_of(Address.parse(self.address)).reading() as db:
            found = [table.decoded(db.copy_out(f"SELECT {table.names} FROM {quoted(each.place)}")) for each in staged]
        return pa.concat_tables([table.schema.empty_table(), *found])


def sweep(db: Connection, flow: str) -> None:
    """Drops what was staged for the flow and not added."""
    named = "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    named += "WHERE n.nspname = current_schema AND c.relkind = 'r' AND starts_with(c.relname, $1)"
    for (place,) in db.run(named, [_prefix(flow)]).fetchall():
        db.run(f"DROP TABLE IF EXISTS {quoted(place)}")
