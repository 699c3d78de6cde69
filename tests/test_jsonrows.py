from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidArgument
from headrace.jsonrows import decode_row, encode_row, parse_object
from headrace.rows import to_batch, to_rows
from headrace.schema import parse_ddl
from tests.strategies import rows_of, schemas
from tests.test_rows import same


class Colour(str, Enum):  # noqa: UP042 - str() of this older kind gives 'Colour.RED'
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (2**63 - 1, "9223372036854775807"),
        (2**70, "1180591620717411303424"),
        (-(2**70), "-1180591620717411303424"),
        (1.5, "1.5"),
        (1e300, "1e+300"),
        (-0.0, "-0.0"),
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        ('ü"\n', '"ü\\"\\n"'),
        (b"\x00\xff", '"AP8="'),
        (Decimal("1.20"), '"1.20"'),
        (date(1, 2, 3), '"0001-02-03"'),
        (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00Z"'),
        (datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC), '"2026-01-01T00:00:00.000005Z"'),
        (datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), '"2026-01-01T00:00:00Z"'),
        (datetime(1880, 1, 1, 0, 53, 28, tzinfo=timezone(timedelta(seconds=3208))), '"1880-01-01T00:00:00Z"'),
        (datetime(2026, 1, 1), '"2026-01-01T00:00:00"'),
        ({"b": [1, (2, None)], "a": {}}, '{"b":[1,[2,null]],"a":{}}'),
        ({1: "a", 2: math.nan}, '[[1,"a"],[2,"NaN"]]'),
        ({date(2026, 1, 1): 1}, '[["2026-01-01",1]]'),
        ([2**70, datetime(2026, 1, 1, tzinfo=UTC)], '[1180591620717411303424,"2026-01-01T00:00:00Z"]'),
        (np.int64(5), "5"),
        (np.float64(0.5), "0.5"),
        (np.bool_(True), "true"),
        (Colour.RED, '"red"'),
        ({Colour.RED: np.str_("x")}, '{"red":"x"}'),
        (HTTPStatus.OK, "200"),
    ],
)
def test_every_value_has_one_text(value: Any, text: str) -> None:
    line = encode_row({"c": value, "at": datetime(2026, 1, 1, tzinfo=UTC)})
    assert b"\n" not in line
    written = json.loads(line)
    assert written["at"] == "2026-01-01T00:00:00Z"
    assert written["c"] == json.loads(text)
    assert type(written["c"]) is type(json.loads(text))
    assert repr(written["c"]) == repr(json.loads(text))


@pytest.mark.parametrize(
    "row",
    [{"c": object()}, {"c": {1, 2}}, {"c": "\ud800"}, {1: 2}, {"c": [{"x": object()}]},
     {"c": np.datetime64("2026-01-01")}, {"c": timedelta(1)}, {"c": 1j}],
)  # fmt: skip
def test_what_has_no_json_form_is_refused(row: dict[Any, Any]) -> None:
    with pytest.raises(InvalidArgument):
        encode_row(row)


def test_encoding_stops_at_a_depth() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="deeper than"):
        encode_row({"c": deep})


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(st.data())
def test_rows_round_trip_through_lines(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    rows = data.draw(rows_of(schema))
    decoded = [decode_row(encode_row(row), schema) for row in rows]
    assert same(to_rows(to_batch(decoded, schema, extra="forbid", topic="t")), rows)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(['":', " :", '\\":', "a:b", "\t:"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b", ":", '":', " :"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c:", '":', " :", "é"]), json_values, max_size=4),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : "), (",", "\t:"), (",", "\r:\n"), ("\n,\n", "\n:")]),
    st.booleans(),
)
def test_any_json_object_is_read_exactly(row: dict[str, Any], separators: tuple[str, str], ascii_only: bool) -> None:
    text = json.dumps(row, separators=separators, ensure_ascii=ascii_only)
    assert same(parse_object(text), json.loads(text))
    assert same(parse_object(text.encode()), row)


pairs_of_text = st.tuples(st.sampled_from("abc"), st.sampled_from(["1", '":"', '{"a":1}', '[{"x":1}]']))


