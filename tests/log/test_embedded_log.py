"""The embedded log keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.log.embedded.consume import groups
from headrace.log.embedded.write.append import Stamp
from headrace.log.open import open_log
from headrace.testing import LogContract


class TestEmbeddedLog(LogContract):
    embedded = True

    def open_log(self, home: Path) -> Any:
        return open_log(home)

    def silence(self, member: Any) -> None:
        groups._beats(member._engine).remove(member)

    def stamps(self, topic: Any) -> Callable[[int], Any]:
        with topic.producer("p") as producer:
            return lambda sequence: Stamp("p", producer._epoch, sequence)
