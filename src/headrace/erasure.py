"""Erasure of a subject from a home: from its topic, and from all that was made of it. Owns which places these are, in
which order they are done, and what is said of those that are out of reach.

The log is the truth. So nothing that was made of it is searched for the subject: it is dropped whole, and the next run
of its program makes it again from the log that is left. Then it is what the same program makes of that log.

    topics      erased in place, with their dead letters and what is beside them: ids of commands, copies by tag
    caches      removed: snapshots, full-text indexes
    own topics  of flows that read them: deleted, with their dead letters
    flows       dropped: rows, state, ledger, outbox, changes that wait for watchers
    stores      overwrite what rows have left

Flows are dropped last, those that read before those that they read from. So after a crash the next call finds the same
places, or those that are left of them. While a flow is dropped no process may run it: this one has its lock."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headrace.cdc.journal import captures, recorded
from headrace.connect.index import file
from headrace.connect.index.spec import KIND, SearchIndex
from headrace.connect.journal import sinks
from headrace.errors import AlreadyRunning, DiskFull, InvalidArgument, InvalidSchema, UnknownTopic, UnknownView
from headrace.failpoints import reach
from headrace.flows.spark import local_dir
from headrace.log.capabilities import Erasure, Files, capability
from headrace.log.contract import Log, Topic
from headrace.log.open import open_address
from headrace.places import directory
from headrace.sink import Sink
from headrace.sourcing.snapshots import forget_all
from headrace.sourcing.topics import beside
from headrace.supervised import Supervised
from headrace.views.contract import FlowSpec, ViewStore, is_version
from headrace.views.open import open_store, open_views, store_exists
from headrace.views.owner import FlowLock
from headrace.views.writers import with_helpers

__all__ = ["Forgotten", "Place", "erase", "erase_from", "unfinished"]

Done = Literal["erased", "dropped", "deleted", "removed", "left", "out of reach"]
AGAIN = "its next run makes it again from the log"
SPARK_LOG = "spark.log"
NOTE = "erasing"
LOSES = "headrace erase … --all"


@dataclass(frozen=True, slots=True)
class Place:
    """A place where the subject was, or may be. `records`: how many were erased there; of what was dropped, all rows
    that it had. `do`: what is left to do; what is "left" may have the subject until then."""

    place: str
    done: Done
    records: int | None = None
    do: str | None = None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What became of each place."""

    places: list[Place] = field(default_factory=list)

    @property
    def left(self) -> list[Place]:
        """Those that may still have the subject: do what they say, and erase again."""
        return [each for each in self.places if each.done == "left"]

    @property
    def complete(self) -> bool:
        """Whether no place is left."""
        return not self.left


def erase(
    home: str | Path,
    topic: str,
    *keys: Any,
    column: str | None = None,
    views: str | None = None,
    everything: bool = False,
) -> Forgotten:
    """Erases the records of these keys from the topic, or those with these values in `column`, and all that was made of
    them in the home: `erase(".headrace", "clicks", "ann")`. No program of the home may run the flows; those that one
    runs are left, and said. `views`: their address, if they are in Postgres. `everything`: also what cannot be made
    again as it was: views whose records retention has deleted, and topics that flows write to."""
    where = directory(home).absolute()
    with open_address(where, create=False) as log:
        return erase_from(log, where, topic, keys, column=column, views=views or where, everything=everything)


def erase_from(
    log: Log,
    home: Path,
    topic: str,
    found_by: Sequence[Any],
    *,
    column: str | None = None,
    views: str | Path,
    everything: bool = False,
) -> Forgotten:
    """The same of a log that is open."""
    with contextlib.ExitStack() as until:
        store = until.enter_context(open_store(views)) if store_exists(views) else None
        subject = _Subject(log, home, store, views, topic, found_by, column, everything=everything)
        before = unfinished(home)
        _note(home, before | {topic})
        try:
            done = subject.erase(until)
        except (InvalidArgument, InvalidSchema):
            if not subject.places:  # refused: it has not begun
                _note(home, before)
            raise
        _note(home, before - {topic})
        return done


def _note(home: Path, topics: set[str]) -> None:
    """A note in the home that erasures from these topics have begun, of whom it does not say."""
    with contextlib.suppress(OSError):  # a full disk keeps nobody from erasing
        if topics:
            (home / NOTE).write_text("\n".join(sorted(topics)), "utf-8")
        else:
            (home / NOTE).unlink(missing_ok=True)


