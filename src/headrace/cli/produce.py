"""`headrace produce`. Owns what happens to records on their way in: batches, bad lines, dead letters, the report at the
end. A batch is appended whole or not at all; its bad lines are reported and left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import columns_of, home_option, opened, opened_if_any, topic_argument, writable
from headrace.cli.output import Progress, counted, harmless, note

if TYPE_CHECKING:
    from headrace.formats.files import Bad, Batch, Head, Source
    from headrace.log.contract import Log, Topic

BAD_SHOWN = 10
INFER_ROWS_FILE = 100_000
INFER_ROWS_PIPE = 1_000


@click.command()
@topic_argument
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path())
@click.option(
    "--format",
    "format_",
    type=click.Choice(["json", "csv", "parquet", "arrow"]),
    help="The format of the input; default: by the file's extension, else JSON lines.",
)
@click.option("--dead-letters", is_flag=True, help="Keep bad lines as dead letters instead of failing at the end.")
@click.option(
    "--create", is_flag=True, help="Create the topic if it does not exist, with a schema inferred from the input."
)
@click.option("--key", callback=columns_of, metavar="A,B", help="With --create: the columns that choose the partition.")
@click.option("--event-time", metavar="COLUMN", help="With --create: the column with the time of the event.")
@click.option("--partitions", type=int, metavar="N", help="With --create: the number of partitions.")
@click.option(
    "--batch-rows", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="Rows appended together."
)
@home_option
def produce(
    topic: str,
    files: tuple[str, ...],
    format_: str | None,
    dead_letters: bool,
    create: bool,
    batch_rows: int,
    **settings: Any,
) -> None:
    """Append records from files, or from standard input without one.

    JSON: one object per line; blank lines are skipped. CSV: a header row, fields read by the topic's types; an empty
    field is null, but for strings, where it is the empty string. Each batch of rows is appended whole or not at all.

    Bad lines are reported with file and number (the first ten) and left out; the good ones are appended, and the exit
    code is 1. With --dead-letters they are kept as dead letters, and the exit code is 0.

    \b
    Example:
      headrace produce clicks clicks.csv
      headrace produce clicks --create --key user --event-time at clicks.jsonl
      headrace consume clicks | headrace produce copy
    """
    from headrace.formats.files import Source

    given = {name: value for name, value in settings.items() if value is not None}
    if given and not create:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} is for new topics: say --create, too.")
    writable(topic)
    sources = [Source(path, format_) for path in files or ("-",)]
    if not files and sys.stdin.isatty():
        note("type records as JSON, one a line; Ctrl-D ends")
    with ExitStack() as stack:
        for source in sources:
            source.open()
            stack.callback(source.close)
        log, target, head = _created(topic, sources[0], given) if create else _found(topic)
        stack.enter_context(log)
        work = Work(target, dead_letters)
        with Progress("records") as progress:
            try:
                for source in sources:
                    schema, extra = target.schema, target.settings.extra
                    for batch in source.batches(schema, extra, batch_rows, head if source is sources[0] else None):
                        if batch.bad:
                            progress.clear()
                        work.append(batch)
                        progress.show(sum(work.appended.values()))
            finally:
                progress.clear()
                work.report()
    if work.bad and not dead_letters:
        raise click.exceptions.Exit(1)


def _found(name: str) -> tuple[Log, Topic, None]:
    log = opened()
    try:
        return log, log.topic(name), None
    except BaseException:
        log.close()
        raise


def _created(name: str, source: Source, given: dict[str, Any]) -> tuple[Log, Topic, Head | None]:
    """The topic, created if it is not there from what the input holds; nothing is created from what holds nothing."""
    from headrace.errors import InvalidArgument
    from headrace.schema import TIMESTAMP, to_ddl

    log = opened_if_any()
    try:
        found = next((topic for topic in log.topics() if topic.name == name), None) if log is not None else None
        if log is not None and found is not None:
            for setting, value in given.items():
                if getattr(found.settings, setting) != value:
                    why = f"topic {name!r} is there already, with {setting} {getattr(found.settings, setting)!r}"
                    raise InvalidArgument(setting, value, f"{why}. Leave the option out, or choose another name")
            return log, found, None
        schema, head = source.infer(INFER_ROWS_FILE, INFER_ROWS_PIPE)
        time = given.get("event_time", "")
        if time in schema.names and schema.field(time).type != TIMESTAMP:
            source.check_times(time, head)
        log = log or opened(create=True)
        made = log.create_topic(name, schema, exist_ok=True, **given)
    except BaseException:
        if log is not None:
            log.close()
        raise
    note(f"topic {name} created: {to_ddl(made.schema)}")
    return log, made, head


class Work:
    """What was appended so far, and what was not."""

    def __init__(self, topic: Topic, dead_letters: bool) -> None:
        self._topic, self._dead_letters = topic, dead_letters
        self.appended: dict[int, int] = {}
        self.quarantined = 0
        self.bad = 0

    def append(self, batch: Batch) -> None:
        from headrace.errors import RecordRejected

        bad = list(batch.bad)
        rows = batch.rows
        if len(batch):
            try:
                self._append(rows)
            except RecordRejected:
                for good in _joined(rows, list(_good(self._topic, batch, 0, len(batch), bad))):
                    self._append(good)
        self._tell(sorted(bad, key=lambda one: one.line))

    def _append(self, rows: Any) -> None:
        done = self._topic.append(rows)
        for partition, given in done.ranges.items():
            self.appended[partition] = self.appended.get(partition, 0) + len(given)
        self.quarantined += done.quarantined

    def _tell(self, bad: list[Bad]) -> None:
        if not bad:
            return
        for one in bad[: max(0, BAD_SHOWN - self.bad)]:
            note(f"{one}")
        self.bad += len(bad)
        if self._dead_letters:
            self._keep(bad)

    def _keep(self, bad: list[Bad]) -> None:
        self._topic.bury(
            [
                {"reason": "bad_input", "error": one.why, "source": f"{one.source}:{one.line}", "raw": one.raw}
                for one in bad
            ]
        )

    def report(self) -> None:
        total = sum(self.appended.values())
        where = ", ".join(f"{partition}: {count}" for partition, count in sorted(self.appended.items()))
        note(f"{counted(total, 'record')} appended to {self._topic.name}{f' ({where})' if where else ''}")
        if self.quarantined:
            note(
                f"{counted(self.quarantined, 'record')} went to the dead letters: event time too far ahead "
                f"(see headrace dead list)"
            )
        if self.bad and self._dead_letters:
            note(f"{counted(self.bad, 'bad line')} went to the dead letters (see headrace dead list)")
        elif self.bad:
            more = f", the first {BAD_SHOWN} are above" if self.bad > BAD_SHOWN else ""
            note(f"{counted(self.bad, 'bad line')} left out{more}; --dead-letters would keep them")


def _good(topic: Topic, batch: Batch, start: int, stop: int, bad: list[Bad]) -> Iterator[tuple[int, int]]:
    """The stretches of a batch that can be appended, found by halving; the rest goes to `bad`."""
    from headrace.errors import RecordRejected
    from headrace.formats.files import Bad

    rows = batch.rows[start:stop] if isinstance(batch.rows, list) else batch.rows.slice(start, stop - start)
    try:
        topic.check(rows)
    except RecordRejected as error:
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _good(topic, batch, start, middle, bad)
            yield from _good(topic, batch, middle, stop, bad)
            return
        at = f"column {error.column!r}: " if error.column else ""
        bad.append(Bad(batch.source, batch.lines[start], harmless(at + error.why), _raw(batch, start)))
    else:
        yield start, stop


def _joined(rows: Any, stretches: list[tuple[int, int]]) -> list[Any]:
    """What is good of a batch, as one append: a batch stays a unit."""
    if not stretches:
        return []
    if isinstance(rows, list):
        return [[row for start, stop in stretches for row in rows[start:stop]]]
    import pyarrow as pa

    return [pa.Table.from_batches([rows.slice(start, stop - start) for start, stop in stretches])]


def _raw(batch: Batch, row: int) -> bytes:
    """The bytes a row came as; of Arrow data, its JSON form."""
    if batch.raws:
        return batch.raws[row]
    from headrace.errors import InvalidArgument
    from headrace.jsonrows import encode_row
    from headrace.rows import to_rows

    assert not isinstance(batch.rows, list)
    (value,) = to_rows(batch.rows.slice(row, 1))
    try:
        return encode_row(value)
    except InvalidArgument:
        return repr(value).encode("utf-8", "backslashreplace")
