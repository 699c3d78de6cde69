"""A view made anew from the log, beside the one that is served, and the switch from one to the other. Owns the order of
it; `views.versions` owns what a switch is.

    make     the version `view/next` reads up to where the served one is; that one goes on, if it runs
    switch   catch up · fence the served one · read to its place, then to the log's end · one transaction of names

Until the switch nothing that the new version emits leaves the store, and of records that the served one has processed
nothing ever does: it has sent that. After a crash the one or the other is served, whole; a version that is half made is
gone on with by the next rebuild, if that is of the same program, and dropped otherwise. A served flow that was fenced
by a switch that failed is run again like any other. A runner waits for the end of a switch, and goes on with what is
served then, if that was made by the functions it has."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.durations import from_us
from headrace.errors import CannotRebuild, FlowChanged, FlowFenced, HeadraceError, UnknownTopic, UnknownView
from headrace.failpoints import reach
from headrace.fingerprint import fingerprint
from headrace.flows.audit import Gone, gone_of
from headrace.flows.loop import Batch, FlowLoop
from headrace.flows.query import FlowQuery
from headrace.flows.reading import ranges
from headrace.flows.reading.inputs import Ends, Inputs, Look
from headrace.flows.supervise import Supervisor
from headrace.flows.writing.relay import Relay
from headrace.log.contract import DEAD_LETTERS
from headrace.views.contract import FlowState, Outgoing, Place, Places, version_name
from headrace.views.open import open_views
from headrace.views.owner import FlowLock
from headrace.views.reading import Diff

if TYPE_CHECKING:
    from headrace.flows.flow import Flow
    from headrace.log.contract import Log
    from headrace.places import Home
    from headrace.views.contract import ViewStore

__all__ = ["Rebuild", "refuse_other", "refuse_topics", "roll_back"]

logger = logging.getLogger("headrace.flows")

NEAR_ROWS = 10_000
"""A version that was fewer records than this behind has caught up with one that runs on."""
PASSES = 10
"""It may run on faster than it is caught up with."""
FENCES = 3
"""A flow that its runner takes back is fenced again, so many times."""


class Rebuild:
    """A view made anew, not served yet: `diff()` says what it changes, then `switch()` or `discard()`. `gone`: what the
    served view was made of and the log does not have any more."""

    def __init__(
        self,
        query: FlowQuery,
        *,
        log: Log,
        home: Home,
        store: ViewStore,
        loop_settings: Mapping[str, Any],
        let_go: Callable[[], None],
    ) -> None:
        self.version = query.compiled.flow.name
        self.view, _, _ = self.version.partition("/")
        self._query, self._log, self._home, self._store = query, log, home, store
        self._settings, self._let_go = loop_settings, let_go
        self._loop: _Beside | None = None
        self.gone: list[Gone] = []

    def __repr__(self) -> str:
        return f"<{self.version}, a version of view {self.view!r} that is not served>"

    # -- making it ---------------------------------------------------------------------------------

    def make(self) -> None:
        """Up to where the served version is, or near it if that one runs on."""
        flow = self._query.compiled.flow
        served = self._served()
        self.gone = gone_of(replace(flow, name=self.view), _of_these_topics(flow, served))
        for each in self.gone:
            logger.warning("%s", each)
        if self._overtaken():
            self._store.discard(self.view)
        self._store.begin_beside(self._query.compiled.spec, self._program())
        self._catch_up()

    def _served(self) -> FlowState:
        try:
            return self._store.state(self.view)
        except UnknownView:
            raise CannotRebuild(
                flow=self.view, why="was not run yet: there is nothing to rebuild. Run its app"
            ) from None

    def _program(self) -> str:
        """What makes it: functions, start and topics. The store compares the rest."""
        flow = self._query.compiled.flow
        begins = fingerprint([(repr(each.start), each.topic.topic_id) for each in flow.inputs])
        return f"{functions_of(flow)}/{begins}"

    def _overtaken(self) -> bool:
        """Whether a version that was half made needs what retention has deleted since."""
        try:
            state = self._store.state(self.version)
        except UnknownView:
            return False
        return any(
            state.places.get(topic.name, {}).get(partition, Place(end.earliest, None)).offset < end.earliest
            for topic in self._query.compiled.flow.topics
            for partition, end in topic.ends().items()
        )

    def _comparable_us(self, served: FlowState) -> int | None:
        """How far the served version was called final, if that is of the same topics and the same time: then what was
        final there stays so."""
        flow, spec = self._query.compiled.flow, open_views(self._home.views).flow(self.view)
        same = _of_these_topics(flow, served).places.keys() == {topic.name for topic in flow.topics}
        return served.frontier_us if same and spec.time == flow.time else None

    def _begun(self) -> _Beside:
        if self._loop is None:
            buried = open_views(self._home.views).buried(self.view)
            given_up = {(topic, *place) for topic, places in buried.items() for place in places}
            loop = _Beside(given_up, self._query, log=self._log, store=self._store, **self._settings)
            loop.remember(self._store.read_marks(self.view))
            loop.begin()
            self._loop = loop
        return self._loop

    def _catch_up(self) -> None:
        for _ in range(PASSES):
            if self._read_to(self._store.state(self.view)) <= NEAR_ROWS:
                return

    def _read_to(self, served: FlowState | None) -> int:
        """As far as the served version, or, without one, to the log's end as it is now; how many records."""
        loop = self._begun()
        flow = loop.flow
        known = {} if served is None else _of_these_topics(flow, served).places
        limit: dict[str, dict[int, Place]] = {}
        for topic in flow.topics:
            places = known.get(topic.name, {})
            for partition, end in topic.ends().items():
                offset = min(places[partition].offset, end.next) if partition in places else end.next
                at = ranges.place_at(topic, partition, offset, end, by_arrival=flow.by_arrival)
                limit.setdefault(topic.name, {})[partition] = at
        loop.limits.limit, loop.repeats = limit, served is not None
        work = Supervisor(loop, lambda _: loop)
        try:
            work.work_off()
        except BaseException:
            self._loop = None  # a loop that failed is not where its last commit is
            raise
        return work.pulse.rows

    # -- what to do with it ------------------------------------------------------------------------

    def compare(self, limit: int | None = None) -> Diff:
        """The two versions: how many rows are different, and at most `limit` of them."""
        return open_views(self._home.views).diff(self.view, limit)

    def diff(self) -> pa.Table:
        """The rows that are different: `op` '-' as the old version has it, '+' as the new one, then the row."""
        return self.compare().rows

    def switch(self) -> None:
        """The new version becomes the view, read to the log's end; a runner of the old one is fenced, and goes on with
        the new one if it runs the same program. What was served is kept, for `rollback`, until it is discarded or the
        next rebuild."""
        if self._store.beside(self.view) != self.version:
            raise CannotRebuild(flow=self.view, why="has no new version to switch to: app.rebuild(…) makes one")
        self._catch_up()
        _while_fenced(self._log, self._store, self.view, self._switch)
        self._end()

    def _switch(self, fenced: FlowState) -> FlowState:
        self._begun().limits.least_us = self._comparable_us(fenced)
        self._read_to(fenced)
        self._read_to(None)
        self._log.forget_flow(self.version)  # before: what it needs is kept for the view, which has read less
        return self._store.switch(fenced, self._begun().position)

    def rollback(self) -> None:
        """After a switch: what was served before is the view again."""
        roll_back(self._log, self._home, self._store, self.view)
        self._end()

    def discard(self) -> None:
        """Drops the new version; after a switch, the old one."""
        self._store.discard(self.view)
        self._log.forget_flow(self.version)
        self._end()

    def _end(self) -> None:
        self._loop = None
        self._let_go()


