"""What a statement in the binlog does to tables, as far as rows do not say it: TRUNCATE, and what rewrites or replaces
a table. Pure. It understands as much SQL as it needs to be on the safe side: a table that a statement may have changed
is looked at, or read again."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_data", "is_definition", "mentions", "rewrites", "truncated", "without_texts"]

_COMMENTS: Final = re.compile(r"/\*M?!\d*|\*/|/\*[^!].*?\*/|(?:--\s|#)[^\n]*", re.DOTALL)
_TEXTS: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_NAME: Final = r"(?:`((?:[^`]|``)+)`|([\w$]+))"
_TRUNCATE: Final = re.compile(rf"\s*TRUNCATE\s+(?:TABLE\s+)?{_NAME}(?:\s*\.\s*{_NAME})?", re.IGNORECASE)
_FIRST: Final = re.compile(r"\s*(\w+)")
_DATA: Final = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO"}
_DEFINITION: Final = {"ALTER", "CREATE", "DROP", "RENAME"}
_WHOLE: Final = re.compile(r"\s*(DROP|RENAME)\s+TABLES?\b|\s*CREATE\s+(OR\s+REPLACE\s+)?TABLE\b", re.IGNORECASE)
_COLUMNS: Final = re.compile(
    r"\b(ADD|DROP)\b(?!\s+(?:INDEX|KEY|UNIQUE|FULLTEXT|SPATIAL|CONSTRAINT|FOREIGN|CHECK|PRIMARY)\b)"
    r"|\bCHANGE\b|\bRENAME\s+(?!INDEX\b|KEY\b)|\b(?:EXCHANGE|TRUNCATE|DISCARD|IMPORT)\b",
    re.IGNORECASE,
)


def without_texts(text: str) -> str:
    """Without comments and literals. What MySQL runs of a comment (`/*!50100 … */`) stays."""
    return _TEXTS.sub("''", _COMMENTS.sub(" ", text))


def _first(text: str) -> str:
    found = _FIRST.match(text)
    return found[1].upper() if found else ""


def is_definition(text: str) -> bool:
    return _first(text) in _DEFINITION


def is_data(text: str) -> bool:
    """It changes rows, and they are not in the log."""
    return _first(text) in _DATA


def truncated(text: str, schema: str) -> tuple[str, str] | None:
    """Schema and name of the table that is emptied."""
    found = _TRUNCATE.match(text)
    if found is None:
        return None
    one, other = ((found[at] or "").replace("``", "`") or found[at + 1] for at in (1, 3))
    return (one, other) if other else (schema, one)


def mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text, re.IGNORECASE) is not None


def rewrites(text: str) -> bool:
    """Whether a definition may leave other rows, or other values in them, without saying so in rows."""
    return _WHOLE.match(text) is not None or (_first(text) == "ALTER" and _COLUMNS.search(text) is not None)
