"""The columns that partial rows have besides groups and slots."""

from __future__ import annotations

RECORDS, UPDATED = "_records", "_updated_at"
FIRST, LAST = "_first", "_last"
"""Of the records of a pane of a session."""
CARRIED = "_carried"
"""Corrections of the view whose changes are folded."""
