"""How captures stand, as plain values: what the HTTP API answers, the page shows and the metrics count. Owns the names
of the facts, and the command by which a table goes on; reads, and changes nothing."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from headrace.cdc.choice import state_topic
from headrace.cdc.journal import TURN, recorded
from headrace.cdc.running import CaptureStatus, TableStatus, status_of
from headrace.durations import instant_us

if TYPE_CHECKING:
    from headrace.log.contract import Log

__all__ = ["capture_facts"]


def capture_facts(log: Log, capture: str) -> dict[str, Any]:
    """`lag_bytes`: how far the database's log was ahead of what is here when it was measured. `lag_ms`: how long the
    last transaction took from its commit to the log here, by both clocks."""
    found = status_of(log, capture)
    return {
        "name": capture,
        "database": found.database,
        "place": str(found.place),
        "committed_at": found.committed_at,
        "lag_bytes": _lag_bytes(log, found),
        "lag_ms": _lag_ms(log, found),
        "slot": found.slot or None,
        "slot_bytes": found.slot_bytes,
        "wal_status": found.wal_status or None,
        "safe_bytes": found.safe_wal_size,
        "time_to_loss_seconds": None if found.seconds_to_loss is None else round(found.seconds_to_loss, 3),
        "measured_at": found.measured_at,
        "tables": [_table(capture, each) for each in found.tables],
    }


def _table(capture: str, found: TableStatus) -> dict[str, Any]:
    schema, _, name = found.table.rpartition(".")
    named = name if schema == "public" and not name.startswith("-") else found.table
    stopped = found.state == "stopped"
    return {
        "table": found.table,
        "topic": found.topic,
        "state": found.state,
        "copied": found.copied,
        "epoch": found.epoch,
        "why": found.why or None,
        "command": shlex.join(["headrace", "capture", "snapshot", capture, named]) if stopped else None,
    }


def _lag_bytes(log: Log, found: CaptureStatus) -> int | None:
    """By the end of the database's log when it was measured; what was captured since is not counted against it."""
    ahead = recorded(log, found.capture).get(("health", ""), {}).get("at")
    return None if not isinstance(ahead, int) or not found.place else max(0, ahead - found.place)


def _lag_ms(log: Log, found: CaptureStatus) -> float | None:
    """The place is a record of each write; the transaction came with the first that has this place."""
    if found.committed_at is None:
        return None
    end, arrived = None, None
    for batch in log.topic(state_topic(found.capture)).batches(columns=["kind", "name", "value", "_arrived_at"]):
        columns = (batch[name].to_pylist() for name in ("kind", "name", "value", "_arrived_at"))
        for kind, name, value, at in zip(*columns, strict=True):
            if (kind, name) == TURN and (its := json.loads(value).get("end")) != end:
                end, arrived = its, at
    if arrived is None:
        return None
    took_us = instant_us(arrived, argument="arrived") - instant_us(found.committed_at, argument="committed")
    return round(max(0, took_us) / 1e3, 1)
