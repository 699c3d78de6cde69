"""Files and pipes to rows that know where they came from. Owns the reading of JSON lines, CSV,
Parquet and Arrow, line numbers, and the rule that a bad line spoils only itself. Does not know topics, only schemas.

A `Batch` is handed out when it is full, and when a pipe has nothing more to give for now: what was typed or sent is
appended at once, not when 10,000 more have come."""

from __future__ import annotations

import csv
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from headrace import jsonrows
from headrace.durations import instant_us
from headrace.errors import HeadraceError, InvalidArgument
from headrace.names import META
from headrace.rows.texts import as_text, field_reader

FORMATS = ("json", "csv", "parquet", "arrow")
SUFFIXES = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
UNPACKED_BY = {".gz": "gzip -dc", ".bz2": "bzip2 -dc", ".xz": "xz -dc", ".zst": "zstd -dc", ".zip": "unzip -p"}
READ_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
"""A longer line is no record: one may have 16 MiB."""

_META = frozenset(META)


@dataclass(frozen=True, slots=True)
class Bad:
    """Input that is no record of the topic: where, why, and its bytes."""

    source: str
    line: int
    why: str
    raw: bytes

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.why}"


@dataclass(slots=True)
class Batch:
    """Rows to append together, as dicts with the line each came from, or as Arrow with the first row's number."""

    source: str
    rows: list[dict[str, Any]] | pa.RecordBatch = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)


class Source:
    """One input: a file, or standard input."""

    def __init__(self, path: str, format_: str | None) -> None:
        self.path = path
        self.name = "stdin" if path == "-" else path
        self.format = format_ or SUFFIXES.get(Path(path).suffix.lower(), "json")
        self.seekable = False
        self._stream: IO[bytes] | None = None

    def open(self) -> None:
        """Opens it, so that a missing file is known before anything is appended."""
        if self.path == "-":
            self._stream = sys.stdin.buffer
        else:
            if unpack := UNPACKED_BY.get(Path(self.path).suffix.lower()):
                raise InvalidArgument("file", self.path, f"is compressed: {unpack} {self.path} | headrace produce …")
            try:
                self._stream = open(self.path, "rb")  # noqa: SIM115
            except OSError as error:
                why = f"cannot be read: {os.strerror(error.errno or 0)}"
                if self.path.startswith("{"):
                    why += ". A record comes from a file or a pipe: echo '{…}' | headrace produce …"
                raise InvalidArgument("file", self.path, why) from None
        try:
            self.seekable = self._stream.seekable()
        except (OSError, ValueError):
            self.seekable = False
        if self.format == "parquet" and not self.seekable:
            raise InvalidArgument("file", self.name, "Parquet is read from its end: save it to a file first")

    @property
    def stream(self) -> IO[bytes]:
        assert self._stream is not None, "open() first"
        return self._stream

    def close(self) -> None:
        if self._stream is not None and self.path != "-":
            self._stream.close()

    def batches(self, schema: pa.Schema, extra: str, batch_rows: int, head: Head | None = None) -> Iterator[Batch]:
        """Everything, as rows for this schema. `head`: what `peek` took off a pipe already."""
        if self.format in ("parquet", "arrow"):
            return _arrow_batches(self, batch_rows, head)
        lines = head.lines_again() if head is not None else Lines(self.stream)
        if self.format == "json":
            rows = _json_rows(_a_row_a_line(lines, self.name), schema)
        else:
            rows = _csv_rows(lines, schema, extra, self.name)
        return _gathered(self.name, rows, batch_rows)

    def infer(self, rows_max_seekable: int, rows_max_piped: int) -> tuple[pa.Schema, Head | None]:
        """The schema of what is in there, and what had to be taken off a pipe to find out."""
        head = None if self.seekable else Head(self)
        limit = rows_max_seekable if self.seekable else rows_max_piped
        schema = _inferred(self, head, limit)
        if self.seekable:
            self.stream.seek(0)
        return schema, head

    def check_times(self, column: str, head: Head | None) -> None:
        """Refuses the first value of a column, in the lines that `infer` has read, that is not a time with a zone."""
        if self.format in ("parquet", "arrow"):
            return
        lines = Lines(self.stream) if head is None else iter(head.kept)
        for line, value in _values_of(column, lines, self):
            try:
                instant_us(value, argument=column)
            except InvalidArgument as error:
                raise InvalidArgument(
                    "event_time", column, f"{self.name}:{line}: {error.value!r} {error.why}"
                ) from None


