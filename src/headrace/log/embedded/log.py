"""The embedded log's handle: `headrace.open_log(directory)`. Owns its share of the engine; many handles on one
directory share one engine per process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.durations import Duration
from headrace.errors import IncompatibleSchema, InvalidArgument
from headrace.log.declared import DeclaredTopic
from headrace.log.embedded import opening
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.log.settings import settings_of
from headrace.names import OWN_PREFIX, check_name
from headrace.places import directory

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

    from headrace.log.contract import ClockStanding, LogUsage, Maintained, Mended, Topic, Verified
    from headrace.log.embedded.storage.engine import Clock
    from headrace.log.embedded.transaction import EmbeddedTransaction
    from headrace.log.embedded.write.dead_letters import DeadLetter
    from headrace.log.embedded.write.sender import EmbeddedSender


class EmbeddedLog:
    """A partitioned, durable, typed log in a directory. Thread-safe; any number of processes may have it open.
    `clock_us`: what arrival is stamped with, in place of the machine's clock; for tests."""

    def __init__(self, home: str | Path, *, create: bool = True, clock_us: Clock | None = None) -> None:
        self._engine = opening.acquire(directory(home).absolute(), create=create, clock_us=clock_us)
        self._catalog = Catalog(self._engine)

    def __repr__(self) -> str:
        return f"<log {self.home}>"

    @property
    def home(self) -> Path:
        """The directory."""
        return self._engine.home

    @property
    def address(self) -> str:
        """The directory, as text: what the log is opened by."""
        return str(self.home)

    @property
    def log_id(self) -> str:
        """Names this log for ever, wherever it is copied."""
        return self._engine.index.log_id

    @property
    def in_place(self) -> bool:
        """Whether the directory still holds this log: it may have been removed, or made anew."""
        return self._engine.index.in_place()

    def _check(self) -> None:
        self._catalog.check()

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        schema: object,
        *,
        key: str | tuple[str, ...] | None = None,
        event_time: str | None = None,
        partitions: int = 1,
        retention: Duration | None = None,
        retention_bytes: int | None = None,
        cleanup: str = "delete",
        unread: str = "delete",
        tombstone_grace: Duration = "1 day",
        durability: str = "fsync",
        compression: str = "zstd",
        versioned: bool = False,
        max_ahead: Duration = "1 hour",
        forget: Duration = "7 days",
        extra: str = "forbid",
        changes: bool = False,
        exist_ok: bool = False,
    ) -> EmbeddedTopic:
        """A new topic. `schema` is DDL text ("user string, at timestamp"), a `pa.Schema` or a Spark StructType.

        With `exist_ok` a topic that is there already is returned as it is, whatever was asked for here."""
        self._check()
        settings = settings_of(
            {
                "key": key,
                "event_time": event_time,
                "partitions": partitions,
                "retention": retention,
                "retention_bytes": retention_bytes,
                "cleanup": cleanup,
                "unread": unread,
                "tombstone_grace": tombstone_grace,
                "durability": durability,
                "compression": compression,
                "versioned": versioned,
                "max_ahead": max_ahead,
                "forget": forget,
                "extra": extra,
                "changes": changes,
            }
        )
        return self._handle(self._catalog.create(name, schema, settings, exist_ok=exist_ok))

    def own_topic(
        self,
        name: str,
        schema: pa.Schema,
        *,
        event_time: str | None = None,
        max_ahead: Duration = "1 hour",
        partitions: int = 1,
    ) -> EmbeddedTopic:
        """A topic of headrace's own, which is not listed; the one that is there, if there is, with columns added that
        it has not, and made wider where these are. IncompatibleSchema if they are of another kind."""
        self._check()
        settings = settings_of({"event_time": event_time, "max_ahead": max_ahead, "partitions": partitions})
        self._catalog.create(name, schema, settings, exist_ok=True, system=True)
        return self._grown_topic(name, schema)

    def flow_topic(self, name: str, schema: pa.Schema, *, flow: str, **settings: Any) -> EmbeddedTopic:
        """The topic a flow writes to: made if there is none. The one that this flow has made gets columns added that it
        has not, and made wider where these are; any other stays as it is."""
        self._check()
        made = replace(settings_of(settings), made_by=flow)
        state = self._catalog.create(name, schema, made, exist_ok=True)
        return self._grown_topic(name, schema) if state.settings.made_by == flow else self._handle(state)

    def _grown_topic(self, name: str, schema: pa.Schema) -> EmbeddedTopic:
        topic = self.topic(name)
        grown = _grown(topic.schema, schema)
        if grown == topic.schema:
            return topic
        self._catalog.alter(self._catalog.named(name), {"schema": grown})
        return self.topic(name)

    def widen_own_topic(self, name: str, partitions: int) -> None:
        """Gives a topic, of headrace's own too, so many partitions, if it has fewer."""
        state = self._catalog.named(name)
        if state.settings.partitions < partitions:
            self._catalog.alter(state, {"partitions": partitions})

    def topic(self, name: str) -> EmbeddedTopic:
        """The topic of that name; UnknownTopic if there is none."""
        self._check()
        return self._handle(self._catalog.named(name))

    def topics(self) -> list[EmbeddedTopic]:
        """All topics, by name."""
        self._check()
        return [self._handle(state) for state in self._catalog.all()]

    def clone_topic(self, topic: Topic) -> EmbeddedTopic:
        """A topic like another log's, without its records; one of that name that is here is returned as it is."""
        self._check()
        described = topic.describe()
        own = topic.name.startswith(OWN_PREFIX)
        state = self._catalog.create(topic.name, described.schema, described.settings, exist_ok=True, system=own)
        return self._handle(state)

    def delete_topic(self, name: str) -> None:
        """Deletes the topic with its records, groups and versions. Handles on it get TopicReplaced."""
        check_name(name, argument="name")  # headrace's own topics stay: the index points into them
        self.delete_own_topic(name)

    def delete_own_topic(self, name: str) -> None:
        """The same, of headrace's own too."""
        self._check()
        self._catalog.delete(self._catalog.named(name))

    def _handle(self, state: Any) -> EmbeddedTopic:
        return EmbeddedTopic(self._engine, self._catalog, state)

    # -- across topics -----------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[EmbeddedTransaction]:
        """All or nothing, across partitions and topics: appends, and a member's offsets.

            with log.transaction() as tx:
                tx.append("orders", rows)
                tx.commit(member)

        Written when the block ends; an exception inside writes nothing."""
        from headrace.log.embedded import transaction

        self._check()
        with transaction.transaction(self._engine, self.topic) as tx:
            yield tx

    def sync(self) -> None:
        """Makes durable whatever can be read now, also what only `os` topics have."""
        self._check()
        self._engine.committer.run(lambda _: None, synced=True)

    def sender(self, name: str) -> EmbeddedSender:
        """Appends numbered rows, each once; whoever sent under that name before is fenced."""
        from headrace.log.embedded.write.sender import EmbeddedSender

        self._check()
        return EmbeddedSender(name, self.topic, self.widen_own_topic)

    def news(self, topics: Iterable[Topic]) -> dict[str, int]:
        """What `wait` compares with: take it before looking, wait when there was nothing to see."""
        self._check()
        return {topic.topic_id: self._engine.wakes.count(topic.topic_id) for topic in topics}

    def wait(self, seen: Mapping[str, int], timeout: float | None = None) -> bool:
        """Until one of the topics has news since `seen`, or for `timeout` seconds. True: look again."""
        self._check()
        return self._engine.wakes.wait_any(seen, timeout)

    def report(self, flow: str, places: Iterable[tuple[Topic, Mapping[int, int]]]) -> Future[None]:
        """A flow tells how far it has read topics, so that retention minds it and lag is seen. Need not be waited
        for: what is lost of it only keeps records for longer."""
        from headrace.log.embedded.consume import readers

        self._check()
        return readers.report(self._engine, flow, [(self._own(topic), offsets) for topic, offsets in places])

    def _own(self, topic: Topic) -> TopicState:
        found = topic.opened() if isinstance(topic, DeclaredTopic) else topic
        if not isinstance(found, EmbeddedTopic):
            raise InvalidArgument("topic", topic, "is of another log")
        return found.known_state()

    def forget_flow(self, flow: str) -> None:
        """Nothing is kept for the flow any more."""
        from headrace.log.embedded.consume import readers

        self._check()
        readers.forget(self._engine, flow)

    def dead_letters(self, *, newest: int | None = None) -> Iterator[DeadLetter]:
        """Records that could not go where they should, oldest first: why, from where, what. Replay or drop them.
        `newest`: only so many of the last."""
        from headrace.log.embedded.consume import replaying
        from headrace.log.embedded.write import dead_letters

        self._check()
        owner = replaying.LetterOwner(self._engine, self._catalog, self.topic)
        return dead_letters.listed(self._engine, self._catalog, owner, newest=newest)

    def dead_letter(self, id: int) -> DeadLetter:
        """The one of that id; InvalidArgument if it is not there (any more)."""
        from headrace.log.embedded.consume import replaying
        from headrace.log.embedded.write import dead_letters

        self._check()
        owner = replaying.LetterOwner(self._engine, self._catalog, self.topic)
        for found in dead_letters.listed(self._engine, self._catalog, owner, id=id):
            return found
        raise InvalidArgument("id", id, "there is no such dead letter (any more). See headrace dead list")

    def dead_letters_count(self) -> int:
        """How many wait for a decision."""
        from headrace.log.embedded.write import dead_letters

        self._check()
        return dead_letters.counted(self._engine)

    def maintain(self) -> Maintained:
        """Deletes what retention allows, compacts, seals small batches into large ones and frees disk space. Safe
        beside readers and writers, and to interrupt. A process that writes does it by itself now and then."""
        from headrace.log.embedded.upkeep import rounds

        self._check()
        return rounds.maintain(self._engine, self._catalog)

    def usage(self) -> LogUsage:
        """What the data files take: bytes in use, bytes nobody needs, and what `maintain` would free of them."""
        from headrace.log.embedded.upkeep import usage

        self._check()
        return usage.of_log(self._engine)

    def clock(self) -> ClockStanding:
        """What this log makes of the clock, and which partitions are ahead of it."""
        from headrace.log.embedded.storage import timekeeping

        self._check()
        return timekeeping.standing(self._engine)

    def confirm_clock(self) -> None:
        """Says that the clock is right, after ClockAhead: records are taken again, and retention goes by it."""
        from headrace.log.embedded.storage import timekeeping

        self._check()
        timekeeping.confirm(self._engine)

    def mend(self) -> list[Mended]:
        """Mends the topics that are ahead of the clock, which must be right: each is replaced by a new incarnation, in
        which what arrived in the future arrives now, and what happened in the future is a dead letter. Offsets, groups
        and queues stay; handles on the topic get TopicReplaced, and its views have to be rebuilt."""
        from headrace.log.embedded.upkeep import mending

        self._check()
        return mending.mend(self._engine, self._catalog)

    def verify(self) -> Verified:
        """Checks every row and every frame; changes nothing."""
        from headrace.log.embedded.upkeep import verify

        self._check()
        return verify.verify(self._engine, self._catalog)

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of the directory; what others have open stays open."""
        if not self._catalog.closed:
            self._catalog.closed = True
            opening.release(self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _grown(known: pa.Schema, given: pa.Schema) -> pa.Schema:
    """The columns of both. Of two types the one that holds what the other does; if neither does, the one that is given,
    which will be refused."""
    import pyarrow as pa

    from headrace.schema import evolve

    def one(field: pa.Field) -> pa.Field:
        if field.name not in given.names:
            return field
        other = given.field(field.name)
        try:
            evolve(pa.schema([other]), pa.schema([field]))
        except IncompatibleSchema:
            return other
        return field

    return pa.schema([*map(one, known), *(field for field in given if field.name not in known.names)])
