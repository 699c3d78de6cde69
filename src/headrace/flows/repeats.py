"""Repetitions on their way out of a flow: records in order, by partition, through that partition's filters. Owns what
the flow has seen, between batches; `bloom` says what that means, the store keeps it with each commit. Knows no Spark.

What was seen belongs to a place of the flow. If a batch was given up, the place is another, and what the store has kept
counts: so a batch that is computed again finds what the first one found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bloom import Filters
from headrace.kernels.judge import SOURCE
from headrace.log.contract import META
from headrace.time import UNSET
from headrace.views.contract import (
    WINDOW,
    WINDOWS_COUNTED,
    WINDOWS_MISSED,
    Filtered,
    LedgerRow,
    Outgoing,
    Places,
    ViewStore,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.flows.flow import Flow

HASH = "/hash"
"""Of a record's key."""


@dataclass(slots=True)
class TakenOut:
    """A batch without repetitions: what goes on, what became of all, and what is known now."""

    outgoing: list[Outgoing] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    filters: list[Filtered] = field(default_factory=list)


class Repeats:
    def __init__(self, flow: Flow, store: ViewStore) -> None:
        assert flow.dedup is not None and flow.target is not None
        self._flow, self._store, self._dedup, self._target = flow, store, flow.dedup, flow.target
        self._time = flow.inputs[0].topic.settings.event_time
        names = [topic.name for topic in flow.topics]
        self._names = names
        self._places = [sorted(names).index(name) for name in names]  # the program may name them in another order
        self._seen: dict[tuple[str, int], Filters] = {}
        self._at: Places | None = None
        """Where the flow is when it has seen that."""

    def taken_out(self, records: pa.Table, before: Places, after: Places) -> TakenOut:
        """Of the records between two places those that go on. To be called in the order of batches; the store is asked
        only when the last one has been committed, or given up."""
        if self._at is not before:
            self._load()
        self._at = None  # until it is done
        records = records.sort_by([(name, "ascending") for name in (SOURCE, "_partition", "_offset")])
        out, ledger = TakenOut(), LedgerRow(None, None)
        for source, partition, some in _runs(records):
            timed = some.filter(pc.is_valid(some[self._time]))
            filters = self._seen.setdefault((self._names[source], partition), Filters(self._dedup))
            first, late = filters.step(timed[HASH].to_numpy(), _us(timed[self._time]), _us(timed["_progress"]))
            ledger = LedgerRow(
                None,
                None,
                on_time=ledger.on_time + int((~late).sum()),
                dropped=ledger.dropped + int(late.sum()),
                untimed=ledger.untimed + some.num_rows - timed.num_rows,
            )
            self._send(out, timed.filter(pa.array(first)), partition * len(self._places) + self._places[source])
            self._send_dropped(out, timed.filter(pa.array(late)))
            pages = list(filters.changed())
            out.filters.append(Filtered(self._names[source], partition, filters.reached_us, filters.lowest, pages))
        out.ledger += [ledger] if records.num_rows else []
        self._at = after
        return out

    def _send(self, out: TakenOut, rows: pa.Table, partition: int) -> None:
        """Each partition's records stay together, in a partition of the topic: there, too, progress never goes back."""
        if rows.num_rows:
            rows = _plain(rows).append_column("_partition", pa.array(np.full(rows.num_rows, partition), pa.int32()))
            out.outgoing.append(Outgoing(self._target, rows))

    def _send_dropped(self, out: TakenOut, rows: pa.Table) -> None:
        """With their own time in place of a window's, as of sessions."""
        target = self._flow.late.dropped_to
        if target is not None and rows.num_rows:
            for name in WINDOW:
                rows = rows.append_column(name, rows[self._time])
            for name, count in (WINDOWS_MISSED, 1), (WINDOWS_COUNTED, 0):
                rows = rows.append_column(name, pa.array(np.full(rows.num_rows, count)))
            out.outgoing.append(Outgoing(target, _plain(rows)))

    def _load(self) -> None:
        self._seen = {}
        for kept in self._store.filters(self._flow.name):
            filters = self._seen[kept.topic, kept.partition] = Filters(self._dedup)
            filters.reached_us = kept.reached_us
            for page in kept.pages:
                filters.put(*page)


def _runs(records: pa.Table) -> list[tuple[int, int, pa.Table]]:
    """Source, partition and records of each run of the same."""
    source, partition = (records[name].to_numpy() for name in (SOURCE, "_partition"))
    cut = np.flatnonzero((source[1:] != source[:-1]) | (partition[1:] != partition[:-1])) + 1
    starts = [0, *cut.tolist()] if records.num_rows else []
    stops = [*starts[1:], records.num_rows]
    return (
        [
            (int(source[start]), int(partition[start]), records.slice(start, stop - start))
            for start, stop in zip(starts, stops, strict=True)
        ]
        if starts
        else []
    )


def _plain(rows: pa.Table) -> pa.Table:
    ours = {*META, SOURCE, HASH} - {"_progress"}
    return rows.drop_columns([name for name in rows.column_names if name in ours])


def _us(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = times.cast(pa.int64()).fill_null(UNSET).to_numpy()
    return numbers
