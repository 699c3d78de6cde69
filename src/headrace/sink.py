"""A sink, as programs use it: where the records of a stream go, outside of log and views. Owns which records these are.
What is delivered, and how far it is, is the sink's.

    users = app.stream("shop_users").to_sink("users", hr.search_index("users.db", text=["name"]))
    users.search("ann").hits"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.beside import Beside
from headrace.connect.index.spec import SearchIndex
from headrace.connect.open import open_sink
from headrace.connect.reading import ends_of
from headrace.connect.running import SinkThread, drained
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.flows import graph
from headrace.flows.plan import origin
from headrace.log.declared import DeclaredTopic, declare
from headrace.operators.joins.meetings import Tabling
from headrace.views.contract import WINDOW

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.connect.contract import Delivery
    from headrace.connect.contract import Sink as Kind
    from headrace.connect.index.audit import IndexAudit
    from headrace.connect.index.searching import Found, IndexStatus

__all__ = ["Sink", "read_directly"]


class Sink(Beside):
    """Where the records of a stream go. `app.run()`, `app.start()` and `app.drain()` deliver them."""

    kind = "sink"
    behind = True

    def __init__(
        self, app: App, name: str, topic: DeclaredTopic, kind: Kind, key: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(app, name)
        self.topic, self._kind, self._key = topic, kind, key

    @property
    def lag(self) -> int:
        """How many records of its topic it does not have yet."""
        with contextlib.closing(self._open()) as opened:
            place = opened.place
            return sum(end - place.get(partition, 0) for partition, end in ends_of(opened.topic).items())

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

    def _drain(self) -> int:
        try:
            opened = self._open()
        except UnknownTopic:
            return 0
        with contextlib.closing(opened):
            return drained(self.app._open_log(), self.name, opened)

    def _new_thread(self) -> SinkThread:
        return SinkThread(self.app._open_log(), self.name, self._open)


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
