"""A broker that is restarted while a program uses it: the same handles read and append on, and flows write on."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.flows.supervise import Supervisor
from tests.broker import SCRIPT
from tests.kafka.test_flow_loop import opened, row
from tests.kafka.test_foreign import plain_records


@contextmanager
def running(folder: Path, port: int | None = None) -> Iterator[str]:
    given = ["--until-eof", "--data", str(folder), *(["--port", str(port)] if port else [])]
    with subprocess.Popen([str(SCRIPT), *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdin is not None and started.stdout is not None
        yield started.stdout.readline().strip()
        started.stdin.close()


def test_handles_and_flows_go_on_after_a_restart(broker: str, tmp_path: Path) -> None:
    """The broker goes while a flow is inside a transaction of what it writes: each row is there once."""
    assert broker  # where there is none, this is skipped, too
    inside, stopped = threading.Event(), threading.Event()
    rows = [row(10 * number, number) for number in range(12)]  # a session each
    with running(tmp_path / "data") as address:
        log = hr.open_log(f"kafka://{address}")
        topic: Any = log.create_topic("t", "n int")
        topic.append({"n": 0})
        assert [record.value["n"] for record in topic.records()] == [0]
        flow = opened(tmp_path / "home", f"kafka://{address}", hr.session("4 seconds"), emit="updates")
        supervisor = Supervisor(flow.loop, lambda _: flow.started(at_once=False))
        supervisor.start()
        flow.topic.append(rows[:5])
        until(lambda: len(written(address)) == 5)
        failpoints.arm("kafka.sent", lambda: (inside.set(), stopped.wait(60))[0])
        flow.topic.append(rows[5:10])
        assert inside.wait(30)
    with pytest.raises(hr.KafkaFailed):  # within seconds
        list(topic.records())
    stopped.set()
    with running(tmp_path / "data", int(address.partition(":")[2])):
        assert [record.value["n"] for record in topic.records()] == [0]
        topic.append({"n": 1})
        assert [record.value["n"] for record in topic.records()] == [0, 1]
        flow.topic.append(rows[10:])
        until(lambda: len(written(address)) >= len(rows))
        supervisor.ask_to_stop()
        assert supervisor.join(30) and supervisor.error is None
        assert sorted(written(address)) == [each["n"] for each in rows]
        flow.close()
        log.close()


def written(address: str) -> list[int]:
    """What a plain read_committed consumer sees of the flow's topic."""
    return [json.loads(each.value())["total"] for each in plain_records(address, "view")]


def until(found: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not found():
        assert time.monotonic() < limit
        time.sleep(0.05)
