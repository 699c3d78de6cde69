"""Where a Postgres store is: `postgresql://user@host:5432/db?schema=shop`. Owns what `schema` means; everything else
is libpq's, and how much of it is shown is `headrace.libpq`'s."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlunsplit

from headrace import libpq
from headrace.errors import InvalidArgument

__all__ = ["SCHEMA", "Address"]

SCHEMA = "headrace"
"""The schema of a store whose address names none."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Address:
    """`url` is libpq's, and may hold a password."""

    url: str = field(repr=False)
    schema: str

    @classmethod
    def parse(cls, text: str) -> Address:
        parts, query = libpq.split_address(text, argument="views")
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
        return libpq.shown(self.url, f"schema={self.schema}")

    def parameters(self) -> dict[str, Any]:
        """What libpq connects with; references are resolved."""
        return libpq.connection_parameters(self.url, self.shown, argument="views")
