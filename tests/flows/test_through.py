"""Records that go through an operator: `hr.changed`, one of the user's own, and both before others. The same for any
cut, and for a program that is started again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowChanged, InvalidArgument, OperatorFailed, UnknownColumn
from headrace.flows.folding import parted
from headrace.flows.spark import session
from headrace.operators.records import PLACE
from headrace.testing import add, assert_cut_invariant, expect, restart, run_steps
from headrace.views.keyed import Column, State, TableSpec, Writes


@dataclass(frozen=True)
class Counted(hr.RecordOperator):
    """Numbers the records of each key."""

    key: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.key,)

    def tables(self, schema: pa.Schema) -> tuple[TableSpec, ...]:  # noqa: ARG002
        return (TableSpec("seen", (*PLACE, Column(self.key, "string")), (Column("seen", "bigint"),)),)

    def columns(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field("number", pa.int64()))

    def fold(self, records: pa.Table, state: State) -> tuple[pa.Table, Writes]:
        names = [*(column.name for column in PLACE), self.key]
        known = {
            tuple(row[name] for name in names): row["seen"] for row in _rows(state.get("seen", records.select(names)))
        }
        numbers, touched = [], {}
        for row in _rows(records.select(names)):
            key = tuple(row.values())
            known[key] = touched[key] = known.get(key, 0) + 1
            numbers.append(known[key])
        kinds = [pa.string(), pa.int32(), pa.string(), pa.int64()]
        cells = zip(*((*key, seen) for key, seen in touched.items()), strict=True) if touched else [()] * 4
        rows = pa.table([pa.array(each, kind) for each, kind in zip(cells, kinds, strict=True)], names=[*names, "seen"])
        return records.append_column("number", pa.array(numbers, pa.int64())), Writes(puts={"seen": rows})


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def price(sku: str, value: float | None, second: int) -> dict[str, Any]:
    return {"sku": sku, "price": value, "at": f"2026-01-01T09:00:{second:02}Z"}


ROWS = [
    price(sku, value, n)
    for n, (sku, value) in enumerate(zip("aababbaab", [1, 1, 2, 2, 2, 2, None, None, 3], strict=True))
]


@pytest.fixture
def app(headrace_spark: Any) -> Iterator[hr.App]:
    with hr.App("prices", home=":temp:", spark=headrace_spark) as app:
        app.topic("prices", "sku string, price double, at timestamp", key="sku", event_time="at", partitions=2)
        yield app


def test_what_passes_is_counted_in_windows_and_survives_a_restart(app: hr.App) -> None:
    stream = app.stream("prices").through(hr.changed("price", key="sku"))
    stream.window(hr.tumbling("1 minute")).group_by("sku").agg(n=hr.count()).to_view("changes")
    numbered = stream.through(Counted("sku")).dedup("sku", "number", within="1 hour", approx=0.001)
    numbered.group_by("sku").agg(last=hr.max("number")).to_view("numbers")
    run_steps(
        app,
        add("prices", *ROWS[:4]),  # a: 1, 1, 2; b: 2
        expect("changes", [("a", 2), ("b", 1)], columns=("sku", "n")),
        restart(),
        add("prices", *ROWS[4:]),  # b: 2, 2, 3; a: null, null
        expect("changes", [("a", 3), ("b", 2)], columns=("sku", "n")),
        expect("numbers", [("a", 3), ("b", 2)], columns=("sku", "last")),
    )


def test_any_cut_gives_the_same(app: hr.App) -> None:
    stream = app.stream("prices").transform(lambda df: df.where("price is null or price < 3"))
    stream.through(Counted("sku")).to_topic("numbered")
    stream.through(hr.changed("price", key="sku")).group_by("sku").agg(n=hr.count()).to_view("changes")
    assert_cut_invariant(app, *(add("prices", *ROWS[at : at + 3]) for at in (0, 3, 6)))


@dataclass(frozen=True)
class Where(Counted):
    """And says in which process."""

    def columns(self, schema: pa.Schema) -> pa.Schema:
        return super().columns(schema).append(pa.field("pid", pa.int64()))

    def fold(self, records: pa.Table, state: State) -> tuple[pa.Table, Writes]:
        rows, writes = super().fold(records, state)
        return rows.append_column("pid", pa.array([os.getpid()] * rows.num_rows, pa.int64())), writes


def test_a_large_step_runs_in_parts_in_sparks_workers(app: hr.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the state of the batch before, which the driver has committed; by files, and within Spark where workers have
    no disk in common with the driver."""
    numbered = app.stream("prices").through(Where("sku")).to_topic("numbered")
    rows = [price(f"{n % 7}", n, n % 60) for n in range(70)]
    for large, here in (False, True), (True, True), (True, False):
        monkeypatch.setattr(parted, "ROWS_MIN", 10 if large else 10**9)
        monkeypatch.setattr(session, "workers_are_here", lambda _, here=here: here)
        monkeypatch.setattr(session, "workers_reach", lambda *_, **__: True)
        app.log.topic("prices").append(rows)
        app.drain()
    found = [record.value for record in numbered.records()]
    of_each = {sku: [row["number"] for row in found if row["sku"] == sku] for sku in {row["sku"] for row in found}}
    assert of_each == {f"{n}": list(range(1, 31)) for n in range(7)}
    where = {row["pid"] for row in found if row["number"] > 10}
    assert os.getpid() not in where and len(where) >= 2  # one for each partition
    assert {row["pid"] for row in found if row["number"] <= 10} == {os.getpid()}


