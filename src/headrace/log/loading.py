"""Large tables into a topic, such as years of Parquet files: in batches, in bounded memory. Owns how they are cut, and
where an interrupted load continues. After a crash the log has all batches up to some point, each whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load"]

AHEAD_BATCHES = 4
"""Arrow reads so many of a dataset ahead, and one file at a time; its own default holds gigabytes."""


def load(
    append: Callable[[pa.RecordBatch, int], object],
    data: Any,
    there: int,
    batch_rows: int,
    progress: Callable[[int], object] | None,
) -> int:
    """Hands batches to `append`, each with the number of rows before it; how many rows. `there`: so many rows the log
    has already, and as many are skipped."""
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise InvalidArgument("batch_rows", batch_rows, "must be a whole number, 1 or more")
    done = there
    for batch in _after(there, _batches(data, batch_rows), batch_rows):
        append(batch, done)
        done += batch.num_rows
        if progress is not None:
            progress(done)
    return done - there


def _batches(data: Any, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """In order, whatever it is: a dataset's files by name, each from its beginning."""
    import pyarrow as pa

    from headrace.rows import without_stream

    data = without_stream(data)
    if hasattr(data, "scanner") and hasattr(data, "get_fragments"):
        return iter(
            data.scanner(batch_size=batch_rows, batch_readahead=AHEAD_BATCHES, fragment_readahead=1).to_reader()
        )
    if hasattr(data, "to_reader"):
        return iter(data.to_reader())
    if hasattr(data, "__arrow_c_stream__"):
        return iter(pa.RecordBatchReader.from_stream(data))
    why = "must be a pyarrow dataset, or a table or stream of Arrow data (__arrow_c_stream__); use append for rows"
    raise InvalidArgument("data", type(data).__name__, why)


def _after(skip: int, batches: Iterator[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Without the first `skip` rows, cut to at most `batch_rows`."""
    for batch in batches:
        first = min(skip, batch.num_rows)
        skip -= first
        for at in range(first, batch.num_rows, batch_rows):
            yield batch.slice(at, batch_rows)
