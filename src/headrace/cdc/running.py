"""Runs a capture in a thread, and again after what passes: a connection that is lost, a server that restarts. Owns what
passes, and what is said of the capture meanwhile. Knows no database: `Source` is one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.cdc.journal import Value, recorded
from headrace.cdc.source import Source
from headrace.durations import from_us
from headrace.errors import CaptureFailed, HeadraceError
from headrace.log.contract import Log
from headrace.retrying import RetryingThread, log_may_recover

__all__ = ["CaptureStatus", "CaptureThread", "TableStatus", "status_of"]

logger = logging.getLogger("headrace.cdc")


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A captured table. `state`: "copying", "reading again", "live", or "stopped": then `why` says what happened, and
    the others go on. `copied`: rows of its snapshot."""

    table: str
    topic: str
    state: str
    copied: int
    epoch: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """How a capture does, as it has recorded itself. `place`: the end of the last transaction that is in the log, and
    `committed_at` when the database committed it. `position`: the place as MySQL names it. `slot_bytes`, `wal_status`,
    `safe_wal_size`, `seconds_to_loss`: what the database keeps for it, and how long it will, as measured at
    `measured_at`. `state`, `error`: of the process that runs it, if that is this one."""

    capture: str
    database: str
    place: int
    committed_at: datetime | None
    tables: tuple[TableStatus, ...] = ()
    position: str = ""
    slot: str = ""
    slot_bytes: int | None = None
    wal_status: str = ""
    safe_wal_size: int | None = None
    seconds_to_loss: float | None = None
    measured_at: datetime | None = None
    state: str = ""
    error: str = ""
    restarts: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def status_of(log: Log, capture: str, **more: Any) -> CaptureStatus:
    """From what is in the log; UnknownCapture if there is nothing of it."""
    states = recorded(log, capture)
    place, health = states.get(("place", ""), {}), states.get(("health", ""), {})
    facts, slot = states.get(("capture", ""), {}), states.get(("slot", ""), {})
    tables = [value for (kind, _), value in sorted(states.items()) if kind == "table"]
    return CaptureStatus(
        capture,
        facts.get("database", ""),
        place.get("end", 0),
        _instant(place, "at_us"),
        tuple(
            TableStatus(
                f"{each['schema']}.{each['name']}",
                each["topic"],
                each["state"],
                each["copied"],
                each["epoch"],
                each["why"],
            )
            for each in tables
        ),
        states.get(("log", ""), {}).get("position", ""),
        slot.get("name", ""),
        health.get("slot_bytes"),
        health.get("wal_status", ""),
        health.get("safe_wal_size"),
        health.get("seconds_to_loss"),
        _instant(health, "measured_us"),
        facts=facts,
        **more,
    )


def _instant(value: Value, name: str) -> datetime | None:
    return None if value.get(name) is None else from_us(value[name])


def _passes(error: HeadraceError) -> bool:
    """Whether the same may succeed later."""
    return error.passing if isinstance(error, CaptureFailed) else log_may_recover(error)


class CaptureThread(RetryingThread):
    """A source that runs until `stop`."""

    def __init__(self, source: Source) -> None:
        super().__init__(f"capture {source.name}", self._capture, _passes, logger=logger, retrying="reconnecting")
        self._source = source

    def _capture(self) -> None:
        self._source.run(self._looks_whether_to_stop)

    def _looks_whether_to_stop(self) -> bool:
        self.is_well()  # it is connected: it looks whether it is to go on
        return self.is_stopping()
