"""Events that an application writes into a table, in its own transactions, become records: each once, in their order,
on every database that can hold the table."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import headrace as hr
from headrace import failpoints
from headrace.cdc.journal import Journal
from headrace.cdc.open import check_address, choice_for, may_be_stored, open_source
from headrace.cdc.outbox import capture
from headrace.cdc.outbox.address import outbox_at
from headrace.cdc.running import status_of
from headrace.errors import CaptureFailed, CaptureFenced, InvalidArgument
from headrace.log.open import open_log
from tests.cli.conftest import Shell
from tests.databases import MariaDbServer, PostgresServer
from tests.faults.children import ChildEnded, Children, ack, hear

DATABASES = ["sqlite", "postgres", "mariadb"]
POINTS = ["capture.before", "capture.written"]
TABLE = {
    "sqlite": "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, aggregatetype TEXT, aggregateid TEXT, "
    "type TEXT, headers TEXT, payload TEXT)",
    "postgres": "CREATE TABLE outbox (id bigserial PRIMARY KEY, aggregatetype text, aggregateid text, "
    "type text, headers jsonb, payload jsonb)",
    "mariadb": "CREATE TABLE outbox (id bigint AUTO_INCREMENT PRIMARY KEY, aggregatetype text, aggregateid text, "
    "type text, headers json, payload json)",
}


def connected(kind: str, url: str) -> Any:
    """An application's connection."""
    if kind == "sqlite":
        db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
        db.execute("PRAGMA synchronous = OFF")
        return db
    if kind == "postgres":
        return psycopg.connect(url, autocommit=True)
    import pymysql

    to = urlsplit(url)
    settings: dict[str, Any] = {"autocommit": True, "init_command": "SET sql_mode = 'ANSI_QUOTES'"}
    return pymysql.connect(host=to.hostname, port=to.port, user=to.username, database=to.path[1:], **settings)


def rows_of(db: Any, *statements: str) -> list[Any]:
    """Of the last statement."""
    cursor = db.cursor()
    for statement in statements:
        cursor.execute(statement)
    return list(cursor.fetchall()) if cursor.description else []


class Application:
    def __init__(self, kind: str, url: str, home: Path) -> None:
        self.kind, self.url, self.home = kind, url, home
        self.db = connected(kind, url)
        self.log = open_log(home)
        self.outbox = hr.outbox(url)

    def sql(self, *statements: str) -> list[Any]:
        return rows_of(self.db, *statements)

    def event(self, topic: str, key: str | None, payload: Any, headers: str = "NULL") -> None:
        told = "NULL" if key is None else f"'{key}'"
        values = f"'{topic}', {told}, 'made', {headers}, '{json.dumps(payload)}'"
        self.sql(f"INSERT INTO outbox (aggregatetype, aggregateid, type, headers, payload) VALUES ({values})")

    def capture(self) -> Any:
        return open_source(self.log, "shop", self.outbox, choice_for(self.outbox, None, None), self.home)

    def drain(self) -> int:
        return int(self.capture().drain())

    def records(self, topic: str) -> list[dict[str, Any]]:
        return [record.value for record in self.log.topic(f"shop_{topic}").records()]

    def payloads(self, topic: str) -> list[Any]:
        return [json.loads(each["payload"]) for each in self.records(topic)]

    def close(self) -> None:
        self.log.close()
        self.db.close()