def refuse_topics(flow: Flow) -> None:
    if flow.target is not None:
        raise CannotRebuild(
            flow=flow.name,
            why=f"writes to topic {flow.target!r}, and what was written is not taken back. Write with the changed flow "
            f"to a topic of another name, and let its readers move there; or drop it and delete the topic (headrace "
            f"views drop {flow.name}; headrace topics delete {flow.target}), and run it again",
        )


def roll_back(log: Log, home: Home, store: ViewStore, view: str) -> None:
    """What was served before the last switch is the view again, as it was; what took its place is kept beside it."""
    previous = version_name(view, "previous")
    if store.beside(view) != previous:
        raise CannotRebuild(
            flow=view,
            why="has no previous version to go back to: one is kept from a switch until it is discarded, or until the "
            "next rebuild",
        )
    lock = FlowLock(home.directory, version_name(view, "next"), store.leases)  # a runner waits for who has it
    lock.take()
    try:
        state = _while_fenced(log, store, view, lambda fenced: store.switch(fenced, store.state(previous)))
    finally:
        lock.release()
    told = []
    for name, places in state.places.items():
        with contextlib.suppress(UnknownTopic):
            told.append((log.topic(name), {partition: place.offset for partition, place in places.items()}))
    log.report(view, told).result()  # it needs again what it had read no further


