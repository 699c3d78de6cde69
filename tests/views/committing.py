"""Views without Spark: a flow whose commits are made by hand or at random. As a program, another process that commits:

    python -m tests.views.committing HOME SEED BATCHES

prints a line for each commit: its sequence, and what the view was then."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.durations import instant_us
from headrace.testing.folding import PartialCommit
from headrace.views.contract import Column, FlowSpec, FlowState, LedgerRow, Place, Result, SlotColumn, ViewSpec
from tests.views.folded import SqliteViews

VIEW = "clicks_per_page"
MINUTE_US = 60_000_000
START = datetime(2026, 1, 1, 9, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")

SPEC = FlowSpec(
    name=VIEW,
    app="shop",
    sources=("clicks",),
    view=ViewSpec(
        name=VIEW,
        groups=(Column("page", "string"),),
        slots=(
            SlotColumn("clicks", "bigint", "add"),
            SlotColumn("ms__sum", "double", "add"),
            SlotColumn("ms__count", "bigint", "add"),
            SlotColumn("slowest", "int", "greatest"),
        ),
        results=(
            Result("clicks", "bigint", ("clicks",)),
            Result("ms", "double", ("ms__sum", "ms__count")),
            Result("slowest", "int", ("slowest",)),
        ),
        window_us=(MINUTE_US, MINUTE_US),
    ),
    window="tumbling('1 minute')",
    aggregates={"clicks": "count()", "ms": "avg('ms')", "slowest": "max('ms')"},
    grace_us=10_000_000,
    within_us=3_600_000_000,
)

Click = tuple[int, str | None, int]
"""Minute, page, milliseconds."""


def partials(clicks: Iterable[Click], corrections: int = 0) -> pa.Table:
    rows = [
        {
            "window_start": START + timedelta(minutes=minute),
            "window_end": START + timedelta(minutes=minute + 1),
            "page": page,
            "clicks": 1,
            "ms__sum": float(ms),
            "ms__count": 1,
            "slowest": ms,
            "_corrections": corrections,
            "_updated_at": START + timedelta(minutes=minute, seconds=ms % 60),
        }
        for minute, page, ms in clicks
    ]
    kinds = {
        "window_start": TIME,
        "window_end": TIME,
        "page": pa.string(),
        "clicks": pa.int64(),
        "ms__sum": pa.float64(),
    }
    kinds |= {"ms__count": pa.int64(), "slowest": pa.int32(), "_corrections": pa.int64(), "_updated_at": TIME}
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))


class Committing:
    """A store and one flow in it."""

    def __init__(self, home: Path, spec: FlowSpec = SPEC, topic_id: str = "abc", *, replace: bool = False) -> None:
        self.store = SqliteViews(home)
        self.views = hr.open_views(home)
        self.topic_id = topic_id
        self.flow: FlowState = self.store.begin(spec, replace=replace)
        self.offset = max((place.offset for place in self.flow.places.get("clicks", {}).values()), default=0)

    def commit(
        self, clicks: Sequence[Click] = (), *, closed: int | None = None, ledger: Sequence[LedgerRow] = (), **more: Any
    ) -> int:
        """Commits the clicks; windows up to minute `closed` are final. Returns the new sequence."""
        self.offset += len(clicks)
        closed_us = None if closed is None else instant_us(START, argument="start") + closed * MINUTE_US
        facts = {
            "sequence": self.flow.sequence,
            "places": {"clicks": {0: Place(self.offset, closed_us)}},
            "topic_ids": {"clicks": self.topic_id},
            "frontier_us": closed_us,
            "closed_us": closed_us,
            "ledger": ledger,
        }
        parts = {"partials": partials(clicks) if clicks else None}
        parts |= {name: more.pop(name) for name in ("partials", "shape", "aggregates") if name in more}
        self.flow = self.store.commit(self.flow, PartialCommit(**parts, facts={**facts, **more}))
        return self.flow.sequence

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.views.to_arrow(VIEW).to_pylist()
        return rows

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Committing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def random_batch(dice: random.Random, now: int) -> list[Click]:
    pages = ["/", "/cart", "/müsli", None]
    return [
        (max(0, now - dice.randrange(4)), dice.choice(pages), dice.randrange(1000)) for _ in range(dice.randrange(30))
    ]


def digest(rows: Iterable[dict[str, Any]]) -> str:
    return digest_of(repr(sorted(row.items())) for row in rows)


def digest_of(texts: Iterable[str]) -> str:
    """Equal for equal rows, in whatever order."""
    return hashlib.sha1("\n".join(sorted(texts)).encode()).hexdigest()


def main(home: str, seed: str, batches: str) -> None:
    dice, now = random.Random(int(seed)), 0
    with Committing(Path(home)) as committing:
        for left in reversed(range(int(batches))):
            now += dice.random() < 0.1
            closed = max(0, now - 2) if dice.random() < 0.5 else None
            last = [] if left else [(now, "/end", 1)]  # the last commit changes something
            sequence = committing.commit([*random_batch(dice, now), *last], closed=closed)
            print(sequence, digest(committing.rows()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
