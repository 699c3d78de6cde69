"""SIGKILL at every failpoint of the batch that makes two sessions one: what goes out is -A -B +AB, once, and rows,
values and ledger are those of a run that nobody disturbed. Without a JVM, which has no part in it."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.testing import CRASH_POINTS
from tests.flows.sparkless import Sparkless

START = datetime(2026, 1, 1, tzinfo=UTC)


def row(seconds: int, number: int) -> dict[str, Any]:
    return {"word": "a", "n": number, "at": START + timedelta(seconds=seconds)}


def opened(home: Path) -> Sparkless:
    return Sparkless(home, hr.session("4 seconds"), within=60, emit="updates")


def work_off(home: Path, point: str = "", skip: int = 0) -> None:
    with opened(home) as flow:
        if point:
            failpoints.arm(point, "kill", skip=skip)
        flow.loop.drain()


def begun_and_killed(home: Path, point: str) -> None:
    failpoints.arm(point, "kill")
    work_off(home)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions from 0 to 3 and from 9 to 10; a record of second 6, which joins them, is in the log and not read."""
    home = tmp_path_factory.mktemp("kills") / "before"
    with opened(home) as flow:
        flow.topic.append([row(0, 1), row(3, 2), row(9, 3), row(10, 4)])
        flow.loop.drain()
        flow.topic.append([row(6, 5)])
    return home


@pytest.fixture(scope="module")
def calm(before: Path) -> Path:
    home = before.with_name("calm")
    shutil.copytree(before, home)
    work_off(home)
    return home


@pytest.fixture(scope="module")
def start() -> Any:
    """Starts processes that share nothing with this one, and have imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])  # which Arrow would import in each of them
    return lambda target, *arguments: _ended(context.Process(target=target, args=arguments))


def _ended(process: Any) -> int:
    process.start()
    process.join(60)
    return int(process.exitcode)


def stored(home: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What the view store has, but for who wrote it when."""
    with closing(sqlite3.connect(home / "views.db")) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        return {
            name: db.execute(f'SELECT * FROM "{name}"').fetchall() for name in names if name not in ("_flows", "_meta")
        }


def sent(home: Path) -> list[tuple[Any, ...]]:
    """The changes in the topic: op, first and last second, number of records and words."""
    with hr.open_log(home) as log:
        found = [record.value for record in log.topic("view").records()]
    seconds = [[(each[name] - START).seconds for name in ("window_start", "window_end")] for each in found]
    return [
        (each["op"], *bounds, each["records"], each["total"], each["words"])
        for each, bounds in zip(found, seconds, strict=True)
    ]


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_killed_where_two_sessions_become_one(point: str, before: Path, calm: Path, tmp_path: Path, start: Any) -> None:
    home = tmp_path / "home"
    shutil.copytree(before, home)
    assert start(work_off, home, point) == -signal.SIGKILL
    if point in ("view.committed", "relay.appended"):  # what is committed and perhaps sent; and again
        assert start(begun_and_killed, home, "relay.appended") == -signal.SIGKILL
    work_off(home)
    came = [("+", 0, 3, 2, 3, 1), ("+", 9, 10, 2, 7, 1)]
    joined = [("-", 0, 3, 2, 3, 1), ("-", 9, 10, 2, 7, 1), ("+", 0, 10, 5, 15, 1)]
    assert sent(home) == sent(calm) == came + joined
    assert stored(home) == stored(calm)
