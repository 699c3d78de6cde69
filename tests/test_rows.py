from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from http import HTTPStatus
from types import MappingProxyType, ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidArgument, RecordRejected
from headrace.rows import to_batch, to_rows
from headrace.schema import parse_ddl, storage_schema
from tests.strategies import rows_of, schemas

NAN = float("nan")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def batch_of(data: object, ddl: str, extra: str = "forbid") -> pa.RecordBatch:
    schema = parse_ddl(ddl)
    batch = to_batch(data, schema, extra=extra, topic="t")
    batch.validate(full=True)
    assert batch.schema == storage_schema(schema, extra)
    return batch


def stored(data: object, ddl: str, extra: str = "forbid") -> list[dict[str, Any]]:
    return to_rows(batch_of(data, ddl, extra))


def refused(data: object, ddl: str, extra: str = "forbid") -> RecordRejected:
    with pytest.raises(RecordRejected) as caught:
        batch_of(data, ddl, extra)
    assert caught.value.topic == "t"
    assert len(str(caught.value)) < 700
    return caught.value


class Colour(str, Enum):  # noqa: UP042 - str() of this older kind gives 'Colour.RED'
    RED = "red"


# -- what each type takes --------------------------------------------------------------------------

ACCEPTED: list[tuple[str, Any, Any]] = [
    ("int", 7, 7),
    ("int", -(2**31), -(2**31)),
    ("tinyint", np.int64(127), 127),
    ("bigint", np.uint64(2**63 - 1), 2**63 - 1),
    ("double", 1.5, 1.5),
    ("double", 3, 3.0),
    ("double", 2**60, float(2**60)),  # exact, although beyond 2**53
    ("double", np.float32(0.1), float(np.float32(0.1))),
    ("double", float("inf"), float("inf")),
    ("float", 0.5, 0.5),
    ("float", 0.1, float(np.float32(0.1))),  # what the column's type says
    ("float", 2**24, float(2**24)),
    ("float", float("-inf"), float("-inf")),
    ("string", "größe 🙂 \x00", "größe 🙂 \x00"),
    ("string", np.str_("x"), "x"),
    ("string", Colour.RED, "red"),
    ("int", HTTPStatus.OK, 200),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("binary", bytearray(b"ab"), b"ab"),
    ("binary", memoryview(b"abcd")[::2], b"ac"),
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("decimal(5, 2)", Decimal("1.2"), Decimal("1.20")),
    ("decimal(5, 2)", Decimal("1.2000"), Decimal("1.20")),
    ("decimal(5, 2)", Decimal("1E+2"), Decimal("100.00")),
    ("decimal(5, 2)", "-999.99", Decimal("-999.99")),
    ("decimal(5, 2)", 999, Decimal("999.00")),
    ("decimal(38, 0)", 10**38 - 1, Decimal(10**38 - 1)),
    ("decimal(38, 38)", Decimal("0." + "9" * 38), Decimal("0." + "9" * 38)),
    ("date", date(1, 1, 1), date(1, 1, 1)),
    ("date", "9999-12-31", date(9999, 12, 31)),
    ("timestamp", NEW_YEAR, NEW_YEAR),
    ("timestamp", datetime(2026, 1, 1, 1, tzinfo=BERLIN), NEW_YEAR),
    ("timestamp", datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), NEW_YEAR),
    (
        "timestamp",
        datetime(1880, 1, 1, 0, 53, 28, tzinfo=timezone(timedelta(minutes=53, seconds=28))),
        datetime(1880, 1, 1, tzinfo=UTC),
    ),
    ("timestamp", pd.Timestamp("2026-01-01T01:00:00.000001+01:00"), NEW_YEAR.replace(microsecond=1)),
    ("timestamp", "2026-01-01T00:00:00Z", NEW_YEAR),
    ("timestamp", "2026-01-01 02:00+02:00", NEW_YEAR),
    ("timestamp", "2026-01-01T00:53:28+00:53:28", NEW_YEAR),  # Arrow's reader does not take this one
    ("timestamp", "0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamp", datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    ("timestamp_ntz", datetime(2026, 3, 29, 2, 30), datetime(2026, 3, 29, 2, 30)),
    ("timestamp_ntz", "2026-03-29T02:30:00.5", datetime(2026, 3, 29, 2, 30, 0, 500_000)),
    ("array<int>", [1, None, 3], [1, None, 3]),
    ("array<int>", (), []),
    ("array<int>", np.array([1, 2]), [1, 2]),
    ("array<timestamp>", ["2026-01-01T00:00Z", None, NEW_YEAR], [NEW_YEAR, None, NEW_YEAR]),
    ("map<string, int>", {"a": 1, "b": None}, {"a": 1, "b": None}),
    ("map<int, string>", [(1, "a"), [2, "b"]], {1: "a", 2: "b"}),
    ("map<timestamp, int>", {"2026-01-01T00:00Z": 1}, {NEW_YEAR: 1}),
    ("struct<x: int, y: string>", {"x": 1}, {"x": 1, "y": None}),
    ("struct<x: int, y: string>", MappingProxyType({"y": "b"}), {"x": None, "y": "b"}),
    ("struct<x: struct<y: int NOT NULL>>", {}, {"x": None}),
]


