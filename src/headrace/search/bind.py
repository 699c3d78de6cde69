"""A stored query over the columns of a stream: what each word and condition means there, or why it means nothing. Owns
the reading of values."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from headrace.durations import instant_us
from headrace.errors import HeadraceError, InvalidSearch, nearest
from headrace.search.fields import Fields, Kind
from headrace.search.parse import Between, Group, Negation, Parsed, Value, parse
from headrace.search.simplify import simplified
from headrace.search.tree import And, Exists, Is, Node, Not, Or, Phrase, Prefix, Range
from headrace.search.words import words

__all__ = ["WORDS_MAX", "bound"]

PREFIX_MIN, WORDS_MAX = 2, 64
"""Letters of a beginning, at least; words of a phrase, at most."""
DIGITS_MAX = 80


def bound(text: str, fields: Fields) -> Node:
    """The query's tree, simplified. InvalidSearch if it is wrong, or could find no record, or nearly all."""
    return simplified(_Binder(text, fields).node(parse(text)), text)


class _Binder:
    def __init__(self, text: str, fields: Fields) -> None:
        self._text, self._fields = text, fields

    def _wrong(self, at: int, why: str) -> InvalidSearch:
        return InvalidSearch(self._text, at, why)

    def node(self, parsed: Parsed) -> Node:
        match parsed:
            case Group(all, parts, at):
                made = tuple(self.node(each) for each in parts)
                return And(made, at) if all else Or(made, at)
            case Negation(of, at):
                return Not(self.node(of), at)
            case Between():
                return self._between(parsed)
            case Value():
                return self._value(parsed)

    def _kind(self, name: str, at: int) -> Kind:
        kind = self._fields.kinds.get(name)
        if kind is None:
            known = sorted(self._fields.kinds)
            near = nearest(name, known) or f" There are: {', '.join(known[:30])}."
            raise self._wrong(at, f"the records have no column {name!r} that queries can ask for.{near}")
        return kind

    def _value(self, value: Value) -> Node:
        if value.field is None:
            if not self._fields.text:
                raise self._wrong(value.at, "no column is searched for words: name one, as in sku:A1")
            return self._phrase(value)
        kind = self._kind(value.field, value.at)
        if value.star and not value.text:
            return Exists(value.field, value.at)
        if kind == "text":
            return self._phrase(value)
        if kind != "value":
            if value.star:
                raise self._wrong(value.at, f"'*' is for words, and column {value.field!r} is {_named(kind)}")
            one = self._read(kind, value.field, value.text, value.at)
            return Range(value.field, one, one, at=value.at)
        if not value.star:
            return Is(value.field, value.text, value.at)
        if len(value.text) < PREFIX_MIN:
            raise self._short(value)
        return Prefix(value.field, value.text, value.at)

    def _phrase(self, value: Value) -> Phrase:
        found = words(value.text)
        if not found:
            raise self._wrong(value.at, f"there is no word in {value.text!r}: letters and digits are searched for")
        if len(found) > WORDS_MAX:
            raise self._wrong(value.at, f"a phrase has at most {WORDS_MAX} words, and this has {len(found)}")
        if value.star and len(found[-1]) < PREFIX_MIN:
            raise self._short(value)
        return Phrase(tuple(found), value.field, value.star, value.at)

    def _short(self, value: Value) -> InvalidSearch:
        return self._wrong(
            value.at, f"a beginning has at least {PREFIX_MIN} letters: '{value.text}*' is in most records"
        )

    def _between(self, of: Between) -> Node:
        kind = self._kind(of.field, of.at)
        if kind == "text" or (kind == "value" and not _is_one(of)):
            how = f"as in {of.field}:word" if kind == "text" else f'as in {of.field}:"A1" or {of.field}:A1*'
            raise self._wrong(of.at, f"column {of.field!r} is a text, which has no order here: ask for words, {how}")
        if kind == "value":
            assert of.low is not None
            found: Node = Is(of.field, of.low, of.at)
        elif of.low is None and of.high is None:
            return Exists(of.field, of.at)
        else:
            low, high = (None if end is None else self._read(kind, of.field, end, of.at) for end in (of.low, of.high))
            found = Range(of.field, low, high, of.over and low is not None, of.under and high is not None, of.at)
        return And((Exists(of.field, of.at), Not(found, of.at)), of.at) if of.differs else found

    def _read(self, kind: Kind, name: str, text: str, at: int) -> Any:
        try:
            return _READERS[kind](text)
        except (ValueError, InvalidOperation, OverflowError, HeadraceError):
            why = f"column {name!r} is {_named(kind)}, and {text!r} is not one"
            raise self._wrong(at, f"{why}: write {_EXAMPLES[kind]}") from None


def _is_one(of: Between) -> bool:
    return of.low is not None and of.low == of.high


def _named(kind: Kind) -> str:
    return {"integer": "a whole number", "double": "a number", "decimal": "a number", "boolean": "true or false"}.get(
        kind, "a time" if kind == "timestamp" else f"a {kind}"
    )


def _number(text: str) -> int | Decimal:
    if len(text) > DIGITS_MAX:
        raise ValueError(text)
    found = Decimal(text)
    if not found.is_finite() or abs(found.adjusted()) > DIGITS_MAX:
        raise ValueError(text)
    return int(found) if found == found.to_integral_value() else found


def _double(text: str) -> float:
    found = float(_number(text))
    if math.isinf(found):
        raise ValueError(text)
    return found + 0.0


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _timestamp(text: str) -> datetime:
    us = instant_us(text if "T" in text or " " in text else f"{text}T00:00:00Z", argument="time")
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


_READERS = {
    "integer": _number,
    "double": _double,
    "decimal": _number,
    "boolean": _boolean,
    "timestamp": _timestamp,
    "date": date.fromisoformat,
}
_EXAMPLES = {
    "integer": "500",
    "double": "9.5",
    "decimal": "9.5",
    "boolean": "true or false",
    "timestamp": '"2026-01-01T00:00:00Z"',
    "date": "2026-01-01",
}