# -- lines ---------------------------------------------------------------------------------------------

IDLE = -1
"""In place of a line number: there is nothing to read just now."""


_NOTHING_NOW = b"\0nothing now\0"


class Lines:
    """Lines of a stream with their numbers, from 1; `(IDLE, b"")` when the next read would wait."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._told = False
        try:
            self._fd = stream.fileno()
        except (OSError, ValueError):  # not a real file
            self._fd = -1

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number, size = 0, 0
        parts: list[bytes] = []  # of a line whose end has not come yet
        while chunk := self._read():
            if chunk is _NOTHING_NOW:
                yield IDLE, b""
                continue
            first, *lines = chunk.split(b"\n")
            size += len(first)
            if size <= LINE_BYTES_MAX + READ_BYTES:  # enough to see that it is too long
                parts.append(first)
            if lines:
                number += 1
                yield number, b"".join(parts)
                parts = [lines.pop()]
                size = len(parts[0])
                for line in lines:
                    number += 1
                    yield number, line
        if size:
            yield number + 1, b"".join(parts)

    def _read(self) -> bytes:
        if self._fd < 0:
            return self._stream.read(READ_BYTES)
        if not self._told and not select.select([self._fd], [], [], 0)[0]:
            self._told = True
            return _NOTHING_NOW
        self._told = False
        return os.read(self._fd, READ_BYTES)


class Head:
    """The first lines (or the schema) of a pipe, read to infer a schema and then read again."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.kept: list[tuple[int, bytes]] = []
        self.reader: Any = None
        self._rest: Iterator[tuple[int, bytes]] | None = None

    def lines(self, limit: int) -> Iterator[tuple[int, bytes]]:
        """Up to `limit` lines; ends early when the pipe pauses and there is something to go by."""
        self._rest = iter(Lines(self.source.stream))
        for number, line in self._rest:
            if number == IDLE:
                if len(self.kept) > 1:
                    return
                continue
            self.kept.append((number, line))
            yield number, line
            if len(self.kept) >= limit:
                return

    def lines_again(self) -> Iterator[tuple[int, bytes]]:
        yield from self.kept
        if self._rest is not None:
            yield from self._rest


# -- rows ----------------------------------------------------------------------------------------------

Found = tuple[int, dict[str, Any] | str | None, bytes]
"""A line's number, its row (or why it is none; None: a pause), and its bytes."""


def _a_row_a_line(lines: Any, source: str) -> Iterator[tuple[int, bytes]]:
    """The lines, unless the first shows that they are one JSON document: some of its lines may look like rows."""
    begun = False
    for number, line in lines:
        if not begun and number != IDLE and (text := line.removeprefix(b"\xef\xbb\xbf").strip()):
            begun = True
            if text.startswith(b"[") or text == b"{":
                lines_of = "jq -c '.[]'" if text.startswith(b"[") else "jq -c ."
                what = "an array" if text.startswith(b"[") else "an object over several lines"
                why = f"is {what}; a row is one JSON object on one line. {lines_of} prints such lines"
                raise InvalidArgument("file", source, why)
        yield number, line


def _json_rows(lines: Any, schema: pa.Schema) -> Iterator[Found]:
    decode = jsonrows.decode_row
    for number, line in lines:
        if number == IDLE:
            yield number, None, b""
            continue
        if len(line) > LINE_BYTES_MAX:
            yield number, f"is longer than {LINE_BYTES_MAX} bytes", line[:1000]
            continue
        if not line or line.isspace():
            continue
        try:
            row = decode(line, schema)
        except InvalidArgument as error:
            yield number, error.why, line
            continue
        if _META.isdisjoint(row):
            yield number, row, line
        else:
            yield number, "has metadata fields, as consume --meta prints them; leave --meta out to copy records", line


