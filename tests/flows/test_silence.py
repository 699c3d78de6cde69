"""What silence does, without a JVM: it moves what is called final, with the clock from where a partition was, and never
what may be dropped."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.durations import from_us, instant_us
from headrace.flows.audit import audit
from headrace.places import Home
from headrace.views.contract import Commit, FlowSpec
from tests.flows.sparkless import Sparkless

START = datetime(2020, 1, 1, tzinfo=UTC)
"""When things happened."""
SECOND = 1_000_000
IDLE = 30 * SECOND
TEN = hr.tumbling("10 seconds")


class Clock:
    """Shows years after things happened."""

    def __init__(self) -> None:
        self.now_us = instant_us("2026-01-01T00:00:00Z", argument="now")

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND)


class Trial:
    """A flow, and a clock for it and its log."""

    def __init__(self, home: Path, window: Any = TEN, **settings: Any) -> None:
        self.clock = Clock()
        settings = {"names": ("records",), "groups": (), "idle_us": IDLE, **settings}
        self.flow = Sparkless(home, window, clock_us=self.clock, **settings)

    def add(self, *seconds: float, partition: int = 0, drain: bool = True) -> None:
        rows = [{"word": "a", "n": 1, "at": START + timedelta(seconds=each)} for each in seconds]
        self.flow.topic.append(rows, partition=partition)
        if drain:
            self.flow.loop.drain()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.flow.loop.drain()

    @property
    def frontier(self) -> float | None:
        """In seconds."""
        us = self.flow.loop.position.frontier_us
        return None if us is None else (from_us(us) - START).total_seconds()

    @property
    def final(self) -> list[float]:
        """When final windows begin."""
        found = self.flow.views.to_arrow("view").to_pylist()
        return [(row["window_start"] - START).total_seconds() for row in found if row["_status"] == "final"]

    def stored(self, column: str) -> str | None:
        with sqlite3.connect(self.flow.home / "views.db") as db:
            (found,) = db.execute(f"SELECT {column} FROM _flows").fetchone()
        return found  # type: ignore[no-any-return]


@pytest.fixture
def trial(tmp_path: Path) -> Any:
    made = []

    def make(*args: Any, **settings: Any) -> Trial:
        made.append(Trial(tmp_path, *args, **settings))
        return made[-1]

    yield make
    for each in made:
        each.flow.close()


def test_a_quiet_partition_moves_with_the_clock_from_where_it_was(trial: Any) -> None:
    t = trial()
    t.add(1, 25)
    assert t.final == [0]  # progress 25 ≥ 10
    t.advance(34.999_999)  # quiet 34.999999 - 30 = 4.999999 s: 25 + that < 30
    assert t.final == [0]
    t.advance(0.000_001)  # 25 + 5 = 30: [20, 30) closes, and nothing that comes later is born final
    assert t.final == [0, 20]
    t.add(31)
    assert t.final == [0, 20] and t.frontier == 31


def test_a_partition_without_a_record_holds_nobody_up(trial: Any) -> None:
    """At once: nobody has to wait for it."""
    t = trial(partitions=3)
    t.add(1, 12, partition=0)
    t.add(2, 25, partition=2)
    assert t.final == [0] and t.frontier == 12


def test_a_partition_that_is_absent_does_not_count(trial: Any) -> None:
    t = trial(partitions=2, absent_us=60 * SECOND)
    t.add(1, partition=1)
    t.clock.advance(59)
    t.add(95, partition=0)
    assert t.frontier == 1 + 59 - 30
    t.clock.advance(1)
    t.add(96, partition=0)
    assert t.frontier == 96  # partition 1 has been silent for 60 s


def test_where_all_are_absent_the_one_that_is_furthest_counts(trial: Any) -> None:
    t = trial(partitions=2, absent_us=60 * SECOND)
    t.add(1, partition=1)
    t.add(40, partition=0)
    t.advance(70)
    assert t.frontier == 40 + 70 - 30


def test_absent_is_never_less_than_idle(trial: Any) -> None:
    """Who sets `idle` above the pause between two loads waits for all partitions."""
    t = trial(partitions=2, idle_us=3600 * SECOND, absent_us=60 * SECOND)
    t.add(1, partition=1)
    t.clock.advance(1000)
    t.add(40, partition=0)
    assert t.frontier == 1


def test_a_running_flow_must_have_been_at_the_end_for_idle(trial: Any) -> None:
    """After a night nobody is called quiet before its producers could say anything."""
    t = trial()
    t.add(1, drain=False)
    t.clock.advance(3600)
    loop = t.flow.started(at_once=False)
    loop.step()
    loop.close_windows()
    t.clock.advance(29.999_999)
    assert not loop.close_windows() and t.frontier == 1
    t.clock.advance(0.000_001)
    assert loop.close_windows() and t.frontier == 1 + 3600 + 30 - 30


def test_a_drain_counts_silence_up_to_when_it_was_asked_for(trial: Any) -> None:
    """Not the time that Spark takes to start."""
    t = trial()
    t.add(1, drain=False)
    asked_us = t.clock.now_us
    t.clock.advance(100)
    t.flow.loop.drain(asked_us=asked_us)
    assert t.frontier == 1
    t.flow.loop.drain()
    assert t.frontier == 1 + 100 - 30


def test_what_comes_meanwhile_begins_the_wait_anew(trial: Any) -> None:
    t = trial()
    loop = t.flow.started(at_once=False)
    t.add(1, drain=False)
    loop.step()
    t.clock.advance(20)
    loop.close_windows()
    t.add(2, drain=False)
    loop.step()
    t.clock.advance(29)
    assert not loop.close_windows() and t.frontier == 2
    t.clock.advance(11)
    assert loop.close_windows() and t.frontier == 2 + 40 - 30


@pytest.mark.parametrize(("time", "final"), [("at", [0.0, 10.0]), ("_arrived_at", [0.0])])
def test_what_a_flow_writes_is_moved_by_that_flow_and_by_arrival_by_silence(
    trial: Any, time: str, final: list[float]
) -> None:
    """In the log's time the writer says how far it is; and what it writes later arrives later."""
    t = trial(partitions=2, time=time)
    writer = t.flow.store.begin(FlowSpec("copy", "tests", ("source",), None, target="events"))
    writer = t.flow.store.commit(
        writer, Commit(writer.sequence, {}, {}, frontier_us=instant_us(START, argument="at") + 5 * SECOND)
    )
    t.add(1, 12, 40, partition=0)
    t.advance(20)
    assert t.final == []  # partition 1 is empty; the writer is at 5, and may write to it what is of 6
    t.flow.store.commit(
        writer, Commit(writer.sequence, {}, {}, frontier_us=instant_us(START, argument="at") + 20 * SECOND)
    )
    t.advance(20)  # by arrival: quiet 40 - 30 s
    began = START if time == "at" else from_us(instant_us("2026-01-01T00:00:00Z", argument="now"))
    assert [(START - began).total_seconds() + each for each in t.final] == final


