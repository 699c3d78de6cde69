"""Compares a full-text index with its log, key by key: what the topic says up to the index's place, folded once more
from the beginning, beside the index. Owns the comparison; changes nothing.

Rows that a record behind the place changes may differ where the topic is compacted, because the record before it is
gone: they are not judged. Nor are rows whose record retention has deleted, which the index still has."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.contract import Place
from headrace.connect.index import file
from headrace.connect.index.file import Generation
from headrace.connect.index.writing import stored
from headrace.connect.reading import Rows, beginning, ends_of, read
from headrace.errors import SearchIndexDamaged, TopicReplaced

if TYPE_CHECKING:
    from headrace.log.contract import Topic

__all__ = ["IndexAudit", "IndexDifference", "audit"]

CHUNK_ROWS: Final = 10_000
DIFFERENCES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """`what`: "missing" in the index, "extra" in it, or "different"; with the rows there and by the log."""

    key: list[Any]
    what: str
    index: dict[str, Any] | None
    log: dict[str, Any] | None


@dataclass(slots=True)
class IndexAudit:
    """`keys`: so many were compared. `differences`: at most 1,000. `unjudged`: keys of which the log has too little.
    `words`: what is wrong with the words of the rows, if anything."""

    topic: str
    keys: int = 0
    differences: list[IndexDifference] = field(default_factory=list)
    unjudged: int = 0
    words: str = ""

    @property
    def ok(self) -> bool:
        """Whether the index is what the log says."""
        return not self.differences and not self.words


def audit(path: Path, topic: Topic) -> IndexAudit:
    """The index as it is served now."""
    with contextlib.closing(file.open_to_read(path)) as db, file.typed(path):
        db.execute("BEGIN")
        served = file.generation(db, "serving")
        if served is None:
            raise SearchIndexDamaged(str(path), "no index is served there yet: it is being built")
        if served.spec["topic_id"] != topic.topic_id:
            raise TopicReplaced(topic.name, served.spec["topic_id"])
        place = file.place_of(db, served.number)
        with contextlib.closing(sqlite3.connect("", isolation_level=None)) as beside:  # a file that nobody else sees
            _fold(beside, topic, served, place)
            found = _compared(db, beside, served, _first(topic))
        _forget_moving(found, topic, served, place)
        found.words = _words(db, served)
        return found


def _fold(beside: sqlite3.Connection, topic: Topic, served: Generation, place: Place) -> None:
    beside.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, row TEXT NOT NULL, texts TEXT NOT NULL) WITHOUT ROWID")
    rows, at = Rows(topic, served.spec["key"]), beginning(topic)
    while True:
        found = read(topic, at, place, CHUNK_ROWS)
        if found.place == at:
            return
        beside.execute("BEGIN")
        for change in rows.changes(found.batches):
            if change.row is None:
                beside.execute("DELETE FROM rows WHERE key = ?", (change.key,))
            else:
                made = stored(change, served.text)
                values = (made.key, made.row, json.dumps(made.texts))
                beside.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", values)
        beside.execute("COMMIT")
        at = found.place


def _first(topic: Topic) -> Place:
    """Offsets below are gone by retention; compaction leaves the last record of each key."""
    return {} if topic.settings.cleanup == "compact" else beginning(topic)


def _compared(db: sqlite3.Connection, beside: sqlite3.Connection, served: Generation, first: Place) -> IndexAudit:
    """Both by key, side by side."""
    out = IndexAudit(served.spec["topic"])
    columns = ", ".join(f"t.{column}" for column in served.text_columns)
    there = db.execute(
        f"SELECT r.key, r.row, r.partition, r.at, t.rowid, {columns} FROM {served.rows_table} r "
        f"LEFT JOIN {served.text_table} t ON t.rowid = r.id ORDER BY r.key"
    )
    by_log = beside.execute("SELECT key, row, texts FROM rows ORDER BY key")
    mine, log = next(there, None), next(by_log, None)
    while mine is not None or log is not None:
        out.keys += 1
        if log is None or (mine is not None and mine[0] < log[0]):
            assert mine is not None
            if mine[3] < first.get(mine[2], 0):
                out.unjudged += 1
            else:
                _add(out, mine[0], "extra", _row(served, mine[1], mine[5:]), None)
            mine = next(there, None)
        elif mine is None or log[0] < mine[0]:
            _add(out, log[0], "missing", None, _row(served, log[1], json.loads(log[2])))
            log = next(by_log, None)
        else:
            texts = json.loads(log[2])
            if mine[4] is None or (mine[1], [*mine[5:]]) != (log[1], texts):
                _add(out, mine[0], "different", _row(served, mine[1], mine[5:]), _row(served, log[1], texts))
            mine, log = next(there, None), next(by_log, None)
    return out


def _add(out: IndexAudit, key: str, what: str, index: dict[str, Any] | None, log: dict[str, Any] | None) -> None:
    if len(out.differences) < DIFFERENCES_MAX:
        out.differences.append(IndexDifference(json.loads(key), what, index, log))


def _row(served: Generation, row: str, texts: Any) -> dict[str, Any]:
    given = zip(served.text, texts, strict=True)
    return {**json.loads(row), **{name: text for name, text in given if text is not None}}


def _forget_moving(found: IndexAudit, topic: Topic, served: Generation, place: Place) -> None:
    """Of a compacted topic: keys that have changed since."""
    if not found.differences or topic.settings.cleanup != "compact":
        return
    moving = {json.dumps(json.loads(key)) for key in _keys_behind(topic, served, place)}
    judged = [each for each in found.differences if json.dumps(each.key) not in moving]
    found.unjudged += len(found.differences) - len(judged)
    found.differences = judged


def _keys_behind(topic: Topic, served: Generation, place: Place) -> Iterator[str]:
    rows, ends = Rows(topic, served.spec["key"]), ends_of(topic)
    while True:
        found = read(topic, place, ends, CHUNK_ROWS)
        if found.place == place:
            return
        yield from (change.key for change in rows.changes(found.batches))
        place = found.place


def _words(db: sqlite3.Connection, served: Generation) -> str:
    """Whether words and rows are of each other. FTS5 checks itself only where it may write: in a copy."""
    lost = f"SELECT count(*) FROM {served.text_table} WHERE rowid NOT IN (SELECT id FROM {served.rows_table})"
    (alone,) = db.execute(lost).fetchone()
    if alone:
        return f"{alone} texts are of no row"
    with contextlib.closing(sqlite3.connect("")) as copy:
        db.backup(copy)
        try:
            copy.execute(f"INSERT INTO {served.text_table}({served.text_table}) VALUES ('integrity-check')")
        except sqlite3.DatabaseError as error:
            return f"the words of {served.text_table} are not those of its texts: {error}"
    return ""
