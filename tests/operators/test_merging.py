"""Operators merge as the suites of view stores say: the same tests, over operators and tables in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.testing.view_contract import (
    ChangesContract,
    MergeContract,
    RetractionContract,
    Setting,
    ShapedContract,
)
from tests.operators.in_memory import MemoryStore, MemoryViews


class InMemory:
    def open_store(self, home: Path) -> Any:
        return MemoryStore(home)

    def open_views(self, home: Path) -> Any:
        return MemoryViews(home)


class TestMerging(InMemory, MergeContract):
    # Watching and SQL are the business of a store alone.
    test_a_sum_that_becomes_wider_is_watched_on = None  # type: ignore[assignment]
    test_lists_are_typed_for_readers_and_json_for_sqlite = None  # type: ignore[assignment]


class TestChanges(InMemory, ChangesContract):
    pass


class TestShaped(InMemory, ShapedContract):
    # So are a flow's names.
    test_a_column_that_is_called_like_another = None  # type: ignore[assignment]


class TestRetraction(InMemory, RetractionContract, Setting):
    # So are versions of a view, and what one flow says of another.
    test_what_is_made_of_records_closes_by_how_far_they_are = None  # type: ignore[assignment]
    test_a_switch_tells_of_all_that_may_change = None  # type: ignore[assignment]
    test_what_a_flow_writes_closes_windows_of_those_who_read_it = None  # type: ignore[assignment]
    test_a_mark_is_the_frontier_of_the_flow_that_writes_a_topic = None  # type: ignore[assignment]
    test_a_mark_of_results_speaks_of_when_windows_begin = None  # type: ignore[assignment]
    test_what_is_dropped_with_a_view_is_headraces_own = None  # type: ignore[assignment]
    test_changes_of_records_go_back_where_they_are_written_to = None  # type: ignore[assignment]
    test_what_goes_back_goes_back_in_copies_of_it = None  # type: ignore[assignment]
