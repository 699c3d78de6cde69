"""What a view must be: the same query over the whole log, record by record, in plain Python. Shares no code with flows
and stores; only the meaning of the words."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Query:
    """`size` and `every` in seconds; None: no window. `within` 0: stragglers are dropped. A session's `size` is
    the gap, a calendar has none."""

    size: int | None
    every: int | None
    grace: int
    within: int
    groups: tuple[str, ...]
    keep: Callable[[Row], bool] = lambda _: True
    without: frozenset[str] = frozenset()
    """Aggregates it does not ask for."""
    kind: str = "fixed"
    timezone: str = ""
    offset: int = 0

    @property
    def told_by(self) -> str:
        """The column that tells windows apart: cumulative ones begin together, and end one by one."""
        return "window_end" if self.kind == "cumulative" else "window_start"


def records_of(topic: Any) -> list[Row]:
    columns = [*topic.schema.names, "_partition", "_offset", "_arrived_at", "_progress"]
    return [row for batch in topic.batches(columns=columns) for row in batch.to_pylist()]


def windows_of(at: datetime, query: Query) -> Iterable[tuple[datetime, datetime]]:
    """Start and end of all windows that hold the time."""
    if query.kind == "calendar":
        day = at.astimezone(ZoneInfo(query.timezone)).replace(hour=0, minute=0, second=0, microsecond=0)
        yield day.astimezone(UTC), (day + timedelta(days=1)).astimezone(UTC)  # a day later on the same clock
        return
    assert query.size is not None and query.every is not None
    seconds = (at - EPOCH) / timedelta(seconds=1)
    if query.kind == "cumulative":
        start = int(seconds // query.size) * query.size
        for end in range(start + query.every, start + query.size + 1, query.every):
            if end > seconds:
                yield EPOCH + timedelta(seconds=start), EPOCH + timedelta(seconds=end)
        return
    start = int((seconds - query.offset) // query.every) * query.every + query.offset
    while start + query.size > seconds:
        yield EPOCH + timedelta(seconds=start), EPOCH + timedelta(seconds=start + query.size)
        start -= query.every


def verdict(record: Row, end: datetime, query: Query, *, inclusive: bool = False) -> int:
    """0: on time, 1: a straggler that corrects, 2: too late, for a window that ends then."""
    progress, grace, within = record["_progress"], timedelta(seconds=query.grace), timedelta(seconds=query.within)
    if inclusive:
        end += timedelta(microseconds=1)
    if progress is None or progress < end + grace:
        return 0
    return 1 if progress < end + grace + within else 2


Members = dict[tuple[Any, ...], list[tuple[Row, int]]]
"""(window start, window end, group…) -> its records, each with its verdict."""
Ledger = dict[Any, list[int]]


def expected(records: list[Row], query: Query) -> tuple[dict[tuple[Any, ...], Row], Ledger]:
    """(window, group…) -> row; window -> [on time, corrected, dropped, untimed]."""
    kept = [record for record in records if query.keep(record)]
    ledger: Ledger = defaultdict(lambda: [0, 0, 0, 0])
    members: Members = defaultdict(list)
    by_group: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for record in kept:
        group = tuple(record[name] for name in query.groups)
        if query.size is None:
            members[(None, None, *group)].append((record, 0))
            ledger[None][0] += 1
        elif record["at"] is None:
            ledger[None][3] += 1
        elif query.kind in ("fixed", "calendar", "cumulative"):
            for start, end in windows_of(record["at"], query):
                judged = verdict(record, end, query)
                ledger[end if query.told_by == "window_end" else start][judged] += 1
                if judged < 2:
                    members[(start, end, *group)].append((record, judged))
        else:
            by_group[group].append(record)
    for group, of_group in by_group.items():
        found = _sessions if query.kind == "session" else _slides
        for (start, end), chosen in found(of_group, query, ledger[None]).items():
            members[(start, end, *group)] = chosen
    rows = {}
    for (start, end, *group), of_row in members.items():
        chosen_rows = [record for record, _ in of_row]
        row = {name: value for name, value in aggregates(chosen_rows).items() if name not in query.without}
        by_end = query.told_by == "window_end"
        row |= {} if query.size is None else {"window_start": start} if by_end else {"window_end": end}
        row["_corrections"] = sum(judged for _, judged in of_row)
        row["_updated_at"] = max(record["_arrived_at"] for record in chosen_rows)
        rows[(*(() if query.size is None else (end if by_end else start,)), *group)] = row
    return rows, dict(ledger)


def _sessions(records: list[Row], query: Query, counts: list[int]) -> Members:
    """Of one group: records in the order of time, cut where the next is more than the gap away."""
    assert query.size is not None
    gap = timedelta(seconds=query.size)
    judged = [(record, verdict(record, record["at"] + gap, query)) for record in records]
    for _, each in judged:
        counts[each] += 1
    pieces: list[list[tuple[Row, int]]] = []
    for record, each in sorted((pair for pair in judged if pair[1] < 2), key=lambda pair: pair[0]["at"]):
        if not pieces or record["at"] - pieces[-1][-1][0]["at"] > gap:
            pieces.append([])
        pieces[-1].append((record, each))
    return {(piece[0][0]["at"], piece[-1][0]["at"]): piece for piece in pieces}


def _slides(records: list[Row], query: Query, counts: list[int]) -> Members:
    """Of one group: for each time at which a record is not too late for itself, what was before it."""
    assert query.size is not None
    size = timedelta(seconds=query.size)
    for record in records:
        counts[verdict(record, record["at"], query, inclusive=True)] += 1
    ends = {record["at"] for record in records if verdict(record, record["at"], query, inclusive=True) < 2}
    out: Members = {}
    for end in ends:
        judged = [(r, verdict(r, end, query, inclusive=True)) for r in records if end - size <= r["at"] <= end]
        out[end - size, end] = [(record, each) for record, each in judged if each < 2]
    return out


def aggregates(records: list[Row]) -> Row:
    def values(name: str) -> list[Any]:
        return [record[name] for record in records if record[name] is not None]

    def by_time(record: Row) -> tuple[Any, ...]:
        return record["at"] or EPOCH, record["_partition"], record["_offset"]

    def place(record: Row) -> tuple[Any, ...]:
        return record["at"], record["_partition"], record["_offset"]

    timed = sorted((r for r in records if r["word"] is not None and r["at"] is not None), key=by_time)
    timed_rows = sorted((r for r in records if r["at"] is not None), key=by_time)
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
        **by_measure(records),
        **of_numbers(numbers),
        "first_row": row_of(timed_rows[0]) if timed_rows else None,
        "last_row": row_of(timed_rows[-1]) if timed_rows else None,
        "if_large": sum(n for n in numbers if n > 50) if any(n > 50 for n in numbers) else None,
        "words_if_large": len({r["word"] for r in records if (r["n"] or 0) > 50 and r["word"] is not None}),
    }


def row_of(record: Row) -> Row:
    """As its author knows it."""
    return {name: record[name] for name in ("word", "n", "x", "money", "at")}


def by_measure(records: list[Row]) -> Row:
    """By `n`, and where that is equal by event time, partition and offset."""
    known = [r for r in records if None not in (r["word"], r["n"], r["at"])]
    known.sort(key=lambda r: (r["n"], r["at"], r["_partition"], r["_offset"]))
    return {
        "best": known[-1]["word"] if known else None,
        "worst": known[0]["word"] if known else None,
        "largest": [{"value": r["word"], "by": r["n"]} for r in known[::-1][:2]],
    }


def of_numbers(numbers: list[int]) -> Row:
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {
        "spread_out": None if spread is None else pytest.approx(spread, rel=1e-9),
        "variance": None if spread is None else pytest.approx(statistics.variance(numbers), rel=1e-9),
        "median": statistics.median(numbers) if numbers else None,
        "different": sum(set(numbers)) if numbers else None,
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
