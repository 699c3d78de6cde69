"""A broker that is restarted while a program uses it: the same handles read and append on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.broker import SCRIPT


@contextmanager
def running(folder: Path, port: int | None = None) -> Iterator[str]:
    given = ["--until-eof", "--data", str(folder), *(["--port", str(port)] if port else [])]
    with subprocess.Popen([str(SCRIPT), *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdin is not None and started.stdout is not None
        yield started.stdout.readline().strip()
        started.stdin.close()


def test_handles_go_on_after_a_restart(broker: str, tmp_path: Path) -> None:
    assert broker  # where there is none, this is skipped, too
    with running(tmp_path / "data") as address:
        log = hr.open_log(f"kafka://{address}")
        topic: Any = log.create_topic("t", "n int")
        topic.append({"n": 0})
        assert [record.value["n"] for record in topic.records()] == [0]
    with pytest.raises(hr.KafkaFailed):  # within seconds
        list(topic.records())
    with running(tmp_path / "data", int(address.partition(":")[2])):
        assert [record.value["n"] for record in topic.records()] == [0]
        topic.append({"n": 1})
        assert [record.value["n"] for record in topic.records()] == [0, 1]
        log.close()
