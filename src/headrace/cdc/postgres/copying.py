"""Reads a table as it is in a snapshot, a chunk at a time, in the order of its key, from a key on. Owns the SQL, and
when a chunk is full. Bounded by the chunk: the server holds the rest back while a chunk is appended."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import pq

from headrace.cdc.postgres.catalog import PostgresTable, quoted

__all__ = ["CHUNK_BYTES", "chunks", "count_rows", "is_behind"]

CHUNK_BYTES: Final = 8 << 20


def _from(table: PostgresTable) -> str:
    return quoted(table.schema, table.name) if table.partitioned else f"ONLY {quoted(table.schema, table.name)}"


def _bound(db: psycopg.Connection[Any], table: PostgresTable, key: Sequence[str]) -> str:
    """`ROW('7'::integer)`: a key as SQL has it."""
    casts = {column.name: cast for column, cast in zip(table.columns, table.casts, strict=True)}
    escaping = pq.Escaping(db.pgconn)
    told = [
        f"{bytes(escaping.escape_literal(text.encode())).decode()}::{casts[name]}"
        for name, text in zip(table.key, key, strict=True)
    ]
    return f"ROW({', '.join(told)})"


def _key(table: PostgresTable) -> str:
    return ", ".join(map(quoted, table.key))


def chunks(
    db: psycopg.Connection[Any], table: PostgresTable, after: Sequence[str] | None, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[pa.Table]:
    """The rows behind the key, as texts."""
    where = "" if after is None else f" WHERE ROW({_key(table)}) > {_bound(db, table, after)}"
    names = ", ".join(quoted(column.name) for column in table.columns)
    text = f"COPY (SELECT {names} FROM {_from(table)}{where} ORDER BY {_key(table)}) TO STDOUT (FORMAT csv)"
    rows, size = io.BytesIO(), 0
    with db.cursor() as cursor, cursor.copy(text) as copy:
        for row in copy:  # the server sends a message for each row
            size += rows.write(row)
            if size >= chunk_bytes:
                yield _parsed(rows, table)
                rows, size = io.BytesIO(), 0
    if size:
        yield _parsed(rows, table)


def _parsed(rows: io.BytesIO, table: PostgresTable) -> pa.Table:
    """A value that is not quoted and empty is null; an empty text is quoted."""
    names = [column.name for column in table.columns]
    rows.seek(0)
    return pa.csv.read_csv(
        rows,
        read_options=pa.csv.ReadOptions(column_names=names, block_size=max(1 << 20, rows.getbuffer().nbytes + 1)),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def count_rows(db: psycopg.Connection[Any], table: PostgresTable) -> int:
    """In the same snapshot, so that what was copied can be counted against it."""
    found = db.execute(f"SELECT count(*) FROM {_from(table)}").fetchone()
    assert found is not None
    return int(found[0])


def is_behind(db: psycopg.Connection[Any], table: PostgresTable, key: Sequence[str], bound: Sequence[str]) -> bool:
    """Whether a key comes behind the bound, in the order in which the table is copied: that is Postgres' to say."""
    found = db.execute(f"SELECT {_bound(db, table, key)} > {_bound(db, table, bound)}").fetchone()
    return bool(found and found[0])
