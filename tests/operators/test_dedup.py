"""Approximate dedup as an operator: it keeps the contract, and decides as the filters do when they are kept whole."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.bloom import Dedup, Filters
from headrace.operators.contract import InputTimes, Operator
from headrace.operators.dedup import ApproximateDedup
from headrace.operators.records import HASH, INPUT, TOPIC
from headrace.testing import MemoryTables, OperatorContract
from headrace.testing.view_contract import INSTANT, SECOND, T0
from headrace.views.contract import Column

DEDUP = Dedup(("id",), 4 * SECOND, SECOND, 0.01, 1_000)
COLUMNS = (Column("id", "bigint"), Column("at", "timestamp"))
NOW = InputTimes(None, None)


def operator() -> ApproximateDedup:
    return ApproximateDedup(DEDUP, COLUMNS, "at")


def records(dice: random.Random, number: int, count: int = 30) -> pa.Table:
    """Of two partitions of two topics, with repetitions, stragglers and records without a time."""
    ids = [dice.randrange(20) for _ in range(count)]
    seconds = [5 * number - dice.choice([0, 0, 0, 1, 2, 7]) for _ in range(count)]
    at = [None if dice.randrange(15) == 0 else T0 + second * SECOND for second in seconds]
    hashes = np.array([hash((each, "key")) for each in ids], np.int64)
    return pa.table(
        {
            TOPIC: pa.array([dice.choice(["clicks", "orders"]) for _ in range(count)]),
            "_partition": pa.array([dice.randrange(2) for _ in range(count)], pa.int32()),
            "_offset": pa.array([100 * number + n for n in range(count)], pa.int64()),
            "_progress": pa.array([T0 + (5 * number - 2) * SECOND] * count, pa.int64()).cast(INSTANT),
            HASH: pa.array(hashes),
            "id": pa.array(ids, pa.int64()),
            "at": pa.array(at, pa.int64()).cast(INSTANT),
        }
    )


class TestApproximateDedup(OperatorContract):
    def operator(self) -> Operator:
        return operator()

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        return {INPUT: records(dice, number)}

    test_any_order_of_rows_gives_the_same = None  # type: ignore[assignment]  # offsets decide, whatever the rows' order


def test_it_decides_as_filters_that_are_kept_whole() -> None:
    dice, tables = random.Random(3), MemoryTables(*operator().tables)
    kept: dict[tuple[str, int], Filters] = {}
    for number in range(8):
        batch = records(dice, number)
        step = operator().step({INPUT: batch}, tables.state(), {INPUT: NOW}, changes=True)
        tables.apply(step.writes)
        assert step.changes is not None and step.dropped is not None
        passed, late, untimed = [], [], 0
        for topic in ("clicks", "orders"):
            for partition in range(2):
                mine = [row for row in batch.to_pylist() if (row[TOPIC], row["_partition"]) == (topic, partition)]
                timed = [row for row in mine if row["at"] is not None]
                untimed += len(mine) - len(timed)
                filters = kept.setdefault((topic, partition), Filters(DEDUP))
                hashes, times, progress = (
                    np.array([value(row) for row in timed], np.int64)
                    for value in (lambda row: row[HASH], lambda row: us(row["at"]), lambda row: us(row["_progress"]))
                )
                found = filters.step(hashes, times, progress)
                passed += [row["_offset"] for row, first in zip(timed, found.first, strict=True) if first]
                late += [row["_offset"] for row, is_late in zip(timed, found.late, strict=True) if is_late]
        assert step.changes["_offset"].to_pylist() == passed
        assert step.dropped["_offset"].to_pylist() == late
        (row,) = step.ledger
        assert (row.dropped, row.untimed, row.on_time + row.dropped + row.untimed) == (len(late), untimed, 30)
    state, everything = tables.state(), pa.table({"x": [1]}).select([])
    lowest = min(filters.lowest for filters in kept.values())
    assert min(state.scan("pages", everything)["stretch"].to_pylist()) >= lowest, "what no record meets has gone"
    assert set(state.scan("stretches", everything)["stretch"].to_pylist()) == set(
        state.scan("pages", everything)["stretch"].to_pylist()
    )


def us(at: object) -> int:
    return pa.scalar(at, INSTANT).cast(pa.int64()).as_py()  # type: ignore[no-any-return]
