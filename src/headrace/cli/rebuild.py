"""`headrace rebuild APP.py VIEW`: computes a changed flow beside the old one, prints the difference, switches, and
rolls back. Owns the output; `flows.rebuild` does the work."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from headrace.cli.catching_up import catching_up
from headrace.cli.options import format_option, home_option, start_of, view_argument
from headrace.cli.output import chosen, counted, note, print_rows
from headrace.cli.run import app_argument, blamed, loaded, run_in_thread
from headrace.cli.stopping import stoppable

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App
    from headrace.views.reading import Diff

SHOWN = 20


@click.command()
@app_argument
@view_argument
@click.option("--switch", is_flag=True, help="Then switch the view to the new version.")
@click.option("--rollback", is_flag=True, help="Go back to the version before the last switch.")
@click.option(
    "--discard", is_flag=True, help="Drop the version beside the view: the new one; after a switch, the old one."
)
@click.option("--start", default="earliest", metavar="WHERE", help="Where in the log to begin; default: earliest.")
@click.option(
    "--max", "max_", type=click.IntRange(0), default=SHOWN, show_default=True, help="Print at most this many rows."
)
@click.option("--spark", metavar="MASTER", help="The Spark to use; default: a local session.")
@format_option
@home_option
def rebuild(
    program: str,
    view: str,
    switch: bool,
    rollback: bool,
    discard: bool,
    start: str,
    max_: int,
    spark: str | None,
    format_: str | None,
) -> None:
    """Compute a view again from the log, with the current program, and print the difference.

    The old version is served meanwhile, and its runner, if there is one, continues. Without --switch the new version is
    kept beside it, and the same command with --switch continues that version. A switch reads to the log's end and takes
    one moment. A runner of this program continues with the new version; a runner of another program continues without
    this view. The old version is kept for --rollback, until --discard or the next rebuild.

    '-' is a row of the old version, '+' one of the new version. Columns that only one version has are named, and not
    compared.

    \b
    Example:
      headrace rebuild shop.py views_per_minute
      headrace rebuild shop.py views_per_minute --switch
      headrace rebuild shop.py views_per_minute --rollback
    """
    if switch + rollback + discard > 1:
        raise click.UsageError("--switch, --rollback and --discard: say one of them.")
    begin, kind = start_of(start), chosen(format_)
    app = loaded(program, spark)
    with contextlib.closing(app), blamed(program, app):
        if rollback:
            app.rollback(view)
            note(f"view {view} is what it was before the last switch; the newer version is kept beside it")
        elif discard:
            dropped = app.running.discard(view)
            note(f"{', '.join(dropped)} dropped" if dropped else f"view {view} has no other version")
        else:
            _make_version(app, program, view, begin, switch, max_, kind)


def _make_version(app: App, program: str, view: str, begin: object, switch: bool, max_: int, kind: str) -> None:
    note(f"starting Spark for {program}")
    ticker = catching_up(lambda: app.running.making(view))
    with stoppable() as stopping:
        made = run_in_thread(lambda: app.rebuild(view, start=begin), stopping, ticker)  # type: ignore[arg-type]
        for each in made.gone:
            note(str(each))
        diff = made.compare(max_)
        if diff.rows.num_rows:
            _print(diff.rows, kind)
        _tell(diff)
        if not switch:
            note(f"not switched: --switch takes it, --discard drops it ({made.version})")
            return
        run_in_thread(made.switch, stopping, ticker)
    note(f"view {view} is the new version; headrace rebuild {program} {view} --rollback goes back")


def _print(rows: pa.Table, kind: str) -> None:
    from headrace.cli.batches import BatchPrinter
    from headrace.rows import to_rows

    if kind in ("json", "arrow"):
        BatchPrinter(rows.schema, kind).print_all(rows.to_batches())
    else:
        print_rows((row for batch in rows.to_batches() for row in to_rows(batch)), rows.column_names, kind)


def _tell(diff: Diff) -> None:
    counts = diff.counts
    shown = diff.rows.num_rows
    total = counts.added + counts.removed + 2 * counts.changed
    if shown < total:
        note(f"… {total - shown} more; --max shows more")
    others = f"{counts.added} added, {counts.removed} removed, {counts.same} the same"
    note(f"{counted(counts.changed, 'row')} changed, {others}")
    for names, what in ((diff.added, "added"), (diff.removed, "removed")):
        if names:
            note(f"{counted(len(names), 'column')} {what}: {', '.join(names)}")
