"""The names of the hidden columns that rows of joins and enrichments have. Owns no behaviour."""

from __future__ import annotations

__all__ = ["FINAL_AT", "ID"]

ID, FINAL_AT = "/id", "/final_at"
"""Which row it is; and the time at which, when the frontier of the deciding input has passed it, the row is final."""
