"""Facts with the columns of a table's row: `stream.enrich(table, on=…, as_of=…)`. Owns the facts whose answer can still
change, and what is published of each. Which version answers a fact is `versions`.

The answer of a fact is the version that was valid at the fact's time, among those that arrived by its own arrival and
grace; one that arrives later, but within `within_us` of that, corrects it. So it is a function of the two logs. A fact
is published at once, with the version known by then, and again when a version comes that counts. It is kept until the
table has been read so far that no such version can come. A fact that is read later than that is never kept.

Facts may be taken back: they then come with a column `op`. A '-' has the time and the arrival of its '+'. So the answer
that was published follows from the versions of the state, whether the fact is still kept or not: no version that comes
after it has left can answer it.

Nothing is done for all facts that are kept: a change of the table reads those that it may answer, and those that leave
are found by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import INSTANT_MAX_US, INSTANT_MIN_US
from headrace.operators.contract import Input, InputTimes, Step
from headrace.operators.joins.changelog import CHANGE, LOADED
from headrace.operators.joins.facts import FACTS, TABLE, Missing, OverFacts
from headrace.operators.joins.held import HELD, held_rows, least_progress_us
from headrace.operators.joins.newest import Newest
from headrace.operators.joins.rows import FINAL_AT, ID, gone_and_come
from headrace.operators.joins.versions import (
    DELETED,
    LATEST_US,
    NONE,
    ORDER,
    Questions,
    Versions,
    answers,
    is_later,
)
from headrace.operators.records import OP, columns_of
from headrace.operators.result_rows import aligned, column, key_numbers
from headrace.time import UNSET
from headrace.views.contract import LedgerRow
from headrace.views.keyed import Column, State, TableSpec, Writes
from headrace.views.values import INSTANT, arrow_type, cast_to, time_column, us_column
from headrace.windows.sessions import joined

__all__ = ["FACTS", "TABLE", "Enrich", "Missing"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
AT, LEAVES, FOUND = "/at", "/leaves", "/found"
"""Of a fact that is kept: the time that it asks for; when it leaves; whether its answer is a row, and no delete."""
USED = tuple(f"/used{name}" for name in ORDER)
"""The version that answers it; null: there is none."""
POSITION = (Column("_partition", "int"), Column("_offset", "bigint"))
"""Of a fact, kept where it may become a dead letter."""
LOAD = TableSpec("loaded", (Column("/one", "int"),), (Column("/at", "timestamp"),))
"""Of a table that is loaded: one row, when its mark arrived."""
NEVER_US = -(2**63)
EVERY = pa.table({"/one": pa.array([1], pa.int32())})


@dataclass(frozen=True)
class Answered:
    """Facts, and beside each the version that answers it: `USED`, `FOUND`, and the columns that are taken over."""

    facts: pa.Table
    used: pa.Table

    def filter(self, some: Flags) -> Answered:
        return Answered(self.facts.filter(pa.array(some)), self.used.filter(pa.array(some)))

    @property
    def found(self) -> Flags:
        return np.asarray(column(self.used, FOUND))

    def gone(self, reach_us: int | None) -> Flags:
        """Which of the facts no change of the table, still to come, can touch."""
        if reach_us is None:
            return np.zeros(self.facts.num_rows, np.bool_)
        return us_column(self.facts[LEAVES]) < reach_us


@dataclass(frozen=True)
class Enrich(OverFacts):
    """`on`: columns of the fact, and the columns of the table's key they are equal to. `time`: the column of the fact
    that is looked up by; None: the latest version that had arrived. `valid_from`: the column of the table that says
    from when a version is valid; None: from its arrival on. `columns`: of the table, with their names in the output.
    `receipt`: the column that says which version was used, as "partition:offset"; null where there is no row.
    `keep_us`: a fact whose time is further than this before its arrival finds nothing; None: it finds any version.
    `loads`: the table is loaded after its facts. What arrived before its mark counts as arrived, and without
    `valid_from` as valid, from the beginning. Until the mark is read, that is all there is, and no fact is final."""

    facts: pa.Schema
    table: pa.Schema
    on: tuple[tuple[str, str], ...]
    time: str | None
    valid_from: str | None
    columns: tuple[tuple[str, str], ...]
    receipt: str
    grace_us: int
    within_us: int
    missing: Missing
    keep_us: int | None = None
    loads: bool = False

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input(FACTS, columns_of(self.facts), tuple(mine for mine, _ in self.on), changes=True),
            Input(TABLE, columns_of(self.table), tuple(theirs for _, theirs in self.on), changes=True, first=True),
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return self._versions.spec, self._buffer, HELD, *((LOAD,) if self.loads else ())

    def out_schema(self) -> pa.Schema:
        return self._schema

    def out_time(self) -> str | None:
        return self.time

    def reset(self) -> None:
        self._newest.forget()

    @cached_property
    def _newest(self) -> Newest:
        return Newest()

    @cached_property
    def _versions(self) -> Versions:
        kinds = {each.name: each for each in columns_of(self.table)}
        key = {name: kinds[name] for _, name in self.on}
        others = {name: kinds[name] for name, _ in self.columns if name not in key}
        by_time = None if self.time is None else self.valid_from
        keep_us = None if self.time is None else self.keep_us
        return Versions("versions", tuple(key.values()), tuple(others.values()), by_time, keep_us)

    @cached_property
    def _keys(self) -> tuple[Column, ...]:
        """The key of the row that a fact asks for, as it is kept with the fact."""
        return tuple(Column(f"/key/{each.name}", each.type) for each in self._versions.key)

    @cached_property
    def _buffer(self) -> TableSpec:
        used = [Column(name, each.type) for name, each in zip(USED, self._versions.spec.key[-len(USED) :], strict=True)]
        kept = [each for each in columns_of(self.facts) if self._kept_as[each.name] == each.name]
        kept += [*(POSITION if self.missing == "dead_letter" else ()), Column("_progress", "timestamp")]
        kept += [Column(LEAVES, "timestamp"), *used, Column(FOUND, "boolean")]
        return TableSpec(FACTS, (*self._keys, Column(AT, "timestamp"), Column(ID, "string")), tuple(kept), LEAVES)

    @cached_property
    def _kept_as(self) -> dict[str, str]:
        """Under which name each column of the facts is kept: what is in the key need not be kept again."""
        names = {name: name for name in self.facts.names}
        for (mine, _), key in zip(self.on, self._keys, strict=True):
            if self.facts.field(mine).type == arrow_type(key.type):
                names[mine] = key.name
        if self.time is not None and self._versions.valid_from and self.facts.field(self.time).type == INSTANT:
            names[self.time] = AT
        return names

    @cached_property
    def _none_kept(self) -> pa.Table:
        """No facts, with the columns that they are kept with."""
        columns = (*self._buffer.key, *self._buffer.columns)
        return pa.schema([(each.name, arrow_type(each.type)) for each in columns]).empty_table()

    @cached_property
    def _no_facts(self) -> pa.Table:
        """The same without the columns of their answer."""
        return self._none_kept.drop_columns([*USED, FOUND])

    @cached_property
    def _schema(self) -> pa.Schema:
        """Of what comes out."""
        taken = [(name, self.table.field(of).type) for of, name in self.columns]
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
        was_us, loaded_us = self._loaded_us(batch.get(TABLE), state)
        times = {**times, TABLE: _since_loaded(times[TABLE], loaded_us)}
        reach_us = times[TABLE].reach_us
        versions = self._versions.rows_of(batch[TABLE]) if TABLE in batch else self._versions.none
        gone, facts = map(self._facts_of, gone_and_come(batch[FACTS])) if FACTS in batch else (self._no_facts,) * 2
        asks = self._asks(facts)
        new = self._answer(facts, asks, versions, state, loaded_us)
        back = self._answer(gone, self._asks(gone), self._versions.none, state, was_us)
        old, corrected = self._correct(versions, gone, state, was_us, loaded_us)
        stays = asks & ~new.gone(reach_us)
        waiting = new.filter(stays)
        missing, found_missing = None, 0
        if self.missing != "null":
            missing = self._missing(new.filter(~stays), corrected, gone, state, reach_us)
            found_missing = int((~back.found & ~self._kept_now(gone, state)).sum())
        on_time = facts.num_rows - gone.num_rows + (found_missing if self.missing == "dead_letter" else 0)
        self._newest.changed(versions.select(self._versions.key_names))
        return Step(
            self._writes(
                versions,
                waiting,
                corrected.filter(~corrected.gone(reach_us)),
                gone,
                reach_us,
                self._versions.settled(state, versions, self._asked_from_us(times)),
                None if loaded_us == was_us else loaded_us,
            ),
            pa.concat_tables(
                [
                    self._rows("-", back, was_us),
                    self._rows("-", old, was_us),
                    self._rows("+", corrected, loaded_us),
                    self._rows("+", new, loaded_us),
                ]
            ),
            (LedgerRow(None, None, on_time=on_time),) if on_time else (),
            letters=missing if self.missing == "dead_letter" else None,
            ahead=self._ahead(times, state, waiting.facts),
            missing=missing.num_rows - found_missing if missing is not None and self.missing == "drop" else 0,
        )

    def _loaded_us(self, changes: pa.Table | None, state: State) -> tuple[int, int]:
        """When the table's mark arrived, before this step and now: later than all times while it has not been read. Of
        several marks the first counts. Earlier than all times for a table that is not loaded."""
        if not self.loads:
            return NEVER_US, NEVER_US
        known = state.get(LOAD.name, EVERY)
        was_us = int(us_column(known["/at"])[0]) if known.num_rows else LATEST_US
        marks = None if changes is None else changes.filter(pc.equal(changes[CHANGE], LOADED))
        if marks is None or not marks.num_rows:
            return was_us, was_us
        return was_us, min(was_us, int(us_column(marks["_arrived_at"]).min()))  # no fact has left that asked before

    def _facts_of(self, records: pa.Table) -> pa.Table:
        """Facts as they are kept."""
        leaves = pa.array(us_column(records["_arrived_at"]) + self._kept_us)
        at = leaves if self.time is None else column(records, self.time).cast(pa.int64())
        if self._versions.valid_from is None:  # what arrives after the fact has left is no answer
            at = pc.min_element_wise(at, leaves, skip_nulls=False)
        made = {key.name: column(records, of) for key, (of, _) in zip(self._keys, self.on, strict=True)}
        made |= {LEAVES: leaves.cast(INSTANT), AT: at.cast(INSTANT)}
        schema = self._no_facts.schema
        columns = [made[name] if name in made else column(records, name) for name in schema.names]
        return pa.table([cast_to(each, kind.type) for each, kind in zip(columns, schema, strict=True)], schema=schema)

    def _asks(self, facts: pa.Table) -> Flags:
        """Which facts have all that a question needs: without a null in their key, and with a time for which versions
        are kept."""
        valid = [np.asarray(column(facts, name).is_valid()) for name in (*(each.name for each in self._keys), AT)]
        asks: Flags = np.all(valid, axis=0)
        if self._versions.keep_us is not None:
            at = column(facts, AT).cast(pa.int64()).fill_null(LATEST_US).to_numpy()
            asks &= at >= self._arrived(facts) - self._versions.keep_us
        return asks

    def _questions(self, facts: pa.Table, loaded_us: int) -> Questions:
        keys = facts.select([each.name for each in self._keys]).rename_columns(self._versions.key_names)
        at, upto = us_column(facts[AT]), us_column(facts[LEAVES])
        if self._versions.valid_from is None:
            at = np.maximum(at, loaded_us)
        return Questions(keys, at, np.maximum(upto, loaded_us))

    def _answer(self, facts: pa.Table, asks: Flags, fresh: pa.Table, state: State, loaded_us: int) -> Answered:
        """Facts, with the versions that are known by now, those of the same step among them."""
        questions = self._questions(facts.filter(pa.array(asks)), loaded_us)
        rows, number = self._versions.stored(state, questions, self._newest)
        if fresh.num_rows:
            other = answers(fresh, questions)
            later = is_later(_take(fresh.select(ORDER), other), _take(rows.select(ORDER), number))
            number = np.where(later, rows.num_rows + other, number)
            rows = pa.concat_tables([rows, fresh])
        every = np.full(facts.num_rows, NONE, np.int64)
        every[asks] = number
        return Answered(facts, self._used(rows, every))

    def _used(self, versions: pa.Table, number: I64) -> pa.Table:
        """The versions of these numbers, as they stand beside facts. Of a delete no column is taken over."""
        places = _take(versions.select(ORDER), number)
        deleted = column(_take(versions.select([DELETED]), number), DELETED)
        found = np.asarray(pc.invert(deleted).fill_null(False))
        values = _take(versions.select([of for of, _ in self.columns]), np.where(found, number, NONE))
        names = [*USED, FOUND, *(name for _, name in self.columns)]
        return pa.table([*places.columns, pa.array(found), *values.columns], names=names)

    def _correct(
        self, fresh: pa.Table, gone: pa.Table, state: State, was_us: int, loaded_us: int
    ) -> tuple[Answered, Answered]:
        """Facts of the state that are answered by one of these versions from now on: as they were, and as they are. All
        of them, when the table has been loaded; not those that are `gone`."""
        if was_us != loaded_us:
            facts = _without(state.scan(FACTS, EVERY.select([])), gone)
            made = facts.select(self._no_facts.column_names)
            return self._before(facts, state), self._answer(made, self._asks(made), fresh, state, loaded_us)
        facts = _without(self._touched(fresh, state, loaded_us), gone)
        number = answers(fresh, self._questions(facts, loaded_us))
        before = facts.select(USED).rename_columns(ORDER)
        later = np.flatnonzero(is_later(_take(fresh.select(ORDER), number), before))
        facts, number = facts.take(pa.array(later)), number[later]
        made = facts.select(self._no_facts.column_names)
        return self._before(facts, state), Answered(made, self._used(fresh, number))

    def _before(self, facts: pa.Table, state: State) -> Answered:
        """Facts of the state with the versions that answered them until now."""
        keys = facts.select([*(each.name for each in self._keys), *USED]).rename_columns(self._versions.spec.key_names)
        rows = state.get(self._versions.name, keys.filter(keys[ORDER[0]].is_valid()))
        was = aligned(keys, rows, keys.column_names)
        return Answered(facts.select(self._no_facts.column_names), self._used(rows, was))

    def _touched(self, fresh: pa.Table, state: State, loaded_us: int) -> pa.Table:
        """The facts of the state that ask for a time from which one of these versions is valid, and before the next one
        is that had arrived by then."""
        last_us = state.last_us(FACTS) if fresh.num_rows else None
        if last_us is not None:
            fresh = fresh.filter(pa.array(us_column(fresh[ORDER[1]]) <= max(last_us, loaded_us)))
        if last_us is None or not fresh.num_rows:
            return self._none_kept
        until = self._versions.next_valid_us(state, fresh) - 1
        keys = fresh.select(self._versions.key_names).rename_columns([each.name for each in self._keys])
        low = us_column(fresh[ORDER[0]])
        if self._versions.valid_from is None:
            low = np.where(low <= loaded_us, INSTANT_MIN_US, low)
        span, low, high = joined(key_numbers(keys)[0], low, until, 0)
        one_of = np.unique(span, return_index=True)[1]
        return state.scan(FACTS, keys.take(pa.array(one_of)), low.tolist(), high.tolist())

    # -- what comes of it ------------------------------------------------------------------------------

    def _rows(self, op: str, rows: Answered, loaded_us: int) -> pa.Table:
        """Rows as they are published."""
        rows = rows if self.missing == "null" else rows.filter(rows.found)
        facts, used = rows.facts, rows.used
        arrived = self._arrived(facts)
        on_time = arrived + self.grace_us
        if self.loads:
            on_time = np.where(self._asks(facts), np.maximum(on_time, loaded_us), on_time)
        used_arrived = column(used, USED[1]).cast(pa.int64()).fill_null(UNSET).to_numpy()
        place = pc.binary_join_element_wise(*(used[name].cast(pa.string()) for name in USED[2:]), ":")
        made = {
            OP: pa.repeat(op, facts.num_rows),
            **{name: used[name] for _, name in self.columns},
            self.receipt: pc.if_else(used[FOUND], place, pa.scalar(None, pa.string())),
            FINAL_AT: time_column(np.minimum(on_time, INSTANT_MAX_US)),
            "_corrections": pa.array((used_arrived > on_time).astype(np.int64)),
            "_updated_at": time_column(np.maximum(arrived, used_arrived)),
        }
        columns = [made[name] if name in made else facts[self._kept_as.get(name, name)] for name in self._schema.names]
        both = zip(columns, self._schema, strict=True)
        return pa.table([cast_to(each, kind.type) for each, kind in both], schema=self._schema)

    def _missing(
        self, settled: Answered, corrected: Answered, gone: pa.Table, state: State, reach_us: int | None
    ) -> pa.Table:
        """Facts without a row that will have none: those that come and are `settled`, and those that leave; not those
        that are `gone`."""
        leaving = corrected.filter(corrected.gone(reach_us))
        tables = [each.facts.filter(pa.array(~each.found)) for each in (settled, leaving)]
        if reach_us is not None:
            stored = state.due(FACTS, reach_us - 1)
            stored = stored.filter(pc.invert(stored[FOUND]))
            stored = _without(_without(stored, corrected.facts), gone)
            tables.append(stored.select(self._no_facts.column_names))
        facts = pa.concat_tables(tables)
        names = [*self._kept_as.values(), ID, *(each.name for each in POSITION if self.missing == "dead_letter")]
        return facts.select(names).rename_columns([*self._kept_as, *names[len(self._kept_as) :]])

    def _asked_from_us(self, times: Mapping[str, InputTimes]) -> int | None:
        """Facts that are kept, or still to come, arrived then or later; None: that is not known."""
        come_us, reach_us = times[FACTS].arrived_us, times[TABLE].reach_us
        return None if come_us is None or reach_us is None else min(come_us, reach_us - self._kept_us)

    def _kept_now(self, gone: pa.Table, state: State) -> Flags:
        """Which of these facts are still kept. Those that are not, and found no row, were counted as missing."""
        keys = self._places(gone)
        kept = state.get(FACTS, keys)
        return aligned(keys, kept, keys.column_names) >= 0

    def _places(self, facts: pa.Table) -> pa.Table:
        """Where these facts are kept."""
        return facts.select(list(self._buffer.key_names))

    def _writes(
        self,
        fresh: pa.Table,
        waiting: Answered,
        corrected: Answered,
        gone: pa.Table,
        reach_us: int | None,
        settled: tuple[pa.Table, pa.Table],
        loaded_us: int | None,
    ) -> Writes:
        kept = pa.concat_tables([self._kept(each) for each in (waiting, corrected)])
        puts = {self._versions.name: pa.concat_tables([fresh, settled[1].cast(fresh.schema)]), FACTS: kept}
        if loaded_us is not None:
            puts[LOAD.name] = EVERY.append_column("/at", time_column(np.array([loaded_us])))
        adds = {HELD.name: held_rows(self._arrived(waiting.facts), _progress(waiting.facts))}
        drops = {} if reach_us is None else {FACTS: reach_us - 1, HELD.name: reach_us - self._kept_us - 1}
        deletes = {self._versions.name: settled[0], FACTS: self._places(gone)}
        return Writes(_some(puts), _some(adds), _some(deletes), drops)

    def _kept(self, rows: Answered) -> pa.Table:
        used = rows.used.select([*USED, FOUND])
        return pa.table([*rows.facts.columns, *used.columns], names=[*rows.facts.column_names, *used.column_names])

    def _ahead(self, times: Mapping[str, InputTimes], state: State, waiting: pa.Table) -> InputTimes:
        """As far as the facts have come, but for those that are open, or kept."""
        table = times[TABLE]
        kept_us = INSTANT_MIN_US if table.reach_us is None else table.reach_us - self._kept_us
        open_us = kept_us if table.frontier_us is None else max(kept_us, table.frontier_us - self.grace_us)
        arrived, progress = self._arrived(waiting), _progress(waiting)

        def least(us: int | None, since_us: int) -> int | None:
            stored = least_progress_us(state, since_us)
            held_us = int(progress[arrived >= since_us].min(initial=LATEST_US if stored is None else stored))
            return None if us is None or held_us == UNSET else min(us, held_us)

        return InputTimes(least(times[FACTS].frontier_us, open_us), least(times[FACTS].reach_us, kept_us))

    @property
    def _kept_us(self) -> int:
        """How long after its arrival a fact is kept: until the table has been read further than that."""
        return self.grace_us + self.within_us

    def _arrived(self, facts: pa.Table) -> I64:
        return us_column(facts[LEAVES]) - self._kept_us


def _since_loaded(times: InputTimes, loaded_us: int) -> InputTimes:
    """How far the table is for its facts: until it has been loaded, nowhere."""
    if loaded_us == LATEST_US:
        return InputTimes(None, None)
    reach_us = times.reach_us
    return times if reach_us is None or reach_us > loaded_us else InputTimes(times.frontier_us, None)


def _take(rows: pa.Table, number: I64) -> pa.Table:
    """The rows of these numbers, null for `NONE`."""
    return rows.combine_chunks().take(pa.array(np.maximum(number, 0), mask=number == NONE))


def _progress(facts: pa.Table) -> I64:
    progress: I64 = column(facts, "_progress").cast(pa.int64()).fill_null(UNSET).to_numpy()
    return progress


def _without(facts: pa.Table, others: pa.Table) -> pa.Table:
    """The facts but for those with the ids of the others."""
    if not facts.num_rows or not others.num_rows:
        return facts
    return facts.filter(pc.invert(pc.is_in(column(facts, ID), column(others, ID))))


def _some(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    return {name: rows for name, rows in tables.items() if rows.num_rows}