class _Texts:
    """Lines as text for the CSV reader, which may take several for a row; remembers which."""

    def __init__(self, lines: Any) -> None:
        self._lines = iter(lines)
        self.taken: list[bytes] = []
        self.first = 0
        self.last = 0
        self.idle = False

    def __iter__(self) -> _Texts:
        return self

    def __next__(self) -> str:
        number, line = next(self._lines)
        while number == IDLE:
            self.idle = True
            if not self.taken:
                raise _Pause
            number, line = next(self._lines)
        if not self.taken:
            self.first = number
        self.last = number
        self.taken.append(line)
        text: str = line.decode("utf-8", "surrogateescape")
        return (text.removeprefix("\ufeff") if number == 1 else text) + "\n"

    def reset(self) -> None:
        self.taken = []


class _Pause(Exception):
    pass


def _csv_records(lines: Any) -> Iterator[tuple[int, list[str] | str | None, bytes]]:
    """(line, fields) for each record, (line, why) for what is none."""
    csv.field_size_limit(LINE_BYTES_MAX)
    texts = _Texts(lines)
    reader = csv.reader(texts, strict=True)
    while True:
        texts.reset()
        try:
            fields = next(reader)
        except _Pause:
            yield IDLE, None, b""
            continue
        except StopIteration:
            return
        except csv.Error as error:
            yield texts.first, f"is not CSV: {error}", b"\n".join(texts.taken)
            continue
        raw = b"\n".join(texts.taken)
        if not fields:
            continue
        if any(not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text) for text in fields):
            yield texts.first, "is not UTF-8", raw
        else:
            yield texts.first, fields, raw


def _csv_header(records: Iterator[tuple[int, Any, bytes]], source: str) -> list[str]:
    for line, fields, _ in records:
        if fields is None:
            continue
        if isinstance(fields, str):
            raise InvalidArgument("file", source, f"line {line}, the header row, {fields}")
        header = [name.strip() for name in fields]
        twice = [name for i, name in enumerate(header) if name in header[:i]]
        if twice or not all(header):
            what = f"names the column {twice[0]!r} twice" if twice else "has a column without a name"
            raise InvalidArgument("file", source, f"line {line}, the header row, {what}")
        return header
    raise InvalidArgument("file", source, "is empty; CSV needs a header row with the names of the columns")


def _csv_rows(lines: Any, schema: pa.Schema, extra: str, source: str) -> Iterator[Found]:
    records = _csv_records(lines)
    header = _csv_header(records, source)
    found = [name for name in header if name in _META]
    unknown = [name for name in header if name not in schema.names]
    if found:
        raise InvalidArgument("file", source, f"has the metadata column {found[0]!r}; leave consume's --meta out")
    if unknown and extra == "forbid":
        from headrace.errors import nearest

        why = f"has the column {unknown[0]!r}, which the topic does not.{nearest(unknown[0], schema.names)}"
        if any(mark in unknown[0] for mark in ";\t|"):
            why += " Fields are separated by commas."
        raise InvalidArgument("file", source, f"{why} Columns are {', '.join(schema.names)}")
    readers = [field_reader(schema.field(name)) if name in schema.names else as_text for name in header]
    for line, fields, raw in records:
        if fields is None or isinstance(fields, str):
            yield line, fields, raw
            continue
        if len(fields) != len(header):
            yield line, f"has {len(fields)} fields, the header row has {len(header)}", raw
            continue
        try:
            yield line, {n: read(text) for n, read, text in zip(header, readers, fields, strict=True)}, raw
        except ValueError as error:  # InvalidArgument is one, too
            yield line, error.why if isinstance(error, InvalidArgument) else str(error), raw


