from __future__ import annotations

import json
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import IncompatibleSchema, InvalidSchema
from headrace.schema import (
    evolve,
    parse_ddl,
    read_as,
    schema_bytes,
    schema_from,
    schema_from_bytes,
    storage_schema,
    to_ddl,
)

UTC_US = pa.timestamp("us", tz="UTC")


# -- DDL text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "arrow"),
    [
        ("a boolean", pa.bool_()), ("a bool", pa.bool_()), ("a tinyint", pa.int8()), ("a byte", pa.int8()),
        ("a smallint", pa.int16()), ("a short", pa.int16()), ("a int", pa.int32()), ("a INTEGER", pa.int32()),
        ("a bigint", pa.int64()), ("a long", pa.int64()), ("a float", pa.float32()), ("a real", pa.float32()),
        ("a double", pa.float64()), ("a double precision", pa.float64()), ("a string", pa.string()),
        ("a binary", pa.binary()), ("a date", pa.date32()), ("a timestamp", UTC_US), ("a timestamp_ltz", UTC_US),
        ("a timestamp_ntz", pa.timestamp("us")), ("a decimal", pa.decimal128(10, 0)), ("a dec(5)", pa.decimal128(5, 0)),
        ("a numeric(38, 38)", pa.decimal128(38, 38)), ("a: int", pa.int32()), ("a:int", pa.int32()),
        ("`a` int COMMENT 'it''s, \\' a > b'", pa.int32()), ("a int NULL", pa.int32()),
        ("a array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("a map<string, array<int>>", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("a struct<x: int NOT NULL COMMENT \"x\", y string>",
         pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.string())])),
        ("struct<a:bigint>", pa.int64()),
    ],
)  # fmt: skip
def test_ddl_types(ddl: str, arrow: pa.DataType) -> None:
    assert parse_ddl(ddl) == pa.schema([pa.field("a", arrow)])


