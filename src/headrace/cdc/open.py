"""Opens a database as a source of changes, by its address. Owns which kinds of database there are: `KINDS`, by the
scheme of the address. The only module that imports one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cdc.choice import HOME_SCHEMA, Choice
from headrace.errors import InvalidArgument
from headrace.places import ADDRESS, without_secrets

if TYPE_CHECKING:
    from headrace.cdc.source import Database, Finding, Source
    from headrace.log.contract import Log

__all__ = [
    "check_address",
    "choice_for",
    "debezium",
    "folder_of",
    "may_be_stored",
    "open_source",
    "outbox",
    "source_findings",
]


@dataclass(frozen=True)
class Kind:
    """A kind of database. `package`: of its client, which `extra` installs; "" if it needs none."""

    title: str
    schemes: tuple[str, ...]
    example: str
    database: Callable[[], Database]
    package: str = ""
    extra: str = ""
    echoes: bool = False
    """Whether its changes can be written in Debezium's envelope, too."""


def _postgres() -> Database:
    from headrace.cdc.postgres.database import Postgres

    return Postgres()


def _mysql() -> Database:
    from headrace.cdc.mysql.database import MySql

    return MySql()


def _debezium() -> Database:
    from headrace.cdc.debezium.database import Debezium

    return Debezium()


def _sqlite() -> Database:
    from headrace.cdc.sqlite.database import Sqlite

    return Sqlite()


def _outbox_on_postgres() -> Database:
    from headrace.cdc.outbox.database import OutboxOf
    from headrace.cdc.outbox.on_postgres import connect, shown

    return OutboxOf(_postgres(), connect, shown)


def _outbox_on_mysql() -> Database:
    from headrace.cdc.outbox.database import OutboxOf
    from headrace.cdc.outbox.on_mysql import connect, shown

    return OutboxOf(_mysql(), connect, shown)


def _outbox_on_sqlite() -> Database:
    from headrace.cdc.outbox.database import OutboxOf
    from headrace.cdc.outbox.on_sqlite import connect, shown

    return OutboxOf(_sqlite(), connect, shown)


KINDS: Final = (
    Kind(
        "Postgres",
        ("postgresql", "postgres"),
        "postgresql://user@host/database, with password=env:NAME or file:PATH",
        _postgres,
        "psycopg",
        "postgres",
        echoes=True,
    ),
    Kind(
        "MySQL or MariaDB",
        ("mysql", "mariadb"),
        "mysql://user@host/database, with password=env:NAME or file:PATH",
        _mysql,
        "pymysql",
        "mysql",
        echoes=True,
    ),
    Kind(
        "Debezium's events",
        ("debezium", "debezium+kafka"),
        "debezium+kafka://broker:9092/PREFIX, or debezium:///TOPIC of the own log",
        _debezium,
    ),
    Kind("SQLite", ("sqlite",), "sqlite:///shop.db, or sqlite:////var/lib/shop.db", _sqlite),
    Kind(
        "an outbox in Postgres",
        ("outbox+postgresql", "outbox+postgres"),
        "outbox+postgresql://user@host/database",
        _outbox_on_postgres,
        "psycopg",
        "postgres",
    ),
    Kind(
        "an outbox in MySQL or MariaDB",
        ("outbox+mysql", "outbox+mariadb"),
        "outbox+mysql://user@host/database",
        _outbox_on_mysql,
        "pymysql",
        "mysql",
    ),
    Kind("an outbox in SQLite", ("outbox+sqlite",), "outbox+sqlite:///shop.db", _outbox_on_sqlite),
)


def debezium(
    where: str,
    name: str,
    *,
    columns: Mapping[str, str] | None = None,
    timestamps: str = "us",
    decimals: str = "precise",
    schema: str = HOME_SCHEMA,
) -> str:
    """The address of Debezium's events: `app.capture("shop", hr.debezium("kafka://broker:9092", "srv1"))`. `where`: a
    Kafka cluster, and then `name` is Debezium's `topic.prefix`; or "log", and then `name` is a topic of the app's own
    log with the columns `key` and `value`. For events without a schema block: `columns={"users": "id bigint, name
    string"}`, what their `timestamps` count ("ms", "us", "ns"), and how `decimals` are written ("precise", "string").
    `schema`: the one whose tables are meant where none is said; with MySQL's events the database."""
    from headrace.cdc.debezium.address import address_of

    return address_of(where, name, columns or {}, timestamps=timestamps, decimals=decimals, schema=schema)


def outbox(
    url: str,
    table: str = "outbox",
    *,
    id: str = "id",
    topic: str = "aggregatetype",
    key: str = "aggregateid",
    type: str = "type",
    headers: str = "headers",
    payload: str = "payload",
    order: str | None = None,
    keep: str | None = None,
) -> str:
    """The address of an outbox, for `app.capture`: a table into which an application writes events, in its own
    transactions. Each goes once, in the order of `order` (usually the `id`), into the topic that its column `topic`
    says, with `key`, `type`, `headers` and `payload`: these name columns. A row is deleted when its event is durable;
    with `keep="published_at"` that column of it is set, and the row stays."""
    from headrace.cdc.outbox.address import Outbox, address_of

    made = Outbox(table, id, topic, key, type, headers, payload, order or "", keep or "")
    return check_address(address_of(url, made))


def _kind(url: object) -> Kind:
    found = ADDRESS.match(url) if isinstance(url, str) else None
    scheme = "" if found is None else found[0].lower().removesuffix(":")
    for kind in KINDS:
        if scheme in kind.schemes:
            return kind
    known = "; ".join(f"{kind.title}: {kind.example}" for kind in KINDS)
    raise InvalidArgument("url", without_secrets(url), f"must be the address of a database. {known}")


def check_address(url: object) -> str:
    """The address, if it is one of a database that can be captured."""
    kind = _kind(url)
    assert isinstance(url, str)
    kind.database().check(url)
    return url


def may_be_stored(url: str) -> bool:
    """True if the address has no password itself."""
    return _with_client(url).may_be_stored(url)


def choice_for(
    url: str,
    tables: Sequence[str] | None,
    mask: Mapping[str, str] | None,
    *,
    debezium: str | None = None,
    schemas: bool = False,
) -> Choice:
    """Which tables of that database, where names without a schema mean its own."""
    kind = _kind(url)
    if debezium is not None and not kind.echoes:
        can = " and ".join(each.title for each in KINDS if each.echoes)
        raise InvalidArgument("debezium", debezium, f"is there for {can}, and this is {kind.title}")
    return Choice.of(tables, mask, kind.database().home_schema(url), debezium=debezium, schemas=schemas)


def folder_of(home: Path, capture: str) -> Path:
    """Where a capture keeps what is no part of the log: large transactions, the secret of its masks."""
    return home / "captures" / capture


def open_source(log: Log, name: str, url: str, choice: Choice, home: Path) -> Source:
    return _with_client(url).open(log, name, url, choice, folder_of(home, name))


def source_findings(name: str, url: str, choice: Choice) -> list[Finding]:
    """What a doctor finds in the database."""
    return _with_client(url).findings(name, url, choice)


def _with_client(url: str) -> Database:
    kind = _kind(check_address(url))
    if kind.package and importlib.util.find_spec(kind.package) is None:
        why = f"capturing {kind.title} needs {kind.package}: pip install 'headrace[{kind.extra}]'"
        raise InvalidArgument("url", without_secrets(url), why)
    return kind.database()
