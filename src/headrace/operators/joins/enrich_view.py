"""Facts with the columns of a view's row: `stream.enrich(view, on=…, as_of=…)`. Owns the view's rows by group and
window end, and the facts whose answer can still change.

The answer of a fact is the row of its groups whose window ends last, at the fact's time or before. The view decided
which of its records are late, so its changes never are: each corrects the facts that it answers. A fact is published at
once, and again when its answer is another. It is final when the view's frontier has passed its time, and it leaves when
the view's reach has: then no window that ends by then can change.

A step reads the rows and facts that its changes touch, and those that its facts ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.operators.contract import Input, InputTimes, Step
from headrace.operators.joins.changelog import CHANGE
from headrace.operators.joins.facts import FACTS, TABLE, Missing, OverFacts
from headrace.operators.joins.held import HELD, held_rows, least_progress_us
from headrace.operators.joins.rows import FINAL_AT, ID
from headrace.operators.joins.view_changes import VIEW_CORRECTIONS
from headrace.operators.records import OP, columns_of
from headrace.operators.result_rows import aligned, column, differ, key_numbers
from headrace.schema import type_ddl
from headrace.time import UNSET
from headrace.views.contract import WINDOW, LedgerRow
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.values import INSTANT, arrow_type, cast_to, time_column, us_column

__all__ = ["FACTS", "TABLE", "EnrichView"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
AT, ARRIVED = "/at", "/arrived"
"""Of a fact that is kept: the time that it asks for, and when it arrived."""
END, START, UPDATED = "/end", "/start", "/updated"
"""Of a row of the view: the end and start of its window, and the latest arrival of its records. A session may get
another start: then a row comes and another goes that end together, in any order."""
PLACE = (Column("_partition", "int"), Column("_offset", "bigint"))
REACHED = TableSpec("reached", (Column("/one", "int"),), (Column("/reach", "timestamp"),))
"""One row: how far the view's marks have come. A batch without a mark does not say it again."""
NONE = -1
LATEST_US = 2**63 - 1


