"""Captures into a log on Kafka: as into a directory, and only one process writes."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

import pytest

import headrace as hr
from headrace import failpoints
from headrace.cdc.choice import Choice
from headrace.cdc.journal import Journal, recorded
from headrace.cdc.open import choice_for, open_source
from headrace.errors import CaptureFailed, CaptureFenced
from headrace.log.open import open_log
from tests.cdc.conftest import Source
from tests.cdc.sqlite_source import SqliteSource
from tests.cli.conftest import Shell
from tests.faults.children import Children, ack
from tests.kafka.test_foreign import plain_records

LARGE = "(SELECT string_agg(md5((n * i)::text), '') FROM generate_series(1, 200) i)"


@pytest.fixture
def on_kafka(source: Source, broker: str) -> Source:
    """The captured database of a test, with a log of its own on the broker."""
    source.log.close()
    address = f"kafka://{broker}?prefix=c{uuid.uuid4().hex[:8]}."
    source.log = open_log(address)
    source.address = address
    return source


def test_what_is_captured_is_what_is_there(on_kafka: Source, broker: str) -> None:
    source = on_kafka
    source.sql("CREATE TABLE users (id int PRIMARY KEY, name text, n numeric(12, 2), note text, at timestamptz)")
    source.sql("ALTER TABLE users ALTER note SET STORAGE EXTERNAL")
    source.sql(f"INSERT INTO users SELECT n, 'ann', n / 4.0, {LARGE}, now() FROM generate_series(1, 300) n")
    source.drain()
    source.sql("UPDATE users SET name = 'bob' WHERE id < 30", "DELETE FROM users WHERE id = 3")
    source.sql("UPDATE users SET id = 1000 WHERE id = 4", "BEGIN", "INSERT INTO users VALUES (2000)", "ROLLBACK")
    assert source.drain() == 32
    source.same()
    source.sql("TRUNCATE users", "ALTER TABLE users ADD extra int", "INSERT INTO users VALUES (1, 'cem')")
    source.drain()
    source.same()
    plain = plain_records(broker, f"{source.address.rpartition('=')[2]}shop_users")
    assert plain[0].key() == b"1"
    assert source.records()[300]["_op"] == "loaded"


def test_a_row_that_no_topic_holds_stops_its_table(on_kafka: Source) -> None:
    source = on_kafka
    source.sql("CREATE TABLE users (id int PRIMARY KEY, t text)", "CREATE TABLE orders (id int PRIMARY KEY)")
    source.drain()
    large = "INSERT INTO users VALUES (1, repeat('x', 25 << 20))"
    source.sql("BEGIN", large, "INSERT INTO orders VALUES (1)", "COMMIT")
    source.drain()
    assert (source.state().state, source.state("orders").state) == ("stopped", "live")
    assert "a row has more than" in source.state().why
    source.same("orders")


def test_who_began_last_writes(on_kafka: Source) -> None:
    """Two processes that share no home: the one that was here first is refused, and has written nothing more."""
    source = on_kafka
    source.log.create_topic("shop_users", "id int, _op string", key="id")
    first = Journal(source.log, "shop")
    first.write([], {("place", ""): {"end": 1}})
    second = Journal(source.log, "shop")
    assert second.states["place", ""] == {"end": 1}
    with pytest.raises(CaptureFenced):
        first.write([], {("place", ""): {"end": 2}})
    second.write([], {("place", ""): {"end": 3}})
    assert recorded(source.log, "shop")["place", ""] == {"end": 3}


def capturing(address: str, home: str, url: str, armed: str, skip: int) -> None:
    """Until it is killed, or ends itself at a point."""
    failpoints.arm(armed, "kill", skip=skip)
    with open_log(address) as log:
        ack("started")
        while True:
            with contextlib.suppress(CaptureFailed):
                open_source(log, "shop", url, Choice.of(None, None), Path(home)).run(lambda: False)
            time.sleep(0.05)


@pytest.mark.timeout(120)
def test_killed_in_its_transactions(on_kafka: Source, children: Children) -> None:
    source = on_kafka
    source.sql(
        "CREATE TABLE events (id bigserial PRIMARY KEY, body text)", "CREATE TABLE counts (id int PRIMARY KEY, n int)"
    )
    source.sql("INSERT INTO counts VALUES (1, 0)", "INSERT INTO events (body) SELECT 'e' FROM generate_series(1, 500)")
    for round_, point in enumerate(("capture.before", "kafka.sent", "kafka.committed", "capture.written")):
        child = children.start(capturing, source.address, str(source.home), source.url, point, round_)
        child.next()
        for _ in range(8):
            source.sql(
                "INSERT INTO events (body) SELECT 'e' FROM generate_series(1, 20)", "UPDATE counts SET n = n + 1"
            )
            time.sleep(0.05)
        child.process.wait(30)
    source.drain()
    source.same("events")
    source.same("counts")
    assert source.ops("events").count("upsert") == 500 + 4 * 8 * 20


def test_a_program_and_commands(on_kafka: Source, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    source = on_kafka
    monkeypatch.setenv("HEADRACE_HOME", str(source.home))
    monkeypatch.setenv("HEADRACE_LOG", source.address)
    source.sql("CREATE TABLE users (id int PRIMARY KEY, name text)", "INSERT INTO users VALUES (1, 'ann')")
    with hr.App("site") as app:
        db = app.capture("shop", source.url)
        users = db.table("users")
        assert (users.name, users.key) == ("shop_users", ("id",))
        app.start()
        limit = time.monotonic() + 30
        while not [topic for topic in source.log.topics() if topic.name == "shop_users"] or not source.rows():
            assert time.monotonic() < limit
            time.sleep(0.02)
        app.stop()
    source.idle()
    source.sql("UPDATE users SET name = 'bob'")
    shell.ok("capture", "add", "shop", source.url)
    assert "1 change captured" in shell.ok("capture", "run", "shop", "--drain").err
    assert [row["state"] for row in shell.ok("capture", "status", "shop").rows] == ["live"]
    source.sql("DELETE FROM users", "INSERT INTO users VALUES (2, 'cem')")
    shell.ok("capture", "snapshot", "shop")
    source.same()


def test_sqlite_and_an_outbox_of_it(broker: str, tmp_path: Path) -> None:
    shop = SqliteSource(tmp_path)
    shop.log.close()
    shop.log = open_log(f"kafka://{broker}?prefix=c{uuid.uuid4().hex[:8]}.")
    shop.tables = ["users"]
    shop.sql("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, mail TEXT UNIQUE)")
    shop.sql("INSERT INTO users VALUES (1, 'ann', 'a@x'), (2, 'bob', 'b@x')")
    shop.drain()
    shop.sql("REPLACE INTO users VALUES (3, 'cem', 'b@x')", "UPDATE users SET id = 10 WHERE id = 1")
    shop.drain()
    shop.sql("ALTER TABLE users ADD COLUMN n INT", "UPDATE users SET n = 1")
    shop.drain()
    shop.same()
    shop.sql("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, aggregatetype TEXT, aggregateid TEXT, "
             "headers TEXT, payload TEXT)")  # fmt: skip
    outbox = hr.outbox(shop.url)
    for n in range(3):
        sql = "INSERT INTO outbox (aggregatetype, aggregateid, headers, payload) VALUES ('order', ?, '{\"a\": 1}', ?)"
        shop.db.execute(sql, (None if n == 1 else "k", f"event {n}"))
        open_source(shop.log, "events", outbox, choice_for(outbox, None, None), tmp_path).drain()
    found = [record.value for record in shop.log.topic("events_order").records()]
    assert [(each["key"], dict(each["headers"]), each["payload"]) for each in found] == [
        ("k", {"a": "1"}, "event 0"),
        (None, {"a": "1"}, "event 1"),
        ("k", {"a": "1"}, "event 2"),
    ]
    shop.close()
