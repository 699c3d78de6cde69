"""`headrace maintain` and `headrace erase`. Owns the output; the log does the work."""

from __future__ import annotations

from dataclasses import asdict

import click

from headrace.cli.groups import warn
from headrace.cli.options import (
    confirm,
    format_option,
    home,
    home_option,
    key_of,
    opened,
    topic_argument,
    values_of,
    views_at,
    writable,
    yes_option,
)
from headrace.cli.output import FOUND, busy, chosen, counted, note, print_one, print_rows, say

PLACE = ("place", "done", "records", "do")


@click.command()
@format_option
@home_option
def maintain(format_: str | None) -> None:
    """Do now what writing processes do in the background: apply retention, compact, seal small batches into large ones,
    give disk space back, and finish interrupted erasures.

    It may run beside readers and writers, and may be interrupted: the next run continues. Groups and queues that
    retention has overtaken, or soon will, are named on standard error. Exit code 3 if it found damage (headrace verify
    says more), 1 if something could not be done now: the disk is full, the clock is not believed, or an erasure could
    not be finished yet.

    \b
    Example:
      headrace maintain
    """
    from headrace.log.capabilities import Files, capability

    with opened() as log, busy(f"maintaining {log.address}"):
        done = capability(log, Files).maintain()
    facts = asdict(done)
    for risk in facts["at_risk"]:
        risk["time_to_loss_seconds"] = round(risk.pop("time_to_loss").total_seconds(), 3)
    if chosen(format_) == "table":  # the lines below say the rest
        facts = {name: fact for name, fact in facts.items() if not isinstance(fact, list)}
    print_one(facts, format_)
    for overtaken in done.overtaken:
        note(str(overtaken))
    warn(done.at_risk)
    for problem in (*done.problems, *done.postponed):
        note(problem)
    if done.incomplete:
        say(_unfinished(done.incomplete))
    if done.problems:
        say("there is damage; the damaged batches were not changed. headrace verify says more.")
        raise click.exceptions.Exit(FOUND)
    if done.incomplete or done.postponed:
        raise click.exceptions.Exit(1)


@click.command()
@topic_argument
@click.argument("key", nargs=-1, required=True)
@click.option("--column", help="Find records by this column in place of the key: KEY is a value, or several.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also drop what cannot be made again as it was: views whose records retention has deleted, and topics that "
    "flows write to.",
)
@yes_option
@format_option
@home_option
def erase(
    topic: str, key: tuple[str, ...], column: str | None, everything: bool, yes: bool, format_: str | None
) -> None:
    """Remove every record of a key from the topic and its dead letters, and all that was made of them: views, tables,
    what flows keep, indexes, snapshots. This cannot be undone.

    In the topic, the offsets stay, and are empty. What was made of it is dropped, and the next run of its program makes
    it again from the log. Stop the programs first: what one runs is left.

    KEY has the type of the key column; write a negative number behind --, after the options. A key of several columns
    is several arguments, or one: A,B or a JSON array ('["ann", null]').

    Prints what was done with each place, and what is left to do. Exit code 1 if a place is left that may have the
    subject: do what is said there, and erase again. What is out of reach (Kafka, sinks, backups) is said, too.

    \b
    Example:
      headrace erase clicks ann --yes
      headrace erase orders ann bob --column customer --yes
    """
    from headrace.erasure import erase_from

    with opened() as log:
        found = log.topic(writable(topic))
        wanted = [key_of(found, key, hint="KEY")] if column is None else values_of(found, column, key)
        named = f"key {wanted[0]!r}" if column is None else f"{column} {', '.join(map(repr, wanted))}"
        confirm(f"erase all records of {named} from {topic}, and what was made of them", yes)
        with busy(f"erasing from {log.address}"):
            done = erase_from(log, home(), topic, wanted, column=column, views=views_at(), everything=everything)
    print_rows([asdict(each) for each in done.places], PLACE, format_)
    if not done.complete:
        say(f"{counted(len(done.left), 'place')} may still have it: see do")
        raise click.exceptions.Exit(1)


def _unfinished(incomplete: list[str]) -> str:
    return f"bytes of erased records may be left: {'; '.join(incomplete)}. headrace maintain continues it."
