"""Rows that operators pass on and can take back: the columns that tell them apart, and when they are final; and what a
step makes of such rows when it reads them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.groups import row_numbers
from headrace.operators.records import OP
from headrace.operators.result_rows import column
from headrace.schema import ID_COLUMN
from headrace.views.contract import FINAL_AT as FINAL_AT
from headrace.views.keyed import Column

__all__ = ["FINAL_AT", "ID", "ROW_ID", "gone_and_come"]

ID = "/id"
"""Of a record, or of a row that comes out: no other of the flow has it."""
ROW_ID = Column(ID_COLUMN, "string")
"""The same, as readers of a view see it."""


def gone_and_come(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of earlier steps that are taken back, and the rows that come and stay. `rows`: what a step reads, in the
    order of the log. A column `OP` says '-' or '+'; without it all rows come. Of the changes of one `ID`, the first
    says whether an earlier step had the row, and the last whether it stays."""
    if OP not in rows.column_names:
        return rows.slice(0, 0), rows
    comes = np.asarray(pc.equal(column(rows, OP), "+"))
    number = row_numbers([column(rows, ID)], rows.num_rows)
    order = np.argsort(number, kind="stable")
    new_id = number[order][1:] != number[order][:-1]
    first, last = np.r_[True, new_id][: len(order)], np.r_[new_id, True][: len(order)]
    gone, come = order[first & ~comes[order]], order[last & comes[order]]
    return rows.take(pa.array(np.sort(gone))), rows.take(pa.array(np.sort(come)))
