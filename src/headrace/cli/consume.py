"""`headrace consume`. Owns the printing of records and, in a group, the order print, flush, commit: what was not
printed is never committed. Streams: memory is bounded by a batch, however long the topic is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    columns_of,
    complete_group,
    format_option,
    home_option,
    opened,
    start_of,
    topic_argument,
)
from headrace.cli.output import (
    PAGE_ROWS,
    StreamedTable,
    chosen,
    csv_lines,
    json_harmless,
    on_terminal,
    stdout_bytes,
)

if TYPE_CHECKING:
    from headrace.log.contract import Record
    from headrace.log.embedded.topic import EmbeddedTopic

Row = dict[str, Any]

CHUNK_ROWS = 2_000
"""Rows written together."""
POLL_ROWS = 10_000


@click.command()
@topic_argument
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="earliest, latest, a time with zone, or P:OFFSET,P:OFFSET.",
)
@click.option("--partition", type=int, metavar="P", help="Only this partition.")
@click.option("--key", metavar="K", help="Only this key's records; of several columns: the values as A,B.")
@click.option(
    "--group",
    metavar="G",
    shell_complete=complete_group,
    help="Join this group: share the partitions, go on where it is.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on at the end, as records come.")
@click.option("--max", "max_", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option("--timeout", metavar="DURATION", help="With --follow or --group: stop after this long without a record.")
@click.option("--columns", callback=columns_of, metavar="A,B", help="Only these columns.")
@click.option("--meta", is_flag=True, help="Add _partition, _offset, _arrived_at, _progress.")
@format_option
@home_option
def consume(
    topic: str,
    start: str,
    partition: int | None,
    key: str | None,
    group: str | None,
    follow: bool,
    max_: int | None,
    timeout: str | None,
    columns: tuple[str, ...] | None,
    meta: bool,
    format_: str | None,
) -> None:
    """Print records: each as its JSON object, which `headrace produce` reads back without loss.

    Without --follow it stops at what is the end when it starts; with --group, when the group has read everything.

    In a group, records are printed, standard output is flushed, and then they are committed: after a crash in between
    they are printed again (at least once). --start then counts only for partitions the group has no offset of.
    Records with --meta are for reading: produce refuses the metadata fields.

    \b
    Example:
      headrace consume clicks --start 2026-01-31T12:00:00Z --max 10
      headrace consume clicks --group billing --follow
    """
    if group is not None and (key is not None or partition is not None):
        raise click.UsageError("--group shares out whole partitions: leave --key and --partition out.")
    if timeout is not None and not follow and group is None:
        raise click.UsageError("--timeout is for --follow or --group; without them consume does not wait.")
    begin = start_of(start)
    with opened() as log:
        found = log.topic(topic)
        printer = _printer(found, columns, meta, chosen(format_))
        if follow or group is not None:
            from headrace.cli.stopping import watch_reader

            watch_reader()
        if group is not None:
            _in_group(found, group, printer, begin, follow=follow, limit=max_, timeout=timeout)
        elif follow:
            _following(found, printer, begin, partition, key, limit=max_, timeout=timeout)
        else:
            rows = _all(found, printer, begin, partition, key)
            printer.drain(rows if max_ is None else islice(rows, max_))


# -- where records come from ---------------------------------------------------------------------------


def _all(topic: EmbeddedTopic, printer: Printer, start: Any, partition: int | None, key: str | None) -> Iterator[Row]:
    """Everything up to now, in order of arrival."""
    if key is not None:
        return map(printer.row, topic.records(start, key=_key(topic, key), partition=partition))
    states = topic.offsets()
    if partition is not None and partition not in states:
        return map(printer.row, topic.records(start, partition=partition))  # which says what is wrong
    chosen_ = [partition] if partition is not None else list(states)
    if isinstance(start, dict):
        unknown = sorted(set(start) - set(states))
        if unknown:
            raise click.BadParameter(f"topic {topic.name!r} has no partition {unknown[0]}", param_hint="--start")
    parts = [printer.scan(topic, number, start, states[number].next) for number in chosen_]
    if len(parts) == 1:
        return (row for _, _, _, row in parts[0])
    return (row for _, _, _, row in heapq.merge(*parts))


def _key(topic: EmbeddedTopic, text: str) -> Any:
    """The key as it is typed, by the types of the key's columns."""
    from headrace.cli.inputs import field_value

    columns, schema = topic.settings.key, topic.schema
    if not columns:
        raise click.BadParameter(f"topic {topic.name!r} has no key", param_hint="--key")
    parts = text.split(",") if len(columns) > 1 else [text]
    if len(parts) != len(columns):
        raise click.BadParameter(f"the key has {len(columns)} parts: {','.join(columns)}", param_hint="--key")
    values = tuple(field_value(schema.field(name), part) for name, part in zip(columns, parts, strict=True))
    return values[0] if len(values) == 1 else values


def _following(
    topic: EmbeddedTopic,
    printer: Printer,
    start: Any,
    partition: int | None,
    key: str | None,
    *,
    limit: int | None,
    timeout: str | None,
) -> None:
    wanted = None if key is None else _key(topic, key)
    records: Iterator[Record] = topic.records(start, key=wanted, partition=partition, follow=True, timeout=timeout)
    for record in records if limit is None else islice(records, limit):
        printer.print([printer.row(record)])


