"""`headrace backup` and `headrace restore`. Own the output; `headrace.keeping` does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from headrace.cli.options import format_option, home, home_option, log_url, views_at
from headrace.cli.output import Progress, note, print_one
from headrace.places import without_secrets


@contextmanager
def _megabytes(what: str) -> Iterator[Callable[[int], None]]:
    with Progress(what) as progress:
        yield lambda count: progress.show(count >> 20)


@click.command()
@click.argument("target", metavar="DEST", type=click.Path(path_type=Path))
@format_option
@home_option
def backup(target: Path, format_: str | None) -> None:
    """Copy the log and the views of the home into DEST, a new directory, while they are in use, and check the copy.

    The copy has all records up to some moment, and views that are not ahead of them. Appends and flows go on; upkeep
    waits. If it fails, or is killed, there is no DEST. What was on its way is removed by the next run.

    \b
    Example:
      headrace backup /backups/monday
    """
    from headrace.keeping import backup as make

    with _megabytes("MB copied") as told:
        made = make(home(), target, progress=told)
    print_one(asdict(made), format_)
    if (url := log_url()) is not None:
        note(f"the log is at {without_secrets(url)}, and is not in this backup")
    if isinstance(place := views_at(), str):
        note(f"the views are at {without_secrets(place)}, and are not in this backup: see docs/operations.md")


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@format_option
@home_option
def restore(source: Path, format_: str | None) -> None:
    """Make a home of a backup. The home must not be there, or must be an empty directory: move the old one away.

    Every file is compared with the checksum in the backup's manifest. If one differs, there is no home.

    \b
    Example:
      headrace restore /backups/monday --home .headrace
    """
    from headrace.keeping import restore as make

    with _megabytes("MB restored") as told:
        made = make(source, home(), progress=told)
    print_one(asdict(made), format_)
