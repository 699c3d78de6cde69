"""Watching a view: replaying what a watcher saw gives the view at every commit, whoever commits, however fast."""

from __future__ import annotations

import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.durations import instant_us
from headrace.testing.folding import PartialCommit
from headrace.views.contract import Column, FlowSpec, Result, SlotColumn, ViewSpec
from headrace.views.sql import watchers, watching
from tests.stopping import stop_between_commits
from tests.views.committing import MINUTE_US, SPEC, START, TIME, VIEW, Committing, digest, digest_of, random_batch

Spawn = Callable[..., subprocess.Popen[Any]]

SECONDS_MAX = 60
ROOT = Path(__file__).parents[2]

WATCHER = """
import sys, headrace as hr
with hr.open_views(sys.argv[1]).watch("clicks_per_page") as watch:
    print("watching", flush=True)
    for change in watch:
        print(change["_position"], flush=True)
"""


@pytest.fixture
def committing(tmp_path: Path) -> Iterator[Committing]:
    with Committing(tmp_path / "home") as made:
        yield made


@pytest.fixture
def spawned() -> Iterator[Spawn]:
    """Python processes that do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def spawn(*args: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, *args], cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


class Replay:
    """Applies commit after commit; what goes must be there, what comes must not."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.at: dict[int, str] = {}
        """Position -> what the view was."""
        self.ops: Counter[str] = Counter()

    def add(self, batch: pa.RecordBatch) -> int:
        position = 0
        for change in batch.to_pylist():
            position, op = change.pop("_position"), change.pop("op")
            row = repr(sorted(change.items()))
            assert self.rows[row] == (1 if op == "-" else 0), change
            self.rows[row] += -1 if op == "-" else 1
            self.ops[op] += 1
        assert not self.at or position > max(self.at)
        self.at[position] = digest_of(self.rows.elements())
        return position


def replayed(watch: watching.Watch, upto: int) -> Replay:
    """Up to a position, at which something must have changed."""
    replay = Replay()
    for batch in watch.batches():
        if replay.add(batch) == upto:
            return replay
    raise AssertionError(f"ended at {max(replay.at)}")


def check(replay: Replay, truth: dict[int, str]) -> None:
    """At every commit the replayed rows are the view; no commit that changed something is missing."""
    first, last = min(replay.at), max(replay.at)
    assert replay.at == {position: truth[position] for position in replay.at}
    changed = [number for number in range(first + 1, last + 1) if truth[number] != truth[number - 1]]
    assert list(replay.at) == [first, *changed]


def kept(committing: Committing) -> tuple[int, int]:
    """How many watchers the store knows, and how many commits' changes it keeps."""
    with sqlite3.connect(committing.store.path) as db:
        (who,) = db.execute("SELECT count(*) FROM _watchers").fetchone()
        (what,) = db.execute("SELECT count(*) FROM _changes").fetchone()
    db.close()
    return who, what


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# -- what is seen --------------------------------------------------------------------------------------


def test_the_rows_as_they_are_and_then_changes(committing: Committing) -> None:
    committing.commit([(0, "/", 10), (0, "/cart", 5)])
    with committing.views.watch(VIEW, timeout="0 seconds") as watch:
        first = [next(watch), next(watch)]
        assert [(change["op"], change["page"], change["clicks"], change["_position"]) for change in first] == [
            ("+", "/", 1, 1),
            ("+", "/cart", 1, 1),
        ]
        assert list(first[0]) == ["op", *(column.name for column in SPEC.view.columns), "_position"]  # type: ignore[union-attr]
        committing.commit([(0, "/", 30), (1, None, 1)])
        assert [(c["op"], c["page"], c["clicks"], c["ms"], c["_position"]) for c in watch] == [
            ("-", "/", 1, 10.0, 2),
            ("+", "/", 2, 20.0, 2),
            ("+", None, 1, 1.0, 2),
        ]


