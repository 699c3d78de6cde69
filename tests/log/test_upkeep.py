"""Upkeep, case by case: what sealing, compaction, retention, erasure and reclaiming change, and what they never do.
The state machine (test_state_machine.py) does all of it in any order; here the arithmetic stands beside the data."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.read import reading
from headrace.log.embedded.storage import recovery, retention
from headrace.log.embedded.storage.index import BATCHES, BatchRow
from headrace.log.embedded.upkeep import compaction, erasing, reclaiming, sealing
from headrace.log.embedded.upkeep.swapping import Changed
from headrace.log.open import open_log
from headrace.testing.log_contract import Clock, eventually
from tests.searching import files_with

SECRET = "b7f3-secret-91"
"""A text that stands nowhere else."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "log") as log:
        yield log
        assert log.verify().problems == []


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """A log that need not be whole in the end."""
    with open_log(tmp_path / "damaged") as log:
        yield log


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.replace_machine_clocks(monkeypatch)
    return clock


def held(topic: Any) -> list[tuple[Any, ...]]:
    """All there is to know of every record."""
    return [(r.partition, r.offset, r.arrived_at, r.progress, r.key, r.value) for r in topic.records()]


def numbers(topic: Any, **how: Any) -> list[int]:
    return [record.value["n"] for record in topic.records(**how)]


def rows_of(log: EmbeddedLog, topic: Any, partition: int = 0) -> list[BatchRow]:
    with log._engine.index.reading() as db:
        return BATCHES.select(db, "WHERE topic = ? AND partition = ? ORDER BY base", topic._id, partition)


def sizes(log: EmbeddedLog, topic: Any) -> list[int]:
    return [row.records for row in rows_of(log, topic)]


def data_bytes(log: EmbeddedLog) -> tuple[int, int]:
    """Data files, and the bytes in them."""
    paths = list((log.home / "data").iterdir())
    return len(paths), sum(path.stat().st_size for path in paths)


def damage(log: EmbeddedLog, row: BatchRow) -> None:
    assert row.file is not None
    path = log._engine.files.path(row.file)
    raw = bytearray(path.read_bytes())
    raw[row.position + row.length - 1] ^= 1
    path.write_bytes(raw)


def cut(log: EmbeddedLog, row: BatchRow) -> None:
    """As after a power loss: the batch is gone, its offsets are not used again."""
    log._engine.committer.run(lambda tx: recovery._cut(tx, [row]), synced=True)


# -- sealing -----------------------------------------------------------------------------------------


def test_sealing_changes_nothing_but_the_number_of_batches(log: EmbeddedLog, clock: Clock) -> None:
    schema = "k string, n int, at timestamp"
    topic = log.create_topic("t", schema, key="k", event_time="at", partitions=2, extra="keep", durability="os")
    times = []

    def append(*rows: dict[str, Any], **how: Any) -> None:
        topic.append(list(rows), **how)
        times.append(clock.now)
        clock.advance(seconds=1)

    append({"k": "a", "n": 1, "at": clock.now}, {"k": "d", "n": 2, "at": None})
    append({"k": "a", "n": 2, "colour": "red"})
    topic.alter(schema="k string, n bigint, at timestamp, x string")  # widened, and a column more
    append({"k": "a", "n": 2**40, "x": "new", "at": clock.now - timedelta(hours=1), "size": 3})
    earlier, later = clock.now - timedelta(days=2), clock.now - timedelta(days=1)
    append({"k": "a", "n": 4}, {"k": "d", "n": 5}, {"k": "a", "n": 6}, progress=[later, None, earlier])
    append({"k": "d", "n": 7, "at": clock.now})
    append({"k": "a", "n": 8, "at": clock.now})
    at = [when + timedelta(microseconds=by) for when in times for by in (-1, 0, 1)]

    def seen(topic: Any) -> Any:
        columns = ["n", "x", "_extra", *hr.META]
        return (
            held(topic),
            [pa.Table.from_batches(topic.batches(p, columns=columns)).to_pylist() for p in (0, 1)],
            [topic.offsets(at=when) for when in at],
            [[r.value for r in topic.records(start=when)] for when in at],
            topic.offsets(),
            topic.describe().records,
        )

    before = seen(topic)
    assert [record[3] for record in before[0] if record[5]["n"] in (4, 5, 6)] == [None, later, earlier]  # as given
    assert [len(rows_of(log, topic, p)) for p in (0, 1)] == [3, 5]
    assert log.maintain().batches_sealed == 6
    assert [len(rows_of(log, topic, p)) for p in (0, 1)] == [1, 1]
    assert seen(topic) == before
    assert log.maintain().batches_sealed == 0  # once
    append({"k": "a", "n": 9})
    before = seen(topic)
    assert log.maintain().batches_sealed == 1  # what was sealed is sealed again
    assert seen(topic) == before


