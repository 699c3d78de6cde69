"""A log that upkeep has something to do in, everywhere; and what must be true of it while the work is half done, and
when it is done. Owns the arithmetic of upkeep: which records have to stay, which have to go. Does not know how it was
hurt.

Of each kind of work there are two topics, one with `fsync` and one with `os`, with several partitions; their records
lie in many small data files. A record's text names its topic, key and number, so that files can be searched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.log.contract import Erased, Maintained, Problem, Record
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage.index import BATCHES, FILES
from headrace.log.open import open_log
from headrace.storage import disk
from tests.searching import files_with

SCHEMA = "who string, n int, pad string, at timestamp"
FILE_BYTES = 4_000
ROUNDS = 9
KEYS = ("a", "b", "c", "d")
ERASED = "erase-me"
SECRET = "SECRET"
"""In every text of the key that is erased, and in no other."""
DURABILITIES = {"": "fsync", "_os": "os"}
KEPT_BATCHES = 3
"""What retention leaves, about."""

Place = tuple[str, int, int]  # topic, partition, offset


def row(topic: str, who: str, n: int, at: datetime | None = None) -> dict[str, Any]:
    mark = SECRET if who == ERASED else "plain"
    return {"who": who, "n": n, "pad": f"{mark}:{topic}:{who}:{n}:" + "x" * (17 * n % 90), "at": at}


def tombstone(who: str) -> dict[str, Any]:
    return {"who": who, "n": None, "pad": None, "at": None}


def fill(home: Path) -> None:
    """Several processes' worth of small appends to everything."""
    with open_log(home) as log:
        for suffix, durability in DURABILITIES.items():
            settings: dict[str, Any] = {"durability": durability, "event_time": "at"}
            log.create_topic(f"many{suffix}", SCHEMA, partitions=3, **settings)
            log.create_topic(f"once{suffix}", SCHEMA, partitions=2, **settings)
            log.create_topic(f"short{suffix}", SCHEMA, partitions=2, **settings)
            settings["key"] = "who"
            log.create_topic(f"people{suffix}", SCHEMA, partitions=2, **settings)
            settings["cleanup"] = "compact"
            log.create_topic(f"latest{suffix}", SCHEMA, partitions=2, tombstone_grace="1 microsecond", **settings)
    for part in range(3):
        with open_log(home) as log:
            log._engine.files.file_bytes_max = FILE_BYTES
            for n in range(part * ROUNDS // 3, (part + 1) * ROUNDS // 3):
                for topic in log.topics():
                    _append(log, topic.name, n)
    with open_log(home) as log:
        for suffix in DURABILITIES:
            short = log.topic(f"short{suffix}")
            short.alter(retention_bytes=short.describe().bytes * KEPT_BATCHES // ROUNDS)


def _append(log: EmbeddedLog, topic: str, n: int) -> None:
    now = datetime.now(UTC)
    at = now - timedelta(seconds=ROUNDS - n)
    handle = log.topic(topic)
    if topic.startswith("people"):
        handle.append([row(topic, who, n, at) for who in ("a", ERASED, "b")])
        if n % 5 == 2:  # too far ahead: a dead letter
            handle.append([row(topic, ERASED, 100 + n, now + timedelta(days=2))])
            handle.append([row(topic, "a", 100 + n, now + timedelta(days=2))])
    elif topic.startswith("latest"):
        handle.append([row(topic, KEYS[n % len(KEYS)], n, at), row(topic, "often", n, at)])
        if n == 5:
            handle.append([tombstone("gone"), row(topic, "b", 50, at)])
            handle.append(row(topic, "gone", 51, at))
            handle.append(tombstone("gone"))
    elif not topic.startswith("once") or n == 1:  # once: nothing to join it with; it is moved out of a dead file
        handle.append([row(topic, f"r{i}", n, at) for i in range(4)])


# -- the work ----------------------------------------------------------------------------------------


def work(log: EmbeddedLog, do: Callable[[str, Callable[[], Any]], Any]) -> None:
    """All of it, step by step; `do` runs a step and knows what to make of its end. Once in batches as they came, once
    in sealed ones, on a disk that is nearly full."""
    for suffix in DURABILITIES:
        with nearly_full(bool(suffix)):
            do(f"people{suffix}", lambda s=suffix: log.topic(f"people{s}").erase(ERASED))  # type: ignore[misc]
            do("maintain", log.maintain)


@contextmanager
def nearly_full(is_so: bool) -> Iterator[None]:
    """The disk, as the log sees it: then it gives bytes back at once, where they lie."""
    before = disk.LOW_BYTES
    disk.LOW_BYTES = 1 << 62 if is_so else before
    try:
        yield
    finally:
        disk.LOW_BYTES = before


def clean(result: Maintained | Erased) -> bool:
    """Whether nothing is said to be left."""
    return not result.incomplete and not getattr(result, "problems", [])


# -- what must be true -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A log as it was before the work."""

    records: dict[Place, Record]
    nexts: dict[tuple[str, int], int]
    letters: list[tuple[int, str]]

    @classmethod
    def of(cls, log: EmbeddedLog) -> Kept:
        records = {(r.topic, r.partition, r.offset): r for topic in log.topics() for r in topic.records()}
        nexts = {(topic.name, p): o.next for topic in log.topics() for p, o in topic.offsets().items()}
        return cls(records, nexts, [(d.id, str(d.value)) for d in log.dead_letters()])

    def must_stay(self) -> set[Place]:
        """What no work may take, done or half done."""
        newest = {(p[0], r.key): p for p, r in sorted(self.records.items()) if p[0].startswith("latest")}
        stay = {p for p in newest.values() if self.records[p].value["pad"] is not None}
        stay |= {p for p in self.records if p[0].startswith(("many", "once"))}
        return stay | {p for p, r in self.records.items() if p[0].startswith("people") and r.key != ERASED}

    def check_half(self, log: EmbeddedLog, *, erased: tuple[str, ...] = (), lost: Sequence[Problem] = ()) -> Kept:
        """Old or new, of everything: sound, and what stays is unchanged. `erased`: topics whose erasure was done;
        `lost`: what a power loss took, if that is known already, and the log verified."""
        found = log.verify() if not lost else None
        assert found is None or (found.ok and not found.lost), found
        now = Kept.of(log)
        old = {place for place in now.records if place in self.records}
        assert {place: now.records[place] for place in old} == {place: self.records[place] for place in old}
        missing = self.must_stay() - old
        assert not missing, f"lost: {sorted(missing)}"
        assert all(now.nexts[place] >= end for place, end in self.nexts.items()), "offsets would be given again"
        for topic in log.topics():
            for partition, offsets in topic.offsets().items():
                held = [o for t, p, o in old if (t, p) == (topic.name, partition)]
                assert all(offset >= offsets.earliest for offset in held)
                if topic.name.startswith("short"):  # from the front, and nothing but the front
                    assert sorted(held) == list(range(offsets.earliest, self.nexts[topic.name, partition]))
        for topic_name in erased:
            assert not [r for r in now.records.values() if (r.topic, r.key) == (topic_name, ERASED)]
        assert {letter for letter in self.letters if SECRET not in letter[1]} <= set(now.letters), "a letter is gone"
        return now

    def _check_times(self, log: EmbeddedLog) -> None:
        """A time leads where it led before: to the first record that arrived then, or later."""
        for name in (f"many{suffix}" for suffix in DURABILITIES):
            arrived = [r.arrived_at for p, r in sorted(self.records.items()) if p[:2] == (name, 0)]
            for at in arrived[:: len(arrived) // 3]:
                assert log.topic(name).offsets(at)[0].next == arrived.index(at), f"{name} at {at}"

    def check_done(self, log: EmbeddedLog, *, lost: Sequence[Problem] = ()) -> None:
        """After the work: nothing that should have gone is left, in the log or in its files."""
        now = self.check_half(log, erased=tuple(f"people{suffix}" for suffix in DURABILITIES), lost=lost)
        old = {place for place in now.records if place in self.records and not place[0].startswith("short")}
        assert old == self.must_stay(), "something is left"
        assert not [letter for letter in now.letters if SECRET in letter[1]]
        engine = log._engine
        with engine.index.reading() as db:
            batches = BATCHES.select(db)
            files = FILES.select(db)
        self._check_times(log)
        for topic in log.topics():
            if topic.settings.retention_bytes is not None:  # and joined only as far as retention stays exact
                assert 0 < topic.describe().bytes <= topic.settings.retention_bytes
                continue
            for partition in topic.offsets():
                mine = [b for b in batches if (b.topic, b.partition) == (topic._id, partition)]
                assert len(mine) <= 2 + len(lost), f"{topic.name}/{partition} is not sealed: {len(mine)} batches"
        live = {batch.file for batch in batches}
        idle = [f.name for f in files if f.id not in live and f.state == "closed"]
        assert not idle, f"data files without a batch: {idle}"
        assert files_with(engine.home, SECRET) == []
        assert files_with(engine.home, ERASED) == []
