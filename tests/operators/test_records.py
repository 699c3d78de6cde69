"""Operators over records: `hr.changed`, `remember`, and the contract they hold to."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import InvalidArgument
from headrace.operators.contract import Operator
from headrace.operators.records import INPUT, TOPIC
from headrace.operators.remember import Remember
from headrace.schema import parse_ddl
from headrace.testing import OperatorContract
from headrace.testing.memory_tables import MemoryTables

SCHEMA = parse_ddl("sku string, price double, n int")


def records(rows: list[tuple[Any, ...]], partition: int = 0, first: int = 0) -> pa.Table:
    """(sku, price) at the next offsets."""
    count = len(rows)
    return pa.table(
        {
            "sku": pa.array([row[0] for row in rows], pa.string()),
            "price": pa.array([row[1] for row in rows], pa.float64()),
            "n": pa.array(range(count), pa.int32()),
            "_partition": pa.array([partition] * count, pa.int32()),
            "_offset": pa.array(range(first, first + count), pa.int64()),
            TOPIC: pa.array(["prices"] * count, pa.string()),
        }
    )


def spelled(sku: str | None) -> str:
    return f"{sku}!"


class OverPrices(OperatorContract):
    def batch(self, dice: random.Random, number: int) -> dict[str, pa.Table]:
        parts = [
            records(
                [(dice.choice(["a", "b", None]), dice.choice([1.0, 2.0, None])) for _ in range(8)], part, 8 * number
            )
            for part in range(2)
        ]
        return {INPUT: pa.concat_tables(parts)}


class TestChanged(OverPrices):
    def operator(self) -> Operator:
        return hr.changed("price", key="sku").over(SCHEMA, None)


class TestRemember(OverPrices):
    def operator(self) -> Operator:
        return Remember(spelled, ("sku",), "spelled", "string").over(SCHEMA, None)


def passed(*batches: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    operator, first, out = hr.changed("price", key="sku").over(SCHEMA, None), 0, []
    tables = MemoryTables(*operator.tables)
    for rows in batches:
        step = operator.step({INPUT: records(rows, first=first)}, tables.state(), {}, changes=True)
        tables.apply(step.writes)
        first += len(rows)
        assert step.changes is not None
        out.append([(row["sku"], row["price"]) for row in step.changes.to_pylist()])
    return out


def test_a_record_goes_on_when_it_says_something_new() -> None:
    nan = float("nan")
    assert passed(
        [("a", 1.0), ("a", 1.0), ("b", 1.0), ("a", 2.0), ("a", 1.0)],  # a: 1, 2, 1; b: 1
        [("a", 1.0), ("b", None), ("b", None), (None, 5.0)],  # a is 1 still; null is a value, and a key
        [("b", 0.0), ("b", -0.0), (None, 5.0), (None, 6.0)],  # there is one zero
    ) == [
        [("a", 1.0), ("b", 1.0), ("a", 2.0), ("a", 1.0)],
        [("b", None), (None, 5.0)],
        [("b", 0.0), (None, 6.0)],
    ]
    assert [len(each) for each in passed([("a", nan), ("a", nan)], [("a", nan), ("a", 1.0)])] == [1, 1]


def test_nothing_comes_of_nothing() -> None:
    assert passed([], [("a", 1.0)], []) == [[], [("a", 1.0)], []]


@pytest.mark.parametrize(("columns", "key"), [((), "sku"), (("price",), ()), (("price",), ("",)), ((3,), "sku")])
def test_names_are_names_of_columns(columns: Any, key: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be names of columns"):
        hr.changed(*columns, key=key)
