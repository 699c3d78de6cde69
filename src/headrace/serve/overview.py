"""The overview: topics, flows, views, groups, queues, captures, indexes, dead letters, problems. Owns its fields and
the rates. It is computed once for all clients, at most once a second, and only while a client asks for it. Its cost
does not grow with the size of log and views: slow counts are repeated less often, depending on how long they took
last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import headrace
from headrace.durations import from_us, instant_us
from headrace.errors import (
    HeadraceError,
    KafkaFailed,
    TopicReplaced,
    UnknownCapture,
    UnknownGroup,
    UnknownQueue,
    UnknownSink,
    UnknownTopic,
    UnknownView,
)
from headrace.log.contract import DEAD_LETTERS
from headrace.log.standing import counted_queues, duration, group_facts, groups_in, risks_of
from headrace.serve.home import Home
from headrace.serve.naming import flow_names, reader_name
from headrace.serve.routes.beside import beside_problems, captures_now, indexes_now
from headrace.serve.streams import event
from headrace.views.contract import HISTORY
from headrace.views.origins import Reader, branches
from headrace.views.standing import lag_of, reads_of, sources_of

if TYPE_CHECKING:
    from headrace.flows.status import FlowStatus
    from headrace.log.contract import DeadLetter, Log, Topic
    from headrace.views.contract import FlowSpec
    from headrace.views.reading import FlowGlance

__all__ = ["Overview", "letter_facts"]

logger = logging.getLogger("headrace.serve")

SECONDS = 1.0
PING_SECONDS = 15.0
SHARE = 20
"""A count that takes a second is made every so many seconds."""
COUNT_SECONDS = 0.5
"""Rows that take longer to count are estimated."""
LETTERS = 10
ATTEMPTS = 3
LOSS_SECONDS = 86_400.0
"""Who loses records sooner than that needs attention."""
RATE_SECONDS = 0.5
"""Rates are over this long at least."""

GONE = (UnknownTopic, TopicReplaced, UnknownGroup, UnknownQueue, UnknownView, UnknownCapture, UnknownSink)

LAST_US = instant_us("9999-12-31T23:59:59.999999Z", argument="last")
"""A window that is not closed by then is never."""

Facts = dict[str, Any]


class Overview:
    """`await overview.now()`; `overview.events()` for those who stay."""

    def __init__(self, home: Home) -> None:
        self._home, self._gatherer = home, _Gatherer(home)
        self._lock, self._news = asyncio.Lock(), asyncio.Event()
        self._facts: Facts = {}
        self._encoded, self._number, self._at = b"", 0, -SECONDS
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    async def now(self) -> Facts:
        """As it is, or was less than a second ago."""
        async with self._lock:
            if time.monotonic() - self._at >= SECONDS:
                facts = await self._home.read(self._gatherer.gather)
                self._at = time.monotonic()
                if {**facts, "at": None} != {**self._facts, "at": None}:
                    self._encoded, self._number = event("overview", facts), self._number + 1
                self._facts = facts
            return self._facts

    async def events(self) -> AsyncGenerator[bytes]:
        """The overview now, and whenever it is another; who is slow gets the last one only."""
        self._listeners += 1
        if self._task is None:
            self._task = asyncio.create_task(self._gathering())
        try:
            with contextlib.suppress(HeadraceError):  # then those who gather say so
                await self.now()
            sent = 0
            while not self._home.closing.is_set():
                news = self._news
                if sent != self._number:
                    sent = self._number
                    yield self._encoded
                    continue
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield event("ping", {})
        finally:
            self._listeners -= 1

    async def _gathering(self) -> None:
        """As long as somebody listens."""
        try:
            while self._listeners and not self._home.closing.is_set():
                before = self._number
                try:
                    await self.now()
                except Exception as error:
                    known = isinstance(error, HeadraceError)
                    why = str(error) if known else "the server failed to look; its log says why."
                    if not known:
                        logger.exception("the overview cannot be gathered")
                    self._encoded, self._number = event("problem", {"message": why}), self._number + 1
                if before != self._number:
                    self.wake()
                await asyncio.sleep(SECONDS)
        finally:
            self._task = None

    def wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


# -- gathering -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Costly:
    """A value that takes time to find: found anew when `version` is another, but not all the time."""

    version: object = None
    value: Any = None
    next_at: float = 0.0

    def get(self, version: object, find: Callable[[], Any]) -> Any:
        now = time.monotonic()
        if version != self.version and now >= self.next_at:
            self.value, self.version = find(), version
            self.next_at = time.monotonic() + SHARE * (time.monotonic() - now)
        return self.value


class _Rates:
    """How fast numbers grow, between two looks."""

    def __init__(self) -> None:
        self._before: dict[object, int] = {}
        self._now: dict[object, int] = {}
        self._before_at = self._now_at = 0.0

    def begin(self) -> None:
        at = time.monotonic()
        if at - self._now_at >= RATE_SECONDS:
            self._before, self._before_at = self._now, self._now_at
            self._now, self._now_at = {}, at

    def of(self, key: object, value: int) -> float | None:
        """A second; None where there is nothing to compare with."""
        self._now.setdefault(key, value)
        if key not in self._before:
            return None
        return round(max(0, self._now[key] - self._before[key]) / (self._now_at - self._before_at), 3)


class _Gatherer:
    """Runs in one thread at a time."""

    def __init__(self, home: Home) -> None:
        self._home, self._rates = home, _Rates()
        self._costly: dict[object, _Costly] = {}

    def gather(self) -> Facts:
        """Again when something was deleted in the midst of it."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(*GONE):
                return self._gathered()
        return self._gathered()

    def _gathered(self) -> Facts:
        home = self._home
        log, problem = self._log()
        self._rates.begin()
        statuses = {} if home.flows is None else {status.flow: status for status in home.flows()}
        topics = [] if log is None else log.topics()
        glances = home.views.glances()
        readers = self._home.views.readers()
        flows = [self._flow(log, glance, statuses.get(glance.spec.name), readers) for glance in glances]
        groups = [self._group(topic, group) for topic, group in ([] if log is None else groups_in(log, topics))]
        letters = {"count": 0, "latest": []} if log is None else self._letters(log)
        specs = [glance.spec for glance in glances]
        names = flow_names(specs)
        joins = {spec.parent or spec.name for spec in specs if spec.sides}
        for flow, spec in zip(flows, specs, strict=True):
            flow["kept"] = [asdict(each) for each in home.views.kept(spec.name)] if spec.name in joins else []
        facts: Facts = {
            "at": datetime.now(UTC),
            "home": str(home.path),
            "version": headrace.__version__,
            "runner": _runner(glances),
            "topics": [self._topic(topic) for topic in topics],
            "flows": [{**flow, **names[flow["name"]]} for flow in flows],
            "views": [self._view(glance) for glance in glances if glance.spec.view and glance.spec.view.public],
            "groups": groups,
            "captures": [] if log is None else captures_now(home, log, self._counted),
            "indexes": [] if log is None else indexes_now(home, log),
            "queues": [_queue(topic.name, queue) for topic in topics for queue in counted_queues(topic)],
            "dead_letters": letters,
        }
        return {**facts, "problems": [*problem, *_problems(facts, topics)]}

    def _log(self) -> tuple[Log | None, list[str]]:
        """The log; None, and why, where it does not answer: the views are shown all the same."""
        try:
            log = self._home.log_if_any()
            if log is not None:
                log.topics()
            return log, []
        except KafkaFailed as error:
            return None, [str(error)]

    def _topic(self, topic: Topic) -> Facts:
        found, offsets = topic.describe(), topic.ends()
        settings, uid = found.settings, found.topic_id
        return {
            "name": found.name,
            "records": found.records,
            "bytes": found.bytes,
            "rate": self._rates.of(("topic", uid), sum(at.next for at in offsets.values())),
            "retention": duration(settings.retention_us),
            "cleanup": settings.cleanup,
            "key": list(settings.key),
            "event_time": settings.event_time,
            "internal": found.name.startswith("__"),
            "partitions": [
                {
                    "partition": number,
                    "earliest": at.earliest,
                    "next": at.next,
                    "progress": at.progress,
                    "arrived_at": at.arrived_at,
                    "rate": self._rates.of(("partition", uid, number), at.next),
                }
                for number, at in offsets.items()
            ],
        }

    def _group(self, topic: Topic, group: Any) -> Facts:
        facts = group_facts(topic, group)
        return {
            "topic": topic.name,
            "group": group.name,
            "internal": group.name.startswith("__"),
            "members": facts["members"],
            "lag": facts["lag_records"],
            "lag_seconds": facts["lag_seconds"],
            "rate": self._rates.of(("group", topic.topic_id, group.name), sum(group.committed().values())),
            "time_to_loss_seconds": facts["time_to_loss_seconds"],
        }

    def _flow(
        self, log: Log | None, glance: FlowGlance, status: FlowStatus | None, readers: Mapping[str, Reader]
    ) -> Facts:
        spec, state = glance.spec, glance.state
        found = branches(spec.name, readers) if spec.name in readers else []  # dropped a moment ago
        reads, sources = reads_of(log, spec, state), sources_of(log, found, state)
        closes_us = None if glance.ends_us is None else glance.ends_us + spec.horizon.final_after_us
        totals = self._counted(
            ("ledger", spec.name), (state.born, state.sequence), lambda: self._home.views.totals(spec.name)
        )
        read = sum(place.offset for places in state.places.values() for place in places.values())
        return {
            "name": spec.name,
            "app": spec.app,
            "sources": list(spec.sources),
            "target": spec.target,
            "view": spec.name if spec.view is not None and spec.view.public else None,
            "window": spec.window,
            "operator": spec.operator or None,
            "grace_seconds": spec.grace_us / 1e6,
            "within_seconds": spec.within_us / 1e6,
            "aggregates": dict(spec.aggregates),
            "groups": [column.name for column in spec.view.groups] if spec.view else [],
            "state": _state(glance, status),
            "lag": lag_of(sources),
            "rate": self._rates.of(("flow", state.born), read),
            "batch_seconds": None if status is None else round(status.batch_seconds, 4),
            "spark_jobs": None if status is None else status.spark_jobs,
            "spark_tasks": None if status is None else status.spark_tasks,
            "spark_seconds": None if status is None else round(status.spark_seconds, 4),
            "driver_batches": None if status is None else status.driver_batches,
            "frontier": None if state.frontier_us is None else from_us(state.frontier_us),
            "closes_at": None if closes_us is None or closes_us > LAST_US else from_us(closes_us),
            "commits": state.sequence,
            "committed_at": glance.committed_at,
            "dead": glance.buried,
            "restarts": 0 if status is None else status.restarts,
            "error": None if status is None else status.error or None,
            "places": _places(reads, None if state.frontier_us is None else from_us(state.frontier_us)),
            "ledger": {name: getattr(totals, name) for name in ("on_time", "corrected", "dropped", "untimed")},
        }

    def _view(self, glance: FlowGlance) -> Facts:
        spec, state = glance.spec.view, glance.state
        assert spec is not None
        rows = self._counted(
            ("rows", spec.name),
            (state.born, state.sequence),
            lambda: self._home.views.count(spec.name, seconds=COUNT_SECONDS),
        )
        return {
            "name": spec.name,
            "rows": rows,
            "windowed": spec.window_us is not None,
            "table": self._table(glance.spec),
            "columns": [{"name": column.name, "type": column.type} for column in spec.columns],
        }

    def _table(self, spec: FlowSpec) -> Facts | None:
        if not spec.is_table or spec.view is None:
            return None
        counts = self._home.views.counts(spec.name)
        versions = None if spec.history == "latest" else counts.get(HISTORY, (0, 0))[0]
        return {"key": [column.name for column in spec.view.groups], "history": spec.history, "versions": versions}

    def _letters(self, log: Log) -> Facts:
        """The last ones are read again when there are others: as many as there ever were, or as are open."""
        count = log.dead_letters_count()
        if not count:
            return {"count": 0, "latest": []}
        ever = log.topic(DEAD_LETTERS).ends()[0].next

        def latest() -> list[Facts]:
            facts = [letter_facts(letter) for letter in log.dead_letters(newest=LETTERS)]
            for each in facts:
                del each["value"]  # may be large; /api/dead-letters has it
            return facts[::-1]

        return {"count": count, "latest": self._counted("letters", (count, ever), latest)}

    def _counted(self, key: object, version: object, find: Callable[[], Any]) -> Any:
        return self._costly.setdefault(key, _Costly()).get(version, find)


