"""Aggregates whose state functions merge, and finish: what they have in common. The state is in the slot NAME__state,
the result under the aggregate's own name; without `finish` the state is the result.

And what becomes of such states of a view when they are rolled up, hr.merge: of every row of the view its state is kept,
so that it can be taken back, and all of them are merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.aggregates.algebra import Algebra, Found, Records, RowsOf, Slot, ddl, written
from headrace.aggregates.kept import Held, Kept
from headrace.aggregates.packing import I64, known
from headrace.schema import parse_ddl

if TYPE_CHECKING:
    from headrace.aggregates.aggregate import Aggregate


@dataclass(frozen=True)
class Merged(Algebra):
    packs: ClassVar[bool] = True

    def kept(self) -> str:
        """The type of the state."""
        raise NotImplementedError

    def finished(self, state: pa.DataType) -> str | None:
        """The type of the result; None where the state is it."""
        return None

    def values(self, records: Records) -> pa.Array:
        """What `pack` takes of each record."""
        return records.part(self).combine_chunks()

    def pack(self, of: I64, values: pa.Array, rows: int) -> pa.Array:
        """The state of each row, of the values other than null; `of` says which row a value belongs to."""
        raise NotImplementedError

    def state(self, name: str) -> str:
        return name if self.finished(pa.null()) is None else f"{name}__state"

    def slots(self, name: str) -> tuple[Slot, ...]:
        state = Slot(self.state(name), "merged", self.kept())
        if state.name == name:
            return (state,)
        result = self.finished(parse_ddl(f"x {state.type}").field(0).type) if self.types else ""
        return state, Slot(name, "finished", result or "", of=state.name)

    def complete(self, name: str, records: Records, found: Found, of: RowsOf, rows: int) -> None:
        found[self.state(name)] = self.pack(*known(of(), self.values(records)), rows)

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        return aggregate.with_algebra(RolledUp(written(self.state(column)), rolls=aggregate))


@dataclass(frozen=True)
class RolledUp(Kept):
    """`rolls`: the aggregate whose states are merged."""

    rolls: Aggregate | None = None

    called: ClassVar[str] = "merge"

    def result(self) -> str:
        return ddl(self.of())

    def slots(self, name: str) -> tuple[Slot, ...]:
        assert self.rolls is not None and isinstance(self.rolls.algebra, Merged)
        state, result = self.rolls.algebra.state(name), self.rolls.algebra.finished(self.of())
        kept = Slot(state, "kept", self.result(), of=ddl(self.held()))
        return (kept,) if result is None else (kept, Slot(name, "finished", result, of=state))

    def possible(self) -> bool:
        return True

    def made_of(self, held: Held) -> Any:
        assert self.rolls is not None and self.rolls.merge is not None
        states = [state for state, count in held for _ in range(count)]
        return reduce(self.rolls.merge, states) if states else None

    def rolled_up(self, column: str, aggregate: Aggregate) -> Aggregate:
        assert self.rolls is not None
        return self.rolls.algebra.rolled_up(column, self.rolls) or aggregate
