"""The shortcut to JSON lines makes the lines of `encode_row`, whatever is in the columns."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.lines import json_lines_of
from headrace.jsonrows import encode_row
from headrace.rows import to_batch, to_rows
from headrace.schema import parse_ddl, storage_schema

SCHEMA = parse_ddl("s string, i bigint, g double, f float, ok boolean, day date, at timestamp, local timestamp_ntz")
ROW = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(st.characters(codec="utf-8")),
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "g": st.none() | st.floats(),
        "f": st.none() | st.floats(width=32),
        "ok": st.none() | st.booleans(),
        "day": st.none() | st.dates(),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(),
    }
)


def check(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA, extra: str = "forbid") -> None:
    batch = to_batch(rows, schema, extra=extra, topic="t")
    assert batch.schema == storage_schema(schema, extra)
    assert json_lines_of(batch) == list(map(encode_row, to_rows(batch)))


@given(st.lists(ROW, min_size=1, max_size=5))
def test_any_rows(rows: list[dict[str, Any]]) -> None:
    check(rows)


@pytest.mark.parametrize(
    "when", [datetime.min, datetime.max, datetime(1969, 12, 31, 23, 59, 59, 1), datetime(2000, 1, 1)]
)
def test_the_ends_of_time(when: datetime) -> None:
    check([{"at": when.replace(tzinfo=UTC), "local": when, "day": when.date()}])


def test_what_needs_more_care() -> None:
    check([{"g": float("nan")}, {"g": 1.0}])
    check([{"x": 1, "more": [1]}, {"x": 2}], parse_ddl("x int"), "keep")
    check([{"x": 1}, {"x": 2}], parse_ddl("x int"), "keep")
    nested = "d decimal(5, 2), b binary, a array<date>, m map<int, timestamp>, s struct<x: int>"
    value = {
        "d": Decimal("1.20"),
        "b": b"\0",
        "a": [date(1, 1, 1)],
        "m": {1: datetime(1, 1, 1, tzinfo=UTC)},
        "s": {"x": 1},
    }
    check([value, {}], parse_ddl(nested))
