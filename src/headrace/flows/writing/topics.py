"""The topics that flows write: made at a flow's first start with the columns that it writes, and made to fit when these
change. Owns which of them a flow may change, and when one is left over from views that were removed. Knows no batch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import CannotRebuild, IncompatibleSchema, InvalidArgument, UnknownTopic, UnknownView
from headrace.views.contract import Emit, feed_topic
from headrace.views.open import open_views

if TYPE_CHECKING:
    from headrace.flows.compiler.compile import Compiled
    from headrace.flows.compiler.outputs import Written
    from headrace.flows.flow import Flow
    from headrace.log.contract import Log, Topic
    from headrace.views.contract import ViewStore

__all__ = ["WrittenTopics"]

logger = logging.getLogger("headrace.flows")


class WrittenTopics:
    """`views`: where the views are, `store` makes them if there are none; `compiled` plans a flow; `runs_elsewhere`:
    whether another process runs it."""

    def __init__(
        self,
        log: Log,
        views: str,
        *,
        compiled: Callable[[Flow], Compiled],
        store: Callable[[], ViewStore],
        runs_elsewhere: Callable[[Flow], bool],
    ) -> None:
        self._log, self._views, self._compiled = log, views, compiled
        self._store, self._runs_elsewhere = store, runs_elsewhere

    def target(self, flow: Flow) -> Topic:
        """The topic a flow writes to; made with the columns it writes if there is none: these only Spark can tell."""
        assert flow.target is not None
        if flow.parent is None:
            with contextlib.suppress(UnknownTopic):
                return self.marked_as_changes(flow, self._log.topic(flow.target))
        written = self._compiled(flow).target
        assert written is not None
        if flow.parent is not None:
            self._remove_left_over(flow, flow.target)
            return self._log.own_topic(flow.target, written.schema, **written.settings)
        given = {} if flow.sink is None else flow.sink.settings
        return self._log.flow_topic(flow.target, written.schema, flow=flow.name, **{**written.settings, **given})

    def marked_as_changes(self, flow: Flow, topic: Topic) -> Topic:
        """A topic that was there before the flow may not know that it gets changes."""
        writes_changes = flow.aggregates is not None or flow.retracts or flow.meets is not None
        if topic.settings.made_by or topic.settings.changes or not writes_changes or "op" not in topic.schema.names:
            return topic
        topic.alter(changes=True)
        return self._log.topic(topic.name)

    def fit_target(self, compiled: Compiled) -> None:
        """The topic a flow writes to may have fewer columns than its records: the flow's own gets them. Of any other,
        InvalidArgument before the flow's first start; later, when the flow's topics have got columns more, those are
        not written."""
        flow, written = compiled.flow, compiled.target
        if flow.target is None or written is None or flow.parent is not None:
            return
        with contextlib.suppress(UnknownTopic):
            topic = self._log.topic(flow.target)
            if topic.settings.made_by == flow.name:
                self._log.flow_topic(flow.target, written.schema, flow=flow.name)
                return
            missing = [name for name in written.schema.names if name not in topic.schema.names]
            if not missing or topic.settings.extra != "forbid":
                return
            there = f"writes column {missing[0]!r}, and topic {topic.name!r} has none"
            if flow.aggregates is None and self._has_begun(flow):
                logger.warning("flow %s %s: it is left out. Add it with topic.alter(schema=…)", flow.name, there)
                return
            why = f"flow {flow.name!r} {there}. Add it with topic.alter(schema=…), leave it out in .transform(…), or "
            why += "write to a topic of another name"
            raise InvalidArgument("name", flow.target, why)

    def _has_begun(self, flow: Flow) -> bool:
        with contextlib.suppress(UnknownView):
            open_views(self._views).state(flow.name, topics=True)
            return True
        return False

    def feed(self, flow: Flow, emit: Emit) -> Topic:
        """The topic with the changes of a flow's view, for flows over it."""
        written = self._compiled(flow).feed
        assert written is not None
        self._remove_left_over(flow, feed_topic(flow.name, emit))
        with contextlib.suppress(UnknownTopic):
            topic = self._log.topic(feed_topic(flow.name, emit))
            if {*written.schema.names} <= {*topic.schema.names}:
                return topic
        return self._fed(flow, emit, written)

    def _remove_left_over(self, flow: Flow, name: str) -> None:
        """Removes a topic of headrace's own that has records, while no flow of the store writes or reads it: the views
        were removed since. All that it had is written again, and who reads it would count it twice. While another
        process runs the flow, with its views in another store, the topic stays."""
        with contextlib.suppress(UnknownTopic):
            topic = self._log.topic(name)
            if not any(end.next for end in topic.ends().values()):
                return
            if self._runs_elsewhere(flow):
                return
            self._store()  # made, if there is none
            specs = open_views(self._views).specs()
            if not any(name in (*spec.sources, *spec.writes) for spec in specs):
                self._log.delete_own_topic(name)

    def _fed(self, flow: Flow, emit: Emit, written: Written) -> Topic:
        """That topic, with these columns too; CannotRebuild if who reads it could not read them."""
        name = feed_topic(flow.name, emit)
        try:
            topic = self._log.own_topic(name, written.schema, **written.settings)
        except IncompatibleSchema as error:
            why = f"column {error.column!r} is of another type there: {error.why}. Give the result another name"
        else:
            if topic.settings.event_time == written.settings["event_time"]:
                return topic
            why = "with a window its rows have a time there, and without one they have none. Give it another name"
        raise CannotRebuild(
            flow=flow.name, why=f"is read by other flows, from topic {name!r}: {why}, or drop the view and those flows"
        )

    def grow_feeds(self, flow: Flow) -> None:
        """Before the view becomes another one: flows over it, of this program or of others, can read that as well."""
        written = self._compiled(flow).feed
        if written is not None and flow.target is None:
            for emit in self._store().feeds(flow.name):
                self._fed(flow, emit, written)

    def make(self, flow: Flow) -> None:
        """The topics that the flow writes to."""
        if flow.target is not None:
            self.target(flow)
        elif flow.feeds:
            for emit in flow.feeds:
                self.feed(flow, emit)
        self.make_dropped(flow)

    def make_dropped(self, flow: Flow) -> None:
        """The topic that takes dropped records, with columns for all that they have: it may be another flow's, too."""
        import pyarrow as pa

        schema = self._compiled(flow).dropped
        if flow.late.dropped_to is not None and schema is not None:
            topic = self._log.create_topic(flow.late.dropped_to, schema, exist_ok=True)
            fresh = [field for field in schema if field.name not in topic.schema.names]
            if fresh:
                topic.alter(schema=pa.schema([*topic.schema, *fresh]))
