"""What commands print: tables for people, JSON lines, CSV and Arrow for programs, remarks on standard error.
Owns the formats, and that nothing in the data can drive a terminal: control characters are shown, never sent.
rich is imported when a table is drawn, pyarrow when Arrow is asked for."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

FOUND = 3
"""The exit code of a command that found something wrong."""
PAGE_ROWS = 500
"""A table's columns are as wide as its first page needs."""

# C0 and C1 controls, line separators, lone surrogates, and what turns the direction of text around.
_DRIVES = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_DRIVES_IN_JSON = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


def harmless(text: str) -> str:
    """The text with whatever could drive a terminal written out: `\\x1b[31m`."""
    return _DRIVES.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def say(text: str) -> None:
    """A remark or an error, on standard error."""
    click.echo(f"headrace: {harmless(text)}", err=True)


def note(text: str) -> None:
    """A plain line on standard error."""
    click.echo(harmless(text), err=True)


@contextmanager
def standard_error() -> Iterator[TextIO]:
    """Standard error as it is now: while a JVM is started, that of the process is a file, for the JVM to inherit."""
    try:
        own = sys.stderr.fileno() == 2
    except (OSError, ValueError):  # a test's
        own = False
    if not own:
        yield sys.stderr
        return
    with open(os.dup(2), "w", buffering=1, errors="backslashreplace") as kept:
        yield kept


class Progress:
    """A number that grows, on a terminal only; gone when the `with` block ends."""

    SECONDS = 0.1

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def show(self, count: int) -> None:
        if self._shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + self.SECONDS
            sys.stderr.write(f"\r{count:,} {self._what}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown and self._next:
            self._next = 0.0
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        self.clear()


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Something that moves while it takes long, on a terminal only."""
    if not sys.stderr.isatty() or "_HEADRACE_COMPLETE" in os.environ:  # a shell that completes shows what it is told
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(harmless(what)):
        yield


def flush() -> None:
    sys.stdout.flush()


def stdout_bytes() -> IO[bytes]:
    """Standard output as bytes, buffered even where Python was told not to (a raw write may write half)."""
    buffer = sys.stdout.buffer
    if isinstance(buffer, io.RawIOBase):
        return open(buffer.fileno(), "wb", buffering=1 << 16, closefd=False)
    return buffer


def on_terminal() -> bool:
    return sys.stdout.isatty()


def chosen(format_: str | None) -> str:
    """The format asked for, or the one that fits where output goes."""
    if format_ is None:
        return "table" if on_terminal() else "json"
    if format_ == "arrow" and on_terminal():
        raise click.UsageError("--format arrow is binary: send it to a file or a pipe.")
    return format_


# -- lists ---------------------------------------------------------------------------------------------


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], format_: str | None) -> None:
    """A list of things, all with the same fields."""
    kind = chosen(format_)
    if kind == "json":
        json_lines(rows)
    elif kind == "csv":
        csv_lines(rows, columns)
    elif kind == "arrow":
        import pyarrow as pa

        table = pa.Table.from_pylist([{name: row[name] for name in columns} for row in rows])
        out = stdout_bytes()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        out.flush()
    else:
        for page in pages(rows):
            print_table(_console(), columns, page)


def print_one(thing: Mapping[str, Any], format_: str | None) -> None:
    """One thing: fields below each other on a terminal, lists of things in it as tables."""
    if chosen(format_) != "table":
        print_rows([thing], list(thing), format_)
        return
    from rich.text import Text

    console = _console()
    _print_fields(console, {name: value for name, value in thing.items() if not _is_table(value)})
    for name, value in thing.items():
        if _is_table(value):
            console.print()
            console.print(Text(name, style="bold"))
            print_table(console, list(value[0]), value)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


# -- JSON and CSV --------------------------------------------------------------------------------------


def json_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    from headrace.jsonrows import encode_row

    out, terminal = stdout_bytes(), on_terminal()
    for row in rows:
        line = encode_row(row)
        out.write((json_harmless(line) if terminal else line) + b"\n")
    out.flush()


def json_harmless(line: bytes) -> bytes:
    """The same JSON; what a terminal might obey (and JSON may carry raw) is escaped."""
    return _DRIVES_IN_JSON.sub(lambda found: f"\\u{ord(found.group().decode()):04x}".encode(), line)


def csv_lines(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, header: bool = True) -> None:
    import csv

    out, terminal = stdout_bytes(), on_terminal()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    for row in rows:
        cells = [csv_cell(row.get(name)) for name in columns]
        writer.writerow([harmless(value) for value in cells] if terminal else cells)
        if text.tell() > 1 << 16:
            out.write(text.getvalue().encode())
            text.seek(0)
            text.truncate()
    out.write(text.getvalue().encode())
    out.flush()


def csv_cell(value: Any) -> str:
    """A value as CSV has it: the text of its JSON form, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    from headrace.jsonrows import encode_row

    text = encode_row({"v": value})[5:-1]
    if text.startswith(b'"'):
        import orjson

        return str(orjson.loads(text))
    return text.decode()


# -- tables --------------------------------------------------------------------------------------------


def cell(value: Any) -> str:
    """A value as people read it, harmless to the terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and all(isinstance(item, str | int) for item in value):
        return harmless(", ".join(map(str, value)))
    return harmless(csv_cell(value))


def about(seconds: float) -> str:
    """A duration as people say it: '2 days 3 hours', not its microseconds."""
    from headrace.durations import format_duration

    step = 1 if seconds < 3600 else 60 if seconds < 86_400 else 3600
    return format_duration(round(seconds / step) * step * 1_000_000)


def pages(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Rows a page at a time; at least one page, so that a table has its head even when it is empty."""
    left = iter(rows)
    first = list(islice(left, PAGE_ROWS))
    yield first
    while page := list(islice(left, PAGE_ROWS)):
        yield page


def _console() -> Console:
    from rich.console import Console

    # Piped tables are not cut to 80 columns that nobody sees.
    return Console(highlight=False, markup=False, emoji=False, width=None if on_terminal() else 10_000)


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A table; if the console is too narrow for the names of the columns, each row as a field to a line."""
    from rich.table import Table

    names = [harmless(name) for name in columns]
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    widths = _fitted(names, cells, console.width)
    if widths is None:
        for number, row in enumerate(rows):
            if number:
                console.print()
            _print_fields(console, {name: row.get(name) for name in columns})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, head, width in zip(columns, names, widths, strict=True):
        numbers = any(isinstance(row.get(name), int) for row in rows) and not any(
            isinstance(row.get(name), bool) for row in rows
        )
        table.add_column(_head(head, width), justify="right" if numbers else "left", width=width, overflow="fold")
    for line in cells:
        table.add_row(*map(_broken, line, widths))
    console.print(table)


def _print_fields(console: Console, fields: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(Text(harmless(name)), Text(cell(value)))
    console.print(table)


class StreamedTable:
    """A table of rows that are still coming: the first page decides the widths, later ones are cut to them."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._console = _console()
        self._widths: list[int] = []
        self._times: list[bool] = []

    def print(self, rows: Sequence[Mapping[str, Any]]) -> None:
        from rich.table import Table

        names = [harmless(name) for name in self._columns]
        cells = [[cell(row.get(name)) for name in self._columns] for row in rows]
        first = not self._widths
        if first:
            room, columns = self._console.width, [*zip(*cells, strict=True)] or [()] * len(names)
            self._times = [any(map(_TIME.fullmatch, column)) for column in columns]
            least = [len("2026-01-31") if times else 4 for times in self._times]
            self._widths = _fitted(names, cells, room) or _shrunk(_widths(names, cells), least, room)
        table = Table(box=None, pad_edge=False, header_style="bold", show_header=first)
        for name, width, times in zip(names, self._widths, self._times, strict=True):
            table.add_column(_head(name, width), width=width, no_wrap=not times, overflow="ellipsis")
        for line in cells:
            table.add_row(*map(_broken, line, self._widths))
        self._console.print(table)


def _widths(names: list[str], cells: list[list[str]]) -> list[int]:
    """How wide each column is when nothing is broken."""
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]