def test_a_swap_replaces_no_more_than_its_limits(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create_topic("t", "n int", durability="os")
    for first in range(0, 20, 2):
        topic.append([{"n": first}, {"n": first + 1}])
    monkeypatch.setattr(sealing, "SWAP_RECORDS", 5)
    before = held(topic)
    log.maintain()
    assert sizes(log, topic) == [4] * 5  # two and two fit into five, not three times two
    assert held(topic) == before


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_what_a_power_loss_took_stays_visible(log: EmbeddedLog, cleanup: str) -> None:
    topic = log.create_topic("t", "k string, n int", key="k", cleanup=cleanup, durability="os")
    for n in range(6):
        topic.append({"k": f"k{n % 5}", "n": n})
    cut(log, rows_of(log, topic)[2])
    topic.erase("k4")
    log.maintain()
    lost = [(problem.start, problem.stop) for problem in log.verify().lost]
    assert lost == [(2, 3)]  # not what compaction or erasure removed
    assert [(row.base, row.next) for row in rows_of(log, topic)] == [(0, 2), (2, 3), (3, 6)]
    assert numbers(topic) == ([0, 1, 3, 5] if cleanup == "delete" else [1, 3, 5])


def test_a_topic_altered_meanwhile_is_not_rewritten_by_its_old_schema(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string", key="k", durability="os")
    topic.append({"k": "a"})
    old = log._catalog.named("t")
    topic.alter(schema="k string, x string", extra="keep")
    topic.append({"k": "b", "x": "kept", "more": 1})
    topic.append({"k": "c", "x": "kept"})
    before = held(topic)
    with pytest.raises(Changed):
        sealing.seal(log._engine, log._catalog, old, 0)
    assert held(topic) == before
    log.maintain()
    assert sizes(log, topic) == [3]
    assert held(topic) == before


def test_lag_is_of_the_oldest_unread_record_sealed_or_not(log: EmbeddedLog, clock: Clock) -> None:
    topic = log.create_topic("t", "k string, n int", key="k", durability="os")
    for n in range(4):
        topic.append({"k": f"k{n}", "n": n})
        clock.advance(hours=1)
    with topic.group("g").join() as member:
        member.commit(member.poll("0 seconds")[0])
    before = topic.group("g").lag()
    assert before[0].time == timedelta(hours=3)  # the second came three hours ago
    log.maintain()
    assert topic.group("g").lag() == before
    topic.erase("k1")
    assert topic.group("g").lag()[0].time == timedelta(hours=2)
    for key in ("k2", "k3"):
        topic.erase(key)
    assert topic.group("g").lag()[0].time == timedelta(0)  # nothing waits


def test_upkeep_in_the_background_seals_by_itself(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int", durability="os")
    for n in range(1001):
        topic.append({"n": n})
    eventually(lambda: len(rows_of(log, topic)) < 500, seconds=60)
    assert numbers(topic) == list(range(1001))


# -- compaction --------------------------------------------------------------------------------------

KEYS: dict[str, tuple[Any, str, list[Any]]] = {
    "text": ("k", "k string", ["a", "b", "größe", "", None, "a" * 300, *map(str, range(20))]),
    "whole numbers": ("k", "k bigint", [0, -1, 2**62, None, *range(5, 25)]),
    "several": (("k", "l"), "k string, l int", [("a", 1), ("a", None), (None, 1), (None, None), ("", 1), ("a1", 1)]),
    "dates": ("k", "k date", [date(2026, 1, day) for day in range(1, 9)]),
    "bytes": ("k", "k binary", [b"", b"\0", b"\0\0", None, b"a"]),
    "booleans": ("k", "k boolean", [True, False, None]),
}


@pytest.mark.parametrize("passes", ["one pass", "many passes"])
@pytest.mark.parametrize("kind", KEYS)
def test_compaction_keeps_the_newest_of_every_key(
    log: EmbeddedLog, kind: str, passes: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    key, columns, keys = KEYS[kind]
    if passes == "many passes":
        monkeypatch.setattr(compaction, "PASS_KEYS", 2)
        monkeypatch.setattr(compaction, "MERGE_RECORDS", 5)
        monkeypatch.setattr(compaction, "SWAP_RECORDS", 4)
    draw = random.Random(seed)
    names = (key,) if isinstance(key, str) else key
    topic = log.create_topic(
        "t", columns + ", n int", key=key, partitions=2, cleanup="compact", durability="os", versioned=True
    )
    chosen = [draw.choice(keys) for _ in range(300)]
    rows = [
        {**dict(zip(names, k if isinstance(k, tuple) else (k,), strict=True)), "n": n} for n, k in enumerate(chosen)
    ]
    at = 0
    while at < len(rows):
        size = draw.choice([1, 1, 7, 40])
        topic.append(rows[at : at + size])
        at += size
    before = held(topic)
    newest = {record[4]: record for record in before}  # in order of arrival, so the last of a key stays
    done = log.maintain()
    assert held(topic) == sorted(newest.values(), key=lambda r: (r[2], r[0], r[1]))
    assert done.records_compacted == len(before) - len(newest)
    for k in set(chosen) - {None, "", b""}:  # these are one key, in some topics
        assert topic.version(k) == chosen.count(k)
    assert log.verify().lost == []


def test_a_new_reader_finds_the_full_latest_state(log: EmbeddedLog, clock: Clock) -> None:
    topic = log.create_topic("t", "k string, n int", key="k", partitions=2, cleanup="compact", durability="os")

    def state() -> dict[str, int]:
        out: dict[str, Any] = {}
        with topic.group(f"g{clock.seconds()}").join() as member:
            while found := member.poll("0 seconds", max_records=7):
                out |= {record.key: record.value["n"] for record in found}
            member.commit()
        clock.advance(seconds=1)
        return {key: n for key, n in out.items() if n is not None}

    for n in range(100):
        topic.append({"k": f"k{n % 9}", "n": n})
    topic.append({"k": "k3", "n": None})
    expected = {f"k{n % 9}": n for n in range(100) if n % 9 != 3}
    assert state() == expected
    log.maintain()
    assert state() == expected
    clock.advance(days=2)
    log.maintain()  # the tombstone goes, too
    assert len(held(topic)) == 8
    assert state() == expected


def test_a_tombstone_stays_for_its_grace_and_until_groups_have_seen_it(log: EmbeddedLog, clock: Clock) -> None:
    topic = log.create_topic(
        "t", "k string, n int", key="k", cleanup="compact", tombstone_grace="1 hour", durability="os"
    )
    topic.append([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
    topic.append({"k": "a", "n": None})
    group = topic.group("g")
    with group.join() as member:
        member.commit(member.poll("0 seconds")[1])  # up to offset 1: the tombstone is unread
    clock.advance(hours=1)
    log.maintain()
    assert numbers(topic) == [2, None]  # one hour is not more than one hour
    clock.advance(seconds=1)
    log.maintain()
    assert numbers(topic) == [2, None]  # but g has not seen it
    with group.join() as member:
        assert [record.value for record in member.poll("0 seconds")] == [{"k": "a", "n": None}]
        member.commit()
    log.maintain()
    assert numbers(topic) == [2]
    assert topic.offsets()[0].next == 3
    group.delete()
    topic.append({"k": "b", "n": None})
    log.maintain()
    assert numbers(topic) == [None]
    clock.advance(hours=2)
    log.maintain()  # without groups, its grace decides
    assert numbers(topic) == []
    topic.append({"k": "b", "n": 9})
    assert [(r.offset, r.value["n"]) for r in topic.records()] == [(4, 9)]


# -- retention ---------------------------------------------------------------------------------------


def test_room_is_made_however_many_batches_it_takes(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_BATCHES", 2)
    topic = log.create_topic("t", "s string", unread="keep", durability="os")
    for n in range(10):
        topic.append({"s": str(n)})
    topic.alter(retention_bytes=topic.describe().bytes)
    with topic.group("g").join() as member:
        member.poll("0 seconds")
        member.commit()
    topic.append({"s": "x" * (topic.describe().bytes * 7 // 10)})  # takes the place of more than two
    assert topic.offsets()[0].earliest > 2
    assert topic.describe().bytes <= topic.settings.retention_bytes  # type: ignore[operator]


@pytest.mark.parametrize("step", [2, 2_000])
def test_an_append_makes_room_for_itself_and_leaves_age_to_upkeep(
    log: EmbeddedLog, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """However many batches go in one step."""
    monkeypatch.setattr(retention, "STEP_BATCHES", step)
    topic = log.create_topic("t", "n int", retention="3 hours", durability="os")
    for n in range(10):
        topic.append({"n": n})
    topic.alter(retention_bytes=topic.describe().bytes)
    clock.advance(hours=4)
    topic.append({"n": 10})  # as large as the others: one has to go, though all are too old
    assert topic.offsets()[0].earliest == 1
    log.maintain()
    assert [record.value["n"] for record in topic.records()] == [10]


def test_sealing_holds_retention_by_age_up_by_a_tenth_at_most(log: EmbeddedLog, clock: Clock) -> None:
    topic = log.create_topic("t", "k string, n int", key="k", retention="20 hours", durability="os")
    for cleanup, n in zip(["delete", "compact"] * 40, range(80), strict=True):
        topic.alter(cleanup=cleanup)
        topic.append({"k": str(n // 3), "n": n})
        clock.advance(minutes=20)
        log.maintain()
    oldest = next(iter(topic.records()))
    assert clock.now - oldest.arrived_at <= timedelta(hours=22)
    assert len(rows_of(log, topic)) <= 12  # sealed all the same: 60 batches came meanwhile


def test_sealing_holds_retention_by_bytes_up_by_a_tenth_at_most(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "s string", durability="os", retention_bytes=20_000, compression="none")
    held_bytes = []
    for _ in range(60):
        for _ in range(5):
            topic.append({"s": "x" * 100})
        log.maintain()
        held_bytes.append(topic.describe().bytes)
    assert max(held_bytes) <= 20_000
    assert min(held_bytes[30:]) >= 15_000  # a tenth goes at once, and the latest are not sealed when room is made
    assert len(rows_of(log, topic)) <= 20


def test_retention_in_a_transaction(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "n int", durability="os")
    topic.append({"n": 0})
    each = topic.describe().bytes
    topic.alter(retention_bytes=2 * each)
    with log.transaction() as tx:
        for n in (1, 2, 3):
            tx.append("t", [{"n": n}])
    assert numbers(topic) == [2, 3]
    topic.alter(unread="keep")
    topic.group("g").rewind("earliest")
    with pytest.raises(hr.TopicFull) as full, log.transaction() as tx:
        tx.append("t", [{"n": 4}])
    assert (full.value.held_bytes, full.value.limit_bytes) == (2 * each, 2 * each)
    assert numbers(topic) == [2, 3]


def test_retention_that_was_altered_meanwhile_deletes_nothing(log: EmbeddedLog, clock: Clock) -> None:
    topic = log.create_topic("t", "n int", retention="1 hour", durability="os")
    topic.append({"n": 1})
    old = log._catalog.named("t")
    topic.alter(retention=None)
    clock.advance(hours=2)
    assert retention.retain(log._engine, old).records == 0
    assert numbers(topic) == [1]


def produced(log: EmbeddedLog, clock: Clock, **settings: Any) -> Any:
    """One record a second, for a minute: record n came n seconds after the first. 61 of them."""
    topic = log.create_topic("t", "n int", durability="os", **settings)
    for n in range(61):
        if n:
            clock.advance(seconds=1)
        topic.append({"n": n})
    return topic


def committed_at(topic: Any, clock: Clock, *commits: tuple[int, int]) -> None:
    """A group that had committed so much after so many seconds."""
    end = clock.now
    with topic.group("g").join() as member:
        records = member.poll("0 seconds", max_records=1000)
        for second, offset in commits:
            clock.now = end - timedelta(seconds=60 - second)
            member.commit(records[offset - 1])
    clock.now = end


@pytest.mark.parametrize(
    ("commits", "left"),
    [
        ([(20, 20)], 100 - 40),  # stands at record 20, which came 40 seconds ago
        ([(20, 10), (60, 30)], (100 - 30) / (1 - 0.5 * 30 / 31)),  # half a record a second; 31 unread, for 30 seconds
        ([(20, 10), (60, 60)], None),  # 1.25 a second: it keeps up, whatever came this moment
        ([(20, 10), (60, 61)], None),  # has read all
    ],
)
def test_time_to_loss_by_age(
    log: EmbeddedLog, clock: Clock, commits: list[tuple[int, int]], left: float | None
) -> None:
    topic = produced(log, clock, retention="100 seconds")
    committed_at(topic, clock, *commits)
    found = topic.group("g").time_to_loss()
    assert (found and found.total_seconds()) == (left and pytest.approx(left))
    topic.alter(unread="keep")
    assert topic.group("g").time_to_loss() is None


def test_time_to_loss_by_bytes(log: EmbeddedLog, clock: Clock) -> None:
    topic = produced(log, clock)
    committed_at(topic, clock, (20, 20))
    assert topic.group("g").time_to_loss() is None  # nothing is ever deleted
    topic.alter(retention_bytes=100 * topic.describe().bytes // 61)
    found = topic.group("g").time_to_loss()
    assert found is not None
    # room for 100 records, 41 of them unread; 61 come in a minute
    assert found.total_seconds() == pytest.approx((100 - 41) / (61 / 60), rel=0.01)
    topic.alter(retention_bytes=30 * topic.describe().bytes // 61)
    done = log.maintain()
    assert [(one.consumer, one.start) for one in done.overtaken] == [("g", 20)]
    assert topic.group("g").time_to_loss() == timedelta(0)
    assert [(one.kind, one.consumer) for one in done.at_risk] == [("group", "g")]


def test_a_group_that_was_set_forward_is_no_faster_for_it(log: EmbeddedLog, clock: Clock) -> None:
    topic = produced(log, clock, retention="100 seconds")
    committed_at(topic, clock, (20, 10))
    topic.group("g").rewind({0: 50})  # it stands, at a record that came ten seconds ago
    assert topic.group("g").time_to_loss() == timedelta(seconds=90)


# -- erasure -----------------------------------------------------------------------------------------


def appended(log: EmbeddedLog) -> None:
    log.topic("t").append({"k": "me", "v": SECRET})


def appended_with_others(log: EmbeddedLog) -> None:
    log.topic("t").append([{"k": "you", "v": "1"}, {"k": "me", "v": SECRET}, {"k": "you", "v": "2"}])


def nested(log: EmbeddedLog) -> None:
    log.topic("t").append({"k": "me", "tags": ["a", SECRET], "inner": {"name": SECRET}, "doc": [("x", SECRET)]})


def dictionaries(log: EmbeddedLog) -> None:
    values = pa.array(["1", SECRET, "2"]).dictionary_encode()
    log.topic("t").append(pa.table({"k": ["you", "me", "you"], "v": values}))


def kept_beside(log: EmbeddedLog) -> None:
    log.topic("t").append({"k": "me", "colour": SECRET})


def as_the_key(log: EmbeddedLog) -> None:
    log.topic("t").append({"k": SECRET, "v": "1"})


def sealed(log: EmbeddedLog) -> None:
    appended(log)
    appended_with_others(log)
    assert log.maintain().batches_sealed


def compacted_away(log: EmbeddedLog) -> None:
    """No record of the key is left, but its bytes are."""
    appended(log)
    log.topic("t").append([{"k": "me"}, {"k": "you", "v": "1"}])
    log.topic("t").alter(cleanup="compact", tombstone_grace="1 microsecond")
    assert log.maintain().records_compacted == 2


def deleted_by_retention(log: EmbeddedLog) -> None:
    appended(log)
    log.topic("t").append({"k": "you", "v": "1"})
    log.topic("t").alter(retention_bytes=1)
    assert log.maintain().records_deleted == 3


def quarantined(log: EmbeddedLog) -> None:
    assert log.topic("t").append({"k": "me", "v": SECRET, "at": "2999-01-01T00:00:00Z"}).quarantined == 1


def dropped(log: EmbeddedLog) -> None:
    quarantined(log)
    for letter in log.dead_letters():
        letter.drop()


def buried(log: EmbeddedLog) -> None:
    raw = b'{"k": "me", "v": [' + SECRET.encode()
    log.topic("t").bury([{"reason": "poison", "error": "no JSON", "source": "f:1", "raw": raw}])


def in_a_deleted_topic(log: EmbeddedLog) -> None:
    log.create_topic("u", "v string").append({"v": SECRET})
    log.delete_topic("u")


@pytest.mark.parametrize(
    "put",
    [
        *(appended, appended_with_others, nested, dictionaries, kept_beside, as_the_key, sealed, compacted_away),
        *(deleted_by_retention, quarantined, dropped, buried, in_a_deleted_topic),
    ],
)
def test_after_an_erasure_no_byte_is_left(log: EmbeddedLog, put: Callable[[EmbeddedLog], None]) -> None:
    schema = "k string, v string, tags array<string>, inner struct<name: string>, doc map<string, string>, at timestamp"
    log.create_topic("t", schema, key="k", event_time="at", partitions=2, extra="keep", versioned=True)
    log.topic("t").append({"k": "them", "v": "stays"})
    put(log)
    before = {key: log.topic("t").version(key) for key in ("me", "you", SECRET)}
    others = [record for record in held(log.topic("t")) if record[4] not in ("me", SECRET)]
    assert files_with(log.home, SECRET) != []
    done = log.topic("t").erase(SECRET if put is as_the_key else "me")
    assert done.incomplete == []
    assert files_with(log.home, SECRET) == []
    assert held(log.topic("t")) == others
    assert {key: log.topic("t").version(key) for key in before} == before
    assert list(log.dead_letters()) == []
    assert log.verify().lost == []


def test_erasure_looks_where_the_key_once_went(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string, v string", key="k", partitions=2)
    keys = [f"k{n}" for n in range(8)]
    topic.append([{"k": key, "v": SECRET} for key in keys])
    topic.alter(partitions=5)
    topic.append([{"k": key, "v": SECRET} for key in keys])
    places = {key: {record.partition for record in topic.records(key=key)} for key in keys}
    moved = next(key for key in keys if len(places[key]) == 2)
    before = held(topic)
    done = topic.erase(moved)
    assert (done.records, done.incomplete) == (2, [])
    assert held(topic) == [record for record in before if record[4] != moved]
    for key in keys:
        topic.erase(key)
    assert files_with(log.home, SECRET) == []
    assert sum(offsets.next for offsets in topic.offsets().values()) == 16  # offsets stay


def test_an_erasure_sees_partitions_added_while_it_waited(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string, v string", key="k")
    topic.append({"k": "me", "v": SECRET})
    old = log._catalog.named("t")
    topic.alter(partitions=16)
    (partition,) = topic.append({"k": "me", "v": SECRET}).ranges
    assert partition != 0
    assert erasing.erase(log._engine, log._catalog, old, ["me"], None).records == 2
    assert files_with(log.home, SECRET) == []


def test_erasure_beside_retention_and_alteration(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done to the topic between a batch's reading and its swap, all of the key goes."""
    topic = log.create_topic("t", "k string, v string", key="k", durability="os")
    for n in range(4):
        topic.append([{"k": "me", "v": SECRET}, {"k": "you", "v": str(n)}])
    meanwhile: Any = iter(
        [
            lambda: topic.alter(retention_bytes=topic.describe().bytes * 3 // 4),
            lambda: topic.append({"k": "you", "v": "4"}),  # takes the place of the oldest two
            lambda: topic.alter(schema="k string, v string, x string"),
        ]
    )
    submit = erasing.swapping.submit

    def held_up(*args: Any) -> None:
        next(meanwhile, lambda: None)()
        submit(*args)

    monkeypatch.setattr(erasing.swapping, "submit", held_up)
    done = topic.erase("me")
    assert next(meanwhile, None) is None
    assert done.incomplete == []
    assert [record.value["v"] for record in topic.records()] == ["2", "3", "4"]
    assert files_with(log.home, SECRET) == []


def test_erasure_of_a_composite_key(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "a string, b int, v string", key=("a", "b"), partitions=3)
    topic.append([{"a": "x", "b": b, "v": f"{SECRET}{b}"} for b in (1, 2, None)])
    raw = [f"x;{b};{SECRET}{b};".encode() for b in (1, 3)]
    topic.bury([{"reason": "poison", "error": "", "source": "f", "raw": one} for one in raw])
    assert (topic.erase(("x", 1)).records, topic.erase(("x", None)).records) == (1, 1)
    assert [record.key for record in topic.records()] == [("x", 2)]
    assert [
        letter.value for letter in log.dead_letters()
    ] == []  # the second holds x, and of (x, null) no more is known
    assert files_with(log.home, SECRET + "1") == []
    assert files_with(log.home, SECRET + "2") != []


def test_letters_that_were_no_rows_stay_when_nobodys_key_is_erased(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string", key="k")
    topic.append([{"k": None}, {"k": ""}, {"k": "a"}])
    topic.bury([{"reason": "poison", "error": "", "source": "f", "raw": b"nonsense"}])
    assert topic.erase(None).records == 1  # a null key, not an empty one
    assert [letter.value for letter in log.dead_letters()] == [b"nonsense"]


def test_what_hinders_a_checkpoint_is_reported_and_done_later(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", "k string, v string", key="k")
    topic.append({"k": "me", "v": SECRET})
    with log._engine.index.snapshot() as db:
        db.execute("SELECT * FROM batches").fetchall()
        assert ["write-ahead log" in reason for reason in topic.erase("me").incomplete] == [True]
        assert ["write-ahead log" in reason for reason in log.maintain().incomplete] == [True]
    assert log.maintain().incomplete == []
    assert files_with(log.home, SECRET) == []
    assert not log.usage().wipe_due


def test_the_file_of_another_process_is_wiped_while_it_appends(log: EmbeddedLog) -> None:
    """As far as it is committed; a refused append has left nothing behind."""
    topic = log.create_topic("t", "k string, v string", key="k", versioned=True)
    program = f"""
import sys, headrace as hr
with hr.open_log({str(log.home)!r}) as log:
    topic = log.topic("t")
    topic.append({{"k": "me", "v": {SECRET!r}}})
    try:
        topic.append({{"k": "me", "v": {SECRET!r}}}, expect={{"me": 7}})
    except hr.VersionConflict:
        print("refused", flush=True)
    sys.stdin.readline()
    topic.append({{"k": "you", "v": "1"}})
    print("appended", flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "refused\n"
        done = topic.erase("me")
        assert (done.records, done.incomplete) == (1, [])
        assert files_with(log.home, SECRET) == []
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == "appended\n"
        assert log.maintain().incomplete == []
        assert files_with(log.home, SECRET) == []
        print(file=child.stdin, flush=True)
    assert [record.value["v"] for record in topic.records()] == ["1"]


# -- readers beside upkeep ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sealed", "moved", "erased", "compacted"])
def test_a_reader_looks_again_for_what_is_no_longer_where_it_was(
    log: EmbeddedLog, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the place of every batch, and has read one; then none of them is there."""
    monkeypatch.setattr(reading, "READ_BYTES", 1)  # small ones are not read ahead
    log._engine.files.file_bytes_max = 2000
    cleanup = "compact" if how == "compacted" else "delete"
    topic = log.create_topic("t", "k string, n int", key="k", cleanup=cleanup, durability="os")
    other = log.create_topic("other", "s string", durability="os")
    for n in range(20):
        topic.append({"k": f"k{n}", "n": n})
        other.append({"s": "x" * 1000})  # so that the batches do not lie behind each other
    reader = topic.records()
    assert next(reader).value["n"] == 0
    expected = list(range(1, 20))
    log.delete_topic("other")
    if how == "erased":
        topic.erase("k7")
        expected.remove(7)
    elif how == "compacted":
        topic.append([{"k": f"k{n}", "n": n + 100} for n in range(1, 20, 2)])
        expected = list(range(2, 20, 2))
    if how == "moved":
        assert reclaiming.reclaim(log._engine, log._catalog).files > 0
    elif how != "erased":
        assert log.maintain().files_removed > 0
    log._engine.files._open.clear()
    assert [record.value["n"] for record in reader] == expected


def test_a_slow_reader_beside_everything(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two records that it reads, upkeep rewrites, moves, wipes or unlinks what lies before it."""
    monkeypatch.setattr(reading, "INDEX_ROWS", 4)
    monkeypatch.setattr(reading, "READ_BYTES", 1)
    log._engine.files.file_bytes_max = 2000
    topic = log.create_topic("t", "k string, n int", key="k", cleanup="compact", durability="os")
    other = log.create_topic("other", "n int", durability="os")
    for n in range(40):
        topic.append({"k": f"k{n}", "n": n})
        other.append({"n": n})
    readers = [(record.value["n"] for record in topic.records())]
    readers += [(n for batch in topic.batches(0) for n in batch.column("n").to_pylist())]
    got: list[list[int]] = [[next(reader) for _ in range(3)] for reader in readers]

    def forget_descriptors() -> None:
        log._engine.files._open.clear()

    steps = itertools.cycle(
        [
            lambda: topic.append([{"k": f"k{n}", "n": n} for n in range(100, 103)]),
            lambda: sealing.seal(log._engine, log._catalog, log._catalog.named("t"), 0),
            log.maintain,
            forget_descriptors,
            lambda: topic.erase("k101"),
            lambda: log.delete_topic("other") if len(log.topics()) == 2 else None,
        ]
    )
    for _ in range(37):
        next(steps)()
        for reader, seen in zip(readers, got, strict=True):
            seen += itertools.islice(reader, 1)
    assert [seen for seen in got if seen[:40] != list(range(40))] == []
    assert numbers(topic)[:40] == list(range(40))


def test_readers_in_threads_beside_everything(log: EmbeddedLog) -> None:
    """Each sees the records of "stays" once and in order, however often they are rewritten meanwhile."""
    log._engine.files.file_bytes_max = 20_000
    topic = log.create_topic("t", "k string, n int", key="k", partitions=2, cleanup="compact", durability="os")
    for n in range(300):
        topic.append({"k": f"stays {n}", "n": n})
    stop = threading.Event()
    wrong: list[Any] = []
    rounds = [0, 0, 0]

    def watch(number: int) -> None:
        read: list[Callable[[], Iterator[Any]]] = [
            lambda: ((r.partition, r.offset, r.key, r.value["n"]) for r in topic.records()),
            lambda: (
                (row["_partition"], row["_offset"], row["k"], row["n"])
                for batch in topic.batches(columns=["k", "n", "_offset", "_partition"])
                for row in batch.to_pylist()
            ),
        ]
        while not stop.is_set():
            try:
                seen = [found for found in read[number % 2]() if found[2].startswith("stays")]
            except hr.HeadraceError as error:
                wrong.append(error)
                return
            for partition in (0, 1):
                offsets = [offset for p, offset, _, _ in seen if p == partition]
                if offsets != sorted(set(offsets)):
                    wrong.append(offsets)
            if sorted(n for _, _, _, n in seen) != list(range(300)):
                wrong.append(len(seen))
            rounds[number] += 1

    threads = [threading.Thread(target=watch, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    turn = 0
    while min(rounds) < 12 and not wrong:
        turn += 1
        topic.append([{"k": f"goes {turn % 3}", "n": turn}, {"k": "erased", "n": turn}])
        log.maintain()
        topic.erase("erased")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_reader_overtaken_by_retention_is_told(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "INDEX_ROWS", 2)
    topic = log.create_topic("t", "n int", durability="os")
    for n in range(8):
        topic.append({"n": n})
    reader = topic.records()
    assert [next(reader).offset for _ in range(2)] == [0, 1]
    topic.alter(retention_bytes=topic.describe().bytes // 4)
    log.maintain()
    with pytest.raises(hr.OffsetOutOfRange) as error:
        list(reader)
    assert (error.value.offset, error.value.earliest) == (2, 6)
    assert "lost: 2..6" in str(error.value)


# -- disk space --------------------------------------------------------------------------------------


def test_disk_space_is_freed(log: EmbeddedLog) -> None:
    """Files of two topics: what is left in a file that is mostly dead moves, and the file goes."""
    log._engine.files.file_bytes_max = 20_000
    stays = log.create_topic("stays", "n int, s string", durability="os")
    goes = log.create_topic("goes", "s string", durability="os")
    for n in range(40):
        goes.append({"s": "x" * 3000})
        stays.append({"n": n, "s": "y" * 300})
    before, records = data_bytes(log), held(stays)
    log.delete_topic("goes")
    done = log.maintain()
    files, size = data_bytes(log)
    assert files < before[0] and size < before[1] // 3
    assert (done.files_removed, done.problems) == (before[0] - files, [])
    assert done.bytes_freed > before[1] // 2
    assert held(stays) == records


def test_damage_in_one_place_does_not_stop_the_rest(damaged: EmbeddedLog) -> None:
    log = damaged
    topic = log.create_topic("t", "k string, n int", key="k", partitions=2, cleanup="compact", durability="os")
    other = log.create_topic("u", "n int", durability="os")
    for n in range(20):
        topic.append({"k": f"k{n % 7}", "n": n})
        other.append({"n": n})
    damage(log, rows_of(log, topic)[1])
    done = log.maintain()
    assert [problem.split(":")[0] for problem in done.problems] == ["t/0"]
    assert "checksum" in done.problems[0]
    newest = {f"k{n % 7}": n for n in range(20)}
    assert {r.key: r.value["n"] for r in topic.records(partition=1)}.items() <= newest.items()
    assert (len(rows_of(log, topic, 1)), sizes(log, other)) == (1, [20])
    assert [(p.partition, p.start) for p in log.verify().problems] == [(0, rows_of(log, topic)[1].base)]
    there = next(record.key for record in topic.records({0: 2}, partition=0))
    assert [reason.startswith("offsets 1..2 of t/0") for reason in topic.erase(there).incomplete] == [True]


def test_a_damaged_batch_that_should_move_stays_and_the_others_move(damaged: EmbeddedLog) -> None:
    """Three files, each mostly dead; the batch that is left in the first is damaged."""
    log = damaged
    log._engine.files.file_bytes_max = 3000
    topic, filler = log.create_topic("t", "n int", durability="os"), log.create_topic("f", "s string", durability="os")
    for n in range(3):
        topic.append({"n": n})
        filler.append({"s": "x" * 3000})
    filler.append({"s": ""})  # in a file that is not closed
    damage(log, rows_of(log, topic)[0])
    log.delete_topic("f")
    done = log.maintain()
    assert {problem.split(":")[0] for problem in done.problems} == {"t/0"}
    assert done.files_removed == 2
    assert numbers(topic, start={0: 1}) == [1, 2]
