"""Where a Postgres store is: `postgresql://user@host:5432/db?schema=shop`. Owns what such a text means, and how much of
it is shown. Knows no connection.

Everything but `schema` is libpq's. A password may be in the address, or be a reference that is resolved by the process
that connects: `password=env:NAME` or `password=file:PATH`. It is part of no message, status or `repr`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from headrace.errors import InvalidArgument

__all__ = ["SCHEMA", "Address"]

SCHEMA = "headrace"
"""The schema of a store whose address names none."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?")
_PARAMETER = re.compile(r"[a-zA-Z_]+")
ENCODED = (
    "is no address that Postgres' client library understands: postgresql://USER:PASSWORD@HOST:PORT/DATABASE. "
    "Write / ? # [ ] @ in a password as %2F %3F %23 %5B %5D %40"
)


@dataclass(frozen=True)
class Address:
    """`url` is libpq's, and may hold a password."""

    url: str = field(repr=False)
    schema: str

    @classmethod
    def parse(cls, text: str) -> Address:
        parts, query = _parts(text)
        schemas = [value for name, value in query if name == "schema"]
        schema = schemas[-1] if schemas else SCHEMA
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            why = "a schema's name has small letters, digits and '_', at most 63 of them, and does not begin with 'pg_'"
            raise InvalidArgument("views", schema, why)
        rest = urlencode([(name, value) for name, value in query if name != "schema"], quote_via=quote)
        return cls(urlunsplit(parts._replace(query=rest)), schema)

    @property
    def shown(self) -> str:
        """For messages: without the password and everything else that was said behind '?'."""
        parts = urlsplit(self.url)
        user, at, host = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        return urlunsplit(("postgresql", f"{name}{at}{host}", parts.path, f"schema={self.schema}", ""))

    def parameters(self) -> dict[str, Any]:
        """What libpq connects with; references are resolved."""
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            found = conninfo_to_dict(self.url)
        except ProgrammingError as error:
            why = "is no address that Postgres' client library understands"
            raise InvalidArgument("views", self.shown, why) from _without_text(error)
        password = found.get("password")
        return found if password is None else {**found, "password": _resolved(str(password))}


def _parts(text: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """The address, and its parameters. A character of a password that is not encoded ends the part it is in, and the
    rest would be shown as a host or a database: such an address is refused, and none of it is shown."""
    try:
        parts = urlsplit(text)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise InvalidArgument("views", "postgresql://…", ENCODED) from None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    wrong = not all(_HOST.fullmatch(host) for host in hosts) or "@" in parts.path or parts.fragment
    if wrong or not all(_PARAMETER.fullmatch(name) for name, _ in query):
        raise InvalidArgument("views", "postgresql://…", ENCODED)
    return parts, query


def _without_text(error: Exception) -> Exception:
    """libpq quotes the address, and so the password."""
    return type(error)("the message quotes the address, which may hold a password")


def _resolved(password: str) -> str:
    kind, _, name = password.partition(":")
    if kind == "env" and name:
        if name not in os.environ:
            raise InvalidArgument("views", f"env:{name}", "the environment has no such variable: it holds the password")
        return os.environ[name]
    if kind == "file" and name:
        try:
            return Path(name).read_text("utf-8").strip("\r\n")
        except OSError as error:
            why = f"the file with the password cannot be read ({error.strerror})"
            raise InvalidArgument("views", f"file:{name}", why) from error
    return password