@pytest.mark.parametrize(("ddl", "value", "expected"), ACCEPTED)
def test_accepted_values(ddl: str, value: Any, expected: Any) -> None:
    for others in ([], [None], [expected]):  # alone, with nulls, and mixed with the canonical form
        rows = [{"c": v} for v in [*others, value]]
        got = stored(rows, f"c {ddl}")
        assert [row["c"] for row in got] == [*others, expected]
        assert type(got[-1]["c"]) is type(expected)
    if isinstance(expected, datetime) and expected.tzinfo:
        assert got[-1]["c"].tzinfo is UTC


def test_nan_stays_nan() -> None:
    for ddl in "c double", "c float":
        assert str(stored({"c": NAN}, ddl)) == "[{'c': nan}]"
        assert batch_of({"c": NAN}, ddl).column("c").null_count == 0


REFUSED: list[tuple[str, Any, str]] = [
    ("int", True, "got bool True, expected int"),
    ("int", np.bool_(True), "expected int"),
    ("int", "x", "got str 'x', expected int."),
    ("bigint", "x", "expected int (bigint)."),
    ("int", 1.0, "Round it"),
    ("int", np.float64(1), "Round it"),
    ("int", NAN, "None, not NaN"),
    ("int", "1", "got str '1'"),
    ("int", Decimal(1), "got Decimal"),
    ("int", 2**31, "wider type"),
    ("tinyint", -129, "-128..127"),
    ("bigint", 2**63, "expected bigint"),
    ("bigint", np.uint64(2**63), "expected bigint"),
    ("double", True, "expected float or int"),
    ("double", "1.5", "expected float or int"),
    ("double", Decimal("1.5"), "expected float or int"),
    ("double", 2**53 + 1, "holds exactly"),
    ("double", 10**400, "holds exactly"),
    ("float", 2**24 + 1, "holds exactly"),
    ("float", 1e39, "range of float"),
    ("float", -1e39, "range of float"),
    ("string", b"x", "value.decode()"),
    ("string", 1, "str()"),
    ("string", NAN, "None, not NaN"),
    ("string", pd.NA, "None, not NaN"),
    ("string", "a\ud800", "lone surrogate at character 1"),
    ("binary", "x", "value.encode()"),
    ("binary", 5, "expected bytes"),
    ("binary", [1, 2], "expected bytes"),
    ("boolean", 1, "value == 1"),
    ("boolean", "true", "expected bool"),
    ("decimal(5, 2)", 1.5, "A float is not exact"),
    ("decimal(5, 2)", True, "expected Decimal"),
    ("decimal(5, 2)", Decimal("1.234"), "behind the point"),
    ("decimal(5, 2)", Decimal("1E-400"), "behind the point"),
    ("decimal(5, 2)", 1000, "at most 3 digits before the point"),
    ("decimal(5, 2)", Decimal("1E+999999"), "before the point"),
    ("decimal(5, 2)", Decimal("NaN"), "finite"),
    ("decimal(5, 2)", Decimal("sNaN"), "finite"),
    ("decimal(5, 2)", Decimal("Infinity"), "finite"),
    ("decimal(5, 2)", "1,5", "a number as text"),
    ("decimal(5, 2)", " 1.5", "a number as text"),
    ("decimal(5, 2)", "1_0", "a number as text"),
    ("decimal(5, 2)", "nan", "finite"),
    ("date", datetime(2026, 1, 1), "value.date()"),
    ("date", 5, "expected a date"),
    ("date", "2026-1-1", "expected a date"),
    ("date", "2026-02-30", "expected a date"),
    ("date", "2026-01-01T00:00:00Z", "expected a date"),
    ("timestamp", datetime(2026, 1, 1), "has no time zone"),
    ("timestamp", "2026-01-01T00:00:00", "has no time zone. Say which: add 'Z'"),
    ("timestamp", "2026-01-01", "has no time zone"),
    ("timestamp", "soon", "not ISO 8601"),
    ("timestamp", 1_700_000_000, "An epoch number does not say its unit"),
    ("timestamp", 1.7e9, "An epoch number does not say its unit"),
    ("timestamp", date(2026, 1, 1), "expected an aware datetime"),
    ("timestamp", np.datetime64("2026-01-01"), "Convert it"),
    ("timestamp", pd.NaT, "None, not NaN"),
    ("timestamp", pd.Timestamp("2026-01-01T00:00:00.000000001Z"), "finer than a microsecond"),
    ("timestamp", "2026-01-01T00:00:00.0000001Z", "finer than a microsecond"),
    ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "years 1 to 9999"),
    ("timestamp", datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=2))), "years 1 to 9999"),
    ("timestamp", "0000-01-01T00:00:00Z", "no such time"),
    ("timestamp_ntz", NEW_YEAR, "drop the zone"),
    ("timestamp_ntz", "2026-01-01T00:00:00Z", "drop the zone"),
    ("timestamp_ntz", 5, "expected a naive datetime"),
    ("array<int>", "12", "expected a list"),
    ("array<int>", {1, 2}, "expected a list"),
    ("array<int>", {"a": 1}, "expected a list"),
    ("array<string>", "ab", "expected a list"),
    ("map<string, int>", [1, 2], "a list of (key, value) pairs"),
    ("map<string, int>", "ab", "a list of (key, value) pairs"),
    ("map<string, int>", [("a", 1), ("a", 2)], "a key twice"),
    ("map<timestamp, int>", {"2026-01-01T00:00Z": 1, NEW_YEAR: 2}, "a key twice"),
    ("struct<x: int>", (1,), "a mapping with x"),
    ("struct<x: int>", [("x", 1)], "a mapping with x"),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "value", "reason"), REFUSED)
