"""The history of joined tables: which rows the join had, from when to when, by arrival. Owns the versions of both sides
and the table `history`. Pure.

A row of a side is valid from its arrival until the next change of its key arrives, of a table with valid times until
the next one that does not lie before it in these. Two rows are joined while both are
valid; a row of an outer side stands alone while it is valid and none of the other side's meets it. So the history is a
function of the changelogs, in whatever order these are read. A step makes the history of all values anew that the
changed rows are, or ever were, joined on: it reads their versions on both sides, and writes what is different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidArgument
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.changelog import CHANGE, ORDER, POSITION, columns_of, keys_in
from headrace.operators.joins.rows import ID, ROW_ID
from headrace.operators.joins.table_history import VALID
from headrace.operators.joins.table_join import (
    Pairs,
    Part,
    Side,
    TableJoin,
    Taken,
    known_values,
    meeting,
    value_numbers,
)
from headrace.operators.result_rows import Pieces, aligned, differ, joined_writes, key_numbers
from headrace.views.contract import HISTORY
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.values import INSTANT, us_column

__all__ = ["JoinedHistory"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
DELETED = Column("/deleted", "boolean")
VALID_FROM, VALID_TO = Column("valid_from", "timestamp"), Column("valid_to", "timestamp")
FOREVER = 2**63 - 1


@dataclass(frozen=True)
class _Spans:
    """Versions of a side, each from when to when it is valid; `value`: the number of what it is joined on."""

    rows: pa.Table
    start: I64
    end: I64
    value: I64


@dataclass(frozen=True)
class JoinedHistory:
    """The join itself, and its history beside."""

    join: TableJoin

    def __post_init__(self) -> None:
        for name in (VALID_FROM.name, VALID_TO.name):
            if name in (each.lower() for each in self.join.schema.names):
                raise InvalidArgument("history", name, "is a column that headrace adds to a history: rename yours")

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.join.inputs

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        own = (each for side in self.join.sides for each in (_versions(side), _seen(side)))
        return *self.join.tables, *own, self.spec

    @property
    def output(self) -> Output:
        return self.join.output

    @property
    def timers(self) -> tuple[Timer, ...]:
        return self.join.timers

    def kernel(self, input: str) -> Kernel | None:
        return self.join.kernel(input)

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        return self.join.ahead(times)

    def reset(self) -> None:
        self.join.reset()

    @cached_property
    def spec(self) -> TableSpec:
        columns = columns_of(self.join.schema, self.join.schema.names)
        return TableSpec(HISTORY, (*_values(self.join.sides[0]), ROW_ID, VALID_FROM), (*columns, VALID_TO))

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self, batch: Mapping[str, pa.Table], state: State, times: Mapping[str, InputTimes], *, changes: bool
    ) -> Step:
        step, pieces = self.join.step(batch, state, times, changes=changes), Pieces()
        self._fold(batch, state, pieces)
        more, own = step.writes, joined_writes(pieces, self.tables, state)
        writes = Writes({**more.puts, **own.puts}, more.adds, {**more.deletes, **own.deletes}, more.drops)
        return replace(step, writes=writes)

    def _fold(self, batch: Mapping[str, pa.Table], state: State, pieces: Pieces) -> None:
        sides = self.join.sides
        fresh = [self._fresh(side, batch.get(side.name), pieces) for side in sides]
        if not any(each.num_rows for each in fresh):
            return
        touched = [self._of_keys(side, each, each, state) for side, each in zip(sides, fresh, strict=True)]
        values = pa.concat_tables([side.values(each) for side, each in zip(sides, touched, strict=True)])
        values = keys_in(values.filter(pa.array(known_values(values))), values.column_names).rows
        rows = []
        for side, mine, new in zip(sides, touched, fresh, strict=True):
            known = state.scan(_seen(side).name, values).select(side.latest.rows.key_names)
            rows.append(self._of_keys(side, pa.concat_tables([known, mine.select(known.column_names)]), new, state))
        numbers = value_numbers([*(side.values(each) for side, each in zip(sides, rows, strict=True)), values])
        asked = numbers[2]
        left, right = (_spans(side, *each) for side, *each in zip(sides, rows, numbers, strict=False))
        both = zip(sides, (left, right), fresh, strict=True)
        changed = [aligned(spans.rows, new, side.latest.rows.key_names) >= 0 for side, spans, new in both]
        found = self._joined(left, right, asked, changed)
        self._write(found, values, touched, state, pieces)

    def _fresh(self, side: Side, records: pa.Table | None, pieces: Pieces) -> pa.Table:
        """New versions of a side, each once."""
        spec = _versions(side)
        if records is None or not records.num_rows:
            return side.latest.schema.append(pa.field(DELETED.name, pa.bool_())).empty_table().select(spec.names)
        given = side.changes(records)
        given = given.append_column(DELETED.name, pc.equal(given[CHANGE], "delete")).select(spec.names)
        given = given.take(pa.array(np.unique(key_numbers(given.select(spec.key_names))[0], return_index=True)[1]))
        pieces.put(spec.name, given)
        there = given.filter(pc.invert(given[DELETED.name]))
        values = side.values(there)
        keys = {name: there[name] for name in side.latest.rows.key_names}
        entries = pa.table({**{name: values[name] for name in values.column_names}, **keys})
        entries = entries.filter(pa.array(known_values(values)))
        pieces.put(_seen(side).name, keys_in(entries, entries.column_names).rows if entries.num_rows else entries)
        return given

    def _of_keys(self, side: Side, keys: pa.Table, fresh: pa.Table, state: State) -> pa.Table:
        """All versions of these keys, of the state and new."""
        names, spec = side.latest.rows.key_names, _versions(side)
        if not keys.num_rows:
            return fresh.slice(0, 0)
        prefixes = keys_in(keys, names).rows
        stored = state.scan(spec.name, prefixes).select(spec.names).cast(fresh.schema)
        mine = fresh.filter(pa.array(aligned(fresh, prefixes, names) >= 0))
        stored = stored.filter(pa.array(aligned(stored, mine, spec.key_names) < 0))
        return pa.concat_tables([stored, mine])

    def _joined(self, left: _Spans, right: _Spans, asked: I64, changed: Sequence[Flags]) -> pa.Table:
        """All rows of these values; and those of changed rows that are joined on nothing."""
        one, other = meeting(left.value, right.value)
        start, end = np.maximum(left.start[one], right.start[other]), np.minimum(left.end[one], right.end[other])
        some = (start < end) & np.isin(left.value[one], asked)
        pairs = one[some], other[some], start[some], end[some]
        found = [pairs]
        for at, spans in enumerate((left, right)):
            if self.join.outer[at]:
                mine = np.isin(spans.value, asked) | ((spans.value < 0) & changed[at])
                row, begin, until = _alone(spans, mine, pairs[at], *pairs[2:])
                none = np.full(len(row), -1)
                found.append((row, none, begin, until) if at == 0 else (none, row, begin, until))
        one, other, start, end = (np.concatenate(each) for each in zip(*found, strict=True))
        rows = self.join.rows((_part(left), _part(right)), Pairs(one, other))
        mine, theirs = (side.values(spans.rows) for side, spans in zip(self.join.sides, (left, right), strict=True))
        made = {name: pc.coalesce(Taken(mine, one)[name], Taken(theirs, other)[name]) for name in mine.column_names}
        made |= {ROW_ID.name: rows[ID], VALID_FROM.name: pa.array(start).cast(INSTANT)}
        made |= {VALID_TO.name: pa.array(end, mask=end == FOREVER).cast(INSTANT)}
        return pa.table({name: made[name] if name in made else rows[name] for name in self.spec.names})

    def _write(
        self, found: pa.Table, values: pa.Table, touched: Sequence[pa.Table], state: State, pieces: Pieces
    ) -> None:
        """What is different from what is stored."""
        names = self.spec.key_names
        stored = [state.scan(HISTORY, values)]
        for at, rows in enumerate(touched):
            lone = rows.filter(pa.array(~known_values(self.join.sides[at].values(rows))))
            if lone.num_rows and self.join.outer[at]:
                stored.append(state.scan(HISTORY, self._lone_prefixes(at, lone)))
        old = pa.concat_tables([each.select(self.spec.names).cast(found.schema) for each in stored])
        at_old = aligned(found, old, names)
        there = np.flatnonzero(at_old >= 0)
        same = np.zeros(found.num_rows, np.bool_)
        same[there] = ~differ(found.take(pa.array(there)), old.take(pa.array(at_old[there])))
        pieces.delete(HISTORY, old.filter(pa.array(aligned(old, found, names) < 0)).select(names))
        pieces.put(HISTORY, found.filter(pa.array(~same)))

    def _lone_prefixes(self, at: int, rows: pa.Table) -> pa.Table:
        """Where rows lie that are joined on nothing: each by itself."""
        side = self.join.sides[at]
        texts = Taken(rows, np.arange(rows.num_rows)).key_texts(side.key)
        ids = pc.binary_join_element_wise(*((texts, "") if at == 0 else ("", texts)), "|")
        prefixes = side.values(rows).append_column(ROW_ID.name, ids)
        return keys_in(prefixes, prefixes.column_names).rows


def _versions(side: Side) -> TableSpec:
    """By key and position, all versions, deletes among them."""
    own = {each.name for each in side.latest.key}
    columns = [each for each in side.latest.columns if each.name not in own]
    return TableSpec(f"{side.name}/versions", (*side.latest.key, *POSITION), (*columns, DELETED))


def _seen(side: Side) -> TableSpec:
    """Which keys ever had a value that rows are joined on."""
    return TableSpec(f"{side.name}/seen", (*_values(side), *side.latest.key), ())


def _values(side: Side) -> tuple[Column, ...]:
    schema = pa.schema(list(zip(side.value_names, side.kinds, strict=True)))
    return columns_of(schema, schema.names)


def _spans(side: Side, rows: pa.Table, value: I64) -> _Spans:
    key = key_numbers(rows.select(side.latest.rows.key_names))[0] if rows.num_rows else np.zeros(0, np.int64)
    order = np.lexsort((*(us_column(rows[name]) for name in reversed(ORDER)), key))
    rows, value, key = rows.take(pa.array(order)), value[order], key[order]
    if side.valid_from is not None:
        last = _last_so_far(rows, key)
        rows, value, key = rows.filter(pa.array(last)), value[last], key[last]
    start = us_column(rows[ORDER[0]])
    end = np.append(np.where(key[1:] == key[:-1], start[1:], FOREVER), FOREVER)[: len(start)]
    there = ~np.asarray(rows[DELETED.name].combine_chunks()).astype(np.bool_) & (start < end)
    return _Spans(rows.filter(pa.array(there)), start[there], end[there], value[there])


def _last_so_far(rows: pa.Table, key: I64) -> Flags:
    """Which versions were the latest of their key when they arrived. `rows`: by key, then by position."""
    order = np.lexsort([us_column(rows[name]) for name in (*reversed(ORDER), VALID.name)])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rank += np.unique(key, return_inverse=True)[1].reshape(-1) * len(order)
    latest: Flags = rank == np.maximum.accumulate(rank)
    return latest


def _alone(spans: _Spans, some: Flags, met: I64, start: I64, end: I64) -> tuple[I64, I64, I64]:
    """When versions are valid and meet no other: the times between those in which they do. `met`: which versions meet
    another, from `start` to `end`."""
    order = np.lexsort((start, met))
    first, behind = (np.searchsorted(met[order], np.arange(len(spans.start)), side=side) for side in ("left", "right"))
    out = []
    for row in np.flatnonzero(some).tolist():
        at = int(spans.start[row])
        for each in order[first[row] : behind[row]].tolist():
            if start[each] > at:
                out.append((row, at, int(start[each])))
            at = max(at, int(end[each]))
        if at < spans.end[row]:
            out.append((row, at, int(spans.end[row])))
    rows, begin, until = np.array(out, np.int64).reshape(-1, 3).T
    return rows, begin, until


def _part(spans: _Spans) -> Part:
    none = np.zeros(0, np.int64)
    return Part(spans.rows, none, spans.value, 0, 0, none)