def unfinished(home: Path) -> set[str]:
    """The topics from which an erasure has begun that did not end."""
    with contextlib.suppress(OSError):
        return set((home / NOTE).read_text("utf-8").split())
    return set()


class _Subject:
    """Who is erased, and what was done so far."""

    def __init__(
        self,
        log: Log,
        home: Path,
        store: ViewStore | None,
        views: str | Path,
        topic: str,
        found_by: Sequence[Any],
        column: str | None,
        *,
        everything: bool,
    ) -> None:
        self._log, self._home, self._store, self._views = log, home, store, views
        self._topic, self._found_by, self._column = log.topic(topic), found_by, column
        self._everything = everything
        self._specs: list[FlowSpec] = []
        self.places: dict[str, Place] = {}

    def erase(self, until: contextlib.ExitStack) -> Forgotten:
        if not isinstance(self._topic, Erasure):
            self._specs = open_views(self._views).specs()
            return self._elsewhere()
        sources = [(self._topic, self._column), *beside(self._log, self._topic, self._column)]
        self._stop_manager({topic.name for topic, _ in sources}, until)
        for topic, column in sources:
            self._erase_topic(topic, column)
        reach("forget.topics")
        self._specs = open_views(self._views).specs()  # now: what begins from here on reads nothing of it
        flows, topics = _made_of({topic.name for topic, _ in sources}, self._specs)
        kept, dropped = self._decide(flows, until)
        self._erase_written(kept)
        deleted = _written(dropped)
        self._name_writers({topic.name for topic, _ in sources}, dropped)
        self._name_captures({topic.name for topic, _ in sources})
        self._forget_caches(topics, deleted, until)
        self._delete_topics(deleted)
        self._drop(dropped)
        self._discard_versions(topics)
        self._wipe()
        return Forgotten(list(self.places.values()))

    def _told(self, place: str, done: Done, records: int | None = None, do: str | None = None) -> None:
        self.places[place] = Place(place, done, records, do)

    def _incomplete(self, said: Collection[str]) -> None:
        for each in said:
            where, _, why = each.partition(": ")
            self._told(where, "left", do=why or "erase again")

    # -- the log -----------------------------------------------------------------------------------

    def _erase_topic(self, topic: Topic, column: str | None) -> None:
        done = capability(topic, Erasure).erase(*self._found_by, column=column)
        self._told(f"topic {topic.name}", "erased", done.records)
        if done.dead_letters:
            self._told(f"dead letters of {topic.name}", "erased", done.dead_letters)
        self._incomplete(done.incomplete)

    def _stop_manager(self, topics: Collection[str], until: contextlib.ExitStack) -> None:
        """Of processes: no app runs their manager until the end, or who does is told. It has states in its memory, and
        would write the reply to a command that is under way."""
        name = self._topic.name
        if f"{name}.outbox" in topics and (why := self._lock(Supervised.lock_name(name), until)) is not None:
            self._told(f"process manager {name}", "left", do=why)

    def _elsewhere(self) -> Forgotten:
        name = self._topic.name
        do = (
            "delete the records there: a record with the key and no value in a compacted topic, or wait for the "
            "topic's retention; then drop the views that were made of them"
        )
        self._told(f"topic {name} in {self._log.address}", "left", do=do)
        for spec in _made_of({name}, self._specs)[0]:
            self._told(_named(spec), "left", do=f"when the log has forgotten: headrace views drop {spec.name}")
        return Forgotten(list(self.places.values()))

    def _erase_written(self, kept: Sequence[FlowSpec]) -> None:
        """Topics of flows that pass records on and keep nothing: their records have the subject's column."""
        for spec in kept:
            assert spec.target is not None
            with contextlib.suppress(UnknownTopic):
                self._erase_topic(self._log.topic(spec.target), self._columns[0])

    @property
    def _columns(self) -> tuple[str, ...]:
        return self._topic.settings.key if self._column is None else (self._column,)

    def _delete_topics(self, names: Collection[str]) -> None:
        for name in sorted(names):
            try:
                archive = self._log.topic(name).settings.archive
                self._log.delete_own_topic(name)
            except UnknownTopic:
                continue
            self._told(f"topic {name}", "deleted", do=AGAIN)
            if archive is not None:
                self._told(f"archive of {name}", "out of reach", do=f"remove {name}-*.parquet in {archive}")
            reach("forget.deleted")
        if names:
            done = capability(self._log, Files).erase_letters(names)
            if done.dead_letters:
                self._told("dead letters of what was deleted", "erased", done.dead_letters)
            self._incomplete(done.incomplete)

    # -- flows -------------------------------------------------------------------------------------

    def _decide(self, flows: Sequence[FlowSpec], until: contextlib.ExitStack) -> tuple[list[FlowSpec], list[FlowSpec]]:
        """Those that pass records on and stay, and those to be dropped, which nobody runs until the end. A flow goes
        with those that it works with, and is left with those that it reads from."""
        by_name = {spec.name: spec for spec in flows}
        roots = {spec.name: _root(spec, by_name).name for spec in flows}
        kept = [spec for spec in flows if self._passes_on(spec)]
        while again := _reading(kept, _written(spec for spec in flows if spec not in kept)):
            kept = [spec for spec in kept if spec not in again]
        left = dict[str, str]()
        for spec in flows:
            why = self._unsent(spec) if spec in kept else self._loss(spec, flows)
            why = why or self._lock(spec.name, until)
            if why is not None:
                left.setdefault(roots[spec.name], why)
        while behind := [
            spec
            for spec in _reading(flows, _written(spec for spec in flows if roots[spec.name] in left))
            if roots[spec.name] not in left
        ]:
            left |= {roots[spec.name]: "it reads what is left: see there, and erase again" for spec in behind}
        for spec in flows:
            if (why := left.get(roots[spec.name])) is not None:
                self._told(_named(spec), "left", do=why)
        done = [spec for spec in flows if roots[spec.name] not in left]
        return [spec for spec in done if spec in kept], [spec for spec in done if spec not in kept]

    def _passes_on(self, spec: FlowSpec) -> bool:
        """Whether it writes records as they come, with the subject's column, and keeps nothing."""
        if spec.view is not None or spec.tables or len(self._columns) != 1 or spec.target is None:
            return False
        if spec.writes != {spec.target} or spec.target.startswith("__"):
            return False
        try:
            return self._columns[0] in self._log.topic(spec.target).schema.names
        except UnknownTopic:
            return True

    def _unsent(self, spec: FlowSpec) -> str | None:
        assert self._store is not None
        if self._store.outbox(spec.name):
            return "it has records on their way: run its app until they are sent, stop it, and erase again"
        return None

    def _loss(self, spec: FlowSpec, flows: Sequence[FlowSpec]) -> str | None:
        """What would be lost with it, or doubled; None: it may be dropped."""
        others = sorted(topic for topic in spec.writes if not topic.startswith("__"))
        for other in self._specs:
            if other not in flows and (shared := sorted(other.writes & {*others})):
                return f"{_named(other)} writes {shared[0]}, too: drop both, delete the topic, and run them again"
        if self._everything:
            return None
        if others:
            return f"it would write all of {', '.join(others)} again. {LOSES} deletes that, to be made anew"
        if spec.operator.startswith("remember("):
            return f"its answers for all others would be asked for again, too. {LOSES} does that"
        gone = self._gone(spec)
        return None if gone is None else f"{gone}. {LOSES} has it made again of what is left"

    def _gone(self, spec: FlowSpec) -> str | None:
        """What it was made of that the log does not have any more."""
        assert self._store is not None
        state = self._store.state(spec.name)
        own = {topic for other in self._specs for topic in other.writes}
        for name in spec.sources:
            try:
                ends = self._log.topic(name).ends()
            except UnknownTopic:
                if name in own:  # deleted by a call before, which was interrupted
                    continue
                return f"topic {name}, which it has read, was deleted"
            for partition, place in state.places.get(name, {}).items():
                begin = state.begins.get(name, {}).get(partition)
                first = 0 if begin is None else begin.offset
                if first < min(ends[partition].earliest, place.offset):
                    return f"of {name}/{partition}, which it has read from {first} on, retention has deleted records"
        return None

    def _lock(self, name: str, until: contextlib.ExitStack) -> str | None:
        """Nobody runs it until the end; or who does."""
        lock = FlowLock(self._home, name, None if self._store is None else self._store.leases)
        try:
            lock.take()
        except AlreadyRunning as error:
            return f"process {error.pid} on {error.host} runs it: stop that, and erase again"
        until.callback(lock.release)
        return None

    def _drop(self, flows: Sequence[FlowSpec]) -> None:
        """Those that read before those that they read from."""
        assert self._store is not None or not flows
        names, views = {spec.name for spec in flows}, open_views(self._views)
        for spec in reversed(flows):
            if spec.parent in names or self._store is None:
                continue  # it goes with the flow that it works for
            family = with_helpers(spec, flows)
            with contextlib.suppress(UnknownView):
                for each in family:
                    rows = views.status(each.name, topics=True).rows
                    self._told(_named(each), "dropped", rows, AGAIN)
                self._store.drop(spec.name)
            for each in family:
                self._log.forget_flow(each.name)
            reach("forget.dropped")

    def _discard_versions(self, topics: set[str]) -> None:
        """Versions of views that were made of these topics, where what is served was not."""
        views = open_views(self._views)
        for spec in self._specs if self._store is not None else ():
            assert self._store is not None
            with contextlib.suppress(UnknownView):
                beside = self._store.beside(spec.name)
                if beside is not None and topics & {*views.flow(beside, topics=True).sources}:
                    self._store.discard(spec.name)
                    self._told(f"version {beside}", "removed")

    # -- what is beside topics and flows ---------------------------------------------------------------

    def _name_writers(self, topics: Collection[str], dropped: Sequence[FlowSpec]) -> None:
        """Flows that keep what they have made the topics of."""
        for spec in self._specs:
            if spec.target in topics and spec not in dropped and not self._passes_on(spec):
                do = f"it writes {spec.target}, and has the subject in what it keeps: erase from what it reads"
                self._told(_named(spec), "left", do=do)

    def _name_captures(self, topics: Collection[str]) -> None:
        for name in captures(self._log):
            if any(value.get("topic") in topics for value in recorded(self._log, name).values()):
                do = "delete it in the database, too, or the next copy of the table brings it back"
                self._told(f"capture {name}", "out of reach", do=do)

    def _forget_caches(self, topics: Collection[str], deleted: Collection[str], until: contextlib.ExitStack) -> None:
        if forget_all(self._home):
            self._told("snapshots of entities", "removed", do="they are made again as entities are used")
        for name, facts in sinks(self._log).items():
            if facts.get("topic") not in topics:
                continue
            if facts.get("kind") != KIND:
                more = f", and headrace sinks rewind {name}" if facts["topic"] in deleted else ""
                self._told(f"sink {name}", "out of reach", do=f"ask who gets its records to erase them{more}")
            elif why := self._lock(Sink.lock_name(name), until):
                self._told(f"index {name}", "left", do=why)
            else:
                file.remove(SearchIndex.of(name, facts).file(self._home))
                self._told(f"index {name}", "removed", do="its next run builds it again, or headrace index run " + name)

    def _wipe(self) -> None:
        for path in local_dir.remove_left(self._home):
            self._told(str(path), "left", do="a process writes there for Spark: stop it, and erase again")
        with contextlib.suppress(FileNotFoundError):
            (self._home / SPARK_LOG).unlink()  # an error of Spark may quote a value
            self._told(SPARK_LOG, "removed")
        if self._store is not None:
            try:
                self._incomplete(self._store.wipe())
            except DiskFull as error:
                self._told("free pages of the views", "left", do=f"{error}. Then erase again")
        if not isinstance(self._views, Path):
            do = "its write-ahead log, replicas and backups keep deleted rows for a while: let them expire"
            self._told("Postgres", "out of reach", do=do)
        self._told("backups, copies and snapshots of disks", "out of reach", do="let them expire, or erase there, too")