def _while_fenced(log: Log, store: ViewStore, view: str, act: Callable[[FlowState], FlowState]) -> FlowState:
    """Calls `act` while the served version takes no more commits and its outbox is sent. If that fails, the version's
    runner continues. A runner that was about to begin when the fence came takes the flow back, once: then it is fenced
    again. After that it sees who holds the version's lock, and waits."""
    for last in (*[False] * FENCES, True):
        state = store.fence(view)
        try:
            reach("switch.fenced")
            relay = Relay(log, store, view)
            relay.begin(state.born)
            relay.run()
            store.note_relayed(state, relay.done, relay.written)
            return act(state)
        except BaseException as error:
            if isinstance(error, FlowFenced) and not last:
                continue
            with contextlib.suppress(HeadraceError):  # the first error is the one to raise
                store.unfence(state)
            raise
    raise AssertionError("the last attempt returns or raises")


def functions_of(flow: Flow) -> str:
    """A text that is another one when the flow's functions are others."""
    transforms = [each.transforms for each in flow.inputs]
    return fingerprint(transforms, flow.transforms, dict(flow.aggregates or {}), flow.after)


def refuse_other(store: ViewStore, flow: Flow) -> None:
    """FlowChanged if what is served was made by other functions."""
    program = store.program(flow.name)
    if program is not None and program.partition("/")[0] != functions_of(flow):
        raise FlowChanged(flow.name, ["its functions are others than those it was rebuilt with"])


def _of_these_topics(flow: Flow, state: FlowState) -> FlowState:
    """Without topics that are not the flow's any more: others of the same name may be."""
    ids = {topic.name: topic.topic_id for topic in flow.topics}
    return replace(
        state, places={name: at for name, at in state.places.items() if ids.get(name) == state.topic_ids[name]}
    )


class _Limited(Inputs):
    """No further than `limit`: what is behind it has not come yet."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.limit: Places = {}
        self._limited: set[tuple[str, int]] = set()
        self.least_us: int | None = None
        """The frontier is at least this."""

    def ends(self, places: Places) -> Ends:
        ends = super().ends(places)
        self._limited.clear()
        for topic, limits in self.limit.items():
            newest = max(end.arrived_at for end in ends[topic].values() if end.arrived_at is not None)
            for partition, place in limits.items():
                own, end = places.get(topic, {}).get(partition, place), ends[topic][partition]
                at = own if own.offset > place.offset else place
                if at.offset < end.next:  # there is more: this partition does not sleep, and is not quiet
                    self._limited.add((topic, partition))
                    progress = None if at.progress_us is None else from_us(at.progress_us)
                    arrived = progress if self._flow.by_arrival else newest
                    ends[topic][partition] = replace(end, next=at.offset, progress=progress, arrived_at=arrived)
        return ends

    def _written(self) -> dict[tuple[str, int], int]:
        return {} if self.limit else super()._written()  # what is behind the limit is no transaction's

    def _quiet(self, places: Places, ends: Ends, now_us: int) -> dict[tuple[str, int], int]:
        return {at: us for at, us in super()._quiet(places, ends, now_us).items() if at not in self._limited}

    def frontier(self, places: Places, look: Look) -> int | None:
        known = (super().frontier(places, look), self.least_us)
        return max((us for us in known if us is not None), default=None)


class _Beside(FlowLoop):
    """The loop of a version that is not served. Reads no further than `limits` says, and sends nothing: what it emits
    waits in its outbox for the switch. While it `repeats` what the served version has done, that is dead letters alone,
    and not of records that one has given up, too (`given_up`)."""

    def __init__(self, given_up: set[tuple[str, int, int]], query: FlowQuery, **settings: Any) -> None:
        super().__init__(query, **settings)
        self._relay = _Waiting(settings["log"], settings["store"], self.flow.name)
        self._given_up = given_up
        self.repeats = True

    def _make_inputs(self, at_once: bool) -> Inputs:
        self.limits = _Limited(self.flow, self._store, until=None, at_once=at_once, clock_us=self._clock_us)
        return self.limits

    def _commit(self, batch: Batch, close: bool = False) -> None:
        new = [self._that_is_new(each) for each in batch.outgoing]
        super()._commit(replace(batch, outgoing=[each for each in new if each.rows.num_rows]), close)

    def _that_is_new(self, outgoing: Outgoing) -> Outgoing:
        rows = outgoing.rows
        if not self.repeats:
            return outgoing
        if outgoing.target != DEAD_LETTERS:
            return replace(outgoing, rows=rows.slice(0, 0))
        places = zip(*(rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        return replace(outgoing, rows=rows.filter(pa.array([place not in self._given_up for place in places])))


class _Waiting(Relay):
    def run(self) -> int:
        return 0
