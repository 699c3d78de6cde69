"""A commit's rows into a view's tables, and what changed by it. Owns the order in which that is done; each step is in
the file of its name."""

from __future__ import annotations

import sqlite3

from headrace.views.contract import Commit, FlowSpec, Outgoing, feed_topic
from headrace.views.sqlite import feeding, flow_rows, lives, merging, retracting, sessions, sliding
from headrace.views.sqlite.tables import tables_of


def fold(db: sqlite3.Connection, spec: FlowSpec, commit: Commit, closed: str | None) -> list[Outgoing]:
    """The rows into the view's tables; what changed, if it goes anywhere."""
    flow = spec.name
    if spec.view is None:
        return []
    tables = tables_of(spec.view)
    was_closed, was_reachable = db.execute("SELECT closed, reachable FROM _flows WHERE flow = ?", (flow,)).fetchone()
    partials = None
    if commit.partials is not None:
        partials = merging.in_order(spec.view, merging.with_whole(spec.view, commit.partials))
    if partials is not None and spec.view.retracts and (gone := flow_rows.not_kept(db, spec)) is not None:
        partials = merging.ending_after(partials, gone)  # such rows have gone, and would begin anew
    if partials is not None and partials.num_rows and spec.view.windows == "sliding":
        partials = sliding.spread(db, tables, partials, commit.aggregates, commit.reachable_us)
    joins = None
    if partials is not None and partials.num_rows and spec.view.windows == "session":
        joins = sessions.joining(db, tables, partials)
        partials = joins.partials
    became = None if joins is None else joins.became
    changes = None
    if spec.emit is not None:
        changes = merging.Changes(db, tables, spec.emit, partials, was_closed, became)
    fed = feeding.fed(tables) if spec.feeds else None
    feeds = {emit: merging.Changes(db, tables, emit, partials, was_closed, became, fed) for emit in spec.feeds}
    if joins is not None:
        partials = joins.apply(db, tables)
    if partials is not None and partials.num_rows:
        if tables.lives is not None:
            lives.fold(db, tables, partials, commit.aggregates)
        else:
            merging.merge(db, tables, partials, commit.aggregates)
        if spec.view.retracts:
            retracting.retract(db, tables, partials, commit.aggregates)
        elif tables.kept:
            retracting.keep(db, tables, partials, commit.aggregates)
        if spec.view.shaped is not None:
            assert commit.shape is not None, "a shaped view's commits say how"
            merging.reshape(db, tables, partials, commit.shape)
    if not spec.view.retracts:  # what is above may be made anew, and take back anything
        merging.forget(db, tables, was_reachable, commit.reachable_us)
    moved = commit.closed_us if closed is not None and closed > (was_closed or "") else None
    rows = None if changes is None else changes.rows(moved)
    out = []
    for emit, each in feeds.items():
        marks = None if moved is None else (moved, commit.reachable_us)
        if spec.view.records and commit.frontier_us is not None:  # records are judged again, by how far those are
            marks = commit.frontier_us, commit.reachable_us
        if (told := feeding.marked(spec.view, each.rows(moved), marks)).num_rows:
            out.append(Outgoing(feed_topic(flow, emit), told))
    if (gone := flow_rows.not_kept(db, spec, commit)) is not None:
        if tables.lives is not None:
            lives.end(db, tables, gone)
        else:
            merging.expire(db, tables, gone)
    if rows is None:
        return out
    if spec.view.window_us:
        rows = rows.append_column("_progress", rows["window_start"])  # a change of a view is never late
    if commit.shape is not None and rows.num_rows:
        rows = commit.shape(rows)
    assert spec.target is not None, "what is emitted goes somewhere"
    return [*out, Outgoing(spec.target, rows)] if rows.num_rows else out
