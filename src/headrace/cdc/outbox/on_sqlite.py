"""SQLite as the database of an outbox."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cdc.outbox.address import Outbox
from headrace.cdc.outbox.table import Connected
from headrace.cdc.sqlite.database import path_of
from headrace.cdc.sqlite.file import File, quoted

__all__ = ["connect", "shown"]


def shown(url: str) -> str:
    return f"sqlite:///{path_of(url)}"


def connect(capture: str, url: str) -> Connected:
    file = File(capture, path_of(url))
    seen = [-1]

    def columns(table: Sequence[str]) -> dict[str, str]:
        return {name: kind.lower() for _, name, kind, *_ in file.db.execute(f"PRAGMA table_xinfo({quoted(table[-1])})")}

    def refused(table: Sequence[str], outbox: Outbox, there: dict[str, str]) -> str | None:
        """Without AUTOINCREMENT the number of a deleted row is given again."""
        sql = file.one("SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = ?", table[-1])
        reused = there[outbox.ordered_by] == "integer" and "AUTOINCREMENT" not in (sql or "").upper()
        if reused and not outbox.keep:
            return f"column {outbox.ordered_by!r} must be AUTOINCREMENT: numbers would be given twice"
        return None

    def is_new() -> bool:
        file.check_in_place()
        before, seen[0] = seen[0], file.one("PRAGMA main.data_version")
        return before != seen[0]

    return Connected(
        connection=file.db,
        mark=lambda at: f"?{at}",
        quoted=quoted,
        failed=file.failed,
        translated=file.translated,
        writing=file.writing,
        columns=columns,
        insert_new="INSERT INTO {} VALUES ({}) ON CONFLICT DO NOTHING",
        close=file.close,
        refused=refused,
        is_new=is_new,
    )
