"""What a query would find in some records, and what that would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.search.batch import Batch
from headrace.search.fields import fields_of
from headrace.search.index import Laid, QueryIndex

__all__ = ["Explained", "explained"]


@dataclass(frozen=True, slots=True)
class Explained:
    """`meaning`: the query as it was understood."""

    meaning: str
    laid: Laid
    candidates: int
    hits: int


def explained(
    text: str,
    columns: pa.Schema,
    names: tuple[str, ...],
    records: Sequence[pa.RecordBatch],
    whose: tuple[str, str] | None = None,
) -> Explained:
    """InvalidSearch if it is no query over these columns. `names`: those that are searched for words. `whose`: a
    column, and the tenant whose records alone count."""
    index = QueryIndex(fields_of(columns, names))
    slot = index.add(text, 0)
    table = pa.Table.from_batches(records, columns).combine_chunks()
    if whose is not None:
        table = table.filter(pc.equal(table[whose[0]], whose[1])).combine_chunks()
    batch = Batch(table, index.fields)
    index.learn(batch)
    found = index.hits(batch, np.ones(table.num_rows, np.int64), learn=False)
    return Explained(index.text(slot), index.laid(slot), found.candidates, len(found.rows))
