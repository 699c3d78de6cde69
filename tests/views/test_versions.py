"""Versions of a view while others look and while processes die: readers see the one or the other, whole; watchers are
told what a switch changes."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import failpoints
from headrace.errors import WatchLost
from headrace.testing.view_contract import commit, counted, counting
from headrace.views.contract import FlowSpec, FlowState, Place, Result, SlotColumn
from headrace.views.open import open_views
from headrace.views.sql import watchers
from tests.faults.children import Children, ack
from tests.views.committing import SPEC, VIEW, Committing
from tests.views.folded import SqliteViews

PAGES = [f"/{n:02}" for n in range(50)]


def spec(name: str, *, wide: bool) -> FlowSpec:
    """The narrow version has n, the wide one another column, too."""
    found = counting(name)
    assert found.view is not None
    if not wide:
        return found
    slots = (*found.view.slots, SlotColumn("more", "bigint", "add"))
    return replace(found, view=replace(found.view, slots=slots, results=(*found.view.results, _MORE)))


_MORE = Result("more", "bigint", ("more",))


def made(store: SqliteViews, name: str, *, wide: bool) -> FlowState:
    """Fifty pages: n is 1 in the narrow version, 2 in the wide one."""
    of = spec(name, wide=wide)
    if name.endswith("/next"):
        store.begin_beside(of, "p")
    state = store.begin(of)
    table = counted(of, [(0, page, 2 if wide else 1) for page in PAGES])
    if wide:
        table = table.append_column("more", table["n"])
    return store.commit(state, commit(state, table, places={"clicks": {0: Place(7, None)}}, topic_ids={"clicks": "a"}))


def switch_back_and_forth(home: str, times: int) -> None:
    with SqliteViews(Path(home)) as store:
        ack("ready")
        for number in range(times):
            beside = "clicks/previous" if number % 2 else "clicks/next"
            store.switch(store.fence("clicks"), store.state(beside))
            ack(number)


def test_readers_see_the_one_or_the_other(tmp_path: Path, children: Children) -> None:
    """In another process, sixty switches long: rows, columns and status of one version, never of both."""
    with SqliteViews(tmp_path) as store:
        made(store, "clicks", wide=False)
        made(store, "clicks/next", wide=True)
    child = children.start(switch_back_and_forth, str(tmp_path), 60)
    views, seen = open_views(tmp_path), set()
    assert child.next() == "ready"
    while views.status("clicks").commits <= 60:
        table = views.to_arrow("clicks")
        (n,) = set(table["n"].to_pylist())
        assert table.num_rows == len(PAGES) and ("more" in table.column_names) == (n == 2)
        found = views.query("select count(*) as rows, min(n) as least, max(n) as most from clicks").to_pylist()
        assert found in ([{"rows": 50, "least": n, "most": n}] for n in (1, 2))
        assert views.status("clicks").rows == 50 and len(views.states()) == 1
        seen.add(n)
    child.finish()
    assert seen == {1, 2}


def switch_once(home: str, point: str) -> None:
    with SqliteViews(Path(home)) as store:
        failpoints.arm(point, "kill")
        store.switch(store.fence("clicks"), store.state("clicks/next"))


@pytest.mark.parametrize("point", ["switch.applied", "switch.committed"])
def test_killed_in_a_switch(tmp_path: Path, children: Children, point: str) -> None:
    with SqliteViews(tmp_path) as store:
        made(store, "clicks", wide=False)
        made(store, "clicks/next", wide=True)
    assert children.start(switch_once, str(tmp_path), point).wait() == -9
    new = point == "switch.committed"
    views = open_views(tmp_path)
    assert set(views.to_arrow("clicks")["n"].to_pylist()) == {2 if new else 1}
    with sqlite3.connect(tmp_path / "views.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with SqliteViews(tmp_path) as store:
        assert store.beside("clicks") == ("clicks/previous" if new else "clicks/next")
        store.switch(store.fence("clicks"), store.state("clicks/previous" if new else "clicks/next"))
        assert set(views.to_arrow("clicks")["n"].to_pylist()) == {1 if new else 2}


# -- watching ------------------------------------------------------------------------------------------


def beside(flow: Committing, clicks: list[Any]) -> FlowState:
    """Another version of the same columns, of these clicks."""
    assert SPEC.view is not None
    name = f"{VIEW}/next"
    of = replace(SPEC, name=name, view=replace(SPEC.view, name=name))
    flow.store.begin_beside(of, "p")
    with Committing(flow.store.path.parent, of) as other:
        other.commit(clicks, closed=1)
        return other.flow


def switched(flow: Committing, new: FlowState) -> None:
    flow.store.switch(flow.store.fence(VIEW), new)
    flow.flow = flow.store.begin(SPEC)


def test_a_watcher_sees_a_switch_as_one_commit(tmp_path: Path) -> None:
    with Committing(tmp_path) as flow:
        for _ in range(5):
            flow.commit([(0, "/", 10), (1, "/", 20), (1, None, 30)], closed=1)
        new = beside(flow, [(0, "/", 10)] * 5 + [(1, "/", 20), (2, "/new", 1)])
        line = flow.flow.line
        with flow.views.watch(VIEW, timeout="0 seconds") as watch:
            view = {(row["window_start"], row["page"]): row for row in watch}
        with flow.views.watch(VIEW, snapshot=False, timeout="0 seconds") as watch:
            switched(flow, new)
            flow.commit([(2, "/new", 1)], closed=1)
            changes = list(watch)
        assert flow.flow.line == line and flow.flow.born != line
        assert [change["_position"] for change in changes] == [6] * 4 + [7] * 2  # after all of both versions
        assert [(change["op"], change["page"], change["clicks"]) for change in changes] == [
            ("-", None, 5),
            ("-", "/", 5),
            ("+", "/", 1),
            ("+", "/new", 1),
            ("-", "/new", 1),
            ("+", "/new", 2),
        ]
        for change in changes:
            key = (change["window_start"], change["page"])
            if change["op"] == "-":
                del view[key]
            else:
                view[key] = change
        for row in flow.rows():
            was = view.pop((row["window_start"], row["page"]))
            assert {name: was[name] for name in row} == row
        assert view == {}


def test_a_watcher_of_other_columns_is_told_to_begin_again(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        made(store, "clicks", wide=False)
        new = made(store, "clicks/next", wide=True)
        views = open_views(tmp_path)
        with views.watch("clicks", snapshot=False, timeout="5 seconds") as watch:
            store.switch(store.fence("clicks"), new)
            with pytest.raises(WatchLost, match="switched to a version with other columns"):
                list(watch)
        assert store.state("clicks").line == new.born
        with views.watch("clicks", timeout="0 seconds") as watch:
            assert {row["more"] for row in watch} == {2}


def test_a_switch_that_changes_too_much_ends_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Committing(tmp_path) as flow:
        flow.commit([(n, "/", 10) for n in range(500)])
        new = beside(flow, [(n, "/", 20) for n in range(500)])
        monkeypatch.setattr(watchers, "BACKLOG_BYTES_MAX", 10_000)
        with flow.views.watch(VIEW, snapshot=False, timeout="5 seconds") as watch:
            switched(flow, new)
            with pytest.raises(WatchLost):
                list(watch)
