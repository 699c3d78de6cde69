"""How records stand to their windows, kind by kind, against the definitions written out one record at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.windows import Calendar, Cumulative, Fixed, Session, Sliding, Window, parse
from headrace.windows.calendars import Unit, Weekday
from headrace.windows.fixed import WINDOWS_MAX
from headrace.windows.sessions import joined

times = st.integers(-50, 100)
hour = timedelta(hours=1)
graces = st.sampled_from([0, 3])
withins = st.sampled_from([0, 1, 20])


def arrays(*columns: list[int]) -> list[np.ndarray]:
    return [np.array(column, np.int64) for column in columns]


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 12),
    st.lists(st.tuples(times, times), min_size=1, max_size=8),
    graces,
    withins,
)
def test_fixed(size: int, every: int, offset: int, found: list[tuple[int, int]], grace: int, within: int) -> None:
    window = Fixed(max(size, every), min(size, every), offset % min(size, every))
    event, progress = arrays(*map(list, zip(*found, strict=True)))  # type: ignore[arg-type]
    judged = window.judged(event, progress, grace, within)
    held = list(window.windows(judged.pane))
    for at, (t, p) in enumerate(found):
        mine = [(int(each.start[at]), int(each.end[at])) for each in held if each.inside[at]]
        starts = range(-200, 200)
        assert mine == [
            (k, k + window.size_us)
            for k in starts
            if (k - offset) % window.every_us == 0 and k <= t < k + window.size_us
        ]
        assert int(judged.late[at]) == sum(p >= end + grace for _, end in mine)
        assert int(judged.dropped[at]) == sum(p >= end + grace + within for _, end in mine)


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.tuples(times, times), min_size=1, max_size=8), graces, withins)
def test_cumulative(steps: int, step: int, found: list[tuple[int, int]], grace: int, within: int) -> None:
    size = steps * step
    window = Cumulative(size, step)
    event, progress = arrays(*map(list, zip(*found, strict=True)))  # type: ignore[arg-type]
    judged = window.judged(event, progress, grace, within)
    held = list(window.windows(judged.pane))
    for at, (t, p) in enumerate(found):
        mine = [(int(each.start[at]), int(each.end[at])) for each in held if each.inside[at]]
        day = t // size * size
        assert mine == [(day, end) for end in range(day + step, day + size + 1, step) if t < end]
        assert int(judged.late[at]) == sum(p >= end + grace for _, end in mine)
        assert int(judged.dropped[at]) == sum(p >= end + grace + within for _, end in mine)
        assert all(t - window.reach_us <= start and end <= t + window.reach_us for start, end in mine)


@given(st.integers(1, 9), st.lists(st.tuples(times, times), min_size=1, max_size=8), graces, withins)
def test_session(gap: int, found: list[tuple[int, int]], grace: int, within: int) -> None:
    event, progress = arrays(*map(list, zip(*found, strict=True)))  # type: ignore[arg-type]
    judged = Session(gap).judged(event, progress, grace, within)
    for at, (t, p) in enumerate(found):
        assert (int(judged.late[at]), int(judged.dropped[at])) == (p >= t + gap + grace, p >= t + gap + grace + within)
        together = [other for number, (other, _) in enumerate(found) if judged.pane[number] == judged.pane[at]]
        assert max(together) - min(together) <= gap


@given(st.integers(1, 9), st.lists(st.tuples(times, times), min_size=1, max_size=8), graces, withins)
def test_sliding(size: int, found: list[tuple[int, int]], grace: int, within: int) -> None:
    event, progress = arrays(*map(list, zip(*found, strict=True)))  # type: ignore[arg-type]
    judged = Sliding(size).judged(event, progress, grace, within)
    for at, (t, p) in enumerate(found):
        ends = range(t, t + size + 1)
        assert int(judged.late[at]) == sum(not p <= end + grace for end in ends)
        assert int(judged.dropped[at]) == sum(not p <= end + grace + within for end in ends)


stretches = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 6))


@given(st.lists(stretches, max_size=12), st.integers(1, 6))
def test_stretches_are_joined_where_no_gap_is_between_them(found: list[tuple[int, int, int]], gap: int) -> None:
    key, start, length = arrays(*(map(list, zip(*found, strict=True)) if found else ([], [], [])))  # type: ignore[arg-type]
    number, first, last = joined(key, start, start + length, gap)
    wanted: list[tuple[int, int, int]] = []
    for each, begin, more in sorted(found):
        if wanted and wanted[-1][0] == each and begin <= wanted[-1][2] + gap:
            wanted[-1] = (each, wanted[-1][1], max(wanted[-1][2], begin + more))
        else:
            wanted.append((each, begin, begin + more))
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [(begin, end) for _, begin, end in wanted]
    for at, (each, begin, more) in enumerate(found):
        _, low, high = wanted[number[at]]
        assert wanted[number[at]][0] == each and low <= begin and begin + more <= high


def test_far_apart_times_do_not_run_over() -> None:
    key, start, end = arrays([0, 1, 0, 1], [-(2**62), -(2**62), 2**62, 2**62], [-(2**62), 2**62, 2**62, 2**62])
    number, first, last = joined(key, start, end, 10)
    assert number.tolist() == [0, 2, 1, 2]
    assert (first.tolist(), last.tolist()) == ([-(2**62), 2**62, -(2**62)], [-(2**62), 2**62, 2**62])


@pytest.mark.parametrize("offset", ["22 hours", "46 hours", "-2 hours", " - 2 h", -2 * hour, 22 * hour, 70 * hour])
def test_only_where_windows_lie_matters_of_an_offset(offset: Any) -> None:
    assert hr.tumbling("1 day", offset=offset) == hr.tumbling("1 day", offset="22 hours")
    assert str(hr.tumbling("1 day", offset=offset)) == "tumbling('1 day', offset='22 hours')"
    # windows that begin every 12 hours do so at 10 and 22
    assert str(hr.hopping("1 day", every="12 hours", offset=offset)) == (
        "hopping('1 day', every='12 hours', offset='10 hours')"
    )


@pytest.mark.parametrize("offset", ["0 seconds", "-0 seconds", 0 * hour, "1 day", "-7 days", 24 * hour])
def test_an_offset_that_changes_nothing_is_none(offset: Any) -> None:
    assert hr.tumbling("1 day", offset=offset) == hr.tumbling("1 day")
    assert str(hr.tumbling("1 day", offset=offset)) == "tumbling('1 day')"


@pytest.mark.parametrize("offset", ["soon", "- soon", "--1 hour", "1 month", 5, None])
def test_an_offset_that_is_no_duration_is_refused_by_name(offset: Any) -> None:
    with pytest.raises(hr.InvalidArgument) as refused:
        hr.tumbling("1 day", offset=offset)
    assert refused.value.argument == "offset"


def test_a_step_must_go_into_the_size() -> None:
    with pytest.raises(hr.InvalidArgument, match="a whole number of times") as refused:
        hr.cumulative("1 day", step="7 hours")
    assert refused.value.argument == "step"
    with pytest.raises(hr.InvalidArgument, match="86400 windows"):
        hr.cumulative("1 day", step="1 second")
    assert str(hr.cumulative("1 day", step="1 hour")) == "cumulative('1 day', step='1 hour')"


lengths = st.integers(1, 10**12)


@given(
    st.one_of(
        st.builds(lambda size, offset: Fixed(size, size, offset % size), lengths, lengths),
        st.builds(lambda every, more, offset: Fixed(every + more, every, offset % every), lengths, lengths, lengths),
        st.builds(lambda step, steps: Cumulative(step * steps, step), lengths, st.integers(1, 100)),
        st.builds(Session, lengths),
        st.builds(Sliding, lengths),
        st.builds(Calendar, st.sampled_from(get_args(Unit)), st.sampled_from(["UTC", "America/Sao_Paulo"])),
        st.builds(Calendar, st.just("week"), st.just("Asia/Kolkata"), st.sampled_from(get_args(Weekday))),
    )
)
def test_a_window_can_be_read_as_it_is_written(window: Window) -> None:
    if window.windows_max <= WINDOWS_MAX:
        assert parse(str(window)) == window