@pytest.fixture(params=DATABASES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    kind = request.param
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
        connected(kind, url).execute("PRAGMA journal_mode = wal")
    else:
        server: PostgresServer | MariaDbServer = request.getfixturevalue(kind)
        url = server.database(f"t_{uuid.uuid4().hex[:16]}")
    found = Application(kind, url, tmp_path / "home")
    found.sql(TABLE[kind])
    yield found
    found.close()


def test_events_go_into_their_topics_and_leave_the_table(shop: Application) -> None:
    shop.event("order", "o1", {"total": 10.5}, headers="""'{"trace": "t1", "n": 2}'""")
    shop.event("user", None, {"name": "Ann"})
    shop.event("order", "o1", {"total": 11})
    assert shop.drain() == 3
    first, second = shop.records("order")
    assert (first["key"], first["type"], first["id"]) == ("o1", "made", "1")
    assert (dict(first["headers"]), json.loads(first["payload"])) == ({"trace": "t1", "n": "2"}, {"total": 10.5})
    assert (second["headers"], json.loads(second["payload"])) == (None, {"total": 11})
    assert [record["key"] for record in shop.records("user")] == [None]
    assert shop.sql("SELECT count(*) FROM outbox")[0][0] == 0
    assert shop.log.topic("shop_order").settings.key == ("key",)
    assert shop.drain() == 0
    (table,) = status_of(shop.log, "shop").tables
    assert (table.table.rpartition(".")[2], table.topic, table.copied) == ("outbox", "shop_*", 3)


def test_what_is_rolled_back_is_no_event(shop: Application) -> None:
    shop.drain()
    shop.sql("BEGIN")
    shop.event("order", "o1", 1)
    assert shop.drain() == 0
    shop.sql("ROLLBACK")
    shop.event("order", "o1", 2)
    shop.drain()
    assert shop.payloads("order") == [2]


def test_events_that_are_kept(shop: Application) -> None:
    shop.sql("ALTER TABLE outbox ADD COLUMN published_at TIMESTAMP NULL")
    shop.outbox = hr.outbox(shop.url, keep="published_at")
    for n in range(3):
        shop.event("order", "o1", n)
        shop.drain()
    assert shop.payloads("order") == [0, 1, 2]
    assert shop.sql("SELECT count(*), count(published_at) FROM outbox") == [(3, 3)]
    shop.sql("UPDATE outbox SET published_at = NULL WHERE id = 2")  # once more, as somebody wanted it
    shop.drain()
    assert shop.payloads("order") == [0, 1, 2, 1]


def test_a_late_commit_with_a_lower_number_is_not_left_out(postgres: PostgresServer, tmp_path: Path) -> None:
    shop = Application("postgres", postgres.database(f"t_{uuid.uuid4().hex[:16]}"), tmp_path / "home")
    shop.sql(TABLE["postgres"])
    with psycopg.connect(shop.url) as late:
        late.execute("INSERT INTO outbox (aggregatetype, payload) VALUES ('order', '1')")
        shop.event("order", None, 2)
        assert shop.drain() == 1
        late.commit()
    assert shop.drain() == 1
    assert shop.payloads("order") == [2, 1]
    shop.close()


def test_columns_of_other_names(shop: Application) -> None:
    binary = "bytea" if shop.kind == "postgres" else "BLOB"
    number = TABLE[shop.kind].partition("(id ")[2].partition(",")[0]
    shop.sql(f'CREATE TABLE "Event Log" (seq {number}, "group" TEXT, "the key" TEXT, body {binary})')
    shop.outbox = hr.outbox(shop.url, "Event Log", id="seq", topic="group", key="the key", payload="body")
    zero = "'\\x00ff'" if shop.kind == "postgres" else "X'00ff'"
    shop.sql(f"""INSERT INTO "Event Log" ("group", "the key", body) VALUES ('a', 'k', {zero}), ('a', 'l', NULL)""")
    shop.drain()
    assert [tuple(each.values()) for each in shop.records("a")] == [
        ("1", "k", None, None, b"\x00\xff"),
        ("2", "l", None, None, None),
    ]


@pytest.mark.parametrize("shop", ["sqlite", "postgres"], indirect=True)
def test_an_event_that_is_too_large_is_named(shop: Application) -> None:
    for said in ("before", "x" * (17 << 20), "behind"):
        shop.event("order", "k", said)
    for _ in range(2):
        with pytest.raises(CaptureFailed, match=r"id = 2 in .* cannot be routed: it has more than 16,777,216 bytes"):
            shop.drain()
        assert shop.payloads("order") == ["before"]
    shop.sql("DELETE FROM outbox WHERE id = 2")
    assert shop.drain() == 1
    assert shop.payloads("order") == ["before", "behind"]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (("bad name", "k", 1), "' '; letters"),
        (("", "k", 1), "aggregatetype says no topic"),
        (("order", "k", 1, "'[1]'"), "headers is no object"),
        (("taken", "k", 1), "is there already"),
    ],
)
def test_an_event_that_cannot_be_routed_holds_those_behind_it(
    shop: Application, event: tuple[Any, ...], why: str
) -> None:
    shop.log.create_topic("shop_taken", "id bigint", key="id")
    shop.event("order", "k", "before")
    shop.event(*event)
    shop.event("order", "k", "behind")
    with pytest.raises(CaptureFailed, match="the event with id = 2 in 'outbox' cannot be routed") as failed:
        shop.drain()
    assert why in failed.value.why
    assert shop.payloads("order") == ["before"]
    shop.sql("DELETE FROM outbox WHERE id = 2")
    shop.drain()
    assert shop.payloads("order") == ["before", "behind"]


