"""Whether a transform asks the world outside: a service, a socket, a model behind an API. Owns the list of modules by
which Python programs do that. Looks at what a function names, and at the functions that it uses; runs none of it."""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

__all__ = ["asks_outside"]

NAMES = (
    "aiohttp anthropic boto3 botocore ftplib grpc http httpx openai paramiko psycopg psycopg2 redis requests smtplib "
    "socket sqlalchemy urllib urllib3 websockets xmlrpc"
)
OUTSIDE = frozenset(NAMES.split())


def asks_outside(function: Any) -> str | None:
    """The module by which the function, or one that it uses, asks the world outside; None if none is seen."""
    return _found(function, set())


def _found(value: Any, seen: set[int]) -> str | None:
    if id(value) in seen:
        return None
    seen.add(id(value))
    if isinstance(value, types.ModuleType):
        name = value.__name__.partition(".")[0]
        return name if name in OUTSIDE else None
    if isinstance(value, functools.partial):
        return _first([value.func, *value.args, *value.keywords.values()], seen)
    if isinstance(value, types.MethodType):
        return _found(value.__func__, seen)
    if not isinstance(value, types.FunctionType):
        inner = getattr(value, "func", None)  # of a UDF
        return _found(inner, seen) if isinstance(inner, types.FunctionType) else None
    if value.__module__ and value.__module__.partition(".")[0] in OUTSIDE:
        return value.__module__.partition(".")[0]
    cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    return _first(cells, seen) or _in_code(value.__code__, value.__globals__, seen)


def _in_code(code: types.CodeType, scope: dict[str, Any], seen: set[int]) -> str | None:
    """What the code names, what code inside it does, and which modules it imports itself."""
    imports = (str(each.argval) for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
    imported = next((head for each in imports if (head := each.partition(".")[0]) in OUTSIDE), None)
    if imported is not None:
        return imported
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    found = _first([scope[name] for name in code.co_names if name in scope], seen)
    return found or next((name for each in inner if (name := _in_code(each, scope, seen))), None)


def _first(values: list[Any], seen: set[int]) -> str | None:
    return next((found for value in values if (found := _found(value, seen))), None)


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
