"""The embedded log's handle: `headrace.open_log(directory)`. Owns its share of the engine; many handles on one
directory share one engine per process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.durations import Duration
from headrace.errors import InvalidArgument
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

    from headrace.log.contract import ClockStanding, Erased, LogUsage, Maintained, Mended, Topic, Verified
    from headrace.log.embedded.storage.engine import Clock
    from headrace.log.embedded.transaction import EmbeddedTransaction
    from headrace.log.embedded.write.dead_letters import DeadLetter
    from headrace.log.embedded.write.sender import EmbeddedSender
    from headrace.storage.copying import Copied, Told


class EmbeddedLog:
    """A partitioned, durable, typed log in a directory. Thread-safe; any number of processes may have it open.
    `clock_us`: the clock for arrival times, in place of the machine's; for tests."""

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
        """The directory, as text: the address that opens this log."""
        return str(self.home)

    @property
    def log_id(self) -> str:
        """The log's id. Copies of the log have the same id."""
        return self._engine.index.log_id

    @property
    def in_place(self) -> bool:
        """True if the directory still holds this log: it may have been removed or replaced."""
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
        archive: str | None = None,
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

        With `exist_ok`, a topic that exists already is returned unchanged, whatever the other arguments are."""
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
                "archive": archive,
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
        """An internal topic of headrace, which is not listed. It is created if it does not exist; otherwise it gets
        missing columns and wider types. IncompatibleSchema if a type cannot be widened."""
        self._check()
        settings = settings_of({"event_time": event_time, "max_ahead": max_ahead, "partitions": partitions})
        self._catalog.create(name, schema, settings, exist_ok=True, system=True)
        return self._grown_topic(name, schema)

    def flow_topic(self, name: str, schema: pa.Schema, *, flow: str, **settings: Any) -> EmbeddedTopic:
        """The topic that a flow writes to. It is created if it does not exist. A topic that this flow created gets
        missing columns and wider types; any other is not changed."""
        self._check()
        made = replace(settings_of(settings), made_by=flow)
        state = self._catalog.create(name, schema, made, exist_ok=True)
        return self._grown_topic(name, schema) if state.settings.made_by == flow else self._handle(state)

    def _grown_topic(self, name: str, schema: pa.Schema) -> EmbeddedTopic:
        from headrace.log.grown import grown as grown_schema

        topic = self.topic(name)
        grown = grown_schema(topic.schema, schema)
        if grown == topic.schema:
            return topic
        self._catalog.alter(self._catalog.named(name), {"schema": grown})
        return self.topic(name)

    def widen_own_topic(self, name: str, partitions: int) -> None:
        """Adds partitions to a topic, also an internal one, if it has fewer than `partitions`."""
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
        """A topic with the schema and settings of another log's topic, without its records. If a topic of that name
        exists, it is returned unchanged."""
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
        """Like `delete_topic`, for internal topics, too."""
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
        """Syncs all records that can be read now, including those of `os` topics."""
        self._check()
        self._engine.committer.run(lambda _: None, synced=True)

    def sender(self, name: str) -> EmbeddedSender:
        """A sender: appends numbered rows, each once. An earlier sender of the same name is fenced."""
        from headrace.log.embedded.write.sender import EmbeddedSender

        self._check()
        return EmbeddedSender(name, self.topic, self.widen_own_topic)

    def news(self, topics: Iterable[Topic]) -> dict[str, int]:
        """A state of the topics for `wait`. Take it before you read; if there was nothing to read, pass it to
        `wait`."""
        self._check()
        return {topic.topic_id: self._engine.wakes.count(topic.topic_id) for topic in topics}

    def wait(self, seen: Mapping[str, int], timeout: float | None = None) -> bool:
        """Waits until one of the topics has changed since `seen`, or for `timeout` seconds. True if one has changed."""
        self._check()
        return self._engine.wakes.wait_any(seen, timeout)

    def report(self, flow: str, places: Iterable[tuple[Topic, Mapping[int, int]]]) -> Future[None]:
        """Reports the offsets that a flow has read, for retention and for lag. The caller need not wait for the result:
        if a report is lost, records are only kept longer."""
        from headrace.log.embedded.consume import readers

        self._check()
        return readers.report(self._engine, flow, [(self._own(topic), offsets) for topic, offsets in places])

    def _own(self, topic: Topic) -> TopicState:
        found = topic.opened() if isinstance(topic, DeclaredTopic) else topic
        if not isinstance(found, EmbeddedTopic):
            raise InvalidArgument("topic", topic, "is of another log")
        return found.known_state()

    def forget_flow(self, flow: str) -> None:
        """Removes the flow's registration: retention keeps no records for it any more."""
        from headrace.log.embedded.consume import readers

        self._check()
        readers.forget(self._engine, flow)

    def dead_letters(self, *, newest: int | None = None) -> Iterator[DeadLetter]:
        """The dead letters: records that could not be appended or processed, oldest first, with reason and origin.
        Replay or drop them. `newest`: only the last N."""
        from headrace.log.embedded.consume import replaying
        from headrace.log.embedded.write import dead_letters

        self._check()
        owner = replaying.LetterOwner(self._engine, self._catalog, self.topic)
        return dead_letters.listed(self._engine, self._catalog, owner, newest=newest)

    def dead_letter(self, id: int) -> DeadLetter:
        """The dead letter of that id; InvalidArgument if there is none, or it was replayed or dropped."""
        from headrace.log.embedded.consume import replaying
        from headrace.log.embedded.write import dead_letters

        self._check()
        owner = replaying.LetterOwner(self._engine, self._catalog, self.topic)
        for found in dead_letters.listed(self._engine, self._catalog, owner, id=id):
            return found
        raise InvalidArgument("id", id, "there is no such dead letter (any more). See headrace dead list")

    def dead_letters_count(self) -> int:
        """The number of dead letters."""
        from headrace.log.embedded.write import dead_letters

        self._check()
        return dead_letters.counted(self._engine)

    def maintain(self) -> Maintained:
        """Applies retention, compacts, seals small batches into large ones and frees disk space. It may run beside
        readers and writers, and may be interrupted. A process that writes does the same in the background."""
        from headrace.log.embedded.upkeep import rounds

        self._check()
        return rounds.maintain(self._engine, self._catalog)

    def erase_letters(self, topics: Collection[str]) -> Erased:
        """Removes the dead letters of these topics, which may be deleted, from the log's files, and what deleted topics
        have left there."""
        from headrace.log.embedded.upkeep import erasing, rounds

        self._check()
        with rounds.alone(self._engine, wait=True):
            return erasing.erase_letters(self._engine, self._catalog, topics)

    def usage(self) -> LogUsage:
        """The size of the data files: used bytes, unused bytes, and what `maintain` would free."""
        from headrace.log.embedded.upkeep import usage

        self._check()
        return usage.of_log(self._engine)

    def clock(self) -> ClockStanding:
        """How this log judges the machine's clock, and the partitions that are ahead of it."""
        from headrace.log.embedded.storage import timekeeping

        self._check()
        return timekeeping.standing(self._engine)

    def confirm_clock(self) -> None:
        """Confirms that the clock is right, after ClockAhead: appends and retention use it again."""
        from headrace.log.embedded.storage import timekeeping

        self._check()
        timekeeping.confirm(self._engine)

    def mend(self) -> list[Mended]:
        """Repairs the topics that are ahead of the clock, which must be right now. Each is replaced by a new topic of
        the same name: records that arrived in the future get the present as their arrival, and records with an event
        time in the future become dead letters. Offsets, groups and queues stay. Handles on the old topic get
        TopicReplaced, and its views must be rebuilt."""
        from headrace.log.embedded.upkeep import mending

        self._check()
        return mending.mend(self._engine, self._catalog)

    def verify(self) -> Verified:
        """Checks every row and every frame; changes nothing."""
        from headrace.log.embedded.upkeep import verify

        self._check()
        return verify.verify(self._engine, self._catalog)

    def back_up(
        self, target: Path, told: Told, together: Callable[[Callable[[], None]], None]
    ) -> tuple[list[Copied], Verified, int]:
        """Copies the log into an empty directory, while it is in use: the files, the result of checking them, and the
        number of the last commit. `together`: is given what fixes the moment of the copy, and calls it at that of
        others."""
        from headrace.log.embedded.upkeep import backup

        self._check()
        return backup.back_up(self._engine, target, told, together)

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes this handle. Other handles on the directory stay open."""
        if not self._catalog.closed:
            self._catalog.closed = True
            opening.release(self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
