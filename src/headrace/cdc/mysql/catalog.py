"""What MySQL and MariaDB say of their tables: columns, types, keys, and foreign keys that change rows of other tables.
Owns the SQL over information_schema, and which tables cannot be captured, with the reason. Reads only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.cdc.choice import Choice
from headrace.cdc.mysql.server import Session
from headrace.cdc.mysql.types import arrow_type, key_type, kind_of
from headrace.cdc.tables import Column, SourceTable

__all__ = ["Cascade", "MySqlTable", "cascades_of", "quoted", "quoted_beside_marks", "tables_of"]

SYSTEM: Final = ("mysql", "sys", "information_schema", "performance_schema")
_TABLES: Final = """
    SELECT table_schema, table_name, engine, table_type FROM information_schema.tables
    WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
      AND table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')
    ORDER BY 1, 2"""
_COLUMNS: Final = """
    SELECT table_name, column_name, column_type, collation_name,
           is_nullable = 'NO' OR coalesce(column_default, 'NULL') <> 'NULL',
           extra LIKE '%%GENERATED%%' AND extra NOT LIKE '%%DEFAULT_GENERATED%%'
    FROM information_schema.columns WHERE table_schema = %s ORDER BY table_name, ordinal_position"""
_KEYS: Final = """
    SELECT table_name, column_name FROM information_schema.statistics
    WHERE table_schema = %s AND index_name = 'PRIMARY' ORDER BY table_name, seq_in_index"""
_CASCADES: Final = """
    SELECT r.constraint_schema, r.table_name, k.referenced_table_schema, r.referenced_table_name,
           r.delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'),
           r.update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'),
           group_concat(k.referenced_column_name SEPARATOR '\\0')
    FROM information_schema.referential_constraints r JOIN information_schema.key_column_usage k
      ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name
      AND k.table_name = r.table_name
    WHERE r.delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
       OR r.update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
    GROUP BY 1, 2, 3, 4, 5, 6, r.constraint_name"""
_WIDTH: Final = re.compile(r"^((?:small|medium|big)?int|integer|year)\(\d+\)|^(tinyint)\((?!1\))\d+\)")


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def quoted_beside_marks(*names: str) -> str:
    """For a statement that is given values, and in which '%' therefore marks one."""
    return quoted(*names).replace("%", "%%")


@dataclass(frozen=True)
class MySqlTable(SourceTable):
    """`collations`: of the columns that are text."""

    collations: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Cascade:
    """A foreign key by which the database changes rows of `child` itself: InnoDB does it below the binlog. `columns`:
    of the parent, that it refers to."""

    parent: str
    child: str
    on_delete: bool
    on_update: bool
    columns: frozenset[str]


def tables_of(db: Session, choice: Choice | None = None, only: str | None = None) -> list[MySqlTable]:
    """The tables that are chosen, or the one of that full name."""
    found = [
        (schema, name, engine, kind)
        for schema, name, engine, kind in db.rows(_TABLES)
        if (f"{schema}.{name}" == only if choice is None else choice.takes(schema, name))
    ]
    tables = []
    for schema in dict.fromkeys(each[0] for each in found):
        columns: dict[str, list[tuple[str, str, str | None, bool]]] = {}
        for table, column, kind, collation, filled, generated in db.rows(_COLUMNS, (schema,)):
            if generated != "1":
                columns.setdefault(table, []).append((column, _plain(kind), collation, filled == "1"))
        keys: dict[str, list[str]] = {}
        for table, column in db.rows(_KEYS, (schema,)):
            keys.setdefault(table, []).append(column)
        for _, name, engine, sort in (each for each in found if each[0] == schema):
            tables.append(_table(schema, name, engine, sort, keys.get(name, []), columns.get(name, [])))
    return tables


def _table(
    schema: str, name: str, engine: str, sort: str, key: list[str], columns: list[tuple[str, str, str | None, bool]]
) -> MySqlTable:
    return MySqlTable(
        f"{schema}.{name}",
        schema,
        name,
        tuple(key),
        tuple(Column(column, kind, -1, column in key) for column, kind, _, _ in columns),
        frozenset(column for column, _, _, filled in columns if filled),
        _refused(engine, sort, key, {column: kind for column, kind, _, _ in columns}),
        {column: collation for column, _, collation, _ in columns if collation},
    )


def _plain(column_type: str) -> str:
    """Without the width that integers are shown with, which servers say or do not."""
    return _WIDTH.sub(lambda found: found[1] or found[2], column_type)


def _refused(engine: str, sort: str, key: list[str], columns: Mapping[str, str]) -> str | None:
    if not key:
        return "it has no primary key: add one"
    if sort != "BASE TABLE":
        return "it keeps its own history (SYSTEM VERSIONED), which the binlog tells in another way"
    if engine.lower() not in ("innodb", "rocksdb"):
        return f"it is kept by {engine}, which has no snapshots: ALTER TABLE … ENGINE = InnoDB"
    for name, kind in columns.items():
        if (key_type if name in key else arrow_type)(kind_of(kind)) is None:
            where = "of the key " if name in key else ""
            return f"column {name!r} {where}is of the type {kind}, which is not captured"
    return None


def cascades_of(db: Session) -> dict[str, list[Cascade]]:
    """By parent: its children, and what these take with them."""
    direct: dict[str, list[Cascade]] = {}
    for schema, child, parent_schema, parent, on_delete, on_update, columns in db.rows(_CASCADES):
        found = Cascade(
            f"{parent_schema}.{parent}",
            f"{schema}.{child}",
            on_delete == "1",
            on_update == "1",
            frozenset(columns.split("\0")),
        )
        direct.setdefault(found.parent, []).append(found)
    return {parent: _all(parent, direct) for parent in direct}


def _all(parent: str, direct: Mapping[str, Sequence[Cascade]]) -> list[Cascade]:
    found = [*direct[parent]]
    for each in found:  # grows meanwhile
        known = {other.child for other in found}
        further = [other for other in direct.get(each.child, ()) if other.child not in known]
        found += [replace(each, child=other.child) for other in further]
    return found
