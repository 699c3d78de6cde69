"""A real Kafka broker for a test run: one process, started by `scripts/kafka` when the first test asks for it, and
stopped with the run. Where there is none, the tests that ask for it are skipped, with the reason."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "kafka"


@contextmanager
def started(*options: str) -> Iterator[str]:
    """The address, HOST:PORT, of a broker with these options; inside the block it runs."""
    pytest.importorskip("confluent_kafka", reason="no Kafka broker: confluent-kafka is not installed")
    command = [str(SCRIPT), "--until-eof", *options]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with process:
        address = process.stdout.readline().strip()
        if not address:
            pytest.skip(process.stderr.read().strip() or "no Kafka broker: scripts/kafka did not start")
        yield address
        process.stdin.close()
        process.wait(timeout=60)


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """The broker's address, HOST:PORT."""
    with started() as address:
        yield address