def test_refused_values(ddl: str, value: Any, reason: str) -> None:
    error = refused([{"c": None}, {"c": value}, {"c": value}], f"c {ddl}")
    assert (error.row, error.column) == (1, "c")
    assert reason in error.why
    inside = refused([{"c": {"x": [None]}}, {"c": {"x": [None, value]}}], f"c struct<x: array<{ddl}>>")
    assert (inside.row, inside.column) == (1, "c.x[1]")
    assert reason in inside.why


@pytest.mark.parametrize(
    ("ddl", "row", "column", "reason"),
    [
        ("c int NOT NULL", {}, "c", "NOT NULL"),
        ("c int NOT NULL", {"c": None}, "c", "NOT NULL"),
        ("c struct<x: int NOT NULL>", {"c": {}}, "c.x", "NOT NULL"),
        ("c array<struct<x: struct<y: int NOT NULL>>>", {"c": [None, {"x": {"y": None}}]}, "c[1].x.y", "NOT NULL"),
        ("c map<string, int>", {"c": {None: 1}}, "c.key", "NOT NULL"),
        ("c map<string, int>", {"c": {1: 1}}, "c.key", "expected str"),
        ("c map<string, int>", {"c": {"k": "v"}}, "c['k']", "expected int"),
        ("c struct<x: int>", {"c": {"x": 1, "y": 2}}, "c.y", "unknown field"),
        ("user string", {"usr": "u"}, "usr", "Did you mean 'user'?"),
        ("user string", {"User": "u"}, "User", "Did you mean 'user'?"),
        ("user string", {7: "u"}, "", "a field's name is text"),
    ],
)
def test_the_error_names_the_path(ddl: str, row: dict[Any, Any], column: str, reason: str) -> None:
    error = refused([row], ddl)
    assert error.column == column
    assert reason in error.why


def test_the_first_bad_row_is_named_whatever_its_column() -> None:
    rows = [{"a": 1, "b": "x"} for _ in range(100)]
    rows[70]["a"] = "bad"
    rows[40]["b"] = 5
    rows[41]["c"] = 1
    assert (refused(rows, "a int, b string").row, refused(rows, "a int, b string").column) == (40, "b")


# -- shapes of data --------------------------------------------------------------------------------


class Row(Mapping[str, Any]):
    def __init__(self, **values: Any) -> None:
        self.values_by_name = values

    def __getitem__(self, key: str) -> Any:
        return self.values_by_name[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


@pytest.mark.parametrize(
    "data",
    [
        {"a": 1}, Row(a=1), [Row(a=1)], ({"a": 1},), iter([OrderedDict(a=1)]), (r for r in [{"a": 1}]),
        MappingProxyType({"a": 1}),
        pa.table({"a": [1]}), pa.record_batch({"a": [1]}), pa.table({"a": [1]}).to_reader(), pl.DataFrame({"a": [1]}),
        pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]}, index=["x"]), pa.array([{"a": 1}]), pl.Series([{"a": 1}]),
        pd.DataFrame({"x": [1]}).groupby("x").size().rename_axis("a").to_frame("n").drop(columns="n"),
    ],
)  # fmt: skip
def test_many_shapes_of_the_same_row(data: object) -> None:
    assert stored(data, "a int") == [{"a": 1}]


