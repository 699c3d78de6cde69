"""Whether a record is what a query asks for, exactly. Owns the meaning of each node.

A text is asked by its words, with a space before, between and behind them: so a phrase is a piece of a text. A column
that is null has no word and no value: only NOT finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.search.tree import And, Exists, Is, Node, Not, Or, Phrase, Prefix, Range

__all__ = ["Check", "Document", "check_of"]


class Document(Protocol):
    """A record, as queries ask it."""

    def anywhere(self) -> str:
        """The words of all texts."""

    def text(self, field: str) -> str:
        """The words of a text: nothing of a null."""

    def value(self, field: str) -> Any: ...


Check = Callable[[Document], bool]


def check_of(node: Node) -> Check:
    match node:
        case Phrase(words, field, prefix):
            return _in_text(f" {' '.join(words)}{'' if prefix else ' '}", field)
        case Is():
            return _is(node)
        case Prefix():
            return _begins(node)
        case Range():
            return _in_range(node)
        case Exists(name):
            return lambda document: document.value(name) is not None
        case Not(of):
            check = check_of(of)
            return lambda document: not check(document)
        case And(parts):
            checks = [check_of(each) for each in parts]
            return _all(checks)
        case Or(parts):
            checks = [check_of(each) for each in parts]
            return lambda document: any(check(document) for check in checks)


def _all(checks: list[Check]) -> Check:
    def check(document: Document) -> bool:
        for each in checks:  # noqa: SIM110 (a loop takes half the time of all(…))
            if not each(document):
                return False
        return True

    return check


def _in_text(piece: str, field: str | None) -> Check:
    if field is None:
        return lambda document: piece in document.anywhere()
    return lambda document: piece in document.text(field)


def _is(of: Is) -> Check:
    field, value = of.field, of.value
    return lambda document: bool(document.value(field) == value)


def _begins(of: Prefix) -> Check:
    field, value = of.field, of.value
    return lambda document: (document.value(field) or "").startswith(value)


def _in_range(of: Range) -> Check:
    field, low, high, over, under = of.field, of.low, of.high, of.over, of.under

    def check(document: Document) -> bool:
        value = document.value(field)
        if value is None or value != value:
            return False
        if low is not None and (value <= low if over else value < low):
            return False
        return high is None or not (value >= high if under else value > high)

    return check
