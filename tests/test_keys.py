from __future__ import annotations

import random
import zlib
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidArgument, InvalidSchema
from headrace.keys import (
    all_key_bytes,
    check_key_columns,
    key_bytes,
    key_counts,
    key_hash,
    key_hashes,
    partitions_of,
    split,
)
from headrace.schema import parse_ddl

# The published vectors: columns, key, its bytes, their crc32, the partition of four.
VECTORS: list[tuple[str, Any, str, int, int]] = [
    ("k string", "u1", "7531", 0x424F9F76, 2),
    ("k string", "", "", 0x00000000, 0),
    ("k string", None, "", 0x00000000, 0),
    ("k string", "123456789", "313233343536373839", 0xCBF43926, 2),  # the check value of every crc32 table
    ("k string", "größe", "6772c3b6c39f65", 0x5BD3A989, 1),
    ("k int", 7, "37", 0x6ABF4A82, 2),
    ("k bigint", -9223372036854775808, "2d39323233333732303336383534373735383038", 0xAB25130B, 3),
    ("k date", date(2026, 1, 31), "323032362d30312d3331", 0x6A42BFDA, 2),
    ("k boolean", True, "74727565", 0xFDFC4C8D, 1),
    ("k binary", b"\x00\xff", "00ff", 0x6CDBFD72, 2),
    ("k string, n int", ("u1", 7), "00000002" "7531" "00000001" "37", 0xF972095B, 3),
    ("k string, n int", (None, 7), "ffffffff" "00000001" "37", 0x5E596BB1, 1),
    ("k string, n int", ("", None), "00000000" "ffffffff", 0xBB99FF8A, 2),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "key", "hexed", "crc", "partition"), VECTORS)
def test_published_vectors(ddl: str, key: Any, hexed: str, crc: int, partition: int) -> None:
    schema = parse_ddl(ddl)
    data = key_bytes(key, schema, schema.names)
    assert data.hex() == hexed
    assert zlib.crc32(data) == crc
    row = key if isinstance(key, tuple) else (key,)
    batch = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema=schema)
    assert partitions_of(batch, schema.names, 4).tolist() == [partition] == [crc % 4]
    assert all_key_bytes(batch, schema.names) == [data]
    assert key_hashes(batch, schema.names) == [key_hash(data)]
    twice = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    assert key_counts(twice, schema.names) == {key_hash(data): 2}


texts = st.none() | st.text(max_size=12) | st.sampled_from(["", "é" * 40, "x" * 300, "x" * 63, "x" * 64, "x" * 65])
parts = {
    "s string": texts,
    "b binary": st.none() | st.binary(max_size=70),
    "i int": st.none() | st.integers(-(2**31), 2**31 - 1),
    "l bigint": st.none() | st.integers(-(2**63), 2**63 - 1),
    "t tinyint": st.none() | st.integers(-128, 127),
    "d date": st.none() | st.dates(),
    "o boolean": st.none() | st.booleans(),
}


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_partitions_in_bulk_are_zlibs(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(parts)), min_size=1, max_size=3, unique=True))
    schema = parse_ddl(", ".join(chosen))
    rows = data.draw(st.lists(st.tuples(*(parts[c] for c in chosen)), max_size=20))
    batch = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
    start = data.draw(st.integers(0, len(rows)))
    rows, batch = rows[start:], batch.slice(start)
    count = data.draw(st.sampled_from([1, 2, 3, 4, 7, 16, 1000]))
    keys = [key_bytes(row if len(chosen) > 1 else row[0], schema, schema.names) for row in rows]
    assert all_key_bytes(batch, schema.names) == keys
    assert partitions_of(batch, schema.names, count).tolist() == [zlib.crc32(key) % count for key in keys]


@pytest.mark.parametrize("columns", [["s"], ["b"], ["n"], ["s", "n", "b"]])
def test_thousands_of_keys_of_every_length(columns: list[str]) -> None:
    """Enough rows for every branch of the bulk crc: by eights, fours, twos and ones, and zlib for the longest."""
    draw = random.Random(7)
    lengths = [*range(40), *range(250, 262), 0, 0, 0, 8, 8, 8]
    rows = [
        {
            "s": None if draw.random() < 0.1 else "é"[: draw.randrange(2)] + "x" * draw.choice(lengths),
            "b": None if draw.random() < 0.1 else draw.randbytes(draw.choice(lengths)),
            "n": None if draw.random() < 0.1 else draw.randrange(-(10 ** draw.randrange(1, 19)), 10**18),
        }
        for _ in range(5000)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=parse_ddl("s string, b binary, n bigint")).slice(3, 4990)
    keys = all_key_bytes(batch, columns)
    assert partitions_of(batch, columns, 1009).tolist() == [zlib.crc32(key) % 1009 for key in keys]


