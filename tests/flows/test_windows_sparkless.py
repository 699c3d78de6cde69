"""Windows that are not fixed, without a JVM: any records, in any cuts, come to what the oracle makes of the whole log,
and what goes out comes to the view."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.durations import instant_us
from headrace.flows import hops
from headrace.flows.audit import Compared, Gone, audit
from headrace.views.contract import Commit, FlowSpec, FlowState, Place, ViewSpec
from headrace.windows import Cumulative
from tests.flows.oracle import Query, expected, records_of
from tests.flows.sparkless import AGGREGATES, Sparkless

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
    [(kind, names) for kind in WINDOWS for names in (tuple(AGGREGATES), NUMBERS)],
    ids=[f"{kind}{names}" for kind in WINDOWS for names in ("", " numbers")],
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
            assert audit([flow.loop._query], flow.log).differences == []


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


@few
@given(found=arrivals, keep=st.sampled_from([1, 4, 9]))
def test_groups_that_are_silent_for_long_go(found: list[tuple[Any, ...]], keep: int) -> None:
    """Sessions by arrival: what of a group came at most the gap apart is one row, whatever the cuts. It goes once all
    partitions have arrived further than the gap, and than it is kept, past its last record; what comes then begins a
    new one."""
    now_us = [instant_us(START, argument="start")]
    settings = {"time": "_arrived_at", "partitions": 2, "keep_us": keep * 1_000_000, "clock_us": lambda: now_us[0]}
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        Sparkless(Path(home), hr.session("4 seconds"), names=("records",), **settings) as flow,  # type: ignore[arg-type]
    ):
        for partition, word, seconds, ends, restarts in found:
            now_us[0] += seconds * 1_000_000
            flow.topic.append([{"word": word}], partition=partition)
            if ends:
                flow.loop.step(batch_rows=2)  # perhaps not all there is
            if restarts:
                flow.started()
        flow.loop.drain()
        assert rows_of(flow).keys() == lives(flow, gap=4, keep=keep)


def lives(flow: Sparkless, gap: int, keep: int) -> set[tuple[Any, ...]]:
    """(First arrival, word) of the runs of records that are not over."""
    of_word: dict[Any, list[list[datetime]]] = {}
    records = records_of(flow.topic)
    for record in sorted(records, key=lambda record: record["_arrived_at"]):
        runs = of_word.setdefault(record["word"], [])
        if runs and record["_arrived_at"] - runs[-1][-1] <= timedelta(seconds=gap):
            runs[-1].append(record["_arrived_at"])
        else:
            runs.append([record["_arrived_at"]])
    last = [max((r["_arrived_at"] for r in records if r["_partition"] == each), default=None) for each in (0, 1)]
    ends = [end.arrived_at if at is None else at for at, end in zip(last, flow.topic.offsets().values(), strict=True)]
    reached = min(each for each in ends if each is not None)
    return {
        (run[0], word)
        for word, runs in of_word.items()
        for run in runs
        if run[-1] + timedelta(seconds=gap) >= reached or run[-1] + timedelta(seconds=keep) > reached
    }