def test_silence_never_moves_what_may_be_dropped(trial: Any) -> None:
    t = trial(partitions=2, names=("words",))
    t.add(1, 25, partition=0)
    assert t.stored("unchanged") is None  # a record of any time may come to the other partition
    t.add(3, partition=1)
    unchanged = t.stored("unchanged")
    assert unchanged == "2020-01-01 00:00:03"
    t.advance(7200)
    assert t.final == [0, 20] and t.stored("unchanged") == unchanged
    t.add(4, partition=1)  # on time: its partition had come to 3
    (first, _) = t.flow.views.to_arrow("view").to_pylist()
    assert (first["words"], first["_status"], first["_corrections"]) == (1, "final", 0)


def test_a_partition_that_slept_for_longer_than_forget_has_the_floor_of_its_topic(trial: Any) -> None:
    """By arrival, and not by the clock: the log promises it when something else has come later."""
    week = 7 * 86_400
    t = trial(partitions=3)
    t.add(1, partition=1)
    t.add(1, week + 100, partition=0)
    t.clock.advance(week + 1)
    t.flow.loop.drain()
    assert t.stored("unchanged") is None  # nothing has come: partition 2 may get any record
    t.add(week + 101, partition=0)
    assert t.stored("unchanged") == "2020-01-01 00:01:41"  # week + 101 - forget
    t.add(2, partition=2)  # this one does: it is stamped with that
    (progress,) = (record.progress for record in t.flow.topic.records(partition=2))
    assert progress == START + timedelta(seconds=101)


def test_a_session_closes_when_nothing_can_join_it_any_more(trial: Any) -> None:
    t = trial(hr.session("4 seconds"), grace=1)
    t.add(10, 15)  # exactly the gap, and the grace, behind 10: what is of 14 would join it
    assert t.final == []
    t.add(15.000_001)
    assert t.final == [10]


