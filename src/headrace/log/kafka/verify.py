"""Checks a log on Kafka: that the topics which headrace knows are there, with the settings that it gave them, and that
every record of them is a row, in the partition of its key. Changes nothing, and makes no dead letters. What brokers and
disks check by themselves (checksums, replicas) is theirs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace import keys
from headrace.errors import KafkaFailed
from headrace.log.contract import Problem, Verified
from headrace.log.kafka.base_topic import Handle
from headrace.log.kafka.catalog import Entry, config_of
from headrace.log.kafka.reading import Chunk, Reader
from headrace.log.kafka.values import Unreadable

__all__ = ["verify"]

GONE = "is not in the cluster any more"


def verify(handle: Handle) -> Verified:
    unread = "is described in a way that cannot be read: {}. Upgrade headrace, or delete the description"
    problems = [Problem(unread.format(why), name) for name, why in handle.catalog.unreadable().items()]
    chunks = records = size = 0
    entries = handle.catalog.all()
    for entry in entries:
        gone = list(_replaced(handle, entry))
        try:
            problems += gone or _changed(handle, entry)
            for chunk in () if gone else _chunks(handle, entry, problems):
                chunks, records, size = chunks + 1, records + len(chunk.offsets), size + chunk.rows.nbytes
        except KafkaFailed as error:
            if error.code != "UNKNOWN_TOPIC_OR_PART":
                raise
            problems.append(Problem(GONE, entry.name))  # while it was looked at
    return Verified(len(entries), chunks, records, size, problems)


def _chunks(handle: Handle, entry: Entry, problems: list[Problem]) -> Iterator[Chunk]:
    """All records of a topic, read by a reader that buries none."""

    def note(number: int, bad: list[tuple[int, Unreadable]]) -> None:
        found = (Problem(f"is no row: {each.why}", entry.name, number, offset, offset + 1) for offset, each in bad)
        problems.extend(found)

    settings, client, physical = entry.settings, handle.catalog.client, handle.catalog.physical(entry.name)
    reader = Reader(client, physical, lambda: entry, note)
    ruled = bool(settings.key) and not entry.foreign and not settings.partitions_added
    places = [(physical, number) for number in range(settings.partitions)]
    for (_, number), ends in client.ends(places).items():
        for chunk in reader.chunks(number, ends[0], ends[1], ends):
            if ruled:
                elsewhere = keys.partitions_of(chunk.rows, settings.key, settings.partitions) != number
                problems += _runs(entry.name, number, chunk.offsets[elsewhere])
            yield chunk


def _replaced(handle: Handle, entry: Entry) -> Iterator[Problem]:
    found = handle.catalog.described(entry.name)
    if found is None:
        yield Problem(GONE, entry.name)
    elif found[0] != entry.topic_id:
        yield Problem("was deleted and created again by others", entry.name)


def _changed(handle: Handle, entry: Entry) -> Iterator[Problem]:
    if entry.foreign:
        return
    given = handle.catalog.settings_in_kafka(entry.name)
    for name, value in config_of(entry.settings).items():
        if given.get(name) != value:
            yield Problem(f"{name} is {given.get(name)} in Kafka, and not {value}, as headrace has set it", entry.name)


def _runs(name: str, number: int, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[Problem]:
    """Records that another client has put elsewhere, a problem for each run of offsets."""
    for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1) if len(offsets) else ():
        yield Problem("lies outside the partition of its key", name, number, int(run[0]), int(run[-1]) + 1)
