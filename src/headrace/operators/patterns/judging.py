"""Which events count for a pattern: each is judged by its own time and its partition's progress. On time up to its time
+ grace, corrected up to that + within, then dropped. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.operators.joins.rows import ID
from headrace.operators.result_rows import column
from headrace.time import UNSET
from headrace.views.contract import LedgerRow
from headrace.views.values import us_column

__all__ = ["Judged", "judge", "ledger_of"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Judged:
    """The accepted records of a batch, None where it has none, and which of them are late. `counts`: on time,
    corrected, dropped, untimed."""

    records: pa.Table | None
    late: Flags
    dropped: pa.Table | None
    counts: tuple[int, int, int, int]

    def only(self, which: Flags) -> Judged:
        """Some of the accepted records."""
        records = None if self.records is None else self.records.filter(pa.array(which))
        return Judged(records, self.late[which], None, (0, 0, 0, 0))


def judge(records: pa.Table | None, time: str, grace_us: int, late_us: int, names: list[str]) -> Judged:
    """`names`: the columns of records that are dropped, as readers see them."""
    if records is None or not records.num_rows:
        return Judged(None, np.zeros(0, np.bool_), None, (0, 0, 0, 0))
    timed = column(records, time).is_valid()
    untimed = len(timed) - timed.true_count
    records = records.filter(timed) if untimed else records
    on_time_us = us_column(records[time]) + grace_us
    progress_us = column(records, "_progress").cast(pa.int64()).fill_null(UNSET).to_numpy()
    late, gone = progress_us > on_time_us, progress_us > on_time_us + late_us
    counts = (int((~late).sum()), int((late & ~gone).sum()), int(gone.sum()), untimed)
    dropped = None
    if gone.any():
        dropped = records.filter(pa.array(gone)).select([*names, ID])
        records, late = records.filter(pa.array(~gone)), late[~gone]
    return Judged(records, late, dropped, counts)


def ledger_of(gone: Judged, new: Judged) -> tuple[LedgerRow, ...]:
    """Each event once, by its verdict; one that goes is counted no more."""
    counts = [one - other for one, other in zip(new.counts, gone.counts, strict=True)]
    return (LedgerRow(None, None, *counts),) if any(counts) else ()
