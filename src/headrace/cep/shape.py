"""The shape of a pattern: `"small+ (big | huge) !refund"`, parsed and checked. Owns its grammar and what is refused
because it could match nothing, or has no bound. Pure.

Items one after the other follow each other without a row between. `+ * ? {n,m}` repeat, as often as they can, or with a
`?` behind as seldom as they can; `|` chooses, the left one first. `!x` is a run of rows, empty or not, none of which is
x: it ends where what follows matches, or at the end of the pattern with the end of `within`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import InvalidArgument

__all__ = ["Absent", "Choice", "Repeat", "Row", "Sequence", "Shape", "always", "first_of", "parse", "symbols_of"]

CHARACTERS_MAX, DEPTH_MAX, SYMBOLS_MAX, TIMES_MAX = 10_000, 50, 60, 1_000
TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<times>\{[^}]*\}?)|(?P<sign>[()|!+*?])|(?P<wrong>\S))")
TIMES = re.compile(r"\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}")


@dataclass(frozen=True, slots=True)
class Row:
    symbol: str


@dataclass(frozen=True, slots=True)
class Absent:
    symbol: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`most`: None for any number."""

    item: Shape
    least: int
    most: int | None
    greedy: bool


Shape = Row | Absent | Sequence | Choice | Repeat


def parse(text: str, argument: str = "pattern") -> Shape:
    """The tree of a pattern; InvalidArgument if there can be no such pattern."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(argument, text, "must be a text such as 'small+ big'")
    if len(text) > CHARACTERS_MAX:
        raise InvalidArgument(argument, f"{text[:40]}…", f"is longer than {CHARACTERS_MAX:,} characters")
    shape = _Parser(text, argument).whole()
    names = [each.lower() for each in symbols_of(shape)]
    if len(names) > SYMBOLS_MAX:
        raise InvalidArgument(argument, text, f"has {len(names)} symbols; {SYMBOLS_MAX} are allowed")
    if len({*names}) < len(names):
        raise InvalidArgument(argument, text, "has two symbols that differ in upper and lower case only: rename one")
    if _may_be_empty(shape):
        why = "may match no row at all, and such matches say nothing: ask for at least one row, as in 'a+' for 'a*'"
        raise InvalidArgument(argument, text, why)
    _check(shape, text, argument, last=True)
    return shape


def children(shape: Shape) -> tuple[Shape, ...]:
    match shape:
        case Sequence(items):
            return items
        case Choice(options):
            return options
        case Repeat(item):
            return (item,)
    return ()


def symbols_of(shape: Shape) -> list[str]:
    """Each symbol once, in the order of the text."""
    return list(dict.fromkeys(each.symbol for each in walk(shape) if isinstance(each, Row | Absent)))


def walk(shape: Shape) -> Iterator[Shape]:
    yield shape
    for each in children(shape):
        yield from walk(each)


def first_of(shape: Shape) -> set[str]:
    """The symbols that the first row of a match can have."""
    match shape:
        case Row(symbol):
            return {symbol}
        case Absent():
            return set()
        case Repeat(item):
            return first_of(item)
        case Choice(options):
            return set().union(*map(first_of, options))
    found: set[str] = set()
    assert isinstance(shape, Sequence)
    for each in shape.items:
        found |= first_of(each)
        if not _may_be_empty(each):
            break
    return found


def always(shape: Shape) -> set[str]:
    """The symbols that some row of every match has."""
    match shape:
        case Row(symbol):
            return {symbol}
        case Absent():
            return set()
        case Repeat(item, least):
            return always(item) if least else set()
        case Choice(options):
            return set.intersection(*map(always, options))
    return set().union(*map(always, children(shape)))


def _may_be_empty(shape: Shape) -> bool:
    match shape:
        case Row():
            return False
        case Absent():
            return True
        case Repeat(item, least):
            return least == 0 or _may_be_empty(item)
        case Choice(options):
            return any(map(_may_be_empty, options))
    return all(map(_may_be_empty, children(shape)))


def _check(shape: Shape, text: str, argument: str, *, last: bool) -> None:
    """`last`: whether it is the pattern's end, where an absence lasts until `within` is over."""
    match shape:
        case Sequence(items):
            for at, each in enumerate(items):
                at_end = at == len(items) - 1
                if isinstance(each, Absent):
                    if all(map(_may_be_empty, items[:at])):
                        why = f"!{each.symbol} comes first: an absence is told after a row, as in 'a !b'"
                        raise InvalidArgument(argument, text, why)
                    if at_end and not last:
                        why = f"!{each.symbol} ends a group: write it at the end of the pattern, or something behind it"
                        raise InvalidArgument(argument, text, why)
                    if not at_end and (isinstance(items[at + 1], Absent) or _may_be_empty(items[at + 1])):
                        why = f"behind !{each.symbol} comes what may be empty, so nobody knows where the absence ends"
                        raise InvalidArgument(argument, text, f"{why}. Write a symbol that is always there")
                else:
                    _check(each, text, argument, last=False)
        case Absent(symbol):
            why = f"!{symbol} stands alone: an absence is told after a row, as in 'a !b'. It is not repeated, and no"
            raise InvalidArgument(argument, text, f"{why} option of its own")
        case Repeat(item, _, most):
            if most is None and _may_be_empty(item):
                why = "repeats what may be empty without a bound: (a? b?)+ says no more than (a | b)+"
                raise InvalidArgument(argument, text, why)
            _check(item, text, argument, last=False)
        case Choice(options):
            for each in options:
                _check(each, text, argument, last=False)


