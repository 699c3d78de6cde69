"""What is said of a flow that fails and is started again; and how often one takes a batch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows import supervise
from headrace.flows.supervise import Supervisor, Turns, starting_again
from tests.flows.sparkless import Sparkless


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (hr.TopicFull("t", 9, 8), "use unread='delete'; starting again in 0.5 s"),
        (OSError("no space"), "flow v: no space; starting again in 0.5 s"),
    ],
)
def test_two_sentences_are_one(error: Exception, line: str) -> None:
    assert starting_again("v", error, 0.5).endswith(line)


def test_a_turn_comes_every_so_often_and_at_once_while_behind() -> None:
    turns = Turns(10_000_000)
    assert turns.left_seconds(100.0) == 0.0
    turns.take(100.0, behind=False)
    assert [turns.left_seconds(now) for now in (100.0, 104.0, 110.0, 999.0)] == [10.0, 6.0, 0.0, 0.0]
    turns.take(111.0, behind=True)
    assert turns.left_seconds(111.0) == 0.0


class Live:
    """A flow that runs, and is seen to look for records."""

    def __init__(self, flow: Sparkless, batch_rows: int | None = None) -> None:
        self.supervisor = Supervisor(flow.loop, lambda _: None, batch_rows)
        self._looked = threading.Semaphore(0)
        quietly = flow.loop.close_windows

        def close_windows(**more: Any) -> bool:  # it comes here when it takes no batch
            self._looked.release()
            return quietly(**more)

        flow.loop.close_windows = close_windows  # type: ignore[method-assign]

    def takes_none(self) -> None:
        """Returns when it has looked since, twice, and has taken nothing."""
        while self._looked.acquire(blocking=False):
            pass
        for _ in range(3):  # the first may have begun before
            assert self._looked.acquire(timeout=30)

    def __enter__(self) -> Live:
        self.supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.ask_to_stop()
        assert self.supervisor.join(30) and self.supervisor.error is None


def counted(flow: Sparkless) -> int:
    return int(sum(flow.views.to_arrow("view")["records"].to_pylist()))


def test_a_live_flow_takes_a_batch_every_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hour: one batch now, what comes then not yet; but all of what it is behind, and in a drain all there is."""
    monkeypatch.setattr(supervise, "LOOK_SECONDS", 0.01)
    with Sparkless(tmp_path, None, names=("records",), every_us=3_600_000_000) as flow:
        for _ in range(3):
            flow.topic.append({"word": "a"})
        with Live(flow, batch_rows=1) as live:
            live.takes_none()
            assert (live.supervisor.pulse.batches, counted(flow)) == (3, 3)
            flow.topic.append({"word": "a"})
            live.takes_none()
            assert (live.supervisor.pulse.batches, counted(flow)) == (3, 3)
        Supervisor(flow.started(), lambda _: None).work_off()
        assert counted(flow) == 4


def test_without_it_a_live_flow_takes_what_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOOK_SECONDS", 0.01)
    with Sparkless(tmp_path, None, names=("records",)) as flow, Live(flow) as live:
        for number in range(1, 4):
            flow.topic.append({"word": "a"})
            live.takes_none()
            assert counted(flow) == number
