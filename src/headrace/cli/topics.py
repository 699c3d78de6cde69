"""`headrace topics …`. Owns how topics are shown; the log owns what they are. Listing needs no Arrow."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    columns_of,
    complete_topic,
    confirm,
    format_option,
    home_option,
    opened,
    opened_if_any,
    topic_argument,
    writable,
    yes_option,
)
from headrace.cli.output import chosen, counted, note, print_one, print_rows
from headrace.log.standing import duration, topic_facts

if TYPE_CHECKING:
    from headrace.log.contract import Group, Log, Topic

EMPTY = 'No topics yet. Create one: headrace topics create clicks "user string, at timestamp"'
NONE = "none"
"""On the command line, what takes a limit away: `--retention none`."""


@click.group()
@home_option
def topics() -> None:
    """Create, alter, list, show and delete topics.

    \b
    Example:
      headrace topics create clicks "user string, page string, at timestamp" --key user --event-time at
    """


# -- what a topic is -----------------------------------------------------------------------------------

_partitions = click.option("--partitions", type=int, metavar="N", help="The number of partitions; default: 1.")
_retention = click.option(
    "--retention",
    metavar="DURATION",
    help="How long records are kept after they arrived ('30 days'; none: for ever).",
)
_retention_bytes = click.option(
    "--retention-bytes",
    metavar="N",
    help="The most bytes that the topic keeps (none: no limit).",
)
_cleanup = click.option(
    "--cleanup",
    type=click.Choice(["delete", "compact"]),
    help="What upkeep does: only retention, or also compaction, which keeps the newest record of each key.",
)
_unread = click.option(
    "--unread",
    type=click.Choice(["keep", "delete"]),
    help="What retention does with records a group or queue has not read; default: delete.",
)
_archive = click.option(
    "--archive",
    metavar="DIR",
    help="Where retention moves records, as Parquet files, in place of deleting them (none: it deletes).",
)
_tombstone_grace = click.option(
    "--tombstone-grace", metavar="DURATION", help="The least time that compaction keeps a tombstone; default: 1 day."
)
_durability = click.option(
    "--durability", type=click.Choice(["fsync", "os"]), help="fsync survives a power loss, os the death of the process."
)
_compression = click.option(
    "--compression",
    type=click.Choice(["zstd", "lz4", "none"]),
    help="Of batches that upkeep has sealed: zstd (default) is smaller, lz4 quicker to read.",
)
_max_ahead = click.option(
    "--max-ahead",
    metavar="DURATION",
    help="How far event time may be ahead of the clock; records beyond that become dead letters.",
)
_extra = click.option(
    "--extra", type=click.Choice(["forbid", "ignore", "keep"]), help="What to do with unknown fields."
)


@topics.command()
@click.argument("name")
@click.argument("schema")
@click.option("--key", callback=columns_of, metavar="A,B", help="The columns that choose the partition.")
@click.option("--event-time", metavar="COLUMN", help="The column with the time of the event.")
@_partitions
@_retention
@_retention_bytes
@_cleanup
@_unread
@_archive
@_tombstone_grace
@_durability
@_compression
@click.option("--versioned", is_flag=True, help="Count records by key, for conditional appends.")
@_max_ahead
@_extra
@click.option("--exist-ok", is_flag=True, help="Accept a topic that exists already, and do not change it.")
@home_option
def create(name: str, schema: str, exist_ok: bool, versioned: bool, **given: Any) -> None:
    """Create a topic. SCHEMA is Spark DDL text: columns, types, NOT NULL.

    \b
    Example:
      headrace topics create clicks "user string, page string, ms int, at timestamp" \\
          --key user --event-time at --partitions 4 --retention "30 days"
    """
    from headrace.schema import parse_ddl

    settings = _settings(given)
    parse_ddl(schema)  # before a log is made for it
    with opened(create=True) as log:
        before = {topic.name for topic in log.topics()} if exist_ok else set()
        topic = log.create_topic(name, schema, versioned=versioned, exist_ok=exist_ok, **settings)
        partitions = topic.settings.partitions
        what = "is there already" if topic.name in before else "created"
        note(f"topic {topic.name} {what}, {partitions} partition{'s' if partitions > 1 else ''}, in {log.address}")


@topics.command()
@topic_argument
@click.option("--schema", metavar="DDL", help="The whole new schema: columns added, types widened.")
@click.option("--add-column", multiple=True, metavar='"NAME TYPE"', help="A column to add; may be repeated.")
@click.option("--partitions", type=int, metavar="N", help="How many partitions; more than now, never fewer.")
@_retention
@_retention_bytes
@_cleanup
@_unread
@_archive
@_tombstone_grace
@_durability
@_compression
@_max_ahead
@_extra
@home_option
def alter(topic: str, schema: str | None, add_column: tuple[str, ...], **given: Any) -> None:
    """Change a topic's settings, or add columns. Old records are read with the newest schema.

    \b
    Example:
      headrace topics alter clicks --retention "7 days" --add-column "country string"
    """
    changes = _settings(given)
    if schema is not None and add_column:
        raise click.UsageError("--schema is the whole schema: leave --add-column out.")
    if schema is None and not add_column and not changes:
        raise click.UsageError("Nothing to change: say what, as in --retention '7 days'.")
    with opened() as log:
        found = log.topic(writable(topic))
        if schema is not None or add_column:
            changes["schema"] = schema or ", ".join([found.describe().schema, *add_column])
        found.alter(**changes)
        note(f"topic {topic} altered: {', '.join(sorted(changes))}")


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line, as `create_topic` takes it."""
    out = {name: value for name, value in given.items() if value is not None}
    for name in ("retention", "retention_bytes", "archive"):
        if out.get(name) == NONE:
            out[name] = None
        elif name == "retention_bytes" and name in out:
            if not out[name].isdecimal():
                raise click.BadParameter(
                    f"{out[name]!r} is not a number of bytes, nor none", param_hint="--retention-bytes"
                )
            out[name] = int(out[name])
    return out


