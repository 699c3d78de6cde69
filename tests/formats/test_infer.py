"""Schemas read off data: a table of values and types."""

from typing import Any

import pytest

from headrace.errors import InvalidSchema
from headrace.formats.infer import schema_of_fields, schema_of_rows
from headrace.schema import to_ddl


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ([True, None], "boolean"),
        ([1, -(2**63)], "bigint"),
        ([1, 2.5], "double"),
        (["a", ""], "string"),
        (["2026-01-01T00:00:00Z", "2026-01-01 00:00+02:00"], "timestamp"),
        (["2026-01-01T00:00:00Z", "2026-01-01T00:00:00"], "string"),  # one without a zone: no instant
        (["2026-01-01", "2024-02-29"], "date"),
        (["2026-01-01", "2026-02-30"], "string"),  # no such day
        (["2026-01-01", "2026-01-01T00:00:00Z"], "string"),
        ([[1, None], []], "array<bigint>"),
        ([{"x": 1}, {"y": [{"z": "s"}]}], "struct<x: bigint, y: array<struct<z: string>>>"),
    ],
)
def test_json(values: list[Any], ddl: str) -> None:
    assert to_ddl(schema_of_rows({"c": value} for value in values)) == f"c {ddl}"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([None], "'c' is always null"),
        ([1, "a"], "'c' is bigint and string at once"),
        ([1, True], "'c' is bigint and boolean at once"),
        ([{"x": 1}, 1], "'c' is bigint and object at once"),
        ([[1], {"x": 1}], "'c' is array and object at once"),
        ([[]], "'c[]' is always null"),
        ([{}], "'c' is always an empty object"),
        ([{"x": None}], "'c.x' is always null"),
        ([2**63], "integers beyond 64 bits"),
    ],
)
def test_json_that_could_be_this_or_that(values: list[Any], why: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema_of_rows({"c": value} for value in values)
    assert why in caught.value.why
    assert "headrace topics create" in caught.value.why


def test_no_records() -> None:
    with pytest.raises(InvalidSchema, match="no records"):
        schema_of_rows([])


@pytest.mark.parametrize(
    ("fields", "ddl"),
    [
        (["1", "-2", ""], "bigint"),
        (["1", "2.5"], "double"),
        (["1e5", "-.5"], "double"),
        (["NaN", "1"], "double"),
        (["007", "1"], "string"),  # a code, not an amount
        (["9223372036854775808"], "string"),
        (["true", "FALSE"], "boolean"),
        (["2026-01-01"], "date"),
        (["2026-01-01T00:00:00Z"], "timestamp"),
        (["1", "x"], "string"),
        (["-", "+"], "string"),
    ],
)
def test_csv(fields: list[str], ddl: str) -> None:
    assert to_ddl(schema_of_fields(["c"], [[text] for text in fields])) == f"c {ddl}"
