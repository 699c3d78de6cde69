"""A log that was restored from an older copy beside newer views: a flow knows what it has read, and does not go on over
other records. Upkeep, which rewrites batches, is no such thing. Without a JVM."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import keeping
from headrace.log.embedded.storage import committer
from headrace.views.sqlite.store import SqliteViews
from tests.flows.sparkless import Sparkless
from tests.flows.test_windows_sparkless import at


def opened(home: Path, **settings: object) -> Sparkless:
    return Sparkless(home, hr.tumbling("4 seconds"), names=("records",), **settings)  # type: ignore[arg-type]


def put(flow: Sparkless, *words: str) -> None:
    for number, word in enumerate(words):  # each a batch of its own
        flow.topic.append({"word": word, "n": number, "at": at(number)})


def restore(backup: Path, home: Path) -> None:
    """The log as it was, and the views as they are."""
    for path in home.iterdir():
        if not path.name.startswith("views"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(backup, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("views*"))


@pytest.mark.parametrize("more", [0, 1, 2, 5])
def test_a_log_from_an_older_copy_is_refused(tmp_path: Path, more: int) -> None:
    """Shorter than what was read, as long, and longer: each time with what to do, which is done then."""
    home, backup = tmp_path / "home", tmp_path / "backup"
    with opened(home) as flow:
        put(flow, "a", "b")
        flow.loop.drain()
    shutil.copytree(home, backup)
    with opened(home) as flow:
        put(flow, "c", "d")
        flow.loop.drain()
    restore(backup, home)
    with hr.open_log(home) as log:
        for number in range(more):
            log.topic("events").append({"word": "other", "n": number, "at": at(number)})
    with pytest.raises(hr.LogDiverged, match="headrace views drop view") as refused:
        opened(home)
    error = refused.value
    assert (error.flow, error.topic, error.partition, error.offset) == ("view", "events", 0, 4)
    with hr.open_log(home), SqliteViews(home) as store:
        store.drop("view")
    with opened(home) as flow:
        flow.loop.drain()
        assert sum(row["records"] for row in flow.views.to_arrow("view").to_pylist()) == 2 + more


@pytest.mark.parametrize("rows", [None, 1], ids=["more at once", "as many as before"])
def test_views_from_an_older_copy_write_nothing_twice(tmp_path: Path, rows: int | None) -> None:
    """What a flow has written since would be cut differently now, and its numbers would be taken for what is there."""
    home, backup = tmp_path / "home", tmp_path / "backup"
    with opened(home, emit="updates") as flow:
        put(flow, "a", "b")
        flow.loop.drain()
    shutil.copytree(home, backup)
    with opened(home, emit="updates") as flow:
        put(flow, "c", "d")
        while flow.loop.step(1):
            pass
        before = [record.value for record in flow.log.topic("view").records()]
    for path in home.glob("views*"):
        path.unlink()
    for path in backup.glob("views*"):
        shutil.copy(path, home)
    with hr.open_log(home) as log:
        log.topic("events").append({"word": "e", "n": 1, "at": at(4)})
    with pytest.raises(hr.ViewsDiverged, match="headrace views drop view") as refused:
        opened(home, emit="updates").loop.drain(rows)
    assert (refused.value.topic, refused.value.sent > refused.value.known) == ("view", True)
    with hr.open_log(home) as log:
        assert [record.value for record in log.topic("view").records()] == before


def written(flow: Sparkless) -> int:
    """What the changes in the topic add up to."""
    changes = [record.value for record in flow.log.topic("view").records()]
    return sum(change["records"] * (1 if change["op"] == "+" else -1) for change in changes)


def test_a_backup_is_of_one_moment_of_log_and_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the copies of both a flow commits and writes: the copy has both, or neither."""
    home, copied = tmp_path / "home", keeping.back_up_views
    with opened(home, emit="updates") as flow:
        put(flow, "a", "b")
        flow.loop.drain()

        def slowly(*given: Any) -> Any:
            found = copied(*given)
            put(flow, "c", "d")
            flow.loop.drain()
            return found

        monkeypatch.setattr(keeping, "back_up_views", slowly)
        hr.backup(home, tmp_path / "copy")
        assert written(flow) == 4
    hr.restore(tmp_path / "copy", tmp_path / "again")
    with opened(tmp_path / "again", emit="updates") as flow:
        assert written(flow) == 2
        put(flow, "c", "c", "d")
        flow.loop.drain()
        assert written(flow) == len(list(flow.topic.records())) == 5


def test_a_log_that_was_read_no_further_than_the_copy_goes_on(tmp_path: Path) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    with opened(home) as flow:
        put(flow, "a", "b")
        flow.loop.drain()
    shutil.copytree(home, backup)
    with opened(home) as flow:
        put(flow, "c", "d")  # which nobody has read
    restore(backup, home)
    with opened(home) as flow:
        put(flow, "x")
        flow.loop.drain()
        assert sum(row["records"] for row in flow.views.to_arrow("view").to_pylist()) == 3


def sealed(flow: Sparkless) -> None:
    put(flow, *"abcdefgh")
    flow.loop.drain(3)
    assert flow.log.maintain().batches_sealed


def compacted(flow: Sparkless) -> None:
    put(flow, *"aabbaab")
    flow.loop.drain(3)
    assert flow.log.maintain().records_compacted
    assert [record.offset for record in flow.topic.records()] == [5, 6]


def erased(flow: Sparkless) -> None:
    put(flow, *"abcab")
    flow.loop.drain(2)
    assert flow.topic.erase("b").records == 2, "the last record that was read, too"


def deleted(flow: Sparkless) -> None:
    put(flow, *"abcdef")
    flow.loop.drain(4)
    flow.topic.alter(retention="1 microsecond", unread="keep")
    assert flow.log.maintain().records_deleted == 6


@pytest.mark.parametrize(
    ("upkeep", "settings"),
    [
        (sealed, {}),
        (compacted, {"key": "word", "cleanup": "compact"}),
        (erased, {"key": "word"}),
        (deleted, {}),
    ],
)
@pytest.mark.parametrize("read", ["all of it", "half of it"])
def test_upkeep_is_no_other_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upkeep: Callable[[Sparkless], None], settings: Any, read: str
) -> None:
    """What it rewrites keeps its arrival; what it deletes is gone, and nobody misses it."""
    monkeypatch.setattr(committer, "SEAL_AT", 2)
    home = tmp_path / "home"
    with hr.open_log(home) as log:
        log.create_topic("events", "word string, n int, at timestamp", event_time="at", **settings)
    with opened(home) as flow:
        upkeep(flow)
        if read == "half of it":  # and the flow is somewhere inside of what was rewritten
            put(flow, *"abcdefgh")
            flow.loop.step(5)
            flow.log.maintain()
    for _ in range(2):
        with opened(home) as flow:
            flow.loop.drain()
            flow.log.maintain()
