"""Runs a capture in a thread, and again after what passes: a connection that is lost, a server that restarts. Owns the
thread, the pauses between attempts, and what is said of the capture meanwhile. Knows no database: `Source` is one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from headrace.cdc.journal import Value, recorded
from headrace.cdc.source import Source
from headrace.durations import from_us
from headrace.errors import CaptureFailed, DiskFull, HeadraceError, KafkaFailed, TopicFull
from headrace.log.contract import Log

__all__ = ["CaptureStatus", "CaptureThread", "TableStatus", "status_of"]

logger = logging.getLogger("headrace.cdc")
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 30.0
STEADY_SECONDS: Final = 60.0
"""An attempt that lasted so long was no failed one."""


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
    if isinstance(error, KafkaFailed):
        return error.retriable
    return not isinstance(error, CaptureFailed) or error.passing


class CaptureThread:
    """A source that runs until `stop`. What passes is tried again, after pauses that grow; anything else ends it, and
    is `error`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"capture-{source.name}", daemon=True)
        self.error: BaseException | None = None
        self.trouble = ""
        """What is wrong just now, while it is tried again."""
        self.restarts = 0

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        if not self._thread.is_alive():
            return "stopped"
        return "reconnecting" if self.trouble else "running"

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends it after what it is writing. True if it has ended."""
        self._stopping.set()
        return self.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self._source.run(self._is_stopping)
                return
            except (CaptureFailed, DiskFull, TopicFull, KafkaFailed) as error:
                if not _passes(error):
                    self.error = error
                    logger.error("%s", error)
                    return
                self.trouble = str(error)
                self.restarts += 1
                if time.monotonic() - begun > STEADY_SECONDS:
                    pause = PAUSE_SECONDS
                logger.warning("%s. Trying again in %.1f seconds", error, pause)
                self._stopping.wait(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            except HeadraceError as error:
                self.error = error
                logger.error("capture %s: %s", self._source.name, error)
                return
            except BaseException as error:
                self.error = error
                logger.exception("capture %s", self._source.name)
                return

    def _is_stopping(self) -> bool:
        self.trouble = ""  # it is connected: it looks whether it is to go on
        return self._stopping.is_set()
