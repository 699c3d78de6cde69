"""A flow that passes records through an operator: what the operator's step says of a batch, as what goes to topics.
Knows no Spark, and keeps nothing: state is in the flow's tables, with its commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, OperatorFailed
from headrace.flows.folding.shaping import first_line
from headrace.kernels.judge import SOURCE
from headrace.log.contract import META
from headrace.operators.contract import Operator, Step
from headrace.operators.records import HASH, INPUT, OP, TOPIC
from headrace.views.contract import (
    UPDATED_AT,
    WINDOW,
    WINDOWS_COUNTED,
    WINDOWS_MISSED,
    LedgerRow,
    Outgoing,
    State,
    Writes,
)

if TYPE_CHECKING:
    from headrace.flows.flow import Flow

__all__ = ["InParts", "PassedOn", "PassingOn"]

InParts = Callable[[Operator, pa.Table], Step | None]
"""An operator's step over these records; None where it had better run here."""


@dataclass(slots=True)
class PassedOn:
    """What came of a batch: what goes on, what became of its records, and what is written."""

    outgoing: list[Outgoing] = field(default_factory=list)
    ledger: tuple[LedgerRow, ...] = ()
    writes: Writes = field(default_factory=Writes)


class PassingOn:
    def __init__(self, flow: Flow) -> None:
        assert flow.operator is not None and flow.target is not None
        self._flow, self._operator, self._target = flow, flow.operator, flow.target
        self._time = flow.inputs[0].topic.settings.event_time
        self._names = [topic.name for topic in flow.topics]
        self._places = [sorted(self._names).index(name) for name in self._names]  # the program may name them otherwise

    def step(self, records: pa.Table, state: State, in_parts: InParts | None = None) -> PassedOn:
        """Of the records behind that state those that go on. `in_parts`: how a large step runs in Spark's workers."""
        names = pa.array(self._names, pa.string()).take(records[SOURCE].combine_chunks())
        records = records.append_column(TOPIC, names)
        try:
            step = None if in_parts is None else in_parts(self._operator, records)
            step = step or self._operator.step({INPUT: records}, state, {}, changes=True)
        except (HeadraceError, OSError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise OperatorFailed(self._flow.name, str(self._flow.through), why) from error
        out = PassedOn(ledger=step.ledger, writes=step.writes)
        if step.changes is not None:
            for source, partition, some in _runs(step.changes.drop_columns([OP])):
                self._send(out, some, partition * len(self._places) + self._places[source])
        if step.dropped is not None:
            self._send_dropped(out, step.dropped)
        return out

    def _send(self, out: PassedOn, rows: pa.Table, partition: int) -> None:
        """Each partition's records stay together, in a partition of the topic: there, too, progress never goes back.
        They keep their arrival, in a column of their own."""
        if rows.num_rows:
            arrived = rows["_arrived_at"]
            rows = _plain(rows).append_column(UPDATED_AT, arrived)
            rows = rows.append_column("_partition", pa.array(np.full(rows.num_rows, partition), pa.int32()))
            out.outgoing.append(Outgoing(self._target, rows))

    def _send_dropped(self, out: PassedOn, rows: pa.Table) -> None:
        """With their own time in place of a window's, as of sessions."""
        target = self._flow.late.dropped_to
        if target is not None and rows.num_rows:
            assert self._time is not None, "without a time nothing is late"
            for name in WINDOW:
                rows = rows.append_column(name, rows[self._time])
            for name, count in (WINDOWS_MISSED, 1), (WINDOWS_COUNTED, 0):
                rows = rows.append_column(name, pa.array(np.full(rows.num_rows, count)))
            out.outgoing.append(Outgoing(target, _plain(rows)))


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
    ours = {*META, SOURCE, HASH, TOPIC} - {"_progress"}
    return rows.drop_columns([name for name in rows.column_names if name in ours])
