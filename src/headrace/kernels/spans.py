"""Spans of offsets: how much of a topic one micro-batch takes, and which part of it each Spark task reads. Pure
functions over offsets by partition. Knows no Spark and no log; all ranges are half-open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Span", "admitted", "backlog", "spans"]

SPAN_ROWS_MIN = 20_000
"""Less is not worth a task of its own."""
SPAN_ROWS_MAX = 1_000_000
"""More makes the last task of a job a long one, and a retry a dear one."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [start, stop) of one partition: what one task reads."""

    partition: int
    start: int
    stop: int


def backlog(start: Mapping[int, int], stop: Mapping[int, int]) -> int:
    """How many offsets lie between; where partitions are compacted, records may be fewer."""
    return sum(last - start.get(partition, 0) for partition, last in stop.items())


def admitted(start: Mapping[int, int], latest: Mapping[int, int], rows_max: int | None) -> dict[int, int]:
    """How far the next micro-batch goes when it may take `rows_max` offsets: each partition gets its share of what
    waits there, so that none falls behind the others. As long as something waits, the batch is not empty."""
    total = backlog(start, latest)
    if rows_max is None or total <= rows_max:
        return dict(latest)
    waiting = {partition: last - start.get(partition, 0) for partition, last in latest.items()}
    shares = {partition: rows * rows_max // total for partition, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for partition in sorted(waiting, key=lambda p: -(waiting[p] * rows_max % total))[:left]:
        shares[partition] += 1
    return {partition: start.get(partition, 0) + share for partition, share in shares.items()}


def spans(
    start: Mapping[int, int],
    stop: Mapping[int, int],
    *,
    cores: int,
    count_min: int | None = None,
    rows_max: int | None = None,
) -> list[Span]:
    """The spans of [start, stop), large partitions cut into pieces of about equal size, so that all cores work:
    at least `count_min` pieces (the number of cores, where that is worth it), none larger than `rows_max`."""
    total = backlog(start, stop)
    size = max(-(-total // cores), SPAN_ROWS_MIN) if count_min is None else max(total // count_min, 1)
    size = min(size, rows_max or SPAN_ROWS_MAX)
    out = []
    for partition, last in stop.items():
        first = start.get(partition, 0)
        pieces = -(-(last - first) // size)
        edges = [first + (last - first) * i // pieces for i in range(pieces + 1)] if pieces > 0 else []
        out += [Span(partition, begin, end) for begin, end in pairwise(edges)]
    return out
