"""Which log an address means. Owns the choice, and is the only module that imports an implementation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from headrace.errors import InvalidArgument
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage.engine import Clock
from headrace.log.kafka.settings import SCHEME, Kafka, parse_address
from headrace.log.settings import Avro, Epoch
from headrace.places import without_secrets

if TYPE_CHECKING:
    from headrace.log.capabilities import RawTopics
    from headrace.log.contract import Log
    from headrace.log.kafka.log import KafkaLog

__all__ = [
    "Kafka",
    "avro",
    "epoch",
    "import_readers",
    "kafka",
    "log_address",
    "open_address",
    "open_log",
    "open_raw",
    "trial_log",
]


@overload
def open_log(home: Kafka, *, create: bool = True, clock_us: Clock | None = None) -> KafkaLog: ...


@overload
def open_log(home: str | Path = ".headrace", *, create: bool = True, clock_us: Clock | None = None) -> EmbeddedLog: ...


def open_log(
    home: str | Path | Kafka = ".headrace", *, create: bool = True, clock_us: Clock | None = None
) -> EmbeddedLog | KafkaLog:
    """The log in a directory; made if there is none, unless `create=False` (then LogMissing). Or a log on Kafka:
    `hr.kafka("host:9092")`, `"kafka://host:9092"`. `clock_us`: what arrival is stamped with, in place of the machine's
    clock; for tests of a log in a directory."""
    if isinstance(home, str) and home.startswith(f"{SCHEME}://"):
        home = parse_address(home)
    if isinstance(home, Kafka):
        from headrace.log.kafka.log import KafkaLog

        return KafkaLog(home)
    return EmbeddedLog(home, create=create, clock_us=clock_us)


def open_address(address: str | Path | Kafka, *, create: bool = True, clock_us: Clock | None = None) -> Log:
    """As `open_log`, for callers that use what every log can do."""
    return open_log(address, create=create, clock_us=clock_us)


def open_raw(cluster: Kafka) -> RawTopics:
    """The topics of a cluster as bytes."""
    from headrace.log.kafka.consume.raw import KafkaRaw

    return KafkaRaw(cluster)


def trial_log(beside: Path, there: Log | None) -> Log:
    """The log `there`, to check a program with: topics that the program would make are made in the directory
    `beside`."""
    from headrace.log.embedded.trial import TrialLog

    return TrialLog(beside, there)


def log_address(said: str | Kafka) -> Kafka:
    """The cluster that an address means; InvalidArgument if it means none."""
    if isinstance(said, Kafka):
        return said
    if isinstance(said, str) and said.startswith(f"{SCHEME}://"):
        return parse_address(said)
    why = "must be a Kafka cluster, hr.kafka('host:9092') or 'kafka://host:9092', or an open log. A log in a directory "
    why += "is in the home: leave this out, and say home=…"
    raise InvalidArgument("log", without_secrets(said), why)


def kafka(
    servers: str,
    *,
    prefix: str = "",
    username: str | None = None,
    password: str | None = None,
    mechanism: str = "SCRAM-SHA-512",
    tls: bool | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    key_password: str | None = None,
    registry: str | None = None,
    registry_username: str | None = None,
    registry_password: str | None = None,
    registry_private: bool = False,
) -> Kafka:
    """A Kafka cluster as the log: `hr.App("shop", log=hr.kafka("host:9092"))`. `servers`: HOST:PORT, several with
    commas. `prefix`: before the names of all topics, groups and transactional ids. `password` and `key_password` are
    references, `env:NAME` or `file:PATH`, resolved where a client is made. TLS is on with a username or a
    certificate. `registry`: the address of a schema registry, for values in Avro; `registry_private` allows one on this
    machine or in its network."""
    cluster = (servers, prefix, username, password, mechanism, tls, ca, certificate, key, key_password)
    return Kafka(*cluster, registry, registry_username, registry_password, registry_private)


def epoch(column: str, unit: str = "ms") -> Epoch:
    """An event time that is a number since 1970 (`unit`: s, ms or us), in a topic that others write:
    `app.topic("clicks", "user string, ts bigint", create=False, event_time=hr.epoch("ts", "ms"))`."""
    return Epoch(column, unit)


def avro(schemas: Mapping[int, str | Mapping[str, Any]] | None = None) -> Avro:
    """The values of a topic that others write are Avro, each with the id of its schema in front:
    `app.topic("orders", "id bigint", create=False, values=hr.avro())`. `schemas`: the writers' schemas by their ids;
    others come from the log's `registry`."""
    return Avro.of(schemas or {})


def import_readers() -> None:
    """Imports what readers need, before a process is forked into many of them."""
    for name in ("write.append", "storage.deliveries", "read.reading", "storage.retention"):
        importlib.import_module(f"headrace.log.embedded.{name}")
