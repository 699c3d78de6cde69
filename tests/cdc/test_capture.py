"""A real Postgres is captured: what its tables have is what the topics have, whatever happens in between."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import psycopg
import pytest

from headrace.cdc.choice import Choice
from headrace.cdc.journal import Journal, recorded
from headrace.cdc.postgres.applying import Spool
from headrace.cdc.postgres.capture import PostgresCapture
from headrace.cdc.postgres.doctor import findings
from headrace.cdc.postgres.server import lsn_of, lsn_text
from headrace.cdc.running import CaptureThread, status_of
from headrace.errors import CaptureFailed, CaptureFenced, CaptureGap
from tests.cdc.conftest import Source

USERS = "CREATE TABLE users (id int PRIMARY KEY, name text, note text)"


def test_what_is_there_and_what_is_done_to_it(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann', null), (2, 'bob', '')")
    source.drain()
    assert source.records() == [
        {"id": 1, "name": "ann", "note": None, "_op": "upsert"},
        {"id": 2, "name": "bob", "note": "", "_op": "upsert"},
        {"id": None, "name": None, "note": None, "_op": "loaded"},
    ]
    source.sql("INSERT INTO users VALUES (3, 'cem', 'x')", "UPDATE users SET name = 'eve' WHERE id = 1")
    source.sql("DELETE FROM users WHERE id = 2")
    assert source.drain() == 3
    assert source.records()[3:] == [
        {"id": 3, "name": "cem", "note": "x", "_op": "upsert"},
        {"id": 1, "name": "eve", "note": None, "_op": "upsert"},
        {"id": 2, "name": None, "note": None, "_op": "delete"},
    ]
    assert source.drain() == 0
    source.same()
    assert source.log.topic("shop_users").settings.key == ("id",)


def test_a_key_that_changes_is_a_delete_and_an_upsert(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'n')")
    source.drain()
    source.sql("UPDATE users SET id = 7 WHERE id = 1")
    source.drain()
    assert source.ops()[-2:] == ["delete", "upsert"]
    source.same()


def test_a_transaction_is_whole_in_one_commit_of_the_log(source: Source) -> None:
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY, by int)")
    source.drain()
    source.sql("BEGIN", "INSERT INTO users VALUES (1, 'ann', null)", "INSERT INTO orders VALUES (10, 1)", "COMMIT")
    source.sql("BEGIN", "INSERT INTO users VALUES (2, 'bob', null)", "ROLLBACK")
    source.drain()
    assert [*source.rows()] == [(1,)]
    assert source.rows("orders") == {(10,): {"id": 10, "by": 1}}
    users, orders = (source.log.topic(f"shop_{name}").offsets()[0] for name in ("users", "orders"))
    assert users.arrived_at == orders.arrived_at


def test_a_large_transaction_waits_in_a_file(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cdc.applying.PIECE_ROWS", 300)
    spilled: list[int] = []
    spill = Spool._spill

    def noted(self: Spool) -> None:
        spill(self)
        spilled.append(self.spilled)

    monkeypatch.setattr(Spool, "_spill", noted)
    monkeypatch.setattr(Spool.__init__, "__defaults__", (10_000,))
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann', null)")
    source.drain()
    source.sql("INSERT INTO users SELECT n, 'name ' || n, repeat('x', n % 50) FROM generate_series(2, 2000) n")
    assert source.drain() == 1999
    assert spilled and spilled[-1] > 50_000
    source.same()
    assert (source.home / "captures" / "shop").stat().st_mode & 0o777 == 0o700


def test_a_large_value_that_is_unchanged_is_filled_in(source: Source) -> None:
    """Postgres does not send it. It is in the topic, or in the same transaction."""
    large = "md5(n::text) || (SELECT string_agg(md5((n * i)::text), '') FROM generate_series(1, 200) i)"
    source.sql(USERS, "ALTER TABLE users ALTER note SET STORAGE EXTERNAL")
    source.sql(f"INSERT INTO users SELECT n, 'a', {large} FROM generate_series(1, 5) n")
    source.drain()
    source.sql("UPDATE users SET name = 'b' WHERE id = 1")
    source.drain()
    source.same()
    source.sql("UPDATE users SET name = 'c'", "UPDATE users SET id = 9, name = 'k' WHERE id = 2")
    source.sql("BEGIN", "UPDATE users SET id = 10 WHERE id = 9", "UPDATE users SET id = 2 WHERE id = 10", "COMMIT")
    source.sql(
        "BEGIN",
        f"INSERT INTO users SELECT n, 'a', {large} FROM generate_series(6, 6) n",
        "UPDATE users SET name = 'd' WHERE id IN (3, 6)",
        "UPDATE users SET note = 'small' WHERE id = 4",
        "UPDATE users SET name = 'e' WHERE id IN (4, 6)",
        "COMMIT",
    )
    source.drain()
    source.same()


def test_truncate_deletes_what_is_there(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users SELECT n FROM generate_series(1, 3) n")
    source.drain()
    source.sql("BEGIN", "INSERT INTO users VALUES (4)", "DELETE FROM users WHERE id = 1", "TRUNCATE users")
    source.sql("INSERT INTO users VALUES (5)", "COMMIT")
    source.drain()
    assert [*source.rows()] == [(5,)]
    source.same()


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX users_name", "DEFAULT"])
def test_what_identifies_a_row_is_the_catalogs_to_say(source: Source, identity: str) -> None:
    """With REPLICA IDENTITY FULL all columns are said to be the key: the primary key is what the catalog says."""
    source.sql(USERS, "ALTER TABLE users ALTER name SET NOT NULL", "CREATE UNIQUE INDEX users_name ON users (name)")
    source.sql(f"ALTER TABLE users REPLICA IDENTITY {identity}", "INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
    source.drain()
    source.sql("UPDATE users SET note = 'x'", "UPDATE users SET id = 3, name = 'cem' WHERE id = 1")
    source.sql("DELETE FROM users WHERE id = 2")
    source.drain()
    assert source.log.topic("shop_users").settings.key == (("name",) if "INDEX" in identity else ("id",))
    source.same()


def test_a_table_that_has_no_key_is_left_alone(source: Source) -> None:
    """In a publication, its users' updates would be refused."""
    source.sql(USERS, "CREATE TABLE plain (a int)", "CREATE TABLE silent (id int PRIMARY KEY)")
    source.sql("ALTER TABLE silent REPLICA IDENTITY NOTHING")
    source.drain()
    source.sql("INSERT INTO plain VALUES (1)", "UPDATE plain SET a = 2", "INSERT INTO silent VALUES (1)")
    source.sql("UPDATE silent SET id = 2")
    assert "no primary key" in source.state("plain").why
    source.sql("ALTER TABLE plain ADD PRIMARY KEY (a)", "INSERT INTO plain VALUES (5)")
    source.drain(again=["plain"])
    source.sql("INSERT INTO plain VALUES (6)")
    source.drain()
    assert len(source.rows("plain")) == 3
    assert "REPLICA IDENTITY NOTHING" in source.state("silent").why
    assert source.state().state == "live"


