"""`headrace watch`. Owns the output; `views.watching` makes sure that no change is missed or repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import format_option, home_option, opened_views, view_argument
from headrace.cli.output import chosen

if TYPE_CHECKING:
    from headrace.views.contract import Emit


@click.command()
@view_argument
@click.option("--snapshot/--no-snapshot", default=True, help="Begin with the current rows, or print changes only.")
@click.option(
    "--emit", type=click.Choice(["updates", "final"]), default="updates", help="Every change, or final results only."
)
@click.option(
    "--max", "max_", type=click.IntRange(1), metavar="N", help="Stop after N changes, including the first rows."
)
@click.option("--timeout", metavar="DURATION", help="Stop after this long without a change.")
@format_option
@home_option
def watch(view: str, snapshot: bool, emit: Emit, max_: int | None, timeout: str | None, format_: str | None) -> None:
    """Print a view's rows, then its changes as they are committed, until Ctrl-C.

    Each change has op: '+' for a row that was added, '-' for one that was removed; a changed row has both. A window
    that closes changes the _status of its rows. _position is the number of the commit: applying all changes up to it
    gives the view as it was at that commit. With --emit final each result is printed once, when its window closes, and
    after that only corrections.

    \b
    Example:
      headrace watch views_per_minute
      headrace watch views_per_minute --emit final
      headrace watch views_per_minute --no-snapshot --max 1 --timeout "1 minute"
    """
    from headrace.cli.stopping import watch_reader

    kind = chosen(format_)
    with opened_views().watch(view, snapshot=snapshot, emit=emit, timeout=timeout) as found:
        from headrace.cli.batches import BatchPrinter

        printer, left = BatchPrinter(found.schema, kind), max_
        watch_reader()
        for batch in found.batches():
            printer.print(batch if left is None else batch.slice(0, left))
            if left is not None:
                left -= batch.num_rows
                if left <= 0:
                    return