def test_ddl_columns_in_order_with_nullability_and_quoted_names() -> None:
    schema = parse_ddl(
        "user string,\n  `page `` url` string,\tat timestamp NOT NULL, größe int, 2nd int, struct int, not int"
    )
    assert schema.names == ["user", "page ` url", "at", "größe", "2nd", "struct", "not"]
    assert [field.nullable for field in schema] == [True, True, False, True, True, True, True]
    assert parse_ddl(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "position", "reason"),
    [
        ("user strng", 5, "unknown type 'strng'. Did you mean 'string'?"),
        ("a int, b timstamp", 9, "Did you mean 'timestamp'?"),
        ("a quaternion", 2, "Types are boolean"),
        ("", 0, "at least one column"),
        ("   ", 0, "at least one column"),
        ("a", 1, "expected a type, found the end"),
        ("a int,", 6, "expected a column name, found the end"),
        ("a int,, b int", 6, "expected a column name, found ','"),
        ("a int b string", 6, "expected ',' after column 'a', found 'b'"),
        ("a int, A string", 7, "are the same name to Spark"),
        ("a int, a string", 7, "is there twice"),
        ("a struct<x: int, X: int>", 17, "are the same name to Spark"),
        ("_offset int", 0, "reserved for metadata"),
        ("`` int", 0, "cannot be empty"),
        ("`a\nb` int", 0, "cannot be printed"),
        ("`a int", 0, "unclosed quote"),
        ("a-b int", 1, "`backticks`"),
        ("a varchar(10)", 2, "use string"),
        ("a char(10)", 2, "use string"),
        ("a interval", 2, "use bigint"),
        ("a variant", 2, "use string (JSON text) or a struct"),
        ("a string(10)", 8, "takes no length"),
        ("a array<int", 11, "expected '>'"),
        ("a array", 7, "expected '<'"),
        ("a map<string>", 12, "expected ','"),
        ("a map<double, int>", 6, "a map's key cannot be double"),
        ("a map<array<int>, int>", 6, "a map's key cannot be array<int>"),
        ("a struct<>", 9, "at least one field"),
        ("a decimal(39, 0)", 9, "1 to 38 digits"),
        ("a decimal(5, 6)", 9, "behind the point"),
        ("a decimal(x)", 10, "expected a number"),
        ("a decimal(5", 11, "expected ')'"),
        ("a int NOT", 6, "found 'NOT'"),
        ("a int NOT NULL DEFAULT 3", 15, "DEFAULT is not supported"),
        ("a string COLLATE UTF8_LCASE", 9, "COLLATE is not supported"),
        ("a int COMMENT x", 14, "expected a quoted comment"),
        ("a int) ", 5, "expected ',' or the end"),
        ("a " + "array<" * 33 + "int" + ">" * 33, 2 + 6 * 32, "deeper than 32"),
        (", ".join(f"c{i} int" for i in range(5001)), None, "more than 5000 fields"),
        ("a int" + " " * 200_000, 200_000, "longer than"),
    ],
)
def test_ddl_that_cannot_be_read_says_where_and_why(ddl: str, position: int | None, reason: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_ddl(ddl)
    assert reason in caught.value.why
    assert position is None or caught.value.position == position
    assert len(str(caught.value)) < 1000


@given(st.text(max_size=60) | st.text(alphabet="ab `<>(),:int'struct arymp10", max_size=60))
def test_any_text_is_a_schema_or_a_typed_error(text: str) -> None:
    try:
        schema = parse_ddl(text)
    except InvalidSchema:
        return
    assert parse_ddl(to_ddl(schema)) == schema


# -- any schema ------------------------------------------------------------------------------------

names = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf", "Co", "Cn", "Zs", "Zl", "Zp"]), min_size=1, max_size=8
)
key_types = st.sampled_from([pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.binary(), pa.bool_(), UTC_US])
plain_types = st.one_of(
    key_types,
    st.sampled_from([pa.int8(), pa.int16(), pa.float32(), pa.float64(), pa.timestamp("us")]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)


def _fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    return st.lists(
        st.builds(pa.field, names, types, st.booleans()), min_size=1, max_size=4, unique_by=lambda f: f.name.lower()
    )


types = st.recursive(
    plain_types,
    lambda inner: st.one_of(inner.map(pa.list_), st.builds(pa.map_, key_types, inner), _fields(inner).map(pa.struct)),
    max_leaves=6,
)
schemas = _fields(types).filter(lambda fields: not any(f.name.startswith("_") for f in fields)).map(pa.schema)


@given(schemas)
def test_every_schema_round_trips_through_text_and_bytes(schema: pa.Schema) -> None:
    assert parse_ddl(to_ddl(schema)) == schema
    assert schema_from(schema) == schema
    assert schema_from_bytes(schema_bytes(schema)) == schema
    stored = storage_schema(schema, "keep")
    assert schema_from_bytes(schema_bytes(stored)) == stored


def test_arrow_types_become_the_canonical_ones() -> None:
    given_types = [
        (pa.large_string(), pa.string()), (pa.string_view(), pa.string()), (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()), (pa.binary(16), pa.binary()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())), (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()), (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
        (pa.timestamp("ns", "Europe/Berlin"), UTC_US), (pa.timestamp("s"), pa.timestamp("us")),
        (pa.uint8(), pa.int16()), (pa.uint16(), pa.int32()), (pa.uint32(), pa.int64()), (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()), (pa.decimal256(38, 2), pa.decimal128(38, 2)),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (pa.list_(pa.field("x", pa.int8(), nullable=False)), pa.list_(pa.int8())),
    ]  # fmt: skip
    given = pa.schema(
        [pa.field(f"c{i}", a, metadata={"k": "v"}) for i, (a, _) in enumerate(given_types)], metadata={"m": "n"}
    )
    got = schema_from(given)
    assert got.equals(pa.schema([pa.field(f"c{i}", b) for i, (_, b) in enumerate(given_types)]), check_metadata=True)


@pytest.mark.parametrize(
    ("arrow", "instead"),
    [
        (pa.uint64(), "decimal128(20, 0)"), (pa.time32("s"), "use string"), (pa.time64("us"), "use string"),
        (pa.duration("us"), "int64"), (pa.month_day_nano_interval(), "int64"), (pa.null(), "needs a type"),
        (pa.decimal256(40, 2), "at most 38 digits"), (pa.decimal128(5, -2), "scale between"),
        (pa.dense_union([pa.field("a", pa.int8())]), "struct"), (pa.uuid(), "storage type"),
        (pa.struct([]), "at least one field"),
        (pa.struct([("deep", pa.uint64())]), "'x.deep'"), (pa.list_(pa.uint64()), "'x[]'"),
        (pa.map_(pa.float64(), pa.int8()), "a map's key"),
    ],
)  # fmt: skip
def test_arrow_types_without_a_spark_type_are_refused_with_what_to_use(arrow: pa.DataType, instead: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema_from(pa.schema([("x", arrow)]))
    assert instead in caught.value.why
    assert "'x" in caught.value.why


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("a", pa.int8()), ("A", pa.int8())]),
        pa.schema([("_progress", pa.int8())]),
        7,
        None,
        ["a int"],
    ],
)
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(InvalidSchema):
        schema_from(schema)


class SparkSchema:
    """What headrace asks of a pyspark StructType: its JSON."""

    def __init__(self, text: str) -> None:
        self.text = text

    def json(self) -> str:
        return self.text


def spark(*fields: tuple[str, object, bool]) -> SparkSchema:
    rows = [{"name": n, "type": t, "nullable": null, "metadata": {"comment": "c"}} for n, t, null in fields]
    return SparkSchema(json.dumps({"type": "struct", "fields": rows}))


