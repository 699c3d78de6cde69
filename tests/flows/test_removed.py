"""A home that is taken away under a flow that has nothing to do: it is noticed, and nothing is made in its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import LogMissing
from headrace.flows.supervise import Supervisor
from tests.flows.sparkless import Sparkless

SECONDS_MAX = 20.0


@pytest.mark.parametrize("what", ["home", "log.db", "views.db"])
def test_a_quiet_flow_notices(tmp_path: Path, what: str) -> None:
    home = tmp_path / "home"
    flow = Sparkless(home, hr.tumbling("1 minute"))
    flow.topic.append({"word": "a", "n": 1, "at": "2026-01-01T00:00:00Z"})
    supervisor = Supervisor(flow.loop, lambda _flow: flow.started())
    supervisor.start()
    flow.views.wait_for(flow.log.topic("events").append({"word": "b"}).position, timeout="20 seconds")
    if what == "home":
        shutil.rmtree(home)
    else:
        (home / what).unlink()
    assert supervisor.join(SECONDS_MAX), "it goes on as if nothing were"
    assert isinstance(supervisor.error, LogMissing) and "removed or replaced while open" in str(supervisor.error)
    flow.close()
    assert not (home if what == "home" else home / what).exists()