@pytest.mark.parametrize(
    "data", [[], (), iter([]), pa.table({"a": pa.array([], pa.int64())}), pl.DataFrame(), pa.table({}), pd.DataFrame()]
)
def test_nothing_is_an_empty_batch(data: object) -> None:
    assert batch_of(data, "a int NOT NULL, s struct<x: int NOT NULL>, m map<string, int>").num_rows == 0


@pytest.mark.parametrize(
    "data", ["abc", b"abc", 7, None, [1], ["ab"], [("a", 1)], [{"a": 1}, None], pa.array([1]), pl.Series([1]), object()]
)
def test_what_is_no_rows_is_refused_saying_what_is(data: object) -> None:
    with pytest.raises(InvalidArgument, match="append a mapping") as caught:
        batch_of(data, "a int")
    assert caught.value.argument == "data"


def test_columns_may_come_in_any_order_and_be_left_out() -> None:
    data = pa.table({"b": ["x"], "a": [1]})
    assert stored(data, "a int, b string, c date") == [{"a": 1, "b": "x", "c": None}]


# -- unknown fields --------------------------------------------------------------------------------


def test_unknown_fields_by_the_topics_rule() -> None:
    row = {"a": 1, "b": {"x": [1, None, True, "é"]}, "at": NEW_YEAR}
    assert refused(row, "a int").column == "b"
    assert stored(row, "a int", "ignore") == [{"a": 1}]
    assert stored(row, "a int", "keep") == [{"a": 1, "b": {"x": [1, None, True, "é"]}, "at": "2026-01-01T00:00:00Z"}]
    assert batch_of(row, "a int", "keep").column("_extra").to_pylist() == [
        '{"b":{"x":[1,null,true,"é"]},"at":"2026-01-01T00:00:00Z"}'
    ]


def test_kept_fields_appear_only_where_they_were() -> None:
    rows = [{"a": 1}, {"a": 2, "b": None}, {"a": 3, "c": 2**70}]
    assert stored(rows, "a int", "keep") == rows
    assert batch_of([{"a": 1}], "a int", "keep").column("_extra").null_count == 1


def test_nested_unknown_fields_are_dropped_only_when_ignored() -> None:
    row = {"s": {"x": 1, "y": 2}}
    assert refused(row, "s struct<x: int>", "keep").column == "s.y"
    assert stored(row, "s struct<x: int>", "ignore") == [{"s": {"x": 1}}]


@pytest.mark.parametrize("name", ["_extra", "_offset", "_partition", "_arrived_at", "_progress"])
def test_reserved_names_are_not_kept(name: str) -> None:
    assert "reserved" in refused({"a": 1, name: 1}, "a int", "keep").why
    assert stored({"a": 1, "_id": 1}, "a int", "keep") == [{"a": 1, "_id": 1}]


def test_what_has_no_json_form_is_not_kept() -> None:
    error = refused([{"a": 1}, {"a": 1, "b": object()}], "a int", "keep")
    assert (error.row, error.column) == (1, "b")
    error = refused([{"a": 1, "b": {"c": "\ud800"}}], "a int", "keep")
    assert (error.row, error.column) == (0, "b")


def test_a_field_kept_before_its_column_was_added_still_shows() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, 2], "b": [None, 5], "_extra": ['{"b": "kept"}', '{"b": "kept"}']},
        schema=pa.schema([("a", pa.int32()), ("b", pa.int32()), ("_extra", pa.string())]),
    )
    assert to_rows(batch) == [{"a": 1, "b": "kept"}, {"a": 2, "b": 5}]


def test_unknown_arrow_columns_are_kept_too() -> None:
    data = pa.table({"a": [1, 2], "x": ["p", None], "y": pa.array([NEW_YEAR, None])})
    assert stored(data, "a int", "keep") == [{"a": 1, "x": "p", "y": "2026-01-01T00:00:00Z"}, {"a": 2}]
    assert stored(data, "a int", "ignore") == [{"a": 1}, {"a": 2}]
    assert refused(data, "a int").column == "x"


def test_batches_with_extra_pass_through() -> None:
    first = batch_of([{"a": 1, "x": 1}, {"a": 2}], "a int", "keep")
    assert batch_of(first, "a int", "keep").equals(first)
    assert refused(first, "a int, x int", "keep").column == "_extra"
    bad = pa.record_batch({"a": pa.array([1], pa.int32()), "_extra": ["[1]"]})
    assert (refused(bad, "a int", "keep").row, refused(bad, "a int", "keep").column) == (0, "_extra")


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'forbid', 'ignore', 'keep'"):
        batch_of({}, "a int", "allow")