def test_all_types(source: Source) -> None:
    source.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN cents AS numeric(12, 2)",
        """CREATE TABLE users (
            id uuid PRIMARY KEY, b boolean, s smallint, i int, l bigint, f real, d double precision, n numeric,
            p numeric(20, 6), c cents, t text, v varchar(9), r bytea, day date, at timestamptz, local timestamp,
            clock time, j json, jb jsonb, m mood, ints int[], texts text[], moods mood[], span int4range, took interval,
            ip inet, sum int GENERATED ALWAYS AS (1) STORED)""",
    )
    values = """gen_random_uuid(), true, -1, 2147483647, -9223372036854775808, 0.1, 1e300, 123456789012345678901234567,
        12345678901234.567890, 1.50, E'a,"b"\\n\\\\N', 'é', '\\xdeadbeef', '2026-02-28',
        '2026-01-01 00:00:00.123456+02', '1999-12-31 23:59:59', '12:30',
        '{"a": [1]}', '{"b": null}', 'ok', '{1,NULL}', '{"a,b",NULL,"NULL",""}', '{ok}',
        '[1,5)', '1 day 2 hours', '10.0.0.1/8'"""
    source.sql(f"INSERT INTO users VALUES ({values})", "INSERT INTO users VALUES (gen_random_uuid())")
    source.drain()
    source.sql(f"INSERT INTO users VALUES ({values})")
    source.drain()
    told = [each for each in source.records() if each["_op"] == "upsert"]
    (empty,) = (each for each in told if each["b"] is None)
    copied, streamed = (each for each in told if each["b"])
    del copied["id"], streamed["id"], empty["id"], empty["_op"]
    assert copied == streamed
    assert set(empty.values()) == {None}
    assert (str(copied["p"]), str(copied["c"])) == ("12345678901234.567890", "1.50")
    assert copied["t"] == 'a,"b"\n\\N'
    assert copied["texts"] == ["a,b", None, "NULL", ""]
    assert copied["at"].isoformat() == "2025-12-31T22:00:00.123456+00:00"
    assert "sum" not in copied


