"""`headrace consume`. Owns the printing of records and, in a group, the order print, flush, commit: what was not
printed is never committed. Streams: memory is bounded by a batch, however long the topic is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    columns_of,
    complete_group,
    format_option,
    home_option,
    key_of,
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
    note,
    on_terminal,
    stdout_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Group, Member, Offsets, Record, Topic

Row = dict[str, Any]

CHUNK_ROWS = 2_000
"""Rows written together."""
POLL_ROWS = 10_000
WAIT_SECONDS = 1.0
"""How long a member of a group sleeps at most before it looks whether all is read."""


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
@click.option("--key", metavar="K", help="Only this key's records; of several columns: A,B or JSON.")
@click.option(
    "--group",
    metavar="G",
    shell_complete=complete_group,
    help="Join this group: share its partitions, continue where it is.",
)
@click.option(
    "--lease",
    metavar="DURATION",
    help="With --group: how long a member keeps its partitions without a sign of life; default: 10 seconds.",
)
@click.option("--follow", "-f", is_flag=True, help="Do not stop at the end: wait for new records.")
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
    lease: str | None,
    follow: bool,
    max_: int | None,
    timeout: str | None,
    columns: tuple[str, ...] | None,
    meta: bool,
    format_: str | None,
) -> None:
    """Print records: each as its JSON object, which `headrace produce` reads back without loss.

    Without --follow it stops at the end that the topic had when it started; with --group, when the group has read
    everything.

    In a group, it prints the records, flushes standard output, and commits: after a crash in between, the records are
    printed again (at least once). --start applies only to partitions for which the group has no offset. Records with
    --meta are for reading: produce refuses the metadata fields.

    \b
    Example:
      headrace consume clicks --start 2026-01-31T12:00:00Z --max 10
      headrace consume clicks --group billing --follow
    """
    if group is not None and (key is not None or partition is not None):
        raise click.UsageError("--group shares out whole partitions: leave --key and --partition out.")
    if lease is not None and group is None:
        raise click.UsageError("--lease is for --group.")
    if timeout is not None and not follow and group is None:
        raise click.UsageError("--timeout is for --follow or --group; without them consume does not wait.")
    from headrace.durations import duration_us

    patience = None if timeout is None else duration_us(timeout, argument="timeout", positive=False) / 1e6
    begin = start_of(start)
    with opened() as log:
        found = log.topic(topic)
        kind = chosen(format_)
        if kind == "arrow" and key is None and group is None and not follow:
            _arrow_scan(found, _checked(found, columns), meta, begin, partition, max_)
            return
        printer = _printer(found, columns, meta, kind)
        if follow or group is not None:
            from headrace.cli.stopping import watch_reader

            watch_reader()
        if group is not None:
            with found.group(group).join(start=begin, lease=lease or "10 seconds") as member:
                _in_group(member, found.group(group), printer, follow=follow, limit=max_, patience=patience)
        elif follow:
            _following(found, printer, begin, partition, key, limit=max_, timeout=timeout)
        else:
            printed = printer.drain(_all(found, printer, begin, partition, key, found.ends()), max_)
            if not printed and kind == "table":
                note("no records")


# -- where records come from ---------------------------------------------------------------------------


def _all(
    topic: Topic,
    printer: Printer,
    start: Any,
    partition: int | None,
    key: str | None,
    states: dict[int, Offsets],
) -> Iterator[Any]:
    """Everything up to `states`, in order of arrival, as the printer takes it."""
    unknown = sorted(set(start) - set(states)) if isinstance(start, dict) else []
    if unknown:
        raise click.BadParameter(f"topic {topic.name!r} has no partition {unknown[0]}", param_hint="--start")
    if key is not None or (partition is not None and partition not in states):  # then records() says what is wrong
        wanted = None if key is None else key_of(topic, [key], hint="--key")
        return map(printer.item, topic.records(start, key=wanted, partition=partition))
    numbers = [partition] if partition is not None else list(states)
    parts = [printer.scan(topic, number, start, states[number].next) for number in numbers]
    return (item for _, _, _, item in (heapq.merge(*parts) if len(parts) > 1 else parts[0]))


def _following(
    topic: Topic,
    printer: Printer,
    start: Any,
    partition: int | None,
    key: str | None,
    *,
    limit: int | None,
    timeout: str | None,
) -> None:
    wanted = None if key is None else key_of(topic, [key], hint="--key")
    if wanted is None:  # what is there already goes out in large pieces; only then one by one, as they come
        states = topic.ends()
        printed = printer.drain(_all(topic, printer, start, partition, None, states), limit)
        if limit is not None and printed >= limit:
            return
        limit = None if limit is None else limit - printed
        start = {number: at.next for number, at in states.items()}
    records: Iterator[Record] = topic.records(start, key=wanted, partition=partition, follow=True, timeout=timeout)
    for record in records if limit is None else islice(records, limit):
        printer.print([printer.item(record)])


def _in_group(
    member: Member,
    group: Group,
    printer: Printer,
    *,
    follow: bool,
    limit: int | None,
    patience: float | None,
) -> None:
    import time

    from headrace.errors import MemberFenced

    printed, news, nothing = 0, time.monotonic(), follow
    while limit is None or printed < limit:
        room = POLL_ROWS if limit is None else min(POLL_ROWS, limit - printed)
        left = WAIT_SECONDS if patience is None else max(0.0, news + patience - time.monotonic())
        wait = min(WAIT_SECONDS, left) if nothing else 0.0
        records = member.poll(timeout=f"{int(wait * 1e6)} us", max_records=room)
        if records:
            printer.print(list(map(printer.item, records)))
            printed += len(records)
            news = time.monotonic()
        try:
            member.commit()
        except MemberFenced:
            continue  # taken over or rewound meanwhile: whoever has them now prints them again
        if records:
            continue
        if not follow and not any(lag.records for lag in group.lag().values()):
            return
        if patience is not None and time.monotonic() - news >= patience:
            return
        nothing = True  # others have what is left: wait for them, or for their partitions


# -- how they are printed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printer:
    """Records to what is printed: `of_row` makes an item of a row, `of_batch` those of a batch, `print` prints them."""

    columns: tuple[str, ...]  # all if empty
    meta: bool
    extra: bool
    of_row: Callable[[Row], Any]
    of_batch: Callable[[pa.RecordBatch], list[Any]]
    print: Callable[[Sequence[Any]], None]

    def item(self, record: Record) -> Any:
        value = record.value
        if self.columns:
            value = {name: value.get(name) for name in self.columns}
        if self.meta:
            value = value | {
                "_partition": record.partition,
                "_offset": record.offset,
                "_arrived_at": record.arrived_at,
                "_progress": record.progress,
            }
        return self.of_row(value)

    def drain(self, items: Iterator[Any], limit: int | None) -> int:
        """Prints them all, or the first `limit`; how many there were."""
        items, printed = items if limit is None else islice(items, limit), 0
        while chunk := list(islice(items, CHUNK_ROWS)):
            self.print(chunk)
            printed += len(chunk)
        return printed

    def scan(self, topic: Topic, partition: int, start: Any, stop: int) -> Iterator[tuple[int, int, int, Any]]:
        """One partition's items with their place in the order of arrival, straight from Arrow."""
        import pyarrow as pa

        from headrace.log.contract import META

        names = list(self.columns) or [*topic.schema.names, *(["_extra"] if self.extra else [])]
        shown = [*names, *META] if self.meta else names
        for batch in topic.batches(partition, start, stop, columns=[*shown, *(() if self.meta else META[1:3])]):
            offsets, arrived = (batch.column(name).cast(pa.int64()).to_pylist() for name in META[1:3])
            items = self.of_batch(batch.select(range(len(shown))))
            yield from zip(arrived, repeat(partition), offsets, items)


