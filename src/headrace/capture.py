"""A capture, as programs use it: the tables of another database, as tables here. Owns which of them the program reads.
What is captured, and how far, is the log's.

    db = app.capture("shop", "postgresql://…", tables=["public.*"], mask={"users.email": "hash"})
    users = db.table("users", history="versions")"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.beside import Beside
from headrace.cdc.open import check_address, choice_for, open_source
from headrace.cdc.running import CaptureStatus, CaptureThread, status_of
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.schema import OP_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App
    from headrace.cdc.source import Source
    from headrace.durations import Duration
    from headrace.operators.joins.meetings import History
    from headrace.table import Table

__all__ = ["Capture"]


class Capture(Beside):
    """The tables of a database. `app.run()`, `app.start()` and `app.drain()` capture what is done to them."""

    kind = "capture"

    def __init__(
        self,
        app: App,
        name: str,
        url: str,
        tables: Sequence[str] | None,
        mask: Mapping[str, str] | None,
        debezium: str | None,
        debezium_schemas: bool,
    ) -> None:
        super().__init__(app, name)
        self._url = check_address(url)
        self.choice = choice_for(url, tables, mask, debezium=debezium, schemas=debezium_schemas)

    def table(
        self,
        name: str,
        *,
        history: History = "latest",
        event_time: str | None = None,
        keep: Duration | None = None,
        loads: bool = True,
    ) -> Table:
        """A captured table, "users" or "billing.invoices", as a table of the app: `shop_users`, `shop_billing_invoices`
        in the log and in SQL. Its columns and key are those of the captured topic; before anything is captured, the
        database is asked. `history`, `event_time` and `keep` as in `app.table`. `loads=False` compacts the topic of a
        table without history: then a join does not see it as there from the beginning."""
        schema, table = self.choice.full(name)
        topic = self.choice.topic(self.name, schema, table)
        columns, key = self._described(schema, table, topic)
        return self.app.table(topic, columns, key=key, event_time=event_time, history=history, keep=keep, loads=loads)

    def _described(self, schema: str, table: str, topic: str) -> tuple[pa.Schema, tuple[str, ...]]:
        import pyarrow as pa

        with contextlib.suppress(UnknownTopic):
            found = self.app._open_log().topic(topic)
            return pa.schema([each for each in found.schema if each.name != OP_COLUMN]), found.settings.key
        if not self.choice.takes(schema, table):
            why = f"is not captured: tables={list(self.choice.tables)} does not take it"
            raise InvalidArgument("name", f"{schema}.{table}", why)
        return open_source(self.app._open_log(), self.name, self._url, self.choice, self.app.home).describe(
            schema, table
        )

    def _source(self) -> Source:
        return open_source(self.app.log, self.name, self._url, self.choice, self.app.home)

    def status(self) -> CaptureStatus:
        """How far it is, its tables, and what the database keeps for it."""
        more: dict[str, Any] = {}
        if self._thread is not None:
            more = {"state": self.state, "error": self.error, "restarts": self._thread.restarts}
        return status_of(self.app.log, self.name, **more)

    # -- for the app -------------------------------------------------------------------------------

    def _drain(self) -> int:
        return self._source().drain()

    def _new_thread(self) -> CaptureThread:
        return CaptureThread(self._source())
