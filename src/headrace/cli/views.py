"""`headrace views …` and `headrace ledger`: lists views, their progress, and the counts of their records. Owns the
output, and the question before a view is dropped. Starts no Spark."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    confirm,
    format_option,
    home,
    home_option,
    opened_if_any,
    opened_views,
    view_argument,
    views_at,
    yes_option,
)
from headrace.cli.output import chosen, counted, note, print_one, print_rows
from headrace.views.standing import lag_of, sources_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.views.kept import Kept
    from headrace.views.reading import Views

EMPTY = "No views yet. The first run of an app creates its views: headrace run APP.py"
LISTED = ("view", "app", "rows", "commits", "frontier", "lag_records", "running", "committed_at")


@click.group()
@home_option
def views() -> None:
    """List, show and drop views.

    \b
    Example:
      headrace views list
    """


# -- looking -------------------------------------------------------------------------------------------


@views.command("list")
@format_option
@home_option
def list_(format_: str | None) -> None:
    """List the views: rows, commits, frontier and lag.

    `frontier`: event time up to which the view is complete. `lag_records`: records that it has not read yet.
    `running`: whether the process that last ran the view is alive.

    \b
    Example:
      headrace views list
    """
    found = opened_views()
    names = found.names()
    if not names:
        note(EMPTY)
        return
    log = opened_if_any()
    try:
        rows = [
            _listed(found, name, lag_of(sources_of(log, found.branches(name), found.state(name)))) for name in names
        ]
    finally:
        if log is not None:
            log.close()
    print_rows(rows, LISTED, format_)


def _listed(found: Views, view: str, lag_records: int | None) -> dict[str, Any]:
    status = found.status(view)
    return {
        "view": view,
        "app": status.app,
        "rows": status.rows,
        "commits": status.commits,
        "frontier": status.frontier,
        "lag_records": lag_records,
        "running": status.running,
        "committed_at": status.committed_at,
    }


@views.command()
@view_argument
@format_option
@home_option
def show(view: str, format_: str | None) -> None:
    """Show a view: columns, window, sources, ledger totals. And its aggregates, and how far it has read each source.

    \b
    Example:
      headrace views show views_per_minute
    """
    found = opened_views()
    flow, status = found.flow(view), found.status(view)
    assert flow.view is not None
    log = opened_if_any()
    try:
        sources = sources_of(log, found.branches(view), found.state(view))
    finally:
        if log is not None:
            log.close()
    shown = {
        **_listed(found, view, lag_of(sources)),
        "pid": status.pid,
        "host": status.host,
        "started_at": status.started_at,
        "position": str(status.position),
        "window": flow.window or None,
        "time": flow.time,
        "grace": _duration(flow.grace_us) if flow.window else None,
        "late": (f"correct within {_duration(flow.within_us)}" if flow.within_us else "drop") if flow.window else None,
        "keep": _duration(flow.view.keep_us),
        **_totals(found.ledger(view)),
        "columns": [{"column": column.name, "type": column.type} for column in flow.view.columns],
        "aggregates": [{"name": name, "aggregate": text} for name, text in flow.aggregates.items()],
        "sources": sources,
        "kept": [_kept(each) for each in status.kept],
    }
    print_one(shown, format_)


def _kept(kept: Kept) -> dict[str, Any]:
    """What a join keeps of an input, and which partition holds it."""
    held = kept.held_by
    partition = None if held is None or held.partition is None else held.partition
    return {
        "side": kept.side,
        "topics": ", ".join(kept.topics),
        "rows": kept.rows,
        "bytes": kept.bytes,
        "held_by": None if held is None else held.topic if partition is None else f"{held.topic}/{partition}",
        "held_at": None if held is None else held.progress,
    }


def _duration(us: int | None) -> str | None:
    from headrace.durations import format_duration

    return None if us is None else format_duration(us)


# -- the ledger ----------------------------------------------------------------------------------------

COUNTS = ("on_time", "corrected", "dropped", "untimed")


@click.command()
@view_argument
@format_option
@home_option
def ledger(view: str, format_: str | None) -> None:
    """Count a view's records by window: rows in = on time + corrected + dropped + untimed.

    The row without a window counts the records that belong to none. A table ends with the totals.

    \b
    Example:
      headrace ledger views_per_minute
    """
    kind, views_ = chosen(format_), opened_views()
    found = views_.ledger(view)
    for helper in (spec.name for spec in views_.specs() if spec.parent == view):
        note(f"repetitions, and records too late for dedup(…): headrace ledger {helper}")
    if kind == "arrow":
        from headrace.cli.batches import BatchPrinter

        BatchPrinter(found.schema, kind).print_all(found.to_batches())
        return
    from headrace.rows import to_rows

    rows = (row for batch in found.to_batches() for row in to_rows(batch))
    print_rows(rows, found.column_names, kind)
    if kind == "table":
        totals = _totals(found)
        parts = " + ".join(f"{totals[name]} {name.replace('_', ' ')}" for name in COUNTS)
        click.echo(f"{counted(totals['rows_in'], 'row')} in = {parts}")


def _totals(found: pa.Table) -> dict[str, int]:
    import pyarrow.compute as pc

    counts = {name: pc.sum(found[name]).as_py() or 0 for name in COUNTS}
    return {"rows_in": sum(counts.values()), **counts}


# -- dropping ------------------------------------------------------------------------------------------


@views.command()
@view_argument
@yes_option
@click.option(
    "--force", is_flag=True, help="Drop it while its process runs, too; that process's next commit is refused."
)
@home_option
def drop(view: str, yes: bool, force: bool) -> None:
    """Drop a view, its rows, its ledger and its offsets. The next run of its app computes it again from the log.  To
    drop a flow that writes to a topic, use the topic's name. Its records stay there, and its next run writes all of
    them again.

    \b
    Example:
      headrace views drop views_per_minute --yes
    """
    from headrace.errors import UnknownTopic, ViewInUse
    from headrace.storage.reserve import to_free_space
    from headrace.views.contract import version_name
    from headrace.views.open import open_store

    click.get_current_context().with_resource(to_free_space(home()))
    found = opened_views()
    status, target = found.status(view, topics=True), found.flow(view, topics=True).target
    if status.running and not force:
        raise ViewInUse(view=view, pid=status.pid or 0, host=status.host or "")
    rows = counted(status.rows, "row")
    what = f"view {view} and its {rows}" if target is None else f"flow {view} into topic {target}"
    confirm(f"drop {what}", yes)
    helpers = [spec.name for spec in found.specs() if spec.parent == view]
    with open_store(views_at()) as store:
        nobodys = store.drop(view)
    if (log := opened_if_any()) is not None:
        with log:
            for topic in nobodys:
                with contextlib.suppress(UnknownTopic):
                    log.delete_own_topic(topic)
            for name in (view, *helpers, version_name(view, "next")):
                log.forget_flow(name)
    if target is None:
        note(f"{what} are dropped; the log still has their records")
    else:
        note(f"{what} is dropped; its records stay. Its next run writes all of them again: delete the topic first")
