"""What is read next, and what a worker keeps open; without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.durations import instant_us
from headrace.flows.reading import ranges


def test_no_topic_is_held_up_by_another(tmp_path: Path) -> None:
    """The oldest event times first, across topics: both come on together, however few rows a batch has."""
    with hr.open_log(tmp_path) as log:
        topics = [log.create_topic(name, "at timestamp", event_time="at") for name in ("busy", "other")]
        for minute in range(20):
            for topic in topics:
                topic.append([{"at": f"2026-01-01T09:{minute:02}:{second:02}Z"} for second in range(10)])
        sources = [ranges.Behind(topic, {0: 0}, topic.offsets()) for topic in topics]
        planned = ranges.plan(sources, 100)
        assert {name: [(each.start, each.stop) for each in chosen] for name, chosen in planned.items()} == {
            "busy": [(0, 50)],
            "other": [(0, 50)],
        }
        assert sum(each.rows for chosen in ranges.plan(sources, 37).values() for each in chosen) == 37


def test_what_was_appended_together_is_read_together(tmp_path: Path) -> None:
    """As the changes of a commit are: between '-' and '+' a row would be missing."""
    with hr.open_log(tmp_path) as log:
        topic = log.create_topic("changes", "n int")
        for count in (3, 4, 10):
            topic.append([{"n": n} for n in range(count)])
        for rows, start, stop in (1, 0, 3), (4, 0, 7), (5, 3, 17), (1, 5, 7):
            (planned,) = ranges.plan([ranges.Behind(topic, {0: start}, topic.offsets())], rows, whole=True).values()
            assert [(each.start, each.stop) for each in planned] == [(start, stop)]


def test_many_small_batches_are_planned_as_one_large_one(tmp_path: Path) -> None:
    """However many stored batches are looked at first."""
    with hr.open_log(tmp_path) as log:
        topic = log.create_topic("small", "n int")
        for n in range(3 * ranges.SPANS_FIRST):
            topic.append([{"n": n}, {"n": -n}])
        last = 6 * ranges.SPANS_FIRST
        for start, rows in (0, last - 5), (0, last - 1), (3, 40), (last - 2, 1):
            (planned,) = ranges.plan([ranges.Behind(topic, {0: start}, topic.offsets())], rows).values()
            assert [(each.start, each.stop) for each in planned] == [(start, start + rows)]


def test_the_place_behind_a_range_has_the_progress_of_the_next_record_that_is_there(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        topic = log.create_topic("events", "user string, at timestamp", event_time="at", key="user")
        for user, minute in ("a", 0), ("b", 5), ("b", 3), ("c", 9):
            topic.append([{"user": user, "at": f"2026-01-01T09:{minute:02}:00Z"}])
        topic.erase("b")
        end = topic.offsets()[0]
        known = {offset: ranges.place_at(topic, 0, offset, end) for offset in range(5)}
        assert known[1] == replace(known[3], offset=1) == replace(known[2], offset=1)
        progress = {offset: place.progress_us for offset, place in known.items()}
        assert progress[3] is not None and progress[3] != progress[4]
        assert progress[4] == instant_us("2026-01-01T09:09:00Z", argument="at")


@pytest.mark.parametrize(
    ("offsets", "left"),
    [
        ([], [(0, 10)]),
        ([(0, 0)], [(1, 10)]),
        ([(0, 9)], [(0, 9)]),
        ([(0, 4), (0, 5), (1, 7)], [(0, 4), (6, 10)]),
        ([(0, 11)], [(0, 10)]),
        ([(0, n) for n in range(10)], []),
    ],
)
def test_ranges_without_some_offsets(offsets: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    found = ranges.without([ranges.Range(0, 0, 10)], offsets)
    assert [(each.start, each.stop) for each in found] == left
