"""What must be true of a log after a fault, whatever the fault was. Owns reading a whole log back and the
invariants every fault test shares. Does not know how the log was hurt.

Records of these tests say who wrote them: `who` is one writer, `n` its own number, 0, 1, 2 …"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.log.contract import Verified
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.open import open_log
from headrace.storage import disk

SCHEMA = "who string, n int, pad string"

Found = dict[str, dict[int, dict[int, dict[str, Any]]]]
"""topic -> partition -> offset -> value"""


@dataclass
class State:
    """Everything a reader can see of a log."""

    records: Found = field(default_factory=dict)
    nexts: dict[str, dict[int, int]] = field(default_factory=dict)
    groups: dict[str, dict[int, int]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    dead: list[tuple[int, str, Any]] = field(default_factory=list)

    def values(self, topic: str) -> list[dict[str, Any]]:
        return [value for found in self.records[topic].values() for value in found.values()]

    def numbers(self, topic: str, who: str) -> list[int]:
        return sorted(value["n"] for value in self.values(topic) if value["who"] == who)


@contextmanager
def another_boot(name: str = "another boot") -> Iterator[None]:
    """Logs opened inside believe that the machine was restarted."""
    real = disk.boot_id
    disk.boot_id = lambda: name
    try:
        yield
    finally:
        disk.boot_id = real


def state_of(log: EmbeddedLog, version_keys: tuple[str, ...] = ()) -> State:
    """All of it: records with offsets, group offsets, versions of the keys, dead letters."""
    state = State()
    for topic in log.topics():
        parts: dict[int, dict[int, dict[str, Any]]] = {partition: {} for partition in topic.offsets()}
        for record in topic.records():
            assert record.offset not in parts[record.partition], "an offset twice"
            parts[record.partition][record.offset] = record.value
        state.records[topic.name] = parts
        state.nexts[topic.name] = {partition: offsets.next for partition, offsets in topic.offsets().items()}
        for group in topic.groups():
            state.groups[f"{topic.name}/{group.name}"] = group.committed()
        if topic.settings.versioned:
            state.versions |= {f"{topic.name}/{key}": topic.version(key) for key in version_keys}
    state.dead = [(letter.id, letter.reason, letter.value) for letter in log.dead_letters()]
    return state


def check_sound(log: EmbeddedLog, version_keys: tuple[str, ...] = ()) -> tuple[State, Verified]:
    """The invariants that need no knowledge of what was written: verified, dense but for what is reported lost,
    committed offsets inside the log, versions equal to the records of their key."""
    found = log.verify()
    assert found.ok, found.problems
    state = state_of(log, version_keys)
    lost = {
        (problem.topic, problem.partition, offset)
        for problem in found.lost
        for offset in range(problem.start, problem.stop)
    }
    for topic, parts in state.records.items():
        for partition, records in parts.items():
            gone = {offset for t, p, offset in lost if (t, p) == (topic, partition)}
            assert not gone & set(records), f"{topic}/{partition}: lost, and there"
            assert set(records) | gone == set(range(state.nexts[topic][partition])), f"{topic}/{partition} has holes"
    for name, committed in state.groups.items():
        for partition, offset in committed.items():
            assert offset <= state.nexts[name.split("/")[0]][partition], name
    for name, version in state.versions.items():
        topic, key = name.split("/")
        assert version == sum(value["who"] == key for value in state.values(topic)), name
    return state, found


def check_acked(state: State, topic: str, values: list[dict[str, Any]], ranges: dict[str, list[int]]) -> None:
    """What was acknowledged lies where it was said to lie. `ranges`: partition -> [start, stop), as JSON has it."""
    there = [
        state.records[topic][int(partition)].get(offset)
        for partition, (start, stop) in sorted(ranges.items(), key=lambda item: int(item[0]))
        for offset in range(start, stop)
    ]
    assert _multiset(there) == _multiset(values), f"{topic} {ranges}: acknowledged {values}, found {there}"


def _multiset(values: list[Any]) -> list[str]:
    return sorted(repr(value) for value in values)


def together(*jobs: Callable[[], None]) -> None:
    """Each in a thread of its own, until all are done; an exception in one is the caller's."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def json_ranges(ranges: dict[int, range]) -> dict[str, list[int]]:
    return {str(partition): [given.start, given.stop] for partition, given in ranges.items()}


@contextmanager
def opened(home: str | Path, *, boot: str | None = None) -> Iterator[EmbeddedLog]:
    """The log, as a process after the fault opens it; `boot`: after a restart of the machine."""
    if boot is None:
        with open_log(home, create=False) as log:
            yield log
        return
    with another_boot(boot), open_log(home, create=False) as log:
        yield log