def test_time_may_begin_with_the_first_year(trial: Any) -> None:
    """0001-01-01T00:00:00Z is what Go and .NET write for 'no time'."""
    t = trial(hr.session("4 seconds"), grace=60)
    first = datetime(1, 1, 1, tzinfo=UTC)
    t.flow.topic.append({"word": "a", "n": 1, "at": first})
    t.flow.loop.drain()
    (row,) = t.flow.views.to_arrow("view").to_pylist()
    assert row["window_end"] == first and row["_status"] == "open"
    t.add(1, 100)
    assert [row["_status"] for row in t.flow.views.to_arrow("view").to_pylist()] == [
        "final",
        "final",
        "open",
    ]  # 1 + 4 + 60 < 100


def test_what_is_kept_for_longer_than_there_have_been_years_stays(trial: Any) -> None:
    t = trial(hr.session("4 seconds"), keep_us=86_400 * SECOND)
    first = datetime(1, 1, 1, tzinfo=UTC)
    for seconds in (0, 100):
        t.flow.topic.append({"word": "a", "n": 1, "at": first + timedelta(seconds=seconds)})
        t.flow.loop.drain()
    assert [row["_status"] for row in t.flow.views.to_arrow("view").to_pylist()] == ["final", "open"]


def test_corrections_for_longer_than_there_have_been_years(trial: Any) -> None:
    t = trial(within=3000 * 365 * 86_400, names=("words",))
    t.add(25, 1)
    (first, _) = t.flow.views.to_arrow("view").to_pylist()
    assert first["_corrections"] == 1 and t.stored("unchanged") is None


def test_audit_names_what_the_log_alone_makes_final(trial: Any) -> None:
    t = trial()
    t.add(1, 25)
    query = t.flow.loop._query
    t.advance(20)
    assert audit([query], t.flow.log, Home.at(t.flow.log.home)).ok  # whatever silence makes of the rest
    with sqlite3.connect(t.flow.home / "views.db") as db:
        db.execute("UPDATE _flows SET closed = NULL")
    audited = audit([query], t.flow.log, Home.at(t.flow.log.home))
    assert not audited.ok
    (found,) = audited.differences
    assert (found.column, found.stored, found.expected) == ("_status", "open", "final")
    assert "2020-01-01 00:00:00" in found.row


def test_what_was_final_is_final_in_a_rebuilt_view(trial: Any) -> None:
    """Though one of the partitions is empty, and though old records came after a silence."""
    t = trial(partitions=3, within=3600)
    t.add(1, 12, partition=0)
    t.add(1, 12, partition=1)
    t.advance(60)
    assert t.final == [0, 10] and t.frontier == 12 + 60 - 30
    t.add(13, 14, partition=0)  # their partition is at 14 again, and the frontier stays
    t.add(15, partition=1)
    t.flow.rebuilt().switch()
    assert t.final == [0, 10]
    t.flow.started()
    assert t.frontier == 42


def test_a_version_beside_the_view_is_not_at_the_end_where_the_view_is(trial: Any) -> None:
    t = trial(partitions=2)
    t.add(1, 12, partition=0)
    t.add(13, partition=0, drain=False)
    t.clock.advance(60)
    made = t.flow.rebuilt()
    assert t.flow.store.state("view/next").frontier_us == t.flow.store.state("view").frontier_us  # 12, quiet or not
    made.switch()
    assert t.final == [0, 10]  # 13 + (60 - 30)


def test_a_version_beside_a_view_by_arrival_has_come_to_where_the_next_record_arrived(trial: Any) -> None:
    """And not to where the topic's newest has: the words of a window are forgotten when no record can come to it."""
    t = trial(partitions=2, time="_arrived_at", names=("words",))
    t.add(1, partition=0)
    t.clock.advance(1)
    t.add(1, partition=0, drain=False)
    t.clock.advance(1000)
    t.add(1, partition=1, drain=False)
    made = t.flow.rebuilt()
    assert t.flow.store.state("view/next").places["events"][0].progress_us == t.clock.now_us - 1000 * SECOND
    made.switch()
    assert [row["words"] for row in t.flow.views.to_arrow("view").to_pylist()] == [1, 1]


def test_absent_is_said_beside_idle(tmp_path: Path) -> None:
    with hr.App("tests", home=tmp_path) as app:
        stream = app.stream(app.topic("events", "word string, at timestamp", event_time="at"))
        with pytest.raises(hr.InvalidArgument, match="absent"):
            stream.window(TEN, absent="soon")
        stream.window(TEN).agg(n=hr.count()).to_view("as_it_is")
        stream.window(TEN, idle="1 minute", absent="2 hours").agg(n=hr.count()).to_view("said")
        found = [(flow.idle_us // SECOND, flow.absent_us // SECOND) for flow in app.flows.values()]
        assert found == [(30, 3600), (60, 7200)]
