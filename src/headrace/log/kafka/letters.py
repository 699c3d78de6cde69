"""Dead letters in Kafka: a topic, `__dead_letters`, of letters and of ends. A letter is open until a record says that
it was replayed or dropped. Owns both. A record that cannot be read becomes one letter, whoever reads it, and however
often."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace import jsonrows, rows
from headrace.errors import HeadraceError, InvalidArgument, TopicReplaced, UnknownTopic
from headrace.log.contract import DEAD_LETTERS, Appended, Origin
from headrace.log.kafka.catalog import Catalog, Entry
from headrace.log.kafka.client import Outgoing
from headrace.log.kafka.reading import Reader
from headrace.log.kafka.writing import died_now, prepare
from headrace.log.settings import TopicSettings

__all__ = ["KafkaLetter", "Letters"]

SCHEMA = (
    "reason string NOT NULL, error string, topic string, topic_id string, partition int, offset bigint, source string, "
    "deliveries int, died_at timestamp NOT NULL, row string, raw binary, ends bigint"
)
RAW_BYTES_MAX = 4 << 20
READ = "read"
"""The source of letters that a reader has buried."""
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class KafkaLetter:
    """`reason` in a word, `error` in a sentence, `origin` as far as it is known. `value` is the row as it would have
    been appended, or the bytes that could not be read as one."""

    id: int
    reason: str
    error: str
    origin: Origin
    died_at: datetime
    value: dict[str, Any] | bytes
    deliveries: int | None
    _replay: Callable[[KafkaLetter], Appended] = field(repr=False, compare=False)
    _drop: Callable[[int], None] = field(repr=False, compare=False)

    def replay(self) -> Appended:
        """Appends the row to the topic it was meant for, and ends the letter, in one transaction."""
        return self._replay(self)

    def drop(self) -> None:
        """Ends the letter."""
        self._drop(self.id)


@dataclass
class _State:
    """What is known of the letters below an offset: the open ones, oldest first, and the records that have one because
    they could not be read."""

    topic_id: str = ""
    read_to: int = 0
    open: dict[int, None] = field(default_factory=dict)
    unreadable: set[tuple[str | None, int | None, int | None]] = field(default_factory=set)


class Letters:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._reader: Reader | None = None
        self._state = _State()
        self._lock = threading.RLock()

    @property
    def physical(self) -> str:
        return self._catalog.physical(DEAD_LETTERS)

    def entry(self) -> Entry:
        """The topic of the letters, which is created when it is first needed."""
        try:
            return self._catalog.named(DEAD_LETTERS)
        except UnknownTopic:
            return self._catalog.create(DEAD_LETTERS, SCHEMA, TopicSettings(), exist_ok=True, system=True)

    # -- writing -----------------------------------------------------------------------------------

    def records(self, letters: Sequence[Mapping[str, Any]], of: Entry | None) -> list[Outgoing]:
        """Letters as records, for a transaction."""
        cut = [dict(letter) for letter in letters]
        for letter in cut:
            raw = letter.get("raw")
            if raw is not None and len(raw) > RAW_BYTES_MAX:
                letter["error"] = f"{letter.get('error')} (the first {RAW_BYTES_MAX} of {len(raw)} bytes are kept)"
                letter["raw"] = raw[:RAW_BYTES_MAX]
        return prepare(self.entry(), died_now(cut, of)).records

    def bury(self, letters: Sequence[Mapping[str, Any]], of: Entry | None) -> range:
        """The numbers of the letters."""
        client = self._catalog.client
        given = client.produce(client.producer, self.physical, self.records(letters, of)).wait()
        client.notify()
        return given.get(0, range(0))

    def bury_unreadable(self, of: Entry, partition: int, found: Sequence[tuple[int, Any]]) -> None:
        """Letters for records that are no rows of their topic, unless they have some."""
        known = self._refresh().unreadable
        new = [
            {
                "reason": each.reason,
                "error": each.why,
                "partition": partition,
                "offset": offset,
                "raw": each.raw,
                "source": READ,
            }
            for offset, each in found
            if (of.topic_id, partition, offset) not in known
        ]
        if new:
            self.bury(new, of)

    def ending(self, id: int) -> list[Outgoing]:
        """The record that ends a letter; InvalidArgument if it was ended before."""
        if id not in self._refresh().open:
            raise InvalidArgument("letter", id, "was replayed or dropped already")
        return self.records([{"reason": ENDED, "ends": id}], None)

    def drop(self, id: int) -> None:
        client = self._catalog.client
        client.produce(client.producer, self.physical, self.ending(id)).wait()

    # -- reading -----------------------------------------------------------------------------------

    def _rows(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """The records of the topic between two offsets, in order."""
        try:
            self._catalog.named(DEAD_LETTERS)
        except UnknownTopic:
            return
        if self._reader is None:
            self._reader = Reader(self._catalog.client, self.physical, self.entry, lambda *_: None)
        ends = self._catalog.client.ends([(self.physical, 0)])[self.physical, 0]
        end = ends[1] if stop is None else min(stop, ends[1])
        for chunk in self._reader.chunks(0, max(start, ends[0]), end, ends):
            low, high = (int(at) for at in chunk.offsets.searchsorted([start, end]))
            yield from zip(
                chunk.offsets[low:high].tolist(), rows.to_rows(chunk.rows.slice(low, high - low)), strict=True
            )

    def _refresh(self) -> _State:
        """Reads the letters and ends that are new."""
        with self._lock:
            try:
                topic_id = self._catalog.named(DEAD_LETTERS).topic_id
            except UnknownTopic:
                topic_id = ""
            if self._state.topic_id != topic_id:
                self._state, self._reader = _State(topic_id), None
            state = self._state
            for offset, value in self._rows(state.read_to):
                state.read_to = offset + 1
                record = value["topic_id"], value["partition"], value["offset"]
                if value["reason"] == ENDED:
                    state.open.pop(value["ends"], None)
                elif value["source"] != READ:
                    state.open[offset] = None
                elif record not in state.unreadable:
                    state.unreadable.add(record)
                    state.open[offset] = None
            return state

    def count(self) -> int:
        return len(self._refresh().open)

    def listed(self, replay: Any, newest: int | None, *, id: int | None = None) -> Iterator[KafkaLetter]:
        """The open letters, oldest first."""
        found = list(self._refresh().open)
        chosen = set(found if newest is None else found[-newest:] if newest else ())
        if id is not None:
            chosen = {id} & set(found)
        if not chosen:
            return
        for offset, value in self._rows(min(chosen), max(chosen) + 1):
            if offset in chosen:
                yield KafkaLetter(
                    offset,
                    value["reason"],
                    value["error"] or "",
                    _origin(value),
                    value["died_at"],
                    self._value(value),
                    value["deliveries"],
                    replay,
                    self.drop,
                )

    def _value(self, value: dict[str, Any]) -> dict[str, Any] | bytes:
        if value["row"] is None:
            return bytes(value["raw"] or b"")
        try:
            entry = self._catalog.named(value["topic"])
            if entry.topic_id != value["topic_id"]:
                raise TopicReplaced(topic=entry.name, topic_id=value["topic_id"] or "")
            row = jsonrows.decode_row(value["row"], entry.columns)
            batch: pa.RecordBatch = rows.to_batch(row, entry.columns, extra=entry.settings.extra, topic=entry.name)
            return rows.to_rows(batch)[0]
        except HeadraceError:  # the topic is gone, or changed so that the row no longer reads
            text: str = value["row"]
            return text.encode()


def _origin(value: Mapping[str, Any]) -> Origin:
    return Origin(value["topic"], value["partition"], value["offset"], value["source"], value["topic_id"])
