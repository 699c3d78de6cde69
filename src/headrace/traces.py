"""Where a text is still found in a home: in the bytes of every file, in what is compressed there, in every row of
SQLite and Postgres. Owns what counts as found. It is told what to look for and nothing else: so it finds what an
erasure has forgotten.

A file is searched as it lies, whoever has made it, with what its owner no longer needs. What zstd and lz4 have
compressed is searched decompressed, wherever in a file it begins. A row of a database may lie in pieces, so databases
are also read as such. A place that cannot be read is named: nobody knows what is there.

Not found: what is kept as a hash or a bit of a filter, and a text that is cut in two by other bytes."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError, InvalidArgument, LogMissing
from headrace.formats.frames import plain_frames
from headrace.log.open import open_log
from headrace.places import directory
from headrace.views.open import dumped_views

__all__ = ["Trace", "traces"]

LEAST_BYTES = 3
"""Fewer are everywhere."""
SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Trace:
    """`times`: how often it was found there. `form`: as which bytes it was found; with no times, why the place could
    not be read."""

    place: str
    form: str
    times: int


def traces(home: str | Path, text: str, *, views: str | None = None) -> Iterator[Trace]:
    """Where the text is found in the directory, in archives of its log, and in the views at an address of Postgres. No
    log and no views of the directory may be open in this process: closing a file that SQLite has open ends its
    locks."""
    forms = _forms(text)
    folder = directory(home).resolve()
    if views is None and not folder.is_dir():
        raise LogMissing(path=str(home), why="there is no such directory: nothing was searched")
    for path in sorted({each for top in (folder, *_archives(folder)) for each in _files(top)}):
        shown = os.fsencode(path.relative_to(folder) if path.is_relative_to(folder) else path).decode(errors="replace")
        yield from _found(shown, forms, _of_file(path))
        if _begins(path, SQLITE):
            yield from _in_tables(shown, forms, path)
    for table, rows in dumped_views(views) if views is not None else ():
        yield from _found(f"Postgres: table {table}", forms, rows)


def _archives(home: Path) -> list[Path]:
    """Where archives of the log in the directory are; they may be elsewhere."""
    try:
        with open_log(home, create=False) as log:
            return [Path(topic.settings.archive).resolve() for topic in log.topics() if topic.settings.archive]
    except HeadraceError:  # there is no log, or it cannot be opened: what is in the directory is searched
        return []


def _files(folder: Path) -> Iterator[Path]:
    return (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())


def _forms(text: str) -> dict[str, bytes]:
    """The bytes that are looked for."""
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("subject", "…", "has bytes that are no UTF-8: write it as UTF-8") from None
    if len(plain) < LEAST_BYTES:
        raise InvalidArgument("subject", "…", f"is shorter than {LEAST_BYTES} bytes: it would be found by chance")
    forms = {
        "UTF-8": plain,
        "UTF-8, composed": unicodedata.normalize("NFC", text).encode(),
        "UTF-8, decomposed": unicodedata.normalize("NFD", text).encode(),
        "JSON": json.dumps(text)[1:-1].encode(),
        "JSON without escapes": json.dumps(text, ensure_ascii=False)[1:-1].encode(),
        "words of an index": text.lower().encode(),
        "UTF-16": text.encode("utf-16-le"),
    }
    return {name: each for name, each in forms.items() if each not in [*forms.values()][: [*forms].index(name)]}


def _found(place: str, forms: dict[str, bytes], raws: Iterable[bytes | mmap.mmap]) -> Iterator[Trace]:
    """In the bytes, and in what is compressed in them."""
    times = dict.fromkeys(forms, 0)
    longest = max(map(len, forms.values()))
    try:
        for raw in raws:
            for piece in itertools.chain([raw], plain_frames(raw, longest)):
                for name, wanted in forms.items():
                    times[name] += _count(piece, wanted)
    except (OSError, sqlite3.Error) as error:
        yield _unread(place, error)
    yield from (Trace(place, name, count) for name, count in times.items() if count)


def _unread(place: str, error: OSError | sqlite3.Error) -> Trace:
    return Trace(place, f"not read: {getattr(error, 'strerror', None) or error}", 0)


def _count(piece: bytes | mmap.mmap, wanted: bytes) -> int:
    count, at = 0, piece.find(wanted)
    while at >= 0:
        count, at = count + 1, piece.find(wanted, at + 1)
    return count


# -- files ---------------------------------------------------------------------------------------------


def _begins(path: Path, with_: bytes) -> bool:
    with suppress(OSError), path.open("rb") as opened:
        return opened.read(len(with_)) == with_
    return False


def _of_file(path: Path) -> Iterator[bytes | mmap.mmap]:
    with suppress(FileNotFoundError), path.open("rb") as opened:  # its owner has removed it meanwhile
        if opened.seek(0, 2):
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                yield whole


# -- databases -----------------------------------------------------------------------------------------


def _in_tables(file: str, forms: dict[str, bytes], path: Path) -> Iterator[Trace]:
    """In the values of a SQLite file's tables. Virtual ones keep theirs in tables beside them."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.text_factory = bytes
            names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage").fetchall()
            for table in (name.decode(errors="replace") for (name,) in names):
                yield from _found(f"{file}: table {table}", forms, _values(db, table))
    except sqlite3.Error as error:
        yield _unread(f"{file}: its tables", error)


def _values(db: sqlite3.Connection, table: str) -> Iterator[bytes]:
    quoted = '"' + table.replace('"', '""') + '"'
    for row in db.execute(f"SELECT * FROM {quoted}"):
        for value in row:
            if isinstance(value, bytes):
                yield value