def test_a_window_that_closes_is_shown(committing: Committing) -> None:
    committing.commit([(0, "/", 1), (1, "/", 2)])
    with committing.views.watch(VIEW, snapshot=False, timeout="0 seconds") as watch:
        committing.commit(closed=1)  # by time alone
        committing.commit([(0, "/", 5)], closed=1)  # a straggler into a window that is final
        committing.commit([(2, "/", 9), (1, "/", 9)], closed=2)  # closes a window that it changes
        seen = [(c["_position"], c["op"], c["window_start"].minute, c["clicks"], c["_status"]) for c in watch]
    assert seen == [
        (2, "-", 0, 1, "open"),
        (2, "+", 0, 1, "final"),
        (3, "-", 0, 1, "final"),
        (3, "+", 0, 2, "final"),
        (4, "-", 1, 1, "open"),
        (4, "+", 1, 2, "final"),
        (4, "+", 2, 1, "open"),
    ]


def test_final_results_once_and_then_corrections(committing: Committing) -> None:
    committing.commit([(0, "/", 1), (1, "/", 2)])

    def seen(watch: watching.Watch) -> list[tuple[Any, ...]]:
        return [(c["_position"], c["op"], c["window_start"].minute, c["clicks"]) for c in watch]

    with committing.views.watch(VIEW, emit="final", timeout="0 seconds") as watch:
        assert seen(watch) == []
    with committing.views.watch(VIEW, emit="final", timeout="0 seconds") as watch:
        committing.commit([(0, "/", 1)])  # open: nobody asked
        committing.commit(closed=1)
        committing.commit([(0, "/", 5), (0, "/new", 5), (2, "/", 1)], closed=1)  # stragglers
        committing.commit([(1, "/", 9)], closed=2)
        assert seen(watch) == [(3, "+", 0, 2), (4, "-", 0, 2), (4, "+", 0, 3), (4, "+", 0, 1), (5, "+", 1, 2)]
    with committing.views.watch(VIEW, emit="final", timeout="0 seconds") as watch:
        assert seen(watch) == [(5, "+", 0, 3), (5, "+", 0, 1), (5, "+", 1, 2)]
    with pytest.raises(hr.InvalidArgument, match="must be 'updates' or 'final'"):
        committing.views.watch(VIEW, emit="never")  # type: ignore[arg-type]
    assert kept(committing) == (0, 0)


def test_without_the_rows_as_they_are(committing: Committing) -> None:
    committing.commit([(0, "/", 1)])
    with committing.views.watch(VIEW, snapshot=False, timeout="0 seconds") as watch:
        assert list(watch) == []
    with committing.views.watch(VIEW, timeout="0 seconds") as watch:
        assert [change["_position"] for change in watch] == [1]


def test_a_commit_that_changes_no_row_is_not_seen(committing: Committing) -> None:
    with committing.views.watch(VIEW, timeout="0 seconds") as watch:
        committing.commit()
        committing.commit([(0, "/", 1)])
        assert [change["_position"] for change in watch] == [2]


def test_a_commit_that_fails_leaves_nothing(committing: Committing) -> None:
    with committing.views.watch(VIEW, timeout="0 seconds") as watch:
        with pytest.raises(KeyError):
            committing.commit([(0, "/", 1)], topic_ids={})  # after its rows were merged
        committing.commit([(0, "/", 1)])
        assert [(change["op"], change["clicks"]) for change in watch] == [("+", 1)]


def test_rows_that_go_are_shown(tmp_path: Path) -> None:
    """Not only what a commit merges: rows that are older than they are kept go with it."""
    assert SPEC.view is not None
    spec = replace(SPEC, view=replace(SPEC.view, keep_us=2 * MINUTE_US))
    with Committing(tmp_path, spec) as committing:
        committing.commit([(0, "/", 1), (1, "/", 1)])
        with committing.views.watch(VIEW, snapshot=False, timeout="0 seconds") as watch:
            committing.commit(closed=3, unchanged_us=instant_us(START, argument="start") + 3 * MINUTE_US)
            changes = [(c["op"], c["window_start"].minute, c["_status"]) for c in watch]
        # frontier 3 min, kept for 2: the window that ends after 1 min goes, the other only closes
        assert changes == [("-", 0, "open"), ("-", 1, "open"), ("+", 1, "final")]
        assert [row["window_start"].minute for row in committing.rows()] == [1]


