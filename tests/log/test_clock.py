"""A clock that is ahead of what a log knows, or behind: what is refused, what is doubted, and how it is mended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headrace as hr
from headrace import failpoints
from headrace.durations import from_us
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import clock as clocks
from headrace.log.embedded.storage.clock import DAY_US, Newest, Reading, Verdict, judge, newest_after
from headrace.log.embedded.upkeep import mending
from headrace.log.open import open_log
from tests.faults.checking import another_boot

YEARS_AHEAD = timedelta(days=3652)


class Machine:
    """The machine's two clocks: the one that is set, and the one that only runs."""

    def __init__(self) -> None:
        self.now, self.uptime_us = datetime(2026, 1, 1, tzinfo=UTC), 1_000_000

    def time_ns(self) -> int:
        return int(self.now.timestamp() * 1_000_000) * 1000

    def uptime_ns(self, _: int) -> int:
        return self.uptime_us * 1000

    def run(self, passed: timedelta) -> None:
        self.now += passed
        self.uptime_us += passed // timedelta(microseconds=1)

    def step(self, by: timedelta) -> None:
        """Somebody, or NTP, sets the clock."""
        self.now += by


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(time, "time_ns", machine.time_ns)
    monkeypatch.setattr(time, "clock_gettime_ns", machine.uptime_ns)
    return machine


@pytest.fixture
def log(machine: Machine, tmp_path: Path) -> Iterator[EmbeddedLog]:  # noqa: ARG001
    with open_log(tmp_path / "log") as log:
        yield log
        assert log.verify().problems == []


def arrivals(topic: hr.Topic) -> list[datetime]:
    return [record.arrived_at for record in topic.records()]


# -- what is believed ----------------------------------------------------------------------------------


def at(days: float, uptime_days: float = 0, boot: str = "this") -> Reading:
    return Reading(int(days * DAY_US), boot, int(uptime_days * DAY_US))


NEWEST = Newest(1000 * DAY_US, "this", 10 * DAY_US)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (at(1000.5, 10), Verdict.BELIEVED),  # half a day more than the uptime says: a step of NTP
        (at(1001.1, 10), Verdict.REFUSED),
        (at(1365, 375), Verdict.BELIEVED),  # the machine has run, or slept, for a year
        (at(1366.1, 375), Verdict.REFUSED),
        (at(1, 10), Verdict.BELIEVED),  # behind: what arrives is stamped with the newest arrival
        (at(1029, 0, "next"), Verdict.BELIEVED),  # off for four weeks
        (at(1029, 1), Verdict.BELIEVED),  # the uptime went back: another boot, which has no name here
        (at(1365, 0, "next"), Verdict.DOUBTED),  # off for a year, or wrong: nobody knows
        (at(1401, 0, "next"), Verdict.REFUSED),
    ],
)
def test_how_far_the_clock_may_be_ahead(reading: Reading, expected: Verdict) -> None:
    assert judge(NEWEST, reading, lambda _: False) is expected
    assert judge(NEWEST, reading, lambda _: True) is Verdict.BELIEVED, "a synchronised clock is right"


def test_a_new_home_has_nothing_to_compare_with() -> None:
    assert judge(None, at(10_000), lambda _: False) is Verdict.BELIEVED


def test_a_doubt_stays_until_it_is_resolved() -> None:
    after = newest_after(NEWEST, at(1365, 0, "next"), Verdict.DOUBTED)
    later = at(1366, 1, "next")
    assert judge(after, later, lambda _: False) is Verdict.DOUBTED
    assert judge(newest_after(after, later, Verdict.BELIEVED), at(1367, 2, "next"), lambda _: False) is Verdict.BELIEVED


