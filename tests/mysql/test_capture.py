"""A real MariaDB is captured: what its tables have is what the topics have, whatever happens in between."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace.cdc.journal import Journal, recorded
from headrace.cdc.mysql import copying
from headrace.cdc.mysql.applying import place_of
from headrace.cdc.running import CaptureThread, status_of
from headrace.errors import CaptureFailed, CaptureFenced, CaptureGap
from tests.mysql.conftest import Source

USERS = "CREATE TABLE users (id int PRIMARY KEY, name varchar(50), note text)"


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
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY, by_user int)")
    source.drain()
    source.sql("BEGIN", "INSERT INTO users VALUES (1, 'ann', null)", "INSERT INTO orders VALUES (10, 1)", "COMMIT")
    source.sql("BEGIN", "INSERT INTO users VALUES (2, 'bob', null)", "ROLLBACK")
    source.drain()
    assert [*source.rows()] == [(1,)]
    assert source.rows("orders") == {(10,): {"id": 10, "by_user": 1}}
    users, orders = (source.log.topic(f"shop_{name}").offsets()[0] for name in ("users", "orders"))
    assert users.arrived_at == orders.arrived_at


def test_truncate_deletes_what_is_there(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users (id) VALUES (1), (2), (3)")
    source.drain()
    source.sql("INSERT INTO users (id) VALUES (4)", "/* all */ truncate  `users`", "INSERT INTO users (id) VALUES (5)")
    source.drain()
    assert source.ops()[-6:] == ["upsert", *["delete"] * 4, "upsert"]
    source.same()


def test_a_table_that_cannot_be_captured_says_why(source: Source) -> None:
    source.sql(USERS, "CREATE TABLE plain (a int)", "CREATE TABLE old (id int PRIMARY KEY) ENGINE=Aria")
    source.sql("CREATE TABLE floats (id float PRIMARY KEY)")
    source.drain()
    assert "no primary key" in source.state("plain").why
    assert "Aria" in source.state("old").why
    assert "'id' of the key is of the type float" in source.state("floats").why
    assert source.state().state == "live"


ALL_TYPES = """
    CREATE TABLE users (id bigint unsigned PRIMARY KEY, flag bit(1), bits bit(12), tiny tinyint, tinyu tinyint unsigned,
    small smallint unsigned, medium mediumint, mediumu mediumint unsigned, i int unsigned, big bigint,
    bigu bigint unsigned, f float, d double, price decimal(12, 2), digits decimal(30, 10), wide decimal(65, 3),
    yes boolean, day date, at timestamp(3) NULL, seen datetime(6), plain datetime, clock time(2), y year,
    c char(10) CHARACTER SET latin1, v varchar(300), t text, b binary(4), vb varbinary(10), bl blob,
    e enum('a', 'b''c'), s set('x', 'y', 'z'), j json, u uuid, ip inet6, p point,
    wide_text longtext CHARACTER SET utf16, gone int AS (1) VIRTUAL, kept int AS (2) STORED)"""
VALUES = (
    "(18446744073709551615, 1, 2049, -128, 255, 65535, -8388608, 16777215, 4294967295, -9223372036854775808, "
    "18446744073709551615, 16777216, -0.1, -1234567890.12, 12345678901234567890.0123456789, "
    "-99999999999999999999999999999999999999999999999999999999999999.125, true, '2026-02-28', "
    "'2026-01-01 12:00:00.125', "
    "'2026-01-01 12:34:56.000789', '1000-01-01 00:00:00', '-838:59:58.99', 2155, 'caf\u00e9 \u20ac', 'a,\"b\"\\n\\\\', "
    "'\u00e9\U0001f600', x'01000000', x'00ff00', x'deadbeef00', 'b''c', 'x,z', '{\"a\": [1, null]}', "
    "'123e4567-e89b-12d3-a456-426614174000', '::1', ST_GeomFromText('POINT(1 2)'), '\u00e9\U0001f600')",
    "(0, 0, 0, 127, 0, 0, 8388607, 0, 0, 9223372036854775807, 0, 1e-30, 1e300, 0.05, 0, 0.125, false, '0000-00-00', "
    "'1970-01-02 00:00:01.5', '9999-12-31 23:59:59.999999', '0000-00-00 00:00:00', '00:00:00.1', 0, "
    "'', '', '', '', '', '', 'a', '', 'null', "
    "'017f22e2-79b0-7cc3-98c4-dc0c0c07398f', '2001:db8::ff00:42:8329', null, '')",
)


def test_all_types_are_the_same_copied_and_streamed(source: Source) -> None:
    source.sql(ALL_TYPES, "SET time_zone = '+05:30'")
    names = (
        "id, flag, bits, tiny, tinyu, small, medium, mediumu, i, big, bigu, f, d, price, digits, wide, yes, day, at, "
    )
    names += "seen, plain, clock, y, c, v, t, b, vb, bl, e, s, j, u, ip, p, wide_text"
    insert = [f"INSERT INTO users ({names}) VALUES {each}" for each in VALUES]
    source.sql(*insert, "INSERT INTO users (id) VALUES (7)")
    source.drain()
    copied = source.rows()
    source.sql("DELETE FROM users", *insert, "INSERT INTO users (id) VALUES (7)")
    source.drain()
    assert source.ops().count("delete") == 3
    streamed = source.rows()
    for key, row in copied.items():
        assert streamed[key] == row
    first, empty = copied["18446744073709551615",], copied["7",]
    assert {name: str(first[name]) for name in ("bigu", "price", "wide", "f", "at", "clock", "y", "e", "s", "b")} == {
        "bigu": "18446744073709551615",
        "price": "-1234567890.12",
        "wide": "-99999999999999999999999999999999999999999999999999999999999999.125",
        "f": "16777216.0",
        "at": "2026-01-01 06:30:00.125000+00:00",
        "clock": "-838:59:58.99",
        "y": "2155",
        "e": "b'c",
        "s": "x,z",
        "b": str(b"\1\0\0\0"),
    }
    assert (first["flag"], first["bits"], first["c"], first["wide_text"]) == (
        True,
        2049,
        "caf\u00e9 \u20ac",
        "\u00e9\U0001f600",
    )
    assert (first["u"], first["ip"], first["j"]) == ("123e4567-e89b-12d3-a456-426614174000", "::1", '{"a": [1, null]}')
    assert {value for name, value in empty.items() if name != "id"} == {None}
    zero = copied["0",]
    assert (zero["day"], zero["plain"], zero["s"], zero["flag"]) == (None, None, "", False)
    assert "gone" not in first and "kept" not in first


# -- columns -----------------------------------------------------------------------------------------


def test_a_column_more(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann', null)")
    source.drain()
    source.sql("ALTER TABLE users ADD age int FIRST", "INSERT INTO users VALUES (30, 2, 'bob', null)")
    source.drain()
    assert source.records()[-1] == {"id": 2, "name": "bob", "note": None, "age": 30, "_op": "upsert"}
    source.same()
    assert source.state().epoch == 0


def test_a_column_more_with_a_default_is_in_the_old_rows_too(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users (id) VALUES (1), (2)")
    source.drain()
    source.sql("ALTER TABLE users ADD points int NOT NULL DEFAULT 7", "UPDATE users SET points = 8 WHERE id = 2")
    source.drain()
    assert {row["points"] for row in source.rows().values()} == {7, 8}
    source.same()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP COLUMN note", "column 'note' is gone"),
        ("CHANGE note remark text", "column 'remark' is new, column 'note' is gone"),
        ("MODIFY name varchar(20)", "column 'name' has another type"),
    ],
)
def test_any_other_change_stops_the_table_and_says_how_to_go_on(source: Source, change: str, told: str) -> None:
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann', 'x')")
    source.drain()
    source.sql("INSERT INTO users VALUES (2, 'bob', 'y')", f"ALTER TABLE users {change}")
    source.sql("INSERT INTO users (id, name) VALUES (3, 'cem')", "INSERT INTO orders VALUES (1)")
    source.drain()
    assert source.state().state == "stopped"
    assert told in source.state().why
    assert len(source.rows()) == 2
    source.same("orders")
    source.drain(again=["users"])
    source.sql("DELETE FROM users WHERE id = 1")
    source.drain()
    source.same()


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE fresh LIKE users", "INSERT INTO fresh (id) VALUES (9)",
         "RENAME TABLE users TO old, fresh TO users"],
        ["DROP TABLE users", USERS, "INSERT INTO users VALUES (4, 'd', 'd')"],
        ["CREATE OR REPLACE TABLE users (id int PRIMARY KEY, name varchar(50), note text)"],
        ["ALTER TABLE users DROP name", "ALTER TABLE users ADD name varchar(50) AFTER id"],
    ],
    ids=["swapped", "made anew", "replaced", "a column made anew"],
)  # fmt: skip
def test_what_leaves_other_rows_without_saying_so_is_read_again(source: Source, statements: list[str]) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x'), (2, 'bob', 'y')")
    source.choice = source.chosen("users")
    source.drain()
    source.sql("INSERT INTO users VALUES (3, 'cem', 'z')", *statements)
    source.drain()
    source.sql("UPDATE users SET note = 'later'")
    source.drain()
    assert (source.state().state, source.state().epoch) == ("live", 1)
    source.same()


def test_partitions_that_are_emptied_are_seen(source: Source) -> None:
    source.sql("CREATE TABLE users (id int PRIMARY KEY, v int) PARTITION BY RANGE (id) "
               "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))")  # fmt: skip
    source.sql("INSERT INTO users VALUES (1, 1), (11, 1)")
    source.drain()
    source.sql("ALTER TABLE users TRUNCATE PARTITION p0", "INSERT INTO users VALUES (12, 1)")
    source.drain()
    assert sorted(source.rows()) == [(11,), (12,)]
    source.sql("ALTER TABLE users DROP PARTITION p1")
    source.drain()
    source.same()


def test_an_index_or_a_table_that_is_dropped_is_nothing(source: Source) -> None:
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY)")
    source.drain()
    source.sql("ALTER TABLE users ADD INDEX (name)", "CREATE INDEX n ON users (note(5))", "DROP TABLE orders")
    source.sql("CREATE VIEW seen AS SELECT * FROM users", "INSERT INTO users (id) VALUES (1)")
    source.drain()
    assert (source.state().epoch, source.state("orders").state) == (0, "stopped")
    assert "dropped" in source.state("orders").why
    source.same()


def test_a_foreign_key_that_cascades_is_followed(source: Source) -> None:
    """InnoDB changes the children below the binlog: they are read again."""
    source.sql("CREATE TABLE people (id int PRIMARY KEY, name text)")
    source.sql("CREATE TABLE users (id int PRIMARY KEY, of int, FOREIGN KEY (of) REFERENCES people (id) "
               "ON DELETE CASCADE ON UPDATE CASCADE)")  # fmt: skip
    source.sql("CREATE TABLE notes (id int PRIMARY KEY, of int, FOREIGN KEY (of) REFERENCES users (id) "
               "ON DELETE SET NULL)")  # fmt: skip
    source.sql(
        "INSERT INTO people VALUES (1, 'a'), (2, 'b'), (3, 'c')", "INSERT INTO users VALUES (1, 1), (2, 2), (3, 3)"
    )
    source.sql("INSERT INTO notes VALUES (1, 1), (2, 2)")
    source.choice = source.chosen("users", "notes")
    source.drain()
    source.sql("UPDATE people SET name = 'z'")
    source.drain()
    assert source.state().epoch == 0
    source.sql("DELETE FROM people WHERE id = 1", "UPDATE people SET id = 20 WHERE id = 2")
    source.drain()
    assert source.state().epoch == 1  # both in one: what was read later has the second
    assert source.rows()[2,]["of"] == 20
    for table in ("users", "notes"):
        source.same(table)


def test_a_transaction_in_two_phases(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users (id) VALUES (1)")
    source.drain()
    source.sql("XA START 'one'", "INSERT INTO users (id) VALUES (2)", "XA END 'one'", "XA PREPARE 'one'")
    source.drain()
    assert [*source.rows()] == [(1,)]
    source.sql("XA COMMIT 'one'", "XA START 'two'", "DELETE FROM users", "XA END 'two'", "XA PREPARE 'two'")
    source.drain()
    source.sql("XA ROLLBACK 'two'")
    source.drain()
    assert [*source.rows()] == [(1,), (2,)]
    source.same()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("SET SESSION binlog_format = STATEMENT", "SET GLOBAL binlog_format = ROW"),
        ("SET SESSION binlog_row_image = MINIMAL", "SET GLOBAL binlog_row_image = FULL"),
    ],
)
def test_a_session_that_writes_no_whole_rows_stops_the_table(source: Source, setting: str, told: str) -> None:
    source.sql(USERS, "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann', 'x')")
    source.drain()
    source.sql(setting, "UPDATE users SET name = 'b'")
    source.db.close()
    source.sql("INSERT INTO orders VALUES (1)")
    source.drain()
    assert source.state().state == "stopped" and told in source.state().why
    source.same("orders")
    source.drain(again=["users"])
    source.same()


def test_a_log_that_is_compressed_is_read(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    source.sql("SET GLOBAL log_bin_compress = ON")
    try:
        source.sql("INSERT INTO users VALUES " + ", ".join(f"({n}, 'same', repeat('x', 500))" for n in range(50)))
        source.sql("UPDATE users SET note = repeat('y', 600)", "TRUNCATE users /* " + "x" * 400 + " */")
        source.sql("INSERT INTO users VALUES (1, 'a', repeat('z', 900))")
    finally:
        source.sql("SET GLOBAL log_bin_compress = OFF")
    assert source.drain() == 151
    source.same()


# -- choosing ----------------------------------------------------------------------------------------


def test_patterns_masks_and_other_databases(source: Source) -> None:
    other = f"{source.name}_billing"
    source.sql(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.invoices (id int PRIMARY KEY, iban text)")
    try:
        source.sql(USERS, "CREATE TABLE audit (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann', 'n')")
        masks = {"users.name": "hash", f"{other}.invoices.iban": "null"}
        source.choice = type(source.choice).of([f"{source.name}.*", "!audit", f"{other}.*"], masks, source.name)
        source.drain()
        source.sql("INSERT INTO users VALUES (2, 'ann', 'm')", f"INSERT INTO {other}.invoices VALUES (1, 'CH93')")
        source.drain()
        first, second = source.rows().values()
        assert first["name"] == second["name"] and len(first["name"]) == 64
        assert source.rows(f"{other}_invoices") == {(1,): {"id": 1, "iban": None}}
        names = {topic.name for topic in source.log.topics()}
        assert names == {"shop.capture", "shop_users", f"shop_{other}_invoices"}
    finally:
        source.sql(f"DROP DATABASE {other}")


def test_a_table_that_is_made_later(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    source.sql("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    source.drain()
    source.sql("INSERT INTO orders VALUES (2)")
    source.drain()
    source.same("orders")
    assert source.ops("orders") == ["upsert", "loaded", "upsert"]


# -- what is lost ------------------------------------------------------------------------------------


def purge(source: Source) -> None:
    """All but the last file: what the server needs to recover is kept for a moment."""
    if source.sql("SHOW VARIABLES LIKE 'slave_connections_needed_for_purge'"):
        source.sql("SET GLOBAL slave_connections_needed_for_purge = 0")
    last = source.sql("SHOW MASTER STATUS")[0][0]
    until = time.monotonic() + 20
    while len(source.sql("SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < until
        source.sql(f"PURGE BINARY LOGS TO '{last}'")


def test_a_binlog_that_is_purged_is_a_gap_and_the_way_back_shows_deletes(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users (id, name) VALUES (1, 'ann'), (2, 'bob'), (3, 'cem')")
    source.drain()
    source.sql("DELETE FROM users WHERE id = 2", "UPDATE users SET name = 'eve' WHERE id = 3", "FLUSH BINARY LOGS")
    purge(source)
    with pytest.raises(CaptureGap, match=r"purged.*headrace capture snapshot shop"):
        source.drain()
    before = len(source.records())
    source.drain(again=())
    assert [(each["_op"], each["id"]) for each in source.records()[before:]] == [("upsert", 3), ("delete", 2)]
    assert source.state().epoch == 1
    source.sql("INSERT INTO users (id) VALUES (4)")
    source.drain()
    source.same()


def test_a_log_that_was_begun_anew_is_a_gap(source: Source) -> None:
    """RESET MASTER: files of the same names, with other changes in them."""
    source.sql(USERS)
    source.drain()
    where = recorded(source.log, "shop")["log", ""]
    assert where["begun"]
    journal = Journal(source.log, "shop")
    journal.write([], {("log", ""): {**where, "begun": where["begun"] - 1000}})
    source.sql("INSERT INTO users (id) VALUES (1)")
    with pytest.raises(CaptureGap, match="made again"):
        source.drain()
    end = place_of(where["file"], 10**9)
    journal = Journal(source.log, "shop")
    journal.write([], {("place", ""): {"end": end}})
    with pytest.raises(CaptureGap, match="before the last change here"):
        source.drain()


def test_a_second_process_is_fenced(source: Source) -> None:
    source.sql(USERS)
    source.drain()
    source.sql("INSERT INTO users (id) VALUES (1)")
    with source.capture().living() as life:
        Journal(source.log, "shop").write([], {})  # whoever took over has written
        with pytest.raises(CaptureFenced):
            while True:
                life.step(0.1)
    source.drain()
    source.same()


def test_nothing_is_written_of_a_transaction_that_is_cut_off(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cdc.applying.PIECE_ROWS", 300)
    source.sql(USERS)
    source.drain()
    source.sql("INSERT INTO users SELECT seq, 'a', repeat('x', 100) FROM seq_1_to_5000")
    capture = source.capture()
    with capture.living() as life:
        while not life.applying.changes:
            life.applying.read(life._stream.next(1))  # type: ignore[attr-defined]
        assert life.applying.in_transaction  # type: ignore[attr-defined]
    assert source.ops() == ["loaded"]
    assert source.drain() == 5000
    source.same()


def test_a_snapshot_that_was_cut_off_goes_on_behind_its_last_chunk(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile rows are changed on both sides of where it was cut off."""
    monkeypatch.setattr("headrace.cdc.mysql.copying.chunks.__defaults__", (2_000,))
    monkeypatch.setattr("headrace.cdc.mysql.copying.PIECE_ROWS", 40)
    source.sql("CREATE TABLE users (id varchar(20), n int, note text, PRIMARY KEY (id, n))")
    source.sql("INSERT INTO users SELECT concat('k', seq), seq, repeat('x', 30) FROM seq_1_to_500")
    write, count = Journal.write, [0]

    def breaking(self: Journal, rows: Any, changed: Any) -> None:
        write(self, rows, changed)
        count[0] += 1
        if count[0] == 5:
            raise OSError("the power is gone")

    monkeypatch.setattr(Journal, "write", breaking)
    with pytest.raises(CaptureFailed, match="power"):
        source.drain()
    monkeypatch.setattr(Journal, "write", write)
    cut = source.state()
    assert cut.state == "copying" and 0 < cut.copied < 500
    source.sql("UPDATE users SET note = 'changed' WHERE n % 3 = 0", "DELETE FROM users WHERE n % 7 = 0")
    source.sql("INSERT INTO users SELECT concat('M', seq), seq, 'new' FROM seq_1_to_20")
    source.sql(
        "UPDATE users SET id = concat('A', id) WHERE n % 11 = 0",
        "UPDATE users SET id = concat('zz', id) WHERE n % 13 = 0",
    )
    source.drain()
    source.same()
    source.sql("UPDATE users SET note = 'later' WHERE n % 5 = 0")
    source.drain()
    source.same()
    assert source.ops().count("loaded") == 1