def test_a_view_of_one_row_and_of_distinct_values(committing: Committing) -> None:
    """No window, no group; a count of values that are kept beside the row."""
    shape = ViewSpec(
        name="users",
        groups=(),
        slots=(SlotColumn("users", "string", "distinct"), SlotColumn("n", "bigint", "add")),
        results=(Result("users", "bigint", ("users",)), Result("n", "bigint", ("n",))),
    )
    flow = committing.store.begin(FlowSpec(name="users", app="shop", sources=("clicks",), view=shape))
    with committing.views.watch("users", timeout="0 seconds") as watch:
        for users in ["ann", "bob"], ["bob"], ["bob", "cid"]:
            rows = {"users": [users], "n": [len(users)], "_corrections": [0], "_updated_at": pa.array([START], TIME)}
            commit = PartialCommit(pa.table(rows), facts={"sequence": flow.sequence, "places": {}, "topic_ids": {}})
            flow = committing.store.commit(flow, commit)
        assert [(c["_position"], c["op"], c["users"], c["n"]) for c in watch] == [
            *((1, "+", 2, 2), (2, "-", 2, 2), (2, "+", 2, 3)),
            *((3, "-", 2, 3), (3, "+", 3, 5)),
        ]


@pytest.mark.parametrize("name", ["number", "was", "watched", "OLD", "flow", "sequence"])
def test_columns_of_any_name(committing: Committing, name: str) -> None:
    shape = ViewSpec(
        name="v",
        groups=(Column(name, "string"),),
        slots=(SlotColumn("n", "bigint", "add"),),
        results=(Result("n", "bigint", ("n",)),),
    )
    flow = committing.store.begin(FlowSpec(name="v", app="shop", sources=(), view=shape))
    with committing.views.watch("v", timeout="0 seconds") as watch:
        for _ in range(2):
            rows = {name: ["a"], "n": [1], "_corrections": [0], "_updated_at": pa.array([START], TIME)}
            commit = PartialCommit(pa.table(rows), facts={"sequence": flow.sequence, "places": {}, "topic_ids": {}})
            flow = committing.store.commit(flow, commit)
        assert [(c["op"], c[name], c["n"]) for c in watch] == [("+", "a", 1), ("-", "a", 1), ("+", "a", 2)]


def test_a_view_that_a_transform_shapes(committing: Committing, seed: int) -> None:
    """Thresholds passed and fallen below, several rows of a result, windows that close, rows that are not kept."""
    rng, now, truth = random.Random(seed), 0, {}
    assert SPEC.view is not None
    view = replace(SPEC.view, shaped=(Column("page_again", "string"), Column("part", "int")), keep_us=3 * MINUTE_US)

    def shape(table: pa.Table) -> pa.Table:
        rows = [
            {**row, "page_again": row["page"], "part": part}
            for row in table.to_pylist()
            for part in range(row["clicks"] % 4)
        ]
        added = [pa.field("page_again", pa.string()), pa.field("part", pa.int32())]
        return pa.Table.from_pylist(rows, schema=pa.schema([*table.schema, *added]))

    spec = replace(SPEC, view=view)
    committing.close()
    with Committing(committing.store.path.parent, spec, replace=True) as shaped:
        shaped.commit([(0, "/", 1)], shape=shape)
        truth[1] = digest(shaped.rows())
        with shaped.views.watch(VIEW, timeout="0 seconds") as watch:
            for _ in range(60):
                now += rng.random() < 0.3
                closed = max(0, now - 2) if rng.random() < 0.5 else None
                reached = None if closed is None else instant_us(START, argument="start") + closed * MINUTE_US
                sequence = shaped.commit(random_batch(rng, now)[:6], closed=closed, shape=shape, unchanged_us=reached)
                truth[sequence] = digest(shaped.rows())
            replay = Replay()
            for batch in watch.batches():
                replay.add(batch)
        truth = {number: text for number, text in truth.items() if number <= max(replay.at)}
        check(replay, truth)
        assert replay.ops["-"] > 50