def test_a_spark_struct_type_by_its_json() -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]}
    schema = schema_from(
        spark(
            ("user", "string", False), ("ms", "integer", True), ("at", "timestamp", True), ("n", "timestamp_ntz", True),
            ("d", "decimal(10,2)", True), ("b", "byte", True), ("s", inner, True),
            ("l", {"type": "array", "elementType": inner, "containsNull": False}, True),
            ("m", {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}, True),
        )
    )  # fmt: skip
    assert to_ddl(schema) == (
        "user string NOT NULL, ms int, at timestamp, n timestamp_ntz, d decimal(10, 2), b tinyint, "
        "s struct<x: bigint NOT NULL>, l array<struct<x: bigint NOT NULL>>, m map<string, double>"
    )


@pytest.mark.parametrize(
    "value",
    [
        SparkSchema("{"), SparkSchema("[]"), SparkSchema('"integer"'), SparkSchema('{"type": "struct"}'),
        SparkSchema('{"type": "struct", "fields": [{"name": "a"}]}'), SparkSchema("[" * 100_000),
        spark(("a", "void", True)),
        spark(("a", "interval day to second", True)), spark(("a", {"type": "udt", "class": "x"}, True)),
        spark(("_a", "long", True)),
        spark(("a", "variant", True)), spark(("a", "int, b int", True)), spark(("a", "array<int>", True)),
    ],
)  # fmt: skip
def test_spark_types_headrace_does_not_have_are_refused(value: SparkSchema) -> None:
    with pytest.raises(InvalidSchema):
        schema_from(value)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_schema_bytes_are_a_typed_error_or_a_schema(data: st.DataObject) -> None:
    good = bytearray(schema_bytes(parse_ddl("a int, s struct<x: string NOT NULL>, d decimal(5, 2), t timestamp")))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    del good[data.draw(st.integers(0, len(good))) :]
    with suppress(InvalidSchema):
        schema_bytes(schema_from_bytes(bytes(good)))


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\0" * 5_000_000])
def test_garbage_is_no_schema(data: bytes) -> None:
    with pytest.raises(InvalidSchema):
        schema_from_bytes(data)


def test_extra_is_stored_last_and_nullable() -> None:
    schema = parse_ddl("a int")
    assert storage_schema(schema, "forbid") == schema
    assert storage_schema(schema, "keep") == pa.schema([("a", pa.int32()), ("_extra", pa.string())])


# -- evolution -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("a int", "a int, b string", "a int, b string"),
        ("a int, b int", "c string, b int, a int", "a int, b int, c string"),  # the old order, then what is new
        ("a tinyint", "a smallint", "a smallint"),
        ("a tinyint", "a bigint", "a bigint"),
        ("a smallint", "a float", "a float"),  # 32,767 < 2**24
        ("a int", "a bigint", "a bigint"),
        ("a int", "a double", "a double"),  # 2**31 < 2**53
        ("a float", "a double", "a double"),
        ("a decimal(5, 2)", "a decimal(7, 3)", "a decimal(7, 3)"),  # 3 + 2 digits fit into 4 + 3
        ("a int", "a decimal(12, 2)", "a decimal(12, 2)"),  # 10 digits before the point
        ("a int NOT NULL", "a int", "a int"),
        ("a struct<x: int>", "a struct<y: string, x: bigint>", "a struct<x: bigint, y: string>"),
        ("a array<struct<x: int NOT NULL>>", "a array<struct<x: int, y: date>>", "a array<struct<x: int, y: date>>"),
        ("a map<string, int>", "a map<string, bigint>", "a map<string, bigint>"),
    ],
)
def test_compatible_changes(old: str, new: str, result: str) -> None:
    assert evolve(parse_ddl(old), parse_ddl(new)) == parse_ddl(result)


