"""The views' file gives back what its rows have left: a little after each commit, the rest when it is closed."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.testing.folding import PartialCommit
from headrace.views.contract import Column, FlowSpec, FlowState, Outgoing, Place, Result, SlotColumn, ViewSpec
from headrace.views.open import open_views
from headrace.views.sqlite import file
from headrace.views.sqlite import store as sqlite
from tests.searching import files_with
from tests.views.folded import SqliteViews

INSTANT = pa.timestamp("us", tz="UTC")
MINUTE_US = 60_000_000
ROWS = 60_000
"""Of the first window: some 400 pages."""
VIEW = ViewSpec(
    "v",
    (Column("user", "string"),),
    (SlotColumn("n", "bigint", "add"),),
    (Result("n", "bigint", ("n",)),),
    (MINUTE_US, MINUTE_US),
    keep_us=MINUTE_US,
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "FREE_PAGES_MIN", 16)
    monkeypatch.setattr(file, "PAGES_PER_STEP", 40)
    monkeypatch.setattr(sqlite, "TIME_SHARE", 0.0)


def commit(
    store: SqliteViews, state: FlowState, window: int, users: int, outgoing: tuple[Outgoing, ...] = ()
) -> FlowState:
    """Rows of a window; all windows before the one before it go, as they are not kept."""
    start = pa.array([window * MINUTE_US] * users, pa.int64())
    rows = pa.table(
        {
            "window_start": start.cast(INSTANT),
            "window_end": pa.compute.add(start, MINUTE_US).cast(INSTANT),
            "user": [f"user-{number}" for number in range(users)],
            "n": pa.array([1] * users, pa.int64()),
            "_corrections": pa.array([0] * users, pa.int64()),
            "_updated_at": start.cast(INSTANT),
        }
    )
    now = window * MINUTE_US
    places = {"t": {0: Place(state.sequence + 1, None)}}
    facts = {"sequence": state.sequence, "places": places, "topic_ids": {"t": "id"}, "outgoing": outgoing}
    facts |= {"frontier_us": now, "closed_us": now, "unchanged_us": now}
    return store.commit(state, PartialCommit(rows, facts=facts))


def pages(store: SqliteViews) -> tuple[int, int]:
    """Of the file, and how many of them are free."""
    with store._reading() as db:
        (count,), (free,) = (db.execute(f"PRAGMA {of}_count").fetchone() for of in ("page", "freelist"))
    return count, free


def test_pages_that_rows_have_left_are_given_back_a_few_after_each_commit(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(FlowSpec("v", "app", ("t",), VIEW))
        state = commit(store, state, 0, ROWS)
        count, free = pages(store)
        assert (count > 300, free < 10) == (True, True)
        seen = [count]
        for window in range(2, 30):
            state = commit(store, state, window, 10)
            count, free = pages(store)
            seen.append(count)
        steps = [before - after for before, after in itertools.pairwise(seen)]
        assert 30 <= max(steps) <= 40  # no commit waits for more; the rows of the commit itself may need a page
        assert seen[-1] < seen[0] / 4
        assert free <= max(16, count // 8)
        assert steps[-5:] == [0] * 5  # an eighth may stay free, and does


def test_a_commit_that_took_long_gives_more_of_them_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "TIME_SHARE", 1e6)
    with SqliteViews(tmp_path) as store:
        state = commit(store, store.begin(FlowSpec("v", "app", ("t",), VIEW)), 0, ROWS)
        commit(store, state, 2, 10)
        count, free = pages(store)
        assert free <= max(16, count // 8)


def test_a_store_that_closes_gives_the_rest_back(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = commit(store, store.begin(FlowSpec("v", "app", ("t",), VIEW)), 0, ROWS)
        commit(store, state, 2, 10)
        count, _ = pages(store)
    assert (tmp_path / "views.db").stat().st_size < count * 4096 / 4
    db = sqlite3.connect(tmp_path / "views.db")
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    with open_views(tmp_path) as views:
        assert views.query("SELECT count(*) AS n FROM v").to_pylist() == [{"n": 10}]


def test_rows_on_their_way_out_are_compressed_when_they_are_many(tmp_path: Path) -> None:
    sizes = {}
    with SqliteViews(tmp_path) as store:
        state = store.begin(FlowSpec("v", "app", ("t",), VIEW))
        for rows in (10, 10_000):
            going = pa.table({"word": ["again and again"] * rows, "n": pa.array(range(rows), pa.int64())})
            state = commit(store, state, 0, 1, (Outgoing("out", going),))
            assert store.outbox("v")[-1].rows.equals(going)
            with store._reading() as db:
                (sizes[rows],) = db.execute("SELECT max(length(rows)) FROM _outbox").fetchone()
    assert sizes[10] > 10 * 20  # a few are not worth the time it takes
    assert sizes[10_000] < 10_000 * 20 / 4


def test_a_commit_counts_whatever_becomes_of_the_free_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: SqliteViews) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with SqliteViews(tmp_path) as store:
        state = commit(store, store.begin(FlowSpec("v", "app", ("t",), VIEW)), 0, ROWS)
        with monkeypatch.context() as patched:
            patched.setattr(sqlite.SqliteViews, "_give_back", full)
            state = commit(store, state, 2, 10)
        assert pages(store)[1] > 100
        assert commit(store, state, 3, 10).sequence == 3


def test_after_a_wipe_no_byte_is_left_of_rows_that_went(tmp_path: Path) -> None:
    """Where SQLite does not overwrite what is deleted, too."""
    with SqliteViews(tmp_path) as store:
        with store._reading_beside() as db:
            db.execute("PRAGMA secure_delete=OFF")
        for name in "gone", "stays":
            view = replace(VIEW, name=name, groups=(Column(f"user_{name}", "string"),))
            state = store.begin(FlowSpec(name, "app", ("t",), view))
            rows = pa.table(
                {"window_start": pa.array([0, 0], INSTANT), "window_end": pa.array([MINUTE_US] * 2, INSTANT)}
            )
            rows = rows.append_column(f"user_{name}", [[f"canary-{name}-1", f"canary-{name}-2"]])
            rows = rows.append_column("n", pa.array([1, 1])).append_column("_corrections", pa.array([0, 0]))
            rows = rows.append_column("_updated_at", pa.array([0, 0], INSTANT))
            facts = {"sequence": state.sequence, "places": {"t": {0: Place(1, None)}}, "topic_ids": {"t": "id"}}
            store.commit(state, PartialCommit(rows, facts=facts))
        store.drop("gone")
        assert files_with(tmp_path, "canary-gone-1")
        assert store.wipe() == []
        assert not files_with(tmp_path, "canary-gone-1") and files_with(tmp_path, "canary-stays-1")
