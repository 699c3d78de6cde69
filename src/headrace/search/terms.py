"""Terms: what a record is looked up by to find the queries that may fit it. Owns which terms a query needs, and how the
values of a column become terms.

A query's needs are a list, of which every one must be met; so the index can choose the rarest. A need is a term; or
several, of which a record has one or more; or, of alternatives, the needs of each.

A range becomes cells: stretches of the column's values of one size, a power of two, in the order of the values. They
cover the range, and a little more: whoever is found is checked. Values are ordered as doubles are, whose bits are in
order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from headrace.errors import InvalidSearch
from headrace.search.fields import Kind
from headrace.search.tree import And, Exists, Is, Node, Not, Or, Phrase, Prefix, Range

__all__ = ["BEGINNING", "CELL", "VALUE", "VALUE_BEGINNING", "WORD", "Need", "Scope", "Term", "needs_of"]

Scope = tuple[str, str | None, int]
"""Kind, column (None: any text) and, of cells, how many bits of a value do not count."""
Term = tuple[Scope, Any]
Need = int | tuple[int, ...] | list["list[Need]"]
WORD, BEGINNING, VALUE, VALUE_BEGINNING, CELL = "word", "beginning", "value", "value beginning", "cell"
CELLS_MAX = 8
EPOCH, EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
TOP = 1 << 63


def needs_of(node: Node, text: str, kinds: Mapping[str, Kind], number: Callable[[Term], int]) -> list[Need]:
    """What a record must have. `number`: of a term. InvalidSearch if there is nothing that it must have."""
    found = _needs(node, kinds, number)
    if not found:
        raise InvalidSearch(text, node.at, _why(node))
    return found


def _why(node: Node) -> str:
    what = "a word, a value or a range must be in every record that is found"
    if isinstance(node, Or):
        return f"{what}, and one of the alternatives asks for none: it would find nearly all records"
    return f"{what}, and this asks for none: it would find nearly all records. Add one"


def _needs(node: Node, kinds: Mapping[str, Kind], number: Callable[[Term], int]) -> list[Need]:
    match node:
        case Phrase(words, field, prefix):
            whole = words[:-1] if prefix else words
            out: list[Need] = [number(((WORD, field, 0), word)) for word in dict.fromkeys(whole)]
            return [*out, number(((BEGINNING, field, 0), words[-1]))] if prefix else out
        case Is(field, value):
            return [number(((VALUE, field, 0), value))]
        case Prefix(field, value):
            return [number(((VALUE_BEGINNING, field, 0), value))]
        case Range():
            return [tuple(number(each) for each in _cells(node, kinds[node.field]))]
        case And(parts):
            seen: list[Need] = []
            for each in parts:
                seen += [need for need in _needs(each, kinds, number) if need not in seen]
            return seen
        case Or(parts):
            each_of = [_needs(each, kinds, number) for each in parts]
            return [each_of] if all(each_of) else []
        case Not() | Exists():
            return []


def _cells(of: Range, kind: Kind) -> list[Term]:
    low = 0 if of.low is None else _ordered(of.low, kind)
    high = 2 * TOP - 1 if of.high is None else _ordered(of.high, kind)
    bits = 0
    while (high >> bits) - (low >> bits) >= CELLS_MAX:
        bits += 2
    return [((CELL, of.field, bits), cell) for cell in range(low >> bits, (high >> bits) + 1)]


def _ordered(value: Any, kind: Kind) -> int:
    """The value as a number of 64 bits, in the order of values; of two values that a double cannot tell apart, the
    same."""
    if kind == "timestamp":
        return TOP + int((value - EPOCH) // timedelta(microseconds=1))
    if kind == "date":
        return TOP + int((value - EPOCH_DAY).days)
    (bits,) = struct.unpack(">q", struct.pack(">d", float(value) + 0.0))
    return int(bits) + TOP if bits >= 0 else TOP - 1 - (int(bits) & (TOP - 1))
