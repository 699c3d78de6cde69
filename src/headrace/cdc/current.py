"""What a table's topic says is there now, and how that differs from a table that was read again. Owns the folding of a
topic by key: for a truncate, which says of no row that it goes, and for a snapshot beside, in which deletes appear.

It remembers of each key a digest of its row, not the row: about 250 bytes a row of the table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.cdc.rows import DELETE, LOADED, Shape
from headrace.schema import OP_COLUMN

if TYPE_CHECKING:
    from headrace.log.contract import Topic

__all__ = ["deletes_of", "difference", "live_keys"]

Key = tuple[Any, ...]
PIECE_ROWS = 50_000


def live_keys(records: Iterable[pa.RecordBatch | pa.Table], key: Sequence[str], into: dict[Key, bytes]) -> None:
    """Folds records into the keys that are there, in order."""
    for batch in records:
        ops = batch[OP_COLUMN].to_pylist()
        for op, found in zip(ops, zip(*(batch[name].to_pylist() for name in key), strict=True), strict=True):
            if op == DELETE:
                into.pop(found, None)
            elif op != LOADED:
                into[found] = b""


def deletes_of(keys: Iterable[Key], shape: Shape) -> Iterator[pa.Table]:
    """Records that delete these keys."""
    found = list(keys)
    for at in range(0, len(found), PIECE_ROWS):
        piece = found[at : at + PIECE_ROWS]
        columns = dict(zip(shape.key_names, zip(*piece, strict=True), strict=True))
        arrays = [
            pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(len(piece), field.type)
            for field in shape.schema
            if field.name != OP_COLUMN
        ]
        yield pa.Table.from_arrays([*arrays, pa.array([DELETE] * len(piece))], schema=shape.schema)


def difference(topic: Topic, shape: Shape, read_again: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Records that make of what the topic has the table that was read again: rows that are new or differ, then deletes
    of those that are not there any more."""
    known: dict[Key, bytes] = {}
    names = [name for name in shape.names if name in topic.schema.names]
    fresh = len(names) < len(shape.names)
    for batch in topic.batches(columns=[*names, OP_COLUMN]):
        for op, key, digest in zip(batch[OP_COLUMN].to_pylist(), *_digests(batch, shape, names), strict=True):
            if op == DELETE:
                known.pop(key, None)
            elif op != LOADED:
                known[key] = digest
    for table in read_again:
        keys, digests = _digests(table, shape, list(shape.names))
        differs = [known.pop(key, None) != digest or fresh for key, digest in zip(keys, digests, strict=True)]
        changed = table.filter(pa.array(differs, pa.bool_()))
        if changed.num_rows:
            yield changed
    yield from deletes_of(known, shape)


def _digests(rows: pa.RecordBatch | pa.Table, shape: Shape, names: Sequence[str]) -> tuple[list[Key], list[bytes]]:
    values = {name: rows[name].to_pylist() for name in names}
    keys = list(zip(*(values[name] for name in shape.key_names), strict=True))
    told = zip(*values.values(), strict=True)
    return keys, [hashlib.blake2b(repr(row).encode(), digest_size=12).digest() for row in told]
