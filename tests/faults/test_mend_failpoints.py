"""A mend that is killed, or fails, at each of its points: the topic is as it was, and mending again ends as if nothing
had happened."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace import failpoints
from headrace.errors import DiskFull
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.open import open_log
from tests.faults.children import Children, ack

AHEAD_NS = 3652 * 86_400 * 10**9
POINTS = [*(point for point in failpoints.KNOWN if point.startswith("mend.")), "commit.applied"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three batches, two of them stamped by a clock that was ahead, the last with an event time in the future."""
    now_ns = time.time_ns
    with open_log(tmp_path / "log") as log, monkeypatch.context() as wrong:
        topic = log.create_topic("t", "n int, at timestamp", event_time="at")
        topic.append({"n": 0, "at": None})
        wrong.setattr(time, "time_ns", lambda: now_ns() + AHEAD_NS)
        log.confirm_clock()
        topic.append({"n": 1, "at": None})
        topic.append({"n": 2, "at": log.clock().clock})
    return tmp_path / "log"


def mend(home: str, point: str) -> None:
    failpoints.arm(point, "kill", skip=1 if point == "mend.piece" else 0)
    with open_log(home) as log:
        log.mend()
    ack("never reached")


def held(log: EmbeddedLog) -> list[Any]:
    return [(record.offset, record.value["n"]) for record in log.topic("t").records()]


def check_untouched_and_mend(log: EmbeddedLog, topic_id: str) -> None:
    assert log.topic("t").topic_id == topic_id
    assert held(log) == [(0, 0), (1, 1), (2, 2)]
    assert log.dead_letters_count() == 0
    assert log.verify().problems == []
    (done,) = log.mend()
    assert (done.restamped, done.dead_letters) == (1, 1)
    assert held(log) == [(0, 0), (1, 1)]
    assert [letter.value["n"] for letter in log.dead_letters()] == [2]  # type: ignore[index]
    assert log.clock().partitions == []
    assert [topic.name for topic in log._catalog.all(system=True)] == ["__dead_letters", "t"]
    assert log.verify().problems == []


@pytest.mark.parametrize("point", POINTS)
def test_a_mend_that_fails_has_changed_nothing(home: Path, point: str) -> None:
    with open_log(home) as log:
        topic_id = log.topic("t").topic_id
        failpoints.arm(point, "raise")
        with pytest.raises(failpoints.InjectedFault):
            log.mend()
        check_untouched_and_mend(log, topic_id)


def disk_full() -> None:
    raise DiskFull(path="log.db", why="no space left on device")


@pytest.mark.parametrize("commits", range(6))
def test_a_mend_counts_no_record_twice_when_the_disk_was_full_for_a_moment(home: Path, commits: int) -> None:
    with open_log(home) as log:
        failpoints.arm("commit.applied", disk_full, skip=commits)
        (done,) = log.mend()
        assert (done.restamped, done.dead_letters) == (1, 1)
        assert held(log) == [(0, 0), (1, 1)]
        assert log.dead_letters_count() == 1
        assert log.verify().problems == []


def test_a_mend_that_is_killed_has_changed_nothing(home: Path, children: Children) -> None:
    with open_log(home) as log:
        topic_id = log.topic("t").topic_id
    child = children.start(mend, str(home), "mend.switched")
    assert child.rest() == []
    with open_log(home) as log:
        check_untouched_and_mend(log, topic_id)
