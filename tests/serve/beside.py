"""A capture, as one has recorded itself, and an index: what a server shows of both. No database, and no Spark."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from headrace.cdc.journal import Journal
from headrace.connect.index.spec import SearchIndex, search_index
from headrace.connect.open import open_sink
from headrace.connect.running import drained
from headrace.durations import instant_us
from headrace.log.contract import Log

WHY = "the table has changed: column 'name' is gone"
AT_US = instant_us("2026-01-01T09:00:00Z", argument="at")


def make_capture(log: Log, name: str = "shop", **health: Any) -> None:
    """`users` is live, `billing.invoices` was stopped; the database's log is 4,000 bytes ahead."""
    table = {"topic": f"{name}_users", "schema": "public", "name": "users", "state": "live", "copied": 40, "epoch": 0}
    stopped = {"schema": "billing", "name": "invoices", "topic": f"{name}_billing_invoices", "state": "stopped"}
    measured = {"slot_bytes": 9_000, "wal_status": "reserved", "safe_wal_size": 5_000_000, "seconds_to_loss": 7_200.0}
    measured |= {"at": 104_000, "measured_us": AT_US}
    Journal(log, name).write(
        [],
        {
            ("capture", ""): {"database": "postgresql://db/shop"},
            ("slot", ""): {"name": f"headrace_{name}_1"},
            ("place", ""): {"end": 100_000, "at_us": AT_US},
            ("health", ""): measured | health,
            ("table", "1"): {**table, "why": ""},
            ("table", "2"): {**table, **stopped, "why": WHY},
        },
    )


def make_index(log: Log, home: Path, topic: str, *text: str, name: str = "people") -> SearchIndex:
    made = search_index(f"{name}.db", text=text)
    with contextlib.closing(open_sink(made, name, log, log.topic(topic), home)) as opened:
        drained(log, name, opened)
    return made
