"""Rows that are about to be written, by topic and in order. Owns where they wait: beyond `HELD_BYTES_MAX` on disk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from headrace.storage import disk
from headrace.storage.spill import HELD_BYTES_MAX, on_disk

__all__ = ["Parts"]


class Parts:
    """`folder` is made when it is needed."""

    def __init__(
        self, folder: Path, parts: Iterable[tuple[str, pa.Table]] = (), held_max: int = HELD_BYTES_MAX
    ) -> None:
        self._folder, self._held_max = folder, held_max
        self._all: list[tuple[str, pa.Table]] = []
        self._held, self._held_from = 0, 0
        self.on_disk = 0
        for part in parts:
            self.append(part)

    def append(self, part: tuple[str, pa.Table]) -> None:
        self._all.append(part)
        self._held += part[1].nbytes
        if self._held >= self._held_max:
            self._spill()

    def without(self, topics: Collection[str]) -> Parts:
        """The others."""
        return Parts(self._folder, (part for part in self._all if part[0] not in topics), self._held_max)

    def _spill(self) -> None:
        waiting = self._all[self._held_from :]
        sinks = []
        for _, table in waiting:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            sinks.append(memoryview(sink.getvalue()))
        disk.make_directory(self._folder)
        for at, ((topic, _), view) in enumerate(
            zip(waiting, on_disk(self._folder, sinks), strict=True), self._held_from
        ):
            self._all[at] = topic, pa.ipc.open_stream(pa.py_buffer(view)).read_all()
        self.on_disk += self._held
        self._held, self._held_from = 0, len(self._all)

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        yield from self._all

    def __reversed__(self) -> Iterator[tuple[str, pa.Table]]:
        yield from reversed(self._all)
