"""Values as people type them: a column's text, in a CSV file, on a command line or in an address, to a value the column
takes. Owns which text stands for what."""

from __future__ import annotations

import math
import re
from typing import Any

import pyarrow as pa

from headrace import jsonrows
from headrace.errors import InvalidArgument

__all__ = ["as_text", "field_reader", "field_value"]


def as_text(text: str) -> str | None:
    return text or None


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    """What looks finite must be: 1e400 is not infinity."""
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError
    return value


def field_reader(column: pa.Field) -> Any:
    """Text to a value the topic takes. An empty field is null, but for strings, where it is the empty string."""
    t, arrow, name = pa.types, column.type, column.name

    if t.is_string(arrow):
        return str
    if t.is_integer(arrow):
        convert: Any = _whole_number
        what = "a whole number"
    elif t.is_floating(arrow):
        convert, what = _number, "a number"
    elif t.is_boolean(arrow):
        convert, what = _boolean, "true or false"
    elif t.is_decimal(arrow) or t.is_date(arrow) or t.is_timestamp(arrow):
        return as_text  # the topic reads these texts itself, and says what is wrong with them
    else:
        one, label = pa.schema([column]), jsonrows.encode_row({name: None}).decode().removesuffix(":null}")

        def nested(text: str) -> Any:
            if not text:
                return None
            value = f'"{text}"' if t.is_binary(arrow) else text
            return jsonrows.decode_row(f"{label}:{value}}}", one)[name]

        return nested

    def read(text: str) -> Any:
        if not text:
            return None
        try:
            if "_" in text:
                raise ValueError
            return convert(text)
        except ValueError:
            raise ValueError(f"column {name!r}: {text[:40]!r} is not {what}") from None

    return read


def field_value(column: pa.Field, text: str, *, argument: str = "key") -> Any:
    """A value as it is typed, by the column's type. No text is no value, and not null: an unset variable of a shell
    must not name the records without a key."""
    if not text and not pa.types.is_string(column.type):
        raise InvalidArgument(argument, text, f"is empty, and column {column.name!r} is not text")
    if pa.types.is_date(column.type):
        from datetime import date

        try:
            return date.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(argument, text, "is not a day, as in 2026-01-31") from None
    try:
        return field_reader(column)(text)
    except ValueError as error:
        raise InvalidArgument(argument, text, str(error)) from None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"