# -- while others commit -------------------------------------------------------------------------------


def told(writer: subprocess.Popen[str], truth: dict[int, str]) -> threading.Thread:
    """Reads what a writing process says its view was."""

    def read() -> None:
        assert writer.stdout is not None
        for line in writer.stdout:
            number, text = line.split()
            truth[int(number)] = text

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_while_another_process_commits(tmp_path: Path, spawned: Spawn, seed: int) -> None:
    """200 random batches; one watcher there from the beginning, others that come meanwhile."""
    home, batches = tmp_path / "home", 200
    with Committing(home) as first:
        first.commit([(0, "/", 1)])
        truth = {1: digest(first.rows())}
    views = hr.open_views(home)
    replays: list[Replay] = []
    with views.watch(VIEW) as watch:
        writer = spawned("-m", "tests.views.committing", str(home), str(seed), str(batches))
        listening = told(writer, truth)
        early = watch.batches()
        replay = Replay()
        for _ in range(3):  # now the writer is at it
            replay.add(next(early))

        def late() -> None:
            with views.watch(VIEW) as another:
                replays.append(replayed(another, upto=batches + 1))

        others = [threading.Thread(target=late) for _ in range(2)]
        for thread in others:
            thread.start()
        for batch in early:
            if replay.add(batch) == batches + 1:
                break
        for thread in [*others, listening]:
            thread.join(SECONDS_MAX)
    assert len(replays) == 2
    for each in [replay, *replays]:
        check(each, truth)
    assert min(replay.at) == 1
    assert replay.ops["-"] > 100


