"""Queues of the embedded log beyond the contract: restarts of the machine, damage, contention, what is in the index;
and a model that must agree, whatever is done in whatever order."""

from __future__ import annotations

import copy
import itertools
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.errors import DamagedData, LeaseExpired
from headrace.log.embedded.consume import burying, queue_core, receiving, windows
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import deliveries
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.log.open import open_log
from tests.faults.checking import another_boot

SCHEMA = "k string, n int"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(home: Path) -> Iterator[EmbeddedLog]:
    with open_log(home) as log:
        yield log
        assert log.verify().problems == []


@pytest.fixture
def topic(log: EmbeddedLog) -> EmbeddedTopic:
    return log.create_topic("t", SCHEMA, key="k", durability="os")


def rows(count: int, keys: int = 5) -> list[dict[str, Any]]:
    return [{"k": f"k{i % keys}", "n": i} for i in range(count)]


def numbers(messages: list[Any]) -> list[int]:
    return [message.value["n"] for message in messages]


def test_what_ends_or_is_passed_over_is_no_contention(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages are to be buried or are gone, a receive goes on until it finds one."""
    clock = [queue_core.now()]
    monkeypatch.setattr(queue_core, "now", lambda: clock[0])
    monkeypatch.setattr(receiving, "ATTEMPTS", 3)
    monkeypatch.setattr(burying, "BURY_MESSAGES", 2)
    topic = log.create_topic("c", SCHEMA, key="k", durability="os", cleanup="compact")
    topic.append([{"k": "same", "n": n} for n in range(40)])
    once, often = topic.queue("once", max_deliveries=1), topic.queue("often")
    once.receive(30)
    clock[0] += 31_000_000
    assert numbers(once.receive(1)) == [30] and once.stats().dead == 2  # the others with the next ones
    once.receive(9)
    clock[0] += 31_000_000
    assert once.receive(1) == [] and once.stats().dead == 40
    often.receive(20)
    monkeypatch.setattr(windows, "SPAN", 5)
    log.maintain()
    clock[0] += 31_000_000
    assert numbers(often.receive(1)) == [39]  # those before it were compacted: first delivered ones, then fresh ones
    assert numbers(topic.queue("new").receive(1)) == [39]


def test_a_peek_looks_no_further_than_a_receive(topic: EmbeddedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "WAITING_MAX", 5)
    topic.append([*rows(10, keys=1), {"k": "other", "n": 10}])
    assert [record.value["n"] for record in topic.queue("q", order="key").peek(2)] == [0]


def test_large_records_are_not_read_far_ahead(topic: EmbeddedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "BYTES", 500_000)
    for n in range(6):
        topic.append({"k": "x" * 600_000, "n": n})
    queue = topic.queue("q")
    seen: list[int] = []
    while found := queue.receive(10):
        assert len(found) == 1
        seen += numbers(found)
    assert seen == list(range(6))


@pytest.mark.parametrize("order", ["none", "key"])
def test_after_a_restart_of_the_machine_everything_is_due(home: Path, order: str) -> None:
    with open_log(home) as log:
        queue = log.create_topic("t", SCHEMA, key="k").queue("q", order=order, visibility="1 day")
        log.topic("t").append(rows(10))
        first = numbers(queue.receive(10))
    with another_boot(), open_log(home) as log:
        queue = log.topic("t").queue("q")
        assert queue.stats().in_flight == 0
        assert len(queue.peek(20)) == len(first)
        again = queue.receive(20, wait="1 minute")
        assert numbers(again) == first
        assert {message.deliveries for message in again} == {2}
        queue.ack(again)
        assert log.verify().ok


def test_no_keys_values_or_errors_in_the_index(log: EmbeddedLog, home: Path, topic: EmbeddedTopic) -> None:
    topic.append([{"k": "secret-key", "n": 4711}, {"k": "secret-key", "n": 4712}])
    queue = topic.queue("q", order="key", max_deliveries=1)
    queue.receive()[0].nack("secret-error")
    queue.receive()
    db = sqlite3.connect(f"file:{home}/log.db?mode=ro", uri=True)
    assert "secret" not in "\n".join(db.iterdump())
    db.close()
    assert log.verify().ok


def test_only_so_many_wait_for_their_keys(
    monkeypatch: pytest.MonkeyPatch, log: EmbeddedLog, topic: EmbeddedTopic
) -> None:
    """Then the scan stops, and goes on as they are done: nothing is lost, and order holds."""
    monkeypatch.setattr(deliveries, "WAITING_MAX", 10)
    topic.append([{"k": "hot", "n": n} for n in range(50)] + [{"k": "cold", "n": 50}])
    queue = topic.queue("q", order="key")
    (first,) = queue.receive(9)
    assert (queue.stats().waiting, queue.stats().ready) == (10, 40)
    assert queue.receive(9, wait="10 milliseconds") == []
    seen = [first]
    first.ack()
    while found := queue.receive(9):
        seen += found
        queue.ack(found)
    assert [n for n in numbers(seen) if n < 50] == list(range(50))
    assert len(seen) == 51
    assert log.verify().ok


def test_a_consumer_that_is_overtaken_reads_more_at_a_time(
    monkeypatch: pytest.MonkeyPatch, log: EmbeddedLog, topic: EmbeddedTopic
) -> None:
    """Each time it has read its window, the others are beyond it: in the end it gets ahead of them."""
    topic.append(rows(50_000))
    queue = topic.queue("q")
    real, sizes = receiving.windows.load, []

    def overtaken(*args: Any, **how: Any) -> Any:
        window = real(*args, **how)
        sizes.append(args[5])
        if len(sizes) <= 4:
            queue.rewind({0: window.stop if window.stop < 50_000 else 100 * len(sizes)})
            return real(*args[:4], 0, 1, **how)
        return window

    monkeypatch.setattr(receiving.windows, "load", overtaken)
    monkeypatch.setattr(receiving.windows.Window, "fits", lambda window, cursor, _: window.start == cursor)
    assert queue.receive(10)
    assert sizes == [1_000, 2_000, 4_000, 8_000, 16_000]
    assert log.verify().ok


def test_many_threads_on_one_handle(log: EmbeddedLog) -> None:
    topic = log.create_topic("many", SCHEMA, key="k", partitions=3, durability="os")
    topic.append(rows(6_000))
    queue = topic.queue("q")
    seen: list[int] = []

    def work() -> None:
        while found := queue.receive(13):
            seen.extend(numbers(found))
            queue.ack(found)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(6_000))


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_damaged_message_becomes_a_letter_that_says_so(home: Path, order: str) -> None:
    """New messages behind damage wait for somebody to decide; one that was delivered before it was damaged dies."""
    with open_log(home) as log:
        topic = log.create_topic("t", SCHEMA, key="k", partitions=1)
        queue = topic.queue("q", order=order, max_deliveries=2, visibility="1 hour")
        topic.append(rows(3, keys=3))
        for message in queue.receive(3)[1:]:
            message.ack()
        topic.append({"k": "other", "n": 3})
        flip(log, topic, 0)
        queue.ack(queue.receive(9))  # the new one is whole
    with another_boot(), open_log(home) as log:
        queue = log.topic("t").queue("q")
        with pytest.raises(DamagedData):
            queue.receive()
    with another_boot("a third one"), open_log(home) as log:
        queue = log.topic("t").queue("q")
        assert queue.receive() == []
        (letter,) = log.dead_letters()
        assert (letter.origin.offset, letter.deliveries, letter.value) == (0, 2, b"")
        assert "cannot be read" in letter.error
        with pytest.raises(DamagedData):
            letter.replay()
        assert queue.redrive() == 0


def test_new_messages_that_are_damaged_can_be_passed(home: Path) -> None:
    with open_log(home) as log:
        topic = log.create_topic("t", SCHEMA, key="k")
        topic.append(rows(3))
        topic.append(rows(2))
        flip(log, topic, 0)
        queue = topic.queue("q")
        for _ in range(2):
            with pytest.raises(DamagedData) as error:
                queue.receive(9, wait="1 hour")
        queue.rewind({0: error.value.stop})
        assert numbers(queue.receive(9)) == [0, 1]


def flip(log: EmbeddedLog, topic: EmbeddedTopic, batch: int) -> None:
    """One byte of a batch's body becomes another."""
    with log._engine.index.reading() as db:
        found = db.execute(
            "SELECT f.name, b.position, b.length FROM batches b JOIN files f ON f.id = b.file WHERE b.topic = ? "
            "ORDER BY b.base",
            (topic._id,),
        ).fetchall()
    name, position, length = found[batch]
    with open(log._engine.data / name, "r+b") as file:
        file.seek(position + length - 8)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 255]))


