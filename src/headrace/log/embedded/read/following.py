"""Records of a whole topic, in order of arrival; and following its end. Owns the merging of partitions and
the wait for more. Does not poll: it is woken, and looks."""

from __future__ import annotations

import heapq
import time
import zlib
from collections.abc import Iterator
from typing import Any

from headrace import keys
from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument
from headrace.log.contract import Record, Start
from headrace.log.embedded.read.reading import Reader, partition_states, start_offset
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.engine import Engine


def records(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    start: Start,
    *,
    key: Any,
    partition: int | None,
    follow: bool,
    timeout: Duration | None,
) -> Iterator[Record]:
    """Checks at once, reads when iterated."""
    wanted = None if key is None else keys.key_bytes(key, catalog.schema(topic), _key_columns(topic, key))
    chosen = partitions_of_key(topic, wanted) if partition is None else {partition}
    limit = None if timeout is None else duration_us(timeout, argument="timeout", positive=False) / 1e6
    seen = engine.wakes.count(topic.uid) if follow else 0
    states = partition_states(engine, topic)
    if partition is not None and partition not in states:
        raise InvalidArgument("partition", partition, f"topic {topic.name!r} has 0..{topic.settings.partitions - 1}")
    offsets = {
        number: start_offset(engine, catalog, topic, state, start)
        for number, state in states.items()
        if number in chosen
    }
    return _generate(engine, catalog, topic, offsets, partition, wanted, follow, limit, seen)


def _generate(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    offsets: dict[int, int],
    partition: int | None,
    wanted: bytes | None,
    follow: bool,
    limit: float | None,
    seen: int,
) -> Iterator[Record]:
    last_news = time.monotonic()
    while True:
        topic = catalog.current(topic.id, topic.name, topic.uid)  # its schema may have grown, its partitions too
        chosen = partitions_of_key(topic, wanted) if partition is None else {partition}
        ends = {number: state.next for number, state in partition_states(engine, topic).items() if number in chosen}
        for number in ends:
            offsets.setdefault(number, 0)
        merged = heapq.merge(
            *(
                _read(Reader(engine, catalog, topic, number), offsets[number], end, wanted)
                for number, end in ends.items()
                if offsets[number] < end
            ),
            key=lambda record: (record.arrived_at, record.partition, record.offset),
        )
        for record in merged:
            last_news = time.monotonic()
            yield record
        if any(offsets[number] < end for number, end in ends.items()):  # records of other keys are news, too
            last_news = time.monotonic()
        offsets.update(ends)
        if not follow:
            return
        left = None if limit is None else last_news + limit - time.monotonic()
        if left is not None and left <= 0:
            return
        engine.wakes.wait(topic.uid, seen, left)
        catalog.check()
        seen = engine.wakes.count(topic.uid)


def _read(reader: Reader, start: int, stop: int, wanted: bytes | None) -> Iterator[Record]:
    return reader.records(start, stop) if wanted is None else reader.records_of_key(start, stop, wanted)


def _key_columns(topic: TopicState, key: Any) -> tuple[str, ...]:
    if not topic.settings.key:
        raise InvalidArgument("key", key, f"topic {topic.name!r} has no key")
    return topic.settings.key


def partitions_of_key(topic: TopicState, wanted: bytes | None) -> set[int]:
    """Where a key's records can be: one partition, unless partitions were added since."""
    if wanted is None or topic.settings.partitions_added:
        return set(range(topic.settings.partitions))
    return {zlib.crc32(wanted) % topic.settings.partitions}
