"""SIGKILL at every failpoint of the batch by which a row without a match is due: it goes out once, and once it is taken
back. Without a JVM, which has no part in it."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.testing import CRASH_POINTS
from tests.operators.sparkless_joins import without_spark


def row(id_: str, seconds: int) -> dict[str, Any]:
    return {"id": id_, "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)}


def shop(home: Path) -> hr.App:
    """Orders with their payments, and orders and payments without: a pair is at most 10 seconds long."""
    app = hr.App("shop", home=home)
    orders, payments = (app.stream(app.topic(name, "id string, at timestamp", event_time="at")) for name in SIDES)
    late = {"grace": "0 seconds", "late": hr.correct(within="1 hour")}
    orders.join(payments, on="id", after="10 seconds", how="full", **late).to_topic("paid")
    return app


SIDES = ("orders", "payments")


def begun_and_killed(home: Path, point: str) -> None:
    without_spark()
    with shop(home) as app:
        failpoints.arm(point, "kill")
        app.drain()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pair, an order and a payment that wait; records that are further on are in the log, and not read."""
    home = tmp_path_factory.mktemp("kills") / "before"
    with pytest.MonkeyPatch.context() as patch, shop(home) as app:
        without_spark(patch.setattr)
        app.log.topic("orders").append([row("a", 0), row("b", 1)])
        app.log.topic("payments").append([row("a", 5), row("c", 6)])
        app.drain()
        for name in SIDES:
            app.log.topic(name).append(row("z", 100))
    return home


@pytest.fixture(scope="module")
def start() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])

    def ended(*arguments: Any) -> int:
        process = context.Process(target=begun_and_killed, args=arguments)
        process.start()
        process.join(60)
        return int(process.exitcode or 0)

    return ended


def sent(app: hr.App) -> list[tuple[str, str, bool, bool]]:
    """What went out: op, id, and whether there is an order, and a payment."""
    found = [record.value for record in app.log.topic("paid").records()]
    return sorted((each["op"], each["id"], each["at"] is not None, each["at_right"] is not None) for each in found)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_row_without_a_match_goes_out_once(
    point: str, before: Path, tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(before, home)
    assert start(home, point) == -signal.SIGKILL
    if point in ("view.committed", "relay.appended"):  # what is committed and perhaps sent; and again
        assert start(home, "relay.appended") == -signal.SIGKILL
    without_spark(monkeypatch.setattr)
    pairs = [("+", "a", True, True), ("+", "z", True, True)]
    alone = [("+", "b", True, False), ("+", "c", False, True)]
    with shop(home) as app:
        app.drain()
        assert sent(app) == sorted(pairs + alone)
        app.log.topic("payments").append(row("b", 7))  # late, and its order was alone so far
        app.drain()
        assert sent(app) == sorted([*pairs, *alone, ("-", "b", True, False), ("+", "b", True, True)])
