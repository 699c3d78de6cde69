"""The clients of a Kafka cluster that a process has: an admin client, one idempotent producer, consumers to read ranges
with. Owns their configuration, their errors (translated here, once), and that handles on one cluster share them. A
forked child makes its own. Knows no schema and no topic of ours."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, KafkaFailed, KafkaMissing, RecordTooLarge, Unsupported
from headrace.log.kafka.settings import Kafka

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, ShareConsumer
    from confluent_kafka.admin import AdminClient

__all__ = ["Client", "Outgoing", "Place", "client_of", "import_kafka"]

REQUEST_SECONDS = 20.0
"""How long one request may take, retries of the client included."""
UNREACHED_SECONDS = 5.0
"""A cluster that has not answered yet is given up after so long, if no broker of it can be reached."""
UNREACHED = ("_TRANSPORT", "_RESOLVE")
LEADERS_SECONDS = 5.0
"""How long partitions may be without a leader."""
ADMIN_SECONDS = 0.5
"""An admin client is not made again before it is so old: threads that fail together need one new client."""
POLL_SECONDS = 0.01
"""Threads share a producer: a report may come to another one's poll, and this one sees it after so long."""
REFUSED_SECONDS = 0.1
"""After so long without an answer one looks whether a login or a certificate was refused."""
REFUSALS = ("_AUTHENTICATION", "_SSL")
LEADERS_MOVED = (
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "_NOENT",
)
RECORD_BYTES_MAX = 24 << 20
"""A record of the largest size as JSON text; topics that headrace creates allow it."""
LOGGER = logging.getLogger("headrace.kafka")

Place = tuple[str, int]
"""A topic's name in Kafka, and a partition."""
Outgoing = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""A record to produce: partition, value, key, headers."""


def import_kafka() -> Any:
    """The client library; KafkaMissing if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise KafkaMissing(why=str(error)) from None
    return confluent_kafka


_clients: dict[tuple[int, Kafka], Client] = {}
_clients_lock = threading.Lock()


def client_of(settings: Kafka) -> Client:
    """The process's clients for these settings; handles on the same cluster share them, whatever their prefix."""
    from dataclasses import replace

    known = os.getpid(), replace(settings, prefix="")
    with _clients_lock:
        if known not in _clients:
            _clients[known] = Client(known[1])
        return _clients[known]


