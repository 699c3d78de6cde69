"""Texts of Postgres' values as values of topics."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cdc.postgres.types import Kind, arrow_type, column_of, key_type, read_array
from headrace.cdc.tables import NotHeld

NUMERIC_10_2 = (10 << 16 | 2) + 4
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind("bool"), "t", True),
        (Kind("int2"), "-32768", -32768),
        (Kind("int8"), "9223372036854775807", 2**63 - 1),
        (Kind("float8"), "0.1", 0.1),
        (Kind("float8"), "-Infinity", float("-inf")),
        (Kind("float4"), "1e-05", pytest.approx(1e-5)),
        (Kind("numeric", NUMERIC_10_2), "-12345678.90", Decimal("-12345678.90")),
        (Kind("numeric"), "1.000000000000000000000000000000000000000000001", "1." + 44 * "0" + "1"),
        (Kind("numeric", (1000 << 16) + 4), "7", "7"),
        (Kind("text"), "a\nb", "a\nb"),
        (Kind("bytea"), "\\x00ff", b"\0\xff"),
        (Kind("date"), "2026-02-28", date(2026, 2, 28)),
        (Kind("date"), "infinity", date(9999, 12, 31)),
        (Kind("timestamptz"), "2026-01-01 12:00:00.5+00", datetime(2026, 1, 1, 12, 0, 0, 500_000, UTC)),
        (Kind("timestamptz"), "infinity", LAST.replace(tzinfo=UTC)),
        (Kind("timestamp"), "-infinity", datetime(1, 1, 1)),
        (Kind("uuid"), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (Kind("jsonb"), '{"a": null}', '{"a": null}'),
        (Kind("int4range"), "[1,3)", "[1,3)"),
        (Kind("_int4", element=Kind("int4")), "{1,NULL,3}", [1, None, 3]),
        (Kind("_text", element=Kind("text")), '{"a,b","NULL",NULL,"\\"\\\\",""}', ["a,b", "NULL", None, '"\\', ""]),
        (Kind("_text", element=Kind("text")), "{}", []),
        (Kind("_int4", element=Kind("int4")), "[5:6]={1,2}", [1, 2]),
    ],
)
def test_a_text_is_its_value(kind: Kind, text: str, value: Any) -> None:
    found = column_of([text.encode(), None], arrow_type(kind))
    assert found.type == arrow_type(kind)
    assert found.to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind("numeric", NUMERIC_10_2), "NaN"),
        (Kind("date"), "0044-03-15 BC"),
        (Kind("timestamptz"), "10000-01-01 00:00:00+00"),
        (Kind("_int4", element=Kind("int4")), "{{1},{2}}"),
    ],
)
def test_what_a_topic_cannot_hold_is_refused_and_not_quoted(kind: Kind, text: str) -> None:
    with pytest.raises(NotHeld) as caught:
        column_of([text.encode()], arrow_type(kind))
    assert text not in str(caught.value)


def test_a_scale_below_zero_is_text() -> None:
    """numeric(3, -2), from Postgres 15 on."""
    assert arrow_type(Kind("numeric", (3 << 16 | (-2 & 0x7FF)) + 4)) == pa.string()


def test_a_key_is_of_a_type_that_can_be_one() -> None:
    assert key_type(Kind("numeric", NUMERIC_10_2)) == pa.string()
    assert key_type(Kind("timestamptz")) == pa.string()
    assert key_type(Kind("int8")) == pa.int64()


def written(element: str | None) -> str:
    if element is None:
        return "NULL"
    return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(st.none() | st.text(max_size=5)))
def test_arrays_of_any_texts(elements: list[str | None]) -> None:
    assert read_array("{" + ",".join(map(written, elements)) + "}") == elements


@given(st.text('{}[]",\\:=N1 ', max_size=15))
def test_any_text_is_an_array_or_refused(text: str) -> None:
    try:
        read_array(text)
    except NotHeld:
        return
