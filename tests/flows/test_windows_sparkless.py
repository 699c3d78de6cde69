"""Windows that are not fixed, without a JVM: any records, in any cuts, come to what the oracle makes of the whole log,
and what goes out comes to the view."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.durations import instant_us
from headrace.flows.audit import Compared, Gone, audit
from headrace.kernels import hops
from headrace.places import Home
from headrace.views.contract import Commit, FlowSpec, FlowState, Place, ViewSpec
from headrace.windows import Cumulative
from tests.flows.oracle import Query, aggregates, expected, records_of
from tests.flows.sparkless import AGGREGATES, MORE, Sparkless

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Nothing here is about disks, and hundreds of commits are synced."""
START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOWS = {
    "session": hr.session("4 seconds"),
    "sliding": hr.sliding("4 seconds"),
    "cumulative": hr.cumulative("4 seconds", step="1 second"),
}
few = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
"""Each is a log, a store and some commits."""

records = st.lists(
    st.tuples(
        st.integers(0, 1),  # the partition
        st.sampled_from(["a", "a", "a", "b", None]),
        st.integers(0, 30) | st.sampled_from([4, 8, 12]),  # seconds: in any order, some exactly the gap apart
        st.sampled_from([False, False, False, True]),  # whether a batch ends here
        st.booleans(),  # whether it has a number
    ),
    max_size=25,
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def put(flow: Sparkless, found: list[tuple[Any, ...]], *, restarts: bool = False) -> None:
    """Appends the records, and folds them in as they are cut."""
    waiting: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for number, (partition, word, seconds, ends, has) in enumerate(found, start=1):
        row = {"word": word, "n": number if has else None, "at": None if seconds == 30 else at(seconds)}
        waiting[partition].append(row)
        if ends or number == len(found):
            for each, rows in waiting.items():
                if rows:
                    flow.topic.append(rows, partition=each)
                    rows.clear()
            flow.loop.drain()
            if restarts and number % 3 == 0:
                flow.started()


def query(kind: str, grace: int, within: int, groups: tuple[str, ...] = ("word",)) -> Query:
    return Query(4, 1 if kind == "cumulative" else None, grace, within, groups, kind=kind)


def wanted(flow: Sparkless, asked: Query) -> tuple[Any, Any]:
    found = [{**record, "money": None, "x": None} for record in records_of(flow.topic)]
    return expected(found, asked)


def rows_of(flow: Sparkless) -> dict[tuple[Any, ...], dict[str, Any]]:
    out = {}
    key = ("window_end" if isinstance(flow.flow.window, Cumulative) else "window_start", *flow.flow.groups)
    for row in flow.views.to_arrow("view").to_pylist():
        place = tuple(row[name] for name in key)
        assert place not in out
        out[place] = {name: value for name, value in row.items() if name not in (*key, "_status")}
    return out


def check(flow: Sparkless, asked: Query) -> None:
    rows, ledger = wanted(flow, asked)
    found = rows_of(flow)
    assert found.keys() == rows.keys()
    for place, row in rows.items():
        assert found[place] == {name: row[name] for name in found[place]}, place
    assert {
        row[asked.told_by]: [row["on_time"], row["corrected"], row["dropped"], row["untimed"]]
        for row in flow.views.ledger("view").to_pylist()
    } == ledger
    if asked.kind not in ("fixed", "cumulative"):  # each record once
        assert sum(sum(counts) for counts in ledger.values()) == len(records_of(flow.topic))


NUMBERS = ("records", "total", "mean", "least")
"""Aggregates that are merged by adding and comparing numbers."""


@pytest.mark.parametrize(
    ("kind", "names"),
    [(kind, names) for kind in WINDOWS for names in (tuple(AGGREGATES), NUMBERS, tuple(MORE))],
    ids=[f"{kind}{names}" for kind in WINDOWS for names in ("", " numbers", " more")],
)
@few
@given(found=records, grace=st.sampled_from([0, 2]), within=st.sampled_from([0, 6]), group=st.booleans())
def test_any_records_in_any_cuts(
    kind: str, names: tuple[str, ...], found: list[tuple[Any, ...]], grace: int, within: int, group: bool
) -> None:
    groups = ("word",) if group else ()
    settings = {"grace": grace, "within": within, "partitions": 2, "names": names}
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        Sparkless(Path(home), WINDOWS[kind], groups=groups, **settings) as flow,  # type: ignore[arg-type]
    ):
        put(flow, found, restarts=True)
        check(flow, query(kind, grace, within, groups))