def test_waiting_costs_nothing(log: EmbeddedLog, topic: EmbeddedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that waits looks a few times, not all the time."""
    queue = topic.queue("q", visibility="1 hour")
    topic.append(rows(1))
    queue.receive()
    looks = []
    real = receiving.look
    monkeypatch.setattr(receiving, "look", lambda core: looks.append(1) or real(core))
    assert queue.receive(wait="500 milliseconds") == []
    assert len(looks) <= 3
    assert log.verify().ok


# -- the model ---------------------------------------------------------------------------------------


@dataclass
class Held:
    """A message below the cursor that is not done."""

    deliveries: int
    due: int | None  # None: waits for its key
    lease: int


@dataclass
class Model:
    """What a queue is, said as simply as possible: one entry per message."""

    by_key: bool
    most: int
    log: dict[int, list[str]]  # partition -> the keys of its records
    cursor: dict[int, int] = field(default_factory=dict)
    held: dict[tuple[int, int], Held] = field(default_factory=dict)
    dead: list[tuple[int, int]] = field(default_factory=list)  # one can die again after a rewind
    acked: int = 0
    died: int = 0
    freed: set[str] = field(default_factory=set)  # keys whose message was buried by the receive that is looked at

    def key(self, place: tuple[int, int]) -> str:
        return self.log[place[0]][place[1]]

    def of_key(self, key: str) -> list[tuple[int, int]]:
        return sorted(place for place in self.held if self.key(place) == key)

    def finish(self, place: tuple[int, int], now: int) -> None:
        del self.held[place]
        if self.by_key:
            rest = self.of_key(self.key(place))
            if rest and all(self.held[other].due is None for other in rest):
                self.held[rest[0]].due = now

    def handed(self, place: tuple[int, int], deliveries: int, lease: int, now: int) -> None:
        """The log handed this out: was it right to?"""
        known = self.held.get(place)
        if known is not None:
            assert known.due is not None and known.due <= now, f"{place} was not due"
            assert known.deliveries + 1 == deliveries <= self.most
            known.deliveries, known.due, known.lease = deliveries, now + VISIBILITY, lease
            return
        partition, offset = place
        assert offset >= self.cursor[partition] and deliveries == 1, f"{place} was done"
        for passed in range(self.cursor[partition], offset):
            self.wait((partition, passed), now)
        if self.by_key:
            assert not self.of_key(self.key(place)), "another one of its key is not done"
        self.held[place] = Held(1, now + VISIBILITY, lease)
        self.cursor[partition] = offset + 1

    def wait(self, place: tuple[int, int], now: int) -> None:
        """The log passed this over: was it right to?"""
        key = self.key(place)
        assert self.by_key and (self.of_key(key) or key in self.freed), f"{place} was passed over"
        self.held[place] = Held(0, None if self.of_key(key) else now, 0)

    def received(self, found: list[Any], cursors: dict[int, int], now: int) -> None:
        for message in found:
            self.handed((message.partition, message.offset), message.deliveries, message._lease, now)
        for partition, cursor in cursors.items():
            for offset in range(self.cursor[partition], cursor):
                self.wait((partition, offset), now)
            self.cursor[partition] = cursor

    def bury(self, places: list[tuple[int, int]], now: int) -> None:
        self.freed = {self.key(place) for place in places}
        for place in places:
            self.finish(place, now)
            self.dead.append(place)
            self.died += 1

    def exhausted(self, now: int) -> list[tuple[int, int]]:
        return [
            place
            for place, held in self.held.items()
            if held.due is not None and held.due <= now and held.deliveries >= self.most
        ]


VISIBILITY = 1_000_000
keys = st.sampled_from(["a", "b", "c", "d"])


class QueueMachine(RuleBasedStateMachine):
    @initialize(by_key=st.booleans(), partitions=st.integers(1, 3), most=st.integers(1, 3))
    def begin(self, by_key: bool, partitions: int, most: int) -> None:
        self.now = 10**9
        self.patch = mock.patch.object(queue_core, "now", self.clock_us)
        self.patch.start()
        self.home = Path(tempfile.mkdtemp(prefix="headrace-queue-"))
        self.log = open_log(self.home)
        self.topic = self.log.create_topic("t", SCHEMA, key="k", partitions=partitions, durability="os")
        self.queue = self.topic.queue(
            "q", order="key" if by_key else "none", max_deliveries=most, visibility="1 second"
        )
        numbers = range(partitions)
        self.model = Model(by_key, most, {n: [] for n in numbers}, dict.fromkeys(numbers, 0))
        self.messages: list[Any] = []
        self.count = 0

    def clock_us(self) -> int:
        return self.now

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert self.log.verify().problems == []
            self.log.close()
            self.patch.stop()
            shutil.rmtree(self.home)

    @rule(given=st.lists(keys, min_size=1, max_size=8))
    def append(self, given: list[str]) -> None:
        done = self.topic.append([{"k": key, "n": i} for i, key in enumerate(given)])
        for partition, added in done.ranges.items():
            records = self.topic.records({partition: added.start}, partition=partition)
            self.model.log[partition] += [record.key for record in records]

    @rule(count=st.integers(1, 6), fresh_handle=st.booleans())
    def receive(self, count: int, fresh_handle: bool) -> None:
        queue = self.topic.queue("q") if fresh_handle else self.queue
        found = queue.receive(count)
        self.messages += found
        letters = Counter((letter.origin.partition, letter.origin.offset) for letter in self.log.dead_letters())
        buried = list((letters - Counter(self.model.dead)).elements())
        assert set(buried) <= set(self.model.exhausted(self.now)), "buried too early"
        with self.log._engine.index.reading() as db:
            cursors = dict(db.execute("SELECT partition, next FROM cursors").fetchall())
        # What was exhausted is buried after messages were handed out; or before, when there was nothing else at first.
        before = copy.deepcopy(self.model)
        self.model.freed = set()
        try:
            self.model.received(found, cursors, self.now)
            self.model.bury(buried, self.now)
        except AssertionError:
            if not buried:
                raise
            self.model = before
            self.model.bury(buried, self.now)
            self.model.received(found, cursors, self.now)
        if not found:
            held = self.model.held.items()
            assert not [p for p, one in held if one.due is not None and one.due <= self.now], "something was due"

    def current(self, message: Any) -> bool:
        held = self.model.held.get((message.partition, message.offset))
        return held is not None and held.lease == message._lease

    @rule(data=st.data(), answer=st.sampled_from(["ack", "nack", "later", "extend", "back", "tx"]))
    def answer(self, data: Any, answer: str) -> None:
        if not self.messages:
            return
        some = data.draw(st.lists(st.sampled_from(self.messages), min_size=1, max_size=4, unique_by=id))
        places = {(message.partition, message.offset): message for message in some}
        fine = all(map(self.current, some))
        refused: LeaseExpired | None = None
        try:
            if answer == "ack":
                self.queue.ack(some)
            elif answer == "nack":
                self.queue.nack(some, "no")
            elif answer == "later":
                self.queue.nack(some, "no", delay="2 seconds")
            elif answer == "extend":
                self.queue.extend(some, "5 seconds")
            elif answer == "back":
                self.queue.give_back(some)
            else:
                with self.log.transaction() as tx:
                    tx.ack(*some)
        except LeaseExpired as error:
            refused = error
        assert (refused is None) is fine, "a stale answer was accepted, or one in time refused"
        if refused is not None:
            where = (refused.partition, refused.offset)
            assert not all(self.current(one) for one in some if (one.partition, one.offset) == where)
            return
        for place, message in places.items():
            held = self.model.held[place]
            if answer in ("ack", "tx"):
                self.model.finish(place, self.now)
                self.model.acked += 1
            elif answer in ("nack", "later") and message.deliveries >= self.model.most:
                self.model.finish(place, self.now)
                self.model.dead.append(place)
                self.model.died += 1
            elif answer == "extend":
                held.due = self.now + 5_000_000
            else:
                held.due = self.now + (2_000_000 if answer == "later" else 0)
                held.lease = 0
                held.deliveries -= answer == "back"

    @rule(by=st.sampled_from([1, VISIBILITY - 1, VISIBILITY, 3 * VISIBILITY]))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule()
    def redrive(self) -> None:
        assert self.queue.redrive() == len(self.model.dead)
        for place in sorted(self.model.dead):
            waits = self.model.by_key and bool(self.model.of_key(self.model.key(place)))
            if place not in self.model.held and place[1] < self.model.cursor[place[0]]:
                self.model.held[place] = Held(0, None if waits else self.now, 0)
        self.model.dead.clear()

    @rule(data=st.data())
    def rewind(self, data: Any) -> None:
        partition = data.draw(st.sampled_from(sorted(self.model.cursor)))
        offset = data.draw(st.integers(0, len(self.model.log[partition])))
        self.queue.rewind({partition: offset})
        self.model.cursor[partition] = offset
        for place in [place for place in self.model.held if place[0] == partition]:
            if place in self.model.held:
                self.model.finish(place, self.now)

    @rule()
    def open_again(self) -> None:
        self.log.close()
        self.log = open_log(self.home)
        self.topic = self.log.topic("t")
        self.queue = self.topic.queue("q")
        self.messages = []

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        stats = self.queue.stats()
        held = self.model.held.values()
        assert stats.waiting == sum(one.due is None for one in held)
        assert stats.due == sum(one.due is not None and one.due <= self.now for one in held)
        assert stats.in_flight == sum(one.due is not None and one.due > self.now for one in held)
        assert stats.ready == sum(len(log) - self.model.cursor[n] for n, log in self.model.log.items())
        assert (stats.acked, stats.dead, stats.dead_open) == (self.model.acked, self.model.died, len(self.model.dead))


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_queues_agree_with_their_model() -> None:
    run_state_machine_as_test(QueueMachine, settings=SETTINGS)


@pytest.mark.soak
def test_queues_agree_with_their_model_for_long(soak_seconds: float, seed: int) -> None:
    until = time.monotonic() + soak_seconds
    for turn in itertools.count():
        if time.monotonic() >= until:
            break
        fresh = hypothesis.seed(seed + turn)(type("QueueMachine", (QueueMachine,), {}))
        run_state_machine_as_test(fresh, settings=settings(SETTINGS, max_examples=20, stateful_step_count=150))
