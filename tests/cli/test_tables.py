"""Tables on a terminal: what a narrow one shows of many columns."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from headrace.cli.output import StreamedTable, print_table
from headrace.cli.topics import LISTED

TOPIC = dict.fromkeys(LISTED, "") | {
    "topic": "clicks",
    "records": 1200,
    "schema": "user string, page string, at timestamp",
}
VIEW = {
    "window_start": "2026-01-01T09:00:00Z",
    "window_end": "2026-01-01T09:01:00Z",
    "page": "/",
    "views": 3,
    "_status": "final",
    "_corrections": 1,
    "_updated_at": "2026-01-01T09:01:31Z",
}
TEXTS = dict.fromkeys(VIEW, "a text, which may be broken anywhere")


def printed(row: Mapping[str, Any], width: int) -> list[str]:
    out = io.StringIO()
    print_table(Console(file=out, width=width), list(row), [row, row])
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_that_fits_has_one_line_a_row() -> None:
    lines = printed(VIEW, 200)
    assert len(lines) == 3 and lines[0].split() == list(VIEW)


def test_names_of_columns_stay_whole_where_there_is_room() -> None:
    lines = printed(VIEW, 80)  # of which the values alone take more
    assert lines[0].split() == list(VIEW) and max(map(len, lines)) <= 80


def test_times_and_numbers_stay_whole_where_there_is_room() -> None:
    row = VIEW | {"views": 1234567, "_updated_at": "2026-01-01T09:01:31.250000Z"}
    words = [word for line in printed(row, 80)[-2:] for word in line.split()]
    days = "2026-01-01", "2026-01-01", "/", "1234567", "final", "1", "2026-01-01"
    assert words == [*days, "09:00:00Z", "09:01:00Z", "09:01:31.250000Z"]
    fields = printed(row, 60)  # no room: a field a line, and each value whole
    assert [line.split()[1] for line in fields[:7]] == [str(value) for value in row.values()]


def test_short_words_stay_whole_and_fractions_of_seconds_give_way() -> None:
    time = "2026-01-01T09:01:31.250000Z"
    row = {"view": "months", "app": "shop", "rows": 2, "commits": 2, "frontier": time, "lag_records": 0}
    row |= {"running": "no", "committed_at": time}
    lines = printed(row, 76)
    assert max(map(len, lines)) <= 76
    assert lines[-2].split() == ["months", "shop", "2", "2", "2026-01-01", "0", "no", "2026-01-01"]
    assert [word[:9] + word[-1] for word in lines[-1].split()] == ["09:01:31.…", "09:01:31.…"]


def test_a_streamed_table_that_is_narrow_breaks_times_before_the_hour() -> None:
    table = StreamedTable(["op", *VIEW, "_position"])
    out = io.StringIO()
    table._console = Console(file=out, width=80)
    for number in range(2):  # as the first page, and as a later one
        table.print([{"op": "+", **VIEW, "_updated_at": "2026-01-01T09:01:31.250000Z", "_position": number}])
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for day, time in (lines[-4:-2], lines[-2:]):
        assert day.split().count("2026-01-01") == 3 and time.split()[:2] == ["09:00:00Z", "09:01:00Z"]


@pytest.mark.parametrize("width", [65, 67])
def test_names_of_columns_break_at_underscores_only(width: int) -> None:
    head = printed(TEXTS, width)[:2]
    assert max(map(len, head)) <= width
    assert {word for line in head for word in line.split()} == {
        *("window_", "start", "end", "page", "views", "_status", "_corrections", "_updated_", "at")
    }


def test_a_terminal_too_narrow_for_the_names_shows_a_field_a_line() -> None:
    lines = printed(TOPIC, 60)
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == [*LISTED, *LISTED]
    assert "records" in lines[1] and "1200" in lines[1]
    assert lines[len(LISTED)] == ""  # between two rows


def test_a_streamed_table_breaks_names_like_the_others() -> None:
    table = StreamedTable(list(VIEW))
    out = io.StringIO()
    table._console = Console(file=out, width=65)
    table.print([TEXTS])
    head = [line.split() for line in out.getvalue().splitlines()[:2]]
    assert {word for line in head for word in line} >= {"window_", "start", "_corrections", "_updated_", "at"}
    assert "…" not in "".join("".join(line) for line in head)
