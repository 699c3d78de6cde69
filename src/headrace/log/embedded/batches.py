"""A table of any size in one transaction: of a writer that numbers its batches, each once. Owns how a batch's number
becomes sequence numbers of an idempotent producer."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.errors import BatchDiffers, OutOfOrderSequence
from headrace.log.embedded.transaction import EmbeddedTransaction, transaction
from headrace.log.embedded.write.append import Stamp

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Progress
    from headrace.log.embedded.topic import EmbeddedTopic

__all__ = ["BATCH_SEQUENCES", "append_batch"]

BATCH_SEQUENCES = 1 << 32
"""Each batch takes this many sequence numbers of its writer, whatever rows it has: so its number says which."""
PIECE_ROWS_MIN = 100_000
PIECES_MAX = 60
"""A batch is appended in pieces (a column of one may not exceed 2 GB), so few that the log remembers two batches."""


def append_batch(
    topic: EmbeddedTopic, rows: pa.Table, writer: str | None, number: int | None, progress: Progress
) -> None:
    """A batch's rows are numbered from `number * BATCH_SEQUENCES`, and a last, empty append uses up the rest of its
    numbers: so the log's own rule for idempotent producers (repeated, next, or out of order) decides about batches."""
    if writer is None or number is None:
        with transaction(topic._engine, lambda _: topic) as tx:
            _append_pieces(tx, topic, rows, progress, None)
        return
    begin, end = number * BATCH_SEQUENCES, number * BATCH_SEQUENCES + rows.num_rows
    gap_from: int | None = None
    while True:
        try:
            with transaction(topic._engine, lambda _: topic) as tx:
                if gap_from is not None:  # batches without rows, or written elsewhere
                    tx.append(topic, [], stamp=Stamp(writer, 0, gap_from, begin - gap_from))
                _append_pieces(tx, topic, rows, progress, Stamp(writer, 0, begin))
                tx.append(topic, [], stamp=Stamp(writer, 0, end, begin + BATCH_SEQUENCES - end))
            return
        except OutOfOrderSequence as error:
            if error.expected >= begin:
                raise BatchDiffers(topic.name, writer, number, rows.num_rows) from error
            gap_from = error.expected


def _append_pieces(
    tx: EmbeddedTransaction, topic: EmbeddedTopic, rows: pa.Table, progress: Progress, stamp: Stamp | None
) -> None:
    size = max(PIECE_ROWS_MIN, -(-rows.num_rows // PIECES_MAX))
    for at in range(0, rows.num_rows, size):
        tx.append(
            topic,
            rows.slice(at, size),
            progress=_slice(progress, at, size),
            stamp=None if stamp is None else replace(stamp, sequence=stamp.sequence + at),
        )


def _slice(progress: Progress, at: int, size: int) -> Progress:
    """The progress of some rows; one that is given for all rows is theirs, too."""
    if progress is None or isinstance(progress, datetime):
        return progress
    return progress[at : at + size]
