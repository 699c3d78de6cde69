"""Chunks of a partition that several threads read at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.log.kafka.reading import Chunk, Mark, Reader


def chunk(start: int, stop: int) -> Chunk:
    numbers = np.arange(start, stop)
    rows = pa.record_batch({"n": numbers})
    return Chunk(start, Mark(stop), rows, numbers, numbers, numbers, numbers, numbers, schema_version=1)


def test_a_chunk_that_another_thread_read_meanwhile_gives_no_record_twice() -> None:
    nothing: Any = None
    reader = Reader(nothing, "clicks", lambda: SimpleNamespace(schema_version=1, name="clicks"), nothing)  # type: ignore
    reader._keep(0, chunk(0, 3))
    reading = reader.chunks(0, 0, 5, (0, 5))
    first = next(reading)
    reader._keep(0, chunk(0, 5))  # the other began at 0, too, when there were five records
    rest = list(reading)
    assert [list(each.offsets) for each in (first, *rest)] == [[0, 1, 2], [3, 4]]
    assert [each.rows.column(0).to_pylist() for each in (first, *rest)] == [[0, 1, 2], [3, 4]]
