"""Which tables of a database are captured, what their topics are called, and what is masked in them. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from headrace.errors import InvalidArgument
from headrace.names import check_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["HOME_SCHEMA", "Choice", "masked", "state_topic"]

HOME_SCHEMA = "public"
MASKS = ("hash", "null")
READERS = "headrace_outbox_readers"
"""Made beside an outbox: no table of the application's."""
_NAME = re.compile(r"!?[^.\s]+(\.[^.\s]+)?")


def state_topic(capture: str) -> str:
    """Where a capture keeps how far it is: a topic like any other, so that it is written with the changes."""
    return f"{capture}.capture"


@dataclass(frozen=True)
class Choice:
    """`tables`: patterns such as "public.*" and "!public.audit"; without a schema they mean `home`, the schema that a
    database has when none is said. The last pattern that fits a table decides. `mask`: what becomes of a column,
    "table.column" or "schema.table.column": "hash" or "null". `debezium`: the prefix of topics with events in
    Debezium's envelope, "" for none; `schemas`: with a schema block in each."""

    tables: tuple[str, ...] = (f"{HOME_SCHEMA}.*",)
    mask: tuple[tuple[str, str], ...] = ()
    home: str = HOME_SCHEMA
    debezium: str = ""
    schemas: bool = False

    @classmethod
    def of(
        cls,
        tables: Sequence[str] | None,
        mask: Mapping[str, str] | None,
        home: str = HOME_SCHEMA,
        *,
        debezium: str | None = None,
        schemas: bool = False,
    ) -> Choice:
        if debezium is not None:
            check_name(debezium, argument="debezium")
        elif schemas:
            raise InvalidArgument("debezium_schemas", schemas, "needs debezium=, the prefix of the events' topics")
        given = (tables,) if isinstance(tables, str) else tuple(tables if tables is not None else (f"{home}.*",))
        for pattern in given:
            if not isinstance(pattern, str) or not _NAME.fullmatch(pattern):
                why = (
                    f"is no pattern of tables: 'users', '{home}.*', 'billing.invoices', or '!{home}.audit' to leave out"
                )
                raise InvalidArgument("tables", pattern, why)
        if not any(not pattern.startswith("!") for pattern in given):
            raise InvalidArgument("tables", given, f"names no table to capture: put '{home}.*' first, say")
        for column, how in (mask or {}).items():
            if how not in MASKS:
                raise InvalidArgument("mask", how, f"of {column} must be one of {', '.join(MASKS)}")
            if column.count(".") not in (1, 2):
                raise InvalidArgument("mask", column, "must be 'table.column' or 'schema.table.column'")
        return cls(given, tuple(sorted((mask or {}).items())), home, debezium or "", schemas)

    def full(self, name: str) -> tuple[str, str]:
        """Schema and table of "users" or "billing.invoices"."""
        schema, _, table = name.rpartition(".")
        return schema or self.home, table

    def topic(self, capture: str, schema: str, table: str) -> str:
        """Of a captured table: `shop_users`, of another schema `shop_billing_users`."""
        return f"{capture}_{table}" if schema == self.home else f"{capture}_{schema}_{table}"

    def takes(self, schema: str, table: str) -> bool:
        found = False
        for pattern in () if table == READERS else self.tables:
            wanted = pattern.removeprefix("!")
            wanted = wanted if "." in wanted else f"{self.home}.{wanted}"
            if fnmatchcase(f"{schema}.{table}", wanted):
                found = not pattern.startswith("!")
        return found

    def masks(self, schema: str, table: str) -> dict[str, str]:
        """The masked columns of a table."""
        found = {}
        for name, how in self.mask:
            *where, column = name.split(".")
            if (where if len(where) == 2 else [self.home, *where]) == [schema, table]:
                found[column] = how
        return found


def masked(values: pa.Array, how: str, secret: bytes) -> pa.Array:
    """The values of a column as text, made unreadable. Equal values stay equal: `hash` is an HMAC with a secret of the
    home, so nobody without it can try values."""
    import pyarrow as pa

    if how == "null":
        return pa.nulls(len(values), pa.string())
    return pa.array(
        [
            None if each is None else hmac.new(secret, str(each).encode(), hashlib.sha256).hexdigest()
            for each in values.to_pylist()
        ],
        pa.string(),
    )
