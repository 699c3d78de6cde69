"""Bytes that wait on disk and not in memory: a file without a name, mapped. Owns the file until nobody looks at its
bytes any more; after a crash nothing is left of it."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.storage import disk

__all__ = ["HELD_BYTES_MAX", "on_disk"]

HELD_BYTES_MAX = 64 << 20
"""So much may wait in memory."""


def on_disk(folder: Path, parts: Sequence[bytes | memoryview]) -> list[memoryview]:
    """The same bytes, of a file that only its owner may read."""
    views = [memoryview(part).cast("B") for part in parts]
    total = sum(len(view) for view in views)
    if not total:
        return views
    with disk.typed(folder), tempfile.TemporaryFile(dir=folder) as file:
        disk.write_at(file.fileno(), views, 0)
        mapped = memoryview(mmap.mmap(file.fileno(), total, prot=mmap.PROT_READ))
    found, begin = [], 0
    for view in views:
        found.append(mapped[begin : begin + len(view)])
        begin += len(view)
    return found
