"""Random programs of joins over random logs: enrichments, interval joins and joins of tables, one behind the other, in
any cuts, with restarts between. In the end each view is the same query, run by brute force over the whole logs."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.operators.sparkless_joins import without_spark

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
Cells = dict[str, Any]


def at(seconds: int | None) -> datetime | None:
    return None if seconds is None else ZERO + timedelta(seconds=seconds)


def span(seconds: int) -> str:
    return f"{seconds} seconds"


class Clock:
    """Moves on by a second with every look of the log, so that each append arrives later than the one before."""

    def __init__(self, seconds: int = 1_000) -> None:
        self.us = int((ZERO + timedelta(seconds=seconds)).timestamp()) * 1_000_000

    def __call__(self) -> int:
        self.us += 1_000_000
        return self.us


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)


# -- rows, and what joins make of them -----------------------------------------------------------------------


@dataclass
class Row:
    """Of a stream, with its time, progress and arrival; `corrections`: those of the last join."""

    cells: Cells
    time: datetime | None
    progress: datetime | None
    arrived: datetime
    corrections: int = 0


@dataclass
class Change:
    """Of a table. `position`: arrival, partition, offset."""

    cells: Cells
    arrived: datetime
    partition: int
    offset: int

    @property
    def position(self) -> tuple[Any, ...]:
        return self.arrived, self.partition, self.offset


def records(topic: Any) -> list[tuple[Cells, int, int, datetime, datetime | None]]:
    """Of all partitions: cells, partition, offset, arrival, progress."""
    names, out = [*topic.schema.names, "_offset", "_arrived_at", "_progress"], []
    for partition, ends in topic.offsets().items():
        for batch in topic.batches(partition, 0, ends.next, names):
            for cells in batch.to_pylist():
                *place, progress = (cells.pop(name) for name in names[-3:])
                out.append((cells, partition, *place, progress))
    return out


@dataclass(frozen=True)
class Enriched:
    table: str
    on: str
    as_of: bool
    grace: int
    within: int
    missing: str

    def of(self, stream: hr.Stream, table: Any, time: str) -> hr.Stream:
        late = hr.correct(within=span(self.within)) if self.within else hr.drop()
        how = {"as_of": time if self.as_of else None, "missing": self.missing, "columns": [f"v_{self.table}"]}
        return stream.enrich(table, on={self.on: "id"}, grace=span(self.grace), late=late, **how)

    def rows(self, rows: Sequence[Row], changes: Sequence[Change], *, timed: bool) -> list[Row]:
        """`timed`: whether the table has an event time."""
        return [made for row in rows if (made := self.row(row, changes, timed=timed)) is not None]

    def row(self, row: Row, changes: Sequence[Change], *, timed: bool) -> Row | None:
        when, grace, within = (row.time, self.grace, self.within) if self.as_of else (row.arrived, 0, 0)
        upto, found = row.arrived + timedelta(seconds=grace + within), []
        for each in changes if when is not None and row.cells[self.on] is not None else ():
            valid = each.cells["at"] if self.as_of and timed else each.arrived
            if each.cells["id"] == row.cells[self.on] and each.arrived <= upto and valid is not None and valid <= when:
                found.append(((valid, *each.position), each))
        used = max(found, key=lambda one: one[0])[1] if found else None
        there = used is not None and used.cells["_op"] == "upsert"
        if not there and self.missing == "drop":
            return None
        name, receipt, arrived = (
            f"v_{self.table}",
            f"{self.table}_version",
            row.arrived if used is None else used.arrived,
        )
        answer = {name: None, receipt: None}
        if used is not None and there:
            answer = {name: used.cells[name], receipt: f"{used.partition}:{used.offset}"}
        late = int(arrived > row.arrived + timedelta(seconds=grace))
        return Row({**row.cells, **answer}, row.time, row.progress, max(arrived, row.arrived), late)


@dataclass(frozen=True)
class Joined:
    on: str
    before: int
    after: int
    how: str
    grace: int
    within: int
    suffix: str

    def of(self, left: hr.Stream, right: hr.Stream) -> hr.Stream:
        late = hr.correct(within=span(self.within)) if self.within else hr.drop()
        spans = {"before": span(self.before), "after": span(self.after), "grace": span(self.grace)}
        return left.join(right, on=tuple(self.on), how=self.how, suffix=self.suffix, late=late, **spans)  # type: ignore[arg-type]

    def rows(self, left: Sequence[Row], right: Sequence[Row], names: Collection[str]) -> list[Row]:
        left, right = ([row for row in some if self.lateness(row) is not None] for some in (left, right))
        pairs = [(one, two) for one in left for two in right if self.meet(one, two)]
        lefts, rights = ({id(pair[n]) for pair in pairs} for n in (0, 1))
        lone = [(row, None) for row in left if id(row) not in lefts and self.how in ("left", "full")]
        alone = [(None, row) for row in right if id(row) not in rights and self.how in ("right", "full")]
        return [self.row(*pair, names) for pair in (*pairs, *lone, *alone)]

    def lateness(self, row: Row) -> int | None:
        """1 of a record that comes late, None of one that comes too late, or has no time."""
        if row.time is None or row.progress is None:
            return None if row.time is None else 0
        behind = (row.progress - row.time).total_seconds() - self.grace
        return None if behind > self.within else int(behind > 0)

    def meet(self, one: Row, two: Row) -> bool:
        assert one.time is not None and two.time is not None
        near = -self.before <= (two.time - one.time).total_seconds() <= self.after
        return near and all(one.cells[name] is not None and one.cells[name] == two.cells[name] for name in self.on)

    def row(self, one: Row | None, two: Row | None, names: Collection[str]) -> Row:
        """`names`: the columns of the left side."""
        there = [row for row in (one, two) if row is not None]
        cells = dict.fromkeys(names) if one is None else dict(one.cells)
        cells |= {name: there[0].cells[name] for name in self.on}
        for name, value in ({} if two is None else two.cells).items():
            if name not in (*self.on, "joined_at"):
                cells[name + self.suffix if name in names else name] = value
        time = max(row.time for row in there if row.time is not None)
        late = sum(self.lateness(row) or 0 for row in there)
        return Row({**cells, "joined_at": time}, time, time, max(row.arrived for row in there), late)


@dataclass(frozen=True)
class Program:
    """`tree`: a topic's name; (Enriched, tree); or (Joined, tree, tree). `tables`: history and event time, by name.
    `met`: two tables that are joined, a column of the left, and how."""

    tree: Any
    topics: dict[str, Cells]
    tables: dict[str, Cells]
    met: tuple[str, str, str, Any]

    # -- as it is written ------------------------------------------------------------------------------

    def on(self, app: hr.App) -> tuple[hr.View, list[str], hr.View]:
        """The view of the stream, its columns, and the view of the joined tables."""
        tables, topics = {}, {}
        for name, settings in self.tables.items():
            schema = f"id string, fk string, v_{name} int, at timestamp"
            tables[name] = app.table(name, schema, key="id", **settings)
        for name, settings in self.topics.items():
            schema = f"k string, g string, n_{name} int, at timestamp"
            topics[name] = app.topic(name, schema, event_time="at", **settings)
        left, right, on, how = self.met
        pairs = tables[left].join(tables[right], on={on: "id"}, how=how, suffix="_r").to_view("pairs")
        stream = self._stream(app, self.tree, {**tables, **topics})
        return stream.to_view("joined"), [*self.columns(self.tree), *self.times(self.tree)], pairs

    def _stream(self, app: hr.App, tree: Any, sources: Mapping[str, Any]) -> hr.Stream:
        if isinstance(tree, str):
            return app.stream(sources[tree])
        step, *sides = tree[0], *(self._stream(app, each, sources) for each in tree[1:])
        if isinstance(step, Joined):
            return step.of(*sides)
        return step.of(*sides, sources[step.table], *(self.times(tree) or ["at"]))

    def times(self, tree: Any) -> list[str]:
        """The time that a join has made of its rows."""
        made = not isinstance(tree, str) and (isinstance(tree[0], Joined) or self.times(tree[1]))
        return ["joined_at"] if made else []

    def columns(self, tree: Any) -> list[str]:
        """All others."""
        if isinstance(tree, str):
            return ["k", "g", f"n_{tree}", "at"]
        step, names = tree[0], self.columns(tree[1])
        if isinstance(step, Enriched):
            return [*names, f"v_{step.table}", f"{step.table}_version"]
        theirs = [name for name in self.columns(tree[2]) if name not in step.on]
        return [*names, *(name + step.suffix if name in names else name for name in theirs)]

    # -- as one batch ----------------------------------------------------------------------------------

    def rows(self, tree: Any, log: Any) -> list[Row]:
        if isinstance(tree, str):
            found = records(log.topic(tree))
            return [Row(cells, cells["at"], progress, arrived) for cells, _, _, arrived, progress in found]
        step, sides = tree[0], [self.rows(each, log) for each in tree[1:]]
        if isinstance(step, Joined):
            return step.rows(*sides, self.columns(tree[1]))
        return step.rows(sides[0], self.changes(step.table, log), timed=self.is_timed(step.table))

    def is_timed(self, table: str) -> bool:
        return self.tables[table]["event_time"] is not None

    def changes(self, table: str, log: Any) -> list[Change]:
        found = records(log.topic(table))
        return [Change(cells, arrived, partition, offset) for cells, partition, offset, arrived, _ in found]

    def latest(self, table: str, log: Any) -> list[Cells]:
        """The rows that the table shows: with a history, those with the largest valid times."""
        by_time = self.is_timed(table) and self.tables[table]["history"] != "latest"

        def order(one: Change) -> tuple[Any, ...]:
            return ((one.cells["at"] or one.arrived) if by_time else one.arrived, *one.position)

        last = {each.cells["id"]: each.cells for each in sorted(self.changes(table, log), key=order)}
        return [cells for cells in last.values() if cells["_op"] == "upsert"]

    def pairs(self, log: Any) -> Counter[Any]:
        left, right, on, how = self.met
        lefts, rights = self.latest(left, log), self.latest(right, log)
        pairs = [(one, two) for one in lefts for two in rights if one[on] is not None and one[on] == two["id"]]
        pairs += [(one, {}) for one in lefts if not any(one is pair[0] for pair in pairs) and how in ("left", "full")]
        pairs += [({}, two) for two in rights if not any(two is pair[1] for pair in pairs) and how in ("right", "full")]
        return Counter((one.get(f"v_{left}"), two.get(f"v_{right}")) for one, two in pairs)


# -- random ones ---------------------------------------------------------------------------------------------


def random_program(dice: random.Random) -> Program:
    histories, times = ["latest", "versions", "versions", "bitemporal"], ["at", "at", None]
    tables = {name: {"history": dice.choice(histories), "event_time": dice.choice(times)} for name in ("t", "u")}
    topics = {name: {"partitions": dice.choice([1, 1, 2]), "key": dice.choice(["k", None])} for name in ("a", "b", "c")}
    unused, number = list(tables), iter(range(100))

    def tree(depth: int) -> Any:
        if not depth:
            return dice.choice(list(topics))
        if unused and dice.random() < 0.5:
            table, on = unused.pop(dice.randrange(len(unused))), dice.choice("kg")
            within, missing = dice.choice([0, 4, 20, 3_600]), dice.choice(["null", "null", "drop"])
            step = Enriched(table, on, dice.random() < 0.7, dice.choice([0, 0, 3, 8]), within, missing)
            return step, tree(depth - 1)
        spans = dice.choice([0, 0, 2, 7]), dice.choice([0, 0, 3, 9])
        how, grace, within = dice.choice(["inner", "left", "right", "full"]), dice.choice([0, 2, 10]), [0, 0, 5, 50]
        join = Joined(dice.choice(["k", "kg"]), *spans, how, grace, dice.choice(within), f"_{next(number)}")
        return join, tree(depth - 1), tree(dice.choice([0, 0, depth - 1]))

    left, right = dice.sample(list(tables), 2)
    met = (left, right, dice.choice(["id", "fk"]), dice.choice(["inner", "left", "right", "full"]))
    return Program(tree(dice.randint(1, 4)), topics, tables, met)


def random_append(dice: random.Random, program: Program, app: hr.App, now: int) -> None:
    name = dice.choice([*program.topics, *program.tables, *program.tables])
    if name in program.topics:
        ages = [dice.randint(-15, 3) if dice.random() < 0.95 else None for _ in range(dice.choice([1, 1, 2, 4]))]
        app.log.topic(name).append(
            {"k": dice.choice(["x", "y", "z", "x", None]), "g": dice.choice(["x", "y", "x", None]),
             f"n_{name}": 10 * now + n, "at": None if age is None else at(now + age)} for n, age in enumerate(ages)
        )  # fmt: skip
        return
    row = {"id": dice.choice("xyz"), "at": at(now + dice.randint(-12, 6))}
    if dice.random() < 0.25:
        app.log.topic(name).append({**row, "_op": "delete"})
    else:
        app.log.topic(name).append({**row, "fk": dice.choice(["x", "y", None]), f"v_{name}": now, "_op": "upsert"})


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 1_000))])
def test_a_program_of_joins_is_the_same_as_one_batch(seed: int, tmp_path: Path) -> None:
    dice, clock = random.Random(seed), Clock()
    program = random_program(dice)
    with contextlib.ExitStack() as stack:

        def started() -> tuple[hr.App, hr.View, list[str], hr.View]:
            app = stack.enter_context(hr.App("programs", home=tmp_path, clock_us=clock))
            return app, *program.on(app)

        app, joined, columns, pairs = started()
        now = dice.choice([0, 980, 1_000])  # how event times and arrivals are to each other
        for _ in range(dice.randint(15, 60)):
            what = dice.random()
            if what < 0.82:
                random_append(dice, program, app, now)
            elif what < 0.95:
                app.drain(batch_rows=dice.choice([None, None, 1, 2, 3]), close=dice.random() < 0.15)
            else:
                stack.pop_all().close()
                app, joined, columns, pairs = started()
            clock.us += 1_000_000 * dice.choice([0, 0, 0, 1, 5])
            now += dice.choice([0, 1, 2])
        app.drain(close=True)
        found = Counter(
            tuple(row[name] for name in (*columns, "_corrections")) for row in joined.to_arrow().to_pylist()
        )
        rows = program.rows(program.tree, app.log)
        assert found == Counter((*(row.cells.get(name) for name in columns), row.corrections) for row in rows)
        names = [f"v_{name}" for name in program.met[:2]]
        found = Counter(tuple(row[name] for name in names) for row in pairs.to_arrow().to_pylist())
        assert found == program.pairs(app.log)
        assert seed % 4 or app.audit().ok


@pytest.mark.parametrize("seed", range(2))
def test_a_table_that_is_shuffled_or_delayed_within_the_grace_gives_the_same(seed: int) -> None:
    dice, answers = random.Random(seed), []
    facts = [{"k": dice.choice("xyz"), "n": n, "at": at(dice.randint(0, 60))} for n in range(25)]
    changes = [
        {"id": key, "v": when, "at": at(when), "_op": dice.choice(["upsert", "upsert", "delete"])}
        for key in "xy"
        for when in dice.sample(range(60), 8)
    ]
    for way in ("before", "shuffled", "among", "behind"):
        with hr.App("programs", home=":temp:", clock_us=Clock()) as app:
            table = app.table("t", "id string, v int, at timestamp", key="id", event_time="at", history="versions")
            topic = app.topic("facts", "k string, n int, at timestamp", event_time="at")
            how = {"as_of": "at", "grace": "1000 seconds", "late": hr.drop()}
            rows = app.stream(topic).enrich(table, on={"k": "id"}, **how).to_view("rows")  # type: ignore[arg-type]
            appends = [(table.topic, row) for row in changes], [(topic, row) for row in facts]
            if way == "shuffled":
                dice.shuffle(appends[0])
            one, other = reversed(appends) if way == "behind" else appends
            both = [*one, *other]
            if way == "among":
                dice.shuffle(both)
            for where, row in both:
                where.append(row)
                if dice.random() < 0.2:
                    app.drain()
            app.drain()
            found = rows.to_arrow().to_pylist()
            answers.append(sorted(((row["n"], row["v"], row["_corrections"]) for row in found), key=str))
    assert answers[1:] == answers[:1] * 3
    assert {corrections for _, _, corrections in answers[0]} == {0} and any(v is not None for _, v, _ in answers[0])
