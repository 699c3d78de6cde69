"""`headrace dead …`: dead letters, the records that could not be appended or processed. Owns the output."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    complete_topic,
    confirm,
    format_option,
    home_option,
    opened,
    opened_if_any,
    yes_option,
)
from headrace.cli.output import chosen, harmless, note, print_one, print_rows, say

if TYPE_CHECKING:
    from headrace.log.contract import DeadLetter, Log

LISTED = ("id", "died_at", "reason", "topic", "source", "error", "value")
_topic = click.option("--topic", metavar="T", shell_complete=complete_topic, help="Only those meant for this topic.")
_ids = click.argument("ids", nargs=-1, type=click.IntRange(0), metavar="[ID]...")
_all = click.option("--all", "all_", is_flag=True, help="All of them (with --topic: all of that topic).")


@click.group()
@home_option
def dead() -> None:
    """List, show, replay and drop dead letters.

    A dead letter is a record that could not go where it should: a bad line of input, an event from too far in the
    future, a delivery that failed. It is kept with the reason until you replay or drop it.

    \b
    Example:
      headrace dead list --topic clicks
    """


def _row(letter: DeadLetter) -> dict[str, Any]:
    value = letter.value
    return {
        "id": letter.id,
        "died_at": letter.died_at,
        "reason": letter.reason,
        "topic": letter.origin.topic,
        "source": letter.origin.source,
        "error": letter.error,
        "value": value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value,
    }


@dead.command("list")
@_topic
@format_option
@home_option
def list_(topic: str | None, format_: str | None) -> None:
    """List the dead letters, oldest first.

    \b
    Example:
      headrace dead list --topic clicks
    """
    log = opened_if_any()
    if log is None:
        note("No dead letters.")
        return
    with log:
        if topic is not None:
            log.topic(topic)  # UnknownTopic for a misspelt one
        letters = (letter for letter in log.dead_letters() if topic is None or letter.origin.topic == topic)
        first = next(letters, None)
        if first is None:
            note("No dead letters.")
            return

        def rows() -> Any:
            for letter in chain([first], letters):
                row = _row(letter)
                yield row if chosen(format_) != "table" else row | {"error": letter.error.partition("\n")[0]}

        print_rows(rows(), LISTED, format_)


@dead.command()
@click.argument("id_", type=click.IntRange(0), metavar="ID")
@format_option
@home_option
def show(id_: int, format_: str | None) -> None:
    """Show one dead letter.

    \b
    Example:
      headrace dead show 0
    """
    with opened() as log:
        (letter,) = _chosen(log, (id_,), None)
        origin = letter.origin
        where = {"partition": origin.partition, "offset": origin.offset, "deliveries": letter.deliveries}
        row = {**_row(letter), **where}
        if chosen(format_) != "table":
            print_one(row, format_)
            return
        what, *trace = letter.error.splitlines() or [""]
        print_one(row | {"error": what}, format_)
        if trace:
            click.echo("\n" + "\n".join(harmless(line.expandtabs(4)) for line in trace))


@dead.command()
@_ids
@_all
@_topic
@home_option
def replay(ids: tuple[int, ...], all_: bool, topic: str | None) -> None:
    """Append dead letters to the topic they were meant for. One transaction appends the record and removes the letter.

    A queue's letter is not appended: its message goes back into its queue (for all of a queue: headrace queue redrive).
    Bytes that are not a record cannot be replayed: correct them, produce them, then drop the letter.

    \b
    Example:
      headrace dead replay 0 1 2
      headrace dead replay --all --topic clicks
    """
    _check(ids, all_, topic)
    from headrace.cli.advice import sentence
    from headrace.errors import HeadraceError

    done, failed = 0, 0
    with opened() as log:
        for letter in _chosen(log, ids, topic):
            try:
                letter.replay()
                done += 1
            except HeadraceError as error:
                failed += 1
                say(f"dead letter {letter.id}: {sentence(error).removeprefix(f'letter {letter.id}: ')}")
    note(f"{done} replayed, {failed} not")
    if failed:
        raise click.exceptions.Exit(1)


@dead.command()
@_ids
@_all
@_topic
@yes_option
@home_option
def drop(ids: tuple[int, ...], all_: bool, topic: str | None, yes: bool) -> None:
    """Drop dead letters.

    \b
    Example:
      headrace dead drop 0 --yes
    """
    _check(ids, all_, topic)
    with opened() as log:
        letters = _chosen(log, ids, topic)
        confirm(f"drop {len(letters)} dead letter{'' if len(letters) == 1 else 's'}", yes)
        for letter in letters:
            letter.drop()
    note(f"{len(letters)} dropped")


def _check(ids: tuple[int, ...], all_: bool, topic: str | None) -> None:
    if bool(ids) == all_:
        raise click.UsageError("Say which: ID…, or --all." if not ids else "Say either ID… or --all, not both.")
    if topic is not None and not all_:
        raise click.UsageError("--topic goes with --all.")


def _chosen(log: Log, ids: tuple[int, ...], topic: str | None) -> list[DeadLetter]:
    """The letters of these ids, in that order; without ids all (of a topic)."""
    if not ids:
        return [letter for letter in log.dead_letters() if topic is None or letter.origin.topic == topic]
    return [log.dead_letter(id_) for id_ in dict.fromkeys(ids)]