@dataclass(frozen=True)
class EnrichView(OverFacts):
    """`on`: columns of the fact, and the groups of the view they are equal to. `time`: the fact's time. `columns`: of
    the view, with their names in the output. `receipt`: the column that says which window was used, by its end."""

    facts: pa.Schema
    view: pa.Schema
    on: tuple[tuple[str, str], ...]
    time: str
    columns: tuple[tuple[str, str], ...]
    receipt: str
    missing: Missing

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input(FACTS, columns_of(self.facts), tuple(mine for mine, _ in self.on)),
            Input(TABLE, columns_of(self.view), tuple(theirs for _, theirs in self.on), changes=True, first=True),
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self._rows, self._buffer, HELD, REACHED

    def out_schema(self) -> pa.Schema:
        return self._schema

    def out_time(self) -> str | None:
        return self.time

    def reset(self) -> None:
        """It knows nothing between steps."""

    @cached_property
    def _keys(self) -> tuple[Column, ...]:
        """The groups of the row that a fact asks for."""
        return tuple(Column(f"/key/{name}", type_ddl(self.view.field(name).type)) for _, name in self.on)

    @property
    def _key_names(self) -> list[str]:
        return [each.name for each in self._keys]

    @cached_property
    def _rows(self) -> TableSpec:
        taken = tuple(Column(f"/{of}", type_ddl(self.view.field(of).type)) for of in self._taken)
        own = (Column(START, "timestamp"), Column(VIEW_CORRECTIONS, "bigint"), Column(UPDATED, "timestamp"))
        return TableSpec("windows", (*self._keys, Column(END, "timestamp")), (*taken, *own))

    @property
    def _taken(self) -> list[str]:
        return list(dict.fromkeys(of for of, _ in self.columns))

    @cached_property
    def _buffer(self) -> TableSpec:
        kept = [*columns_of(self.facts), *(PLACE if self.missing == "dead_letter" else ())]
        own = [Column("_progress", "timestamp"), Column(ARRIVED, "timestamp")]
        key = (*self._keys, Column(AT, "timestamp"), Column(ID, "string"))
        return TableSpec(FACTS, key, (*kept, *own), AT)

    @cached_property
    def _schema(self) -> pa.Schema:
        """Of what comes out."""
        taken = [(name, self.view.field(of).type) for of, name in self.columns]
        tail = [(ID, pa.string()), (FINAL_AT, INSTANT), ("_corrections", pa.int64())]
        tail += [("_updated_at", INSTANT), ("_progress", INSTANT)]
        return pa.schema([(OP, pa.string()), *self.facts, *taken, (self.receipt, pa.string()), *tail])

    # -- a step ----------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        *,
        changes: bool,  # noqa: ARG002 (what goes on is what the step is for)
    ) -> Step:
        known_us = _reached(state)
        reach_us = max((us for us in (known_us, times[TABLE].reach_us) if us is not None), default=None)
        changed = _none(self._rows, Column(CHANGE, "string"))
        if TABLE in batch:
            changed = self._changed(batch[TABLE], state)
        fresh = self._facts_of(batch[FACTS]) if FACTS in batch else _none(self._buffer)
        asks = self._asks(fresh)
        stays = asks & ~_gone(fresh, reach_us)
        kept = self._touched(changed, state)
        leaving = self._leaving(kept, state, reach_us)
        every = pa.concat_tables([fresh, kept, leaving])
        asking = np.concatenate((asks, np.ones(every.num_rows - len(asks), np.bool_)))
        before, after = self._answers(every, asking, changed, state)
        first, last = fresh.num_rows, fresh.num_rows + kept.num_rows
        moved = first + np.flatnonzero(differ(before.slice(first, last - first), after.slice(first, last - first)))
        missing = None
        if self.missing != "null":
            settled = np.concatenate((~stays, _gone(every.slice(first), reach_us)))
            missing = every.filter(pa.array(settled & ~_found(after)))
        return Step(
            self._writes(changed, fresh.filter(pa.array(stays)), reach_us, known_us),
            pa.concat_tables(
                [
                    self._published("-", _take(every, moved), _take(before, moved)),
                    self._published("+", _take(every, moved), _take(after, moved)),
                    self._published("+", fresh, after.slice(0, first)),
                ]
            ),
            (LedgerRow(None, None, on_time=first),) if first else (),
            letters=self._letters(missing) if missing is not None and self.missing == "dead_letter" else None,
            ahead=self._ahead(times, state, fresh.filter(pa.array(stays)), reach_us),
            missing=missing.num_rows if missing is not None and self.missing == "drop" else 0,
        )

    def _changed(self, records: pa.Table, state: State) -> pa.Table:
        """What became of the windows that changed, by groups and end; without groups that are null."""
        of = dict(zip(self._key_names, (theirs for _, theirs in self.on), strict=True))
        of |= {END: WINDOW[1], START: WINDOW[0], UPDATED: "_arrived_at", **{f"/{name}": name for name in self._taken}}
        rows = pa.table(
            {
                each.name: cast_to(column(records, of.get(each.name, each.name)), arrow_type(each.type))
                for each in (*self._rows.key, *self._rows.columns, Column(CHANGE, "string"))
            }
        )
        rows = rows.take(pa.array(np.argsort(column(records, "_offset").to_numpy(), kind="stable")))
        for name in self._rows.key_names:
            rows = rows.filter(rows[name].is_valid()) if rows[name].null_count else rows
        rows = _last_of_each(rows, [*self._rows.key_names, START])
        goes = np.asarray(pc.equal(rows[CHANGE], "delete"))
        rows = _last_of_each(rows.take(pa.array(np.argsort(~goes, kind="stable"))), self._rows.key_names)
        goes = np.asarray(pc.equal(rows[CHANGE], "delete"))
        stored = state.get(self._rows.name, rows.filter(pa.array(goes)).select(self._rows.key_names))
        there = aligned(rows, stored, [*self._rows.key_names, START]) >= 0
        return rows.filter(pa.array(~goes | there))

    def _facts_of(self, records: pa.Table) -> pa.Table:
        """Facts as they are kept."""
        of = dict(zip(self._key_names, (mine for mine, _ in self.on), strict=True)) | {AT: self.time}
        of |= {ARRIVED: "_arrived_at"}
        return pa.table(
            {
                each.name: cast_to(column(records, of.get(each.name, each.name)), arrow_type(each.type))
                for each in (*self._buffer.key, *self._buffer.columns)
            }
        )

    def _asks(self, facts: pa.Table) -> Flags:
        """Which facts have all that a question needs: no null in their key, and a time."""
        asks: Flags = np.all([np.asarray(column(facts, name).is_valid()) for name in (*self._key_names, AT)], axis=0)
        return asks

    def _touched(self, changed: pa.Table, state: State) -> pa.Table:
        """The facts that are kept and ask for a time from the end of a changed window on, and before the next window
        ends that did not change."""
        if not changed.num_rows or state.last_us(FACTS) is None:
            return _none(self._buffer)
        keys, ends = changed.select(self._key_names), us_column(changed[END])
        behind = state.scan(self._rows.name, keys, (ends + 1).tolist(), [LATEST_US] * len(ends), limit=_most(keys) + 1)
        behind = behind.filter(pa.array(aligned(behind, changed, self._rows.key_names) < 0))
        mine, theirs = key_numbers(keys, behind.select(self._key_names))
        codes = _codes(mine, ends + 1, theirs, us_column(behind[END]))
        order = np.argsort(codes[1], kind="stable")
        place = np.searchsorted(codes[1][order], codes[0])
        row = order[np.minimum(place, len(order) - 1)] if len(order) else place
        known = (place < len(order)) & (theirs[row] == mine) if len(order) else np.zeros(len(ends), np.bool_)
        until = np.full(len(ends), LATEST_US, np.int64)
        until[known] = us_column(behind[END])[row[known]] - 1
        return state.scan(FACTS, keys, ends.tolist(), until.tolist()).select(self._buffer.names)

    def _leaving(self, kept: pa.Table, state: State, reach_us: int | None) -> pa.Table:
        """The other facts that are kept and that nothing can touch any more: asked for where it matters."""
        if self.missing == "null" or reach_us is None:
            return _none(self._buffer)
        found = state.due(FACTS, reach_us - 1).select(self._buffer.names)
        return found.filter(pa.array(aligned(found, kept, [ID]) < 0)) if kept.num_rows and found.num_rows else found

    def _answers(self, facts: pa.Table, asks: Flags, changed: pa.Table, state: State) -> tuple[pa.Table, pa.Table]:
        """For each fact the row that answered it before the changes, and the one that does now: null where none."""
        keys, at = facts.select(self._key_names).filter(pa.array(asks)), us_column(facts[AT].filter(pa.array(asks)))
        stored = self._stored(keys, at, changed, state)
        comes = changed.filter(pc.equal(changed[CHANGE], "upsert")).select(self._rows.names)
        stays = stored.filter(pa.array(aligned(stored, changed, self._rows.key_names) < 0))
        out = []
        for rows in (stored, pa.concat_tables([stays, comes.cast(stays.schema)])):
            number = np.full(facts.num_rows, NONE, np.int64)
            number[asks] = self._last_by(rows, keys, at)
            out.append(_take(rows.drop_columns(self._key_names), number))
        return out[0], out[1]

    def _stored(self, keys: pa.Table, at: I64, changed: pa.Table, state: State) -> pa.Table:
        """For each question the row that answers it, and where rows of its groups changed as many before it: one of
        them did not."""
        if not keys.num_rows:
            return _none(self._rows)
        mine, theirs = key_numbers(keys, changed.select(self._key_names))
        moves = np.isin(mine, theirs)
        found = []
        for some, limit in ((~moves, 1), (moves, _most(changed.select(self._key_names)) + 1)):
            numbers = np.flatnonzero(some)
            _, one_of = np.unique(np.stack((mine[numbers], at[numbers])), axis=1, return_index=True)
            numbers = numbers[one_of]
            if len(numbers):
                prefixes = keys.take(pa.array(numbers))
                found.append(
                    state.scan(
                        self._rows.name, prefixes, high=at[numbers].tolist(), limit=limit, descending=True
                    ).select(self._rows.names)
                )
        rows = pa.concat_tables(found)
        one_of = np.unique(key_numbers(rows.select(self._rows.key_names))[0], return_index=True)[1]
        return rows.take(pa.array(one_of))

    def _last_by(self, rows: pa.Table, keys: pa.Table, at: I64) -> I64:
        """For each question the row of its groups with the last end by then."""
        if not rows.num_rows or not len(at):
            return np.full(len(at), NONE, np.int64)
        mine, theirs = key_numbers(keys, rows.select(self._key_names))
        asked, there = _codes(mine, at, theirs, us_column(rows[END]))
        order = np.argsort(there, kind="stable")
        place = np.searchsorted(there[order], asked, side="right") - 1
        row = order[np.maximum(place, 0)]
        return np.where((place >= 0) & (theirs[row] == mine), row, NONE)

    # -- what comes of it ------------------------------------------------------------------------------

    def _published(self, op: str, facts: pa.Table, used: pa.Table) -> pa.Table:
        """Rows as readers get them."""
        if self.missing != "null":
            found = pa.array(_found(used))
            facts, used = facts.filter(found), used.filter(found)
        arrived = column(facts, ARRIVED).cast(pa.int64())
        ends = pc.replace_substring(column(used, END).cast(pa.string()), " ", "T")
        made = {
            OP: pa.repeat(op, facts.num_rows),
            **{name: used[f"/{of}"] for of, name in self.columns},
            self.receipt: ends,
            FINAL_AT: column(facts, AT).cast(pa.int64()).fill_null(INSTANT_MIN_US),
            "_corrections": column(used, VIEW_CORRECTIONS).fill_null(0),
            "_updated_at": pc.max_element_wise(arrived, column(used, UPDATED).cast(pa.int64())),
        }
        columns = [made[name] if name in made else facts[name] for name in self._schema.names]
        both = zip(columns, self._schema, strict=True)
        return pa.table([cast_to(each, kind.type) for each, kind in both], schema=self._schema)

    def _letters(self, facts: pa.Table) -> pa.Table:
        return facts.select([*self.facts.names, ID, *(each.name for each in PLACE)])

    def _writes(self, changed: pa.Table, kept: pa.Table, reach_us: int | None, known_us: int | None) -> Writes:
        comes = pc.equal(changed[CHANGE], "upsert")
        puts = {self._rows.name: changed.filter(comes).select(self._rows.names), FACTS: kept}
        if reach_us is not None and reach_us != known_us:
            one = pa.array([1], pa.int32()), time_column(np.array([min(reach_us, INSTANT_MAX_US)]))
            puts[REACHED.name] = pa.table(one, names=list(REACHED.names))
        deletes = {self._rows.name: changed.filter(pc.invert(comes)).select(self._rows.key_names)}
        adds = {HELD.name: held_rows(us_column(kept[AT]), _progress(kept))}
        drops = {} if reach_us is None else {FACTS: reach_us - 1, HELD.name: reach_us - 1}
        return Writes(_some(puts), _some(adds), _some(deletes), drops)

    def _ahead(
        self, times: Mapping[str, InputTimes], state: State, waiting: pa.Table, reach_us: int | None
    ) -> InputTimes:
        """As far as the facts have come, but for those that are open, or kept."""
        at, progress = us_column(waiting[AT]), _progress(waiting)
        kept_us = INSTANT_MIN_US if reach_us is None else reach_us
        frontier_us = times[TABLE].frontier_us
        open_us = kept_us if frontier_us is None else max(kept_us, frontier_us)

        def least(us: int | None, since_us: int) -> int | None:
            stored = least_progress_us(state, since_us)
            held_us = int(progress[at >= since_us].min(initial=LATEST_US if stored is None else stored))
            return None if us is None or held_us == UNSET else min(us, held_us)

        return InputTimes(least(times[FACTS].frontier_us, open_us), least(times[FACTS].reach_us, kept_us))


