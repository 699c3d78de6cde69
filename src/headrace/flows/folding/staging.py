"""Large folds whose rows never come to the driver: Spark's workers fold what they have computed and stage it in the
store, side by side; the commit adds it. Owns when that is worth while, and what workers tell of it.

It is done for flows whose store can add rows by itself (`Fold.adds_up`) and has a `Stager`; not while somebody watches
the view, who must be told what changes. Each task stages its own rows: a group whose records several tasks read comes
several times, and is added as often, as rows of several batches are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, StorageError
from headrace.flows.query import FlowQuery, Planned
from headrace.kernels.fold import folded, needed
from headrace.kernels.judge import DROPPED
from headrace.operators.fold import Fold, StagedRows
from headrace.views.contract import RESULTS, FlowState, LedgerRow, Staged, Stager, ViewStore

if TYPE_CHECKING:
    from headrace.flows.flow import Flow

__all__ = ["ROWS_MIN", "StagedBatch", "Staging"]

ROWS_MIN = 20_000
"""Fewer rows come to the driver: staging tables and a job that fills them cost more than they do."""
SCHEMA = "said string"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """`dropped`: whether records were too late."""

    rows: StagedRows
    ledger: list[LedgerRow]
    dropped: bool


class Staging:
    """Of one loop that has begun."""

    def __init__(self, query: FlowQuery, fold: Fold, store: ViewStore, stager: Stager) -> None:
        self._flow, self._store, self._stager = query.compiled.flow, store, stager
        self._query = query.behind(_in_workers(self._flow, fold, stager), SCHEMA)
        self._share = 0.0
        """Rows that were made of a record, lately."""

    @classmethod
    def of(cls, query: FlowQuery, fold: Fold | None, store: ViewStore, state: FlowState) -> Staging | None:
        """None where all rows come to the driver."""
        flow = query.compiled.flow
        if fold is None or not fold.adds_up or flow.own_progress or not (flow.groups or flow.window):
            return None
        stager = store.stager(state, RESULTS)
        return None if stager is None else cls(query, fold, store, stager)

    def learn(self, records: int, rows: int) -> None:
        self._share = rows / max(records, 1)

    def pays(self, records: int) -> bool:
        """As far as the last batch tells."""
        return records * self._share >= ROWS_MIN and not self._store.is_watched(self._flow.name)

    def run(self, planned: Planned) -> StagedBatch:
        found = [json.loads(said) for said in self._query.rows_by_spark(planned)["said"].to_pylist()]
        for each in found:
            if each["failed"]:
                raise StorageError(path=each["path"], why=each["failed"])
        parts = tuple(Staged(p, r, tuple(nulls)) for each in found for p, r, nulls in each["parts"])
        ledger = [LedgerRow(**row) for each in found for row in each["ledger"]]
        rows = StagedRows(parts, lambda: self._stager.rows(parts))
        return StagedBatch(rows, ledger, any(each["dropped"] for each in found))


def _in_workers(
    flow: Flow, fold: Fold, stager: Stager
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its partial rows. It knows of the flow only what it needs: that goes to every worker."""
    window, groups, aggregates, names = flow.window, flow.groups, flow.aggregates or {}, needed(fold.view)

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            return
        partials = pa.Table.from_batches(given)
        late = bool(window is not None and pc.max(partials[DROPPED]).as_py())
        rows, ledger = folded(partials, window, groups, aggregates)
        said = {"failed": "", "path": "", "parts": [], "ledger": [asdict(row) for row in ledger], "dropped": late}
        try:
            staged = stager.put(fold.addable(rows.select(names))) if rows.num_rows else []
            said["parts"] = [(each.place, each.rows, each.nulls) for each in staged]
        except HeadraceError as error:  # the store's: no record is to blame
            said |= {"failed": str(getattr(error, "why", error)), "path": str(getattr(error, "path", ""))}
        yield pa.record_batch({"said": pa.array([json.dumps(said)])})

    return stage
