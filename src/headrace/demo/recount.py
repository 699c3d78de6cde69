"""The view of the demo's shop once more, counted by hand from the log in plain Python: no Spark, no store, no flow.
Pure. What the view must be is what this says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from headrace.demo.traffic import HEALTH

MINUTE, GRACE, WITHIN = timedelta(minutes=1), timedelta(seconds=10), timedelta(minutes=10)
DEAD_BAND = timedelta(seconds=1)

Key = tuple[datetime, str]


@dataclass(slots=True)
class Cell:
    """One minute of one page."""

    views: set[str] = field(default_factory=set)
    orders: int = 0
    cents: int | None = None
    corrections: int = 0

    def facts(self) -> dict[str, Any]:
        return {
            "views": len(self.views),
            "orders": self.orders,
            "cents": self.cents,
            "_corrections": self.corrections,
        }


@dataclass(slots=True)
class Recount:
    cells: dict[Key, Cell] = field(default_factory=dict)
    on_time: int = 0
    corrected: int = 0
    dropped: int = 0
    again: int = 0
    """Page views that had been counted already."""

    @property
    def records(self) -> int:
        return self.on_time + self.corrected + self.dropped


def recount(partitions: Iterable[Iterable[Mapping[str, Any]]]) -> Recount:
    """Counts the records of each partition, in their order."""
    out = Recount()
    for records in partitions:
        progress: datetime | None = None
        for record in records:
            if record["page"] == HEALTH:
                continue
            at = happened(record)
            _count(out, record, at, progress)
            progress = at if progress is None else max(progress, at)
    return out


def happened(record: Mapping[str, Any]) -> datetime:
    """When it was by the shop's clock."""
    wrong: timedelta = record["received"] - record["sent"]
    at: datetime = record["occurred"]
    return at + wrong if abs(wrong) > DEAD_BAND else at


def minute_of(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _count(out: Recount, record: Mapping[str, Any], at: datetime, progress: datetime | None) -> None:
    closes = minute_of(at) + MINUTE + GRACE
    if progress is not None and progress >= closes + WITHIN:
        out.dropped += 1
        return
    cell = out.cells.setdefault((minute_of(at), record["page"]), Cell())
    if progress is not None and progress >= closes:
        out.corrected += 1
        cell.corrections += 1
    else:
        out.on_time += 1
    if record["cents"] is not None:
        cell.orders += 1
        cell.cents = (cell.cents or 0) + record["cents"]
    elif record["view"] in cell.views:
        out.again += 1
    else:
        cell.views.add(record["view"])


def lost_and_doubled(expected: Recount, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How many visits the view's rows lack, and how many they have too many."""
    found = {(row["window_start"], row["page"]): row["views"] + row["orders"] for row in rows}
    wanted = {key: len(cell.views) + cell.orders for key, cell in expected.cells.items()}
    gaps = [wanted.get(key, 0) - found.get(key, 0) for key in wanted.keys() | found.keys()]
    return sum(gap for gap in gaps if gap > 0), -sum(gap for gap in gaps if gap < 0)


def differing(expected: Recount, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows that are not what the count says, each as a sentence."""
    found = {(row["window_start"], row["page"]): row for row in rows}
    out = []
    for key in sorted(expected.cells.keys() | found.keys()):
        wanted = expected.cells[key].facts() if key in expected.cells else {}
        has = {name: found[key][name] for name in Cell().facts()} if key in found else {}
        if wanted != has:
            out.append(f"{key[0]:%H:%M} {key[1]}: the view has {has or 'no such row'}, the log says {wanted or 'none'}")
    return out
