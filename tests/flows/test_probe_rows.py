"""Made-up rows: every type, the same each time, with the edges in them."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from headrace.flows.compiler.probe_rows import ROWS, edge_rows, plain_rows
from headrace.schema import TYPES, parse_ddl

META = [
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_arrived_at", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("_progress", pa.timestamp("us", "UTC")),
]
NESTED = "decimal(38, 10)", "decimal(1, 1)", "array<int>", "map<string, array<int>>", "struct<a: int, b: array<date>>"


@pytest.mark.parametrize("kind", [*TYPES, *NESTED])
def test_every_type_has_rows(kind: str) -> None:
    schema = pa.schema([*parse_ddl(f"x {kind}, y {kind} not null"), *META])
    for make in (edge_rows, plain_rows):
        table = make(schema)
        assert table.schema.equals(schema) and table.num_rows == ROWS
        table.validate(full=True)
        assert table.column("y").null_count == 0
        assert table.equals(make(schema)) or "nan" in str(table.to_pydict())
    assert edge_rows(schema).column("x").null_count > 0
    assert plain_rows(schema).column("x").null_count == 0


def test_the_edges_are_there() -> None:
    edges = edge_rows(parse_ddl("i int, s string, d double")).to_pydict()
    assert {0, -1, 2**31 - 1, -(2**31), None} <= set(edges["i"])
    assert {"", "ü", None} <= set(edges["s"])
    assert any(d is not None and math.isnan(d) for d in edges["d"])


def test_metadata_looks_like_a_log() -> None:
    table = edge_rows(pa.schema(META)).to_pylist()
    assert len({(row["_partition"], row["_offset"]) for row in table}) == ROWS
    assert [row["_progress"] for row in table[:2]] == [None, None]
    assert all(row["_progress"] <= row["_arrived_at"] for row in table[2:])
