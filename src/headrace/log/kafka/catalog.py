"""Which topics headrace knows in a Kafka cluster, and their schemas: one compacted topic, `__headrace.topics`, with a
record for each. Owns that topic, Kafka's topic ids, and the settings that a topic of ours has in Kafka. A topic that
was deleted and created again has another id. Does not know records."""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson
import pyarrow as pa

from headrace.errors import (
    HeadraceError,
    InvalidArgument,
    KafkaFailed,
    TopicExists,
    TopicReplaced,
    UnknownTopic,
    Unsupported,
    UnsupportedFormat,
)
from headrace.log.kafka.client import RECORD_BYTES_MAX, REQUEST_SECONDS, Client
from headrace.log.kafka.transactional import ProducerReplaced, Transactional
from headrace.log.settings import Avro, TopicSettings, check_columns, fields_of, partition_count, settings_of
from headrace.names import NAME_MAX, OWN_PREFIX, check_name
from headrace.schema import evolve, schema_bytes, schema_from, schema_from_bytes, to_ddl

__all__ = ["Catalog", "Entry", "QueueEntry", "catalog_of", "config_of"]

TOPICS = "__headrace.topics"
FRESH_SECONDS = 0.5
"""What another process creates, alters or deletes is seen after so long at the latest."""
PAUSE_SECONDS = 0.01
ENTRY_SECONDS = 2.0
"""A process that creates a topic makes it known at once; after so long it has died in between."""
TURN_SECONDS = 0.2
"""Who was overtaken by another that changes a topic waits so long at most, before it tries again."""


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A queue of a topic: a share group with these settings."""

    name: str
    visibility_ms: int
    max_deliveries: int


@dataclass(frozen=True)
class Entry:
    """A topic as headrace knows it. `foreign`: others created it and write to it, by their own rule for partitions.
    `unit`: of an event time that is a number since 1970, in a foreign topic. `avro`: its values are Avro, not JSON.
    `texts`: keys and values are texts of any kind, the columns `key` and `value`."""

    name: str
    topic_id: str
    columns: pa.Schema
    settings: TopicSettings
    schema_version: int = 1
    created_us: int = 0
    foreign: bool = False
    unit: str | None = None
    avro: Avro | None = None
    queues: tuple[QueueEntry, ...] = ()
    texts: bool = False

    def encoded(self) -> bytes:
        facts = {
            each: getattr(self, each)
            for each in ("topic_id", "schema_version", "created_us", "foreign", "unit", "texts")
        }
        facts["avro"] = None if self.avro is None else list(map(list, self.avro.schemas))
        facts["queues"] = [asdict(each) for each in self.queues]
        arrow = base64.b64encode(schema_bytes(self.columns)).decode()
        return orjson.dumps(
            {**facts, "schema": to_ddl(self.columns), "arrow": arrow, "settings": asdict(self.settings)}
        )


def _decoded(name: str, value: bytes) -> Entry:
    said = orjson.loads(value)
    settings = said.pop("settings")
    settings["key"], settings["mended_from"] = tuple(settings["key"]), tuple(settings["mended_from"])
    said.pop("schema")
    if (schemas := said.pop("avro", None)) is not None:
        said["avro"] = Avro(tuple((id, text) for id, text in schemas))
    said["queues"] = tuple(QueueEntry(**each) for each in said.get("queues", ()))
    columns = schema_from_bytes(base64.b64decode(said.pop("arrow")))
    return Entry(name, columns=columns, settings=TopicSettings(**settings), **said)


_catalogs: dict[tuple[int, str], Catalog] = {}
_catalogs_lock = threading.Lock()


def catalog_of(client: Client, prefix: str) -> Catalog:
    """The process's catalog of a cluster and prefix."""
    with _catalogs_lock:
        found = _catalogs.get((id(client), prefix))
        if found is None:
            found = _catalogs[id(client), prefix] = Catalog(client, prefix)
        return found


