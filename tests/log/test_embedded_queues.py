"""The embedded log's queues keep the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.log.embedded.consume import queue_core
from headrace.log.open import open_log
from headrace.testing import QueueContract


class TestEmbeddedQueues(QueueContract):
    embedded = True

    def open_log(self, home: Path) -> Any:
        return open_log(home)

    def set_lease_clock(self, monkeypatch: pytest.MonkeyPatch, now_us: Callable[[], int]) -> None:
        monkeypatch.setattr(queue_core, "now", now_us)
