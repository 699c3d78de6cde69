"""The rows of matches: what readers see of the events that a scan has taken. Owns the columns of matches, their ids and
their measures, and what is said of an attempt that was given up. Keeps nothing.

A match's id has those of its first and its last event; a row of each event has its own in place of the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cep import matcher
from headrace.cep.definition import Pattern, parts_of
from headrace.cep.evaluate import CLASSIFIER, Compiler, Summary
from headrace.cep.expressions import Column, Expression, Over
from headrace.cep.fitting import measure_types
from headrace.jsonrows import encode_row
from headrace.operators.contract import REASON
from headrace.operators.joins.rows import FINAL_AT, ID
from headrace.operators.records import OP
from headrace.operators.result_rows import column
from headrace.views.values import INSTANT, cast_to, time_column, us_column

__all__ = ["ARRIVED", "AT", "END", "LATE", "MEASURES", "OUTCOME", "START", "SYMBOL", "MatchRows", "Taken", "place_of"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SUM_MAX = 2.0**62
AT, LATE, ARRIVED = "/at", "/late", "/arrived_at"
START, END, OUTCOME, SYMBOL, MEASURES = "match_start", "match_end", "outcome", "symbol", "measures"


class Taken(NamedTuple):
    """A match, or what timed out of one: its symbols, and the numbers of its rows."""

    outcome: str
    symbols: tuple[int, ...]
    rows: tuple[int, ...]
    comes: bool = True


@dataclass(frozen=True)
class MatchRows:
    """`types`: of the events' columns, and of what Spark computes. `together`: the measures are one column, as JSON."""

    types: Mapping[str, pa.DataType]
    by: tuple[str, ...]
    time: str
    pattern: Pattern
    grace_us: int
    together: bool = False

    @cached_property
    def measure_types(self) -> dict[str, pa.DataType]:
        return measure_types(self.pattern, self.types)

    @cached_property
    def passed(self) -> tuple[str, ...]:
        """Columns of the events that are columns of the output."""
        if self.pattern.rows == "one":
            return ()
        return tuple(name for name in self.types if name not in self.by and not name.startswith("/"))

    @cached_property
    def columns(self) -> tuple[tuple[str, pa.DataType], ...]:
        every = self.pattern.rows == "all"
        return (
            *((name, self.types[name]) for name in self.by),
            (START, INSTANT),
            (END, INSTANT),
            *([(SYMBOL, pa.string())] if every else []),
            *((name, self.types[name]) for name in self.passed),
            *([(MEASURES, pa.string())] if self.together else self.measure_types.items()),
            *([(OUTCOME, pa.string())] if self.pattern.timed_out else []),
        )

    def cells(self, rows: pa.Table, name: str) -> pa.Array:
        """A column of the events, of rows as they are kept."""
        if name != self.time:
            return column(rows, name)
        return cast_to(column(rows, AT).cast(pa.int64()), INSTANT).cast(self.types[name])

    def changes(self, rows: pa.Table, taken: list[Taken]) -> pa.Table:
        """Rows that go, then rows that come."""
        taken = sorted(taken, key=lambda each: each.comes)
        sizes = np.array([len(each.rows) for each in taken])
        flat = np.fromiter(chain.from_iterable(each.rows for each in taken), np.int64, int(sizes.sum()))
        begin = np.cumsum(sizes) - sizes
        rows = rows.take(pa.array(flat))
        every = self.pattern.rows == "all"
        at = us_column(rows[AT])
        ids, of = column(rows, ID), np.repeat(np.arange(len(taken)), sizes)
        start_us, end_us = at[begin], at[begin + sizes - 1]
        arrived = np.maximum.reduceat(us_column(rows[ARRIVED]), begin)
        late = np.add.reduceat(np.asarray(column(rows, LATE)).astype(np.int64), begin)
        numbers = of if every else np.arange(len(taken))
        shown = np.arange(len(flat)) if every else begin
        last = np.arange(len(flat)) if every else begin + sizes - 1
        row_ids = ids.take(pa.array(begin[numbers]))
        row_ids = pc.if_else(
            pa.array(last == begin[numbers]),
            row_ids,
            pc.binary_join_element_wise(row_ids, ids.take(pa.array(last)), "|"),
        )
        own: dict[str, Any] = {
            START: time_column(start_us[numbers]),
            END: time_column(end_us[numbers]),
        }
        measures = self._measures(rows, taken, begin.tolist(), every=every)
        own |= {MEASURES: _as_json(measures, len(numbers))} if self.together else measures
        if self.pattern.timed_out:
            own[OUTCOME] = pa.array([each.outcome for each in taken], pa.string()).take(pa.array(numbers))
        if every:
            symbols = [self.pattern.symbols[symbol] for each in taken for symbol in each.symbols]
            own[SYMBOL] = pa.array(symbols, pa.string())
        picked = rows.take(pa.array(shown))
        for name in (*self.by, *self.passed):
            own[name] = self.cells(picked, name)
        return pa.table(
            {
                OP: pc.if_else(pa.array([each.comes for each in taken]).take(pa.array(numbers)), "+", "-"),
                **{name: cast_to(_array(own[name]), kind) for name, kind in self.columns},
                ID: row_ids,
                FINAL_AT: time_column(start_us[numbers] + self.pattern.within_us + self.grace_us),
                "_corrections": pa.array(late[numbers]),
                "_updated_at": time_column(arrived[numbers]),
                "_progress": time_column(end_us[numbers]),  # a row is never late
            }
        )

    def _measures(self, rows: pa.Table, taken: list[Taken], begin: list[int], *, every: bool) -> dict[str, pa.Array]:
        """Over the rows of each match; of all its rows, those up to each."""
        if not self.measure_types:
            return {}
        made = dict[str, pa.Array]()
        trees = dict(parts_of(self.pattern).measure_trees)
        if not every:
            symbols = np.fromiter(chain.from_iterable(each.symbols for each in taken), np.int64, rows.num_rows)
            for name, tree in trees.items():
                if (found := self._at_once(tree, rows, symbols, np.array(begin))) is not None:
                    made[name] = found.cast(self.measure_types[name])
        rest = {name: tree for name, tree in trees.items() if name not in made}
        return made | self._one_by_one(rest, rows, taken, begin, every=every) if rest else made

    def _at_once(self, tree: Expression, rows: pa.Table, symbols: I64, begin: I64) -> pa.Array | None:
        """A measure that needs no sum from row to row; None: it does. Doubles do: in one order, they have one sum."""
        match tree:
            case Column(symbol=symbol):
                function, of = "last", tree
            case Over(function, Column() | None as of, symbol, 0) if function in ("count", "first", "last", "sum"):
                pass
            case _:
                return None
        mine = np.ones(len(symbols), np.bool_)
        if symbol is not None:
            mine = symbols == self.pattern.symbols.index(symbol)
        if function in ("first", "last"):
            return self.cells(rows, of.name).take(_ends(function, mine, begin))
        if of is not None:
            cells = self.cells(rows, of.name)
            mine = mine & np.asarray(cells.is_valid())
        count = np.add.reduceat(mine.astype(np.int64), begin)
        if function == "count":
            return pa.array(count)
        if not pa.types.is_integer(cells.type):
            return None
        values = np.where(mine, cells.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), 0)
        if len(values) and float(np.abs(values.astype(np.float64)).max()) * len(values) >= SUM_MAX:
            return None
        return pa.array(np.add.reduceat(values, begin), mask=count == 0)

    def _one_by_one(
        self, trees: Mapping[str, Expression], rows: pa.Table, taken: list[Taken], begin: list[int], *, every: bool
    ) -> dict[str, pa.Array]:
        compiler, cells = Compiler(self.pattern.symbols, self.types), dict[str, Any]()
        values = [compiler.value(tree, cells) for tree in trees.values()]
        for name in compiler.columns:
            cells[name] = self.cells(rows, name).to_pylist()
        cells[CLASSIFIER] = [self.pattern.symbols[symbol] for each in taken for symbol in each.symbols]
        summary = Summary(compiler.slots, cells)
        out: list[list[Any]] = [[] for _ in values]
        for each, first in zip(taken, begin, strict=True):
            summed, row = summary.nothing, first
            for row, symbol in enumerate(each.symbols, first):
                summed = summary.add(summed, symbol, row)
                if every:
                    for told, value in zip(out, values, strict=True):
                        told.append(value(row, summed))
            if not every:
                for told, value in zip(out, values, strict=True):
                    told.append(value(row, summed))
        return {name: _column_of(told, self.measure_types[name]) for name, told in zip(trees, out, strict=True)}

    def letters(self, rows: pa.Table, given_up: list[int], limits: matcher.Limits) -> pa.Table | None:
        """The first events of attempts that were given up, as far as they are kept."""
        if not given_up:
            return None
        rows = rows.take(pa.array(given_up))
        names = [name for name in rows.column_names if not name.startswith("/")]
        why = f"a partial match of {self.pattern.text!r} that begins with it looks at more than {limits.rows:,} events,"
        why += f" or takes more than {limits.steps:,} steps: it was given up, and the scan went on behind this event"
        places = [place_of(each) for each in rows[ID].to_pylist()]
        return pa.table(
            {
                **{name: rows[name] for name in names},
                self.time: self.cells(rows, self.time),
                ID: rows[ID],
                "_partition": pa.array([partition for partition, _, _ in places], pa.int32()),
                "_offset": pa.array([offset for _, offset, _ in places], pa.int64()),
                REASON: pa.repeat(why, len(given_up)),
            }
        )


