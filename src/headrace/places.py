"""Where an app works: its directory, its log, its views. Owns which texts name a directory. Touches no file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import InvalidArgument

__all__ = ["ADDRESS", "Home", "directory", "without_secrets"]

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=//)")

_MAY_HOLD = re.compile(r".*[@=].*|.*//.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Home:
    """Where an app works. `directory` has what a run needs on its own machine: locks and scratch files. `log` and
    `views` are the addresses that log and views are opened by; by default both are in the directory."""

    directory: Path
    log: str
    views: str = field(repr=False)  # may hold a password

    @property
    def log_directory(self) -> Path | None:
        """Where the log lies; None of one that has an address."""
        return None if ADDRESS.match(self.log) else Path(self.log)

    @classmethod
    def at(cls, path: Path, *, log: str | None = None, views: str | None = None) -> Home:
        path = path.absolute()
        return cls(path, str(path) if log is None else log, str(path) if views is None else views)


def directory(home: str | Path, *, argument: str = "home") -> Path:
    """The path; an address is none, and would make a directory of that name."""
    if isinstance(home, str) and ADDRESS.match(home):
        why = "is an address; a home is a directory. Kafka is named with log= (--log), Postgres with views= (--views)"
        raise InvalidArgument(argument, without_secrets(home), why)
    return Path(home)


def without_secrets(given: object) -> object:
    """An address may hold a password: what is said of it is its kind. So may a text that was to be one."""
    if not isinstance(given, str):
        return given
    found = ADDRESS.match(given)
    return f"{found[0]}//…" if found else _MAY_HOLD.sub("…", given)
