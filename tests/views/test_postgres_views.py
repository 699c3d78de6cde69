"""The Postgres store keeps the contracts of view stores and of keyed tables: a short selection always, all of it in a
soak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.testing import ViewStoreContract
from headrace.testing.keyed_contract import KeyedTables, KeyedTablesContract
from headrace.testing.view_contract import FlowContract, MergeContract, Setting, ShapedContract, VersionContract
from headrace.views.contract import Commit, FlowSpec, State, TableSpec, Writes
from headrace.views.open import open_store, open_views
from headrace.views.reading import Views
from tests.databases import PostgresServer

pytest.importorskip("psycopg")


class OnPostgres(Setting):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.postgres = postgres

    def open_store(self, home: Path) -> Any:
        return open_store(self.postgres.schema(home))

    def open_views(self, home: Path) -> Views:
        return open_views(self.postgres.schema(home))


@pytest.mark.soak
class TestPostgresViews(OnPostgres, ViewStoreContract):
    @pytest.mark.xfail(strict=True, reason="jsonb: a query of others gets JSON's values, times as texts")
    def test_lists_are_typed_in_the_result_of_a_query(self, store: Any, views: Any) -> None:
        super().test_lists_are_typed_in_the_result_of_a_query(store, views)


class TestSomeOfIt(OnPostgres):
    """One or two of each part."""

    test_begins = FlowContract.test_a_flow_begins_with_nothing
    test_together = FlowContract.test_a_commit_changes_everything_together
    test_once = FlowContract.test_a_batch_is_applied_once
    test_fenced = FlowContract.test_whoever_begins_fences_whoever_began_before
    test_beside = FlowContract.test_two_flows_commit_beside_each_other
    test_fails = FlowContract.test_a_failed_commit_changes_nothing
    test_closed = FlowContract.test_a_closed_store_says_so
    test_reopened = FlowContract.test_what_was_committed_is_there_when_opened_again
    test_dropped = FlowContract.test_a_dropped_flow_is_gone
    test_outbox = FlowContract.test_the_outbox_counts_rows_by_target_until_they_are_relayed
    test_exact = MergeContract.test_averages_of_whole_numbers_and_decimals
    test_values = MergeContract.test_a_row_holds_values_as_they_were
    test_wider = MergeContract.test_a_sum_that_becomes_wider_is_watched_on
    test_kept = MergeContract.test_rows_go_when_they_are_older_than_kept
    test_shaped = ShapedContract.test_rows_go_with_their_results

    @pytest.mark.parametrize("name", ['a"b', 'x";drop table _flows;--', "x'y", "%s", "?1"])
    def test_names(self, store: Any, views: Any, name: str) -> None:
        FlowContract.test_any_name_can_be_a_group_and_a_result(self, store, views, name, None)  # type: ignore[arg-type]


class TestSomeVersions(OnPostgres, VersionContract):
    test_the_difference_of_shaped_rows = None  # type: ignore[assignment]  # many examples: only in the soak


class DatabaseTables:
    """The tables of a flow that nothing else is known of."""

    def __init__(self, address: str, *specs: TableSpec) -> None:
        self._store = open_store(address)
        self._flow = self._store.begin(FlowSpec("f", "app", (), None, tables=specs), replace=True)

    def state(self) -> State:
        return self._store.read_state(self._flow)

    def apply(self, writes: Writes) -> None:
        self._flow = self._store.commit(self._flow, Commit(self._flow.sequence, {}, {}, writes=writes))


class TestPostgresTables(KeyedTablesContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.postgres = postgres

    def open_tables(self, home: Path, *specs: TableSpec) -> KeyedTables:
        return DatabaseTables(self.postgres.schema(home), *specs)
