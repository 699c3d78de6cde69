"""The SQLite store keeps the contract of view stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.testing import ViewStoreContract
from headrace.views.open import open_views
from headrace.views.reading import Views
from headrace.views.sqlite.store import SqliteViews
from headrace.views.sqlite.values import decode


class TestSqliteViews(ViewStoreContract):
    @pytest.fixture
    def home(self, memory: Path) -> Path:
        return memory / "home"

    def open_store(self, home: Path) -> SqliteViews:
        return SqliteViews(home)

    def open_views(self, home: Path) -> Views:
        return open_views(home)

    def test_lists_are_json_for_sqlite(self, store: Any, views: Any) -> None:
        self._lists(store, views)
        sql = "select e.value ->> 'count' as n from v, json_each(v.top) e"
        assert views.query(sql)["n"].to_pylist() == [2, 1]


@pytest.mark.soak
class TestManyExamples(TestSqliteViews):
    """The profile of the soak has ten times as many."""


@pytest.mark.parametrize(("kind", "whole"), [(pa.float32(), 2**24 + 2), (pa.float64(), 2**60)])
def test_a_double_that_comes_back_as_a_whole_number(kind: pa.DataType, whole: int) -> None:
    """As SQLite returns some from tables whose key they are part of; Arrow takes no large ones for doubles."""
    assert decode([whole, None, 0.5], kind).to_pylist() == [float(whole), None, 0.5]
