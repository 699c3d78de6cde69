"""The SQLite store keeps the contract of view stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing import ViewStoreContract
from headrace.views.reading import Views, open_views
from headrace.views.sqlite import SqliteViews


class TestSqliteViews(ViewStoreContract):
    @pytest.fixture
    def home(self, memory: Path) -> Path:
        return memory / "home"

    def open_store(self, home: Path) -> SqliteViews:
        return SqliteViews(home)

    def open_views(self, home: Path) -> Views:
        return open_views(home)