class Catalog:
    def __init__(self, client: Client, prefix: str) -> None:
        self.client, self.prefix = client, prefix
        self._entries: dict[str, Entry] = {}
        self._unreadable: dict[str, str] = {}
        """Names, and why what is written of them cannot be read."""
        self._read_to = 0
        self._exists = False
        self._seen = -1e9
        self._verified: dict[str, float] = {}
        self._lock = threading.RLock()

    def physical(self, name: str) -> str:
        """The topic's name in Kafka."""
        return self.prefix + name

    # -- looking up --------------------------------------------------------------------------------

    def refresh(self, *, now: bool = False) -> None:
        """Reads what has been written to the topic of topics."""
        with self._lock:
            if not now and time.monotonic() - self._seen < FRESH_SECONDS:
                return
            if not self._exists and not self._described([TOPICS]):
                self._seen = time.monotonic()
                return
            self._exists = True
            at = (self.physical(TOPICS), 0)
            _, end = self.client.ends([at])[at]
            if end > self._read_to:
                self._read(end)
            self._seen = time.monotonic()

    def _read(self, end: int) -> None:
        from confluent_kafka import KafkaError, TopicPartition

        with self.client.consumer() as consumer:
            consumer.assign([TopicPartition(self.physical(TOPICS), 0, self._read_to)])
            until = time.monotonic() + REQUEST_SECONDS
            while self._read_to < end:
                message = consumer.poll(0.5)
                if message is None:
                    if time.monotonic() > until:
                        raise KafkaFailed(self.client.settings.servers, "reading topics", "timeout", "no answer", True)
                    continue
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        self._read_to = end
                        return
                    raise self.client.failed("reading the topics", error)
                self._note((message.key() or b"").decode("utf-8", "replace"), message.value())
                self._read_to = (message.offset() or 0) + 1

    def _note(self, name: str, value: bytes | None) -> None:
        """One topic that a newer headrace has made, or that is nonsense, keeps nobody from the others."""
        self._entries.pop(name, None)
        self._unreadable.pop(name, None)
        if value is None:
            return
        try:
            self._entries[name] = _decoded(name, value)
        except Exception as error:  # whatever it is that others have written there
            self._unreadable[name] = f"{type(error).__name__}: {error}"

    def unreadable(self) -> dict[str, str]:
        """Topics of which nobody here knows what they are, and why."""
        self.refresh()
        return dict(self._unreadable)

    def _refuse_unreadable(self, name: str) -> None:
        if name in self._unreadable:
            what = f"what {self.physical(TOPICS)} says of it cannot be read ({self._unreadable[name]})"
            why = f"{what}: a newer headrace has written it, or another program. Upgrade headrace here"
            raise UnsupportedFormat(path=f"topic {name!r} in {self.client.settings.servers}", why=why)

    def named(self, name: str) -> Entry:
        self.refresh()
        if name not in self._entries:
            self.refresh(now=True)
        self._refuse_unreadable(name)
        if name not in self._entries:
            foreign = not name.startswith(OWN_PREFIX) and name in self._described([name])
            raise UnknownTopic(topic=name, known=[each.name for each in self.all()], foreign=foreign)
        return self.current(name, self._entries[name].topic_id)

    def all(self) -> list[Entry]:
        self.refresh()
        found = [self._entries[name] for name in sorted(self._entries)]
        return [entry for entry in found if not entry.name.startswith(OWN_PREFIX)]

    def current(self, name: str, topic_id: str) -> Entry:
        """The topic's entry now; TopicReplaced if another has its name, or none."""
        self.refresh()
        with self._lock:
            self._refuse_unreadable(name)
            entry = self._entries.get(name)
            if entry is None or entry.topic_id != topic_id:
                raise TopicReplaced(topic=name, topic_id=topic_id)
            if time.monotonic() - self._verified.get(topic_id, -1e9) > FRESH_SECONDS:
                found = self._described([name]).get(name)
                if found is None or found[0] != topic_id:
                    raise TopicReplaced(topic=name, topic_id=topic_id)
                if found[1] > entry.settings.partitions:  # added by other tools
                    settings = replace(entry.settings, partitions=found[1], partitions_added=True)
                    entry = self._entries[name] = replace(entry, settings=settings)
                self._verified[topic_id] = time.monotonic()
            return entry

    def _described(self, names: list[str]) -> dict[str, tuple[str, int]]:
        """The id and the number of partitions of the topics that Kafka has."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        asked = TopicCollection([self.physical(name) for name in names])
        found = self.client.admin.describe_topics(asked, request_timeout=REQUEST_SECONDS)
        out = {}
        for physical, future in found.items():
            try:
                said = future.result(REQUEST_SECONDS)
            except KafkaException as error:
                if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    continue
                raise self.client.failed("describing a topic", error.args[0]) from None
            out[physical.removeprefix(self.prefix)] = _hex(said.topic_id), len(said.partitions)
        return out

    # -- changing ----------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        schema: object,
        settings: TopicSettings,
        *,
        exist_ok: bool,
        system: bool = False,
        texts: bool = False,
    ) -> Entry:
        check_name(name, argument="name", system=system)
        if len(self.physical(name)) > NAME_MAX:
            raise InvalidArgument("name", name[:40] + "…", f"is too long with the prefix {self.prefix!r}")
        columns = schema_from(schema)
        check_columns(columns, settings)
        self._refuse_unsupported(name, settings)
        with self._lock:
            self.refresh(now=True)
            self._refuse_unreadable(name)
            clash = [known for known in self._entries if known.lower() == name.lower()]
            if clash:
                if exist_ok and clash == [name]:
                    return self.named(name)
                raise TopicExists(topic=clash[0])
            try:
                self._create_in_kafka(name, settings.partitions, config_of(settings))
            except TopicExists:
                if self._await_entry(name) and exist_ok:
                    return self.named(name)
                if name in self._entries:
                    raise
                if not self._is_left_behind(name, settings):
                    raise TopicExists(topic=name, foreign=True) from None
            topic_id, _ = self._await_described(name)
            return self._put(Entry(name, topic_id, columns, settings, created_us=time.time_ns() // 1000, texts=texts))

    def _refuse_unsupported(self, name: str, settings: TopicSettings) -> None:
        if settings.versioned:
            raise Unsupported(f"topic {name!r} on Kafka", "versions")
        if settings.archive is not None:
            raise Unsupported(f"topic {name!r} on Kafka", "an archive")
        if settings.unread == "keep":
            raise Unsupported(f"topic {name!r} on Kafka", "unread='keep'")

    def adopt(self, name: str, schema: object, settings: TopicSettings, unit: str | None, avro: Avro | None) -> Entry:
        """A topic that others have made becomes known, with this schema. What it has in Kafka stays as it is."""
        check_name(name, argument="name")
        columns = schema_from(schema)
        check_columns(columns, settings)
        with self._lock:
            self.refresh(now=True)
            self._refuse_unreadable(name)
            found = self._described([name]).get(name)
            if found is None:
                raise UnknownTopic(topic=name, known=[each.name for each in self.all()])
            known = self._entries.get(name)
            if known is not None and known.topic_id == found[0] and not known.foreign:
                return known
            settings = replace(settings, partitions=found[1], partitions_added=True, extra="ignore")
            entry = Entry(name, found[0], columns, settings, foreign=True, unit=unit, avro=avro)
            if known is not None and known.topic_id == found[0]:
                entry = replace(entry, schema_version=known.schema_version, queues=known.queues)
                if entry == known:
                    return known
                entry = replace(entry, schema_version=known.schema_version + 1)
            return self._put(entry)

    def _create_in_kafka(self, name: str, partitions: int, config: dict[str, str]) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        physical = self.physical(name)
        for attempt in range(200):
            asked = NewTopic(physical, num_partitions=partitions, replication_factor=-1, config=config)
            try:
                self.client.admin.create_topics([asked])[physical].result(REQUEST_SECONDS)
                return
            except KafkaException as error:
                code = error.args[0].code()
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self.client.failed(f"creating topic {physical!r}", error.args[0]) from None
                if name == TOPICS:
                    return
                if attempt > 20 or name in self._described([name]):
                    raise TopicExists(topic=name) from None
                time.sleep(PAUSE_SECONDS)  # one that is being deleted

    def _await_entry(self, name: str) -> bool:
        """Whether another process that has created the topic just now makes it known, too."""
        until = time.monotonic() + ENTRY_SECONDS
        while name not in self._entries and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
            self.refresh(now=True)
        return name in self._entries

    def _is_left_behind(self, name: str, settings: TopicSettings) -> bool:
        """Whether a topic that Kafka has, and nobody knows, is what a process left that died while it created it."""
        count = self._described([name]).get(name, ("", 0))[1]
        ends = self.client.ends([(self.physical(name), number) for number in range(count)])
        said = self.settings_in_kafka(name)
        alike = all(said.get(each) == value for each, value in config_of(settings).items())
        return alike and count == settings.partitions and not any(end for _, end in ends.values())

    def described(self, name: str) -> tuple[str, int] | None:
        """The topic's id and its number of partitions; None if Kafka has none of that name."""
        return self._described([name]).get(name)

    def settings_in_kafka(self, name: str) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        asked = self.client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, self.physical(name))])
        said = self.client.ask(f"describing topic {name!r}", next(iter(asked.values())))
        return {key: entry.value for key, entry in said.items()}

    def _await_described(self, name: str) -> tuple[str, int]:
        until = time.monotonic() + REQUEST_SECONDS
        while not (found := self._described([name])):
            if time.monotonic() > until:
                raise KafkaFailed(self.client.settings.servers, f"creating {name!r}", "timeout", "not to be seen", True)
            time.sleep(PAUSE_SECONDS)
        return found[name]

    def _changed(self, entry: Entry, change: Callable[[Entry], Entry]) -> Entry:
        """What becomes of a topic's entry. Processes take turns: who takes the transactional id ends what another has
        begun, and that one begins again, with the entry as it is then."""
        until = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                turn = Transactional(self.client, f"headrace.{self.prefix}{TOPICS}")
                self.refresh(now=True)
                now = self.current(entry.name, entry.topic_id)
                if (made := change(now)) == now:
                    return now
                # mypy: Kafka's partition, value, key and headers
                record: Any = (0, made.encoded(), made.name.encode(), None)
                turn.run([(self.physical(TOPICS), [record])])
            except (ProducerReplaced, KafkaFailed) as error:
                if time.monotonic() > until or "AUTHORIZATION" in getattr(error, "code", ""):
                    raise
                time.sleep(random.uniform(0, TURN_SECONDS))
            else:
                return self._known(made)

    def _put(self, entry: Entry) -> Entry:
        self._write(entry.name, entry.encoded())
        return self._known(entry)

    def _known(self, entry: Entry) -> Entry:
        self._entries[entry.name] = entry
        self._verified[entry.topic_id] = time.monotonic()
        self.client.notify()
        return entry

    def _write(self, name: str, value: bytes | None) -> None:
        if not self._exists:
            if not self._described([TOPICS]):
                self._create_in_kafka(TOPICS, 1, {"cleanup.policy": "compact"})
                self._await_described(TOPICS)
            self._exists = True
        # mypy: a null value is a tombstone
        record: Any = (0, value, name.encode(), None)
        self.client.produce(self.client.producer, self.physical(TOPICS), [record]).wait()

    def alter(self, entry: Entry, changes: Mapping[str, Any]) -> Entry:
        """Changes settings or the schema, or neither: everything is checked first."""
        given = dict(changes)
        schema = given.pop("schema", None)
        wanted = None if schema is None else schema_from(schema)
        if "partitions" in given:
            given["partitions"] = partition_count(given["partitions"])

        def altered(entry: Entry) -> Entry:
            old = entry.settings
            fresh = settings_of(given, base=old, fixed=("key", "event_time", "versioned"))
            settings = replace(old, **{name: getattr(fresh, name) for name in (*fields_of(given), "extra_kept")})
            if settings.partitions < old.partitions:
                raise InvalidArgument("partitions", settings.partitions, f"there are {old.partitions}, and never fewer")
            more = settings.partitions > old.partitions
            if more and old.cleanup == "compact":
                why = "on a compacted topic keys must stay where they are: create a new topic and copy"
                raise InvalidArgument("partitions", settings.partitions, why)
            settings = replace(settings, partitions_added=settings.partitions_added or more)
            if settings.cleanup == "compact" and old.cleanup != "compact" and settings.partitions_added:
                why = "partitions were added, so a key's records lie in several: create a new topic and copy"
                raise InvalidArgument("cleanup", settings.cleanup, why)
            self._refuse_unsupported(entry.name, settings)
            check_columns(entry.columns, settings)
            changed = replace(entry, settings=settings)
            if wanted is not None:
                frozen = [*old.key, *([old.event_time] if old.event_time else [])]
                evolved = evolve(entry.columns, wanted, frozen=frozen)
                version = entry.schema_version + (schema_bytes(evolved) != schema_bytes(entry.columns))
                changed = replace(changed, columns=evolved, schema_version=version)
            return changed

        with self._lock:
            self.refresh(now=True)
            entry = self.current(entry.name, entry.topic_id)
            old, settings = entry.settings, altered(entry).settings
            if settings.partitions > old.partitions:
                self._add_partitions(entry.name, settings.partitions)
            if config_of(settings) != config_of(old) and not entry.foreign:
                self._configure(entry.name, config_of(settings))
            return self._changed(entry, altered)

    def _add_partitions(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        physical = self.physical(name)
        asked = self.client.admin.create_partitions([NewPartitions(physical, partitions)])
        self.client.ask(f"adding partitions to {physical!r}", asked[physical])
        until = time.monotonic() + REQUEST_SECONDS
        while self._described([name])[name][1] < partitions and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)

    def _configure(self, name: str, config: dict[str, str], group: str | None = None) -> None:
        """Of a topic, or of a group that reads it."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        changed = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        kind = ResourceType.TOPIC if group is None else ResourceType.GROUP
        asked = ConfigResource(kind, group or self.physical(name), incremental_configs=changed)
        for future in self.client.admin.incremental_alter_configs([asked]).values():
            self.client.ask(f"altering topic {name!r}", future)

    # -- queues ------------------------------------------------------------------------------------

    def put_queue(self, entry: Entry, queue: QueueEntry, group: str, config: dict[str, str]) -> None:
        """A queue of a topic, with the settings of its share group. Unsupported where the brokers have none."""
        with self._lock:
            self.refresh(now=True)
            entry = self.current(entry.name, entry.topic_id)
            try:
                self._configure(entry.name, config, group)
            except KafkaFailed as error:
                if error.code == "INVALID_CONFIG":
                    name = "max_deliveries" if "delivery.count" in error.why else "visibility"
                    value = queue.max_deliveries if name == "max_deliveries" else f"{queue.visibility_ms} ms"
                    raise InvalidArgument(name, value, f"is not what the brokers allow: {error.why}") from None
                if error.code not in ("INVALID_REQUEST", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"):
                    raise
                raise Unsupported(f"topic {entry.name!r} on Kafka", f"queues ({error.why})") from None
            self._changed(entry, lambda known: _with_queues(known, {queue.name: queue}))

    def drop_queue(self, entry: Entry, name: str) -> None:
        with self._lock:
            self.refresh(now=True)
            entry = self.current(entry.name, entry.topic_id)
            self._changed(entry, lambda known: _with_queues(known, {name: None}))

    def delete(self, entry: Entry) -> None:
        """Deletes the topic in Kafka, too."""
        with self._lock:
            self.refresh(now=True)
            self.current(entry.name, entry.topic_id)
            physical = self.physical(entry.name)
            self._write(entry.name, None)
            self._entries.pop(entry.name, None)
            self._verified.pop(entry.topic_id, None)
            try:
                self.client.ask(f"deleting topic {physical!r}", self.client.admin.delete_topics([physical])[physical])
            except HeadraceError:
                if self._described([entry.name]):
                    raise
            until = time.monotonic() + REQUEST_SECONDS
            while self._described([entry.name]).get(entry.name, ("",))[0] == entry.topic_id:
                if time.monotonic() > until:
                    break
                time.sleep(PAUSE_SECONDS)
        self.client.notify()


def _with_queues(entry: Entry, changed: Mapping[str, QueueEntry | None]) -> Entry:
    known = {each.name: each for each in entry.queues} | dict(changed)
    return replace(entry, queues=tuple(each for _, each in sorted(known.items()) if each is not None))


def _hex(topic_id: Any) -> str:
    """Kafka's topic id, 128 bits, as hexadecimal digits."""
    mask = (1 << 64) - 1
    return f"{topic_id.get_most_significant_bits() & mask:016x}{topic_id.get_least_significant_bits() & mask:016x}"


def config_of(settings: TopicSettings) -> dict[str, str]:
    """What Kafka is told of the settings. Arrival is the broker's time."""
    retention = -1 if settings.retention_us is None else max(1, settings.retention_us // 1000)
    size = -1 if settings.retention_bytes is None else settings.retention_bytes // settings.partitions or 1
    return {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": settings.cleanup,
        "retention.ms": str(retention),
        "retention.bytes": str(size),
        "delete.retention.ms": str(settings.tombstone_grace_us // 1000),
        "max.message.bytes": str(RECORD_BYTES_MAX + 4096),
    }
