"""SQLite's types as types of topics. A column there only prefers a type; its values have types of their own. So a
column's declared type says what its topic has, and a value of another type is none that the topic can hold. Pure.

Columns without a type, and those whose type SQLite takes for NUMERIC (DECIMAL, DATE, …), are text here: numbers as
Python writes them, texts as they are. A text that could be taken for a number, and a BLOB, are SQL literals there:
different values stay different."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from headrace.cdc.rows import Read
from headrace.cdc.tables import Column, NotHeld

__all__ = ["HOME_SCHEMA", "kind_of", "plain", "text_of"]

HOME_SCHEMA: Final = "main"
_LITERAL: Final = re.compile(r"'.*|[xX]'.*|-?(inf|nan|\d+(\.\d+)?(e[+-]?\d+)?)", re.DOTALL)


def kind_of(declared: str) -> pa.DataType:
    """By SQLite's own rules of affinity, in their order; BOOLEAN it has not."""
    name = declared.upper()
    if "INT" in name:
        return pa.int64()
    if "CHAR" in name or "CLOB" in name or "TEXT" in name:
        return pa.string()
    if "BLOB" in name:
        return pa.binary()
    if "REAL" in name or "FLOA" in name or "DOUB" in name:
        return pa.float64()
    if name in ("BOOL", "BOOLEAN"):
        return pa.bool_()
    return pa.null()  # none of these: text that tells values of different types apart


_HELD: Final[dict[pa.DataType, tuple[type, ...]]] = {
    pa.int64(): (int,),
    pa.string(): (str,),
    pa.binary(): (bytes,),
    pa.float64(): (float, int),
    pa.bool_(): (int,),
}
_SAID: Final = {int: "an INTEGER", float: "a REAL", str: "a TEXT", bytes: "a BLOB"}


def plain(column: Column, in_key: bool) -> tuple[pa.DataType, Read]:
    """The type of a column here, and how its values are read."""
    kind = kind_of(str(column.type))
    if kind == pa.null() or (in_key and kind == pa.float64()):
        return pa.string(), partial(_texts, column.name, in_key)
    return kind, partial(_typed, column.name, in_key, kind, _HELD[kind])


def _refuse_null(name: str, in_key: bool, kinds: set[type]) -> None:
    if in_key and type(None) in kinds:
        raise NotHeld(f"a row has NULL in {name!r}, which is of the key")


def _typed(name: str, in_key: bool, kind: pa.DataType, held: tuple[type, ...], values: Sequence[Any]) -> pa.Array:
    kinds = set(map(type, values))
    _refuse_null(name, in_key, kinds)
    if other := kinds.difference(held, (type(None),)):
        raise NotHeld(f"a value of {name!r} is {_SAID[other.pop()]}, which its type does not say")
    if kind == pa.bool_():
        if not set(values) <= {0, 1, None}:
            raise NotHeld(f"a value of {name!r} is neither 0 nor 1")
        return pa.array([None if each is None else each == 1 for each in values], kind)
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        raise NotHeld(f"a text of {name!r} is no UTF-8") from None
    except pa.ArrowInvalid:
        raise NotHeld(f"a value of {name!r} is no {kind}") from None


def _texts(name: str, in_key: bool, values: Sequence[Any]) -> pa.Array:
    _refuse_null(name, in_key, set(map(type, values)))
    try:
        return pa.array([None if each is None else text_of(each) for each in values], pa.string())
    except UnicodeEncodeError:
        raise NotHeld(f"a text of {name!r} is no UTF-8") from None


def text_of(value: Any) -> str:
    """A value as text: different values are different texts."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'" if _LITERAL.fullmatch(value) else value
    return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else repr(value)
