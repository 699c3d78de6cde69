"""Addresses of Debezium's events. Owns their text: where the events are, and what is to be known of those without a
schema. Opens nothing.

    debezium+kafka://broker:9092/srv1            the topics `srv1.SCHEMA.TABLE` of a Kafka cluster
    debezium:///events                           the topic `events` of the own log, with columns key and value"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pyarrow as pa

from headrace.cdc.choice import HOME_SCHEMA
from headrace.errors import InvalidArgument
from headrace.log.open import Kafka, log_address
from headrace.places import without_secrets
from headrace.schema import schema_from

__all__ = ["Events", "address_of", "events_at"]

OWN, ON_KAFKA = "debezium", "debezium+kafka"
UNITS = ("ms", "us", "ns")
DECIMALS = ("precise", "string")
COLUMNS = "columns."


@dataclass(frozen=True)
class Events:
    """Where events are. `cluster`: None, if they are in the own log, in the topic `name`; else `name` is the prefix of
    the topics. `columns`: of tables whose events have no schema, by "schema.table"."""

    name: str
    cluster: Kafka | None = None
    home: str = HOME_SCHEMA
    timestamps: str = "us"
    decimals: str = "precise"
    columns: Mapping[str, pa.Schema] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return f"{OWN}:///{self.name}" if self.cluster is None else f"{ON_KAFKA}://{self.cluster.servers}/{self.name}"


def address_of(where: str, name: str, columns: Mapping[str, str], **settings: str) -> str:
    """The text that `events_at` reads. `where`: a Kafka cluster, or "log"."""
    usual = {"schema": HOME_SCHEMA, "timestamps": "us", "decimals": "precise"}
    said = [(each, value) for each, value in settings.items() if value != usual[each]]
    said += [(f"{COLUMNS}{table}", text) for table, text in columns.items()]
    if where == "log":
        made = f"{OWN}:///{quote(name)}"
    else:
        parts = urlsplit(_cluster(where).address)
        made = f"{ON_KAFKA}://{parts.netloc}/{quote(name)}"
        said = [*parse_qsl(parts.query), *said]
    address = f"{made}?{urlencode(said)}" if said else made
    events_at(address)
    return address


def _cluster(where: str) -> Kafka:
    if not isinstance(where, Kafka | str) or (isinstance(where, str) and "://" not in where):
        why = "must be a Kafka cluster, 'kafka://host:9092', or 'log': the events are in a topic of the app's own log"
        raise InvalidArgument("where", without_secrets(where), why)
    return log_address(where)


def events_at(url: str) -> Events:
    """What an address says; InvalidArgument if it is none."""
    try:
        parts = urlsplit(url)
        said = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True))
    except ValueError:
        raise _wrong(url, "is no address such as debezium+kafka://broker:9092/PREFIX") from None
    name = parts.path.strip("/")
    if not name or "/" in name:
        what = "the prefix of Debezium's topics" if parts.scheme == ON_KAFKA else "the topic of the events"
        raise _wrong(url, f"must name {what} behind the last '/'")
    home, columns = said.pop("schema", HOME_SCHEMA), {}
    timestamps, decimals = said.pop("timestamps", "us"), said.pop("decimals", "precise")
    for argument, value, known in (("timestamps", timestamps, UNITS), ("decimals", decimals, DECIMALS)):
        if value not in known:
            raise InvalidArgument(argument, value, f"must be one of {', '.join(known)}")
    for each in [each for each in said if each.startswith(COLUMNS)]:
        table = each.removeprefix(COLUMNS)
        columns[table if "." in table else f"{home}.{table}"] = schema_from(said.pop(each))
    cluster = None
    if parts.scheme == ON_KAFKA:
        if "prefix" in said:
            raise _wrong(url, "has prefix=: the prefix of Debezium's topics stands behind the last '/'")
        cluster = log_address(f"kafka://{parts.netloc}?{urlencode(said)}" if said else f"kafka://{parts.netloc}")
    elif parts.netloc or said:
        unknown = f"has the unknown setting {next(iter(said))!r}" if said else ""
        why = unknown or "names a server: debezium:///TOPIC is a topic of the own log"
        raise _wrong(url, why)
    return Events(name, cluster, home, timestamps, decimals, columns)


def _wrong(url: str, why: str) -> InvalidArgument:
    return InvalidArgument("url", without_secrets(url), why)