def test_a_watcher_slower_than_commits(committing: Committing) -> None:
    """It gets every commit all the same, and what it has read goes."""
    truth = {committing.commit([(0, "/", 1)]): digest(committing.rows())}
    with committing.views.watch(VIEW, lease="6 seconds") as watch:
        for number in range(50):
            sequence = committing.commit([(number // 5, "/", number)], closed=number // 5)
            truth[sequence] = digest(committing.rows())
        assert kept(committing) == (1, 50)
        check(replayed(watch, upto=51), truth)
        until(lambda: kept(committing) == (1, 0))
    assert kept(committing) == (0, 0)


def test_two_watchers_and_what_is_kept_for_them(committing: Committing) -> None:
    with (
        committing.views.watch(VIEW, lease="6 seconds") as one,
        committing.views.watch(VIEW, lease="6 seconds", timeout="0 seconds") as two,
    ):
        committing.commit([(0, "/", 1)])
        committing.commit([(0, "/", 2)])
        assert [next(one)["_position"] for _ in range(3)] == [1, 2, 2]
        assert kept(committing)[1] == 2  # the other has not read them, whatever this one says
        assert [change["_position"] for change in two] == [1, 2, 2]
        until(lambda: kept(committing)[1] == 0)
        with pytest.raises(hr.Closed):  # nothing came: it has ended
            next(two)


# -- ends ----------------------------------------------------------------------------------------------


def lease_over(committing: Committing) -> None:
    """As if no watcher had said for long that it lives."""
    with committing.store.transaction() as db:
        db.execute("UPDATE _watchers SET ends_at = '2026-01-01 00:00:00'")


def test_a_watcher_that_is_killed(committing: Committing, spawned: Spawn) -> None:
    """Changes are kept for it while its lease lasts, and then no more."""
    process = spawned("-c", WATCHER, str(committing.store.path.parent))
    assert process.stdout.readline() == "watching\n"
    committing.commit([(0, "/", 0)])
    assert process.stdout.readline() == "1\n"
    process.kill()
    process.wait()
    sequence = committing.commit([(0, "/", 1)])
    assert kept(committing) == (1, 2)  # it had no time to say what it has read
    lease_over(committing)
    with committing.views.watch(VIEW) as other:  # whose changes stay, whoever goes
        committing.commit([(0, "/", 1)])
        assert kept(committing) == (1, 1)
        assert [next(other)["_position"] for _ in range(3)] == [sequence, sequence + 1, sequence + 1]
    assert kept(committing) == (0, 0)


def test_a_watcher_that_was_killed_alone(committing: Committing, spawned: Spawn) -> None:
    process = spawned("-c", WATCHER, str(committing.store.path.parent))
    assert process.stdout.readline() == "watching\n"
    process.kill()
    process.wait()
    committing.commit([(0, "/", 1)])
    assert kept(committing) == (1, 1)
    lease_over(committing)
    committing.commit([(0, "/", 1)])
    assert kept(committing) == (0, 0)


def test_a_watcher_that_slept_is_told(committing: Committing, spawned: Spawn) -> None:
    process = spawned("-c", WATCHER, str(committing.store.path.parent))
    assert process.stdout.readline() == "watching\n"
    stop_between_commits(process.pid)
    lease_over(committing)
    committing.commit([(0, "/", 1)])
    assert kept(committing) == (0, 0)
    process.send_signal(signal.SIGCONT)
    assert process.wait(SECONDS_MAX) == 1
    assert "WatchLost" in process.stderr.read()


def test_one_that_is_too_far_behind_is_put_out(committing: Committing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "BACKLOG_BYTES_MAX", 20_000)
    with committing.views.watch(VIEW) as watch:

        def overflow() -> bool:
            committing.commit([(0, "/", 1)])
            assert kept(committing)[1] < 50
            return kept(committing) == (0, 0)

        until(overflow)
        with pytest.raises(hr.WatchLost, match="left behind"):
            next(watch)


def test_a_commit_too_large_to_keep_goes_through(committing: Committing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "BACKLOG_BYTES_MAX", 100)
    with committing.views.watch(VIEW) as watch:
        committing.commit([(0, "/", 1)])
        assert len(committing.rows()) == 1
        with pytest.raises(hr.WatchLost):
            next(watch)


def test_a_view_that_is_dropped_or_made_again(committing: Committing) -> None:
    with committing.views.watch(VIEW) as watch:
        committing.store.drop(VIEW)
        with pytest.raises(hr.WatchLost, match="was dropped"):
            next(watch)
    committing.flow = committing.store.begin(SPEC)
    with committing.views.watch(VIEW) as watch:
        committing.flow = committing.store.begin(SPEC, replace=True)
        committing.commit([(0, "/", 1)])
        with pytest.raises(hr.WatchLost, match="made again"):
            next(watch)


def test_a_runner_that_starts_again_changes_nothing_for_the_watcher(committing: Committing) -> None:
    with committing.views.watch(VIEW, timeout="0 seconds") as watch:
        committing.commit([(0, "/", 1)])
        with Committing(committing.store.path.parent) as again:
            again.commit([(0, "/", 1)])
        assert [change["_position"] for change in watch] == [1, 2, 2]


def test_what_was_read_is_kept_for_who_comes_back(committing: Committing) -> None:
    """One that keeps, and lingers, leaves its last changes to the next: both see all of them."""
    views = committing.views

    def positions(keep_bytes: int) -> tuple[int, list[int]]:
        watch = views.watch(VIEW, snapshot=False, keep_bytes=keep_bytes, lease="1 minute")
        begins, found = watch.position, []
        while (changes := watch.next_commit(0)) is not None:
            found.append(changes["_position"][0].as_py())
        watch.close(linger=True)
        return begins, found

    assert positions(1 << 20) == (0, [])
    for _ in range(3):
        committing.commit([(0, "/", 1)])
    assert positions(1 << 20) == (0, [1, 2, 3])
    committing.commit([(0, "/", 1)])
    assert positions(1 << 20) == (0, [1, 2, 3, 4])
    with committing.store.transaction() as db:  # their leases are over
        db.execute("UPDATE _watchers SET ends_at = '2026-01-01'")
    committing.commit([(0, "/", 1)])
    assert positions(1 << 20) == (5, [])


def test_no_more_is_kept_than_was_asked_for(committing: Committing) -> None:
    with committing.views.watch(VIEW, snapshot=False, keep_bytes=1 << 20) as watch:
        committing.commit([(0, "/", 1)])
        assert watch.next_commit(0) is not None
        (size,) = committing.store._db.execute("SELECT length(rows) FROM _changes").fetchone()
    with committing.views.watch(VIEW, snapshot=False, keep_bytes=2 * size) as watch:
        for _ in range(5):
            committing.commit([(0, "/", 1)])
            assert watch.next_commit(0) is not None
        watch.close(linger=True)
    (read,) = committing.store._db.execute("SELECT min(read) FROM _watchers").fetchone()
    assert committing.flow.sequence - read in (1, 2)


def test_one_that_nobody_holds_ends(committing: Committing) -> None:
    watch = committing.views.watch(VIEW)
    assert kept(committing)[0] == 1
    del watch
    gc.collect()
    until(lambda: kept(committing)[0] == 0)


def test_a_forked_child_refuses(committing: Committing) -> None:
    with committing.views.watch(VIEW) as watch:
        pid = os.fork()
        if pid == 0:
            try:
                next(watch)
            except hr.ForkedProcess:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        committing.commit([(0, "/", 1)])
        assert next(watch)["_position"] == 1


def test_a_view_that_is_not_made_yet_is_waited_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with hr.open_views(home).watch(VIEW, wait=True, timeout="0 seconds") as watch:
        assert list(watch) == [] and not home.exists()
    watches = [hr.open_views(home).watch(VIEW, wait=True, snapshot=snapshot) for snapshot in (True, False)]
    with Committing(home) as committing, watches[0] as first, watches[1] as second:
        committing.commit([(0, "/", 5)])
        seen = [(change["op"], change["_position"]) for watch in (first, second) for change in [next(watch)]]
        assert seen == [("+", 1), ("+", 1)]
        committing.commit([(0, "/", 7)])
        seen = [(change["op"], change["_position"]) for change in (next(first), next(first), next(second))]
        assert seen == [("-", 2), ("+", 2), ("-", 2)]


def test_what_cannot_be_watched(committing: Committing, tmp_path: Path) -> None:
    with pytest.raises(hr.UnknownView, match="Did you mean 'clicks_per_page'"):
        committing.views.watch("click_per_page")
    with pytest.raises(hr.UnknownView):
        hr.open_views(tmp_path / "nowhere").watch(VIEW)
    assert not (tmp_path / "nowhere").exists()
    assert SPEC.view is not None
    columns = (Column("op", "string"),)
    strange = replace(SPEC, name="strange", view=replace(SPEC.view, name="strange", groups=columns))
    committing.store.begin(strange)
    with pytest.raises(hr.InvalidArgument, match="has a column 'op'"):
        committing.views.watch("strange")
    assert kept(committing) == (0, 0)


def test_nobody_watching_costs_a_lookup_before_the_fold_and_one_in_the_commit(committing: Committing) -> None:
    said: list[str] = []
    committing.store._db.set_trace_callback(said.append)
    committing.commit([(0, "/", 1)])
    assert [text for text in said if "_watchers" in text or "_changes" in text] == [
        f"SELECT 1 FROM _watchers WHERE flow = '{VIEW}' LIMIT 1",
        f"SELECT watcher, read, ends_at FROM _watchers WHERE flow = '{VIEW}'",
    ]
    plan = committing.store._db.execute("EXPLAIN QUERY PLAN SELECT read FROM _watchers WHERE flow = 1")
    assert "SEARCH _watchers USING PRIMARY KEY" in plan.fetchone()[3]


def test_times_are_of_one_kind_in_records_rows_and_changes(tmp_path: Path) -> None:
    with hr.App("shop", home=tmp_path) as app, Committing(tmp_path) as committing:
        topic = app.topic("t", "at timestamp")
        topic.append({"at": START})
        committing.commit([(0, "/", 5)])
        record, row = next(iter(topic.records())), app.view(VIEW).get(page="/")
        change = next(app.views.watch(VIEW))
        assert row is not None
        assert row["window_start"] == change["window_start"] == record.value["at"]
        zones = {type(each.tzinfo) for each in (row["window_start"], change["window_start"], record.value["at"])}
        assert zones == {timezone}