@given(st.lists(pairs_of_text, min_size=1, max_size=5), st.sampled_from([":", " :", "\t: ", "\n:"]), st.booleans())
def test_a_repeated_key_is_always_found(pairs: list[tuple[str, str]], colon: str, nested: bool) -> None:
    text = "{" + ",".join(f'"{name}"{colon}{value}' for name, value in pairs) + "}"
    text = f'{{"outer":[1,{text}]}}' if nested else text
    names = [name for name, _ in pairs]
    if len(set(names)) == len(names):
        assert parse_object(text) == json.loads(text)
    else:
        with pytest.raises(InvalidArgument, match="twice"):
            parse_object(text)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ('{"a": 1, "\\u0061": 2}', "has the key 'a' twice"),
        ('{"x": {"a":1,"b":":","a" :2}}', "has the key 'a' twice"),
        ('{"a": 1', "not JSON at character 7"),
        ('{"a": tru}', "not JSON at character"),
        ('{"a": NaN}', "not JSON at character"),
        ('{"a": Infinity}', "not JSON at character"),
        ('{"a": 1e400}', "infinity"),
        ('{"a": 01}', "not JSON at character"),
        ("{'a': 1}", "not JSON at character 1"),
        ('{"a": 1} x', "not JSON at character 9"),
        ('{"a": 1}{"a": 2}', "not JSON at character 8"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": "\ud800"}', "lone surrogate at character 7"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7 (0xff)"),
        (b'\xff\xfe{\x00"\x00', "not UTF-8 at byte 0"),
        ("\ufeff\ufeff{}", "not JSON at character 0"),
        ("name,age", "line='name,age': is not JSON; a row is one JSON object, as in {"),
        (" hello", "is not JSON; a row is one JSON object"),
        ("", "is empty"),
        ("  \n", "is empty"),
        ("[1]", "is an array"),
        ("null", "is null"),
        ('"x"', "is a string"),
        ("5", "is a number"),
        ("true", "is true or false"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested deeper than 200"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON at character"),
        ('{"a": ' + "1" * 10_000 + "}", "not JSON at character 6"),
        (7, "not int"),
    ],
)
def test_malformed_lines_are_refused_with_the_place(line: str | bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_object(line)
    assert caught.value.argument == "line"
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_one_byte_order_mark_is_skipped() -> None:
    assert parse_object("\ufeff{}") == {}
    assert decode_row(b'\xef\xbb\xbf{"a": 1.10}', parse_ddl("a decimal(4, 2)")) == {"a": Decimal("1.10")}


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\ntu0123eE+-. abc', max_size=40))
def test_any_line_is_an_object_or_a_typed_error(line: bytes | str) -> None:
    try:
        row = parse_object(line)
    except InvalidArgument:
        return
    assert isinstance(row, dict)


def test_integers_beyond_64_bits_stay_integers() -> None:
    schema = parse_ddl("a bigint, d decimal(38, 0)")
    row = decode_row(
        '{"a": 18446744073709551616, "d": 18446744073709551617, "x": [-9223372036854775809], "f": 1e30}', schema
    )
    assert row == {"a": 2**64, "d": 2**64 + 1, "x": [-(2**63) - 1], "f": 1e30}
    assert type(row["a"]) is int
    assert type(row["f"]) is float


def test_numbers_in_decimal_columns_are_read_digit_by_digit() -> None:
    schema = parse_ddl("p decimal(30, 20), s struct<q: decimal(4, 2), r: double>, l array<decimal(4, 2)>, f double")
    row = decode_row(
        '{"p": 0.12345678901234567890, "s": {"q": 1.10, "r": 0.1}, "l": [1, 2.5, null], "f": 0.1, "unknown": 0.1}',
        schema,
    )
    assert row == {
        "p": Decimal("0.12345678901234567890"),
        "s": {"q": Decimal("1.10"), "r": 0.1},
        "l": [1, Decimal("2.5"), None],
        "f": 0.1,
        "unknown": 0.1,
    }
    assert type(row["s"]["r"]) is float


def test_what_does_not_look_encoded_is_left_for_the_batch_to_refuse() -> None:
    schema = parse_ddl("b binary, d double, m map<int, int>, s struct<b: binary>, l array<binary>")
    row = {"b": "not base64!", "d": "nan", "m": [[1, 2], [1, 3]], "s": "x", "l": {"a": 1}, "u": "NaN"}
    assert decode_row(json.dumps(row), schema) == row
    for strange in ([1, 2], "ab", 5, [[[1], 2]], [[1]]):
        assert decode_row(json.dumps({"m": strange}), schema) == {"m": strange}
    assert decode_row('{"b": "AP8", "l": ["AP8=", null], "d": "-Infinity"}', schema) == {
        "b": "AP8",  # base64 cut short
        "l": [b"\x00\xff", None],
        "d": -math.inf,
    }


def test_unknown_fields_and_nulls_stay_as_they_are() -> None:
    schema = parse_ddl("a binary")
    assert decode_row('{"a": null, "x": {"y": "AP8="}}', schema) == {"a": None, "x": {"y": "AP8="}}
    assert decode_row("{}", schema) == {}