def _checked(topic: Topic, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    from headrace.errors import nearest

    known = topic.schema.names
    for name in columns or ():
        if name not in known:
            raise click.BadParameter(f"there is no column {name!r}.{nearest(name, known)}", param_hint="--columns")
    return columns


def _printer(topic: Topic, columns: tuple[str, ...] | None, meta: bool, kind: str) -> Printer:
    from headrace.log.contract import META
    from headrace.schema import EXTRA_COLUMN

    columns = _checked(topic, columns)
    extra = topic.settings.extra_kept
    kept = [EXTRA_COLUMN] if extra and not columns else []
    shown = [*(columns or topic.schema.names), *kept, *(META if meta else ())]
    if kind == "json":
        return _json_printer(columns or (), meta, extra)
    from headrace.rows import to_rows

    def with_extra(row: Row) -> Row:
        """The fields without a column, as one."""
        more = {name: value for name, value in row.items() if name not in shown}
        return {**row, EXTRA_COLUMN: more or None}

    def batch_with_extra(batch: pa.RecordBatch) -> list[Row]:
        return list(map(with_extra, to_rows(batch)))

    write = {"csv": _csv, "table": _table, "arrow": _arrow}[kind](topic, shown)
    if kept and kind != "arrow":
        return Printer(columns or (), meta, extra, with_extra, batch_with_extra, write)
    return Printer(columns or (), meta, extra, lambda row: row, to_rows, write)


def _json_printer(columns: tuple[str, ...], meta: bool, extra: bool) -> Printer:
    from headrace.formats.lines import json_lines_of
    from headrace.jsonrows import encode_row

    out, terminal = stdout_bytes(), on_terminal()

    def write(lines: Sequence[bytes]) -> None:
        text = b"\n".join(lines)
        out.write((json_harmless(text) if terminal else text) + b"\n")
        out.flush()

    return Printer(columns, meta, extra, encode_row, json_lines_of, write)


def _csv(_topic: Topic, shown: list[str]) -> Callable[[Sequence[Row]], None]:
    csv_lines([], shown)

    def write(rows: Sequence[Row]) -> None:
        csv_lines(rows, shown, header=False)

    return write


def _table(_topic: Topic, shown: list[str]) -> Callable[[Sequence[Row]], None]:
    table = StreamedTable(shown)

    def write(rows: Sequence[Row]) -> None:
        for first in range(0, len(rows), PAGE_ROWS):
            table.print(rows[first : first + PAGE_ROWS])

    return write


def _arrow(topic: Topic, shown: list[str]) -> Callable[[Sequence[Row]], None]:
    from headrace.rows import to_batch
    from headrace.schema import EXTRA_COLUMN

    schema = _arrow_schema(topic, [name for name in shown if name != EXTRA_COLUMN])
    extra = "keep" if EXTRA_COLUMN in shown else "ignore"
    send = _arrow_sender(_arrow_schema(topic, shown))

    def write(rows: Sequence[Row]) -> None:
        send(to_batch(list(rows), schema, extra=extra, topic=topic.name).select(shown))

    return write


def _arrow_schema(topic: Topic, shown: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    from headrace.schema import EXTRA_COLUMN, TIMESTAMP

    own = {"_partition": pa.int32(), "_offset": pa.int64(), "_arrived_at": TIMESTAMP, "_progress": TIMESTAMP}
    own[EXTRA_COLUMN] = pa.string()
    return pa.schema([pa.field(name, own[name]) if name in own else topic.schema.field(name) for name in shown])


def _arrow_sender(schema: pa.Schema) -> Callable[[pa.RecordBatch], None]:
    """Writes batches to standard output as one Arrow stream, ended with the command."""
    import pyarrow as pa

    out = stdout_bytes()
    writer = pa.ipc.new_stream(out, schema)
    click.get_current_context().call_on_close(writer.close)

    def send(batch: pa.RecordBatch) -> None:
        writer.write_batch(batch.cast(schema))
        out.flush()

    return send


def _arrow_scan(
    topic: Topic,
    columns: tuple[str, ...] | None,
    meta: bool,
    start: Any,
    partition: int | None,
    limit: int | None,
) -> None:
    """Everything up to now, in Arrow as it lies there; batches in order of arrival."""
    from headrace.log.contract import META
    from headrace.schema import EXTRA_COLUMN

    kept = [EXTRA_COLUMN] if topic.settings.extra_kept and not columns else []
    shown = [*(columns or topic.schema.names), *kept, *(META if meta else ())]
    send = _arrow_sender(_arrow_schema(topic, shown))

    def scan(number: int) -> Iterator[tuple[Any, int, int, pa.RecordBatch]]:
        for batch in topic.batches(number, start, columns=list(dict.fromkeys([*shown, *META[1:3]]))):
            yield batch.column("_arrived_at")[0].as_py(), number, batch.column("_offset")[0].as_py(), batch

    left = limit
    for _, _, _, batch in heapq.merge(*map(scan, topic.ends() if partition is None else [partition])):
        if left is not None:
            if left <= 0:
                return
            batch, left = batch.slice(0, left), left - batch.num_rows
        send(batch.select(shown))