# -- Arrow data ------------------------------------------------------------------------------------


def test_arrow_of_the_exact_type_is_not_copied() -> None:
    schema = parse_ddl("a int, b string, c array<struct<x: timestamp>>, d timestamp")
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": "x", "c": [{"x": NEW_YEAR}], "d": NEW_YEAR}] * 3, schema=schema)
    got = to_batch(batch, schema, extra="forbid", topic="t")
    for name in schema.names:
        mine, theirs = got.column(name).buffers(), batch.column(name).buffers()
        assert [b and b.address for b in mine] == [b and b.address for b in theirs]


def ts(*values: int | None, unit: str = "us", tz: str | None = "UTC") -> pa.Array:
    return pa.array(values, pa.timestamp(unit, tz))


JAN_2 = datetime(1970, 1, 2, tzinfo=UTC)
DAY_NS = 86_400 * 10**9

ARROW_ACCEPTED: list[tuple[str, pa.Array, list[Any]]] = [
    ("int", pa.array([1, None], pa.int64()), [1, None]),
    ("tinyint", pa.array([127], pa.uint64()), [127]),
    ("bigint", pa.array([7], pa.int8()), [7]),
    ("double", pa.array([2**53], pa.int64()), [float(2**53)]),
    ("double", pa.array([0.5], pa.float32()), [0.5]),
    ("double", pa.array([np.float16(0.5)], pa.float16()), [0.5]),
    ("float", pa.array([0.5, None, float("inf")], pa.float64()), [0.5, None, float("inf")]),
    ("float", pa.array([2**24], pa.int32()), [float(2**24)]),
    ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
    ("string", pa.array(["a" * 40], pa.string_view()), ["a" * 40]),
    ("string", pa.array(["a", "b", None, "a"]).dictionary_encode(), ["a", "b", None, "a"]),
    ("int", pa.array([None, None]), [None, None]),
    ("string", pa.array([None, None], pa.float64()), [None, None]),  # nulls have no type
    ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("binary", pa.array([b"ab"], pa.large_binary()), [b"ab"]),
    ("date", pa.array([date(2026, 1, 1)], pa.date64()), [date(2026, 1, 1)]),
    ("date", pa.array(["2026-01-01", None]), [date(2026, 1, 1), None]),
    ("timestamp", ts(DAY_NS, None, unit="ns"), [JAN_2, None]),
    ("timestamp", ts(86_400, unit="s", tz="Europe/Berlin"), [JAN_2]),
    ("timestamp", pa.array(["1970-01-02T02:00:00+02:00", None]), [JAN_2, None]),
    ("timestamp", pa.array(["1970-01-02T00:53:28+00:53:28"], pa.large_string()), [JAN_2]),
    ("timestamp_ntz", ts(86_400_000, unit="ms", tz=None), [datetime(1970, 1, 2)]),
    ("timestamp_ntz", pa.array(["1970-01-02T00:00:00"]), [datetime(1970, 1, 2)]),
    ("decimal(5, 2)", pa.array([Decimal("1.5")], pa.decimal128(38, 1)), [Decimal("1.50")]),
    ("decimal(5, 2)", pa.array([Decimal("1.500")], pa.decimal256(40, 3)), [Decimal("1.50")]),
    ("decimal(5, 2)", pa.array([999], pa.int64()), [Decimal("999.00")]),
    ("decimal(20, 0)", pa.array([2**64 - 1], pa.uint64()), [Decimal(2**64 - 1)]),
    ("decimal(5, 2)", pa.array(["1.5"]), [Decimal("1.50")]),
    ("array<int>", pa.array([[1, None], None, []], pa.large_list(pa.int64())), [[1, None], None, []]),
    ("array<int>", pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [[1, 2], None]),
    ("array<int>", pa.array([[1, 2], None], pa.list_view(pa.int64())), [[1, 2], None]),
    ("array<timestamp>", pa.array([["1970-01-02T00:00Z"], None]), [[JAN_2], None]),
    ("map<string, bigint>",
     pa.array([[("a", 1)], None, []], pa.map_(pa.large_string(), pa.int8())), [{"a": 1}, None, {}]),
    ("struct<x: bigint, y: string>", pa.array([{"y": "a", "x": 1}, None]), [{"x": 1, "y": "a"}, None]),
    ("struct<x: bigint, y: string>",
     pa.array([{"x": 1}, {"x": None}], pa.struct([("x", pa.int8())])), [{"x": 1, "y": None}, {"x": None, "y": None}]),
    ("struct<x: int NOT NULL>", pa.array([None, {"x": 1}], pa.struct([("x", pa.int64())])), [None, {"x": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "array", "expected"), ARROW_ACCEPTED)
def test_arrow_casts_that_lose_nothing(ddl: str, array: pa.Array, expected: list[Any]) -> None:
    assert [row["c"] for row in stored(pa.record_batch({"c": array}), f"c {ddl}")] == expected
    for start in range(len(array)):  # slices keep their parents' buffers
        sliced = pa.record_batch({"c": array.slice(start)})
        assert [row["c"] for row in stored(sliced, f"c {ddl}")] == expected[start:]


ARROW_REFUSED: list[tuple[str, pa.Array, int, str, str]] = [
    ("int", pa.array([1, 2**31]), 1, "c", "does not fit"),
    ("int", pa.array([None, 1.0]), 1, "c", ".astype('Int64')"),
    ("int", pa.array(["1"]), 0, "c", "Cast the column to an integer first"),
    ("int", pa.array([True]), 0, "c", "got bool"),
    ("int", pa.array([Decimal(1)]), 0, "c", "got decimal128"),
    ("bigint", pa.array([0, 2**63], pa.uint64()), 1, "c", "does not fit"),
    ("double", pa.array([0, 2**53 + 1]), 1, "c", "does not fit"),
    ("double", pa.array(["1.5"]), 0, "c", "Cast the column to a float first"),
    ("double", pa.array([Decimal("1.5")]), 0, "c", "Cast the column to a float first"),
    ("float", pa.array([0.5, NAN, 0.1]), 2, "c", "not exact as float"),
    ("float", pa.array([1e300]), 0, "c", "not exact as float"),
    ("float", pa.array([2**24 + 1]), 0, "c", "does not fit"),
    ("string", pa.array([None, 1]), 1, "c", "Cast the column to string first"),
    ("string", pa.array([b"x"]), 0, "c", "Cast the column to string first"),
    ("string", pa.array([NEW_YEAR]), 0, "c", "Cast the column to string first"),
    ("binary", pa.array(["x"]), 0, "c", "Cast the column to binary first"),
    ("boolean", pa.array([1]), 0, "c", "got int64"),
    ("decimal(5, 2)", pa.array([Decimal("1.5"), Decimal("1.555")]), 1, "c", "does not fit"),
    ("decimal(5, 2)", pa.array([1000]), 0, "c", "does not fit"),
    ("decimal(5, 2)", pa.array([1.5]), 0, "c", "A float is not exact"),
    ("decimal(5, 2)", pa.array(["1.5", "x"]), 1, "c", "a number as text"),
    ("date", pa.array([NEW_YEAR]), 0, "c", "which day"),
    ("date", pa.array([5]), 0, "c", "Cast the column to a date"),
    ("date", pa.array(["2026-01-01", "soon"]), 1, "c", "expected a date"),
    ("date", pa.array([0, 10_000_000], pa.date32()), 1, "c", "years 1 to 9999"),
    ("timestamp", ts(0, None, 1, unit="ns"), 2, "c", "does not fit"),
    ("timestamp", ts(0, tz=None), 0, "c", "say which"),
    ("timestamp", pa.array([1_700_000_000]), 0, "c", "saying its unit and time zone"),
    ("timestamp", pa.array([date(2026, 1, 1)]), 0, "c", "Cast the column to a timestamp"),
    ("timestamp", pa.array(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00"]), 1, "c", "has no time zone"),
    ("timestamp", pa.array(["2026-01-01T00:00:00Z", "0000-01-01T00:00:00Z"]), 1, "c", "no such time"),
    ("timestamp", ts(0, 2**62), 1, "c", "years 1 to 9999"),
    ("timestamp", ts(0, 10**12, unit="s"), 1, "c", "years 1 to 9999"),
    ("timestamp_ntz", ts(0), 0, "c", "no time zone"),
    ("timestamp_ntz", ts(-(2**62), tz=None), 0, "c", "years 1 to 9999"),
    ("array<int>", pa.array([[1], [2**31]]), 1, "c[]", "does not fit"),
    ("array<timestamp>", pa.array([[NEW_YEAR], [None]]).cast(pa.list_(pa.timestamp("us"))), 0, "c[]", "say which"),
    ("array<timestamp>",
     pa.array([[0], [2**62]]).cast(pa.list_(pa.timestamp("us", "UTC"))), 1, "c[]", "years 1 to 9999"),
    ("array<int>", pa.array([1]), 0, "c", "got int64"),
    ("map<string, int>",
     pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())), 1, "c", "a key twice"),
    ("map<string, int>",
     pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.large_string(), pa.int32())), 0, "c", "a key twice"),
    ("struct<x: int>", pa.array([{"x": 1, "y": 2}]), 0, "c.y", "unknown field"),
    ("struct<x: int>", pa.array([{"x": 1}, {"x": 2**31}]), 1, "c.x", "does not fit"),
    ("struct<x: int NOT NULL>",
     pa.array([None, {"x": 1}, {"x": None}], pa.struct([("x", pa.int64())])), 2, "c.x", "NOT NULL"),
    ("struct<x: int NOT NULL>", pa.array([{"x": 1}, {"x": None}],
        pa.struct([pa.field("x", pa.int32(), nullable=False)])), 1, "c.x", "NOT NULL"),
    ("string", pa.array([b"a" * 16], pa.uuid()), 0, "c", "storage type"),
    ("string", pa.array([timedelta(1)]), 0, "c", "got duration"),
    ("string",
     pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]),
     0, "c", "damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "array", "row", "column", "reason"), ARROW_REFUSED)