def _ends(which: str, mine: Flags, begin: I64) -> pa.Array:
    """Of each match, the number of its first or last row that is meant; null: it has none."""
    numbers = np.arange(len(mine))
    if which == "first":
        found = np.minimum.reduceat(np.where(mine, numbers, len(mine)), begin)
        return pa.array(found, mask=found == len(mine))
    found = np.maximum.reduceat(np.where(mine, numbers, -1), begin)
    return pa.array(found, mask=found < 0)


def place_of(text: str) -> tuple[int, int, str]:
    """Partition and offset of an event, by its id."""
    parts = text.split("/")
    return _number(parts, 1), _number(parts, 2), text


def _number(parts: list[str], at: int) -> int:
    return int(parts[at]) if len(parts) > at and parts[at].isdigit() else -1


def _as_json(measures: Mapping[str, pa.Array], count: int) -> pa.Array:
    rows = pa.table(dict(measures)).to_pylist() if measures else [dict[str, Any]()] * count
    return pa.array([encode_row(row).decode() for row in rows], pa.string())


def _column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A literal, 0.5 or one that fits no integer, is a double where it stands alone."""
    doubles = pa.types.is_floating(kind)
    return pa.array([float(each) if doubles and each is not None else each for each in values], kind)


def _array(values: Any) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