def test_nulls_with_bytes_beneath_them_count_as_null() -> None:
    values = pa.array(["aa", "bb", "cc"])
    hidden = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *values.buffers()[1:]])  # 0b101
    batch = pa.record_batch({"k": hidden})
    assert partitions_of(batch, ["k"], 97).tolist() == [zlib.crc32(k) % 97 for k in (b"aa", b"", b"cc")]


def test_a_batch_without_buffers() -> None:
    schema = parse_ddl("k string")
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    assert partitions_of(empty, ["k"], 4).tolist() == []
    assert split(empty, partitions_of(empty, ["k"], 4), 4) == []
    nulls = pa.RecordBatch.from_arrays([pa.nulls(3, pa.string())], schema=schema)
    assert partitions_of(nulls, ["k"], 4).tolist() == [0, 0, 0]


def test_one_huge_key_among_small_ones_costs_its_bytes_only() -> None:
    keys = [f"k{i}" for i in range(1000)] + ["x" * 20_000_000]
    batch = pa.record_batch({"k": keys})
    assert partitions_of(batch, ["k"], 64).tolist() == [zlib.crc32(k.encode()) % 64 for k in keys]


@given(st.lists(st.integers(0, 6)))
def test_split_keeps_every_row_once_and_in_order(assignment: list[int]) -> None:
    batch = pa.record_batch({"n": pa.array(range(len(assignment)), pa.int64()), "p": pa.array(assignment, pa.int64())})
    pieces = split(batch, np.array(assignment, np.int64), 7)
    assert [p for p, _ in pieces] == sorted(set(assignment))
    for partition, piece in pieces:
        assert piece.column("n").to_pylist() == [i for i, p in enumerate(assignment) if p == partition]


def test_split_over_many_partitions() -> None:
    assignment = np.array([random.Random(1).randrange(70_000) for _ in range(500)] + [69_999])
    batch = pa.record_batch({"p": assignment})
    for partition, piece in split(batch, assignment, 70_000):
        assert set(piece.column("p").to_pylist()) == {partition}


def test_what_can_be_a_key() -> None:
    schema = parse_ddl("user string, ms int, at timestamp, d double, day date, ok boolean, raw binary, l array<int>")
    check_key_columns(schema, ["user"])
    check_key_columns(schema, ["user", "ms", "day", "ok", "raw"])
    with pytest.raises(InvalidArgument, match=r"'usr': is not a column. Did you mean 'user'\?"):
        check_key_columns(schema, ["usr"])
    with pytest.raises(InvalidArgument, match="twice"):
        check_key_columns(schema, ["user", "user"])
    with pytest.raises(InvalidArgument, match="sequence of column names"):
        check_key_columns(schema, "user")
    for name, shown in ("at", "timestamp"), ("d", "double"), ("l", "array<int>"):
        with pytest.raises(InvalidSchema, match=f"column '{name}' is {shown}; a key is string"):
            check_key_columns(schema, [name])


@pytest.mark.parametrize(
    ("ddl", "key", "reason"),
    [
        ("k string", 7, "not int"), ("k string", b"x", "not bytes"), ("k string", ("u",), "not tuple"),
        ("k string", "\ud800", "surrogate"), ("k int", "7", "not str"), ("k int", True, "not bool"),
        ("k int", 7.0, "not float"),
        ("k tinyint", 128, "-128..127"), ("k date", "2026-01-01", "not str"),
        ("k date", datetime(2026, 1, 1), "not datetime"),
        ("k boolean", 1, "not int"), ("k binary", "x", "not str"), ("k string, n int", "u", "2 parts"),
        ("k string, n int", ("u",), "2 parts"), ("k string, n int", ("u", "7"), "column 'n' is int, not str"),
    ],
)  # fmt: skip
def test_a_key_of_the_wrong_type_is_refused(ddl: str, key: Any, reason: str) -> None:
    schema = parse_ddl(ddl)
    with pytest.raises(InvalidArgument) as caught:
        key_bytes(key, schema, schema.names)
    assert reason in str(caught.value)


def test_numpy_keys_are_welcome() -> None:
    schema = parse_ddl("k string, n bigint, o boolean")
    assert key_bytes((np.str_("a"), np.int64(1), np.bool_(True)), schema, schema.names) == key_bytes(
        ("a", 1, True), schema, schema.names
    )


def test_a_topic_without_a_key_has_no_key_bytes() -> None:
    with pytest.raises(InvalidArgument, match="no key"):
        key_bytes("x", parse_ddl("k string"), [])


def test_hashes_are_blake2b_of_sixteen_bytes() -> None:
    assert key_hash(b"").hex() == "cae66941d9efbd404e4d88758ea67670"  # b2sum -l 128 /dev/null