def test_arrow_casts_that_would_change_a_value(ddl: str, array: pa.Array, row: int, column: str, reason: str) -> None:
    error = refused(pa.record_batch({"c": array}), f"c {ddl}")
    assert (error.row, error.column) == (row, column)
    assert reason in error.why


def test_arrow_nulls_in_not_null_columns() -> None:
    assert refused(pa.table({"a": [1, None]}), "a int NOT NULL").row == 1
    assert refused(pa.table({"a": [1, 2]}), "a int, b int NOT NULL").column == "b"
    assert refused(pa.table({"a": pa.array(["x", None]).dictionary_encode()}), "a string NOT NULL").row == 1


def test_the_first_bad_row_of_all_arrow_columns() -> None:
    data = pa.table({"a": [1] * 70 + [2**40] * 30, "b": [1.5] * 100, "c": [0] * 40 + [2**20] * 60})
    error = refused(data, "a int, b double, c smallint")
    assert (error.row, error.column) == (40, "c")


def test_arrow_with_a_column_twice() -> None:
    data = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InvalidArgument, match="'a' twice"):
        batch_of(data, "a int")


def test_chunks_become_one_batch() -> None:
    data = pa.concat_tables(
        [pa.table({"a": [1], "s": [{"x": 1}]}), pa.table({"a": [2], "s": [None]})], promote_options="default"
    )
    assert stored(data, "a int, s struct<x: bigint>") == [{"a": 1, "s": {"x": 1}}, {"a": 2, "s": None}]