def _state(glance: FlowGlance, status: FlowStatus | None) -> str:
    if status is not None:
        return "running" if status.state in ("starting", "waiting") else status.state
    return {True: "running", False: "stopped", None: "unknown"}[glance.running]


def _runner(glances: list[FlowGlance]) -> Facts:
    """The process that took a flow last."""
    began = [(glance.started_at, number) for number, glance in enumerate(glances) if glance.started_at is not None]
    if not began:
        return {"state": "stopped", "pid": None, "host": None, "app": None, "started_at": None}
    last = glances[max(began)[1]]
    return {
        "state": _state(last, None),
        "pid": last.pid,
        "host": last.host,
        "app": last.spec.app,
        "started_at": last.started_at,
    }


def _places(sources: list[Facts], frontier: datetime | None) -> dict[str, dict[str, Facts]]:
    """By topic and partition. `idle`: the flow has gone on without it, because nothing came for long."""
    out: dict[str, dict[str, Facts]] = {}
    for source in sources:
        progress, lag = source["progress"], source["lag_records"]
        out.setdefault(source["topic"], {})[str(source["partition"])] = {
            "offset": source["offset"],
            "progress": progress,
            "lag": lag,
            "idle": lag == 0 and frontier is not None and (progress is None or progress < frontier),
        }
    return out


