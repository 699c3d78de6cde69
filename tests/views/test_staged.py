"""Large tables on their way out are files beside the views' file: whole, private, and gone when they have arrived."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace import failpoints
from headrace.failpoints import InjectedFault
from headrace.position import Position
from headrace.testing.view_contract import commit, counting
from headrace.views.contract import Outgoing
from headrace.views.sqlite.staged import ROWS_MIN
from tests.views.folded import SqliteViews

LARGE = pa.table({"a": range(ROWS_MIN)})
SMALL = pa.table({"a": [1]})


def files(home: Path) -> list[Path]:
    return sorted((home / "outbox").glob("*"))


def test_a_large_table_is_a_file_until_it_has_arrived(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        outgoing = [Outgoing("x", LARGE), Outgoing("x", SMALL), Outgoing("y", LARGE)]
        state = store.commit(state, commit(state, outgoing=outgoing))
        assert [each.stat().st_mode & 0o777 for each in files(tmp_path)] == [0o600, 0o600]
        assert (tmp_path / "outbox").stat().st_mode & 0o777 == 0o700
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        waiting = store.outbox("clicks")
        assert [(each.target, each.base, each.rows) for each in waiting] == [
            ("x", 0, LARGE), ("x", ROWS_MIN, SMALL), ("y", 0, LARGE),
        ]  # fmt: skip
        del waiting
        state = store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)], relayed=0))
        assert len(files(tmp_path)) == 1
        store.note_relayed(state, 1, Position.of("x", "1d", {0: 3}))
        assert files(tmp_path) == [] and store.outbox("clicks") == []


def test_what_a_crash_left_goes_when_the_flow_begins_again(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        state = store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        (kept,) = files(tmp_path)
        (tmp_path / "outbox" / kept.name.replace("-", "-0")).write_bytes(b"half of it")
        other = tmp_path / "outbox" / "0000-of-another-flow.arrow"
        other.touch()
        store.begin(counting())
        assert files(tmp_path) == sorted([kept, other])
        store.drop("clicks")
        assert files(tmp_path) == [other]


def test_a_commit_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        failpoints.arm("view.applied", "raise")
        try:
            with pytest.raises(InjectedFault):
                store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        finally:
            failpoints.disarm()
        assert files(tmp_path) == [] and store.outbox("clicks") == []


def test_a_backup_has_the_files(tmp_path: Path) -> None:
    hr.open_log(tmp_path / "home").close()
    with SqliteViews(tmp_path / "home") as store:
        state = store.begin(counting())
        store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        assert hr.backup(tmp_path / "home", tmp_path / "backup").views
    hr.restore(tmp_path / "backup", tmp_path / "copy")
    with SqliteViews(tmp_path / "copy") as store:
        assert [each.rows for each in store.outbox("clicks")] == [LARGE]
    assert [each.stat().st_mode & 0o777 for each in files(tmp_path / "copy")] == [0o600]


def test_a_file_that_is_gone_is_damage(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        (file,) = files(tmp_path)
        file.unlink()
        with pytest.raises(hr.ViewsDamaged, match="rows that were to go out cannot be read"):
            store.outbox("clicks")


def test_an_error_after_the_commit_leaves_the_file_that_the_outbox_names(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        failpoints.arm("view.committed", "raise")
        try:
            with pytest.raises(InjectedFault):
                store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        finally:
            failpoints.disarm()
        assert [each.rows for each in store.outbox("clicks")] == [LARGE]


def test_a_flow_that_is_not_replaced_after_all_keeps_its_files(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        failpoints.arm("begin.taken", "raise")
        try:
            with pytest.raises(InjectedFault):
                store.begin(counting(), replace=True)
        finally:
            failpoints.disarm()
        assert [each.rows for each in store.outbox("clicks")] == [LARGE]
        store.begin(counting(), replace=True)
        assert files(tmp_path) == []


def test_files_of_a_version_go_with_it(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        store.commit(state, commit(state, outgoing=[Outgoing("x", LARGE)]))
        (kept,) = files(tmp_path)
        for end in store.discard, store.drop:
            spec = counting()
            assert spec.view is not None
            beside = replace(spec, name="clicks/next", view=replace(spec.view, name="clicks/next"))
            store.begin_beside(beside, "p")
            version = store.begin(beside)
            store.commit(version, commit(version, outgoing=[Outgoing("x", LARGE)]))
            assert len(files(tmp_path)) == 2
            end("clicks")
            assert files(tmp_path) == ([kept] if end == store.discard else [])
