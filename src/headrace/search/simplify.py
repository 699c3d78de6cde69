"""Simplifies a query's tree, so that queries which mean the same are the same, and refuses what finds nothing. Pure.

All groups of one kind are one, nothing is said twice, conditions on one column that must all hold are one range."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import InvalidSearch
from headrace.search.tree import And, Exists, Is, Node, Not, Or, Range

__all__ = ["simplified"]


def simplified(node: Node, text: str) -> Node:
    found = _of(node)
    if found is None:
        raise InvalidSearch(text, node.at, "no record can be so: two of its conditions exclude each other")
    return found


def _of(node: Node) -> Node | None:
    """None: no record is so."""
    match node:
        case Not(Not(of)):
            return _of(of)
        case Not(of, at):
            found = _of(of)
            return Not(of if found is None else found, at)
        case And():
            return _all(node)
        case Or():
            return _any(node)
        case Range():
            return None if _is_empty(node) else node
    return node


def _all(node: And) -> Node | None:
    parts: list[Node] = []
    for each in node.parts:
        found = _of(each)
        if found is None:
            return None
        parts += found.parts if isinstance(found, And) else [found]
    parts = _ranges_joined([*dict.fromkeys(parts)])
    if any(isinstance(each, Range) and _is_empty(each) for each in parts) or _contradicts(parts):
        return None
    asked = {each.field for each in parts if isinstance(each, Range | Is)}
    parts = [each for each in parts if not (isinstance(each, Exists) and each.field in asked)]
    return parts[0] if len(parts) == 1 else And(tuple(parts), node.at)


def _any(node: Or) -> Node | None:
    parts: list[Node] = []
    for each in node.parts:
        found = _of(each)
        if found is not None:
            parts += found.parts if isinstance(found, Or) else [found]
    parts = [*dict.fromkeys(parts)]
    return (parts[0] if len(parts) == 1 else Or(tuple(parts), node.at)) if parts else None


def _contradicts(parts: list[Node]) -> bool:
    """Parts are all different: so a column that is asked for twice is asked for two values."""
    if any(isinstance(each, Not) and each.of in parts for each in parts):
        return True
    asked = [each.field for each in parts if isinstance(each, Is)]
    return len(asked) > len({*asked})


def _ranges_joined(parts: list[Node]) -> list[Node]:
    out: list[Node] = []
    place: dict[str, int] = {}
    for each in parts:
        if isinstance(each, Range) and each.field in place:
            before = out[place[each.field]]
            assert isinstance(before, Range)
            out[place[each.field]] = _both(before, each)
            continue
        if isinstance(each, Range):
            place[each.field] = len(out)
        out.append(each)
    return out


def _both(one: Range, other: Range) -> Range:
    made = one
    if other.low is not None and (made.low is None or other.low > made.low or (other.low == made.low and other.over)):
        made = replace(made, low=other.low, over=other.over)
    if other.high is not None and (
        made.high is None or other.high < made.high or (other.high == made.high and other.under)
    ):
        made = replace(made, high=other.high, under=other.under)
    return made


def _is_empty(of: Range) -> bool:
    if of.low is None or of.high is None:
        return False
    return bool(of.low > of.high or (of.low == of.high and (of.over or of.under)))
