"""What is read next, and what a worker keeps open; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
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
