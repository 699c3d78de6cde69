"""Event-time progress, pure: against the definition, written out in the plainest way."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from headrace.time import UNSET, progress_after, progress_of_rows, with_floor

times = st.integers(-(10**15), 10**15)
events = st.lists(st.none() | times, max_size=20)
befores = st.just(UNSET) | times


def of_rows(before: int, array: npt.NDArray[np.int64], arrived: int) -> list[int]:
    """Rows of one batch."""
    return progress_of_rows(np.full(len(array), before), array, np.full(len(array), arrived)).tolist()


def definition(before: int, event_times: list[int | None], arrived: int) -> list[int]:
    """P(o) = the largest of what was before, and min(t, a) of every row above o; one more for what comes behind."""
    return [
        max([before, *(min(t, arrived) for t in event_times[:o] if t is not None)]) for o in range(len(event_times) + 1)
    ]


@given(befores, events, times)
def test_rows_and_batches_follow_the_definition(before: int, event_times: list[int | None], arrived: int) -> None:
    expected = definition(before, event_times, arrived)
    array = np.array([UNSET if t is None else t for t in event_times], dtype=np.int64)
    assert of_rows(before, array, arrived) == expected[:-1]
    timed = [t for t in event_times if t is not None]
    assert progress_after(before, max(timed) if timed else None, arrived) == expected[-1]


@given(befores, events, times, st.integers(0, 20))
def test_where_a_batch_is_cut_means_nothing(before: int, event_times: list[int | None], arrived: int, cut: int) -> None:
    def rows(first: int, part: list[int | None]) -> list[int]:
        return of_rows(first, np.array([UNSET if t is None else t for t in part], np.int64), arrived)

    head, tail = event_times[:cut], event_times[cut:]
    timed = [t for t in head if t is not None]
    between = progress_after(before, max(timed) if timed else None, arrived)
    assert rows(before, head) + rows(between, tail) == rows(before, event_times)
    both = np.array([before] * len(head) + [between] * len(tail), np.int64)
    array = np.array([UNSET if t is None else t for t in event_times], np.int64)
    assert progress_of_rows(both, array, np.full(len(array), arrived)).tolist() == rows(before, event_times)


def test_no_clock_in_the_future_makes_others_late() -> None:
    assert progress_after(50, event_max_us=1_000, arrived_us=100) == 100  # min(1000, 100)
    assert of_rows(50, np.array([1_000, 60]), 100) == [50, 100]


def test_untimed_rows_move_nothing() -> None:
    assert progress_after(50, None, 100) == 50
    assert of_rows(UNSET, np.array([UNSET, UNSET]), 100) == [UNSET, UNSET]


def test_no_rows() -> None:
    assert of_rows(5, np.array([], dtype=np.int64), 100) == []


def test_the_floor() -> None:
    forget = 10
    asleep = {
        "last_arrival_us": 100,
        "arrived_us": 111,
        "topic_progress_us": 200,
        "forget_us": forget,
    }  # 111 - 100 > 10
    assert with_floor(5, **asleep) == 190  # 200 - 10
    assert with_floor(UNSET, **asleep) == 190
    assert with_floor(195, **asleep) == 195  # never lowered
    assert with_floor(5, **asleep | {"arrived_us": 110}) == 5  # exactly `forget` is not longer than it
    assert with_floor(5, **asleep | {"topic_progress_us": UNSET}) == 5  # a topic without progress has no floor