@few
@given(found=records, within=st.sampled_from([0, 6]), day=st.booleans())
def test_any_records_in_windows_that_overlap_and_in_days(found: list[tuple[Any, ...]], within: int, day: bool) -> None:
    """Of aggregates that keep values, or several columns."""
    window = hr.calendar("day", timezone="Europe/London") if day else hr.hopping("7 seconds", every="2 seconds")
    asked = Query(7, 2, 0, within, ("word",))
    if day:
        asked = Query(1, None, 0, within, ("word",), kind="calendar", timezone="Europe/London")
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        Sparkless(Path(home), window, within=within, partitions=2, names=tuple(MORE)) as flow,
    ):
        put(flow, found, restarts=True)
        check(flow, asked)


@pytest.mark.parametrize("begun", ["before", "after"])
def test_what_other_flows_write_may_come_from_further_back(tmp_path: Path, begun: str) -> None:
    """A topic that a flow writes of two partitions has their progress, of the one behind the other. What is kept of a
    session must not go because the one that is ahead was read first; whichever of the flows has begun before."""
    names = ("records", "words")
    with Sparkless(tmp_path, WINDOWS["session"], groups=(), names=names) as flow:
        writer = flow.store.begin(FlowSpec("clean", "tests", ("raw",), None, target="events"))
        both = {"raw": {0: Place(0, None), 1: Place(0, None)}}
        flow.store.commit(writer, Commit(sequence=0, places=both, topic_ids={"raw": "1"}))
        if begun == "after":
            flow.started()
        for word, seconds, progress in ("a", 0, None), ("b", 100, at(100)), ("a", 1, at(0)):
            flow.topic.append([{"word": word, "n": 1, "at": at(seconds)}], progress=[progress])
            flow.loop.drain()
        check(flow, query("session", 0, 0, ()))


@few
@given(found=records, within=st.sampled_from([0, 6]), group=st.booleans(), offset=st.integers(0, 1))
def test_panes_of_hopping_windows_are_merged_before_they_are_stored(
    found: list[tuple[Any, ...]], within: int, group: bool, offset: int
) -> None:
    names = ("records", "total", "mean", "least", "most")
    groups = ("word",) if group else ()
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        pytest.MonkeyPatch.context() as patch,
        Sparkless(
            Path(home),
            hr.hopping("7 seconds", every="2 seconds", offset=f"{offset} seconds"),
            groups=groups,
            within=within,
            partitions=2,
            names=names,
        ) as flow,
    ):
        patch.setattr(hops, "ROWS_MAX", 12)  # a few rows at a time
        put(flow, found)
        asked = Query(7, 2, 0, within, groups, offset=offset)
        check(flow, asked)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("emit", ["updates", "final"])