def _renew_lock() -> None:
    global _clients_lock
    _clients_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Client:
    def __init__(self, settings: Kafka) -> None:
        import_kafka()
        self.settings = settings
        self.changed = threading.Condition()
        """Notified when this process has appended, altered, deleted or closed something."""
        self._lock = threading.RLock()
        self._admin: AdminClient | None = None
        self.admin_stale = False
        self._admin_made = 0.0
        self._replaced: list[tuple[float, AdminClient]] = []
        """Admin clients that were replaced, and until when their answers may be waited for: with the last reference a
        client ends, and answers nothing more."""
        self._refused: KafkaError | None = None
        self._unreached: KafkaError | None = None
        self._all_down = False
        """What the brokers or their certificates refused, if it was the last that was heard of them."""
        self._producer: Producer | None = None
        self._idle: list[Consumer] = []
        self._idle_peeking: list[Consumer] = []
        self._cluster: str | None = None

    # -- errors ------------------------------------------------------------------------------------

    def failed(self, what: str, error: KafkaError) -> HeadraceError:
        """A Kafka error as ours. After one of the client's own, or of a broker that moved, the admin client is made
        again: the old one goes on asking where a coordinator was."""
        if error.name().startswith("_") or error.name() in LEADERS_MOVED or "COORDINATOR" in error.name():
            self.admin_stale = True
        return KafkaFailed(self.settings.servers, what, error.name(), error.str(), error.retriable())

    @contextlib.contextmanager
    def translated(self, what: str) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failed(what, error.args[0]) from None

    # -- clients -----------------------------------------------------------------------------------

    def config(self, **more: Any) -> dict[str, Any]:
        """With what every client has. librdkafka's log lines go to the logger `headrace.kafka`."""
        common = {"client.id": "headrace", "log_level": 4, "socket.timeout.ms": 15_000, "logger": LOGGER}
        common |= {"topic.metadata.refresh.fast.interval.ms": 20, "reconnect.backoff.ms": 20}
        common["reconnect.backoff.max.ms"] = 1_000
        dotted = {name.replace("_", "."): value for name, value in more.items()}
        return {**common, **self.settings.client_config(), **dotted}

    @property
    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        with self._lock:
            now = time.monotonic()
            if self._admin is None or (self.admin_stale and now - self._admin_made > ADMIN_SECONDS):
                self.admin_stale, self._replaced = False, [each for each in self._replaced if each[0] > now]
                with self.translated("making a client"):
                    told = {"error_cb": self._note, "log_level": 0}  # what it would log, `_note` gets
                    made = AdminClient({**self.config(), **told})
                if self._admin is not None:
                    self._replaced.append((now + REQUEST_SECONDS, self._admin))
                self._admin, self._admin_made = made, now
            return self._admin

    def _note(self, error: KafkaError) -> None:
        """Called while the admin client is polled. The client tries again for ever; who waits for it should know."""
        if error.name() in REFUSALS:
            self._refused = error
        elif error.name() in UNREACHED:
            self._unreached = error
        elif error.name() == "_ALL_BROKERS_DOWN":
            self._all_down = True

    def new_producer(self, **more: Any) -> Producer:
        """Idempotent: what is sent again after a lost answer is written once."""
        from confluent_kafka import Producer

        given: dict[str, Any] = {"enable_idempotence": True, "linger_ms": 2, "partitioner": "murmur2_random"}
        given["message_max_bytes"] = RECORD_BYTES_MAX + 1024
        given |= {"queue_buffering_max_messages": 500_000, "queue_buffering_max_kbytes": 512 << 10}
        given |= {"batch_size": 1 << 20, "batch_num_messages": 100_000, "compression_type": "lz4"}
        given["message_timeout_ms"] = 30_000
        with self.translated("making a producer"):
            return Producer(self.config(**{**given, **more}))

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = self.new_producer()
            return self._producer

    def new_consumer(self, **more: Any) -> Consumer:
        """Reads what was committed, from where it is told; commits nothing by itself. What it has queued is fetched in
        vain when a range ends: so it queues what a task reads in some tenths of a second, and no more."""
        from confluent_kafka import Consumer

        given: dict[str, Any] = {"group_id": "headrace", "enable_auto_commit": False, "enable_partition_eof": True}
        given |= {"isolation_level": "read_committed", "auto_offset_reset": "error", "fetch_wait_max_ms": 5}
        given |= {"queued_min_messages": 50_000, "queued_max_messages_kbytes": 128 << 10}
        given |= {"fetch_queue_backoff_ms": 5, "fetch_message_max_bytes": 4 << 20, "fetch_error_backoff_ms": 20}
        with self.translated("making a consumer"):
            return Consumer(self.config(**{**given, **more}))

    def new_share_consumer(self, group: str) -> ShareConsumer:
        """A member of a share group, which answers each record. librdkafka calls it a preview, in a line of its log."""
        try:
            from confluent_kafka import ShareConsumer
        except ImportError:
            raise Unsupported("this version of confluent-kafka", "consumer of share groups") from None

        given = {"group_id": group, "share_acknowledgement_mode": "explicit", "max_poll_records": 200}
        given["fetch_wait_max_ms"] = 100
        with self.translated("making a consumer of a share group"):
            return ShareConsumer({**self.config(**given), "log_level": 3})

    @contextlib.contextmanager
    def consumer(self, *, peek: bool = False) -> Iterator[Consumer]:
        """One to read ranges with, or, with `peek`, single records; used by one caller at a time, and kept for the
        next."""
        idle = self._idle_peeking if peek else self._idle
        with self._lock:
            found = idle.pop() if idle else None
        less = {"queued_min_messages": 1, "fetch_message_max_bytes": 16 << 10} if peek else {}
        found = found or self.new_consumer(**less)
        try:
            yield found
        finally:
            found.unassign()
            with self._lock:
                idle.append(found)

    # -- requests ----------------------------------------------------------------------------------

    def ask(self, what: str, future: Any) -> Any:
        """The answer to an admin request."""
        begun = time.monotonic()
        while True:
            try:
                with self.translated(what):
                    found = future.result(REFUSED_SECONDS)
                self._refused, self._all_down = None, False
                return found
            except TimeoutError:
                if self._admin is not None:
                    self._admin.poll(0)  # which calls `_note`
                if self._refused is not None:
                    refused, self._refused = self._refused, None
                    raise self.failed(what, refused) from None
                waited = time.monotonic() - begun
                if self._cluster is None and self._all_down and self._unreached and waited > UNREACHED_SECONDS:
                    raise self.failed(what, self._unreached) from None
                if waited > REQUEST_SECONDS:
                    raise KafkaFailed(self.settings.servers, what, "timeout", "no answer came", True) from None

    def cluster_id(self) -> str:
        if self._cluster is None:
            self._cluster = str(self.ask("asking for the cluster", self.admin.describe_cluster()).cluster_id)
        return self._cluster

    def brokers(self) -> list[str]:
        found = self.ask("asking for the brokers", self.admin.describe_cluster()).nodes
        return sorted(f"{each.host}:{each.port}" for each in found)

    def offsets(self, places: Iterable[Place], spec: Any, *, committed: bool = True) -> dict[Place, Any]:
        """The offsets of partitions. With `committed`, the end is before the first open transaction."""
        from confluent_kafka import IsolationLevel, TopicPartition

        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(name, partition): spec for name, partition in places}
        until = time.monotonic() + LEADERS_SECONDS
        while asked:
            found = self.admin.list_offsets(asked, isolation_level=level, request_timeout=REQUEST_SECONDS)
            try:
                return {(at.topic, at.partition): self.ask("asking for offsets", each) for at, each in found.items()}
            except KafkaFailed as error:
                if error.code not in LEADERS_MOVED or time.monotonic() > until:
                    raise
                self._ask_for_leaders({at.topic for at in asked})
        return {}

    def _ask_for_leaders(self, topics: Iterable[str]) -> None:
        """After a broker was restarted or a partition moved: the client does not ask again by itself."""
        from confluent_kafka import KafkaException

        for topic in topics:
            with contextlib.suppress(KafkaException):
                self.admin.list_topics(topic, timeout=1.0)
        time.sleep(0.02)

    def ends(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        """(earliest, next) of partitions: `next` is read first, so it is never below the earliest."""
        from confluent_kafka.admin import OffsetSpec

        nexts = self.offsets(places, OffsetSpec.latest())
        firsts = self.offsets(places, OffsetSpec.earliest())
        return {at: (min(firsts[at].offset, nexts[at].offset), nexts[at].offset) for at in places}

    def wait_visible(self, nexts: Mapping[Place, int]) -> None:
        """Until readers see all below these offsets: a commit is answered before its markers are written. Where another
        producer's transaction is open, that may take as long as it does; then this gives up, and readers see it
        later."""
        from confluent_kafka.admin import OffsetSpec

        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            found = self.offsets(nexts, OffsetSpec.latest())
            if all(found[at].offset >= offset for at, offset in nexts.items()):
                return
            time.sleep(0.002)

    # -- producing ---------------------------------------------------------------------------------

    def produce(self, producer: Producer, topic: str, records: Iterable[Outgoing]) -> Deliveries:
        """Hands records to a producer. `Deliveries.wait` says where they are."""
        from confluent_kafka import KafkaException

        done = Deliveries(self, producer, topic)
        note, send = done.note, producer.produce
        for record in records:
            partition, value, key, headers = record
            try:
                if headers is None:
                    send(topic, value, key, partition, note)
                else:
                    send(topic, value, key, partition, note, headers=headers)
            except (BufferError, KafkaException) as error:
                if not self._sent_later(done, producer, topic, record, error):
                    return done
            done.sent += 1
        return done

    def _sent_later(
        self, done: Deliveries, producer: Producer, topic: str, record: Outgoing, error: BufferError | KafkaException
    ) -> bool:
        """Waits for room in the producer's queue, or for a partition that was added just now. False if it is refused
        for good: then `done` has the error."""
        from confluent_kafka import KafkaException

        partition, value, key, headers = record
        until = time.monotonic() + REQUEST_SECONDS
        while True:
            if isinstance(error, BufferError):
                producer.poll(0.05)
            elif _is_unknown_partition(error) and time.monotonic() < until:
                producer.list_topics(topic, timeout=REQUEST_SECONDS)
            else:
                done.refuse(error)
                return False
            try:
                producer.produce(topic, value, key, partition, done.note, headers=headers or [])
                return True
            except (BufferError, KafkaException) as again:
                error = again

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


class Deliveries:
    """Counts the delivery reports of records: all must come, and none may be an error."""

    def __init__(self, client: Client, producer: Producer, topic: str) -> None:
        self._client, self._producer, self._topic = client, producer, topic
        self.sent = 0
        self.error: HeadraceError | None = None
        self._arrived: list[int] = []
        self._lock = threading.Lock()
        self._ends: dict[int, list[int]] = {}
        self.note = self._noting()

    def _noting(self) -> Callable[[KafkaError | None, Message], None]:
        """Called for each record, by whichever thread polls the producer. No method: looking up its attributes took as
        long as the rest."""
        lock, ends, arrived = self._lock, self._ends, self._arrived

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.error = self.error or self._client.failed("an append", error)
                arrived.append(1)
                return
            partition, offset = message.partition(), message.offset()
            with lock:
                known = ends.get(partition)
                if known is None:
                    ends[partition] = [offset, offset]
                elif offset > known[1]:
                    known[1] = offset
                elif offset < known[0]:
                    known[0] = offset
            arrived.append(1)

        return note

    def refuse(self, error: KafkaException) -> None:
        from confluent_kafka import KafkaError

        code = error.args[0]
        if code.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            why = f"is larger than {RECORD_BYTES_MAX} bytes as JSON. Store large values elsewhere"
            self.error = RecordTooLarge(self._topic, self.sent, "", why, RECORD_BYTES_MAX + 1, RECORD_BYTES_MAX)
        else:
            self.error = self._client.failed("an append", code)

    def wait(self) -> dict[int, range]:
        """The offsets of the records, by partition. Raises what the first failed record did."""
        while len(self._arrived) < self.sent:
            self._producer.poll(POLL_SECONDS)
        if self.error is not None:
            raise self.error
        return {partition: range(low, high + 1) for partition, (low, high) in sorted(self._ends.items())}


def _is_unknown_partition(error: KafkaException) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.args[0].code() == KafkaError._UNKNOWN_PARTITION)


def wait_until(client: Client, changed: Callable[[], bool], timeout: float | None, check: Callable[[], None]) -> bool:
    """Asks until `changed` says so, or for `timeout` seconds: at once when this process has done something, else ever
    more seldom, up to twenty times a second."""
    until = None if timeout is None else time.monotonic() + timeout
    pause = 0.005
    while True:
        check()
        if changed():
            return True
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return False
        with client.changed:
            client.changed.wait(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, 0.05)