def test_polars_and_pandas_of_many_types() -> None:
    frame = pl.DataFrame(
        {
            "s": ["a", None],
            "i": [1, 2],
            "t": [NEW_YEAR, None],
            "l": [[1], None],
            "e": pl.Series(["x", "y"], dtype=pl.Categorical),
        }
    )
    ddl = "s string, i int, t timestamp, l array<int>, e string"
    expected = [
        {"s": "a", "i": 1, "t": NEW_YEAR, "l": [1], "e": "x"},
        {"s": None, "i": 2, "t": None, "l": None, "e": "y"},
    ]
    assert stored(frame, ddl) == expected
    odd = pl.DataFrame({"l": pl.Series([["x"], None, ["y", "x"]], dtype=pl.List(pl.Categorical))})
    assert stored(odd, "l array<string>") == [{"l": ["x"]}, {"l": None}, {"l": ["y", "x"]}]
    table = pd.DataFrame(
        {
            "s": ["a", None],
            "i": pd.array([1, None], dtype="Int64"),
            "t": pd.to_datetime(["2026-01-01T01:00+01:00", None], utc=True),
            "f": [0.5, NAN],
            "d": [date(2026, 1, 1), None],
            "c": pd.Categorical(["x", "y"]),
        },
        index=[5, 6],
    )
    assert stored(table, "s string, i int, t timestamp, f double, d date, c string") == [
        {"s": "a", "i": 1, "t": NEW_YEAR, "f": 0.5, "d": date(2026, 1, 1), "c": "x"},
        {"s": None, "i": None, "t": None, "f": None, "d": None, "c": "y"},  # NaN is pandas' null
    ]


