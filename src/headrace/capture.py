"""A capture, as programs use it: the tables of another database, as tables here. Owns which of them the program reads,
and the thread that captures while the app runs. What is captured, and how far, is the log's.

    db = app.capture("shop", "postgresql://…", tables=["public.*"], mask={"users.email": "hash"})
    users = db.table("users", history="versions")"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.cdc.open import check_address, choice_for, open_source
from headrace.cdc.running import CaptureStatus, CaptureThread, status_of
from headrace.errors import Closed, InvalidArgument, UnknownTopic
from headrace.names import check_name
from headrace.schema import OP_COLUMN
from headrace.views.owner import FlowLock

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App
    from headrace.cdc.source import Source
    from headrace.durations import Duration
    from headrace.operators.joins.meetings import History
    from headrace.table import Table

__all__ = ["Capture", "capture_lock"]

STOP_SECONDS = 30.0


class Capture:
    """The tables of a database. `app.run()`, `app.start()` and `app.drain()` capture what is done to them."""

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
        self.app, self.name = app, check_name(name, argument="name")
        self._url = check_address(url)
        self.choice = choice_for(url, tables, mask, debezium=debezium, schemas=debezium_schemas)
        self._thread: CaptureThread | None = None
        self._lock: FlowLock | None = None

    def __repr__(self) -> str:
        return f"<capture {self.name!r} of {self.app!r}>"

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

    @property
    def state(self) -> str:
        """Of this process: "running", "reconnecting", "failed" or "stopped"."""
        return "stopped" if self._thread is None else self._thread.state

    @property
    def error(self) -> str:
        """What is wrong with it, in this process; nothing if that is empty."""
        if self._thread is None:
            return ""
        return str(self._thread.error) if self._thread.error is not None else self._thread.trouble

    # -- for the app -------------------------------------------------------------------------------

    def drain(self) -> int:
        """Captures all that is committed in the database now; how many changes. For an app that does not run."""
        if self._thread is not None and self._thread.state not in ("stopped", "failed"):
            raise InvalidArgument("drain", "", f"capture {self.name!r} is running: stop() the app first")
        self.app._open_log()  # a directory with a lock, and no log yet, would not be taken for a home
        with capture_lock(self.app, self.name):
            return self._source().drain()

    def start(self, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None:
        """Captures in the background; AlreadyRunning if another process of the home does."""
        if self._thread is not None and self._thread.state not in ("stopped", "failed"):
            return
        self.app._open_log()
        if self._lock is None:
            lock = FlowLock(self.app.home, lock_name(self.name))
            lock.take(wait=wait, take_over=take_over)
            self._lock = lock
        self._thread = CaptureThread(self._source())
        self._thread.start()

    def stop(self) -> None:
        """Ends after what is being written."""
        if self._thread is not None and not self._thread.stop(STOP_SECONDS):
            raise Closed(what=f"capture {self.name!r}, which does not end: what it writes takes long")
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def wait(self, seconds: float) -> bool:
        """Until it has ended, or for so long. Raises what ended it. True if it has ended."""
        if self._thread is None:
            return True
        ended = self._thread.join(seconds)
        if ended and self._thread.error is not None:
            raise self._thread.error
        return ended


def lock_name(capture: str) -> str:
    return f"capture/{capture}"


@contextlib.contextmanager
def capture_lock(app: App, capture: str) -> Iterator[None]:
    """While this process captures, no other of the home does."""
    lock = FlowLock(app.home, lock_name(capture))
    lock.take()
    try:
        yield
    finally:
        lock.release()


class Waits(Protocol):
    """What runs beside the flows: captures and sinks."""

    def wait(self, seconds: float) -> bool: ...


def wait_for_all(beside: Sequence[Waits], flows: Callable[[float], bool] | None, timeout: float | None) -> bool:
    """Until all of it and the flows have ended, or for `timeout` seconds; the first error of one is raised."""
    limit = None if timeout is None else time.monotonic() + timeout
    while True:
        left = 0.1 if limit is None else max(0.0, min(0.1, limit - time.monotonic()))
        ended = [each.wait(0) for each in beside]
        done = flows(left) if flows is not None else None
        if all(ended) and done is not False:
            return True
        if limit is not None and time.monotonic() >= limit:
            return False
        if done is None:
            next(each for each, over in zip(beside, ended, strict=True) if not over).wait(left)