def test_a_clock_that_disagrees_with_the_kernel_is_not_synchronised() -> None:
    assert not clocks.is_synchronised(time.time_ns() // 1000 + DAY_US)


# -- appending -----------------------------------------------------------------------------------------


def test_a_clock_that_jumps_ahead_stamps_nothing(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "n int, at timestamp", event_time="at")
    before = topic.append({"n": 1, "at": machine.now})
    machine.step(YEARS_AHEAD)
    for rows in ({"n": 2, "at": machine.now}, [{"n": 2, "at": machine.now}] * 100):
        with pytest.raises(hr.ClockAhead, match="headrace clock --confirm") as caught:
            topic.append(rows)
    assert caught.value.ahead == YEARS_AHEAD
    with pytest.raises(hr.ClockAhead):
        log.create_topic("other", "n int")
    assert log.clock().verdict == "refused"
    machine.step(-YEARS_AHEAD)
    machine.run(timedelta(seconds=1))
    topic.append({"n": 3, "at": machine.now})
    assert arrivals(topic) == [machine.now - timedelta(seconds=1), machine.now]
    assert topic.offsets()[0].progress == machine.now
    assert before.ranges == {0: range(1)}


def test_who_only_reads_and_commits_goes_on_with_a_wrong_clock(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "n int")
    topic.append([{"n": 1}, {"n": 2}])
    machine.step(YEARS_AHEAD)
    with topic.group("g").join(start="earliest") as member:
        assert [record.value["n"] for record in member.poll(timeout="5 seconds")] == [1, 2]
        member.commit()
    log.delete_topic("t")


def test_steps_of_hours_and_long_uptimes_are_normal(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "n int")
    for passed, step in ((0, 5), (0, -9), (400 * 24, 0), (0, 23)):
        machine.run(timedelta(hours=passed))
        machine.step(timedelta(hours=step))
        topic.append({"n": 1})
    assert arrivals(topic) == sorted(arrivals(topic))
    assert log.clock().verdict == "believed"


def test_arrival_never_goes_back_within_a_home(log: EmbeddedLog, machine: Machine) -> None:
    first, second = log.create_topic("first", "n int"), log.create_topic("second", "n int")
    machine.run(timedelta(hours=8))
    first.append({"n": 1})
    newest = machine.now
    machine.step(timedelta(hours=-5))
    second.append({"n": 2})
    third = log.create_topic("third", "n int")
    assert arrivals(first) == arrivals(second) == [newest]
    assert third.offsets()[0].arrived_at == newest
    assert log.clock().newest == newest
    assert log.clock().ahead == timedelta(hours=-5)


def test_a_clock_that_is_right_is_confirmed_once(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "n int")
    machine.step(YEARS_AHEAD)
    with pytest.raises(hr.ClockAhead):
        topic.append({"n": 1})
    log.confirm_clock()
    assert log.clock().verdict == "believed"
    topic.append({"n": 1})
    assert arrivals(topic) == [machine.now]


def test_another_process_is_refused_by_what_the_first_has_left(machine: Machine, tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("t", "n int").append({"n": 1})
    machine.step(YEARS_AHEAD)
    with open_log(tmp_path) as log, pytest.raises(hr.ClockAhead):
        log.topic("t").append({"n": 2})


def test_a_home_that_was_off_for_a_year_goes_on_and_deletes_nothing(machine: Machine, tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.create_topic("t", "n int", retention="30 days").append({"n": 1})
    machine.uptime_us = 5_000_000
    machine.step(timedelta(days=365))
    with another_boot("next"), open_log(tmp_path) as log:
        topic = log.topic("t")
        topic.append({"n": 2})
        assert log.clock().verdict == "doubted"
        done = log.maintain()
        assert done.records_deleted == 0
        assert done.problems == []
        assert "log.confirm_clock()" in done.postponed[0]
        log.confirm_clock()
        assert log.maintain().records_deleted == 1
        assert [record.value["n"] for record in topic.records()] == [2]


# -- retention -----------------------------------------------------------------------------------------


def test_retention_deletes_nothing_by_a_clock_it_cannot_believe(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "n int", retention="30 days")
    topic.append([{"n": n} for n in range(10)])
    machine.step(timedelta(days=365))
    done = log.maintain()
    assert (done.records_deleted, done.problems) == (0, [])
    assert "365 days more" in done.postponed[0]
    assert topic.usage().would_delete_records == 0
    assert topic.describe().records == 10
    machine.step(timedelta(days=-365))
    machine.run(timedelta(days=31))
    done = log.maintain()
    assert (done.records_deleted, done.postponed) == (10, [])


def test_tombstones_stay_while_the_clock_is_not_believed(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "k string, n int", key="k", cleanup="compact", tombstone_grace="1 day")
    topic.append([{"k": "a", "n": 1}, {"k": "a", "n": None}, {"k": "b", "n": 1}])
    machine.step(timedelta(days=365))
    log.maintain()
    assert [record.value["n"] for record in topic.records()] == [None, 1]


def test_retention_by_bytes_needs_no_clock(log: EmbeddedLog, machine: Machine) -> None:
    topic = log.create_topic("t", "n int", retention="30 days")
    for n in range(10):
        topic.append({"n": n})
    topic.alter(retention_bytes=topic.describe().bytes // 2)
    machine.step(timedelta(days=365))
    done = log.maintain()
    assert done.records_deleted == 5
    assert len(done.postponed) == 1


# -- mending -------------------------------------------------------------------------------------------


@pytest.fixture
def poisoned(machine: Machine, tmp_path: Path) -> Iterator[EmbeddedLog]:
    """A clock that was years ahead has written, and was believed: the home was new."""
    with open_log(tmp_path / "log") as log:
        topic = log.create_topic("t", "k string, n int, at timestamp", key="k", event_time="at", versioned=True)
        topic.append({"k": "a", "n": 1, "at": machine.now})
        log.confirm_clock()
        machine.step(YEARS_AHEAD)
        log.confirm_clock()
        topic.append({"k": "a", "n": 2, "at": machine.now})
        topic.append({"k": "b", "n": 3, "at": machine.now - YEARS_AHEAD})
        machine.step(-YEARS_AHEAD)
        machine.run(timedelta(minutes=1))
        for n in range(4, 7):
            machine.run(timedelta(minutes=1))
            topic.append({"k": "a", "n": n, "at": machine.now})
        yield log
        assert log.verify().problems == []


def test_partitions_ahead_are_named(poisoned: EmbeddedLog, machine: Machine) -> None:
    (found,) = poisoned.clock().partitions
    assert (found.topic, found.partition) == ("t", 0)
    assert found.arrived > machine.now + timedelta(days=3000)
    (problem,) = poisoned.verify().ahead
    assert (problem.topic, problem.partition) == ("t", 0)
    assert poisoned.verify().ok


def test_a_mended_topic_has_the_times_of_a_right_clock(poisoned: EmbeddedLog, machine: Machine) -> None:
    old = poisoned.topic("t")
    begin = machine.now - timedelta(minutes=4)
    (done,) = poisoned.mend()
    assert (done.topic, done.restamped, done.dead_letters) == ("t", 4, 1)
    topic = poisoned.topic("t")
    assert topic.topic_id == done.topic_id != old.topic_id
    with pytest.raises(hr.TopicReplaced):
        old.append({"k": "a", "n": 7, "at": machine.now})
    found = [(r.offset, r.value["n"], r.arrived_at, r.progress) for r in topic.records()]
    assert found == [
        (0, 1, begin, None),
        (2, 3, machine.now, begin),
        (3, 4, machine.now, begin),
        (4, 5, machine.now, machine.now - timedelta(minutes=2)),
        (5, 6, machine.now, machine.now - timedelta(minutes=1)),
    ]
    (letter,) = poisoned.dead_letters()
    assert (letter.reason, letter.origin.topic, letter.value["n"]) == ("max_ahead", "t", 2)
    assert poisoned.clock().partitions == []
    machine.run(timedelta(minutes=1))
    topic.append({"k": "a", "n": 7, "at": machine.now})
    assert arrivals(topic)[-1] == machine.now
    assert topic.offsets()[0].progress == machine.now
    assert poisoned.mend() == []


def test_a_mended_topic_keeps_who_reads_and_writes_it(poisoned: EmbeddedLog) -> None:
    topic = poisoned.topic("t")
    with topic.group("g").join(start="earliest") as member:
        member.poll(timeout="5 seconds")
        member.commit()
    with topic.producer(id="p") as producer:
        producer.send({"k": "c", "n": 8, "at": None})
    queue = topic.queue("q")
    queue.receive(max=1)[0].ack()
    poisoned.mend()
    mended = poisoned.topic("t")
    with mended.group("g").join() as member:
        assert [record.value["n"] for record in member.poll(timeout="5 seconds")] == [8]
    assert mended.version("a") == 5
    assert [message.value["n"] for message in mended.queue("q").receive(max=2)] == [3, 4]
    with mended.producer(id="p") as producer:
        producer.send({"k": "c", "n": 9, "at": None})
    assert [record.value["n"] for record in mended.records()][-2:] == [8, 9]


def test_letters_from_before_a_mend_are_replayed_and_erased(poisoned: EmbeddedLog) -> None:
    topic = poisoned.topic("t")
    topic.bury([{"reason": "bad", "row": f'{{"k": "{k}", "n": 8, "at": null}}'} for k in ("c", "d", "e")])
    next(poisoned.dead_letters(newest=1)).drop()
    queue = topic.queue("q", max_deliveries=1)
    queue.receive(max=1)[0].nack()
    queue.receive(max=1)
    poisoned.mend()
    mended = poisoned.topic("t")
    (of_queue,) = (letter for letter in poisoned.dead_letters() if letter.reason == "deliveries")
    assert of_queue.value["n"] == 1
    of_queue.replay()
    assert 1 in [message.value["n"] for message in mended.queue("q").receive(max=10)]
    letters = {letter.value["k"]: letter for letter in poisoned.dead_letters() if letter.reason == "bad"}
    letters["c"].replay()
    assert [record.value["n"] for record in mended.records()][-1] == 8
    assert [mended.erase(k).dead_letters for k in ("c", "d", "e")] == [1, 1, 1]  # the first and the last have ended


def test_a_topic_that_somebody_writes_to_all_the_time_is_not_mended_and_says_so(
    poisoned: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "ATTEMPTS", 5)
    topic = poisoned.topic("t")

    def write() -> None:
        topic.append({"k": "c", "n": 8, "at": None})
        failpoints.arm("mend.copied", write)

    failpoints.arm("mend.copied", write)
    with pytest.raises(hr.WaitTimeout, match="without appends to topic 't'"):
        poisoned.mend()
    failpoints.disarm()
    assert mending.COPY not in [found.name for found in poisoned._catalog.all(system=True)]
    poisoned.mend()
    assert len(list(poisoned.topic("t").records())) == 10


def test_a_topic_that_is_deleted_meanwhile_does_not_stop_the_mend_of_others(
    poisoned: EmbeddedLog, machine: Machine
) -> None:
    machine.step(YEARS_AHEAD)
    poisoned.create_topic("other", "n int").append({"n": 1})
    machine.step(-YEARS_AHEAD)
    failpoints.arm("mend.copied", lambda: poisoned.delete_topic("other"))
    assert [done.topic for done in poisoned.mend()] == ["t"]
    assert mending.COPY not in [found.name for found in poisoned._catalog.all(system=True)]


def test_a_mend_that_was_interrupted_keeps_no_record_from_being_erased(poisoned: EmbeddedLog, tmp_path: Path) -> None:
    poisoned.topic("t").alter(compression="none")  # so that its bytes are seen
    poisoned.topic("t").append({"k": "Ada Lovelace", "n": 7, "at": None})
    failpoints.arm("mend.copied", "raise")
    with pytest.raises(failpoints.InjectedFault):
        poisoned.mend()
    assert poisoned.verify().problems == []
    assert poisoned.topic("t").erase("Ada Lovelace").incomplete == []
    files = [path for path in (tmp_path / "log").rglob("*") if path.is_file()]
    assert [path.name for path in files if b"Ada Lovelace" in path.read_bytes()] == []


def test_sealed_batches_and_several_partitions_are_mended(machine: Machine, tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        topic = log.create_topic("t", "k int, at timestamp", key="k", event_time="at", partitions=3)
        for k in range(30):
            topic.append({"k": k, "at": machine.now})
        machine.step(YEARS_AHEAD)
        log.confirm_clock()
        for k in range(30):
            topic.append({"k": k, "at": machine.now - YEARS_AHEAD})
        log.maintain()
        machine.step(-YEARS_AHEAD)
        before = [(r.partition, r.offset, r.value) for r in topic.records()]
        log.mend()
        records = list(log.topic("t").records())
        assert sorted((r.partition, r.offset, r.value["k"]) for r in records) == sorted(
            (p, o, value["k"]) for p, o, value in before
        )
        assert {r.arrived_at for r in records} == {machine.now}
        assert log.verify().problems == []


def test_a_newest_arrival_nothing_is_left_of_goes_back(log: EmbeddedLog, machine: Machine) -> None:
    machine.step(YEARS_AHEAD)
    log.create_topic("t", "n int")
    log.delete_topic("t")
    machine.step(-YEARS_AHEAD)
    assert log.clock().ahead == -YEARS_AHEAD
    log.mend()
    topic = log.create_topic("t", "n int")
    topic.append({"n": 1})
    assert arrivals(topic) == [machine.now]


def test_a_mend_takes_arrival_back_to_no_less_than_what_stays(log: EmbeddedLog, machine: Machine) -> None:
    """Partitions up to an hour ahead are not mended: what comes after them has not arrived before them."""
    stays, other = log.create_topic("stays", "n int"), log.create_topic("other", "n int")
    machine.step(timedelta(minutes=50))
    stays.append({"n": 1})
    machine.step(YEARS_AHEAD)
    log.confirm_clock()
    other.append({"n": 2})
    machine.step(-YEARS_AHEAD - timedelta(minutes=50))
    assert [done.topic for done in log.mend()] == ["other"]
    later = log.create_topic("later", "n int")
    later.append({"n": 3})
    assert arrivals(later) == arrivals(stays)
    machine.run(timedelta(hours=1))
    later.append({"n": 4})
    assert arrivals(later)[-1] == machine.now


def test_a_clock_of_the_callers_own_is_believed(tmp_path: Path) -> None:
    now_us = [0]
    with EmbeddedLog(tmp_path, clock_us=lambda: now_us[0]) as log:
        topic = log.create_topic("t", "n int")
        for now_us[0] in (10 * DAY_US, 10_000 * DAY_US):
            topic.append({"n": 1})
        assert arrivals(topic) == [from_us(10 * DAY_US), from_us(10_000 * DAY_US)]
