"""A stored query as a tree of values. Each node writes itself as a query that means the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

__all__ = ["And", "Exists", "Is", "Node", "Not", "Or", "Phrase", "Prefix", "Range", "leaves"]

Literal = int | float | Decimal | bool | date | datetime
NOWHERE = field(default=0, compare=False)
"""Where in the text the node begins: two nodes that say the same are equal."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that follow each other, in a field, or in any text; mostly one word. `prefix`: the last one is the
    beginning of a word."""

    words: tuple[str, ...]
    field: str | None = None
    prefix: bool = False
    at: int = NOWHERE

    def __str__(self) -> str:
        if self.prefix and len(self.words) == 1:
            return f"{_of(self.field)}{_word(self.words[0])}*"
        text = " ".join(self.words)
        if self.prefix:
            return f"{_of(self.field)}{quoted(text)}*"
        return f"{_of(self.field)}{_word(text) if len(self.words) == 1 else quoted(text)}"


@dataclass(frozen=True, slots=True)
class Is:
    """The whole value of a column that is no text for words."""

    field: str
    value: str
    at: int = NOWHERE

    def __str__(self) -> str:
        return f"{_of(self.field)}{quoted(self.value)}"


@dataclass(frozen=True, slots=True)
class Prefix:
    """How the value of such a column begins."""

    field: str
    value: str
    at: int = NOWHERE

    def __str__(self) -> str:
        return f"{_of(self.field)}{quoted(self.value)}*"


@dataclass(frozen=True, slots=True)
class Range:
    """Between which values a column's lies; None: without an end. `over`, `under`: the end itself is outside."""

    field: str
    low: Any = None
    high: Any = None
    over: bool = False
    under: bool = False
    at: int = NOWHERE

    def __str__(self) -> str:
        if self.low is not None and self.low == self.high and not (self.over or self.under):
            return f"{self.field} = {shown(self.low)}"
        if self.high is None:
            return f"{self.field} {'>' if self.over else '>='} {shown(self.low)}"
        if self.low is None:
            return f"{self.field} {'<' if self.under else '<='} {shown(self.high)}"
        begin, end = "{" if self.over else "[", "}" if self.under else "]"
        return f"{self.field}:{begin}{shown(self.low)} TO {shown(self.high)}{end}"


@dataclass(frozen=True, slots=True)
class Exists:
    """The column is not null."""

    field: str
    at: int = NOWHERE

    def __str__(self) -> str:
        return f"{self.field}:*"


@dataclass(frozen=True, slots=True)
class Not:
    of: Node
    at: int = NOWHERE

    def __str__(self) -> str:
        return f"NOT {_in_brackets(self.of)}"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]
    at: int = NOWHERE

    def __str__(self) -> str:
        return " AND ".join(map(_in_brackets, self.parts))


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]
    at: int = NOWHERE

    def __str__(self) -> str:
        return " OR ".join(map(_in_brackets, self.parts))


Node = Phrase | Is | Prefix | Range | Exists | Not | And | Or


def leaves(node: Node) -> Iterator[Phrase | Is | Prefix | Range | Exists]:
    """The nodes that ask something of a record, also those that must not be so."""
    match node:
        case And(parts) | Or(parts):
            for each in parts:
                yield from leaves(each)
        case Not(of):
            yield from leaves(of)
        case _:
            yield node


def _of(name: str | None) -> str:
    return "" if name is None else f"{name}:"


def _in_brackets(node: Node) -> str:
    return f"({node})" if isinstance(node, And | Or) else str(node)


def _word(text: str) -> str:
    return quoted(text) if text.upper() in ("AND", "OR", "NOT", "TO") else text


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date | datetime):
        return quoted(value.isoformat())
    return str(value)
