"""How much a micro-batch takes, and how it is cut into tasks: arithmetic, without Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.spans import SPAN_ROWS_MAX, Span, admitted, backlog, spans

ENDS = st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1)


@given(ENDS, st.integers(1, 10**6))
def test_a_micro_batch_takes_exactly_what_it_may(ends: dict[int, tuple[int, int]], rows_max: int) -> None:
    start = {partition: first for partition, (first, _) in ends.items()}
    latest = {partition: first + count for partition, (first, count) in ends.items()}
    end = admitted(start, latest, rows_max)
    assert backlog(start, end) == min(rows_max, backlog(start, latest))
    assert all(start[p] <= end[p] <= latest[p] for p in ends)


def test_shares_follow_what_waits() -> None:
    assert admitted({0: 0, 1: 10}, {0: 300, 1: 110}, 100) == {0: 75, 1: 35}  # 300 and 100 wait: 75 and 25 of 100
    assert admitted({0: 5}, {0: 5}, 10) == {0: 5}
    assert admitted({0: 0}, {0: 7}, None) == {0: 7}


def test_a_partition_that_was_added_begins_at_its_first_record() -> None:
    assert admitted({0: 9}, {0: 9, 1: 4}, 100) == {0: 9, 1: 4}
    assert spans({0: 9}, {0: 9, 1: 4}, cores=2) == [Span(1, 0, 4)]


def test_no_partition_starves_at_one_row_a_batch() -> None:
    at = {0: 0, 1: 0}
    for _ in range(20):
        at = admitted(at, {0: 10, 1: 10}, 1)
    assert at == {0: 10, 1: 10}


@given(ENDS, st.integers(1, 8), st.none() | st.integers(1, 50), st.none() | st.integers(10**4, 10**6))
def test_spans_cover_everything_once_and_in_order(
    ends: dict[int, tuple[int, int]], cores: int, count_min: int | None, rows_max: int | None
) -> None:
    start = {partition: first for partition, (first, _) in ends.items()}
    stop = {partition: first + count for partition, (first, count) in ends.items()}
    found = spans(start, stop, cores=cores, count_min=count_min, rows_max=rows_max)
    for partition in ends:
        at = start[partition]
        for span in (span for span in found if span.partition == partition):
            assert span.start == at < span.stop
            at = span.stop
        assert at == stop[partition]
    assert all(span.stop - span.start <= (rows_max or SPAN_ROWS_MAX) for span in found)
    if count_min is not None:
        assert len(found) >= min(count_min, backlog(start, stop))


def test_one_large_partition_keeps_both_cores_busy() -> None:
    assert spans({0: 0}, {0: 900_000}, cores=2) == [Span(0, 0, 450_000), Span(0, 450_000, 900_000)]
    assert spans({0: 0}, {0: 900}, cores=2) == [Span(0, 0, 900)]  # not worth two tasks
    assert len(spans({0: 0}, {0: 10_000_000}, cores=2)) == 10
    assert spans({0: 0}, {0: 0}, cores=2) == []