# -- looking -------------------------------------------------------------------------------------------

LISTED = (
    "topic",
    "records",
    "bytes",
    "partitions",
    "key",
    "event_time",
    "retention",
    "cleanup",
    "durability",
    "schema",
)


@topics.command("list")
@format_option
@home_option
def list_(format_: str | None) -> None:
    """List the topics.

    \b
    Example:
      headrace topics list
    """
    log = opened_if_any()
    if log is None:
        note(EMPTY)
        return
    with log:
        rows = [topic_facts(topic.describe()) for topic in log.topics()]
    if not rows:
        note(EMPTY)
        return
    print_rows(rows, LISTED, format_)


@topics.command()
@topic_argument
@format_option
@home_option
def show(topic: str, format_: str | None) -> None:
    """Show a topic: settings, schema, partitions, disk use, readers. And what retention would delete now, and how far
    its groups and queues are.

    A partition is `ahead` if its newest arrival or its progress is later than now: headrace clock says more. The `home`
    bytes are those of all topics together: used, unused, and what maintain would free.

    \b
    Example:
      headrace topics show clicks
    """
    with opened() as log:
        print_one(_shown(log, log.topic(topic), chosen(format_)), format_)


USAGE = ("batches", "small_batches", "would_delete_records", "would_delete_bytes")
HOME_USAGE = ("live_bytes", "dead_bytes", "would_free_bytes")
"""Of a log that keeps its own files."""


def _shown(log: Log, topic: Topic, kind: str) -> dict[str, Any]:
    from headrace.log.capabilities import Clock, Files, Usage

    found, usage = topic.describe(), topic.usage() if isinstance(topic, Usage) else None
    home = log.usage() if isinstance(log, Files) else None
    settings, offsets = found.settings, topic.ends()
    standing = log.clock().partitions if isinstance(log, Clock) else []
    ahead = {each.partition for each in standing if each.topic == topic.name}
    return {
        **topic_facts(found),
        "topic_id": found.topic_id,
        "schema_version": found.schema_version,
        "retention_bytes": settings.retention_bytes,
        "unread": settings.unread,
        "archive": settings.archive,
        "compression": settings.compression,
        "tombstone_grace": duration(settings.tombstone_grace_us),
        "versioned": settings.versioned,
        "max_ahead": duration(settings.max_ahead_us),
        "forget": duration(settings.forget_us),
        "extra": settings.extra,
        **({} if usage is None else {name: getattr(usage, name) for name in USAGE}),
        **({} if home is None else {f"home_{name}": getattr(home, name) for name in HOME_USAGE}),
        "partitions": [
            {
                "partition": number,
                "earliest": at.earliest,
                "next": at.next,
                "progress": at.progress,
                "arrived": at.arrived_at,
                "ahead": number in ahead,
            }
            for number, at in offsets.items()
        ],
        "groups": [_group(topic, group, kind) for group in topic.groups()],
        "consumers": [
            {**asdict(consumer), "lag_records": offsets[consumer.partition].next - consumer.offset}
            for consumer in (() if usage is None else usage.consumers)
        ],
    }


def _group(topic: Topic, group: Group, kind: str) -> dict[str, Any]:
    from headrace.cli.groups import group_row

    row = group_row(topic, group, kind)
    del row["topic"]
    return row


# -- deleting ------------------------------------------------------------------------------------------


@topics.command()
@click.argument("topic", shell_complete=complete_topic)
@yes_option
@home_option
def delete(topic: str, yes: bool) -> None:
    """Delete a topic with its records and groups. There is no way back.

    \b
    Example:
      headrace topics delete clicks --yes
    """
    with opened() as log:
        records = log.topic(writable(topic)).describe().records
        confirm(f"delete topic {topic} and its {counted(records, 'record')}", yes)
        log.delete_topic(topic)
        note(f"topic {topic} is deleted, with {counted(records, 'record')}")
