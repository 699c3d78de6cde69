"""Hypothesis strategies for schemas, and for the rows a schema takes, in their canonical Python form."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

NAMES = ["a", "b", "user", "größe", "x y", "at"]
key_types = st.sampled_from(
    [
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.date32(),
        pa.binary(),
        pa.bool_(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(6, 2),
    ]
)
plain_types = st.one_of(
    key_types,
    st.sampled_from([pa.int8(), pa.int16(), pa.float32(), pa.float64(), pa.timestamp("us")]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)


def _fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*(st.builds(pa.field, st.just(n), types, st.booleans()) for n in chosen)).map(list)
    )


types = st.recursive(
    plain_types,
    lambda inner: st.one_of(inner.map(pa.list_), st.builds(pa.map_, key_types, inner), _fields(inner).map(pa.struct)),
    max_leaves=4,
)
schemas = _fields(types).map(pa.schema)


def rows_of(schema: pa.Schema, max_size: int = 4) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({f.name: values(f.type, f.nullable) for f in schema}), max_size=max_size)


def values(arrow: pa.DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    strategy = _values(arrow)
    return st.none() | strategy if nullable else strategy


def _values(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    t = pa.types
    if t.is_string(arrow):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    if t.is_binary(arrow):
        return st.binary(max_size=6)
    if t.is_boolean(arrow):
        return st.booleans()
    if t.is_integer(arrow):
        return st.integers(-(2 ** (arrow.bit_width - 1)), 2 ** (arrow.bit_width - 1) - 1)
    if t.is_float32(arrow):
        return st.floats(width=32).map(lambda x: math.nan if math.isnan(x) else float(np.float32(x)))
    if t.is_float64(arrow):
        return st.floats().map(lambda x: math.nan if math.isnan(x) else x)
    if t.is_decimal(arrow):
        limit = 10**arrow.precision - 1
        return st.integers(-limit, limit).map(lambda n: _decimal(n, arrow.scale))
    if t.is_date(arrow):
        return st.dates(date.min, date.max)
    if t.is_timestamp(arrow):
        return st.datetimes(datetime.min, datetime.max, timezones=st.just(UTC if arrow.tz else None)).map(
            lambda when: when.replace(fold=0)
        )
    if t.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return st.fixed_dictionaries({f.name: values(f.type, f.nullable) for f in fields})
    if t.is_map(arrow):
        return st.dictionaries(values(arrow.key_type, False), values(arrow.item_type), max_size=3)
    assert t.is_list(arrow), arrow
    return st.lists(values(arrow.value_type), max_size=3)


def _decimal(digits: int, scale: int) -> Decimal:
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))
