"""Changes of one table as rows of its topic. Owns what a change becomes there: an upsert of a whole row, or a delete of
its key. Knows no database: `Shape` says what the columns are, and how texts become their values.

Values that the database did not send (`UNCHANGED`) are filled from the row that the table has, before it is appended:
the topic holds whole rows, so compaction loses nothing. The row may be in the same batch, or in the topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.cdc.change import UNCHANGED, Change, Row
from headrace.log.capabilities import Erasure
from headrace.schema import OP_COLUMN

if TYPE_CHECKING:
    from headrace.errors import RecordTooLarge
    from headrace.log.contract import Topic

__all__ = ["DELETE", "LOADED", "UPSERT", "Key", "Shape", "TableRows", "loaded_mark", "newest_rows", "too_large"]

UPSERT, DELETE, LOADED = "upsert", "delete", "loaded"
Read = Callable[[Sequence[Any]], pa.Array]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Shape:
    """A table's columns: their names, how the values of each are read, and where the key is."""

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    readers: tuple[Read, ...]
    key: tuple[int, ...]

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.names[at] for at in self.key)

    @property
    def schema(self) -> pa.Schema:
        """Of the topic: nothing in it is NOT NULL, as a delete has only a key."""
        columns = [pa.field(name, kind) for name, kind in zip(self.names, self.types, strict=True)]
        return pa.schema([*columns, pa.field(OP_COLUMN, pa.string())])


def loaded_mark(shape: Shape) -> pa.Table:
    """The record that says that the table has been loaded."""
    return pa.Table.from_pylist([{OP_COLUMN: LOADED}], schema=shape.schema)


def too_large(error: RecordTooLarge) -> str:
    """Why a table with such a row is stopped."""
    return f"a row has more than {error.limit_bytes:,} bytes: mask its column with null, or leave the table out"


class TableRows:
    """Collects changes, in order; `take` gives them as a table."""

    def __init__(self, shape: Shape, filled: Callable[[set[Key], Sequence[str]], Mapping[Key, Mapping[str, Any]]]):
        self.shape, self._filled = shape, filled
        self._ops: list[str] = []
        self._rows: list[Row] = []
        self._moved: dict[int, Row] = {}
        """Rows that came from another key: their values that are unchanged are those of the row there."""
        self._keep = frozenset(shape.key)

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, change: Change) -> None:
        if change.op == "delete":
            assert change.before is not None
            self.delete(change.before)
        else:
            assert change.after is not None
            if change.op == "insert" and change.before is not None:
                self._moved[len(self._ops)] = change.before
            self.upsert(change.after)

    def upsert(self, row: Row) -> None:
        self._ops.append(UPSERT)
        self._rows.append(row)

    def delete(self, row: Row) -> None:
        """Of the row as it was, only the key is told."""
        self._ops.append(DELETE)
        keep = self._keep
        self._rows.append(tuple([value if at in keep else None for at, value in enumerate(row)]))

    def take(self) -> pa.Table:
        """The rows so far, which it forgets."""
        rows = self._rows
        columns = [[row[at] for row in rows] for at in range(len(self.shape.names))]  # quicker than to zip them
        gaps = {at: column for at, column in enumerate(columns) if UNCHANGED in column}
        arrays = []
        for at, (column, read) in enumerate(zip(columns, self.shape.readers, strict=True)):
            arrays.append(read([None if each is UNCHANGED else each for each in column] if at in gaps else column))
        if gaps:
            self._fill(arrays, gaps)
        ops = pa.array(self._ops, pa.string())
        self._ops, self._rows, self._moved = [], [], {}
        return pa.Table.from_arrays([*arrays, ops], schema=self.shape.schema)

    def _fill(self, arrays: list[pa.Array], gaps: Mapping[int, Sequence[Any]]) -> None:
        """Walks the rows in order, as a row before may have the value. A delete leaves the row that was there: one that
        moves to another key takes its values along."""
        names = self.shape.names
        keys: list[Key] = list(zip(*(arrays[at].to_pylist() for at in self.shape.key), strict=True))
        sources = {**dict(enumerate(keys)), **self._moved_from()}
        values = {at: arrays[at].to_pylist() for at in gaps}
        upserts = [number for number, op in enumerate(self._ops) if op == UPSERT]
        seen: set[Key] = set()
        missing: set[Key] = set()
        for number in upserts:
            if sources[number] not in seen and any(gaps[at][number] is UNCHANGED for at in gaps):
                missing.add(sources[number])
            seen.add(keys[number])
        known: dict[Key, dict[int, Any]] = {}
        if missing:
            found = self._filled(missing, [names[at] for at in gaps])
            known = {key: {at: row.get(names[at]) for at in gaps} for key, row in found.items()}
        for number in upserts:
            row = known.get(sources[number], {})
            now = {at: row.get(at) if gaps[at][number] is UNCHANGED else values[at][number] for at in gaps}
            known[keys[number]] = now
            for at in gaps:
                values[at][number] = now[at]
        for at in gaps:
            arrays[at] = pa.array(values[at], self.shape.types[at])

    def _moved_from(self) -> dict[int, Key]:
        """Of rows that came from another key, that key."""
        if not self._moved:
            return {}
        columns = [
            self.shape.readers[at]([row[at] for row in self._moved.values()]).to_pylist() for at in self.shape.key
        ]
        return dict(zip(self._moved, zip(*columns, strict=True), strict=True))


def newest_rows(
    topic: Topic, keys: Iterable[Key], key_names: Sequence[str], columns: Sequence[str], *, deleted: bool = False
) -> dict[Key, dict[str, Any]]:
    """Of each key its newest row in the topic, as far as these columns go. `deleted`: also where it was deleted since,
    the row that was there."""
    found = {}
    if not isinstance(topic, Erasure):  # a log that finds no key without reading everything: then once for all
        return _newest_rows_of_all(topic, {*keys}, key_names, columns, deleted)
    for key in keys:
        last = None
        for record in topic.records(key=key if len(key_names) > 1 else key[0]):
            last = record if not deleted or record.value[OP_COLUMN] == UPSERT else last
        if last is not None and last.value[OP_COLUMN] == UPSERT:
            found[key] = {name: last.value[name] for name in columns}
    return found


def _newest_rows_of_all(
    topic: Topic, keys: set[Key], key_names: Sequence[str], columns: Sequence[str], deleted: bool
) -> dict[Key, dict[str, Any]]:
    if not keys:
        return {}
    import pyarrow.compute as pc

    found: dict[Key, dict[str, Any]] = {}
    names = list(dict.fromkeys((*key_names, OP_COLUMN, *columns)))
    firsts = [key[0] for key in keys]
    for batch in topic.batches(columns=names):
        first = batch.column(key_names[0])
        for row in batch.filter(pc.is_in(first, value_set=pa.array(firsts, first.type))).to_pylist():
            key = tuple(row[name] for name in key_names)
            if key not in keys:
                continue
            if row[OP_COLUMN] == UPSERT:
                found[key] = {name: row[name] for name in columns}
            elif not deleted:
                found.pop(key, None)
    return found
