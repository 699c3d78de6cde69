"""A topic as a sink reads it: from its place on, partition after partition. Owns what a record does to the row of its
key: puts it, deletes it, or nothing. Pure but for reading; keeps no place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.contract import Place
from headrace.errors import InvalidArgument, closest
from headrace.jsonrows import encode_value
from headrace.rows import to_rows
from headrace.schema import OP_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Topic

__all__ = ["CHANGE_OP", "Change", "Read", "Rows", "beginning", "ends_of", "read"]

CHANGE_OP: Final = "op"
"""The column of a topic of changes that says whether a row comes or goes."""
PLACE: Final = ("_partition", "_offset")
BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Read:
    """`place`: behind what was read."""

    batches: list[pa.RecordBatch]
    place: Place
    records: int


@dataclass(frozen=True, slots=True)
class Change:
    """The row of a key as it is from a record on; None: it is gone."""

    key: str
    row: dict[str, Any] | None
    partition: int
    offset: int


def beginning(topic: Topic) -> Place:
    return {partition: end.earliest for partition, end in topic.ends().items()}


def ends_of(topic: Topic) -> Place:
    """Up to where the topic can be read now: never in the midst of a transaction."""
    return {partition: end.next for partition, end in topic.ends().items()}


def read(topic: Topic, place: Place, upto: Place, rows_max: int | None) -> Read:
    """At most so many records from `place` on, and about 64 MiB; None: all of them. OffsetOutOfRange if retention has
    deleted the next one."""
    batches: list[pa.RecordBatch] = []
    behind, taken, size_bytes = dict(place), 0, 0
    rows_max, bytes_max = (2**62, 2**62) if rows_max is None else (rows_max, BYTES_MAX)
    first = None
    for partition, stop in sorted(upto.items()):
        if partition not in behind:  # the topic got it meanwhile
            first = first or beginning(topic)
            behind[partition] = first.get(partition, 0)
        if taken >= rows_max or size_bytes >= bytes_max or behind[partition] >= stop:
            continue
        names = [*topic.schema.names, *PLACE]
        for batch in topic.batches(partition, behind[partition], stop, columns=names):
            fitting = batch.num_rows * (bytes_max - size_bytes) // max(batch.nbytes, 1)
            part = batch.slice(0, min(rows_max - taken, max(fitting, 1)))
            batches.append(part)
            taken, size_bytes = taken + part.num_rows, size_bytes + part.nbytes
            if part.num_rows < batch.num_rows or taken >= rows_max or size_bytes >= bytes_max:
                behind[partition] = part["_offset"][-1].as_py() + 1
                break
        else:
            behind[partition] = stop
    return Read(batches, behind, taken)


class Rows:
    """How the records of a topic change rows by key. `key`: what a user says; else the topic's own key, where the topic
    is one of rows: a table, a captured table, a compacted topic. Of any other each record is a row of its own."""

    def __init__(self, topic: Topic, key: Sequence[str] | None, *, argument: str = "key") -> None:
        names, settings = topic.schema.names, topic.settings
        self._op = OP_COLUMN if OP_COLUMN in names else CHANGE_OP if settings.changes and CHANGE_OP in names else None
        self._compacted = settings.cleanup == "compact" and self._op is None
        own = settings.key if self._op is not None or self._compacted else ()
        self.key = tuple(key or own)
        self._times = {settings.event_time}
        for column in self.key:
            if column not in names:
                why = f"topic {topic.name!r} has no such column. It has: {', '.join(names[:20])}"
                raise InvalidArgument(argument, column, f"{why}{_hint(column, names)}")
        if self._op == CHANGE_OP and not self.key:
            why = f"topic {topic.name!r} has changes: name the columns that tell its rows apart, key=('page',)"
            raise InvalidArgument(argument, key, why)

    def changes(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Change]:
        for batch in batches:
            for row in to_rows(batch):
                found = self._change(row)
                if found is not None:
                    yield found

    def _change(self, row: dict[str, Any]) -> Change | None:
        partition, offset = row.pop("_partition"), row.pop("_offset")
        op = row.pop(self._op) if self._op is not None else "+"
        if op not in ("upsert", "+", "delete", "-"):
            return None  # a mark: says how far the topic is
        of = [row[name] for name in self.key] if self.key else [partition, offset]
        key = f"[{','.join(map(encode_value, of))}]"
        goes = op in ("delete", "-") or (self._compacted and self._is_tombstone(row))
        kept = None if goes else {name: value for name, value in row.items() if value is not None}
        return Change(key, kept, partition, offset)

    def _is_tombstone(self, row: dict[str, Any]) -> bool:
        return all(value is None or name in self.key or name in self._times for name, value in row.items())


def _hint(column: str, names: Sequence[str]) -> str:
    near = closest(column, list(names))
    return f". Did you mean {near[0]!r}?" if near else ""