@pytest.mark.parametrize(
    ("old", "new", "column", "reason"),
    [
        ("a int, b int", "a int", "b", "missing"),
        ("user int", "User int", "user", "it is called 'User'"),
        ("a int", "a int, A int", None, "same name"),
        ("a int", "a int, b int NOT NULL", "b", "leave NOT NULL out"),
        ("a int", "a int NOT NULL", "a", "may hold null"),
        ("a bigint", "a int", "a", "bigint cannot become int"),
        ("a bigint", "a double", "a", "bigint cannot become double"),  # 2**53 + 1
        ("a int", "a float", "a", "int cannot become float"),  # 2**24 + 1
        ("a int", "a decimal(11, 2)", "a", "int cannot become decimal(11, 2)"),  # 9 digits before the point
        ("a double", "a float", "a", "double cannot become float"),
        ("a decimal(5, 2)", "a decimal(6, 3)", None, None),
        ("a decimal(5, 2)", "a decimal(5, 3)", "a", "fewer digits"),
        ("a decimal(5, 2)", "a decimal(9, 1)", "a", "fewer digits"),
        ("a date", "a timestamp", "a", "date cannot become timestamp"),
        ("a timestamp", "a timestamp_ntz", "a", "timestamp cannot become timestamp_ntz"),
        ("a int", "a string", "a", "int cannot become string"),
        ("a string", "a binary", "a", "string cannot become binary"),
        ("a struct<x: int, y: int>", "a struct<x: int>", "a.y", "missing"),
        ("a struct<x: int>", "a struct<x: int, y: int NOT NULL>", "a.y", "leave NOT NULL out"),
        ("a struct<x: bigint>", "a struct<x: int>", "a.x", "bigint cannot become int"),
        ("a array<struct<x: bigint>>", "a array<struct<x: int>>", "a[].x", "bigint cannot become int"),
        ("a map<string, bigint>", "a map<string, int>", "a.value", "bigint cannot become int"),
        ("a map<int, int>", "a map<bigint, int>", "a.key", "key is fixed"),
        ("a int", "a array<int>", "a", "int cannot become array<int>"),
    ],
)
def test_incompatible_changes_name_the_column(old: str, new: str, column: str | None, reason: str | None) -> None:
    if reason is None:
        evolve(parse_ddl(old), parse_ddl(new))
        return
    with pytest.raises((IncompatibleSchema, InvalidSchema)) as caught:
        evolve(parse_ddl(old), parse_ddl(new))
    assert reason in caught.value.why
    if column is not None:
        assert isinstance(caught.value, IncompatibleSchema)
        assert caught.value.column == column
        assert repr(column) in str(caught.value)


def test_keys_and_event_time_keep_their_type() -> None:
    old, new = parse_ddl("id int NOT NULL, n int"), parse_ddl("id bigint, n bigint")
    assert evolve(old, new) == new
    with pytest.raises(IncompatibleSchema, match="whose type int is fixed"):
        evolve(old, new, frozen=["id"])
    assert evolve(old, parse_ddl("id int, n bigint"), frozen=["id"]) == parse_ddl("id int, n bigint")


def test_old_batches_are_read_through_the_newest_schema() -> None:
    old = parse_ddl("a int NOT NULL, s struct<x: int, l: array<struct<z: float>>>, m map<string, int>, d decimal(5, 2)")
    new = parse_ddl(
        "a double, s struct<x: bigint, l: array<struct<z: double, q: string>>, w: date>, m map<string, bigint>, "
        "d decimal(8, 3), b string"
    )
    schema = evolve(old, new)
    rows = [
        {"a": 1, "s": {"x": 1, "l": [{"z": 0.5}, None]}, "m": [("k", 1)], "d": None},
        {"a": 2, "s": None, "m": None, "d": None},
        {"a": 3, "s": {"x": None, "l": None}, "m": [], "d": None},
        {"a": 4, "s": {"x": 4, "l": []}, "m": [("k", None), ("j", 2)], "d": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=old)
    expected = [
        {"a": 1.0, "s": {"x": 1, "l": [{"z": 0.5, "q": None}, None], "w": None}, "m": [("k", 1)], "d": None, "b": None},
        {"a": 2.0, "s": None, "m": None, "d": None, "b": None},
        {"a": 3.0, "s": {"x": None, "l": None, "w": None}, "m": [], "d": None, "b": None},
        {"a": 4.0, "s": {"x": 4, "l": [], "w": None}, "m": [("k", None), ("j", 2)], "d": None, "b": None},
    ]
    for start in range(5):
        for length in range(5 - start):
            got = read_as(batch.slice(start, length), schema)
            got.validate(full=True)
            assert got.schema == schema
            assert got.to_pylist() == expected[start : start + length]


def test_reading_as_the_same_schema_copies_nothing() -> None:
    schema = parse_ddl("a int, b string")
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]}, schema=schema)
    assert read_as(batch, schema) is batch
    more = read_as(batch, parse_ddl("a int, b string, c date"))
    assert more.column("b").buffers()[2].address == batch.column("b").buffers()[2].address
    assert read_as(batch, parse_ddl("b string")).to_pylist() == [{"b": "x"}]  # some columns of it


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_evolves_can_be_read(data: st.DataObject) -> None:
    old = data.draw(schemas)
    new = data.draw(schemas)
    try:
        schema = evolve(old, new)
    except InvalidSchema:
        added = [f for f in new if f.nullable and f.name.lower() not in {n.lower() for n in old.names}]
        schema = evolve(old, pa.schema([*added, *old]))
    batch = pa.RecordBatch.from_arrays(
        [pa.nulls(3, f.type) for f in old], schema=pa.schema([f.with_nullable(True) for f in old])
    )
    got = read_as(batch, schema)
    got.validate(full=True)
    assert got.schema == schema
