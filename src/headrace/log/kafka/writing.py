"""What is appended to Kafka: rows checked, encoded and given their partition; dead letters of those that are too far
ahead. Sends nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import jsonrows, rows
from headrace.durations import from_us
from headrace.log.contract import Progress, Rows
from headrace.log.incoming import assign_partitions, given_progress, refuse_too_large, repeatable, split_ahead
from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.client import Outgoing
from headrace.log.kafka.reading import PROGRESS_HEADER
from headrace.log.kafka.values import encode

__all__ = ["Prepared", "ahead_letters", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """Rows that were checked: records for a topic, and rows whose event time is too far ahead."""

    entry: Entry
    records: list[Outgoing]
    ahead: pa.RecordBatch | None


def prepare(entry: Entry, data: Rows, *, partition: int | None = None, progress: Progress = None) -> Prepared:
    """Raises what is wrong with the rows before anything is sent."""
    settings = entry.settings
    batch = rows.to_batch(repeatable(data), entry.columns, extra=settings.extra, topic=entry.name)
    refuse_too_large(batch, entry.name)
    carried, ahead = given_progress(progress, batch.num_rows), None
    if settings.event_time is not None and batch.num_rows:
        limit_us = time.time_ns() // 1000 + settings.max_ahead_us
        batch, ahead, carried = split_ahead(batch, settings.event_time, limit_us, carried)
    assigned = assign_partitions(batch, entry.name, entry.topic_id, settings, partition)
    values, keys = encode(batch, entry)
    if entry.foreign and settings.key:
        partitions = [-1] * batch.num_rows  # by the client's rule, which is Java's
    else:
        partitions = np.zeros(batch.num_rows, np.int64).tolist() if assigned is None else assigned.tolist()
    headers: list[Any] = [None] * batch.num_rows
    if carried is not None:
        told = carried.view(pa.int64()).to_pylist()
        headers = [[(PROGRESS_HEADER, b"" if us is None else b"%d" % us)] for us in told]
    return Prepared(entry, list(zip(partitions, values, keys, headers, strict=True)), ahead)


def ahead_letters(prepared: Prepared) -> list[dict[str, Any]]:
    """Dead letters of the rows that are too far ahead, so that one wrong clock cannot move a topic's time."""
    if prepared.ahead is None:
        return []
    settings, out = prepared.entry.settings, []
    for row in rows.to_rows(prepared.ahead):
        when = row[settings.event_time or ""]
        error = f"event time {when.isoformat()} is more than {settings.max_ahead_us / 1e6:g} s ahead of arrival"
        out.append({"reason": "max_ahead", "error": error, "row": jsonrows.encode_row(row).decode()})
    return out


def died_now(letters: Sequence[Mapping[str, Any]], entry: Entry | None) -> list[dict[str, Any]]:
    """Letters with when they died, and the topic they were meant for."""
    now = from_us(time.time_ns() // 1000)
    meant = {} if entry is None else {"topic": entry.name, "topic_id": entry.topic_id}
    return [{"died_at": now, **meant, **letter} for letter in letters]
