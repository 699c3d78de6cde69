"""What encodings of columns in Debezium's events have in common, whatever the database: schemas in Kafka Connect's
terms, decimals, masks, and values that have no form. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from headrace.cdc.choice import masked
from headrace.cdc.envelopes.writing import Encoded
from headrace.cdc.rows import Read
from headrace.cdc.tables import NotHeld

__all__ = [
    "DATA",
    "DECIMAL",
    "POINT",
    "SNAPSHOT",
    "TIME",
    "Found",
    "as_texts",
    "base64_of",
    "checked",
    "masking",
    "plain",
    "said",
    "semantic",
    "unscaled",
]

DATA, TIME = "io.debezium.data.", "io.debezium.time."
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_EXACT: Final = Context(prec=200_000)
Found = tuple[dict[str, Any], Callable[[Any], Any]]
"""A type in Kafka Connect's terms, and how values are encoded."""


def semantic(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    """A type with a meaning; `__` in the name of a parameter is a dot."""
    found: dict[str, Any] = {"type": kind, "name": name, "version": 1}
    if parameters:
        found["parameters"] = {each.replace("__", "."): value for each, value in parameters.items()}
    return found


def plain(kind: str, convert: Callable[[Any], Any]) -> Found:
    return {"type": kind}, convert


def said(kind: str, name: str, optional: bool = True) -> dict[str, Any]:
    """A field of a struct."""
    return {"type": kind, "optional": optional, "field": name}


SNAPSHOT: Final = {
    **said("string", "snapshot"),
    "name": f"{DATA}Enum",
    "version": 1,
    "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
    "default": "false",
}
"""The field of a source that says whether an event is of a snapshot."""


POINT: Final = {
    "type": "struct",
    "fields": [said("double", "x", False), said("double", "y", False), said("bytes", "wkb"), said("int32", "srid")],
    "name": f"{DATA}geometry.Point",
    "version": 1,
    "doc": "Geometry (POINT)",
}


def base64_of(number: int) -> str:
    """As few bytes as it has, the first with the sign."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def unscaled(number: Decimal, scale: int) -> str:
    if not number.is_finite():
        raise NotHeld("a numeric is no number")
    return base64_of(int(number.scaleb(scale, _EXACT)))


def checked(name: str, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What cannot be encoded is NotHeld; `name`: of the column."""

    def read(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, ArithmeticError, KeyError, TypeError) as error:
            if isinstance(error, NotHeld):
                raise
            raise NotHeld(f"a value of {name!r} has no form in Debezium's events") from None

    return read


class _Masked(str):
    """A value that is masked already: one of the topic."""

    __slots__ = ()


def masking(name: str, how: str, secret: bytes, read: Read) -> Encoded:
    """A masked column. `read`: its values as the topic would have them."""

    def mask(value: Any) -> Any:
        return str(value) if isinstance(value, _Masked) else masked(read([value]), how, secret)[0].as_py()

    return Encoded(name, {"type": "string"}, mask, lambda value: None if value is None else _Masked(value))


def as_texts(values: Any) -> pa.Array:
    """Bytes of texts, or texts."""
    return pa.array([each.decode() if isinstance(each, bytes) else str(each) for each in values])
