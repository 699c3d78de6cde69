"""What a view must be: the same query over the whole log, record by record, in plain Python. Shares no code with flows
and stores; only the meaning of the words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Query:
    """`size` and `every` in seconds; None: no window. `within` None: stragglers are dropped."""

    size: int | None
    every: int | None
    grace: int
    within: int
    groups: tuple[str, ...]
    keep: Callable[[Row], bool] = lambda _: True
    without: frozenset[str] = frozenset()
    """Aggregates it does not ask for."""


def records_of(topic: Any) -> list[Row]:
    columns = [*topic.schema.names, "_partition", "_offset", "_arrived_at", "_progress"]
    return [row for batch in topic.batches(columns=columns) for row in batch.to_pylist()]


def windows_of(at: datetime, size: int, every: int) -> Iterable[datetime]:
    """The starts of all windows that hold the time."""
    seconds = (at - EPOCH) / timedelta(seconds=1)
    start = int(seconds // every) * every
    while start + size > seconds:
        yield EPOCH + timedelta(seconds=start)
        start -= every


def expected(records: list[Row], query: Query) -> tuple[dict[tuple[Any, ...], Row], dict[Any, list[int]]]:
    """(window start, group…) -> row; window start -> [on time, corrected, dropped, untimed]."""
    members: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    corrections: dict[tuple[Any, ...], int] = defaultdict(int)
    ledger: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for record in records:
        if not query.keep(record):
            continue
        group = tuple(record[name] for name in query.groups)
        if query.size is None or query.every is None:
            members[group].append(record)
            corrections[group] += 0
            ledger[None][0] += 1
            continue
        if record["at"] is None:
            ledger[None][3] += 1
            continue
        for start in windows_of(record["at"], query.size, query.every):
            end = start + timedelta(seconds=query.size + query.grace)
            progress = record["_progress"]
            if progress is None or progress < end:
                verdict = 0
            elif progress < end + timedelta(seconds=query.within):
                verdict = 1
            else:
                verdict = 2
            ledger[start][verdict] += 1
            if verdict < 2:
                members[(start, *group)].append(record)
                corrections[(start, *group)] += verdict
    rows = {}
    for key, rows_of_key in members.items():
        asked = {name: value for name, value in aggregates(rows_of_key).items() if name not in query.without}
        rows[key] = {**asked, "_corrections": corrections[key]}
        rows[key]["_updated_at"] = max(record["_arrived_at"] for record in rows_of_key)
    return rows, dict(ledger)


def aggregates(records: list[Row]) -> Row:
    def values(name: str) -> list[Any]:
        return [record[name] for record in records if record[name] is not None]

    def by_time(record: Row) -> tuple[Any, ...]:
        return record["at"] or EPOCH, record["_partition"], record["_offset"]

    def place(record: Row) -> tuple[Any, ...]:
        return record["at"], record["_partition"], record["_offset"]

    timed = sorted((r for r in records if r["word"] is not None and r["at"] is not None), key=by_time)
    numbers, moneys, doubles = values("n"), values("money"), values("x")
    return {
        "records": len(records),
        "large": sum(1 for n in numbers if n > 50),
        "total": sum(numbers) if numbers else None,
        "money": sum(moneys, Decimal(0)) if moneys else None,
        "exact": float(sum(map(Fraction, doubles), Fraction(0))) if doubles else None,
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "least": min(numbers, default=None),
        "most": max(values("word"), default=None),
        "first": timed[0]["word"] if timed else None,
        "last": timed[-1]["word"] if timed else None,
        "words": len(set(values("word"))),
        "about": len(set(numbers)),
        "p90": near_quantile(doubles, Fraction(9, 10)),
        "top": [
            {"value": word, "count": count}
            for word, count in sorted(Counter(values("word")).items(), key=lambda each: (-each[1], each[0]))[:2]
        ],
        "spread": [sum(n < 10 for n in numbers), sum(10 <= n < 50 for n in numbers), sum(n >= 50 for n in numbers)],
        "some": [r["n"] for r in sorted((r for r in records if None not in (r["n"], r["at"])), key=place)][:3],
        "own": sum(n * n for n in numbers) / len(numbers) if numbers else None,
    }


def near_quantile(values: list[float], share: Fraction) -> Any:
    """Of the 64 buckets between two powers of two, the one with the value; of it, what is least far from its ends."""
    if not values:
        return None
    value = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    mantissa, exponent = math.frexp(abs(value))
    lower = Fraction(math.floor(mantissa * 128), 128) * Fraction(2) ** exponent
    upper = lower + Fraction(2) ** exponent / 128
    near = float(2 * lower * upper / (lower + upper)) if value else 0.0
    assert abs(near - abs(value)) <= 0.0078 * abs(value)
    return pytest.approx(math.copysign(near, value), rel=1e-12)
