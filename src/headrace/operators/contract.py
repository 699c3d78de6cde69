"""What an operator is. Owns no behaviour; `headrace.testing.OperatorContract` tests what is promised here.

An operator folds batches of its inputs into tables of its own and says what changed. It reads state only through
`State`, at the sequence before its step; it has no clock, no I/O and no randomness, and it pickles. Promise: a step
over all rows equals the steps over parts of them, if rows that agree in the input's `by` columns stay together. So
large steps may run in parts, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.views.contract import Column, LedgerRow
from headrace.views.keyed import State, TableSpec, Writes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["REASON", "Input", "InputTimes", "Kernel", "Operator", "Output", "Step", "Timer"]

REASON = "/reason"
Kernel = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]
"""Stateless and associative; runs in Spark's workers, or on the driver where a batch is small."""


@dataclass(frozen=True, slots=True)
class Input:
    """What an operator reads. `id` is not the topic's name: a topic may be read twice."""

    id: str
    columns: tuple[Column, ...]
    by: tuple[str, ...]
    """Rows that meet are equal in these; ("_partition",) where order within a partition decides."""
    changes: bool = False
    """True when rows can be taken back: a column says '+' or '-'."""
    first: bool = False
    """Read to an end that is looked up after the ends of the others: tables, rules, stored queries."""


@dataclass(frozen=True, slots=True)
class Output:
    """The rows that readers see: of `table`, whose columns they are, or are made of. None: rows are passed on, not
    kept."""

    table: str | None
    time: str | None
    """The column with a row's event time."""
    final_at: str | None
    """The column with the time at which, when the frontier has passed it, a row is final."""
    columns: tuple[Column, ...] | None = None
    """Of rows that are passed on, what they have besides `hr.META`; None: what the input has."""
    key: tuple[str, ...] = ()
    """Of rows that are passed on and can be taken back: the columns that tell them apart."""


@dataclass(frozen=True, slots=True)
class InputTimes:
    """How far an input is, in microseconds. `frontier_us` says what is final; only `reach_us` lets state go."""

    frontier_us: int | None
    reach_us: int | None
    frontier_before_us: int | None = None
    reach_before_us: int | None = None
    """The same at the sequence of the state: so a step knows what it is the first to call final."""
    arrived_us: int | None = None
    """Records still to come arrived then or later; None: that is not known."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Asks for a step with an empty batch when the input's frontier passes the least time of the table."""

    table: str
    input: str


@dataclass(frozen=True, slots=True)
class Step:
    """What came of a batch. `changes`: rows that went ('-') and came ('+'), of the output; None where nobody asked."""

    writes: Writes = field(default_factory=Writes)
    changes: pa.Table | None = None
    ledger: tuple[LedgerRow, ...] = ()
    dropped: pa.Table | None = None
    """Records that came too late."""
    letters: pa.Table | None = None
    """Records that cannot be processed. With a column `REASON` they stay counted, and it says what was given up."""
    refused: pa.Table | None = None
    """Of an input that is read first, records that mean nothing: `/error` says why. They are counted nowhere."""
    ahead: InputTimes | None = None
    """Frontier and reach for those who read the output, where they depend on state; None: `Operator.ahead` says."""
    missing: int = 0
    """Records that were dropped because what they look up is not there."""


class Operator(Protocol):
    """One stateful operator of one flow, with its settings."""

    @property
    def inputs(self) -> tuple[Input, ...]: ...

    @property
    def tables(self) -> tuple[TableSpec, ...]: ...

    @property
    def output(self) -> Output: ...

    @property
    def timers(self) -> tuple[Timer, ...]: ...

    def kernel(self, input: str) -> Kernel | None:
        """What workers make of records before they come to the step; None: the step gets the records."""

    def step(
        self, batch: Mapping[str, pa.Table], state: State, times: Mapping[str, InputTimes], *, changes: bool
    ) -> Step:
        """Folds rows by input. `changes`: somebody reads what changes; otherwise the step need not read old rows."""

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        """Frontier and reach for those who read the output."""

    def reset(self) -> None:
        """Forgets what it knows of another sequence."""