class _Parser:
    def __init__(self, text: str, argument: str) -> None:
        self._text, self._argument, self._at = text, argument, 0
        self._tokens: list[tuple[str, str, int]] = []
        for found in TOKEN.finditer(text.rstrip()):
            assert found.lastgroup is not None
            if found.lastgroup == "wrong":
                self._refuse(f"{found['wrong']!r} is no part of a pattern: names, ( ) | ! + * ? and {{n,m}} are")
            self._tokens.append((found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))

    def whole(self) -> Shape:
        shape = self._choice(0)
        if self._at < len(self._tokens):
            self._refuse(f"{self._tokens[self._at][1]!r} at character {self._tokens[self._at][2]} is not expected")
        return shape

    def _refuse(self, why: str) -> None:
        raise InvalidArgument(self._argument, self._text, why)

    def _is(self, sign: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][:2] == ("sign", sign):
            self._at += 1
            return True
        return False

    def _choice(self, depth: int) -> Shape:
        if depth > DEPTH_MAX:
            self._refuse(f"has more than {DEPTH_MAX} groups one in the other")
        options = [self._sequence(depth)]
        while self._is("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Shape:
        items: list[Shape] = []
        while (item := self._item(depth)) is not None:
            items.append(self._repeated(item))
        if not items:
            self._refuse("has a group, or a side of '|', without a symbol")
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, depth: int) -> Shape | None:
        if self._is("("):
            inside = self._choice(depth + 1)
            if not self._is(")"):
                self._refuse("has a '(' without its ')'")
            return inside
        absent = self._is("!")
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "name":
            self._at += 1
            name = self._tokens[self._at - 1][1]
            return Absent(name) if absent else Row(name)
        if absent:
            self._refuse("has a '!' that no symbol follows: an absence is that of one symbol, as in 'a !b'")
        return None

    def _repeated(self, item: Shape) -> Shape:
        kind, text, _ = self._tokens[self._at] if self._at < len(self._tokens) else ("", "", 0)
        if kind == "times":
            least, most = self._times(text)
        elif kind == "sign" and text in ("+", "*", "?"):
            least, most = {"+": (1, None), "*": (0, None), "?": (0, 1)}[text]
        else:
            return item
        self._at += 1
        return self._repeated_once(Repeat(item, least, most, greedy=not self._is("?")))

    def _repeated_once(self, item: Repeat) -> Shape:
        kind, text, _ = self._tokens[self._at] if self._at < len(self._tokens) else ("", "", 0)
        if kind == "times" or (kind == "sign" and text in ("+", "*", "?")):
            self._refuse(f"repeats twice ({text}): put what is repeated in a group")
        return item

    def _times(self, text: str) -> tuple[int, int | None]:
        found = TIMES.fullmatch(text)
        if found is None or not (found[1] or found[3]):
            self._refuse(f"{text}: write {{3}}, {{2,5}}, {{2,}} or {{,5}}")
            raise AssertionError
        if max(len(found[1]), len(found[3] or "")) > 6:
            self._refuse(f"{text}: a number of repetitions is at most {TIMES_MAX:,}")
        least = int(found[1] or 0)
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > TIMES_MAX or most == 0 or (most is not None and most < least):
            self._refuse(
                f"{text}: the numbers are at most {TIMES_MAX:,}, the second is 1 or more, and not below the first"
            )
        return least, most