def _last_of_each(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The last of the rows that are equal in these columns, in the order of rows."""
    if not rows.num_rows:
        return rows
    (number,) = key_numbers(rows.select(names))
    last = len(number) - 1 - np.unique(number[::-1], return_index=True)[1]
    return rows.take(pa.array(np.sort(last)))


def _reached(state: State) -> int | None:
    rows = state.get(REACHED.name, pa.table({"/one": pa.array([1], pa.int32())}))
    return int(us_column(rows["/reach"])[0]) if rows.num_rows else None


def _none(spec: TableSpec, *more: Column) -> pa.Table:
    """No rows of the table."""
    return pa.schema([(each.name, arrow_type(each.type)) for each in (*spec.key, *spec.columns, *more)]).empty_table()


def _gone(facts: pa.Table, reach_us: int | None) -> Flags:
    """Which facts no change of the view, still to come, can touch."""
    if reach_us is None:
        return np.zeros(facts.num_rows, np.bool_)
    at: I64 = column(facts, AT).cast(pa.int64()).fill_null(LATEST_US).to_numpy()
    return at < reach_us


def _found(used: pa.Table) -> Flags:
    return np.asarray(column(used, END).is_valid())


def _most(keys: pa.Table) -> int:
    """How many rows have the same key, at most."""
    return int(np.bincount(np.unique(key_numbers(keys)[0], return_inverse=True)[1].reshape(-1)).max(initial=0))


def _codes(mine: I64, my_times: I64, theirs: I64, their_times: I64) -> tuple[I64, I64]:
    """Numbers that sort as key and time do."""
    times, rank = np.unique(np.concatenate((my_times, their_times)), return_inverse=True)
    rank = rank.reshape(-1)
    return mine * len(times) + rank[: len(mine)], theirs * len(times) + rank[len(mine) :]


def _take(rows: pa.Table, number: I64) -> pa.Table:
    """The rows of these numbers, null for `NONE`."""
    if not rows.num_rows:
        return pa.table([pa.nulls(len(number), each.type) for each in rows.schema], schema=rows.schema)
    return rows.combine_chunks().take(pa.array(np.maximum(number, 0), mask=number == NONE))


def _progress(facts: pa.Table) -> I64:
    progress: I64 = column(facts, "_progress").cast(pa.int64()).fill_null(UNSET).to_numpy()
    return progress


def _some(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    return {name: rows for name, rows in tables.items() if rows.num_rows}
