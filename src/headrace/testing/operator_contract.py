"""The behaviour any operator must show, as a pytest suite to inherit. Owns the promises behind
`headrace.operators.contract`, one test each; knows no operator. State is in memory (`MemoryTables`). Needs pytest.

    class TestMine(OperatorContract):
        def operator(self): return MyOperator(...)
        def batch(self, dice, number): return {"clicks": table}      # the rows of one step, at random

What a step gives is a function of its rows and the state: so rows may be cut into steps, put into another order, or
divided by the columns in which rows that meet are equal, and a step may be made again, in another process too."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from headrace.operators.contract import InputTimes, Operator, Step
from headrace.testing.memory_tables import MemoryTables
from headrace.views.keyed import Writes

__all__ = ["OperatorContract"]

Batch = Mapping[str, pa.Table]
STEPS = 4
CHANGE = "op"
EVERYTHING = pa.table({"x": [1]}).select([])


class OperatorContract:
    """What `headrace.operators.contract` promises, a test each. `operator` and `batch` must be said, `times` may be."""

    def operator(self) -> Operator:
        """The operator, made anew."""
        raise NotImplementedError("return the operator, made anew")

    def batch(self, dice: random.Random, number: int) -> Batch:
        """The rows of a step, by input: the same for the same dice."""
        raise NotImplementedError("return the rows of a step, by input: the same for the same dice")

    def times(self, number: int) -> InputTimes:  # noqa: ARG002
        """How far the inputs are in that step. Nothing that a later batch meets may be out of reach."""
        return InputTimes(None, None)

    @pytest.fixture(params=range(5))
    def batches(self, request: pytest.FixtureRequest) -> list[Batch]:
        dice = random.Random(request.param)
        return [self.batch(dice, number) for number in range(STEPS)]

    # -- the suite -------------------------------------------------------------------------------------

    def test_any_cut_gives_the_same(self, batches: list[Batch]) -> None:
        dice = random.Random(1)
        whole, cut, passed = self._run(batches), self._tables(), list[Any]()
        for number, batch in enumerate(batches):
            last = max((table.num_rows for table in batch.values()), default=0)
            at = sorted({0, last, *(dice.randint(0, last) for _ in range(3))})
            for start, stop in zip(at, [*at[1:], last], strict=True):
                piece = {name: table.slice(start, stop - start) for name, table in batch.items()}
                passed += self._step(cut, piece, number)
        if self.operator().output.table is not None:
            assert_same(self._output(cut), self._output(whole))
        else:
            wanted, tables = list[Any](), self._tables()
            for number, batch in enumerate(batches):
                wanted += self._step(tables, batch, number)
            assert sorted(map(repr, passed)) == sorted(map(repr, wanted))

    def test_any_order_of_rows_gives_the_same(self, batches: list[Batch]) -> None:
        dice = random.Random(2)
        if any("_partition" in each.by for each in self.operator().inputs):
            pytest.skip("order within a partition decides")
        mixed = [{name: _shuffled(table, dice) for name, table in batch.items()} for batch in batches]
        assert_same(self._all(self._run(mixed)), self._all(self._run(batches)))

    def test_parts_that_do_not_meet_are_steps_of_their_own(self, batches: list[Batch]) -> None:
        """Each from the same state: so they may be made side by side. What comes because time has passed is no part's:
        an operator with timers says it in each of them."""
        operator, whole, parted = self.operator(), self._tables(), self._tables()
        by = {each.id: each.by for each in operator.inputs}
        for number, batch in enumerate(batches):
            state = parted.state()
            parts = _parts(batch, by)
            steps = [self._make_step(self.operator(), part, state, number) for part in parts]
            for step in steps or [self._make_step(operator, batch, state, number)]:
                parted.apply(step.writes)
            one = self._make_step(operator, batch, whole.state(), number)
            whole.apply(one.writes)
            assert_same(self._all(parted), self._all(whole))
            if steps and not operator.timers:
                assert _said(steps) == _said([one])

    def test_it_pickles(self, batches: list[Batch]) -> None:
        copy = pickle.loads(pickle.dumps(self.operator()))
        here, there = self._tables(), self._tables()
        for number, batch in enumerate(batches):
            self._step(here, batch, number)
            there.apply(self._make_step(copy, batch, there.state(), number).writes)
        assert_same(self._all(there), self._all(here))

    def test_a_step_that_is_made_again_is_the_same(self, batches: list[Batch]) -> None:
        """After a commit that failed, by the same operator: what it may remember does not count."""
        operator, tables = self.operator(), self._tables()
        for number, batch in enumerate(batches):
            state = tables.state()
            first = self._make_step(operator, batch, state, number)
            operator.reset()
            again = self._make_step(operator, batch, state, number)
            assert_same(_writes(again.writes), _writes(first.writes))
            assert _rows(again.changes) == _rows(first.changes)
            tables.apply(first.writes)

    def test_changes_add_up_to_the_rows(self, batches: list[Batch]) -> None:
        operator, tables, told = self.operator(), self._tables(), Counter[str]()
        if operator.output.table is None:
            pytest.skip("its rows are passed on")
        for number, batch in enumerate(batches):
            step = self._make_step(operator, batch, tables.state(), number)
            assert step.changes is not None, "somebody asked"
            names = [name for name in step.changes.column_names if name != CHANGE]
            for row in step.changes.to_pylist():
                text = repr([_plain(row[name]) for name in names])
                told[text] += 1 if row[CHANGE] == "+" else -1
                assert told[text] in (0, 1), "what goes was there, and nothing comes twice"
            tables.apply(step.writes)
            rows = tables.state().scan(operator.output.table, EVERYTHING).select(names).to_pylist()
            assert +told == Counter(repr([_plain(row[name]) for name in names]) for row in rows)

    def test_whether_somebody_asks_what_changes_makes_no_difference(self, batches: list[Batch]) -> None:
        asked, unasked = self._run(batches), self._tables()
        for number, batch in enumerate(batches):
            unasked.apply(self._make_step(self.operator(), batch, unasked.state(), number, changes=False).writes)
        assert_same(self._all(unasked), self._all(asked))

    def test_only_reach_lets_state_go(self, batches: list[Batch]) -> None:
        """However far a frontier is: silence moves it."""
        tables = self._run(batches)
        before, at = self._all(tables), self.times(STEPS - 1)
        late = InputTimes(2**62, at.reach_us, at.frontier_us, at.reach_us)
        operator = self.operator()
        times = {each.id: late for each in operator.inputs}
        tables.apply(operator.step({}, tables.state(), times, changes=True).writes)
        assert_same(self._all(tables), before)

    # -- what it does ----------------------------------------------------------------------------------

    def _tables(self) -> MemoryTables:
        return MemoryTables(*self.operator().tables)

    def _run(self, batches: Sequence[Batch]) -> MemoryTables:
        tables = self._tables()
        for number, batch in enumerate(batches):
            self._step(tables, batch, number)
        return tables

    def _step(self, tables: MemoryTables, batch: Batch, number: int) -> list[dict[str, Any]]:
        """What changed."""
        step = self._make_step(self.operator(), batch, tables.state(), number)
        tables.apply(step.writes)
        return _rows(step.changes)

    def _make_step(self, operator: Operator, batch: Batch, state: Any, number: int, *, changes: bool = True) -> Step:
        now, before = self.times(number), self.times(number - 1) if number else InputTimes(None, None)
        times = InputTimes(now.frontier_us, now.reach_us, before.frontier_us, before.reach_us)
        return operator.step(batch, state, {each.id: times for each in operator.inputs}, changes=changes)

    def _all(self, tables: MemoryTables) -> dict[str, list[dict[str, Any]]]:
        state = tables.state()
        return {spec.name: state.scan(spec.name, EVERYTHING).to_pylist() for spec in self.operator().tables}

    def _output(self, tables: MemoryTables) -> dict[str, list[dict[str, Any]]]:
        name = self.operator().output.table
        assert name is not None
        return {name: self._all(tables)[name]}


def assert_same(found: Any, wanted: Any) -> None:
    """Doubles agree to 1e-9: in which order they were added may differ."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, each in wanted.items():
            assert_same(found[name], each)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, float) and isinstance(found, float):
        same = math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
        assert same or (math.isnan(found) and math.isnan(wanted))
    else:
        assert found == wanted