def _queue(topic: str, queue: Any) -> Facts:
    stats = queue.stats()
    return {
        "topic": topic,
        "queue": queue.name,
        "ready": stats.ready,
        "in_flight": stats.in_flight,
        "waiting": stats.waiting,
        "due": stats.due,
        "redelivered": stats.redelivered,
        "dead": stats.dead_open,
    }


def letter_facts(letter: DeadLetter) -> Facts:
    """`kind`: whose it is: a queue's goes back into its queue, a row is appended again, bytes can only be dropped."""
    origin, value = letter.origin, letter.value
    kind = "queue" if letter.deliveries is not None else "bytes" if isinstance(value, bytes) else "row"
    return {
        "id": str(letter.id),
        "reason": letter.reason,
        "kind": kind,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "source": origin.source,
        "at": letter.died_at,
        "error": letter.error,
        "deliveries": letter.deliveries,
        "value": value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value,
    }


def _problems(facts: Facts, topics: Iterable[Topic]) -> Iterable[str]:
    for flow in facts["flows"]:
        name = flow["helps"] or flow["name"]
        if flow["state"] in ("failed", "retrying"):
            yield f"Flow {name} is {flow['state']}: {flow['error'] or 'no reason known'}"
        elif flow["state"] == "stopped" and flow["lag"]:
            wait = "1 record waits" if flow["lag"] == 1 else f"{flow['lag']:,} records wait"
            yield f"Flow {name} is stopped, and {wait} for it. Run its app."
    for group in facts["groups"]:
        left = group["time_to_loss_seconds"]
        if left is not None and left < LOSS_SECONDS:
            hours = f"{left / 3600:.1f} hours"
            name = reader_name(group["group"], {flow["name"]: flow["helps"] for flow in facts["flows"]})
            yield f"Retention overtakes {name} of {group['topic']} in {hours} at its pace."
    for topic in topics:
        for risk in risks_of(topic):
            if risk.kind == "queue":
                yield str(risk)
    yield from beside_problems(facts)
    count = facts["dead_letters"]["count"]
    if count:
        yield f"{count} dead letter{'s wait' if count > 1 else ' waits'} for a decision: replay or drop."
