"""Whether two programs do the same, as far as that can be told: a text that is another one when a flow's functions are
others. Knows no Spark. A function is its code, its defaults, what it closes over, and the functions and plain values it
names; of any other object, but for dataclasses, only the type is looked at. So what was made by a program is gone on
with by the same one."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["fingerprint"]

PLAIN = (str, bytes, int, float, complex, bool, type(None))
NAMED = (*PLAIN, tuple, list, dict, set, frozenset, types.FunctionType, functools.partial)
"""What a function names and is looked into: not modules, nor what they are made of."""


def fingerprint(*parts: Any) -> str:
    known: set[int] = set()
    return hashlib.sha256("\n".join(text for part in parts for text in _said(part, known)).encode()).hexdigest()


def _said(value: Any, known: set[int]) -> Iterator[str]:
    if isinstance(value, PLAIN):
        yield repr(value)
    elif id(value) in known:
        yield "again"
    elif isinstance(value, tuple | list | dict):
        known.add(id(value))  # while it is looked into: it may have itself in it
        for each in value:
            if isinstance(value, dict):
                yield repr(each)
            yield from _said(value[each] if isinstance(value, dict) else each, known)
        known.discard(id(value))
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, functools.partial):
        yield from _said((value.func, value.args, value.keywords), known)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__
        for field in dataclasses.fields(value):
            yield from _said(getattr(value, field.name), known)
    elif isinstance(value, types.MethodType):
        yield from _said(value.__func__, known)
    elif isinstance(value, types.FunctionType):
        known.add(id(value))
        yield from _said((value.__defaults__, value.__kwdefaults__), known)
        for cell in value.__closure__ or ():
            yield from _said(_content(cell), known)
        yield from _code(value.__code__, value.__globals__, known)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}"


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not filled yet


def _code(code: types.CodeType, scope: dict[str, Any], known: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _code(const, scope, known)
        else:
            yield from _said(const, known)
    for name in code.co_names:
        yield name
        found = scope.get(name)
        if isinstance(found, NAMED):
            yield from _said(found, known)
