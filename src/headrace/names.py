"""The rule for names: topics, groups, queues, producers, flows.

Owns which texts are names. Kafka's rule, so that every name of ours is one there: letters, digits, '.',
'_' and '-', 1 to 249 of them, neither '.' nor '..'. Such a name is safe in a path, a URL and a header.
Names that begin with '__' are headrace's own. Knows nothing of what is named."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import InvalidName

__all__ = ["META", "NAME_MAX", "OWN_PREFIX", "check_name"]

META: Final = ("_partition", "_offset", "_arrived_at", "_progress")
"""The metadata columns every topic can be read with."""
NAME_MAX: Final = 249
OWN_PREFIX: Final = "__"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def check_name(name: str, *, argument: str, system: bool = False) -> str:
    """The name itself, if it is one; `system=True` also lets headrace's own names ('__…') through."""
    if not isinstance(name, str):
        raise InvalidName(argument, name, f"a name is text, not {type(name).__name__}")
    if not name:
        raise InvalidName(argument, name, "a name cannot be empty")
    if len(name) > NAME_MAX:
        raise InvalidName(argument, name[:40] + "…", f"has {len(name)} characters; at most {NAME_MAX} are allowed")
    if _NAME.fullmatch(name) is None:
        bad = next(c for c in name if not _NAME.fullmatch(c))
        raise InvalidName(argument, name, f"has {bad!r}; letters A-Z a-z, digits, '.', '_' and '-' are allowed")
    if name in (".", ".."):
        raise InvalidName(argument, name, "would be a directory; choose another name")
    if name.startswith(OWN_PREFIX) and not system:
        raise InvalidName(argument, name, "names that begin with '__' are reserved for headrace itself")
    return name