def test_records_keep_key_time_and_order(app: hr.App) -> None:
    numbered = app.stream("prices").through(Counted("sku")).to_topic("numbered", key="sku")
    app.log.topic("prices").append(ROWS)
    app.drain()
    found = [record.value for record in numbered.records()]
    of_a = [(row["number"], row["at"].second) for row in found if row["sku"] == "a"]
    assert of_a == [(1, 0), (2, 1), (3, 3), (4, 6), (5, 7)]
    assert numbered.settings.event_time == "at"


def test_another_operator_is_another_flow(tmp_path: Path, headrace_spark: Any) -> None:
    """The message names the view: nobody has named the flow in question, nor the one behind it."""
    for columns, refused in ((("price",), None), (("price", "at"), "before 'changes' has changed: through: changed")):
        with hr.App("prices", home=tmp_path, spark=headrace_spark) as app:
            prices = app.topic("prices", "sku string, price double, at timestamp", key="sku", event_time="at")
            stream = app.stream(prices).through(hr.changed(*columns, key="sku")).through(Counted("sku"))
            stream.group_by("sku").agg(n=hr.count()).to_view("changes")
            prices.append(ROWS[:2])
            with contextlib.nullcontext() if refused is None else pytest.raises(FlowChanged, match=refused):
                app.drain()


def test_dropping_a_view_drops_all_that_helps_it(app: hr.App) -> None:
    stream = app.stream("prices").through(hr.changed("price", key="sku")).through(Counted("sku"))
    stream.group_by("sku").agg(n=hr.count()).to_view("changes")
    prices = app.log.topic("prices")
    prices.append(ROWS)
    app.drain()
    assert app.view("changes").to_arrow().num_rows == 2
    app.view("changes").drop()
    assert hr.open_views(app.home).specs() == []
    assert not [name for name in (each.name for each in app.log.topics()) if name.startswith("__records")]
    assert prices.groups() == [], "retention waits for nobody who is gone"


@dataclass(frozen=True)
class Broken(hr.RecordOperator):
    def fold(self, records: pa.Table, state: State) -> tuple[pa.Table, Writes]:  # noqa: ARG002
        raise ZeroDivisionError("division by zero")


def test_an_operator_that_fails_is_named_and_loses_nothing(app: hr.App) -> None:
    app.stream("prices").through(Broken()).to_topic("never")
    app.log.topic("prices").append(ROWS)
    for _ in range(2):
        with pytest.raises(OperatorFailed, match=r"through\(Broken\(\)\) failed: ZeroDivisionError: division by zero"):
            app.drain()
    assert not list(app.log.dead_letters())


def test_what_is_refused(app: hr.App) -> None:
    stream = app.stream("prices")
    with pytest.raises(InvalidArgument, match="must be a step that keeps state"):
        stream.through(lambda df: df)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="needs plain records"):
        stream.dedup("sku", within="1 hour").through(hr.changed("price", key="sku"))
    with pytest.raises(InvalidArgument, match="union"):
        stream.union(stream.through(hr.changed("price", key="sku")))
    stream.through(hr.changed("cost", key="sku")).group_by("sku").agg(n=hr.count()).to_view("changes")
    with pytest.raises(UnknownColumn, match="cost"):
        app.drain()