def _said(steps: Sequence[Step]) -> dict[str, Any]:
    """What steps pass on and count, in any order."""
    passed = {
        kind: sorted(repr(row) for step in steps for row in _rows(getattr(step, kind)))
        for kind in ("changes", "dropped", "letters")
    }
    counted = Counter[str]()
    for row in (row for step in steps for row in step.ledger):
        counted.update(
            {"on time": row.on_time, "corrected": row.corrected, "dropped": row.dropped, "untimed": row.untimed}
        )
    return {**passed, "ledger": +counted}


def _writes(writes: Writes) -> dict[str, Any]:
    tables = {"puts": writes.puts, "adds": writes.adds, "deletes": writes.deletes}
    found = {f"{kind} {name}": _rows(table) for kind, each in tables.items() for name, table in each.items()}
    return {**found, "drops": dict(writes.drops)}


def _rows(table: pa.Table | None) -> list[dict[str, Any]]:
    return [] if table is None else [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    """For comparing: NaN is itself, and there is one zero."""
    if isinstance(value, float):
        return "not a number" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, timedelta) else value


def _shuffled(table: pa.Table, dice: random.Random) -> pa.Table:
    numbers = list(range(table.num_rows))
    dice.shuffle(numbers)
    return table.take(pa.array(numbers, pa.int64()))


def _parts(batch: Batch, by: Mapping[str, tuple[str, ...]]) -> list[Batch]:
    """The rows of each input, divided by what they agree in: a part for each."""
    parts: dict[str, dict[str, list[int]]] = {}
    for name, table in batch.items():
        for number, row in enumerate(table.select(by[name]).to_pylist() if by[name] else [{}] * table.num_rows):
            key = repr([_plain(value) for value in row.values()])
            parts.setdefault(key, {}).setdefault(name, []).append(number)
    return [{name: batch[name].take(pa.array(rows)) for name, rows in part.items()} for part in parts.values()]
