"""`headrace copy`. Owns which address means a log and which views, and the output; `headrace.copying` and the view
stores do the work."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.cli.options import format_option, home_option
from headrace.cli.output import FOUND, Progress, counted, note, print_rows
from headrace.places import ADDRESS, directory

if TYPE_CHECKING:
    from headrace.log.contract import Log

TOPICS = ("topic", "partition", "copied", "records", "same", "sha256")
FLOWS = ("flow", "rows", "sha256", "there")


@click.command()
@click.option("--from", "source", required=True, metavar="URL", help="DIR, kafka://HOST:PORT or postgresql://….")
@click.option("--to", "target", required=True, metavar="URL", help="DIR, kafka://HOST:PORT or postgresql://….")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@format_option
@home_option
def copy(source: str, target: str, topics: tuple[str, ...], format_: str | None) -> None:
    """Copy topics with groups' positions between logs, or views between SQLite and Postgres; then compare.

    Between directories and Kafka it copies topics: schema, settings, records with their event-time progress, and the
    positions of groups. The topics that are named, or all that no flow has made. Run it again to copy what has come
    since; killed anywhere, it goes on. Exit code 3 if the copy is not the same.

    With an address of Postgres it copies views, with all that their flows have, between it and the views in a
    directory. The log stays where it is. Stop the flows first.

    \b
    Example:
      headrace copy --from .headrace --to kafka://localhost:9092
      headrace copy --from .headrace --to postgresql://localhost/shop
    """
    if any(_is_postgres(url) for url in (source, target)):
        if topics:
            raise click.UsageError("Views are copied all together: name no topics.")
        _views(source, target, format_)
    else:
        _topics(source, target, topics, format_)


def _is_postgres(url: str) -> bool:
    found = ADDRESS.match(url)
    return found is not None and found[0].lower() in ("postgres:", "postgresql:")


def _opened(url: str, *, create: bool) -> Log:
    from headrace.log.open import log_address, open_address

    if ADDRESS.match(url):
        return open_address(log_address(url))
    return open_address(directory(url), create=create)


def _topics(source: str, target: str, names: tuple[str, ...], format_: str | None) -> None:
    from headrace.copying import copy_topics, not_of_flows

    with _opened(source, create=False) as log, _opened(target, create=True) as other:
        if log.log_id == other.log_id:
            raise click.UsageError("--from and --to are the same log.")
        with Progress("records copied") as progress:
            partitions, groups = copy_topics(log, other, names, progress=progress.show)
        letters = log.dead_letters_count()
        left = {topic.name for topic in log.topics()} - {topic.name for topic in not_of_flows(log)} - set(names)
    print_rows([asdict(each) for each in partitions], TOPICS, format_)
    for group in groups:
        at = ", ".join(f"{number}:{offset}" for number, offset in sorted(group.offsets.items()))
        note(f"group {group.group} of {group.topic}: {at or 'no position'}")
    if left and not names:
        note(f"not copied, because flows make them again: {', '.join(sorted(left))}. Name them to copy them, too")
    if letters:
        note(f"{counted(letters, 'dead letter')} not copied: replay or drop them (headrace dead list)")
    if not all(each.same for each in partitions):
        note("what is not the same was written by others, too, or was compacted or erased meanwhile")
        raise click.exceptions.Exit(FOUND)


def _views(source: str, target: str, format_: str | None) -> None:
    from headrace.views.open import copy_views

    places = [url if ADDRESS.match(url) else directory(url) for url in (source, target)]
    with Progress("rows copied") as progress:
        done = 0

        def told(count: int) -> None:
            nonlocal done
            done += count
            progress.show(done)

        copied = copy_views(places[0], places[1], told)
    print_rows([asdict(each) for each in copied], FLOWS, format_)
    note(f"run the programs with {_option(target)} now, and no more with {_option(source)}")


def _option(url: str) -> str:
    """Which says that views are there; without a password."""
    from headrace.libpq import shown, split_address

    if not _is_postgres(url):
        return f"--home {url}"
    schemas = [value for name, value in split_address(url, argument="views")[1] if name == "schema"]
    return f"--views '{shown(url, ''.join(f'schema={name}' for name in schemas[-1:]))}'"
