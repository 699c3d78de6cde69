"""Reads a table as it is in a snapshot, a chunk at a time, in the order of its key, from a key on. Owns the SQL, and
when a chunk is full. Bounded by the chunk: the server holds the rest back while a chunk is appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pymysql.cursors import SSCursor

from headrace.cdc.mysql.catalog import MySqlTable, quoted, quoted_beside_marks
from headrace.cdc.mysql.server import Session
from headrace.cdc.mysql.types import kind_of, text_of

__all__ = ["chunks", "count_rows", "is_behind", "key_text", "ordered"]

CHUNK_BYTES: Final = 8 << 20
PIECE_ROWS: Final = 1_000
_NUMBERS: Final = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"}
_DATES: Final = {"date", "datetime", "timestamp"}
_BYTES: Final = {"binary", "varbinary"}
_TEXTS: Final = {"char", "varchar"}


def ordered(table: MySqlTable) -> bool:
    """Whether keys can be compared as the table is ordered: otherwise copying begins anew when it was cut off."""
    return all(_kind(table, name).name in _NUMBERS | _DATES | _BYTES | _TEXTS for name in table.key)


def _kind(table: MySqlTable, name: str) -> Any:
    return kind_of(next(str(column.type) for column in table.columns if column.name == name))


def key_text(value: Any) -> str:
    """A value of a key in a chunk, as it is recorded."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _bound(table: MySqlTable, name: str, text: str) -> tuple[str, str]:
    """A value of a key as SQL has it, and what is bound in it."""
    kind = _kind(table, name)
    if kind.name in _BYTES:
        return "UNHEX(%s)", text
    if kind.name in _NUMBERS:
        scale = (*kind.sizes, 0, 0)[1] if kind.name == "decimal" else 0
        return f"CAST(%s AS DECIMAL(65,{scale}))", text
    if kind.name in _DATES:
        return {"date": "CAST(%s AS DATE)"}.get(kind.name, "CAST(%s AS DATETIME(6))"), text
    collation = table.collations[name]
    return f"CONVERT(%s USING {collation.partition('_')[0]}) COLLATE {collation}", text


def _behind(table: MySqlTable, sides: Sequence[tuple[str, list[str]]], bound: Sequence[str]) -> tuple[str, list[str]]:
    """`a > 1 OR a = 1 AND b > 2`: comparing rows uses no index there. `sides`: what is compared, with its values."""
    terms, values = [], []
    marks = [_bound(table, name, text) for name, text in zip(table.key, bound, strict=True)]
    for last in range(len(sides)):
        parts = []
        for at in range(last + 1):
            parts.append(f"{sides[at][0]} {'>' if at == last else '='} {marks[at][0]}")
            values += [*sides[at][1], marks[at][1]]
        terms.append(" AND ".join(parts))
    return " OR ".join(terms), values


def _read(table: MySqlTable, name: str) -> str:
    """A float is told as a double, exactly, and bits as a number."""
    plus = {"float": " + 0e0", "bit": " + 0"}.get(_kind(table, name).name, "")
    return quoted_beside_marks(name) + plus


def chunks(
    db: Session, table: MySqlTable, after: Sequence[str] | None, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[pa.Table]:
    """The rows behind the key: texts, and bytes where the column has them."""
    names = [column.name for column in table.columns]
    where, values = ("", list[str]())
    if after is not None:
        said, values = _behind(table, [(quoted_beside_marks(name), []) for name in table.key], after)
        where = f" WHERE {said}"
    text = (
        f"SELECT {', '.join(_read(table, name) for name in names)} "
        f"FROM {quoted_beside_marks(table.schema, table.name)} FORCE INDEX (PRIMARY){where} "
        f"ORDER BY {', '.join(map(quoted_beside_marks, table.key))}"
    )
    cursor, ended = SSCursor(db.connection), False
    try:
        cursor.execute(text, tuple(values))
        parts: list[pa.Table] = []
        while rows := cursor.fetchmany(PIECE_ROWS):
            parts.append(_table(names, rows))
            if sum(part.nbytes for part in parts) >= chunk_bytes:
                yield _joined(parts)
                parts = []
        ended = True
        if parts:
            yield _joined(parts)
    finally:
        if not ended:
            _cut(cursor, db)


def _cut(cursor: SSCursor, db: Session) -> None:
    """Ends a result that is not read to its end, which may take hours: with its connection. There is none if the
    statement itself was refused."""
    if cursor._result is None:
        return
    db.connection._force_close()
    cursor._result.unbuffered_active = False
    cursor.connection = None


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    return pa.table([_column(column) for column in zip(*rows, strict=True)], list(names))


def _column(values: Sequence[Any]) -> pa.Array:
    found = pa.array(values)
    return found.cast(pa.string()) if pa.types.is_null(found.type) else found


def _joined(parts: list[pa.Table]) -> pa.Table:
    """A column that is null in one piece has no type there."""
    return pa.concat_tables(parts, promote_options="permissive").combine_chunks()


def count_rows(db: Session, table: MySqlTable) -> int:
    """In the same snapshot, so that what was copied can be counted against it."""
    return int(db.rows(f"SELECT count(*) FROM {quoted(table.schema, table.name)}")[0][0])


def is_behind(db: Session, table: MySqlTable, key: Sequence[Any], bound: Sequence[str]) -> bool:
    """Whether a key comes behind the bound, in the order in which the table is copied: that is the server's to say."""
    sides = []
    for name, value in zip(table.key, key, strict=True):
        mark, text = _bound(table, name, text_of(value, _kind(table, name)) or "")
        sides.append((mark, [text]))
    said, values = _behind(table, sides, bound)
    return bool(db.rows(f"SELECT {said}", values)[0][0] == "1")