def test_a_snapshot_can_be_stopped(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cdc.mysql.copying.chunks.__defaults__", (200,))
    monkeypatch.setattr("headrace.cdc.mysql.copying.PIECE_ROWS", 10)
    source.sql(USERS, "INSERT INTO users SELECT seq, repeat('x', 30), null FROM seq_1_to_3000")
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


def test_a_key_that_cannot_be_compared_is_copied_anew(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """An enum is ordered by its numbers, and compared by its names."""
    monkeypatch.setattr("headrace.cdc.mysql.copying.chunks.__defaults__", (1,))
    monkeypatch.setattr("headrace.cdc.mysql.copying.PIECE_ROWS", 2)
    source.sql("CREATE TABLE users (e enum('z', 'm', 'a', 'q', 'b') PRIMARY KEY)")
    source.sql("INSERT INTO users VALUES ('z'), ('m'), ('a'), ('q'), ('b')")
    capture = source.capture()
    capture.drain = lambda **_: 0  # type: ignore[method-assign]
    write, count = Journal.write, [0]

    def breaking(self: Journal, rows: Any, changed: Any) -> None:
        write(self, rows, changed)
        count[0] += 1
        if count[0] == 3:
            raise OSError("the power is gone")

    monkeypatch.setattr(Journal, "write", breaking)
    with pytest.raises(CaptureFailed, match="power"):
        source.drain()
    monkeypatch.setattr(Journal, "write", write)
    source.sql("DELETE FROM users WHERE e = 'z'")
    source.drain()
    source.same()


def test_writes_go_on_while_a_snapshot_is_read(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the snapshot is not in the stream, and the other way round: an append-only table has each row once."""
    monkeypatch.setattr("headrace.cdc.mysql.copying.chunks.__defaults__", (5_000,))
    monkeypatch.setattr("headrace.cdc.mysql.copying.PIECE_ROWS", 100)
    source.sql(USERS, "INSERT INTO users SELECT seq, 'x', null FROM seq_1_to_3000")
    written = [3000]
    stopping = threading.Event()

    def write() -> None:
        with source.server.connect(source.name) as db, db.cursor() as cursor:
            while not stopping.is_set():
                written[0] += 10
                cursor.execute(f"INSERT INTO users SELECT seq, 'y', null FROM seq_{written[0] - 9}_to_{written[0]}")

    writers = threading.Thread(target=write)
    writers.start()
    try:
        source.drain()
        source.drain()
    finally:
        stopping.set()
        writers.join(30)
    source.drain()
    assert source.ops().count("upsert") == written[0]
    source.same()


def test_no_password_is_told(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.url = source.url.replace("headrace@", "headrace:sesame@")
    with pytest.raises(CaptureFailed, match="Access denied") as caught:
        source.drain()
    assert caught.value.__cause__ is None and not caught.value.passing
    told = [str(caught.value), repr(caught.value), repr(source.capture().server), caplog.text]
    assert not any("sesame" in text for text in told)


def test_a_server_that_restarts_is_waited_for(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users (id) VALUES (1)")
    thread = CaptureThread(source.capture())
    thread.start()
    while not source.tables() or source.state().state != "live":
        time.sleep(0.01)
    source.server.restart()
    source._db = None
    source.sql("INSERT INTO users (id) VALUES (2)")
    until = time.monotonic() + 30
    while (2,) not in source.rows() and time.monotonic() < until:
        time.sleep(0.02)
    assert thread.stop(20) and thread.error is None
    assert thread.restarts
    source.same()
    assert status_of(source.log, "shop").committed_at is not None


def test_names_that_mean_something_in_sql(source: Source) -> None:
    source.sql("CREATE TABLE `se``lect%` (id int PRIMARY KEY)")  # a topic cannot be called so
    source.sql(
        "CREATE TABLE users (`100%` int PRIMARY KEY, `%s` text, `a``b` text)", "INSERT INTO users VALUES (1, 'x', 'y')"
    )
    source.drain()
    source.sql("INSERT INTO users VALUES (2, '%d', '`')", "UPDATE users SET `%s` = NULL WHERE `100%` = 1")
    source.drain()
    source.same()
    source.drain(again=["users"])
    assert source.state().state == "live"
    source.same()


@pytest.mark.parametrize("again", [None, ()])
def test_a_table_that_is_stopped_in_its_copy_stops_alone(
    source: Source, again: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut off in the middle of a table costs the connection: those behind it are copied over the next."""
    monkeypatch.setattr(copying, "PIECE_ROWS", 1)
    monkeypatch.setattr(copying.chunks, "__defaults__", (1,))
    source.sql("CREATE TABLE orders (id int PRIMARY KEY, s longtext, t longtext)")
    source.sql("CREATE TABLE users (id int PRIMARY KEY)", "INSERT INTO users VALUES (1)")
    source.sql("INSERT INTO orders VALUES (1, repeat('x', 9000000), repeat('y', 9000000)), (2, '', ''), (3, '', '')")
    source.drain(again=again)
    assert (source.state().state, source.state("orders").state) == ("live", "stopped")
    assert "a row has more than 16,777,216 bytes" in source.state("orders").why
    source.same()


def test_a_table_that_may_not_be_read_stops_alone(source: Source) -> None:
    source.sql("CREATE TABLE users (id int PRIMARY KEY)", "CREATE TABLE orders (id int PRIMARY KEY)")
    source.sql("INSERT INTO orders VALUES (1)")
    user = f"'{source.name[:20]}'@'127.0.0.1'"
    source.sql(f"CREATE USER {user}", f"GRANT REPLICATION SLAVE, BINLOG MONITOR, RELOAD ON *.* TO {user}")
    source.sql(
        f"GRANT SELECT, INSERT ON {source.name}.users TO {user}", f"GRANT SELECT ON {source.name}.orders TO {user}"
    )
    source.url = source.url.replace("//headrace@", f"//{source.name[:20]}@")
    source.drain()
    source.sql(f"REVOKE SELECT ON {source.name}.users FROM {user}", "INSERT INTO orders VALUES (2)")
    source.drain(again=["users"])
    assert (source.state().state, source.state("orders").state) == ("stopped", "live")
    assert "SELECT command denied" in source.state().why
    source.same("orders")
    source.sql(f"DROP USER {user}")