def test_a_crash_between_the_log_and_the_table(shop: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "BATCH_ROWS", 2)
    for n in range(5):
        shop.event("order", "k", n)
    failpoints.arm("capture.written", "raise", skip=2)
    try:
        with pytest.raises(failpoints.InjectedFault):
            shop.drain()
    finally:
        failpoints.disarm()
    assert shop.payloads("order") == [0, 1, 2, 3]
    assert shop.sql("SELECT count(*) FROM outbox")[0][0] == 3
    shop.drain()
    assert shop.payloads("order") == [0, 1, 2, 3, 4]
    assert shop.sql("SELECT count(*) FROM outbox")[0][0] == 0


def test_a_second_process_is_refused(shop: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.event("order", "k", 1)
    shop.drain()
    shop.event("order", "k", 2)
    write, first = Journal.write, list[bool]()

    def late(self: Journal, rows: Any, changed: Any) -> None:
        if not first:
            first.append(True)
            shop.drain()
        write(self, rows, changed)

    monkeypatch.setattr(Journal, "write", late)
    with pytest.raises(CaptureFenced):
        shop.drain()
    assert shop.payloads("order") == [1, 2]


def test_a_second_capture_with_another_log_or_name_is_refused(shop: Application, tmp_path: Path) -> None:
    """Two would share the events between them."""
    shop.event("order", "o1", 1)
    assert shop.drain() == 1
    shop.event("order", "o1", 2)
    choice = choice_for(shop.outbox, None, None)
    with contextlib.closing(open_log(tmp_path / "other")) as log:
        others = [
            open_source(log, "shop", shop.outbox, choice, tmp_path / "other"),
            open_source(shop.log, "second", shop.outbox, choice, shop.home),
        ]
        for other in others:
            with pytest.raises(CaptureFailed, match=r"capture 'shop' .*make a table for each.*DELETE FROM") as refused:
                other.drain()
            assert not refused.value.passing
            assert other.uninstall() == []
        assert shop.sql("SELECT count(*) FROM outbox")[0][0] == 1
        assert shop.drain() == 1  # the first goes on
        assert shop.payloads("order") == [1, 2]
        assert shop.capture().uninstall() == ["its row in headrace_outbox_readers"]
        shop.event("order", "o1", 3)
        assert others[0].drain() == 1
        with pytest.raises(CaptureFailed, match="capture 'shop' of another log"):
            shop.drain()


def test_two_that_begin_at_the_same_moment_do_not_share_the_events(postgres: PostgresServer, tmp_path: Path) -> None:
    """Both make the table of readers: one waits for the other's, and is told that it is there."""
    shop = Application("postgres", postgres.database(f"t_{uuid.uuid4().hex[:16]}"), tmp_path / "home")
    shop.sql(TABLE["postgres"])
    shop.event("order", "o1", 1)
    with contextlib.closing(connected("postgres", shop.url)) as rival, ThreadPoolExecutor(1) as pool:
        made = "CREATE TABLE headrace_outbox_readers (outbox text PRIMARY KEY, capture text, state text)"
        rows_of(rival, "BEGIN", made, "INSERT INTO headrace_outbox_readers VALUES ('outbox', 'rival', 'x')")
        taken = pool.submit(shop.drain)
        until = time.monotonic() + 60
        while not shop.sql("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert time.monotonic() < until and not taken.done()
        rows_of(rival, "COMMIT")
        with pytest.raises(CaptureFailed, match="capture 'rival' of another log"):
            taken.result(60)
    assert shop.sql("SELECT count(*) FROM outbox")[0][0] == 1
    shop.close()


def test_without_the_right_to_make_a_table_nobody_is_refused(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"t_{uuid.uuid4().hex[:16]}"
    shop = Application("postgres", postgres.database(name), tmp_path / "home")
    shop.sql(TABLE["postgres"], f"CREATE ROLE {name} LOGIN", f"GRANT SELECT, DELETE ON outbox TO {name}")
    shop.sql("REVOKE CREATE ON SCHEMA public FROM public")
    shop.event("order", "o1", 1)
    to = urlsplit(shop.url)
    shop.outbox = hr.outbox(f"postgresql://{name}@{to.netloc.rpartition('@')[2]}{to.path}?{to.query}")
    assert shop.drain() == 1
    assert "A second capture of table 'outbox' is not noticed" in caplog.text
    shop.sql(f"DROP OWNED BY {name}", f"DROP ROLE {name}")
    shop.close()


def test_tables_that_are_no_outbox(shop: Application) -> None:
    for outbox, why in (
        (hr.outbox(shop.url, "nothing"), "there is no table 'nothing'"),
        (hr.outbox(shop.url, payload="body"), "has no column 'body'"),
        (hr.outbox(shop.url, keep="sent"), "has no column 'sent'"),
    ):
        shop.outbox = outbox
        with pytest.raises(CaptureFailed, match=why):
            shop.drain()
    if shop.kind == "sqlite":
        shop.sql("CREATE TABLE o (id INTEGER PRIMARY KEY, aggregatetype TEXT, payload TEXT)")
        shop.outbox, why = hr.outbox(shop.url, "o"), "must be AUTOINCREMENT"
    else:
        shop.sql("CREATE TABLE o (id uuid PRIMARY KEY, aggregatetype text, payload text)")
        shop.outbox, why = hr.outbox(shop.url, "o"), "is a uuid, which has no order"
    with pytest.raises(CaptureFailed, match=why):
        shop.drain()


def test_addresses() -> None:
    url = "postgresql://app@db/shop?password=env:P%20Q&sslmode=require"
    address = hr.outbox(url, "a&b", keep="sent at")
    assert address == f"outbox+{url}&outbox.table=a%26b&outbox.keep=sent%20at"
    where, outbox = outbox_at(address)
    assert (where, outbox.table, outbox.keep, outbox.id) == (url, "a&b", "sent at", "id")
    assert hr.outbox("sqlite:///shop.db") == "outbox+sqlite:///shop.db"
    assert may_be_stored(address) and not may_be_stored(hr.outbox("postgresql://app:sesame@db/shop"))
    for wrong in "outbox+kafka://a", "outbox+sqlite://shop.db", "outbox+sqlite:///a.db?outbox.tabel=x":
        with pytest.raises(InvalidArgument):
            check_address(wrong)
    with pytest.raises(InvalidArgument, match="table"):
        hr.outbox(url, "")
    with pytest.raises(InvalidArgument) as refused:
        check_address("outbox+postgresql://app:sesame@db/shop?outbox.tabel=x")
    assert "sesame" not in str(refused.value)


def test_a_program_and_commands(shop: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(shop.home))
    shell = Shell(shop.home)
    shop.event("order", "o1", 1)
    with hr.App("site", home=shop.home) as app:
        db = app.capture("shop", shop.outbox)
        app.drain()
        with pytest.raises(InvalidArgument, match="topics and no tables"):
            db.table("outbox")
    shop.capture().uninstall()
    shop.event("order", "o1", 2)
    shell.ok("capture", "add", "events", shop.outbox)
    assert {row["check"] for row in shell.ok("capture", "doctor", "events").rows} == {
        "table outbox",
        "reader",
        "waiting",
    }
    assert "1 change captured" in shell.ok("capture", "run", "events", "--drain").err
    assert [record.value["payload"] for record in shop.log.topic("events_order").records()] == ["2"]
    assert "cannot be read again" in shell.refused("capture", "snapshot", "events")
    assert "removed its row in headrace_outbox_readers" in shell.ok("capture", "uninstall", "events", "--yes").err
    assert "has made nothing" in shell.ok("capture", "uninstall", "events", "--yes").err


# -- killed ------------------------------------------------------------------------------------------


def capturing(home: str, outbox: str, armed: str, skip: int) -> None:
    capture.BATCH_ROWS, capture.POLL_SECONDS = 7, 0.002  # type: ignore[misc]
    if armed:
        failpoints.arm(armed, "kill", skip=skip)
    write = Journal.write

    def told(self: Journal, rows: Any, changed: Any) -> None:
        write(self, rows, changed)
        ack("written")

    Journal.write = told  # type: ignore[method-assign]
    with open_log(home) as log:
        ack("started")
        while True:
            with contextlib.suppress(CaptureFailed):
                open_source(log, "shop", outbox, choice_for(outbox, None, None), Path(home)).run(lambda: False)
            time.sleep(0.01)


def writing(kind: str, url: str, seed: int) -> None:
    """Each transaction counts rows of `counters` up, and writes each count as an event: of one key in their order."""
    dice, db = random.Random(seed), connected(kind, url)
    ack("started")
    while hear() != "stop":
        for _ in range(10):
            rows_of(db, "BEGIN IMMEDIATE" if kind == "sqlite" else "BEGIN")
            for key in sorted(dice.sample(range(5), dice.choice((1, 1, 3)))):
                rows_of(db, f"UPDATE counters SET n = n + 1 WHERE id = {key}")
                ((n,),) = rows_of(db, f"SELECT n FROM counters WHERE id = {key}")
                values = f"'t{key % 2}', 'k{key}', 'counted', '{n}'"
                rows_of(db, f"INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ({values})")
            rows_of(db, "ROLLBACK" if dice.random() < 0.2 else "COMMIT")
        ack("written")
    ack("ended")


def rounds(shop: Application, dice: random.Random) -> None:
    with contextlib.closing(Children()) as children:
        writers = [children.start(writing, shop.kind, shop.url, dice.randrange(1 << 30)) for _ in range(2)]
        for writer in writers:
            writer.next()
        for _ in range(5):
            armed = dice.choice((*POINTS, ""))
            child = children.start(capturing, str(shop.home), shop.outbox, armed, dice.randrange(6))
            child.next()
            for _ in range(dice.randrange(2, 6)):
                for writer in writers:
                    writer.tell("go")
                for writer in writers:
                    writer.next()
                with contextlib.suppress(ChildEnded):
                    child.next()
            child.kill()
        for writer in writers:
            writer.tell("stop")
            writer.next()
    shop.drain()
    counts = dict(shop.sql("SELECT id, n FROM counters"))
    found: dict[str, list[int]] = {f"k{key}": [] for key in counts}
    for topic in "t0", "t1":
        for record in shop.records(topic):
            found[record["key"]].append(int(record["payload"]))
    assert found == {f"k{key}": [*range(1, n + 1)] for key, n in counts.items()}


def begun(shop: Application) -> None:
    shop.sql("CREATE TABLE counters (id INT PRIMARY KEY, n INT)")
    shop.sql("INSERT INTO counters VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0)")


@pytest.mark.timeout(180)
def test_killed_again_and_again(shop: Application, seed: int) -> None:
    begun(shop)
    rounds(shop, random.Random(seed))


@pytest.mark.soak
def test_killed_for_long(shop: Application, seed: int, soak_seconds: float) -> None:
    begun(shop)
    dice, until = random.Random(seed), time.monotonic() + soak_seconds
    while time.monotonic() < until:
        rounds(shop, dice)
