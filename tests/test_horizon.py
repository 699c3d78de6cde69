"""What follows from how far time has come: frontier, reach, what is final, unchanging, dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.horizon import Horizon, Partition, dropped_us, frontier, over_us, reach
from headrace.windows import ending

IDLE, ABSENT = 30, 60


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([], None),
        ([Partition(None, 1000)], None),
        ([Partition(100)], 100),
        ([Partition(100), Partition(50)], 50),
        ([Partition(100), Partition(None)], 100),
        ([Partition(100), Partition(50, 30)], 50),
        ([Partition(100), Partition(50, 59)], 79),  # with the clock, from where it was
        ([Partition(100), Partition(50, 60)], 100),  # absent
        ([Partition(100, 60), Partition(50, 400)], 420),  # all are: the one that is furthest
        ([Partition(100, -5)], 100),  # a clock that was set back
    ],
)
def test_the_frontier_of_an_input(partitions: list[Partition], expected: int | None) -> None:
    assert frontier(partitions, IDLE, ABSENT) == expected


def test_absent_counts_from_idle_on() -> None:
    assert frontier([Partition(100), Partition(50, 65)], 1000, ABSENT) == 50


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([], None),
        ([Partition(100), Partition(50, 10_000)], 50),  # silence does not move it
        ([Partition(100), Partition(None)], None),
        ([Partition(100), Partition(None, floor_us=40)], 40),
        ([Partition(100), Partition(50, floor_us=70)], 70),
        ([Partition(100), Partition(50, floor_us=40)], 50),
    ],
)
def test_the_reach_of_an_input(partitions: list[Partition], expected: int | None) -> None:
    assert reach(partitions) == expected


partitions = st.lists(
    st.builds(Partition, st.none() | st.integers(0, 1000), st.integers(0, 200), st.none() | st.just(0)), max_size=4
)


@given(partitions, st.integers(1, 100), st.integers(1, 100), st.integers(0, 100))
def test_silence_only_ever_moves_the_frontier_on(found: list[Partition], idle: int, absent: int, more: int) -> None:
    later = [Partition(each.progress_us, each.quiet_us + more, each.floor_us) for each in found]
    now, then, least = frontier(found, idle, absent), frontier(later, idle, absent), reach(found)
    assert (now is None) == (then is None) == all(each.progress_us is None for each in found)
    assert reach(later) == least
    if now is not None and then is not None:
        assert then <= now + more or any(each.quiet_us < max(idle, absent) <= each.quiet_us + more for each in found)
        assert then >= now >= min(each.progress_us for each in found if each.progress_us is not None)
        assert least is None or now >= least


@pytest.mark.parametrize(
    ("horizon", "final", "unchanged", "told"),
    [
        (Horizon(ending("fixed", 10), grace_us=3, within_us=5), 97, 92, 97),
        (Horizon(ending("calendar", 0)), 100, 100, 100),
        (Horizon(ending("sliding", 10), grace_us=3, within_us=5), 96, 91, 97),  # its end, 96, is before 97
        (Horizon(ending("session", 10), grace_us=3, within_us=5), 86, 72, 87),
        (Horizon(None, grace_us=3), 97, 97, 97),
    ],
)
def test_what_windows_make_of_it(horizon: Horizon, final: int, unchanged: int, told: int) -> None:
    assert (horizon.final_us(100), horizon.unchanged_us(100)) == (final, unchanged)
    assert horizon.told_us(horizon.final_us(100)) == told
    assert (horizon.final_us(None), horizon.unchanged_us(None), horizon.told_us(None)) == (None, None, None)


def test_results_are_told_by_when_their_windows_begin() -> None:
    """[90, 100) is final; of calendars and sessions nobody knows."""
    assert Horizon(ending("fixed", 10)).written_us(100) == 91
    assert Horizon(ending("sliding", 10)).written_us(100) == 90  # it ends at 99, and is final
    assert Horizon(ending("session", 10)).written_us(100) is Horizon(ending("calendar", 0)).written_us(100) is None
    assert Horizon(None).written_us(100) == 100


def test_before_the_first_year_there_is_nothing() -> None:
    first = Horizon(ending("session", 10), grace_us=3, within_us=10**19)
    assert first.final_us(INSTANT_MIN_US + 13) is None and first.final_us(INSTANT_MIN_US + 14) == INSTANT_MIN_US
    assert first.unchanged_us(INSTANT_MAX_US) is None
    assert first.told_us(INSTANT_MAX_US) == INSTANT_MAX_US
    assert Horizon(ending("fixed", 10)).written_us(INSTANT_MIN_US) is None


def test_what_is_dropped_is_old_and_final_and_unchanging() -> None:
    assert dropped_us(10, 100, 95, 93) == 90
    assert dropped_us(1, 100, 95, 93) == 93
    assert dropped_us(1, 100, 92, 93) == 92
    for missing in range(4):
        assert dropped_us(*(None if at == missing else 100 for at in range(4))) is None


def test_a_group_is_over_when_nothing_can_come_within_the_time() -> None:
    assert over_us(10, 100) == 89  # what arrives at 100 is within 10 of 90
    assert over_us(10, None) is over_us(10, INSTANT_MIN_US + 10) is None
