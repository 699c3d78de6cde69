"""Behind pgbouncer in transaction mode, whose connections are lent for one transaction each: a short selection of the
contract, and what needs more than one statement, or more than one transaction."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import commit, counted, counting, counts
from headrace.views.contract import RESULTS, Commit, Writes
from headrace.views.open import open_store, open_views
from tests.databases import Pooler
from tests.views import test_postgres_views

psycopg = pytest.importorskip("psycopg")


class TestBehindAPooler(test_postgres_views.TestSomeOfIt):
    test_values = test_wider = test_reopened = test_outbox = None  # type: ignore[assignment]  # as without a pooler

    @pytest.fixture(autouse=True)
    def _server(self, pooler: Pooler) -> None:
        self.postgres = pooler  # type: ignore[assignment]


def test_flows_commit_side_by_side(pooler: Pooler, tmp_path: Path) -> None:
    """More flows than connections, with rows that are copied into temporary tables; leases are held meanwhile."""
    address = pooler.schema(tmp_path)

    def work(name: str) -> None:
        with FoldingStore(open_store(address)) as store:
            store.leases.take(name)
            state = store.begin(counting(name))
            for number in range(4):
                rows = [(number, f"/{page}", 1) for page in range(2_200)]
                state = store.commit(state, commit(state, counted(counting(name), rows)))
            store.leases.release(name)

    threads = [threading.Thread(target=work, args=(f"flow_{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        assert len(counts(open_views(address), f"flow_{number}")) == 4 * 2_200


def test_rows_are_staged_and_watched(pooler: Pooler, tmp_path: Path) -> None:
    """A pooler swallows notifications: who watches looks by itself."""
    address = pooler.schema(tmp_path)
    with FoldingStore(open_store(address)) as store:
        state = store.begin(counting())
        stager = store.stager(state, RESULTS)
        rows = counted(counting(), [(0, "/", 2), (1, "/a", 3)])
        with open_views(address).watch("clicks", timeout="20 seconds") as watch:
            state = store.commit(state, commit(state, rows))
            assert [change["n"] for change in (next(watch), next(watch))] == [2, 3]
        table = _as_stored(store, state)
        staged = stager.put(table)
        writes = Writes(staged={RESULTS: staged})
        store._store.commit(state, Commit(state.sequence, {}, {}, writes=writes))
        assert counts(open_views(address)) == {(0, "/"): 4, (1, "/a"): 6}


def _as_stored(store: Any, state: Any) -> pa.Table:
    return store._store.read_state(state).scan(RESULTS, pa.table({"all": [None]}).select([]))