def _in_group(
    topic: EmbeddedTopic,
    group: str,
    printer: Printer,
    start: Any,
    *,
    follow: bool,
    limit: int | None,
    timeout: str | None,
) -> None:
    import time

    from headrace.durations import duration_us
    from headrace.errors import MemberFenced

    patience = None if timeout is None else duration_us(timeout, argument="timeout", positive=False) / 1e6
    handle = topic.group(group)
    with handle.join(start=start) as member:
        printed, news = 0, time.monotonic()
        while limit is None or printed < limit:
            room = POLL_ROWS if limit is None else min(POLL_ROWS, limit - printed)
            left = None if patience is None else news + patience - time.monotonic()
            wait = 1.0 if left is None else max(0.0, min(1.0, left))
            if not follow and not member.partitions:
                wait = min(wait, 0.1)
            records = member.poll(timeout=f"{int(wait * 1e6)} us", max_records=room)
            if records:
                printer.print([printer.row(record) for record in records])
                printed += len(records)
                news = time.monotonic()
            try:
                member.commit()
            except MemberFenced:
                continue  # taken over or rewound meanwhile: whoever has them now prints them again
            if records:
                continue
            if not follow and not sum(lag.records for lag in handle.lag().values()):
                return
            if patience is not None and time.monotonic() - news >= patience:
                return


# -- how they are printed ------------------------------------------------------------------------------


class Printer:
    """Records to rows of the chosen columns, and rows to standard output."""

    def __init__(self, columns: Sequence[str], meta: bool, extra: bool, write: Callable[[Sequence[Row]], None]) -> None:
        self.columns = tuple(columns)
        self._all = not columns
        self._meta, self._extra = meta, extra
        self.print = write

    def row(self, record: Record) -> Row:
        value = record.value if self._all else {name: record.value.get(name) for name in self.columns}
        if self._meta:
            value = value | {
                "_partition": record.partition,
                "_offset": record.offset,
                "_arrived_at": record.arrived_at,
                "_progress": record.progress,
            }
        return value

    def drain(self, rows: Iterator[Row]) -> None:
        while chunk := list(islice(rows, CHUNK_ROWS)):
            self.print(chunk)

    def scan(self, topic: EmbeddedTopic, partition: int, start: Any, stop: int) -> Iterator[tuple[Any, int, int, Row]]:
        """One partition's rows with their place in the order of arrival, straight from Arrow."""
        from headrace.rows import python_values, to_rows

        names = list(self.columns) if self.columns else [*topic.schema.names, *(["_extra"] if self._extra else [])]
        asked = [*names, "_offset", "_arrived_at", "_progress"]
        for batch in topic.batches(partition, start, stop, columns=asked):
            width = len(names)
            rows = to_rows(batch.select(range(width))) if width else [{} for _ in range(batch.num_rows)]
            offsets, arrived, progress = (python_values(batch.column(width + i)) for i in range(3))
            if self._meta:
                for row, offset, came, after in zip(rows, offsets, arrived, progress, strict=True):
                    row.update(_partition=partition, _offset=offset, _arrived_at=came, _progress=after)
            yield from zip(arrived, [partition] * len(rows), offsets, rows, strict=True)


def _printer(topic: EmbeddedTopic, columns: tuple[str, ...] | None, meta: bool, kind: str) -> Printer:
    from headrace.errors import nearest
    from headrace.log.contract import META

    schema = topic.schema
    for name in columns or ():
        if name not in schema.names:
            hint = nearest(name, schema.names)
            raise click.BadParameter(f"there is no column {name!r}.{hint}", param_hint="--columns")
    shown = [*(columns or schema.names), *(META if meta else ())]
    write = {"json": _json, "csv": _csv, "table": _table, "arrow": _arrow}[kind](topic, shown)
    return Printer(columns or (), meta, topic.settings.extra == "keep", write)


def _json(_topic: EmbeddedTopic, _shown: list[str]) -> Callable[[Sequence[Row]], None]:
    from headrace.jsonrows import encode_row

    out, terminal = stdout_bytes(), on_terminal()

    def write(rows: Sequence[Row]) -> None:
        lines = b"\n".join(map(encode_row, rows))
        out.write((json_harmless(lines) if terminal else lines) + b"\n")
        out.flush()

    return write


def _csv(_topic: EmbeddedTopic, shown: list[str]) -> Callable[[Sequence[Row]], None]:
    csv_lines([], shown)

    def write(rows: Sequence[Row]) -> None:
        csv_lines(rows, shown, header=False)

    return write


def _table(_topic: EmbeddedTopic, shown: list[str]) -> Callable[[Sequence[Row]], None]:
    table = StreamedTable(shown)

    def write(rows: Sequence[Row]) -> None:
        for first in range(0, len(rows), PAGE_ROWS):
            table.print(rows[first : first + PAGE_ROWS])

    return write


def _arrow(topic: EmbeddedTopic, shown: list[str]) -> Callable[[Sequence[Row]], None]:
    import pyarrow as pa

    from headrace.rows import to_batch

    instant = pa.timestamp("us", tz="UTC")
    types = {"_partition": pa.int32(), "_offset": pa.int64(), "_arrived_at": instant, "_progress": instant}
    columns = [pa.field(name, types[name]) if name in types else topic.schema.field(name) for name in shown]
    schema = pa.schema(columns)
    out = stdout_bytes()
    writer = pa.ipc.new_stream(out, schema)
    click.get_current_context().call_on_close(writer.close)

    def write(rows: Sequence[Row]) -> None:
        writer.write_batch(to_batch(list(rows), schema, extra="ignore", topic=topic.name))
        out.flush()

    return write
