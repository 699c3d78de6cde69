"""Addresses of MySQL and MariaDB: `mysql://user@host:3306/database`. Owns what of one is shown, and where its password
is. Opens no connection. Behind '?': `password=env:NAME` or `file:PATH`, `ssl_ca`, `ssl_cert`, `ssl_key` (paths)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace import libpq
from headrace.errors import InvalidArgument

__all__ = ["Address"]

OPTIONS: Final = frozenset({"password", "ssl_ca", "ssl_cert", "ssl_key"})
PORT: Final = 3306
WRONG: Final = (
    "must be mysql://USER@HOST:PORT/DATABASE, behind '?' password=env:NAME or file:PATH, ssl_ca, ssl_cert, ssl_key. "
    "Write % / ? # [ ] @ in a password as %25 %2F %3F %23 %5B %5D %40"
)


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    user: str
    database: str
    password: str = field(default="", repr=False)
    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str) -> Address:
        """None of it is shown if it is wrong: a character of a password that is not encoded ends the part it is in."""
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
            port = parts.port or PORT
        except ValueError:
            raise InvalidArgument("url", "mysql://…", WRONG) from None
        database = parts.path.removeprefix("/")
        odd = parts.netloc.count("@") > 1 or "@" in parts.path or "/" in database or parts.fragment
        if odd or not parts.hostname or not parts.username or not options.keys() <= OPTIONS:
            raise InvalidArgument("url", "mysql://…", WRONG)
        if not database:
            raise InvalidArgument("url", "mysql://…", "names no database: mysql://USER@HOST/DATABASE")
        password = options.pop("password", None) or unquote(parts.password or "")
        files = tuple(sorted(options.items()))
        return cls(parts.hostname, port, unquote(parts.username), unquote(database), password, files)

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mysql://{self.user}@{host}:{self.port}/{self.database}"

    @property
    def may_be_stored(self) -> bool:
        return not self.password or self.password.startswith(("env:", "file:"))

    def connecting(self) -> dict[str, Any]:
        """What PyMySQL connects with; references are resolved."""
        said: dict[str, Any] = {"host": self.host, "port": self.port, "user": self.user, "database": self.database}
        if self.password:
            said["password"] = libpq.resolved(self.password, "url")
        return said | dict(self.files)
