"""Which row a change is of, as a text: two rows have the same one only if they have the same key."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.views.changes import row_texts
from headrace.views.values import INSTANT

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), [None, "", "%", "/", "%2F", "%25", "|", "a/b", "a", "b", "null"]),
    (pa.int64(), [None, 0, 1, -1, 2**63 - 1]),
    (pa.float64(), [None, 0.0, 1.5, float("inf"), float("nan")]),
    (pa.bool_(), [None, True, False]),
    (pa.decimal128(10, 2), [None, Decimal("1.10"), Decimal("1.11")]),
    (pa.binary(), [None, b"", b"\xff/", b"\xfe"]),
    (INSTANT, [None, 0, 1, -1]),
    (pa.list_(pa.string()), [None, [], ["a", "b"], ["a/b"], [None]]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_keys_that_differ_have_texts_that_differ(kind: pa.DataType, values: list[Any]) -> None:
    one, two = zip(*itertools.product(values, values), strict=True)
    rows = pa.table({"one": pa.array(one, kind), "two": pa.array(two, kind), "n": range(len(one))})
    texts = row_texts(rows, ("one", "two")).to_pylist()
    assert None not in texts and not any("|" in text for text in texts), "an id of a pair has it between two"
    assert len({*texts}) == len(values) ** 2
    again = row_texts(rows.take(pa.array(range(len(one))[::-1])), ("one", "two")).to_pylist()
    assert again == texts[::-1]


def test_a_view_of_one_row_has_one() -> None:
    assert row_texts(pa.table({"n": [1, 2]}), ()).to_pylist() == ["", ""]
