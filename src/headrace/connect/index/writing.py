"""Keeps a full-text index up with its topic. Owns when a generation is built and served; `file` has the tables.

Each round is one SQLite transaction: the rows that are gone, those that came, and the place behind them. A crash leaves
all of it or nothing, so after it the index goes on exactly where it was. A transaction of the log is seen whole."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as types

from headrace.connect.contract import Place
from headrace.connect.index import file
from headrace.connect.index.file import Generation
from headrace.connect.reading import Change, Rows, beginning, ends_of, read
from headrace.errors import InvalidArgument, LogDiverged, TopicReplaced, nearest
from headrace.failpoints import reach
from headrace.jsonrows import encode_row

if TYPE_CHECKING:
    from headrace.connect.index.spec import SearchIndex
    from headrace.log.contract import Log, Topic

__all__ = ["Indexing", "Stored", "stored"]

CHUNK_ROWS: Final = 10_000
ROUND_ROWS: Final = 1_000_000
"""A round takes at most so many records: a longer transaction of the log is seen in parts."""
FREE_PAGES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Stored:
    """A row as the index has it: its columns of text apart, the others as JSON."""

    key: str
    row: str
    texts: tuple[str | None, ...]
    partition: int
    offset: int


def stored(change: Change, text: Iterable[str]) -> Stored:
    row = dict(change.row or {})
    texts = tuple(row.pop(name, None) for name in text)
    return Stored(change.key, encode_row(row).decode(), texts, change.partition, change.offset)


class Indexing:
    """An index, open for writing."""

    def __init__(
        self,
        name: str,
        log: Log,
        topic: Topic,
        path: Path,
        index: SearchIndex,
        key: tuple[str, ...] | None,
        *,
        anew: bool = False,
    ) -> None:
        """`anew`: it is going to be built again, so it may have read another topic of that name."""
        self.name, self.topic, self.path, self._log = name, topic, path, log
        self._rows = Rows(topic, key)
        _check_text(topic, index.text)
        self._spec = {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "text": [*index.text],
            "key": [*self._rows.key],
            "tokenizer": index.tokenizer,
        }
        self._db = file.open_to_write(path)
        with file.typed(path):
            self._begin(anew=anew)

    def _begin(self, *, anew: bool) -> None:
        """An index that does not fit any more is built anew, beside: it is served meanwhile, and kept up if it can be.
        Of a topic that was deleted and made again nobody knows whether it should be."""
        serving = file.generation(self._db, "serving")
        if serving is not None and serving.spec["topic_id"] != self._spec["topic_id"] and not anew:
            self._db.close()
            raise TopicReplaced(serving.spec["topic"], serving.spec["topic_id"])
        building = file.generation(self._db, "building")
        if building is not None and self._diverged(building) is not None:
            with self._transaction():
                self._drop(building)
        diverged = None if serving is None or anew else self._diverged(serving)
        if diverged is not None:
            self._db.close()
            raise diverged
        if serving is None or serving.spec != self._spec:
            self._build()

    def _diverged(self, of: Generation) -> LogDiverged | None:
        """If the log is an older copy, or another: what it has read would stay wrong."""
        ends, arrived = ends_of(self.topic), file.arrivals_of(self._db, of.number)
        for partition, next in file.place_of(self._db, of.number).items():
            end, known = ends.get(partition, 0), arrived[partition]
            there = None if known is None or next > end else self.topic.arrived_us(partition, next - 1)
            if next > end or (there is not None and there != known):
                return LogDiverged(self.name, self.topic.name, partition, next, end, index=True)
        return None

    @property
    def place(self) -> Place:
        with file.typed(self.path):
            served = file.generation(self._db, "serving") or file.generation(self._db, "building")
            return {} if served is None else file.place_of(self._db, served.number)

    def step(self) -> int:
        """A round of the served generation, and a chunk of the one that is built."""
        with file.typed(self.path):
            self._sync()
            return self._serve() + self._go_on_building()

    def rebuild(self) -> int:
        """Builds the index again from the log, beside the one that is served, then serves it; how many rows it has. One
        that was begun, and not ended, is gone on with."""
        with file.typed(self.path):
            self._sync()
            self._build()
            while self._building() is not None:
                self._go_on_building()
            served = file.generation(self._db, "serving")
            return 0 if served is None else served.rows

    def close(self) -> None:
        self._db.close()

    # -- rounds ------------------------------------------------------------------------------------

    def _serve(self) -> int:
        serving = file.generation(self._db, "serving")
        if serving is None or serving.spec["topic_id"] != self.topic.topic_id:
            return 0
        return self._round(serving, ROUND_ROWS)[0]

    def _round(self, to: Generation, rows_max: int) -> tuple[int, bool]:
        """How many records, and whether there are more. All of them in one transaction. If another process has written
        the generation meanwhile, it is tried again from there."""
        rows = self._rows if to.spec == self._spec else Rows(self.topic, to.spec["key"])
        while file.is_there(self._db, to.number):
            place, ends = file.place_of(self._db, to.number), ends_of(self.topic)
            if all(place.get(partition, 0) >= end for partition, end in ends.items()):
                break
            with self._transaction():
                if file.is_there(self._db, to.number) and file.place_of(self._db, to.number) == place:
                    return self._take(to, rows, place, ends, rows_max)
        return 0, False

    def _take(self, to: Generation, rows: Rows, place: Place, ends: Place, rows_max: int) -> tuple[int, bool]:
        taken = 0
        while taken < rows_max:
            found = read(self.topic, place, ends, min(CHUNK_ROWS, rows_max - taken))
            if found.place == place:
                break
            apply(self._db, to, rows.changes(found.batches))
            place, taken = found.place, taken + found.records
        last = {partition: self.topic.arrived_us(partition, next - 1) for partition, next in place.items() if next}
        behind = [(to.number, partition, next, last.get(partition)) for partition, next in place.items()]
        self._db.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", behind)
        reach("index.applied")
        return taken, any(place.get(partition, 0) < end for partition, end in ends.items())

    # -- building ----------------------------------------------------------------------------------

    def _building(self) -> Generation | None:
        found = file.generation(self._db, "building")
        return found if found is not None and found.spec == self._spec else None

    def _build(self) -> None:
        """Begins a generation, or goes on with the one that was begun for the same."""
        with self._transaction():
            if self._building() is None:
                old = file.generation(self._db, "building")
                if old is not None:
                    self._drop(old)
                file.create(self._db, self._spec, beginning(self.topic))

    def _go_on_building(self) -> int:
        building = self._building()
        if building is None:
            return 0
        taken, more = self._round(building, CHUNK_ROWS)
        if not more:
            self._switch(building)
        return taken

    def _switch(self, building: Generation) -> None:
        with self._transaction():
            found = file.generation(self._db, "building")
            if found is None or found.number != building.number:
                return  # another process has switched
            serving = file.generation(self._db, "serving")
            if serving is not None:
                self._drop(serving)
            self._db.execute("UPDATE generations SET state = 'serving' WHERE number = ?", (building.number,))
            reach("index.switched")
        self._db.execute(f"PRAGMA incremental_vacuum({FREE_PAGES})").fetchall()

    def _drop(self, old: Generation) -> None:
        self._db.execute(f"DROP TABLE {old.text_table}")
        self._db.execute(f"DROP TABLE {old.rows_table}")
        self._db.execute("DELETE FROM places WHERE generation = ?", (old.number,))
        self._db.execute("DELETE FROM generations WHERE number = ?", (old.number,))

    # -- SQLite ------------------------------------------------------------------------------------

    def _sync(self) -> None:
        """The index must not know what a power loss could take from the log."""
        if self.topic.settings.durability == "os":
            self._log.sync()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def apply(db: sqlite3.Connection, to: Generation, changes: Iterable[Change]) -> None:
    """The last change of each key. Within a transaction."""
    last: Mapping[str, Change] = {each.key: each for each in changes}
    if not last:
        return
    keys = json.dumps([*last])
    found = f"SELECT id FROM {to.rows_table} WHERE key IN (SELECT value FROM json_each(?))"
    ids = db.execute(found, (keys,)).fetchall()
    db.executemany(f"DELETE FROM {to.text_table} WHERE rowid = ?", ids)
    db.executemany(f"DELETE FROM {to.rows_table} WHERE id = ?", ids)
    rows = [stored(each, to.text) for each in last.values() if each.row is not None]
    (top,) = db.execute(f"SELECT coalesce(max(id), 0) FROM {to.rows_table}").fetchone()
    numbered = list(enumerate(rows, top + 1))
    db.executemany(
        f"INSERT INTO {to.rows_table} VALUES (?, ?, ?, ?, ?)",
        [(number, each.key, each.row, each.partition, each.offset) for number, each in numbered],
    )
    marks = ", ".join("?" * (len(to.text) + 1))
    db.executemany(
        f"INSERT INTO {to.text_table} (rowid, {', '.join(to.text_columns)}) VALUES ({marks})",
        [(number, *each.texts) for number, each in numbered],
    )
    db.execute("UPDATE generations SET rows = rows + ? WHERE number = ?", (len(rows) - len(ids), to.number))


def check_fits(topic: Topic, index: SearchIndex, key: tuple[str, ...] | None = None) -> None:
    """InvalidArgument if there can be no such index over the topic."""
    Rows(topic, index.key or key)
    _check_text(topic, index.text)


def _check_text(topic: Topic, text: Iterable[str]) -> None:
    columns = {field.name: field.type for field in topic.schema}
    for name in text:
        if name not in columns:
            known = [*columns]
            why = f"topic {topic.name!r} has no such column.{nearest(name, known)} It has: {', '.join(known[:20])}"
            raise InvalidArgument("text", name, why)
        if not (types.is_string(columns[name]) or types.is_large_string(columns[name])):
            raise InvalidArgument("text", name, f"is {_kind(columns[name])} in topic {topic.name!r}, not string")


def _kind(arrow: pa.DataType) -> str:
    from headrace.schema import type_ddl

    return type_ddl(arrow)
