"""Every operator's suite with its tables in Postgres. A short selection always, all of it in a soak."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.databases import PostgresServer
from tests.operators import (
    test_aggregates,
    test_dedup,
    test_enrich,
    test_enrich_view,
    test_interval_join,
    test_match,
    test_records,
    test_table,
    test_table_join,
)
from tests.views.test_postgres_views import DatabaseTables

numbers = itertools.count()


class OnPostgres:
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.postgres = postgres

    def _tables(self) -> Any:
        return DatabaseTables(self.postgres.schema(f"operators/{next(numbers)}"), *self.operator().tables)  # type: ignore[attr-defined]


class TestFullJoin(OnPostgres, test_interval_join.TestFull):
    """The one with the most kinds of reads and writes."""

    @pytest.fixture(params=[0])
    def batches(self, request: pytest.FixtureRequest) -> Any:
        return test_interval_join.TestFull.batches.__wrapped__(self, request)  # type: ignore[attr-defined]


ALL: list[type] = [
    *(getattr(test_aggregates, f"Test{name}") for name in ("Fixed", "Added", "Calendar", "Cumulative", "None")),
    *(getattr(test_aggregates, f"Test{name}") for name in ("Sessions", "Sliding", "GroupsThatGo")),
    test_dedup.TestApproximateDedup,
    test_enrich.TestEnrich,
    test_enrich.TestEnrichWithoutTime,
    test_enrich_view.TestContract,
    test_interval_join.TestInner,
    test_interval_join.TestFull,
    test_match.TestContract,
    test_match.TestContractOfAbsence,
    test_records.TestChanged,
    *(getattr(test_table, f"Test{name}") for name in ("Latest", "Versions", "Bitemporal")),
    *(getattr(test_table_join, f"Test{name}") for name in ("PrimaryKey", "ForeignKey", "PartsOfKeys")),
]

for suite in ALL:
    name = (
        f"Test{suite.__module__.rpartition('.test_')[2].title().replace('_', '')}{suite.__name__.removeprefix('Test')}"
    )
    globals()[name] = pytest.mark.soak(type(name, (OnPostgres, suite), {}))
