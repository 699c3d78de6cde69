"""Finds rows in a full-text index, for anybody: typed words, a limit of time and of rows. Owns the connection that only
reads. Rows are found as they are after a whole round of the writer, also while another generation takes over.

Hits have pieces of text that are marked or not, never markup: who shows them decides how."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.connect.contract import Place
from headrace.connect.index import file
from headrace.connect.index.file import Generation
from headrace.connect.index.words import parse
from headrace.errors import InvalidArgument, QueryTimeout

__all__ = ["Found", "Hit", "IndexStatus", "Searching"]

SECONDS_MAX: Final = 2.0
HITS_MAX: Final = 100
COUNT_MAX: Final = 1_000
SKIP_MAX: Final = 10_000
WORDS_SHOWN: Final = 24
MARKED_CHARACTERS_MAX: Final = 100_000
"""Of longer texts the beginning is shown: to mark words is to read all of them."""
BEGINNING: Final = 200
STEPS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that was found. `marks`: of each column of text some words around those found, in pieces: the text, and
    whether it is one that was looked for."""

    key: list[Any]
    row: dict[str, Any]
    marks: dict[str, list[tuple[str, bool]]]


@dataclass(frozen=True, slots=True)
class Found:
    """The best first. `count`: how many there are; `more`: at least so many. `why`: why there can be none."""

    hits: list[Hit]
    count: int
    more: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """`state`: "serving", or "building" before the first time. `rebuilding`: rows of the one that is built beside."""

    topic: str
    text: list[str]
    key: list[str]
    tokenizer: str
    state: str
    rows: int
    rebuilding: int | None
    bytes: int
    place: Place


class Searching:
    """An index, open for reading; for many threads, one at a time. Close it after use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = file.open_to_read(path)
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Searching:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def status(self) -> IndexStatus:
        with self._reading():
            building = file.generation(self._db, "building")
            served = file.generation(self._db, "serving") or building
            if served is None:
                return IndexStatus("", [], [], "", "building", 0, None, file.file_bytes(self._db), {})
            beside = None if building is None or building.number == served.number else building.rows
            place, spec = file.place_of(self._db, served.number), served.spec
            bytes_ = file.file_bytes(self._db)
            return IndexStatus(
                spec["topic"],
                spec["text"],
                spec["key"],
                spec["tokenizer"],
                served.state,
                served.rows,
                beside,
                bytes_,
                place,
            )

    def search(self, query: str, *, limit: int = 20, skip: int = 0, seconds: float = SECONDS_MAX) -> Found:
        """Rows with these words: see `words`. QueryTimeout after so many seconds."""
        if not 1 <= limit <= HITS_MAX:
            raise InvalidArgument("limit", limit, f"must be 1 to {HITS_MAX}")
        if not 0 <= skip <= SKIP_MAX:
            raise InvalidArgument("skip", skip, f"must be 0 to {SKIP_MAX}: ask for more words instead")
        with self._reading(query, seconds):
            served = file.generation(self._db, "serving")
            if served is None:
                return Found([], 0, why="the index is being built")
            words = parse(query, dict(zip(served.text, served.text_columns, strict=True)))
            if words.match is None:
                return Found([], 0, why=words.why)
            hits = self._hits(served, words.match, limit, skip)
            counting = f"SELECT count(*) FROM (SELECT 1 FROM {served.text_table} WHERE {served.text_table} MATCH ?"
            (count,) = self._db.execute(f"{counting} LIMIT {COUNT_MAX + 1})", (words.match,)).fetchone()
            return Found(hits, min(count, COUNT_MAX), count > COUNT_MAX)

    def _hits(self, served: Generation, match: str, limit: int, skip: int) -> list[Hit]:
        mark = secrets.token_hex(8)  # no text can hold what nobody could know
        begin, end = f"<{mark}>", f"</{mark}>"
        table = served.text_table
        shown = ", ".join(
            f"CASE WHEN length({column}) <= {MARKED_CHARACTERS_MAX} "
            f"THEN snippet({table}, {number}, ?1, ?2, '…', {WORDS_SHOWN}) ELSE substr({column}, 1, {BEGINNING}) END"
            for number, column in enumerate(served.text_columns)
        )
        texts = ", ".join(served.text_columns)
        sql = f"SELECT rowid, {texts}, {shown} FROM {table} WHERE {table} MATCH ?3 ORDER BY rank LIMIT ?4 OFFSET ?5"
        found = self._db.execute(sql, (begin, end, match, limit, skip)).fetchall()
        rows = f"SELECT id, key, row FROM {served.rows_table} WHERE id IN (SELECT value FROM json_each(?))"
        ids = json.dumps([each[0] for each in found])
        known = {id_: (key, row) for id_, key, row in self._db.execute(rows, (ids,))}
        names, hits = served.text, []
        for id_, *cells in found:
            key, row = known[id_]
            whole, parts = cells[: len(names)], cells[len(names) :]
            given = {name: text for name, text in zip(names, whole, strict=True) if text is not None}
            marks = {name: _pieces(text, begin, end) for name, text in zip(names, parts, strict=True) if text}
            hits.append(Hit(json.loads(key), {**json.loads(row), **given}, marks))
        return hits

    @contextlib.contextmanager
    def _reading(self, query: str = "", seconds: float | None = None) -> Iterator[None]:
        """One state of the index; within a time."""
        with self._lock, file.typed(self.path):
            until = None if seconds is None else time.monotonic() + seconds
            if until is not None:
                self._db.set_progress_handler(lambda: int(time.monotonic() > until), STEPS)
            self._db.execute("BEGIN")
            try:
                yield
            except sqlite3.OperationalError as error:
                if seconds is not None and "interrupted" in str(error):
                    raise QueryTimeout(query, seconds) from None
                raise
            finally:
                self._db.set_progress_handler(None, 0)
                self._db.execute("ROLLBACK")


def _pieces(text: str, begin: str, end: str) -> list[tuple[str, bool]]:
    out: list[tuple[str, bool]] = []
    for number, part in enumerate(text.split(begin)):
        marked, closed, rest = part.partition(end)
        if number and closed:
            out += [(marked, True), (rest, False)]
        else:
            out.append((part, False))
    return [(each, marked) for each, marked in out if each]
