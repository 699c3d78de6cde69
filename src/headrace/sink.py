"""A sink, as programs use it: where the records of a stream go, outside of log and views. Owns the thread that delivers
while the app runs, and the lock by which one process does. What is delivered, and how far it is, is the sink's.

    users = app.stream("shop_users").to_sink("users", hr.search_index("users.db", text=["name"]))
    users.search("ann").hits"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.capture import lock_name as capture_lock_name
from headrace.connect.index.spec import SearchIndex
from headrace.connect.open import open_sink
from headrace.connect.reading import ends_of
from headrace.connect.running import SinkThread, drained
from headrace.errors import Closed, InvalidArgument, UnknownTopic
from headrace.flows import graph
from headrace.flows.plan import origin
from headrace.log.declared import DeclaredTopic, declare
from headrace.names import check_name
from headrace.operators.joins.meetings import Tabling
from headrace.views.contract import WINDOW
from headrace.views.owner import FlowLock

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.connect.contract import Delivery
    from headrace.connect.contract import Sink as Kind
    from headrace.connect.index.audit import IndexAudit
    from headrace.connect.index.searching import Found, IndexStatus

__all__ = ["Sink", "lock_name", "read_directly", "sink_lock", "states_beside"]

STOP_SECONDS = 30.0


class Sink:
    """Where the records of a stream go. `app.run()`, `app.start()` and `app.drain()` deliver them."""

    def __init__(
        self, app: App, name: str, topic: DeclaredTopic, kind: Kind, key: tuple[str, ...] | None = None
    ) -> None:
        self.app, self.name, self.topic = app, check_name(name, argument="name"), topic
        self._kind, self._key = kind, key
        self._thread: SinkThread | None = None
        self._lock: FlowLock | None = None

    def __repr__(self) -> str:
        return f"<sink {self.name!r} of {self.app!r}>"

    @property
    def lag(self) -> int:
        """How many records of its topic it does not have yet."""
        with contextlib.closing(self._open()) as opened:
            place = opened.place
            return sum(end - place.get(partition, 0) for partition, end in ends_of(opened.topic).items())

    @property
    def state(self) -> str:
        """Of this process: "running", "retrying", "failed" or "stopped"."""
        return "stopped" if self._thread is None else self._thread.state

    @property
    def error(self) -> str:
        """What is wrong with it, in this process; nothing if that is empty."""
        if self._thread is None:
            return ""
        return str(self._thread.error) if self._thread.error is not None else self._thread.trouble

    @property
    def waits(self) -> str:
        """That its topic is not there, as long as that is so."""
        try:
            self.topic.opened()
        except UnknownTopic as error:
            return f"sink {self.name!r} waits: {error}"
        return ""

    # -- of an index -------------------------------------------------------------------------------

    def search(self, query: str, *, limit: int = 20, skip: int = 0) -> Found:
        """Rows of an index with these words, the best first. No text is wrong; docs/sinks.md has what it can say."""
        from headrace.connect.index.searching import Searching

        with Searching(self._index_file()) as found:
            return found.search(query, limit=limit, skip=skip)

    def status(self) -> IndexStatus:
        """What an index is, and how far."""
        from headrace.connect.index.searching import Searching

        with Searching(self._index_file()) as found:
            return found.status()

    def audit(self) -> IndexAudit:
        """Compares an index with the log, key by key."""
        from headrace.connect.index.audit import audit

        return audit(self._index_file(), self.topic.opened())

    def rebuild(self) -> int:
        """Builds an index again from the log, beside the one that is served, then serves it; how many rows it has. The
        one that is served may be kept up meanwhile."""
        self._index_file()
        assert isinstance(self._kind, SearchIndex)
        app, topic = self.app, self.topic.opened()
        opened = self._kind.over(self.name, app._open_log(), topic, app.home, self._key, anew=True)
        with contextlib.closing(opened):
            return opened.rebuild()

    def _index_file(self) -> Path:
        if not isinstance(self._kind, SearchIndex):
            why = f"is a {self._kind.kind}, and what it has delivered is not known here. Only an index can be asked"
            raise InvalidArgument("sink", self.name, why)
        return self._kind.file(self.app.home)

    # -- for the app -------------------------------------------------------------------------------

    def check(self) -> None:
        """InvalidArgument if its topic has not what an index needs. A topic may come later."""
        if isinstance(self._kind, SearchIndex):
            from headrace.connect.index.writing import check_fits

            with contextlib.suppress(UnknownTopic):
                check_fits(self.topic.opened(), self._kind, self._key)

    def _open(self) -> Delivery:
        return open_sink(self._kind, self.name, self.app._open_log(), self.topic.opened(), self.app.home, self._key)

    def drain(self) -> int:
        """Delivers all that its topic has now; how many records. For an app that does not run."""
        if self._is_active():
            raise InvalidArgument("drain", "", f"sink {self.name!r} is running: stop() the app first")
        self.app._open_log()  # a directory with a lock, and no log yet, would not be taken for a home
        with sink_lock(self.app.home, self.name):
            try:
                opened = self._open()
            except UnknownTopic:
                return 0
            with contextlib.closing(opened):
                return drained(self.app._open_log(), self.name, opened)

    def start(self, *, wait: Callable[[], bool] | None = None, take_over: bool = False) -> None:
        """Delivers in the background; AlreadyRunning if another process of the home does."""
        if self._is_active():
            return
        self.app._open_log()
        if self._lock is None:
            lock = FlowLock(self.app.home, lock_name(self.name))
            lock.take(wait=wait, take_over=take_over)
            self._lock = lock
        self._thread = SinkThread(self.app._open_log(), self.name, self._open)
        self._thread.start()

    def stop(self) -> None:
        """Ends after what is being written."""
        if self._thread is not None and not self._thread.stop(STOP_SECONDS):
            raise Closed(what=f"sink {self.name!r}, which does not end: what it calls takes long")
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

    def _is_active(self) -> bool:
        return self._thread is not None and self._thread.state not in ("stopped", "failed")


def read_directly(app: App, node: graph.Records) -> tuple[DeclaredTopic | None, tuple[str, ...] | None]:
    """The topic that has the stream's records as they are, if there is one; else what will tell its rows apart."""
    if isinstance(node, graph.Source) and node.start == "earliest":
        topic = node.topic
        return declare(topic.name, lambda: topic.opened() if isinstance(topic, DeclaredTopic) else topic), None
    found = origin(node)
    if isinstance(found, graph.Changes):
        table = app._tables.get(found.view.name)
        if table is not None and table.history == "latest" and node is found:
            return table.topic, None
        step = found.view.meets
        if isinstance(step, Tabling):
            return None, step.key
        window = () if found.view.window is None else WINDOW
        return None, None if step is not None else ((*window, *found.view.groups) or None)
    return None, None


def lock_name(sink: str) -> str:
    return f"sink/{sink}"


def states_beside(app: App) -> dict[str, tuple[str, str]]:
    """The state of each capture and sink that this process runs, and what is wrong with it; by the name of its lock."""
    beside = {capture_lock_name(name): (each.state, each.error) for name, each in app._captures.items()}
    return beside | {lock_name(name): (each.state, each.error) for name, each in app._sinks.items()}


@contextlib.contextmanager
def sink_lock(home: Path, sink: str) -> Iterator[None]:
    """While this process delivers, no other of the home does."""
    lock = FlowLock(home, lock_name(sink))
    lock.take()
    try:
        yield
    finally:
        lock.release()
