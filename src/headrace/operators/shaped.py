"""What a transform behind an aggregation makes of its results: for each any number of rows, which readers see in its
place. Owns the table of those rows, and which of them go and come. The transform itself is a function that is given: it
may be a Spark job, and runs in the step, before anything is locked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from headrace.aggregates.groups import json_texts
from headrace.errors import TransformRefused
from headrace.operators.aggregate import OP, Aggregation, Bounds
from headrace.operators.contract import Step
from headrace.operators.emit import closing, comes_in, final_before
from headrace.operators.result_rows import Pieces, aligned, column, joined_writes, keys_of
from headrace.rows import python_values
from headrace.views.changes import as_results
from headrace.views.contract import SHAPED, Column, Emit
from headrace.views.keyed import State, TableSpec, Writes
from headrace.views.naming import NUMBER
from headrace.views.values import arrow_type

__all__ = ["Shape", "ShapedAggregation"]

Shape = Callable[[pa.Table], pa.Table]
I64 = npt.NDArray[np.int64]
TAIL = ("_corrections", "_updated_at")


@dataclass(frozen=True)
class ShapedAggregation:
    inner: Aggregation

    @property
    def spec(self) -> TableSpec:
        rows = self.inner.rows
        time = rows.time if rows.time in rows.key_names else None
        return TableSpec(SHAPED, (*rows.key, Column(NUMBER, "bigint")), self._shaped_columns, time)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (*self.inner.tables, self.spec)

    @property
    def _shaped_columns(self) -> tuple[Column, ...]:
        assert self.inner.view.shaped is not None
        return self.inner.view.shaped

    def fold(
        self, partials: pa.Table | None, state: State, now: Bounds, before: Bounds, shape: Shape
    ) -> tuple[Step, pa.Table]:
        """The step, with all writes and the changes of results; and the rows that were made of results that came."""
        found = self.inner.fold(partials, state, now, before, changes=True)
        raw = found.changes
        assert raw is not None
        names, pieces = self.inner.rows.key_names, Pieces()
        comes = comes_in(raw)
        made = self._shaped(raw.filter(pa.array(comes)), shape)
        pieces.delete(SHAPED, keys_of(raw, names, np.flatnonzero(~comes)))
        pieces.put(SHAPED, self._lasting(made, raw.filter(pa.array(comes)), now, before))
        self._expire(state, now, before, pieces)
        mine = joined_writes(pieces, self.tables, state)
        writes = Writes(
            {**found.writes.puts, **mine.puts},
            found.writes.adds,
            {**found.writes.deletes, **mine.deletes},
            {**found.writes.drops, **mine.drops},
        )
        return replace(found, writes=writes), made

    def _shaped(self, come: pa.Table, shape: Shape) -> pa.Table:
        """The rows that are made of the results that came, under their keys."""
        view, rows = self.inner.view, self.inner.rows
        spec = self.spec
        schema = pa.schema([(each.name, arrow_type(each.type)) for each in (*spec.key, *spec.columns)])
        if not come.num_rows:
            return schema.empty_table()
        made = shape(as_results(view, come).drop_columns([OP]))
        places = [each.name for each in view.places]
        given = pa.table({name: column(made, name).cast(come.schema.field(name).type) for name in places})
        of = aligned(given, come, places) if places else np.zeros(made.num_rows, np.int64)
        if (of < 0).any():
            self._refuse(given.slice(int(np.flatnonzero(of < 0)[0]), 1))
        seen: Counter[int] = Counter()
        numbers = []
        for each in of.tolist():
            numbers.append(seen[each])
            seen[each] += 1
        columns = {name: column(come, name).take(pa.array(of)) for name in rows.key_names}
        columns[NUMBER] = pa.array(numbers, pa.int64())
        columns |= {each.name: column(made, each.name) for each in spec.columns}
        return pa.table([columns[each.name].cast(each.type) for each in schema], schema=schema)

    def _refuse(self, place: pa.Table) -> None:
        said = ", ".join(f"{name} {value!r}" for name, value in _texts(place))
        raise TransformRefused(
            flow=self.inner.view.name,
            step="the transform behind agg",
            operator="its result",
            why=f"has a row of {said}, and no result that it was given is of these: it changes them",
            instead="Window and groups say which result a row is of: give what you make of them another name",
        )

    def _lasting(self, made: pa.Table, come: pa.Table, now: Bounds, before: Bounds) -> pa.Table:
        """Without rows whose results this step drops at once."""
        lasting = self.inner.lasting(come, now, before)
        if lasting.num_rows == come.num_rows:
            return made
        return made.filter(pa.array(aligned(made, lasting, self.inner.rows.key_names) >= 0))

    def _expire(self, state: State, now: Bounds, before: Bounds, pieces: Pieces) -> None:
        gone_us = self.inner.gone_us(now, before)
        if gone_us is not None and self.spec.time is not None:
            pieces.drops[SHAPED] = self.inner.row_time(gone_us)
        elif (dropped := self.inner.dropped(state, now, before)) is not None:
            pieces.delete(SHAPED, dropped.select(self.inner.rows.key_names))

    # -- what others are told --------------------------------------------------------------------------

    def emitted(self, step: Step, made: pa.Table, state: State, emit: Emit, now: Bounds, before: Bounds) -> pa.Table:
        """As `emit.emitted`, of the rows that were made."""
        raw = step.changes
        assert raw is not None
        if emit == "updates":
            return self._expanded(raw, self.stored(raw, state), made)
        was, names = final_before(raw, before), self.inner.rows.key_names
        closed = closing(self.inner, step, state, now, before)
        stored = self.stored(closed, state)
        there = stored.filter(pa.array(aligned(stored, raw, names) < 0))  # of results that did not change
        told = [
            self._expanded(was, self.stored(was, state), made),
            self._expanded(closed, stored, pa.concat_tables([made, there])),
        ]
        return pa.concat_tables(told)

    def stored(self, raw: pa.Table, state: State) -> pa.Table:
        """The rows that were made of results before this step."""
        names = self.inner.rows.key_names
        found = state.scan(SHAPED, keys_of(raw, names, np.arange(raw.num_rows)))
        return found.select(list(self.spec.names))

    def _expanded(self, raw: pa.Table, before: pa.Table, after: pa.Table) -> pa.Table:
        """Changes of results as changes of the rows made of them. A result of which the same rows were made is not told
        of; of another all rows go, and all come."""
        comes = comes_in(raw)
        pieces = [
            self.joined(raw, np.flatnonzero(~comes), before),
            self.joined(raw, np.flatnonzero(comes), after),
        ]
        rows, of = pa.concat_tables([each for each, _ in pieces]), np.concatenate([each for _, each in pieces])
        order = np.lexsort((rows[NUMBER].to_numpy(), of))
        return _without_same(rows.take(pa.array(order)).drop_columns([NUMBER]), of[order], comes)

    def joined(self, raw: pa.Table, numbers: I64, made: pa.Table) -> tuple[pa.Table, I64]:
        """The rows made of some of the results, each with what is said of its result; and which change each is of."""
        names = self.inner.rows.key_names
        some = raw.take(pa.array(numbers))
        of = aligned(made, some, names) if names else np.full(made.num_rows, some.num_rows - 1)
        row = np.flatnonzero(of >= 0)
        result, made = pa.array(of[row]), made.take(pa.array(row))
        columns = {name: some[name].take(result) for name in (OP, *(each.name for each in self.inner.view.places))}
        columns |= {each.name: made[each.name] for each in self._shaped_columns}
        columns |= {name: some[name].take(result) for name in TAIL}
        return pa.table({**columns, NUMBER: made[NUMBER]}), numbers[of[row]]


def _texts(place: pa.Table) -> list[tuple[str, Any]]:
    """As they are said: times without their zone."""
    out = []
    for name in place.column_names:
        (value,) = python_values(column(place, name))
        timed = types.is_timestamp(place.schema.field(name).type) and value is not None
        out.append((name, str(value.replace(tzinfo=None)) if timed else value))
    return out


def _without_same(rows: pa.Table, of: npt.NDArray[np.int64], comes: npt.NDArray[np.bool_]) -> pa.Table:
    """`of`: which change of a result each row is of; one that goes is followed by the one that comes in its place."""
    columns = [column(rows, name) for name in rows.column_names if name != OP]
    columns = [json_texts(each) if types.is_nested(each.type) else each for each in columns]
    made: dict[int, list[Any]] = {}
    for number, *values in zip(of.tolist(), *(python_values(each) for each in columns), strict=True):
        made.setdefault(number, []).append([repr(value) for value in values])
    kept = np.ones(rows.num_rows, np.bool_)
    for number in np.flatnonzero(~comes[:-1] & comes[1:]).tolist():
        if made.get(number, []) == made.get(number + 1, []):
            kept &= (of != number) & (of != number + 1)
    return rows.filter(pa.array(kept))