def test_a_value_that_no_topic_holds_stops_its_table(source: Source) -> None:
    source.sql("CREATE TABLE users (id int PRIMARY KEY, n numeric(5, 2))", "CREATE TABLE orders (id int PRIMARY KEY)")
    source.drain()
    source.sql("INSERT INTO users VALUES (1, 'NaN')", "INSERT INTO orders VALUES (1)")
    source.drain()
    assert (source.state().state, source.state("orders").state) == ("stopped", "live")
    assert "NaN" not in source.state().why
    source.same("orders")
    source.sql("UPDATE users SET n = 1")
    source.drain(again=["users"])
    assert source.state().state == "live"
    source.same()


def test_tables_of_others_are_left_alone(source: Source) -> None:
    """Another role's table was made beside those that are captured: the others go on, and the doctor says why."""
    role = f"{source.name}_cap"
    source.sql(f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT CREATE ON DATABASE {source.name} TO {role}")
    source.sql("CREATE TABLE users (id int PRIMARY KEY)", f"ALTER TABLE users OWNER TO {role}")
    source.sql("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE audit (id int PRIMARY KEY)")
    source.sql(f"ALTER TABLE orders OWNER TO {role}", f"REVOKE SELECT ON orders FROM {role}")
    try:
        source.url, own = source.url.replace("//headrace@", f"//{role}@"), source.url
        said = {each.check: each for each in findings("shop", source.url, source.choice)}
        assert [said[f"table public.{name}"].ok for name in ("users", "orders", "audit")] == [True, False, False]
        source.drain()
        source.sql("INSERT INTO users VALUES (1)")
        source.drain()
        assert source.rows() == {(1,): {"id": 1}}
        assert "another role owns it" in source.state("audit").why
        assert "GRANT SELECT" in source.state("orders").why
        source.sql(f"ALTER TABLE audit OWNER TO {role}", "INSERT INTO audit VALUES (5)")
        source.drain(again=["audit"])
        assert source.rows("audit") == {(5,): {"id": 5}}
        source.capture().uninstall()
    finally:
        source.url = own
        source.sql(f"REASSIGN OWNED BY {role} TO headrace", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("copied", [True, False])
def test_a_row_that_no_topic_holds_stops_its_table(source: Source, copied: bool) -> None:
    source.choice = Choice.of(None, None, debezium="srv")
    source.sql("CREATE TABLE users (id int PRIMARY KEY, t text)", "CREATE TABLE orders (id int PRIMARY KEY)")
    if not copied:
        source.drain()
    source.sql(
        "BEGIN", "INSERT INTO users VALUES (1, repeat('x', 17 << 20))", "INSERT INTO orders VALUES (1)", "COMMIT"
    )
    source.drain()
    assert (source.state().state, source.state("orders").state) == ("stopped", "live")
    assert "a row has more than 16,777,216 bytes" in source.state().why
    assert len([*source.log.topic("srv.public.users").records()]) == 0
    source.same("orders")
    source.sql("UPDATE users SET t = 'small'", "INSERT INTO orders VALUES (2)")
    source.drain(again=["users"])
    assert source.state().state == "live"
    source.same()
    source.same("orders")


# -- columns -----------------------------------------------------------------------------------------


def test_a_column_more(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')")
    source.drain()
    source.sql("ALTER TABLE users ADD age int", "INSERT INTO users VALUES (2, 'bob', null, 30)")
    source.drain()
    assert source.records()[-1] == {"id": 2, "name": "bob", "note": None, "age": 30, "_op": "upsert"}
    source.same()
    assert source.state().epoch == 0


def test_a_column_more_with_a_default_is_in_the_old_rows_too(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
    source.drain()
    source.sql("ALTER TABLE users ADD points int NOT NULL DEFAULT 7", "UPDATE users SET points = 8 WHERE id = 2")
    source.drain()
    assert {row["points"] for row in source.rows().values()} == {7, 8}
    source.same()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP COLUMN note", "column 'note' is gone"),
        ("RENAME note TO remark", "column 'remark' is new, column 'note' is gone"),
        ("ALTER name TYPE varchar(20)", "column 'name' has another type"),
    ],
)
def test_any_other_change_stops_the_table_and_says_how_to_go_on(source: Source, change: str, told: str) -> None:
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann', 'x')")
    source.drain()
    source.sql("INSERT INTO users VALUES (2, 'bob', 'y')", f"ALTER TABLE users {change}")
    source.sql("INSERT INTO users VALUES (3, 'cem')", "INSERT INTO orders VALUES (1)")
    source.drain()
    assert source.state().state == "stopped"
    assert told in source.state().why
    assert len(source.rows()) == 2
    source.same("orders")
    source.drain(again=["users"])
    source.sql("DELETE FROM users WHERE id = 1")
    source.drain()
    source.same()


@pytest.mark.parametrize("connected", [True, False])
def test_a_column_that_is_dropped_and_added_again_is_another_one(source: Source, connected: bool) -> None:
    """It has the same name and type: only the catalog's number tells them apart."""
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann', 'x')")
    source.drain()
    change = ["ALTER TABLE users DROP note", "ALTER TABLE users ADD note text", "INSERT INTO users VALUES (2, 'bob')"]
    if connected:
        with source.capture().living() as life:
            source.sql("UPDATE users SET name = 'eve'")
            source.sql(*change, "INSERT INTO orders VALUES (1)")
            target = life.target()
            while life.applying.end < target:
                life.step(0.1)
            life.finish()
    else:
        source.sql(*change, "INSERT INTO orders VALUES (1)")
        source.drain()
    stopped = source.state()
    assert stopped.state == "stopped"
    assert "column 'note' was dropped, and another one has its name" in stopped.why
    source.same("orders")
    source.drain(again=["users"])
    source.same()
    source.sql("ALTER TABLE users ADD more int", "INSERT INTO users VALUES (3, 'cem', 'z', 1)")
    source.drain()
    source.sql("ALTER TABLE users DROP more", "ALTER TABLE users ADD more int", "DELETE FROM users WHERE id = 2")
    source.drain()
    assert "column 'more' was dropped" in source.state().why


def test_order_of_columns_is_no_change(source: Source) -> None:
    """Added and gone again before anything was written to it."""
    source.sql(USERS)
    source.drain()
    source.sql("ALTER TABLE users ADD extra int", "ALTER TABLE users DROP extra", "INSERT INTO users VALUES (1, 'a')")
    source.drain()
    assert source.state().state == "live"
    source.same()


def test_a_database_without_an_encoding_is_refused(source: Source) -> None:
    """Its bytes may be no text, in names and keys, too."""
    source.sql(f"CREATE DATABASE {source.name}_ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    try:
        url = source.url.replace(source.name, f"{source.name}_ascii")
        capture = PostgresCapture(source.log, "ascii", url, source.choice, source.home / "captures" / "ascii")
        with pytest.raises(CaptureFailed, match=r"its encoding is SQL_ASCII.*createdb") as refused:
            capture.drain()
        assert not refused.value.passing
        with pytest.raises(CaptureFailed, match="SQL_ASCII"):
            findings("ascii", url, source.choice)
    finally:
        source.sql(f"DROP DATABASE {source.name}_ascii WITH (FORCE)")


# -- choosing ----------------------------------------------------------------------------------------


def test_patterns_masks_and_other_schemas(source: Source) -> None:
    source.sql("CREATE SCHEMA billing", "CREATE TABLE billing.invoices (id int PRIMARY KEY, iban text)")
    source.sql(USERS, "CREATE TABLE audit (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann', 'n')")
    source.choice = Choice.of(
        ["public.*", "!audit", "billing.*"], {"users.name": "hash", "billing.invoices.iban": "null"}
    )
    source.drain()
    source.sql("INSERT INTO users VALUES (2, 'ann', 'm')", "INSERT INTO billing.invoices VALUES (1, 'CH93')")
    source.drain()
    first, second = source.rows().values()
    assert first["name"] == second["name"] and len(first["name"]) == 64
    assert source.rows("billing_invoices") == {(1,): {"id": 1, "iban": None}}
    assert {topic.name for topic in source.log.topics()} == {"shop.capture", "shop_users", "shop_billing_invoices"}
    secret = source.home / "captures" / "shop" / "mask.key"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_table_that_is_made_later(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    source.sql("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    with psycopg.connect(source.url) as writer:  # a transaction that is open while the table is published
        writer.execute("INSERT INTO orders VALUES (2)")
        draining = threading.Thread(target=source.drain)
        draining.start()
        published = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'orders'"
        while not source.sql(published):
            time.sleep(0.01)
        writer.execute("INSERT INTO orders VALUES (3)")
    draining.join(60)
    source.sql("INSERT INTO orders VALUES (4)")
    source.drain()
    assert len(source.rows("orders")) == 4
    source.same("orders")


# -- what is lost ------------------------------------------------------------------------------------


def test_a_slot_that_is_gone_is_a_gap_and_the_way_back_shows_deletes(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann'), (2, 'bob'), (3, 'cem')")
    source.drain()
    source.idle()
    source.sql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    source.sql("DELETE FROM users WHERE id = 2", "UPDATE users SET name = 'eve' WHERE id = 3")
    with pytest.raises(CaptureGap, match=r"is gone.*headrace capture snapshot shop"):
        source.drain()
    before = len(source.records())
    source.drain(again=())
    assert [(each["_op"], each["id"]) for each in source.records()[before:]] == [("upsert", 3), ("delete", 2)]
    assert source.state().epoch == 1
    source.sql("INSERT INTO users VALUES (4)")
    source.drain()
    source.same()


def test_a_slot_that_was_made_again_is_a_gap(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    source.idle()
    slot = recorded(source.log, "shop")["slot", ""]["name"]
    source.sql(f"SELECT pg_drop_replication_slot('{slot}')", "INSERT INTO users VALUES (1)")
    source.sql(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with pytest.raises(CaptureGap, match="further than the changes here"):
        source.drain()


def test_a_publication_that_was_changed_and_changed_back_is_a_gap(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    name = recorded(source.log, "shop")["slot", ""]["publication"]
    source.sql(f"ALTER PUBLICATION {name} DROP TABLE users", "INSERT INTO users VALUES (1)")
    source.sql(f"ALTER PUBLICATION {name} ADD TABLE users")
    with pytest.raises(CaptureGap, match=r"publication .* was changed"):
        source.drain()
    source.drain(again=())
    source.same()


def test_a_table_that_is_dropped_is_no_gap(source: Source) -> None:
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY)")
    source.drain()
    source.sql("DROP TABLE orders", "INSERT INTO users VALUES (1)")
    source.drain()
    source.same()


# -- places ------------------------------------------------------------------------------------------


def test_the_next_transaction_may_begin_where_the_commit_ends(source: Source) -> None:
    """Two transactions behind each other, and the first one's end is the last place: the second one is not taken for
    it. Each is skipped by where its commit is, not by the places of its changes."""
    source.sql(USERS)
    source.drain()
    for number in range(5):
        source.sql(f"INSERT INTO users VALUES ({number})")
        with source.capture().living() as life:
            while not life.applying.changes:
                life.step(0.1)
            life.finish()
        end = recorded(source.log, "shop")["place", ""]["end"]
        source.sql(f"INSERT INTO users VALUES ({number + 100})")
        assert end <= lsn_of(source.sql("SELECT pg_current_wal_lsn()::text")[0][0])
    source.drain()
    assert len(source.records()) == 11  # nothing twice
    source.same()


def test_what_the_database_sends_again_is_not_written_again(source: Source) -> None:
    """It is written, and the database is not told: as if killed just then."""
    source.sql(USERS)
    source.drain()
    source.sql("INSERT INTO users VALUES (1)", "INSERT INTO users VALUES (2)")
    capture = source.capture()
    with capture.living() as life:
        life._stream.confirm = lambda at: None  # type: ignore[method-assign]  # noqa: ARG005
        while life.applying.changes < 2:
            life.step(0.1)
        if life.applying.rows:
            life.applying.write()
    source.sql("INSERT INTO users VALUES (3)")
    source.drain()
    assert source.ops() == ["loaded", "upsert", "upsert", "upsert"]
    source.same()


def test_only_what_is_in_the_log_is_confirmed(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    source.idle()
    before = source.sql(confirmed)[0][0]
    source.sql("INSERT INTO users VALUES (1)")
    with source.capture().living() as life:
        life.applying.write = lambda: (_ for _ in ()).throw(OSError("no space"))  # type: ignore[method-assign]
        with pytest.raises(OSError, match="no space"):
            while True:
                life.step(0.1)
    assert source.sql(confirmed)[0][0] == before
    source.drain()
    source.idle()
    assert lsn_of(source.sql(confirmed)[0][0]) > lsn_of(before)
    source.same()


def test_an_idle_database_keeps_nothing_for_us(source: Source) -> None:
    """The log of other databases of the server goes on: heartbeats move the slot."""
    source.sql(USERS)
    source.drain()
    slot = "FROM pg_replication_slots WHERE database = current_database()"
    kept = f"SELECT pg_current_wal_lsn() - confirmed_flush_lsn {slot}"
    with psycopg.connect(source.server.url, autocommit=True) as other:
        other.execute(
            "CREATE TABLE IF NOT EXISTS other_work AS SELECT n, md5(n::text) t FROM generate_series(1, 20000) n"
        )
        other.execute("DROP TABLE other_work")
    assert source.sql(kept)[0][0] > 1_000_000
    thread = CaptureThread(source.capture(heartbeat_seconds=0.2))
    thread.start()
    until = time.monotonic() + 20
    while source.sql(kept)[0][0] > 100_000 and time.monotonic() < until:
        time.sleep(0.05)
    left = source.sql(kept)[0][0]
    assert thread.stop(20) and thread.error is None
    assert left < 100_000
    status = status_of(source.log, "shop")
    assert status.slot_bytes is not None and status.wal_status == "reserved"


def test_a_second_process_is_fenced(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    source.sql("INSERT INTO users VALUES (1)")
    with source.capture().living() as life:
        Journal(source.log, "shop").write([], {})  # whoever took over has written
        with pytest.raises(CaptureFenced):
            while True:
                life.step(0.1)
    source.drain()
    source.same()


def test_a_snapshot_that_was_cut_off_goes_on_behind_its_last_chunk(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile rows are changed on both sides of where it was cut off."""
    monkeypatch.setattr("headrace.cdc.postgres.copying.chunks.__defaults__", (2_000,))
    source.sql('CREATE TABLE users (id text COLLATE "C", n int, note text, PRIMARY KEY (id, n))')
    source.sql("INSERT INTO users SELECT 'k' || n, n, repeat('x', 30) FROM generate_series(1, 500) n")
    write, count = Journal.write, [0]

    def breaking(self: Journal, rows: object, changed: object) -> None:
        write(self, rows, changed)  # type: ignore[arg-type]
        count[0] += 1
        if count[0] == 6:
            raise OSError("the power is gone")

    monkeypatch.setattr(Journal, "write", breaking)
    with pytest.raises(OSError, match="power"):
        source.drain()
    monkeypatch.setattr(Journal, "write", write)
    cut = source.state()
    assert cut.state == "copying" and 0 < cut.copied < 500
    source.sql("UPDATE users SET note = 'changed' WHERE n % 3 = 0", "DELETE FROM users WHERE n % 7 = 0")
    source.sql("INSERT INTO users SELECT 'm' || n, n, 'new' FROM generate_series(1, 20) n")
    source.sql("UPDATE users SET id = 'a' || id WHERE n % 11 = 0", "UPDATE users SET id = 'zz' || id WHERE n % 13 = 0")
    source.drain()
    source.same()
    source.sql("UPDATE users SET note = 'later' WHERE n % 5 = 0")
    source.drain()
    source.same()
    assert source.ops().count("loaded") == 1


def test_a_snapshot_can_be_stopped(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go on to its end, and the next start goes on behind the last chunk."""
    monkeypatch.setattr("headrace.cdc.postgres.copying.chunks.__defaults__", (200,))
    source.sql(USERS, "INSERT INTO users SELECT n, repeat('x', 30) FROM generate_series(1, 3000) n")
    thread = CaptureThread(source.capture())
    thread.start()
    while not any(table.copied for table in source.tables()):
        time.sleep(0.01)
    assert thread.stop(20) and thread.error is None
    stopped = source.state()
    assert stopped.state == "copying" and 0 < stopped.copied < 3000
    source.sql("UPDATE users SET note = 'y' WHERE id % 2 = 0", "DELETE FROM users WHERE id % 5 = 0")
    source.drain()
    source.same()
    assert source.ops().count("upsert") <= 3000 + 1500


# -- what is told --------------------------------------------------------------------------------------


def test_no_password_is_told(source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = source.url.replace("headrace@", "headrace:sesame@").replace("127.0.0.1", "127.0.0.1") + "x"
    from headrace.cdc.postgres.capture import PostgresCapture

    capture = PostgresCapture(source.log, "shop", url, Choice.of(None, None), tmp_path / "c")
    with pytest.raises(CaptureFailed) as caught:
        capture.drain()
    told = [str(caught.value), repr(caught.value), repr(capture.server), caplog.text]
    assert caught.value.__cause__ is None
    assert not any("sesame" in text for text in told)
    assert "sesame" not in json.dumps([*map(str, recorded(source.log, "shop").values())] if source.log.topics() else [])


def test_positions_are_postgres_own() -> None:
    assert lsn_text(lsn_of("16/B374D848")) == "16/B374D848"


def test_a_slot_that_is_just_being_left_is_removed(source: Source) -> None:
    """The server ends a connection a moment after whoever used the slot has gone."""
    source.sql(USERS)
    source.drain()
    source.idle()
    server, slot = source.capture().server, recorded(source.log, "shop")[("slot", "")]
    stream = server.connect_to_stream()
    stream.start(slot["name"], slot["publication"], 0)
    leaving = threading.Timer(0.3, stream.close)
    leaving.start()
    assert source.capture().uninstall() == [slot["name"]]
    leaving.join()


def test_uninstalled_and_begun_again(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann', null), (2, 'bob', null)")
    source.drain()
    assert len(source.capture().uninstall()) == 1
    assert source.capture().uninstall() == []
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert source.sql(slots) == [] == source.sql("SELECT pubname FROM pg_publication")
    source.sql("DELETE FROM users WHERE id = 1", "INSERT INTO users VALUES (3, 'cem', 'x')")
    source.drain()
    source.same()
    assert source.ops()[-2:] == ["upsert", "delete"]
