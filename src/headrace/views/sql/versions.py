"""Versions of a view beside the one that is served: what they are called, and how one takes the other's place. Owns
what is in the flow's tables, not the transactions; knows no flow and no log.

`views/next` is made from the log while `views` is served, and takes its name; what was served is `views/previous` then,
until the next one is made. Each is whole, with tables, positions, ledger and outbox of its own, so a switch is a matter
of names, in one transaction: a reader sees the one or the other. There is never more than one version beside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.views.contract import VERSIONS, FlowSpec
from headrace.views.sql import watchers
from headrace.views.sql.database import Database

__all__ = ["FLOW_TABLES", "exchange", "found_beside", "program", "rename"]

FLOW_TABLES = ("_flows", "_positions", "_begins", "_buried", "_marks", "_ledger", "_outbox", "_carried")
"""What a store keeps of a flow, under its name; it goes with a version to another. The steps of a view (`origins`) do
not: they say what those who read its changes have, of whatever version it was."""


def found_beside(db: Database, view: str) -> list[str]:
    names = [f"{view}/{which}" for which in VERSIONS]
    return [name for name in names if db.execute("SELECT 1 FROM _flows WHERE flow = ?", (name,)).fetchone()]


def program(db: Database, version: str) -> str | None:
    """What a version was made by, as who made it wrote it."""
    (found,) = db.execute("SELECT value FROM _meta WHERE name = ?", (f"program/{version}",)).fetchone() or (None,)
    return found


def exchange(
    db: Database,
    served: FlowSpec,
    comes: FlowSpec,
    differing: Callable[[], Iterable[pa.RecordBatch]],
    move: Callable[[], None],
) -> bool:
    """`comes` takes the name of `served`: `move` renames both. The sequence of the switch is after all commits of both.
    Returns whether those who watch go on from there: they cannot if the columns are others. `differing`: what a switch
    changes, for those who watch."""
    view = served.name
    (last,) = db.execute("SELECT max(sequence) FROM _flows WHERE flow IN (?, ?)", (view, comes.name)).fetchone()
    sequence = int(last) + 1
    assert served.view is not None and comes.view is not None, "flows into topics have no versions"
    alike = served.view.columns == comes.view.columns
    columns = watchers.watched_columns(comes.view) if alike else []
    watchers.switched(db, view, sequence, columns, differing)
    move()
    db.execute("UPDATE _flows SET sequence = ? WHERE flow = ?", (sequence, view))
    db.execute("DELETE FROM _meta WHERE name = ?", (f"line/{view}",))
    return alike


def rename(db: Database, spec: FlowSpec, name: str, more: Sequence[str] = ()) -> FlowSpec:
    """All rows of the flow, as those of `name`; `more`: tables of the store that are by flow, too. Returns what the
    flow is then."""
    assert spec.view is not None
    named = replace(spec, name=name, view=replace(spec.view, name=name))
    for table in (*FLOW_TABLES, *more):
        db.execute(f"UPDATE {table} SET flow = ? WHERE flow = ?", (name, spec.name))
    for fact in ("born", "program"):
        db.execute("UPDATE _meta SET name = ? WHERE name = ?", (f"{fact}/{name}", f"{fact}/{spec.name}"))
    db.execute("UPDATE _flows SET spec = ? WHERE flow = ?", (json.dumps(named.as_json()), name))
    return named
