"""Random queries and records, and what each query finds, by brute force: with nothing of `headrace.search`."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.schema import parse_ddl

SCHEMA = parse_ddl("title string, body string, sku string, price double, n bigint, ok boolean, at timestamp")
TEXT = ["title", "body"]
WORDS = ["heat", "heater", "heating", "pump", "house", "solar", "used", "straße", "é", "the"]
Asked = tuple[Any, ...]
ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def record(dice: random.Random) -> dict[str, Any]:
    def text(most: int) -> str | None:
        if dice.random() < 0.1:
            return None
        some = [
            dice.choice([str.lower, str.upper, str.title])(dice.choice(WORDS)) for _ in range(dice.randint(0, most))
        ]
        return "".join(word + dice.choice([" ", "-", ", ", " … "]) for word in some)

    return {
        "title": text(4),
        "body": text(8),
        "sku": dice.choice([None, "A1", "A12", "B1", "a1", "A1 b"]),
        "price": dice.choice([None, 0.0, -0.0, -1.5, 1.0, 2.5, 99.99, 1e9, float("inf"), float("nan")]),
        "n": dice.choice([None, 0, 1, -1, 2**53 + 1, -(2**62)]),
        "ok": dice.choice([None, True, False]),
        "at": dice.choice([None, *(ZERO + timedelta(days=day) for day in (-9, 0, 1, 40))]),
    }


def query(dice: random.Random, depth: int = 3) -> Asked:
    if depth and dice.random() < 0.6:
        kind = dice.choice(["and", "and", "or", "not"])
        if kind == "not":
            return "not", query(dice, depth - 1)
        return kind, *(query(dice, depth - 1) for _ in range(dice.randint(2, 3)))
    field = dice.choice([None, "title", "body"])
    match dice.randint(0, 8):
        case 0 | 1 | 2:
            return "phrase", field, (dice.choice(WORDS),), False
        case 3:
            return "phrase", field, tuple(dice.choice(WORDS) for _ in range(2)), dice.random() < 0.3
        case 4:
            return "phrase", field, (dice.choice(["he", "heat", "pu", "hou", "zz"]),), True
        case 5:
            return "value", "sku", dice.choice(["A1", "A12", "a1", "A1 b", "C"]), dice.random() < 0.3
        case 6:
            name, values = dice.choice(list(VALUES.items()))
            return "compare", name, dice.choice(["<", "<=", ">", ">=", "=", "!="]), dice.choice(values)
        case 7:
            name, values = dice.choice(list(VALUES.items()))
            return (
                "range",
                name,
                dice.choice([None, *values]),
                dice.choice([None, *values]),
                *dice.choices([True, False], k=2),
            )
    return "exists", dice.choice(SCHEMA.names)


VALUES: dict[str, list[Any]] = {
    "price": [0, -1.5, 1, 2.5, 99.99, 100],
    "n": [0, 1, -1, 0.5, 2**53, 2**53 + 1, -(2**62)],
    "ok": [True, False],
    "at": [ZERO, ZERO + timedelta(days=1), ZERO + timedelta(hours=1)],
}


def written(asked: Asked) -> str:
    """As a query is written."""
    match asked:
        case ("and", *parts):
            return "(" + " AND ".join(map(written, parts)) + ")"
        case ("or", *parts):
            return "(" + " OR ".join(map(written, parts)) + ")"
        case ("not", part):
            return f"NOT {written(part)}"
        case ("phrase", field, words, star):
            of, text = "" if field is None else f"{field}:", " ".join(words)
            return f'{of}"{text}"{"*" if star else ""}' if len(words) > 1 else f"{of}{text}{'*' if star else ''}"
        case ("value", field, value, star):
            return f'{field}:"{value}"{"*" if star and len(value) > 1 else ""}'
        case ("compare", field, sign, value):
            return f"{field} {sign} {_value(value)}"
        case ("range", field, low, high, over, under):
            ends = ["*" if end is None else _value(end) for end in (low, high)]
            return f"{field}:{'{' if over else '['}{ends[0]} TO {ends[1]}{'}' if under else ']'}"
        case ("exists", field):
            return f"{field}:*"
    raise AssertionError(asked)


def _value(value: Any) -> str:
    return (
        f'"{value.isoformat()}"'
        if isinstance(value, datetime)
        else str(value).lower()
        if value in (True, False) and isinstance(value, bool)
        else str(value)
    )


def fits(asked: Asked, row: dict[str, Any]) -> bool:
    match asked:
        case ("and", *parts):
            return all(fits(part, row) for part in parts)
        case ("or", *parts):
            return any(fits(part, row) for part in parts)
        case ("not", part):
            return not fits(part, row)
        case ("phrase", field, words, star):
            return any(_has(row[name], words, star) for name in (TEXT if field is None else [field]))
        case ("value", field, value, star):
            begins = star and len(value) > 1
            return row[field] is not None and (row[field].startswith(value) if begins else row[field] == value)
        case ("compare", field, sign, value):
            return _compares(row[field], sign, value)
        case ("range", field, low, high, over, under):
            if low is None and high is None:
                return row[field] is not None
            above = low is None or _compares(row[field], ">" if over else ">=", low)
            return above and (high is None or _compares(row[field], "<" if under else "<=", high))
        case ("exists", field):
            return row[field] is not None
    raise AssertionError(asked)


def _has(text: str | None, words: tuple[str, ...], star: bool) -> bool:
    found = [word.casefold() for word in re.findall(r"\w+", text or "")]
    wanted = [word.casefold() for word in words]
    for begin in range(len(found) - len(wanted) + 1):
        some = found[begin : begin + len(wanted)]
        if some[:-1] == wanted[:-1] and (some[-1].startswith(wanted[-1]) if star else some[-1] == wanted[-1]):
            return True
    return False


def _compares(value: Any, sign: str, other: Any) -> bool:
    if value is None:
        return False
    return bool(
        {
            "<": lambda: value < other,
            "<=": lambda: value <= other,
            ">": lambda: value > other,
            ">=": lambda: value >= other,
            "=": lambda: value == other,
            "!=": lambda: value != other,
        }[sign]()
    )


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)
