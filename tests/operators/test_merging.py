"""Operators merge as the suites of view stores say: the same tests, over operators and tables in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.testing.view_contract import (
    ChangesContract,
    FlowContract,
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


class TestFlows(InMemory, FlowContract):
    # A view's versions are the business of a store that keeps them.
    test_a_fence_ends_with_a_switch_or_when_it_is_let_go = None  # type: ignore[assignment]


class TestMerging(InMemory, MergeContract):
    # Watching and SQL are the business of a store alone.
    test_a_sum_that_becomes_wider_is_watched_on = None  # type: ignore[assignment]
    test_lists_are_typed_for_readers = None  # type: ignore[assignment]
    test_lists_are_typed_in_the_result_of_a_query = None  # type: ignore[assignment]


class TestChanges(InMemory, ChangesContract):
    pass


class TestShaped(InMemory, ShapedContract):
    pass


class TestRetraction(InMemory, RetractionContract, Setting):
    # So are versions of a view.
    test_a_switch_tells_of_all_that_may_change = None  # type: ignore[assignment]
