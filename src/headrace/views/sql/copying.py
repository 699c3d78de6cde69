"""Flows with all they have, from one SQL store to another of the same log. Owns what belongs to a flow: what it is, how
far it has read and sent, its ledger, its outbox, the rows of its tables. A flow is copied in one transaction, from one
commit of the source: in the target it is whole, or not there, and goes on where that commit left it.

Those who watch begin anew; versions beside a view are not copied."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace import jsonrows
from headrace.errors import InvalidArgument
from headrace.rows import to_rows
from headrace.views.contract import FlowSpec, State, Writes, is_version
from headrace.views.sql.database import Database
from headrace.views.sql.flow_rows import next_epoch, put_stream, set_fact, spec_of
from headrace.views.sql.store import SqlStore

__all__ = ["CopiedFlow", "copy_flows"]

FACTS = ("born", "program", "line")
TABLES = {
    "_positions": ("flow", "topic", "topic_id", "partition", "offset_next", "progress", "arrived"),
    "_begins": ("flow", "topic", "partition", "offset_first", "progress"),
    "_buried": ("flow", "topic", "partition", '"offset"'),
    "_marks": ("flow", "topic", "partition", '"offset"', "progress", "arrived", "raised"),
    "_ledger": ("flow", "window_start", "window_end", "on_time", "corrected", "dropped", "untimed"),
    "_carried": ("flow", "target", "records"),
    "_steps": ("flow", "sequence", "read", "written"),
}
FLOW = ("flow", "app", "spec", "sequence", "frontier", "closed", "unchanged", "relayed", "committed_at")
EVERY_ROW = pa.table({"all": [None]}).select([])


@dataclass(frozen=True, slots=True)
class CopiedFlow:
    """`rows`: of all tables of the flow; `sha256`: of these rows, in the source as in the target. `there`: an earlier
    run has copied it, and perhaps it has run since."""

    flow: str
    rows: int
    sha256: str
    there: bool = False


def copy_flows(
    source: SqlStore[Any], target: SqlStore[Any], check: Callable[[FlowSpec], object], told: Callable[[int], object]
) -> list[CopiedFlow]:
    """`check`: raises what the target cannot hold. `told`: called with rows."""
    with source._reading() as db:
        specs = [spec for spec in source._specs(db) if not is_version(spec.name)]
        with target._reading() as other:
            there = {spec.name for spec in specs if _is_there(db, other, spec)}
        for spec in specs:
            check(spec)
        return [_copied(source, db, target, spec, told, there=spec.name in there) for spec in specs]


def _is_there(db: Database, other: Database, spec: FlowSpec) -> bool:
    if spec_of(other, spec.name) is None:
        return False
    same = _born(db, spec.name) == _born(other, spec.name)
    if not same or _sequence(other, spec.name) < _sequence(db, spec.name):
        why = f"there is another flow {spec.name!r} already, or an older copy of it. Drop it there: headrace --views … "
        raise InvalidArgument("to", spec.name, f"{why}views drop {spec.name}")
    return True


def _born(db: Database, flow: str) -> str:
    (found,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"born/{flow}",)).fetchone() or ("",)
    return str(found)


def _sequence(db: Database, flow: str) -> int:
    (found,) = db.execute("SELECT sequence FROM _flows WHERE flow = ?", (flow,)).fetchone()
    return int(found)


def _copied(
    source: SqlStore[Any],
    db: Database,
    target: SqlStore[Any],
    spec: FlowSpec,
    told: Callable[[int], object],
    *,
    there: bool,
) -> CopiedFlow:
    state = source._state(db, spec)
    if there:
        return CopiedFlow(spec.name, 0, "", there=True)
    with target._writing() as out:
        _facts(source, db, target, out, spec)
        target._make(out, spec)
        for table in spec.tables:
            rows = state.scan(table.name, EVERY_ROW)
            if rows.num_rows:
                target._write(out, spec, Writes(puts={table.name: rows}))
                told(rows.num_rows)
        target._show(out, spec)
        made = target._state(out, spec)
        (count, digest), found = _digest(state, spec), _digest(made, spec)
        if (count, digest) != found:  # leaving by an error, so that nothing of it stays
            why = f"its {count} rows ({digest[:12]}) have become {found[0]} ({found[1][:12]}). Nothing of it was kept"
            raise InvalidArgument("to", spec.name, why)
    return CopiedFlow(spec.name, count, digest)


def _facts(source: SqlStore[Any], db: Database, target: SqlStore[Any], out: Database, spec: FlowSpec) -> None:
    flow = spec.name
    row = db.execute(f"SELECT {', '.join(FLOW)} FROM _flows WHERE flow = ?", (flow,)).fetchone()
    marks = ", ".join("?" * (len(FLOW) + 1))
    out.execute(f"INSERT INTO _flows ({', '.join(FLOW)}, epoch) VALUES ({marks})", (*row, next_epoch(out)))
    for table, columns in TABLES.items():
        found = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE flow = ?", (flow,)).fetchall()
        none = {source.NO_WINDOW: target.NO_WINDOW} if table == "_ledger" else {}
        values = [tuple(none.get(each, each) for each in row) for row in found]
        put = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        out.executemany(put, values)
    for fact in FACTS:
        value = db.execute("SELECT value FROM _meta WHERE name = ?", (f"{fact}/{flow}",)).fetchone()
        if value is not None:
            set_fact(out, f"{fact}/{flow}", value[0])
    waiting = db.execute("SELECT sequence, number, target, base, rows FROM _outbox WHERE flow = ?", (flow,)).fetchall()
    for sequence, number, topic, base, body in waiting:
        put_stream(out, flow, sequence, number, topic, base, source._rows_out(body))


def _digest(state: State, spec: FlowSpec) -> tuple[int, str]:
    """Rows of all tables, and their checksum. Tables are read in order of the key; lists and structs in some order."""
    count, found = 0, hashlib.sha256()
    for table in spec.tables:
        rows = state.scan(table.name, EVERY_ROW).select(table.names)
        lines = sorted(jsonrows.encode_row(row) for batch in rows.to_batches() for row in to_rows(batch))
        found.update(b"%d\n" % len(lines))
        for line in lines:
            found.update(line)
        count += rows.num_rows
    return count, found.hexdigest()
