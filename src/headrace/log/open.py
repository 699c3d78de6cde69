"""Which log an address means. Owns the choice, and is the only module that imports an implementation."""

from __future__ import annotations

import importlib
from pathlib import Path

from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage.engine import Clock

__all__ = ["import_readers", "open_log"]


def open_log(home: str | Path = ".headrace", *, create: bool = True, clock_us: Clock | None = None) -> EmbeddedLog:
    """The log in a directory; made if there is none, unless `create=False` (then LogMissing). `clock_us`: what arrival
    is stamped with, in place of the machine's clock; for tests."""
    return EmbeddedLog(home, create=create, clock_us=clock_us)


def import_readers() -> None:
    """Imports what readers need, before a process is forked into many of them."""
    for name in ("write.append", "storage.deliveries", "read.reading", "storage.retention"):
        importlib.import_module(f"headrace.log.embedded.{name}")