def _named(spec: FlowSpec) -> str:
    return f"view {spec.name}" if spec.target is None else f"flow {spec.name}"


def _made_of(topics: Collection[str], specs: Sequence[FlowSpec]) -> tuple[list[FlowSpec], set[str]]:
    """The flows that read the topics, or what such flows write, with the flows that they work for and their helpers;
    and all topics that these read from each other. Each reads a topic, or what one before it writes."""
    reached, flows = {*topics}, list[FlowSpec]()
    by_name = {spec.name: spec for spec in specs if not is_version(spec.name)}
    while more := [spec for spec in _reading(list(by_name.values()), reached) if spec not in flows]:
        for spec in more:
            family = with_helpers(_root(spec, by_name), list(by_name.values()))
            flows += [each for each in reversed(family) if each not in flows]
        reached |= _written(flows)
    return flows, reached


def _written(flows: Iterable[FlowSpec]) -> set[str]:
    return {topic for spec in flows for topic in spec.writes}


def _reading(flows: Sequence[FlowSpec], topics: set[str]) -> list[FlowSpec]:
    return [spec for spec in flows if topics & {*spec.sources}]


def _root(spec: FlowSpec, by_name: dict[str, FlowSpec]) -> FlowSpec:
    """The flow that it works for, through other helpers if need be; itself, if it is no helper."""
    while spec.parent is not None and spec.parent in by_name:
        spec = by_name[spec.parent]
    return spec
