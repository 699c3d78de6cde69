"""The judge, without Spark: three columns for each record, and the progress of a time that nobody but a transform
knows, the same however the records come in batches."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.kernels.judge import EVENT, JUDGED, REACHED, SOURCE, UNTIMED, Judge, OwnProgress

SECOND = 1_000_000


def records(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    """Source, partition, offset, time, arrival and what had been reached before the batch, in seconds."""
    names = (SOURCE, "_partition", "_offset", EVENT, "_arrived_at", "_progress")
    columns = [[None if value is None else value * (SECOND if at > 2 else 1) for value in column]
               for at, column in enumerate(zip(*rows, strict=True))]  # fmt: skip
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], names=list(names))


def test_a_record_has_its_pane_and_how_late_it_is() -> None:
    judge = Judge(hr.tumbling("10 seconds"), 2 * SECOND, 5 * SECOND, EVENT, "_progress")
    batch = records(
        (0, 0, 0, 3, 99, None),  # without progress nothing is late
        (0, 0, 1, 3, 99, 11),  # 11 < 10 + 2
        (0, 0, 2, 3, 99, 12),  # a straggler
        (0, 0, 3, 3, 99, 17),  # 17 >= 10 + 2 + 5: too late
        (0, 0, 4, None, 99, 17),  # no time: not late, and in no window
    )
    (found,) = judge.of([batch])
    pane, dropped, late = (found.column(name).to_pylist() for name in JUDGED)
    assert pane == [0, 0, 0, 0, UNTIMED]
    assert dropped == [0, 0, 0, 1, 0]
    assert late == [0, 0, 1, 1, 0]
    assert judge.judged(batch)[0].to_pylist() == [0, 0, 0, 0, None]


@pytest.mark.parametrize("window", [hr.calendar("hour", timezone="UTC"), hr.tumbling("1 day"), hr.session("1 day")])
def test_a_time_that_no_calendar_has_is_none(window: Any) -> None:
    times = pa.array([-(2**63) + 1, 2**63 - 1, 5], pa.int64())
    pane, *_ = Judge(window, 0, 0, EVENT, "_progress").judged(pa.table({EVENT: times, "_progress": times}))
    assert pane.to_pylist() == [None, None, 0]


def test_progress_is_the_largest_time_at_lower_offsets_capped_at_arrival() -> None:
    batch = records(
        (0, 0, 5, 10, 99, 4),  # what the partition had reached before the batch
        (0, 0, 6, 50, 20, 4),  # a clock that is ahead counts up to the arrival
        (0, 0, 6, 12, 20, 4),  # the same record once more, as explode makes it: not its own predecessor
        (0, 0, 7, None, 21, 4),
        (0, 1, 7, 1, 21, None),  # another partition
        (0, 1, 8, 1, 21, None),
        (1, 0, 0, 3, 21, 7),  # another source
        (0, 0, 9, 1, 22, 4),  # the first one again
    )
    (found,) = OwnProgress().of([batch])
    seconds = [None if us is None else us // SECOND for us in found.column("_progress").to_pylist()]
    assert seconds == [4, 10, 10, 20, None, 1, 7, 20]
    assert [None if us is None else us // SECOND for us in found.column(REACHED).to_pylist()] == [
        10, 20, 12, None, 1, 1, 3, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_progress_is_the_same_however_records_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    rows, offset = [], 0
    for _ in range(60):
        offset += rng.randrange(3)
        rows.append((0, 0, offset, rng.choice([None, rng.randrange(100)]), rng.randrange(100), 30))
    whole = records(*rows)
    expected = [
        max([30, *(min(t, a) for _, _, o, t, a, _ in rows if o < at and t is not None)]) for _, _, at, *_ in rows
    ]
    cuts = sorted(rng.sample(range(1, 60), rng.randrange(10)))
    pieces = [whole.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, 60], strict=True)]
    found = [us // SECOND for batch in OwnProgress().of(pieces) for us in batch.column("_progress").to_pylist()]
    assert found == expected, (seed, cuts)
