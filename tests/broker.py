"""A real Kafka broker for a test run: one process, started by `scripts/kafka` when the first test asks for it, and
stopped with the run. Where there is none, the tests that ask for it are skipped, with the reason."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "kafka"


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """The broker's address, HOST:PORT."""
    pytest.importorskip("confluent_kafka", reason="no Kafka broker: confluent-kafka is not installed")
    started = subprocess.Popen(
        [str(SCRIPT), "--until-eof"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdin is not None and started.stdout is not None and started.stderr is not None
    with started:
        address = started.stdout.readline().strip()
        if not address:
            pytest.skip(started.stderr.read().strip() or "no Kafka broker: scripts/kafka did not start")
        yield address
        started.stdin.close()
        started.wait(timeout=60)