@few
@given(found=records, within=st.sampled_from([0, 6]))
def test_what_goes_out_comes_to_the_view(kind: str, emit: Any, found: list[tuple[Any, ...]], within: int) -> None:
    """With "final" to the rows that are final; no row goes that has not come, and none comes twice."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        Sparkless(Path(home), WINDOWS[kind], within=within, partitions=2, emit=emit) as flow,
    ):
        put(flow, found)
        if emit == "final":
            flow.loop.close_windows(all_of_them=True)
        rows, _ = wanted(flow, query(kind, 0, within))
        there: Counter[tuple[Any, ...]] = Counter()
        for record in flow.log.topic("view").records():
            row = dict(record.value)
            sign = 1 if row.pop("op") == "+" else -1
            there[tuple(row.values())] += sign
            assert there[tuple(row.values())] in (0, 1)
        assert +there == Counter(
            (row.get("window_start", at), row.get("window_end", at), word, *(row[name] for name in AGGREGATES))
            for (at, word), row in rows.items()
        )


def test_what_is_left_of_a_session_is_not_compared() -> None:
    """Records before 9 are gone: a session that began with one of them may begin at 13 now, and at no later time."""
    view = ViewSpec("v", (), (), (), (4_000_000, 0), windows="session")
    gone = [Gone("v", "t", 0, 0, 5, compared_from=at(9))]
    compared = Compared.of(view, FlowState("v", 1, 1, {}, {}, None), gone)
    assert compared is not None
    rows = [{"window_start": at(start), "window_end": at(start)} for start in (8, 12.999, 13, 20)]
    assert compared.rows(rows) == rows[2:]


@pytest.mark.parametrize(
    "window",
    [
        hr.tumbling("7 days"),
        hr.hopping("1 hour", every="5 minutes"),
        hr.cumulative("1 day", step="1 hour"),
        hr.sliding("1 hour"),
        hr.calendar("day", timezone="Asia/Tokyo"),
    ],
    ids=str,
)
@pytest.mark.parametrize("emit", [None, "updates"])
def test_a_time_whose_window_would_begin_before_the_first_year_is_none(tmp_path: Path, window: Any, emit: Any) -> None:
    """As programs write it that had no time: it must not hold up what goes out, nor hide the view."""
    with Sparkless(tmp_path, window, names=("records",), emit=emit) as flow:
        flow.topic.append([{"word": "a", "at": "0001-01-01T00:00:00Z"}, {"word": "a", "at": START}])
        flow.loop.drain()
        ledger = flow.views.ledger("view")
        assert sum(ledger["untimed"].to_pylist()) == 1
        if emit is None:
            assert {row["window_end"] >= START for row in flow.views.to_arrow("view").to_pylist()} == {True}
            assert audit([flow.loop._query], flow.log, Home.at(flow.log.home)).differences == []


arrivals = st.lists(
    st.tuples(
        st.integers(0, 1),  # the partition
        st.sampled_from(["a", "a", "b", None]),
        st.integers(0, 6),  # seconds since the one before
        st.booleans(),  # whether a batch ends here
        st.booleans(),  # whether the program is started again then
    ),
    max_size=25,
)


class Clock:
    def __init__(self) -> None:
        self.us = instant_us(START, argument="start")

    def __call__(self) -> int:
        return self.us


def arrive(flow: Sparkless, clock: Clock, found: list[tuple[Any, ...]], seen: Callable[[], None]) -> None:
    """Appends the records at their times, and folds some of them in, as they are cut."""
    for number, (partition, word, seconds, ends, restarts) in enumerate(found, start=1):
        clock.us += seconds * 1_000_000
        flow.topic.append([{"word": word, "n": number}], partition=partition)
        if ends:
            flow.loop.step(batch_rows=2)  # perhaps not all there is
            seen()
        if restarts:
            flow.started()
    flow.loop.drain()
    seen()


Run = list[dict[str, Any]]


def runs_of(flow: Sparkless, gap: int) -> dict[Any, list[Run]]:
    """Word -> the runs of its records that arrived at most the gap apart."""
    of_word: dict[Any, list[Run]] = {}
    for record in sorted(records_of(flow.topic), key=lambda record: record["_arrived_at"]):
        runs = of_word.setdefault(record["word"], [])
        if runs and record["_arrived_at"] - runs[-1][-1]["_arrived_at"] <= timedelta(seconds=gap):
            runs[-1].append(record)
        else:
            runs.append([record])
    return of_word


def has_come(flow: Sparkless) -> list[datetime]:
    return [end.arrived_at for end in flow.topic.offsets().values() if end.arrived_at is not None]


@few
@given(found=arrivals, keep=st.sampled_from([1, 4, 9]))
def test_sessions_by_arrival_are_kept(found: list[tuple[Any, ...]], keep: int) -> None:
    """What of a group came at most the gap apart is one row, whatever the cuts. It goes once all partitions have
    arrived further than the gap, and than it is kept, past its last record; what comes then begins a new one."""
    clock = Clock()
    settings = {"time": "_arrived_at", "partitions": 2, "keep_us": keep * 1_000_000, "clock_us": clock}
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        Sparkless(Path(home), hr.session("4 seconds"), names=("records",), **settings) as flow,  # type: ignore[arg-type]
    ):
        arrive(flow, clock, found, lambda: None)
        reached = min(has_come(flow))
        ends = {word: [(run[0], run[-1]["_arrived_at"]) for run in runs] for word, runs in runs_of(flow, 4).items()}
        assert rows_of(flow).keys() == {
            (first["_arrived_at"], word)
            for word, runs in ends.items()
            for first, last in runs
            if last + timedelta(seconds=4) >= reached or last + timedelta(seconds=keep) > reached
        }


@few
@given(found=arrivals, group=st.booleans())
def test_a_group_goes_when_no_record_has_come_for_so_long(found: list[tuple[Any, ...]], group: bool) -> None:
    """A row is its group's newest run of records that arrived at most 4 seconds apart, whatever the cuts, and goes when
    the topic has arrived more than that past it. Who watches is told of all of it, and an audit comes to the same."""
    clock = Clock()
    settings = {"time": "_arrived_at", "keep_us": 4_000_000, "lives": True, "partitions": 2, "clock_us": clock}
    names = ("records", "total", "mean", "least", "most", "words")
    groups = ("word",) if group else ()
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        Sparkless(Path(home), hr.session("4 seconds"), groups=groups, names=names, **settings) as flow,  # type: ignore[arg-type]
        flow.views.watch("view", timeout="0 seconds") as changes,
    ):

        def seen() -> None:
            assert audit([flow.loop._query], flow.log, Home.at(flow.log.home)).differences == []

        arrive(flow, clock, found, seen)
        told: dict[tuple[Any, ...], dict[str, Any]] = {}
        for change in changes:
            at, row = tuple(change[name] for name in groups), {name: change[name] for name in names}
            if change["op"] == "+":
                assert told.setdefault(at, row) is row  # no group has two rows
            else:
                assert told.pop(at) == row
        of_group = runs_of(flow, 4)
        if not group:
            every = sorted(records_of(flow.topic), key=lambda record: record["_arrived_at"])
            flow_runs: list[Run] = []
            for record in every:
                late = flow_runs and record["_arrived_at"] - flow_runs[-1][-1]["_arrived_at"] > timedelta(seconds=4)
                flow_runs += [[]] if late or not flow_runs else []
                flow_runs[-1].append(record)
            of_group = {None: flow_runs} if flow_runs else {}
        wanted = {}
        for word, runs in of_group.items():
            newest = runs[-1]
            if newest[-1]["_arrived_at"] + timedelta(seconds=4) >= max(has_come(flow)):
                found_of = aggregates([{**record, "money": None, "x": None} for record in newest])
                wanted[(word,) if group else ()] = {name: found_of[name] for name in names}
        rows = flow.views.to_arrow("view").to_pylist()
        assert {tuple(row[name] for name in groups): {name: row[name] for name in names} for row in rows} == wanted
        assert told == wanted
        assert not any(name.startswith("window") for row in rows for name in row)
        ledger = flow.views.ledger("view").to_pylist()
        assert sum(row["on_time"] for row in ledger) == len(records_of(flow.topic))


def test_how_long_groups_stay_is_what_they_are(tmp_path: Path) -> None:
    """Not to be changed without making the view anew."""
    settings = {"time": "_arrived_at", "names": ("records",)}
    with Sparkless(tmp_path, hr.session("4 seconds"), keep_us=4_000_000, lives=True, **settings) as flow:  # type: ignore[arg-type]
        spec = flow.compiled.spec
        assert spec.view is not None
    for keep_us, said in (
        (None, "keep: '4 seconds' became for ever"),
        (9_000_000, "keep: '4 seconds' became '9 seconds'"),
    ):
        other = replace(spec, view=replace(spec.view, keep_us=keep_us))
        assert spec.changes(other) == [said]
    assert replace(spec, view=replace(spec.view, keep_us=None)).changes(spec) == ["keep: for ever became '4 seconds'"]


def test_groups_that_go_are_rebuilt(tmp_path: Path) -> None:
    """Beside the view, compared, switched to, and gone on with."""
    clock = Clock()
    settings = {"time": "_arrived_at", "keep_us": 4_000_000, "lives": True, "clock_us": clock}
    with Sparkless(tmp_path, hr.session("4 seconds"), names=("records", "words"), **settings) as flow:  # type: ignore[arg-type]

        def come(word: str, seconds: int) -> list[tuple[Any, ...]]:
            clock.us += seconds * 1_000_000
            flow.topic.append([{"word": word}])
            flow.loop.drain()
            return sorted((row["word"], row["records"]) for row in flow.views.to_arrow("view").to_pylist())

        come("a", 0)
        come("b", 4)
        assert come("a", 0) == [("a", 2), ("b", 1)]  # exactly so long after is not too late
        assert come("b", 4) == [("a", 2), ("b", 2)]
        assert come("b", 1) == [("b", 3)]  # a has been silent for 5 seconds
        made = flow.rebuilt()
        assert made.diff().num_rows == 0
        made.switch()
        flow.started()
        assert come("a", 1) == [("a", 1), ("b", 3)]
        assert come("a", 5) == [("a", 1)]  # a life of its own, though that one has just ended
        flow.store.drop("view")
        left = flow.store._db.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'view/lives/%'").fetchall()
        assert left == []
