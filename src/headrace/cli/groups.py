"""`headrace groups …`. Owns how groups are shown; the log owns who has what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    complete_topic,
    confirm,
    format_option,
    group_argument,
    home_option,
    opened,
    opened_if_any,
    start_of,
    topic_argument,
    where_option,
    yes_option,
)
from headrace.cli.output import about, chosen, counted, note, print_one, print_rows, say
from headrace.log.standing import group_facts, groups_in, lag_seconds, risks_of

if TYPE_CHECKING:
    from headrace.log.contract import AtRisk, Group, Topic

EMPTY = "No groups yet. Join one: headrace consume TOPIC --group NAME"
LISTED = ("group", "topic", "members", "lag_records", "lag_seconds")
LOSS, LOSS_SECONDS = "time_to_loss", "time_to_loss_seconds"
"""The last column: in words on a terminal, in seconds for programs."""


@click.group()
@home_option
def groups() -> None:
    """List, show, wait for, rewind and delete consumer groups.

    \b
    Example:
      headrace groups list
    """


def group_row(topic: Topic, group: Group, kind: str) -> dict[str, Any]:
    """A group in one line, as this format has it."""
    row = group_facts(topic, group)
    if kind == "table":
        left = row.pop(LOSS_SECONDS)
        row[LOSS] = None if left is None else about(left)
    return row


def warn(risks: list[AtRisk]) -> None:
    """A line for each group or queue that is about to lose records."""
    for risk in risks:
        left = about(risk.time_to_loss.total_seconds())
        say(
            f"{risk.kind} {risk.consumer} of {risk.topic} loses records in {left} at its pace: speed it up, or "
            f"headrace topics alter {risk.topic} with --unread keep or a longer --retention."
        )


@groups.command("list")
@click.argument("topic", required=False, shell_complete=complete_topic)
@format_option
@home_option
def list_(topic: str | None, format_: str | None) -> None:
    """List the groups, of one topic or of all, with their lag. Also the time until retention overtakes them.

    A flow that reads a topic is listed as __flow.NAME; its lag is at most a second old.

    A group that is about to lose records (in less than a tenth of the retention) is named on standard error.

    \b
    Example:
      headrace groups list clicks
    """
    log = opened_if_any() if topic is None else opened()
    if log is None:
        note(EMPTY)
        return
    with log:
        topics = log.topics() if topic is None else [log.topic(topic)]
        kind = chosen(format_)
        rows = [group_row(found, group, kind) for found, group in groups_in(log, topics)]
        for found in topics:
            warn(risks_of(found))
    if not rows:
        note(EMPTY)
        return
    print_rows(rows, (*LISTED, LOSS if kind == "table" else LOSS_SECONDS), format_)


@groups.command()
@group_argument
@topic_argument
@format_option
@home_option
def show(group: str, topic: str, format_: str | None) -> None:
    """Show a group: its members, partitions, offsets and lag. And how long until retention overtakes it.

    \b
    Example:
      headrace groups show billing clicks
    """
    with opened() as log:
        found = log.topic(topic)
        handle = found.group(group)
        lag = handle.lag()
        members = handle.members()
        owner = {partition: member.member for member in members for partition in member.partitions}
        shown = {
            **group_row(found, handle, chosen(format_)),
            "members": [
                {
                    "member": member.member,
                    "host": member.host,
                    "pid": member.pid,
                    "partitions": list(member.partitions),
                    "joined_at": member.joined_at,
                    "alive": member.alive,
                }
                for member in members
            ],
            "partitions": [
                {
                    "partition": number,
                    "member": owner.get(number),
                    "committed": part.committed,
                    "next": part.next,
                    "lag_records": part.records,
                    "lag_seconds": lag_seconds(part),
                }
                for number, part in lag.items()
            ],
        }
        mine = ("flow", handle.flow) if handle.flow else ("group", group)
        warn([risk for risk in risks_of(found) if (risk.kind, risk.consumer) == mine])
    print_one(shown, format_)


@groups.command()
@group_argument
@topic_argument
@click.option("--members", type=click.IntRange(min=0), metavar="N", help="Until N members share all partitions.")
@click.option("--lag", type=click.IntRange(min=0), metavar="N", help="Until at most N records are unread.")
@click.option(
    "--timeout", default="1 minute", show_default=True, metavar="DURATION", help="After this, end with exit code 1."
)
@home_option
def wait(group: str, topic: str, members: int | None, lag: int | None, timeout: str) -> None:
    """Wait until a group has members or a lag: for scripts. If the group does not exist yet, it waits for it.

    \b
    Example:
      headrace groups wait billing clicks --members 2 --lag 0
    """
    with opened() as log:
        alive, unread = log.topic(topic).group(group).wait(members=members, lag=lag, timeout=timeout)
    note(f"group {group}: {counted(alive, 'member')}, lag {unread}")


@groups.command()
@group_argument
@topic_argument
@where_option
@format_option
@home_option
def rewind(group: str, topic: str, start: str, format_: str | None) -> None:
    """Set a group's offsets. Live members continue from there; a new group is created.

    \b
    Example:
      headrace groups rewind billing clicks --start 2026-01-31T12:00:00Z
    """
    begin = start_of(start)
    with opened() as log:
        offsets = log.topic(topic).group(group).rewind(begin)
    print_rows(
        [{"partition": number, "committed": offset} for number, offset in sorted(offsets.items())],
        ("partition", "committed"),
        format_,
    )
    note(f"group {group} of {topic} continues from here")


@groups.command()
@group_argument
@topic_argument
@yes_option
@home_option
def delete(group: str, topic: str, yes: bool) -> None:
    """Delete a group and its offsets; live members are fenced.

    \b
    Example:
      headrace groups delete billing clicks --yes
    """
    with opened() as log:
        handle = log.topic(topic).group(group)
        handle.lag()  # UnknownGroup before the question, not after it
        confirm(f"forget group {group} of {topic} and its offsets", yes)
        handle.delete()
        note(f"group {group} of {topic} is forgotten")
