"""The rows of the demo's views, read and written out for people. Knows their columns; starts no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.demo.traffic import PRICES

if TYPE_CHECKING:
    from headrace.views.reading import Views

Row = dict[str, Any]

VIEW, CHATS, REQUESTS, INVOICES = "pages_per_minute", "chats", "requests_per_minute", "taxed_invoices"
LEDGER = ("on_time", "corrected", "dropped", "untimed")


def all_rows(views: Views, view: str = VIEW) -> list[Row]:
    rows: list[Row] = views.to_arrow(view).to_pylist()
    return rows


def of_minute(views: Views, minute: datetime) -> list[Row]:
    return [row for row in all_rows(views) if row["window_start"] == minute]


def recent(views: Views, minutes: int = 3) -> list[Row]:
    """The rows of the last minutes."""
    rows = all_rows(views)
    last = max(row["window_start"] for row in rows)
    return [row for row in rows if row["window_start"] > last - timedelta(minutes=minutes)]


def booked(views: Views, view: str = VIEW) -> dict[str, int]:
    """The ledger's totals."""
    ledger = views.ledger(view)
    return {name: sum(ledger[name].to_pylist()) for name in LEDGER}


def line(row: Mapping[str, Any]) -> str:
    """A row as people read it."""
    sold = f"{row['orders']:>3} orders {(row['cents'] or 0) / 100:>8,.2f}" if row["page"] in PRICES else " " * 19
    return f"{row['window_start']:%H:%M}  {row['page']:<8} {row['views']:>4} views {sold}  {_state(row)}"


def chat_line(row: Mapping[str, Any]) -> str:
    times = f"{row['window_start']:%H:%M:%S} to {row['window_end']:%H:%M:%S}"
    return f"{row['customer']}  {times}  {row['messages']} messages  {_state(row)}"


def invoice_line(row: Mapping[str, Any]) -> str:
    fixes = f"  corrected {row['_corrections']}x" if row["_corrections"] else ""
    receipt = f"taxes_version {row['taxes_version']}"
    return f"invoice {row['number']}  {row['cents'] / 100:,.2f}  tax {row['percent']} %  {receipt}{fixes}"


def _state(row: Mapping[str, Any]) -> str:
    fixes = f", corrected {row['_corrections']}x" if row["_corrections"] else ""
    return f"{row['_status']}{fixes}"
