"""`headrace clock`: how the log judges the clock, and a user's confirmation. Owns the output; the log owns the rule."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import confirm, format_option, home_option, opened, yes_option
from headrace.cli.output import FOUND, busy, counted, note, print_one, print_rows

if TYPE_CHECKING:
    from headrace.log.capabilities import Clock
    from headrace.log.contract import ClockStanding

MENDED = ("topic", "topic_id", "restamped", "dead_letters")


@click.command()
@click.option(
    "--confirm", "confirmed", is_flag=True, help="The clock is right: use it again for appends and retention."
)
@click.option("--mend", is_flag=True, help="The clock is right: repair the topics that are ahead of it.")
@yes_option
@format_option
@home_option
def clock(confirmed: bool, mend: bool, yes: bool, format_: str | None) -> None:
    """Compare the clock with the log: print the newest arrival, how far the clock is ahead of it, whether the log
    believes it, and the partitions that are ahead of the clock. Exit code 3 if the clock is not believed, or a
    partition is ahead.

    A clock that is further ahead than time can have passed is refused: nothing is written or deleted until you set or
    confirm it.

    A repaired topic is a new one of the same name. Records that arrived in the future get the present as their arrival;
    records with an event time in the future become dead letters. Offsets, groups and queues stay. Then restart the
    programs that have the topic open, and rebuild its views: headrace rebuild APP.py VIEW --switch.

    \b
    Example:
      headrace clock
      headrace clock --confirm
      headrace clock --mend
    """
    if confirmed and mend:
        raise click.UsageError("--mend takes the clock as right: leave --confirm out.")
    from headrace.log.capabilities import Clock, capability

    with opened() as log:
        clock = capability(log, Clock)
        if mend:
            _mend(clock, log.address, yes, format_)
            return
        if confirmed:
            confirm(f"take {clock.clock().clock:%Y-%m-%d %H:%M} UTC as the right time", yes)
            clock.confirm_clock()
        found = clock.clock()
    print_one(_facts(found), format_)
    if found.verdict != "believed" or found.partitions:
        raise click.exceptions.Exit(FOUND)


def _mend(clock: Clock, home: str, yes: bool, format_: str | None) -> None:
    found = clock.clock()
    topics = sorted({each.topic for each in found.partitions})
    if not topics and (found.newest is None or found.newest <= found.clock):
        note("nothing is ahead of the clock")
        return
    what = ", ".join(topics) or "the newest arrival"
    confirm(f"take {found.clock:%Y-%m-%d %H:%M} UTC as the right time, and mend {what}", yes)
    with busy(f"mending {home}"):
        mended = clock.mend()
    if mended:
        print_rows([asdict(each) for each in mended], MENDED, format_)
    note(f"{counted(len(mended), 'topic')} mended; rebuild their views: headrace rebuild APP.py VIEW --switch")


def _facts(found: ClockStanding) -> dict[str, Any]:
    return {
        "clock": found.clock,
        "newest_arrival": found.newest,
        "ahead_seconds": round(found.ahead.total_seconds(), 3) + 0.0,  # -0.0 would puzzle readers
        "verdict": found.verdict,
        "synchronised": found.synchronised,
        "partitions_ahead": [asdict(each) for each in found.partitions],
    }