def _gathered(source: str, rows: Iterator[Found], batch_rows: int) -> Iterator[Batch]:
    batch = Batch(source)
    for line, row, raw in rows:
        if row is None:
            if len(batch) or batch.bad:
                yield batch
                batch = Batch(source)
            continue
        if isinstance(row, str):
            batch.bad.append(Bad(source, line, row, raw))
        else:
            assert isinstance(batch.rows, list)
            batch.rows.append(row)
            batch.lines.append(line)
            batch.raws.append(raw)
        if len(batch) + len(batch.bad) >= batch_rows:
            yield batch
            batch = Batch(source)
    if len(batch) or batch.bad:
        yield batch


# -- Arrow ---------------------------------------------------------------------------------------------


def _arrow_reader(source: Source) -> tuple[pa.Schema, Any]:
    """The schema, and a function that gives the batches."""
    try:
        if source.format == "parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(source.stream)
            return file.schema_arrow, lambda rows: file.iter_batches(batch_size=rows)
        if source.seekable and source.stream.read(6) == b"ARROW1":
            source.stream.seek(0)
            reader = pa.ipc.open_file(source.stream)
            return reader.schema, lambda _: (reader.get_batch(i) for i in range(reader.num_record_batches))
        if source.seekable:
            source.stream.seek(0)
        stream = pa.ipc.open_stream(source.stream)
        return stream.schema, lambda _: stream
    except (pa.ArrowException, OSError) as error:
        raise _not_arrow(source, error) from None


def _not_arrow(source: Source, error: Exception) -> HeadraceError:
    what = "Parquet" if source.format == "parquet" else "Arrow"
    return InvalidArgument("file", source.name, f"cannot be read as {what}: {str(error).splitlines()[0][:200]}")


def _arrow_batches(source: Source, batch_rows: int, head: Head | None) -> Iterator[Batch]:
    schema, read = head.reader if head is not None and head.reader is not None else _arrow_reader(source)
    found = [name for name in schema.names if name in _META]
    if found:
        raise InvalidArgument("file", source.name, f"has the metadata column {found[0]!r}; leave consume's --meta out")
    row = 1
    try:
        for whole in read(batch_rows):
            for start in range(0, whole.num_rows, batch_rows):
                part = whole.slice(start, batch_rows)
                yield Batch(source.name, part, list(range(row, row + part.num_rows)))
                row += part.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _not_arrow(source, error) from None


# -- inferring -----------------------------------------------------------------------------------------


def _inferred(source: Source, head: Head | None, limit: int) -> pa.Schema:
    from itertools import islice

    from headrace.formats import infer
    from headrace.schema import schema_from

    if source.format in ("parquet", "arrow"):
        reader = _arrow_reader(source)
        if head is not None:
            head.reader = reader
        return schema_from(reader[0].remove_metadata())
    lines = Lines(source.stream) if head is None else head.lines(limit)
    if source.format == "json":
        rows = (row for row in map(_parsed, _a_row_a_line(lines, source.name)) if row is not None)
        return infer.schema_of_rows(islice(rows, limit))
    records = _csv_records(lines)
    header = _csv_header(records, source.name)
    fields = (fields for _, fields, _ in records if isinstance(fields, list) and len(fields) == len(header))
    return infer.schema_of_fields(header, islice(fields, limit))


def _values_of(column: str, lines: Any, source: Source) -> Iterator[tuple[int, Any]]:
    """The line and the value of each record that has one in this column."""
    if source.format == "json":
        for number, line in lines:
            if (row := _parsed((number, line))) is not None and row.get(column) is not None:
                yield number, row[column]
        return
    records = _csv_records(lines)
    header = _csv_header(records, source.name)
    place = header.index(column)
    for number, fields, _ in records:
        if isinstance(fields, list) and len(fields) == len(header) and fields[place]:
            yield number, fields[place]


def _parsed(numbered: tuple[int, bytes]) -> dict[str, Any] | None:
    """A line as an object, None if it is none: it will be reported when it is read to be appended."""
    number, line = numbered
    if number == IDLE or not line or line.isspace():
        return None
    try:
        return jsonrows.parse_object(line)
    except InvalidArgument:
        return None
