"""SQLite's view store, whose commits are partial rows: a flow without Spark."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.folding import FoldingStore
from headrace.views.sqlite import store


class SqliteViews(FoldingStore):
    def __init__(self, home: Path) -> None:
        super().__init__(store.SqliteViews(home))
