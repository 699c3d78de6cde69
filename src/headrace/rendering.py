"""Small tables in HTML, for notebooks. Owns the markup and the escaping: names and values are data, never markup.
Colours and fonts are the notebook's own, so light and dark are both right. Knows nothing of what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

__all__ = ["ROWS_MAX", "html_table"]

ROWS_MAX = 20
"""How many rows are shown unless somebody asks for more."""
CELL_CHARACTERS_MAX = 200
COLUMNS_MAX = 50


def html_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> str:
    """A table; numbers to the right. A line break in the name of a column begins its small print. Of very many columns
    the first are shown, and a long value ends in an ellipsis."""
    columns, rows = columns[:COLUMNS_MAX], [row[:COLUMNS_MAX] for row in rows]
    head = "".join(f'<th style="text-align:left">{_heading(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    below = f'<div style="opacity:.7;font-size:90%">{escape(note)}</div>' if note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if columns else ""
    return f"<div><strong>{escape(caption)}</strong>{table}{below}</div>"


def _heading(name: str) -> str:
    text, _, small = name.partition("\n")
    return escape(text) + (f'<br><span style="font-weight:normal;opacity:.7">{escape(small)}</span>' if small else "")


def _cell(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'<td style="text-align:{"right" if number else "left"}">{escape(_text(value))}</td>'


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, datetime):
        zone = "Z" if value.utcoffset() == timedelta(0) else ""
        shown = value.replace(tzinfo=None) if zone else value
        return shown.isoformat(" ", "microseconds" if value.microsecond else "seconds") + zone
    text = str(value)
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"