def _fitted(names: list[str], cells: list[list[str]], room: int) -> list[int] | None:
    """Widths that fit beside each other, with names broken at underscores, times before the hour, and no number or
    short word; where that is too wide, fractions of seconds are cut. None if there are none."""
    from rich.cells import cell_len

    columns = zip(names, *cells, strict=True)
    pieces = [(_parts(name), [piece for text in column for piece in _pieces(text)]) for name, *column in columns]
    for longest in (room, len("23:59:59.…")):
        least = [max(map(cell_len, [*parts, *(_cut(each, longest) for each in whole)])) for parts, whole in pieces]
        if sum(least) + 2 * len(names) <= room:
            return _shrunk(_widths(names, cells), least, room)
    return None


def _shrunk(widths: list[int], least: list[int], room: int) -> list[int]:
    """Widths that fit beside each other: the widest give way first, none below its least."""
    room -= 2 * len(widths)
    fitted = list(widths)
    while sum(fitted) > room and (wide := [n for n, width in enumerate(fitted) if width > least[n]]):
        fitted[max(wide, key=lambda n: fitted[n])] -= 1
    return fitted


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d\S*)")
_FRACTION = re.compile(r"\d\d:\d\d:\d\d\.\S*")
_WORD = re.compile(r"-?\d+(\.\d+)?|\S{1,12}")


def _pieces(text: str) -> tuple[str, ...]:
    """What of a cell is not broken."""
    if time := _TIME.fullmatch(text):
        return time.groups()
    return (text,) if _WORD.fullmatch(text) else ()


def _cut(piece: str, width: int) -> str:
    """The time of day, with as much of its fraction as fits."""
    return piece if len(piece) <= width or not _FRACTION.fullmatch(piece) else piece[: width - 1] + "…"


def _broken(text: str, width: int) -> Text:
    """A cell in a column of this width: a time that is wider has a blank where it may be broken."""
    from rich.text import Text

    wide = len(text) > width and _TIME.fullmatch(text)
    return Text(" ".join(_cut(piece, width) for piece in _pieces(text)) if wide else text)


def _parts(name: str) -> list[str]:
    """Where a column's name may be broken: `window_start` is `window_` and `start`."""
    return re.findall(r"_*[^_]+_?|_+", name) or [""]


def _head(name: str, width: int) -> Text:
    """A column's name, broken at underscores if it is wider than its column and the parts are not."""
    from rich.cells import cell_len
    from rich.text import Text

    if max(map(cell_len, _parts(name))) > width:
        return Text(name)
    lines = [""]
    for part in _parts(name):
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return Text("\n".join(lines))


def counted(number: int, what: str, several: str = "") -> str:
    """`1 record`, `2 records`, `2 batches`."""
    return f"{number} {what if number == 1 else several or what + 's'}"
