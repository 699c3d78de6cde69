"""Filters of keys: judged many at a time as one by one, however a log is cut; and as near to the truth, and as small,
as they say."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bloom import PAGE_BYTES, Dedup, Filters
from headrace.errors import InvalidArgument
from headrace.time import UNSET

SEED = 20261116
WITHIN = 10
SMALL = Dedup(("id",), WITHIN, 3, 0.1, 40)

Row = tuple[int, int, int]
"""A key's hash, a time, and the progress of the partition."""


class Crowded(Filters):
    """Of few bits, so that those of different keys often meet: in a batch, across batches, and beside each other."""

    def _places(self, hashes: Any) -> Any:
        return super()._places(hashes) % 16


def judged(filters: Filters, rows: list[Row]) -> list[tuple[bool, bool]]:
    hashes, times, progress = np.array(rows, np.int64).reshape(-1, 3).T
    found = filters.step(hashes.copy(), times, progress)
    return list(zip(found.first.tolist(), found.late.tolist(), strict=True))


def one_by_one(filters: Filters, dedup: Dedup, rows: list[Row]) -> list[tuple[bool, bool]]:
    """The definition: each record asks, then sets its bits, before the next. Nothing is ever forgotten."""
    places = filters._places(np.array([hashed for hashed, _, _ in rows], np.int64)).tolist()
    seen: dict[int, set[int]] = {}
    reached, out = UNSET, []
    for bits, (_, time, progress) in zip(map(set, places), rows, strict=True):
        reached = max(reached, progress)
        if reached >= time + dedup.within_us + dedup.grace_us:
            out.append((False, True))
            continue
        stretch = time // dedup.within_us
        out.append((not any(bits <= seen.get(stretch + beside, set()) for beside in (-1, 0, 1)), False))
        seen.setdefault(stretch, set()).update(bits)
    return out


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Keys that come again, times that go on and jump, progress that mostly does what progress does."""
    keys = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
    out, now, reached = [], draw(st.integers(-50, 50)), UNSET
    for _ in range(draw(st.integers(0, 60))):
        now += draw(st.sampled_from([0, 0, 1, 1, 3, 40]))
        time = now - draw(st.sampled_from([0, 0, 0, 1, 5, 9, 12, 14, 30, -7, -25]))
        out.append((draw(st.sampled_from(keys)), time, draw(st.sampled_from([reached, reached, reached - 4, UNSET]))))
        reached = max(reached, time)
    return [(hashed, time, max(progress, UNSET)) for hashed, time, progress in out]


@given(logs(), st.lists(st.integers(0, 60), max_size=4), st.booleans(), st.sampled_from([Filters, Crowded]))
def test_many_at_a_time_are_judged_as_one_by_one_however_they_are_cut(
    rows: list[Row], cuts: list[int], stored: bool, kind: type[Filters]
) -> None:
    filters, found, kept = kind(SMALL), [], dict[tuple[int, int], bytes]()
    at = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, stop in itertools.pairwise(at):
        found += judged(filters, rows[start:stop])
        if stored:  # and from what a store has kept in between
            kept.update({(stretch, page): bits for stretch, page, bits in filters.changed()})
            kept = {place: bits for place, bits in kept.items() if place[0] >= filters.lowest}
            before, filters = filters, kind(SMALL)
            filters.reached_us = before.reached_us
            for place, bits in kept.items():
                filters.put(*place, bits)
    assert found == one_by_one(kind(SMALL), SMALL, rows)


def test_more_than_are_judged_together() -> None:
    rng = np.random.default_rng(SEED)
    dedup = Dedup(("id",), 1_000, 100, 0.2, 3_000)
    times = np.arange(40_000) // 20 + rng.integers(-900, 300, 40_000)
    progress = np.concatenate(([UNSET], np.maximum.accumulate(times)[:-1]))
    hashes = rng.integers(-(2**63), 2**63 - 1, 30_000)[rng.integers(0, 30_000, 40_000)]
    rows = list(zip(hashes.tolist(), times.tolist(), progress.tolist(), strict=True))
    found = judged(Filters(dedup), rows)
    assert found == one_by_one(Filters(dedup), dedup, rows)
    assert {(True, False), (False, False), (False, True)} == set(found)


@pytest.mark.parametrize(("within", "apart", "repeats"), [(10, 10, True), (10, 19, None), (10, 20, False)])
def test_how_far_apart_a_repetition_is_found(within: int, apart: int, repeats: bool | None) -> None:
    dedup = Dedup(("id",), within, 1_000, 1e-6, 1_000)
    found = set()
    for start in range(within):
        for other in (start + apart, start - apart):
            (_, (first, late)) = judged(Filters(dedup), [(7, start, UNSET), (7, other, start)])
            assert not late
            found.add(not first)
    assert found == ({True, False} if repeats is None else {repeats})


@pytest.mark.parametrize(("approx", "keys"), [(0.3, 5_000), (0.1, 3_000), (0.01, 30_000), (0.001, 30_000)])
def test_no_more_than_the_share_is_taken_for_what_it_is_not(approx: float, keys: int) -> None:
    """Full filters: `keys` keys in each of the three stretches that a record is compared with; then others, all of them
    new. Of n, each mistaken with a chance of `approx` at most, more than five standard deviations above the mean are
    mistaken once in millions of runs; and a filter much better than asked for would be larger than it has to be."""
    rng = np.random.default_rng(SEED)
    dedup = Dedup(("id",), 1_000, 3_000, approx, keys)
    mistaken, asked = 0, 0
    for _ in range(5):
        filters = Filters(dedup)
        for time in (500, 1_500, 2_500):
            filters.step(keys_of(rng, keys), np.full(keys, time), np.zeros(keys, np.int64))
        others = filters._places(keys_of(rng, 100_000))
        found = [filters._all_set(stretch, others, np.arange(100_000)) for stretch in range(3)]
        mistaken, asked = mistaken + len(np.unique(np.concatenate(found))), asked + 100_000
    assert approx * asked / 2 <= mistaken <= approx * asked + 5 * math.sqrt(approx * asked)


def keys_of(rng: Any, count: int) -> Any:
    return rng.integers(-(2**63), 2**63 - 1, count)


def test_over_a_day_less_than_the_share_is_lost_and_the_memory_is_what_was_said() -> None:
    rng = np.random.default_rng(SEED)
    hour = 3_600_000_000
    dedup = Dedup(("id",), hour, 0, 0.01, 5_000)
    filters, lost = Filters(dedup), 0
    assert dedup.bytes_max == 3 * dedup.pages * PAGE_BYTES < 3 * 5_000 * 2  # two bytes for a key, in each of three
    for number in range(24):
        times = np.sort(rng.integers(0, hour, 5_000)) + number * hour
        found = filters.step(keys_of(rng, 5_000), times, np.concatenate(([UNSET], times[:-1])))
        lost += int((~found.first).sum())
        assert not found.late.any() and filters.size_bytes <= dedup.bytes_max
    assert 0 < lost <= 0.01 * 24 * 5_000


def test_records_that_are_far_apart_need_no_more_memory() -> None:
    """One in each stretch, of a history that comes in one batch: most filters are of no use before the batch ends."""
    dedup, count = Dedup(("id",), WITHIN, 0, 0.01, 100_000), 600
    times = np.arange(count) * WITHIN
    filters = Filters(dedup)
    tracemalloc.start()
    try:
        found = filters.step(times * 7, times, np.concatenate(([UNSET], times[:-1])))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.first.all() and most < 10 * dedup.bytes_max


def test_only_pages_that_changed_are_told() -> None:
    dedup = Dedup(("id",), WITHIN, 0, 0.01, 1_000_000)
    filters = Filters(dedup)
    judged(filters, [(hashed, 5, UNSET) for hashed in range(-(2**63), 2**63, 2**62)])
    assert len(list(filters.changed())) == 4
    judged(filters, [(-(2**63), 5, UNSET), (2**62 + 1, 15, UNSET)])
    ((stretch, _, bits),) = filters.changed()
    assert (stretch, len(bits)) == (1, PAGE_BYTES)
    assert not list(filters.changed())


@pytest.mark.parametrize("approx", [0, 0.5, 1, -0.1, math.nan, True, "0.01"])
def test_a_share_that_is_none(approx: Any) -> None:
    with pytest.raises(InvalidArgument, match="above 0 and below"):
        Dedup(("id",), WITHIN, 0, approx, 1_000)


@pytest.mark.parametrize("keys", [0, -1, 1.5, True])
def test_a_number_of_keys_that_is_none(keys: Any) -> None:
    with pytest.raises(InvalidArgument, match="whole number"):
        Dedup(("id",), WITHIN, 0, 0.01, keys)


def test_too_many_keys_for_a_filter() -> None:
    with pytest.raises(InvalidArgument, match=r"needs filters of .* MiB.*with more partitions"):
        Dedup(("id",), WITHIN, 0, 0.01, 10**10)
