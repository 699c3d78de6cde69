"""Dead letters: records that could not be appended or processed, kept with the reason until a user replays or drops
them. One idea for the whole product: quarantined events, poison input, failed deliveries. Owns the topic
`__dead_letters` and the list of those still open. The texts lie in the log, never in the index. `replaying` ends
letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa

from headrace import jsonrows, rows
from headrace.errors import HeadraceError, InvalidArgument, TopicReplaced, UnknownTopic
from headrace.log.contract import DEAD_LETTERS, Appended, Origin, TopicSettings
from headrace.log.embedded.read.reading import Reader
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import DEAD, DeadRow
from headrace.log.embedded.write import append
from headrace.log.embedded.write.append import Append

RAW_BYTES_MAX = 16 << 20
LETTER_BYTES_MAX = 64 << 20
"""A record of the largest size must fit as JSON text, with its reason beside it."""
NEAR = 100
"""Open letters with fewer others between them are read together."""
SCHEMA = (
    "reason string NOT NULL, error string, topic string, topic_id string, partition int, offset bigint, source string, "
    "deliveries int, died_at timestamp NOT NULL, row string, raw binary"
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`reason` in a word, `error` in a sentence, `origin` as far as it is known. `value` is the row as it would have
    been appended, or the bytes that could not be read as one."""

    id: int
    reason: str
    error: str
    origin: Origin
    died_at: datetime
    value: dict[str, Any] | bytes
    deliveries: int | None
    """How often a queue had delivered it."""
    _queue: int | None = field(repr=False, compare=False)
    _owner: Owner | None = field(repr=False, compare=False)

    def replay(self) -> Appended:
        """Appends the row to the topic it was meant for, or puts a queue's message back into its queue, and removes the
        letter, in one transaction."""
        assert self._owner is not None
        return self._owner.replay(self)

    def drop(self) -> None:
        """Removes the letter."""
        assert self._owner is not None
        self._owner.drop(self)


class Owner(Protocol):
    """What can remove a letter."""

    def replay(self, letter: DeadLetter) -> Appended: ...

    def drop(self, letter: DeadLetter) -> None: ...


def end(tx: Tx, letter: int, *, missing_ok: bool = False) -> bool:
    """Closes the letter, inside a write transaction. True if it was open."""
    if DEAD.delete(tx.db, "WHERE offset = ?", letter) == 0:
        if missing_ok:
            return False
        raise InvalidArgument("letter", letter, "was replayed or dropped already")
    return True


# -- writing letters ---------------------------------------------------------------------------------


def home(catalog: Catalog) -> TopicState:
    """The topic the letters are in."""
    try:
        return catalog.named(DEAD_LETTERS)
    except UnknownTopic:
        return catalog.create(DEAD_LETTERS, SCHEMA, TopicSettings(), exist_ok=True, system=True)


def letters(
    catalog: Catalog, topic: TopicState | None, found: list[dict[str, Any]], *, queue: int | None = None
) -> Append:
    """An append of dead letters, to be submitted or made part of another append. `queue`: the queue of the messages."""
    own = home(catalog)
    now = datetime.now(UTC)
    for letter in found:
        letter.setdefault("died_at", now)
        if topic is not None:
            letter.setdefault("topic", topic.name)
            letter.setdefault("topic_id", topic.uid)
        raw = letter.get("raw")
        if raw is not None and len(raw) > RAW_BYTES_MAX:
            letter["error"] = f"{letter.get('error')} (the first {RAW_BYTES_MAX} of {len(raw)} bytes are kept)"
            letter["raw"] = raw[:RAW_BYTES_MAX]
    prepared = append.prepare(own, catalog.schema(own), found, now_us=0, record_bytes_max=LETTER_BYTES_MAX)

    def register(tx: Tx, given: range) -> None:
        for offset in given:
            DEAD.add(tx.db, DeadRow(offset, topic.id if topic else None, queue))

    prepared.register = register
    return prepared


def quarantined(catalog: Catalog, topic: TopicState, batch: pa.RecordBatch) -> Append:
    """Letters for events too far ahead of the clock, so that one wrong clock cannot move a topic's time."""
    column = topic.settings.event_time
    limit = topic.settings.max_ahead_us
    found = []
    for row in rows.to_rows(batch):
        when = row[column or ""]
        found.append(
            {
                "reason": "max_ahead",
                "error": f"event time {when.isoformat()} is more than {limit / 1e6:g} s ahead of arrival",
                "row": jsonrows.encode_row(row).decode(),
            }
        )
    return letters(catalog, topic, found)


# -- reading letters ---------------------------------------------------------------------------------


def counted(engine: Engine) -> int:
    """How many letters are open."""
    with engine.index.reading() as db:
        (count,) = db.execute("SELECT count(*) FROM dead").fetchone()
    return int(count)


def listed(
    engine: Engine,
    catalog: Catalog,
    owner: Owner | None,
    *,
    queue: int | None = None,
    newest: int | None = None,
    id: int | None = None,
) -> Iterator[DeadLetter]:
    """The letters that are open; with `queue`, its own; with `newest`, so many of the last; with `id`, that one.
    `owner` ends letters, for those who replay or drop them."""
    with engine.index.reading() as db:
        if queue is not None:
            rows = DEAD.select(db, "WHERE queue = ?", queue)
        elif id is not None:
            rows = DEAD.select(db, "WHERE offset = ?", id)
        else:
            rows = DEAD.select(db, "ORDER BY offset DESC LIMIT ?", -1 if newest is None else newest)
    open_letters = {row.offset: row.queue for row in sorted(rows)}
    if not open_letters:
        return
    own = home(catalog)
    reader = Reader(engine, catalog, own, 0)
    for first, stop in _stretches(list(open_letters)):
        for record in reader.records(first, stop):
            if record.offset in open_letters:
                yield _letter(record.offset, record.value, open_letters[record.offset], catalog, owner)


def _stretches(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Offsets that lie near each other, as ranges: what they share a frame with is read but once."""
    first = previous = offsets[0]
    for offset in offsets[1:]:
        if offset > previous + NEAR:
            yield first, previous + 1
            first = offset
        previous = offset
    yield first, previous + 1


def _letter(offset: int, value: dict[str, Any], queue: int | None, catalog: Catalog, owner: Owner | None) -> DeadLetter:
    origin = Origin(value["topic"], value["partition"], value["offset"], value["source"], value["topic_id"])
    return DeadLetter(
        offset,
        value["reason"],
        value["error"] or "",
        origin,
        value["died_at"],
        _value(value, catalog),
        value["deliveries"],
        queue,
        owner,
    )


def _value(value: dict[str, Any], catalog: Catalog) -> dict[str, Any] | bytes:
    if value["row"] is None:
        return bytes(value["raw"] or b"")
    try:
        state = catalog.named(value["topic"])
        if not state.was(value["topic_id"]):
            raise TopicReplaced(topic=state.name, topic_id=value["topic_id"] or "")
        schema, extra = catalog.schema(state), state.settings.extra
        row = jsonrows.decode_row(value["row"], schema)
        return rows.to_rows(rows.to_batch(row, schema, extra=extra, topic=state.name))[0]
    except HeadraceError:  # the topic is gone, or changed so that the row no longer reads
        return value["row"].encode() if isinstance(value["row"], str) else bytes(value["row"])


__all__ = ["DeadLetter", "Owner", "counted", "end", "home", "letters", "listed", "quarantined"]
