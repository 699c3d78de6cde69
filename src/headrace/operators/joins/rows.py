"""Rows that operators pass on and can take back: the columns that tell them apart, and when they are final."""

from __future__ import annotations

from headrace.schema import ID_COLUMN
from headrace.views.contract import FINAL_AT as FINAL_AT
from headrace.views.keyed import Column

__all__ = ["FINAL_AT", "ID", "ROW_ID"]

ID = "/id"
"""Of a record, or of a row that comes out: no other of the flow has it."""
ROW_ID = Column(ID_COLUMN, "string")
"""The same, as readers of a view see it."""
