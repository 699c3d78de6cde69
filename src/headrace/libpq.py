"""Addresses of Postgres: `postgresql://user@host:5432/db`. Owns how much of one is shown, and where its password is.
Opens no connection.

A password may be in the address, or be a reference that is resolved by the process that connects:
`password=env:NAME` or `password=file:PATH`. It is part of no message, status or `repr`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from headrace.errors import InvalidArgument

__all__ = ["ENCODED", "KEEPALIVE", "connection_parameters", "is_reference", "resolved", "shown", "split_address"]

KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""A server that is gone without a word is noticed after half a minute, not after hours."""
SECRETS = {"sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
"""Parameters that are secrets, and no references."""
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?")
_PARAMETER = re.compile(r"[a-zA-Z_]+")
ENCODED = (
    "is no address that Postgres' client library understands: postgresql://USER:PASSWORD@HOST:PORT/DATABASE. "
    "Write % / ? # [ ] @ in a password as %25 %2F %3F %23 %5B %5D %40"
)


def split_address(text: str, *, argument: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """The address, and its parameters. A character of a password that is not encoded ends the part it is in, and the
    rest would be shown as a host or a database: such an address is refused, and none of it is shown."""
    try:
        parts = urlsplit(text)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise InvalidArgument(argument, "postgresql://…", ENCODED) from None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    wrong = not all(_HOST.fullmatch(host) for host in hosts) or "@" in parts.path or parts.fragment
    if wrong or not all(_PARAMETER.fullmatch(name) for name, _ in query):
        raise InvalidArgument(argument, "postgresql://…", ENCODED)
    return parts, query


def shown(url: str, query: str = "") -> str:
    """For messages: without the password and everything that was said behind '?'."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return urlunsplit(("postgresql", f"{name}{at}{host}", parts.path, query, ""))


def connection_parameters(url: str, told: str, *, argument: str) -> dict[str, Any]:
    """What libpq connects with; references are resolved. `told`: how messages name the address."""
    found = _parsed(url, told, argument)
    password = found.get("password")
    return found if password is None else {**found, "password": resolved(str(password), argument)}


def is_reference(url: str, *, argument: str) -> bool:
    """True if the address has no password itself, so that it may be stored."""
    found = _parsed(url, shown(url), argument)
    if SECRETS & found.keys():
        return False
    password = found.get("password")
    return password is None or str(password).startswith(("env:", "file:"))


def _parsed(url: str, told: str, argument: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError):
        pass
    raise InvalidArgument(argument, told, ENCODED)  # the cause quotes the address, and so the password


def resolved(password: str, argument: str) -> str:
    """The password that a reference names."""
    kind, _, name = password.partition(":")
    if kind == "env" and name:
        if name not in os.environ:
            why = "the environment has no such variable: set it to the password, or name a file, file:PATH"
            raise InvalidArgument(argument, f"env:{name}", why)
        return os.environ[name]
    if kind == "file" and name:
        try:
            return Path(name).read_text("utf-8").strip("\r\n")
        except OSError as error:
            why = f"the file with the password cannot be read ({error.strerror})"
            raise InvalidArgument(argument, f"file:{name}", why) from error
    return password
