"""Which batches may hold a key: a filter for each large batch, so that the records of one key are found without reading
the others'. Owns the file `keys.db`. It is a cache: it may be removed at any time, is not synced, and whatever is wrong
with it means that batches are read which need not be. Holds bits of hashes, never a key.

A reader that has looked for a key stores a filter of each large batch that had none; nobody who only appends pays. A
filter counts only for the very batch it was made of (the batch's checksum is part of its own), so batches that were
sealed, compacted or erased are read again, once.

A filter is a blocked Bloom filter: a key's bits lie in one block of 64 bytes, of which the last four are a checksum. So
a lookup reads one block of each filter, and a damaged block counts as none."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.log.embedded.storage.index import BatchRow
from headrace.storage.cache import CacheFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["RECORDS_MIN", "KeyFilters"]

RECORDS_MIN = 256
"""Smaller batches are read: sealing joins them soon."""
BLOCK_BYTES, CHECK_BYTES = 64, 4
BLOCK_BITS = 8 * (BLOCK_BYTES - CHECK_BYTES)
BITS_PER_KEY, BITS_SET = 10, 5
_CREATE = (
    "CREATE TABLE IF NOT EXISTS filters (topic TEXT, partition INTEGER, base INTEGER, bits BLOB, "
    "PRIMARY KEY (topic, partition, base))"
)
_BLOCKS = (
    f"SELECT base, ?1 % (length(bits) / {BLOCK_BYTES}), "
    f"substr(bits, 1 + {BLOCK_BYTES} * (?1 % (length(bits) / {BLOCK_BYTES})), {BLOCK_BYTES}) "
    "FROM filters WHERE topic = ?2 AND partition = ?3 AND base BETWEEN ?4 AND ?5"
)


class KeyFilters:
    def __init__(self, path: Path) -> None:
        self._file = CacheFile(path)

    def absent(self, topic: str, rows: Sequence[BatchRow], crc: int) -> tuple[set[int], set[int]]:
        """Of these batches of one partition, by their base: those that surely hold no key of this crc, and those that
        have a filter."""
        absent: set[int] = set()
        known: set[int] = set()
        if not self._file.exists() or all(row.records < RECORDS_MIN for row in rows):
            return absent, known
        partition, batches = rows[0].partition, {row.base: row.body_crc for row in rows}
        place, bits = _hash(crc)

        def look(db: sqlite3.Connection) -> None:
            for base, number, block in db.execute(_BLOCKS, (place, topic, partition, rows[0].base, rows[-1].base)):
                if base in batches and _is_whole(block, number, _seed(topic, partition, base, batches[base])):
                    known.add(base)
                    if not all(block[bit >> 3] >> (bit & 7) & 1 for bit in bits):
                        absent.add(base)

        self._file.use(look)
        return absent, known

    def put(self, topic: str, row: BatchRow, crcs: npt.NDArray[np.uint32]) -> None:
        """A filter of the keys of a batch. Those of the batches that it was made of go."""
        made = _filter(crcs, _seed(topic, row.partition, row.base, row.body_crc))

        def write(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_CREATE)
            replaced = "DELETE FROM filters WHERE topic = ? AND partition = ? AND base BETWEEN ? AND ?"
            db.execute(replaced, (topic, row.partition, row.base, row.next - 1))
            db.execute("INSERT INTO filters VALUES (?, ?, ?, ?)", (topic, row.partition, row.base, made))
            db.execute("COMMIT")

        self._file.use(write)

    def forget(self, topic: str) -> None:
        """The topic is no more."""
        if self._file.exists():
            self._file.use(lambda db: db.execute("DELETE FROM filters WHERE topic = ?", (topic,)))


def _filter(crcs: npt.NDArray[np.uint32], seed: int) -> bytes:
    import numpy as np

    hashes = np.unique(crcs).astype(np.uint64)
    places = _mix(hashes)
    spread = _mix(places)
    blocks = max(1, -(-len(hashes) * BITS_PER_KEY // BLOCK_BITS))
    firsts = ((places >> np.uint64(1)) % np.uint64(blocks)).astype(np.int64) * BLOCK_BITS
    bits = np.zeros(blocks * BLOCK_BITS, np.bool_)
    for turn in range(BITS_SET):
        share = (spread >> np.uint64(12 * turn)) & np.uint64(0xFFF)
        bits[firsts + (share * np.uint64(BLOCK_BITS) >> np.uint64(12)).astype(np.int64)] = True
    packed, size = np.packbits(bits, bitorder="little").tobytes(), BLOCK_BYTES - CHECK_BYTES
    bodies = (packed[at : at + size] for at in range(0, len(packed), size))
    return b"".join(body + _check(body, number, seed) for number, body in enumerate(bodies))


def _is_whole(block: bytes, number: int, seed: int) -> bool:
    return len(block) == BLOCK_BYTES and block[-CHECK_BYTES:] == _check(block[:-CHECK_BYTES], number, seed)


def _seed(topic: str, partition: int, base: int, body_crc: int) -> int:
    return zlib.crc32(f"{topic}/{partition}/{base}/{body_crc}".encode())


def _check(body: bytes, number: int, seed: int) -> bytes:
    """Of a block, the batch that its filter is of, and its number there."""
    return zlib.crc32(body, zlib.crc32(number.to_bytes(4, "big"), seed)).to_bytes(CHECK_BYTES, "big")


def _hash(crc: int) -> tuple[int, list[int]]:
    """As in `_filter`, of one key: what its block is chosen by, and its bits there."""
    import numpy as np

    placed = _mix(np.array([crc], np.uint64))
    spread = int(_mix(placed)[0])
    return int(placed[0]) >> 1, [((spread >> 12 * turn & 0xFFF) * BLOCK_BITS) >> 12 for turn in range(BITS_SET)]


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64: a crc alone is no hash, and those of a partition have a remainder in common."""
    import numpy as np

    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
