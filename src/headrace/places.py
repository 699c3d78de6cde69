"""Where log and views are: in a directory. Owns which texts name one. Touches no file."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import InvalidArgument

__all__ = ["ADDRESS", "directory", "without_secrets"]

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=//)")


def directory(home: str | Path, *, argument: str = "home") -> Path:
    """The path; an address is none, and would make a directory of that name."""
    if isinstance(home, str) and ADDRESS.match(home):
        why = "is an address; log and views are in a directory of this machine, such as '.headrace'"
        raise InvalidArgument(argument, without_secrets(home), why)
    return Path(home)


def without_secrets(given: object) -> object:
    """An address may hold a password: what is said of it is its kind."""
    found = ADDRESS.match(given) if isinstance(given, str) else None
    return f"{found[0]}//…" if found else given
