"""What Postgres says of its tables: columns, types, and what really identifies a row. Owns the SQL over its catalog,
and which tables cannot be captured, with the reason. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import psycopg

from headrace.cdc.choice import Choice
from headrace.cdc.postgres.types import Kind
from headrace.cdc.tables import Column, SourceTable

__all__ = ["Kinds", "PostgresTable", "numbered", "quoted", "tables_of"]

_TABLES: Final = """
    SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
           array(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
                 WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indisvalid AND i.indimmediate
                   AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
                 ORDER BY k.place),
           pg_has_role(c.relowner, 'USAGE'),
           has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%'
    ORDER BY 2, 3"""
_COLUMNS: Final = """
    SELECT attrelid::int8, attname::text, atttypid::int8, atttypmod, attnotnull,
           atthasmissing OR atthasdef OR attnotnull OR attidentity <> '', format_type(atttypid, atttypmod),
           attnum::int8
    FROM pg_attribute WHERE attrelid = any($1::oid[]) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    ORDER BY attrelid, attnum"""
_NUMBERS: Final = "SELECT attname::text, attnum::int8 FROM pg_attribute WHERE attrelid = $1::int8 AND attnum > 0"
_TYPES: Final = (
    "SELECT oid::int8, typname::text, typtype::text, typbasetype::int8, typtypmod, typelem::int8, typarray::int8 "
    "FROM pg_type"
)


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@dataclass(frozen=True)
class PostgresTable(SourceTable):
    """`casts`: the columns' types, as SQL names them."""

    partitioned: bool = False
    casts: tuple[str, ...] = field(default=(), repr=False)

    def only(self, columns: Sequence[Column]) -> Self:
        names = {column.name for column in columns}
        kept = [both for both in zip(self.columns, self.casts, strict=True) if both[0].name in names]
        return replace(self, columns=tuple(each for each, _ in kept), casts=tuple(each for _, each in kept))


def _refused(identity: str, key: Sequence[str], owned: bool, readable: bool) -> str | None:
    """Why a table cannot be captured. With one that nothing identifies in a publication, Postgres would refuse its
    users' updates. `identity`: d, i, f or n, as in REPLICA IDENTITY."""
    if not owned:
        return "another role owns it, and only its owner can publish it: GRANT that role to the capture's"
    if not readable:
        return "the capture's role may not read it: GRANT SELECT on it, and USAGE on its schema"
    if identity == "n":
        return "it has REPLICA IDENTITY NOTHING: ALTER TABLE … REPLICA IDENTITY DEFAULT"
    if not key:
        return "it has no primary key: add one, or ALTER TABLE … REPLICA IDENTITY USING INDEX …"
    return None


class Kinds:
    """The types of a database, by number. New ones are looked up when they are asked for."""

    def __init__(self, db: psycopg.Connection[Any]) -> None:
        self._db = db
        self._known: dict[int | str, tuple[Any, ...]] = {}

    def of(self, oid: int | str, modifier: int) -> Kind:
        if oid not in self._known:
            self._known = {row[0]: row[1:] for row in self._db.execute(_TYPES)}
        name, sort, base, base_modifier, element, _ = self._known.get(oid, ("unknown", "b", 0, -1, 0, 0))
        if sort == "d":
            return self.of(base, base_modifier)
        if element and self._known.get(element, (None,) * 6)[5] == oid:
            return Kind(name, modifier, self.of(element, modifier))
        return Kind(name, modifier)


def numbered(db: psycopg.Connection[Any], oid: int, columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns with their numbers, as far as the table has them now. The stream says names alone, and a column that
    was dropped and added again has its name, and another number."""
    numbers = dict(db.execute(_NUMBERS, (oid,)).fetchall())
    return tuple(column._replace(number=numbers.get(column.name, 0)) for column in columns)


def tables_of(
    db: psycopg.Connection[Any], choice: Choice | None = None, oid: int | str | None = None
) -> list[PostgresTable]:
    """The tables that are chosen, or the one of that number."""
    found = {}
    for number, schema, name, sort, identity, key, owned, readable in db.execute(_TABLES):
        if number == oid if choice is None else choice.takes(schema, name):
            found[number] = (schema, name, sort == "p", tuple(key), _refused(identity, key, owned, readable))
    columns: dict[int, list[tuple[Any, ...]]] = {number: [] for number in found}
    for number, *column in db.execute(_COLUMNS, (list(found),)):
        columns[number].append(tuple(column))
    return [
        PostgresTable(
            number,
            schema,
            name,
            key,
            tuple(
                Column(each, type_, modifier, each in key, place)
                for each, type_, modifier, *_, place in columns[number]
            ),
            frozenset(each[0] for each in columns[number] if each[4]),
            refused,
            partitioned,
            tuple(each[5] for each in columns[number]),
        )
        for number, (schema, name, partitioned, key, refused) in found.items()
    ]
