"""`headrace queue …`. Owns how queues are shown; the log owns where their messages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import (
    complete_topic,
    confirm,
    format_option,
    home_option,
    opened,
    opened_if_any,
    queue_argument,
    start_of,
    topic_argument,
    where_option,
    yes_option,
)
from headrace.cli.output import counted, note, print_one, print_rows
from headrace.log.standing import queue_facts, queues_of

if TYPE_CHECKING:
    from headrace.log.capabilities import Queue
    from headrace.log.contract import Log

EMPTY = "No queues yet. Create one: headrace work MODULE:FUNCTION TOPIC QUEUE"
LISTED = ("queue", "topic", "order", "ready", "in_flight", "waiting", "due", "dead_open", "oldest_seconds")


@click.group()
@home_option
def queue() -> None:
    """List, show, peek into, redrive, rewind and delete queues.

    A queue hands the messages of a topic to consumers one by one; each is acknowledged, or comes again. To work on one:
    headrace work.

    \b
    Example:
      headrace queue stats orders mailer
    """


@queue.command("list")
@click.argument("topic", required=False, shell_complete=complete_topic)
@format_option
@home_option
def list_(topic: str | None, format_: str | None) -> None:
    """List the queues: how many messages are ready, in flight, dead. Of one topic, or of all.

    \b
    Example:
      headrace queue list orders
    """
    log = opened_if_any() if topic is None else opened()
    if log is None:
        note(EMPTY)
        return
    with log:
        topics = log.topics() if topic is None else [log.topic(topic)]
        rows = [queue_facts(found.name, each) for found in topics for each in queues_of(found)]
    if not rows:
        note(EMPTY)
        return
    print_rows([{name: row[name] for name in LISTED} for row in rows], LISTED, format_)


@queue.command()
@topic_argument
@queue_argument
@format_option
@home_option
def stats(topic: str, queue: str, format_: str | None) -> None:
    """Show a queue: where its messages are, counters, settings.

    \b
    Example:
      headrace queue stats orders mailer
    """
    with opened() as log:
        shown = queue_facts(topic, _queue(log, topic, queue))
    print_one(shown, format_)


@queue.command()
@topic_argument
@queue_argument
@click.option("--max", "max_", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="How many.")
@format_option
@home_option
def peek(topic: str, queue: str, max_: int, format_: str | None) -> None:
    """Print what a queue would hand out next, without handing it out.

    \b
    Example:
      headrace queue peek orders mailer --max 3
    """
    with opened() as log:
        rows = [
            {
                "partition": record.partition,
                "offset": record.offset,
                "arrived_at": record.arrived_at,
                "value": record.value,
            }
            for record in _queue(log, topic, queue).peek(max_)
        ]
    if rows:
        print_rows(rows, list(rows[0]), format_)
    else:
        note("Nothing to receive now.")


@queue.command()
@topic_argument
@queue_argument
@home_option
def redrive(topic: str, queue: str) -> None:
    """Put a queue's dead letters back into it. They are delivered as if for the first time.

    \b
    Example:
      headrace queue redrive orders mailer
    """
    with opened() as log:
        found = _queue(log, topic, queue)
        done, left = found.redrive(), found.stats().dead_open
    note(f"{counted(done, 'message')} back in queue {queue} of {topic}")
    if left:
        note(f"{counted(left, 'dead letter')} of it left: see headrace dead list --topic {topic}")


@queue.command()
@topic_argument
@queue_argument
@where_option
@format_option
@home_option
def rewind(topic: str, queue: str, start: str, format_: str | None) -> None:
    """Set where a queue is. What is delivered and not answered is forgotten: consumers that have it cannot ack it.

    \b
    Example:
      headrace queue rewind orders mailer --start earliest
    """
    begin = start_of(start)
    with opened() as log:
        offsets = _queue(log, topic, queue).rewind(begin)
    print_rows(
        [{"partition": number, "next": offset} for number, offset in sorted(offsets.items())],
        ("partition", "next"),
        format_,
    )
    note(f"queue {queue} of {topic} continues from here")


@queue.command()
@topic_argument
@queue_argument
@yes_option
@home_option
def delete(topic: str, queue: str, yes: bool) -> None:
    """Forget a queue and where it is. Its dead letters stay, but can no longer be replayed.

    \b
    Example:
      headrace queue delete orders mailer --yes
    """
    with opened() as log:
        found = _queue(log, topic, queue)
        confirm(f"forget queue {queue} of {topic}", yes)
        found.delete()
    note(f"queue {queue} of {topic} is forgotten")


def _queue(log: Log, topic: str, queue: str) -> Queue:
    from headrace.log.capabilities import Queues, capability

    return capability(log.topic(topic), Queues).queue(queue, create=False)