def test_pandas_objects_follow_the_rules_of_python_values() -> None:
    # pyarrow alone would take the naive one for UTC.
    mixed = pd.DataFrame({"at": pd.Series([NEW_YEAR, datetime(2026, 1, 1)], dtype=object)})
    error = refused(mixed, "at timestamp")
    assert (error.row, error.column) == (1, "at")
    assert "no time zone" in error.why
    assert refused(pd.DataFrame({"a": pd.Series([1, "x"], dtype=object)}), "a int").row == 1
    both = pd.DataFrame({"a": pd.Series([1, 1, "x"], dtype=object), "b": [1, 2**40, 1]})
    assert (refused(both, "a int, b int").row, refused(both, "a int, b int").column) == (1, "b")
    with pytest.raises(InvalidArgument, match="name is text"):
        batch_of(pd.DataFrame({0: [1]}), "a int")
    with pytest.raises(InvalidArgument, match="cannot be read as Arrow"):
        batch_of(pd.DataFrame({"b": pd.Series([1, "x"], dtype=object)}), "a int", "keep")


def test_pandas_may_be_half_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    assert to_batch([{"a": 1}], parse_ddl("a int"), extra="forbid", topic="t").num_rows == 1


def test_a_named_pandas_index_is_a_column() -> None:
    frame = pd.DataFrame({"n": [1, 2]}, index=pd.Index(["a", "b"], name="user"))
    assert stored(frame, "user string, n int") == [{"user": "a", "n": 1}, {"user": "b", "n": 2}]
    named_range = pd.DataFrame({"n": [1, 2]}).rename_axis("i")
    assert stored(named_range, "i int, n int") == [{"i": 0, "n": 1}, {"i": 1, "n": 2}]


# -- any value, any column ------------------------------------------------------------------------

ODD_VALUES = (
    [value for _, value, _ in ACCEPTED] + [value for _, value, _ in REFUSED] + [None, NAN, {}, [], (), object()]
)
ODD_TYPES = sorted({ddl for ddl, _, _ in ACCEPTED})


@pytest.mark.parametrize("ddl", ODD_TYPES)
def test_a_value_is_taken_or_refused_whatever_way_it_comes(ddl: str) -> None:
    """One row, many rows, inside a list and inside a struct: the same answer, and no other error."""
    for value in ODD_VALUES:
        ways = [
            ({"c": value}, f"c {ddl}", lambda row: row["c"]),
            ([{"c": None}, {"c": value}], f"c {ddl}", lambda row: row["c"]),
            ([{"c": [None, value]}], f"c array<{ddl}>", lambda row: row["c"][1]),
            ([{"c": {"x": value}}], f"c struct<x: {ddl}>", lambda row: row["c"]["x"]),
            ([{"c": {"k": value}}, {"c": None}], f"c map<string, {ddl}>", lambda row: row["c"]["k"]),
        ]
        answers = []
        for data, wrapped, pick in ways:
            try:
                row = next(r for r in reversed(stored(data, wrapped)) if r["c"] is not None or value is None)
                answers.append(repr(pick(row)) if row["c"] is not None else "None")
            except RecordRejected as error:
                answers.append(f"refused: {error.why}")
        assert len(set(answers)) == 1, (ddl, value, answers)


# -- round trips -----------------------------------------------------------------------------------


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.data())
def test_rows_come_back_as_they_went_in(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    rows = data.draw(rows_of(schema))
    batch = to_batch(rows, schema, extra="forbid", topic="t")
    batch.validate(full=True)
    assert same(to_rows(batch), rows)
    assert same(to_rows(to_batch(batch, schema, extra="forbid", topic="t")), rows)  # as Arrow
    assert same(to_rows(to_batch(to_rows(batch), schema, extra="forbid", topic="t")), rows)
    if rows:
        start = data.draw(st.integers(0, len(rows) - 1))
        assert same(to_rows(batch.slice(start)), rows[start:])
        assert same(to_rows(to_batch(batch.slice(start), schema, extra="forbid", topic="t")), rows[start:])
        single = [to_batch(row, schema, extra="forbid", topic="t") for row in rows]
        assert same([to_rows(one)[0] for one in single], rows)
    wide = pa.Table.from_batches([batch])
    assert same(to_rows(to_batch(wide.to_reader(max_chunksize=1), schema, extra="forbid", topic="t")), rows)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.data())
def test_polars_agrees(data: st.DataObject) -> None:
    schema = parse_ddl(
        "s string, i bigint, d double, t timestamp, n timestamp_ntz, y date, b binary, o boolean, l array<string>"
    )
    rows = data.draw(rows_of(schema))
    batch = to_batch(rows, schema, extra="forbid", topic="t")
    frame = pl.DataFrame(pl.from_arrow(batch))
    assert same(to_rows(to_batch(frame, schema, extra="forbid", topic="t")), rows)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, and NaN equal to itself."""
    if isinstance(a, dict):
        return isinstance(b, dict) and len(a) == len(b) and all(k in b and same(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (repr(a) == repr(b))
