"""A SQLite is captured: what its tables have is what the topics have, whoever writes and however."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.cdc.open import check_address
from headrace.cdc.running import CaptureThread, status_of
from headrace.cdc.sqlite import capture as capturing
from headrace.cdc.sqlite import taking
from headrace.errors import CaptureFailed, CaptureFenced, CaptureGap, InvalidArgument
from headrace.log.open import open_log
from tests.cdc.sqlite_source import SqliteSource
from tests.cli.conftest import Shell

USERS = "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, note TEXT)"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[SqliteSource]:
    found = SqliteSource(tmp_path)
    yield found
    found.close()


def test_what_is_there_and_what_is_done_to_it(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', NULL), (2, 'bob', '')")
    assert shop.drain() == 0
    assert shop.records() == [
        {"id": 1, "name": "ann", "note": None, "_op": "upsert"},
        {"id": 2, "name": "bob", "note": "", "_op": "upsert"},
        {"id": None, "name": None, "note": None, "_op": "loaded"},
    ]
    shop.sql("INSERT INTO users VALUES (3, 'cem', 'x')", "UPDATE users SET name = 'eve' WHERE id = 1")
    shop.sql("DELETE FROM users WHERE id = 2")
    assert shop.drain() == 3
    assert shop.records()[3:] == [
        {"id": 3, "name": "cem", "note": "x", "_op": "upsert"},
        {"id": 1, "name": "eve", "note": None, "_op": "upsert"},
        {"id": 2, "name": None, "note": None, "_op": "delete"},
    ]
    assert shop.drain() == 0
    assert len(shop.outbox()) == 1
    shop.sql("DELETE FROM users")  # without a WHERE SQLite empties a table at once, but not one with triggers
    shop.drain()
    assert shop.rows() == {}
    assert shop.log.topic("shop_users").settings.key == ("id",)


def test_an_update_is_one_row_of_the_outbox(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', NULL), (2, 'bob', '')")
    shop.drain()
    shop.sql("UPDATE users SET name = 'x'")
    assert len(shop.outbox()) == 1 + 2
    shop.sql("UPDATE users SET id = 3 WHERE id = 1")
    assert len(shop.outbox()) == 1 + 2 + 2, "a key that is gone, and one that is new"
    shop.drain()
    shop.same()


def test_a_transaction_is_whole_and_a_rollback_leaves_nothing(shop: SqliteSource) -> None:
    shop.sql(USERS, "CREATE TABLE orders (id INTEGER PRIMARY KEY, by INTEGER)")
    shop.drain()
    shop.sql("BEGIN", "INSERT INTO users VALUES (1, 'ann', NULL)", "INSERT INTO orders VALUES (10, 1)")
    assert shop.drain() == 0
    shop.sql("SAVEPOINT s", "INSERT INTO users VALUES (7, 'x', NULL)", "ROLLBACK TO s", "COMMIT")
    shop.sql("BEGIN", "INSERT INTO users VALUES (2, 'bob', NULL)", "ROLLBACK")
    assert shop.drain() == 2
    assert [*shop.rows()] == [(1,)]
    users, orders = (shop.log.topic(f"shop_{name}").offsets()[0] for name in ("users", "orders"))
    assert users.arrived_at == orders.arrived_at


def test_a_key_that_changes_is_a_delete_and_an_upsert(shop: SqliteSource) -> None:
    shop.sql("CREATE TABLE pairs (a INT, b TEXT, v, PRIMARY KEY (a, b)) WITHOUT ROWID")
    shop.sql("INSERT INTO pairs VALUES (1, 'x', 1), (2, 'x', 2), (3, 'x', 3)")
    shop.drain()
    shop.sql("UPDATE pairs SET a = 7 WHERE a = 1", "UPDATE pairs SET a = 12 - a, v = 5 WHERE a > 1")
    shop.drain()
    assert shop.ops("pairs")[4:6] == ["delete", "upsert"]
    shop.same("pairs")
    shop.sql("UPDATE OR REPLACE pairs SET a = 9")  # one row stays
    shop.drain()
    assert len(shop.rows("pairs")) == 1
    shop.same("pairs")


REPLACES = [
    "INSERT OR REPLACE INTO users VALUES (9, 'n', 'c@x', 3, 'k', 'on')",
    "REPLACE INTO users VALUES (1, 'n', 'b@x', 8, 'x', 'on')",
    "UPDATE OR REPLACE users SET mail = 'B@X' WHERE id = 1",
    "INSERT INTO users VALUES (9, 'n', 'm', 2, 'k', 'on')",  # the table itself says ON CONFLICT REPLACE
    "INSERT OR IGNORE INTO users VALUES (9, 'n', 'c@x', 33, 'k', 'on')",
    "INSERT INTO users VALUES (9, 'n', 'c@x', 33, 'k', 'on') ON CONFLICT (mail) DO UPDATE SET name = 'up'",
    "INSERT OR REPLACE INTO users VALUES (9, 'n', 'm', 9, 'b', 'on')",  # unique only where state is 'on'
    "INSERT OR REPLACE INTO users VALUES (9, 'n', 'm', 9, 'a', 'on')",
]


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_rows_that_a_replace_removes(shop: SqliteSource, recursive: str) -> None:
    """SQLite tells no trigger of them, unless the writer has recursive_triggers on."""
    shop.sql(
        f"PRAGMA recursive_triggers = {recursive}",
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, mail TEXT COLLATE NOCASE UNIQUE, "
        "n INT UNIQUE ON CONFLICT REPLACE, tag TEXT, state TEXT)",
        "CREATE UNIQUE INDEX tags ON users (tag) WHERE state = ')on('  OR state IN ('on') -- where",
        "CREATE TABLE words (word TEXT COLLATE NOCASE PRIMARY KEY, n INT)",
        "CREATE TABLE loose (k PRIMARY KEY, n INT)",
    )
    shop.drain()
    for statement in REPLACES:
        shop.sql("DELETE FROM users")
        shop.sql("INSERT INTO users VALUES (1, 'a', 'a@x', 1, 'a', 'off'), (2, 'b', 'b@x', 2, 'b', 'on')")
        shop.sql("INSERT INTO users VALUES (3, 'c', 'c@x', 3, 'c', 'on')", statement)
        shop.drain()
        shop.same()
    shop.sql("INSERT INTO words VALUES ('ann', 1)", "REPLACE INTO words VALUES ('ANN', 2)")
    shop.sql("INSERT INTO words VALUES ('bob', 1)", "UPDATE words SET word = 'BOB' WHERE word = 'bob'")
    shop.sql(
        "INSERT INTO loose VALUES (1, 1)", "REPLACE INTO loose VALUES (1.0, 2)", "INSERT INTO loose VALUES ('1', 3)"
    )
    shop.sql("INSERT INTO loose (rowid, k) VALUES (70, 'x')", "REPLACE INTO loose (rowid, k) VALUES (70, 'y')")
    shop.drain()
    assert [*shop.rows("words")] == [("ANN",), ("BOB",)]
    assert [*shop.rows("loose")] == [("1.0",), ("'1'",), ("y",)]


def test_rows_that_other_triggers_change(shop: SqliteSource) -> None:
    """Whether a trigger of the application runs before ours or after it: what is told last is what is there."""
    touched = "CREATE TRIGGER {0} AFTER {1} ON users BEGIN UPDATE users SET note = coalesce(note, '') || '{2}' {3}; END"
    for moment in "before", "after":
        shop.sql("DROP TABLE IF EXISTS users", USERS, "DROP TABLE IF EXISTS pets")
        shop.sql(
            "CREATE TABLE pets (id INTEGER PRIMARY KEY, of INT REFERENCES users ON DELETE CASCADE ON UPDATE CASCADE)"
        )
        if moment == "after":
            shop.drain()
        shop.sql(
            touched.format("ins", "INSERT", "i", "WHERE id = NEW.id"),
            touched.format("upd", "UPDATE OF name", "u", "WHERE id = NEW.id"),
            "CREATE TRIGGER del AFTER DELETE ON users WHEN OLD.name = 'kept' "
            "BEGIN INSERT INTO users VALUES (OLD.id, 'deleted', OLD.note); END",
        )
        shop.drain()
        shop.sql(
            "PRAGMA foreign_keys = ON", "INSERT INTO users VALUES (1, 'ann', NULL), (2, 'kept', NULL), (3, 'x', '')"
        )
        shop.sql(
            "INSERT INTO pets VALUES (1, 1), (2, 1), (3, 3)", "UPDATE users SET name = 'eve', id = 10 WHERE id = 1"
        )
        shop.sql("DELETE FROM users WHERE id > 1")
        shop.drain()
        shop.same()
        shop.same("pets")


def test_values_are_what_they_are(shop: SqliteSource) -> None:
    shop.sql(
        'CREATE TABLE "Order" ("group" TEXT, "a ""b""" INT, r REAL, any, d DECIMAL(10, 2), day DATETIME, ok BOOLEAN, '
        'b BLOB, f FLOAT, "select" VARCHAR(5), both TEXT GENERATED ALWAYS AS ("group" || r), PRIMARY KEY ("group"))'
    )
    rows = [
        ("a", 2**63 - 1, 1, 1, 9.99, "2026-01-01 00:00:00", 1, b"\x00\xff", 1e300, "x"),
        ("b", -(2**63), 0.1, "1", 10, 1700000000, 0, b"", float("inf"), ""),
        ("c\x00d", "7", "8", 1.5, "n/a", "2026-01-01", None, None, None, 12),
        ("'", None, -0.0, b"\x00", "1e3", "it's", 1, b"1", 0.1 + 0.2, "é"),
    ]
    marks = ", ".join("?" * 10)
    for row in rows[:2]:
        shop.db.execute(f'INSERT INTO "Order" VALUES ({marks})', row)
    shop.drain()
    for row in rows[2:]:
        shop.db.execute(f'INSERT INTO "Order" VALUES ({marks})', row)
    shop.drain()
    found = [tuple(row.values()) for row in shop.rows("Order").values()]
    assert found == [
        ("a", 2**63 - 1, 1.0, "1", "9.99", "2026-01-01 00:00:00", True, b"\x00\xff", 1e300, "x", "a1.0"),
        ("b", -(2**63), 0.1, "'1'", "10", "1700000000", False, b"", float("inf"), "", "b0.1"),
        ("c\x00d", 7, 8.0, "1.5", "n/a", "2026-01-01", None, None, None, "12", "c\x00d8.0"),
        ("'", None, 0.0, "X'00'", "1000", "it's", True, b"1", 0.1 + 0.2, "é", "'0.0"),
    ]


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("n", "x", "'n' is a TEXT"),
        ("n", 1.5, "'n' is a REAL"),
        ("name", b"x", "'name' is a BLOB"),
        ("ok", 2, "neither 0 nor 1"),
        ("b", "x", "'b' is a TEXT"),
        ("id", None, "has NULL in 'id'"),
    ],
)
def test_a_value_that_the_topic_cannot_hold_stops_its_table(
    shop: SqliteSource, column: str, value: object, why: str
) -> None:
    shop.sql("CREATE TABLE users (id TEXT PRIMARY KEY, n INT, name TEXT, ok BOOL, b BLOB)")
    shop.sql("CREATE TABLE pets (id INTEGER PRIMARY KEY)")
    shop.drain()
    other = "name" if column == "id" else "id"
    shop.db.execute(f"INSERT INTO users ({column}, {other}) VALUES (?, 'x')", (value,))
    shop.sql("INSERT INTO pets VALUES (1)")
    shop.drain()
    assert (shop.state().state, why in shop.state().why) == ("stopped", True)
    assert [*shop.rows("pets")] == [(1,)]
    assert not [name for name in shop.own() if "_2_" in name], "a table that is stopped costs its writers nothing"
    shop.sql("DELETE FROM users", "INSERT INTO users (id) VALUES ('fine')")
    shop.drain(again=["users"])
    assert shop.state().state == "live"
    shop.same()


def test_a_text_that_is_no_utf8_stops_its_table(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, CAST(X'ff' AS TEXT), NULL)")
    shop.drain()
    assert "no UTF-8" in shop.state().why


@pytest.mark.parametrize("copied", [True, False])
def test_a_row_that_no_topic_holds_stops_its_table(shop: SqliteSource, copied: bool) -> None:
    shop.sql("CREATE TABLE users (id INTEGER PRIMARY KEY, t TEXT)", "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    if not copied:
        shop.drain()
    shop.sql("INSERT INTO users VALUES (1, hex(zeroblob(9 << 20)))", "INSERT INTO orders VALUES (1)")
    shop.drain()
    assert (shop.state().state, shop.state("orders").state) == ("stopped", "live")
    assert "a row has more than 16,777,216 bytes" in shop.state().why
    shop.same("orders")
    shop.sql("UPDATE users SET t = 'small'", "INSERT INTO orders VALUES (2)")
    shop.drain(again=["users"])
    assert shop.state().state == "live"
    shop.same()
    shop.same("orders")


def test_tables_that_are_left_alone(shop: SqliteSource) -> None:
    shop.sql("CREATE TABLE plain (a)", "CREATE VIRTUAL TABLE docs USING fts5 (body)", "CREATE VIEW v AS SELECT 1")
    shop.sql("CREATE TABLE lower (id INTEGER PRIMARY KEY, a)", "CREATE UNIQUE INDEX u ON lower (lower(a))")
    shop.sql("CREATE TABLE own (id INTEGER PRIMARY KEY, _x)")
    shop.drain()
    why = {each.table.removeprefix("main."): each.why for each in status_of(shop.log, "shop").tables}
    assert why.keys() == {"plain", "lower", "own"}
    assert why["plain"] == "it has no primary key"
    assert "index 'u' is unique by an expression" in why["lower"]
    assert "names that begin with '_'" in why["own"]
    assert len(shop.own()) == 1


def test_choosing_and_masking(shop: SqliteSource) -> None:
    shop.sql("CREATE TABLE users (mail TEXT PRIMARY KEY, n INT)", "INSERT INTO users VALUES ('ann@x', 1), ('bob@x', 2)")
    shop.sql("CREATE TABLE audit (id INTEGER PRIMARY KEY)")
    shop.tables, shop.mask = ["*", "!audit"], {"users.mail": "hash", "main.users.n": "null"}
    columns, key = shop.capture().describe("main", "users")
    assert (columns.names, key) == (["mail", "n"], ("mail",))
    with pytest.raises(CaptureFailed, match=r"no table main\.nothing"):
        shop.capture().describe("main", "nothing")
    shop.drain()
    shop.sql("DELETE FROM users WHERE n = 1")
    shop.drain()
    assert [(len(row["mail"]), row["n"]) for row in shop.rows().values()] == [(64, None)]
    assert "ann@x" not in repr([record.value for record in shop.log.topic("shop.capture").records()])
    assert [each.table for each in status_of(shop.log, "shop").tables] == ["main.users"]


# -- copying -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_copied_in_chunks_while_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """No row twice and none missing: each row is inserted once, so it is in the topic once."""
    monkeypatch.setattr(taking, "CHUNK_ROWS", 100)
    monkeypatch.setattr(taking, "FETCH_ROWS", 50)
    monkeypatch.setattr(taking, "READ_ROWS", 150)
    shop = SqliteSource(tmp_path, mode=mode)
    shop.sql("CREATE TABLE users (name TEXT COLLATE NOCASE PRIMARY KEY, n INT)", "PRAGMA synchronous = OFF")
    shop.db.executemany("INSERT INTO users VALUES (?, 0)", [(f"{'uU'[n % 2]}{n:05}",) for n in range(0, 4000, 2)])
    stop = threading.Event()

    def write() -> None:
        with sqlite3.connect(shop.path, isolation_level=None, timeout=30) as db:
            db.execute("PRAGMA synchronous = OFF")
            for n in range(1, 4000, 2):
                db.execute("INSERT INTO users VALUES (?, 1)", (f"u{(n * 7919) % 4001:05}x",))
                if stop.is_set():
                    break

    writer = threading.Thread(target=write)
    writer.start()
    shop.drain()
    stop.set()
    writer.join()
    shop.drain()
    assert shop.ops().count("upsert") == shop.sql("SELECT count(*) FROM users")[0][0]
    assert shop.ops().count("loaded") == 1
    shop.same()
    shop.close()


@pytest.mark.parametrize("kind", ["TEXT COLLATE NOCASE", "BLOB", "REAL", "", "DECIMAL", "INTEGER"])
def test_a_copy_that_was_cut_off_goes_on_behind_its_last_chunk(
    shop: SqliteSource, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever the key is: each row is copied once, in the order in which SQLite has the keys."""
    monkeypatch.setattr(taking, "CHUNK_ROWS", 3)
    monkeypatch.setattr(taking, "FETCH_ROWS", 1)
    shop.sql(f"CREATE TABLE users (a {kind} NOT NULL, b INT NOT NULL, n INT, PRIMARY KEY (a, b)) WITHOUT ROWID")
    keys: dict[str, list[object]] = {
        "TEXT COLLATE NOCASE": ["a", "B", "b", "Ä", "ä", "'", ""],
        "BLOB": [b"", b"\x00", b"a", b"\xff"],
        "REAL": [-1.5, 0.0, 1e300, float("inf"), 2],
        "": [1, 1.5, "1", "a", b"a", b"", float("-inf")],
        "DECIMAL": [1, 1.5, "x", "1e3", b"a"],
        "INTEGER": [-(2**63), -1, 0, 2**62, 2**63 - 1],
    }
    rows = [(key, b) for key in keys[kind] for b in (1, 2)]
    shop.db.executemany("INSERT OR IGNORE INTO users VALUES (?, ?, 0)", rows)
    steps = iter(range(2))
    shop.capture().run(lambda: next(steps, None) is None)
    assert shop.state().state == "copying" and 0 < shop.state().copied < len(rows)
    shop.sql("UPDATE users SET n = 1 WHERE b = 1")
    shop.drain()
    assert shop.ops().count("loaded") == 1
    assert len(shop.rows()) == shop.sql("SELECT count(*) FROM users")[0][0] == shop.state().copied
    assert {row["n"] for row in shop.rows().values() if row["b"] == 1} == {1}
    before = len(shop.records())
    shop.drain(again=["users"])
    assert len(shop.records()) == before, "nothing differs"


def test_a_row_that_moves_over_the_place_of_the_copy(shop: SqliteSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "CHUNK_ROWS", 2)
    monkeypatch.setattr(taking, "FETCH_ROWS", 1)
    shop.sql(USERS, "INSERT INTO users (id) VALUES (1), (2), (3), (4), (5), (6)")
    look, done = taking.Taking._copy, list[str]()

    def between(self: taking.Taking, db: sqlite3.Connection) -> None:
        look(self, db)
        done.append("chunk")
        if len(done) == 1:
            shop.sql("UPDATE users SET id = 10 WHERE id = 1", "UPDATE users SET id = 0 WHERE id = 6")
            shop.sql("DELETE FROM users WHERE id IN (2, 3)", "INSERT INTO users (id) VALUES (3)")

    monkeypatch.setattr(taking.Taking, "_copy", between)
    shop.drain()
    assert len(done) > 2
    shop.same()


def test_all_that_waits_is_one_transaction(shop: SqliteSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "READ_ROWS", 100)
    shop.sql(USERS)
    shop.drain()
    shop.sql(
        "WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 950) INSERT INTO users SELECT i, i, '' FROM n"
    )
    assert shop.drain() == 950
    arrived = {
        record.arrived_at for record in shop.log.topic("shop_users").records() if record.value["_op"] == "upsert"
    }
    assert len(arrived) == 1
    shop.same()


# -- what becomes of tables --------------------------------------------------------------------------


def test_columns_more_are_followed(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', NULL), (2, 'bob', NULL)")
    shop.drain()
    shop.sql("UPDATE users SET name = 'eve' WHERE id = 1", "ALTER TABLE users ADD COLUMN n INT")
    shop.sql("INSERT INTO users VALUES (3, 'cem', NULL, 5)", "ALTER TABLE users ADD COLUMN state TEXT DEFAULT 'new'")
    shop.drain()
    shop.sql("UPDATE users SET n = 6, state = 'old' WHERE id = 2")
    shop.drain()
    shop.same()
    assert shop.state().epoch == 1


def test_a_column_that_is_renamed_stops_the_table(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x')", "CREATE TABLE pets (id INTEGER PRIMARY KEY)")
    shop.drain()
    shop.sql("ALTER TABLE users RENAME COLUMN note TO remark", "INSERT INTO users VALUES (2, 'bob', 'y')")
    shop.sql("INSERT INTO pets VALUES (1)")
    shop.drain()
    assert shop.state().why == "the table has changed: column 'remark' is new, column 'note' is gone"
    assert [*shop.rows("pets")] == [(1,)]
    shop.drain(again=["users"])
    shop.same()
    shop.sql("UPDATE users SET remark = 'z'")
    shop.drain()
    shop.same()


def test_a_table_that_is_made_anew_is_read_again(shop: SqliteSource) -> None:
    """As migrations do it: its triggers go with the old one."""
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x'), (2, 'bob', 'y')")
    shop.drain()
    shop.sql(
        "BEGIN",
        "CREATE TABLE new_users (id INTEGER PRIMARY KEY, name TEXT, note TEXT)",
        "INSERT INTO new_users SELECT * FROM users WHERE id > 1",
        "DROP TABLE users",
        "ALTER TABLE new_users RENAME TO users",
        "COMMIT",
    )
    shop.sql("INSERT INTO users VALUES (3, 'cem', 'z')")
    shop.drain()
    shop.same()
    shop.sql("UPDATE users SET name = 'eve'")
    shop.drain()
    shop.same()
    assert shop.ops().count("delete") == 1


def test_a_trigger_that_somebody_dropped_is_made_again(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x')")
    shop.drain()
    (name,) = [each for each in shop.own() if each.endswith("_insert")]
    shop.sql(f'DROP TRIGGER "{name}"', "INSERT INTO users VALUES (2, 'bob', 'y')")
    shop.drain()
    shop.same()
    assert name in shop.own()


def test_a_table_that_goes_or_is_renamed(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x')", "CREATE TABLE pets (id INTEGER PRIMARY KEY)")
    shop.drain()
    shop.sql("ALTER TABLE users RENAME TO people", "DROP TABLE pets")
    shop.drain()
    shop.sql("INSERT INTO people VALUES (2, 'bob', 'y')")
    shop.drain()
    shop.same("people")
    assert "not there any more" in shop.state().why and "not there any more" in shop.state("pets").why
    with pytest.raises(CaptureFailed, match="not in the database any more"):
        shop.drain(again=["users"])
    with pytest.raises(CaptureFailed, match=r"'main\.nothing' is not captured"):
        shop.drain(again=["nothing"])


def test_another_key_needs_another_topic(shop: SqliteSource) -> None:
    shop.sql("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO users VALUES (1, 'ann')")
    shop.drain()
    shop.sql(
        "DROP TABLE users", "CREATE TABLE users (id INT, name TEXT PRIMARY KEY)", "INSERT INTO users VALUES (1, 'x')"
    )
    shop.drain()
    assert "the key is (name)" in shop.state().why
    with pytest.raises(CaptureFailed, match="delete topic 'shop_users'"):
        shop.drain(again=["users"])
    shop.log.delete_topic("shop_users")
    shop.drain(again=["users"])
    shop.same()


def test_stopped_where_the_application_has_functions_of_its_own(shop: SqliteSource) -> None:
    shop.db.create_function("double", 1, lambda n: 2 * n, deterministic=True)
    shop.sql("CREATE TABLE users (id INTEGER PRIMARY KEY, twice INT AS (double(id)))", "INSERT INTO users VALUES (1)")
    shop.drain()
    assert "double" in shop.state().why


# -- beginnings and ends -----------------------------------------------------------------------------


def test_an_older_copy_of_the_file_is_a_gap(shop: SqliteSource, tmp_path: Path) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', NULL)")
    shop.drain()
    shop.sql(f"VACUUM INTO '{tmp_path}/backup.db'", "UPDATE users SET name = 'a'", "INSERT INTO users (id) VALUES (2)")
    shop.drain()
    with CaptureThreadOf(shop) as thread:
        shutil.move(tmp_path / "backup.db", shop.path)
        for suffix in "-wal", "-shm":
            Path(f"{shop.path}{suffix}").unlink(missing_ok=True)
        assert thread.join(30)
        assert isinstance(thread.error, CaptureGap)
    shop.db.close()
    shop.db = sqlite3.connect(shop.path, isolation_level=None)
    shop.sql(*["UPDATE users SET note = 'x'"] * 5)  # as many rows in the outbox as there were
    with pytest.raises(CaptureGap, match=r"older copy.*headrace capture snapshot shop"):
        shop.drain()
    shop.drain(again=())
    shop.same()
    assert len([name for name in shop.own() if name.count("_") == 2]) == 1, "one outbox"
    shop.sql("UPDATE users SET note = 'y'")
    shop.drain()
    shop.same()


class CaptureThreadOf:
    def __init__(self, shop: SqliteSource) -> None:
        self.thread = CaptureThread(shop.capture())

    def __enter__(self) -> CaptureThread:
        self.thread.start()
        return self.thread

    def __exit__(self, *_: object) -> None:
        assert self.thread.stop(30)


def test_an_outbox_that_somebody_removed_is_a_gap(shop: SqliteSource) -> None:
    shop.sql(USERS)
    shop.drain()
    for name in shop.own():
        if not name.endswith(("insert", "update", "delete")):
            shop.sql(f'DROP TABLE "{name}"')
    with pytest.raises(CaptureGap, match="is gone"):
        shop.drain()
    with pytest.raises(sqlite3.OperationalError):
        shop.sql("INSERT INTO users (id) VALUES (1)")
    shop.drain(again=())
    shop.sql("SELECT * FROM users", "INSERT INTO users (id) VALUES (1)")
    shop.drain()
    shop.same()


def test_uninstalled_and_begun_again(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x'), (2, 'bob', 'y')")
    shop.drain()
    assert len(shop.capture().uninstall()) == 4
    assert shop.own() == []
    shop.sql(
        "ALTER TABLE users DROP COLUMN note", "DELETE FROM users WHERE id = 1", "INSERT INTO users VALUES (3, 'cem')"
    )
    shop.drain()
    assert shop.rows() == {(2,): {"id": 2, "name": "bob", "note": "y"}, (3,): {"id": 3, "name": "cem", "note": None}}


def test_two_captures_of_one_file(shop: SqliteSource, tmp_path: Path) -> None:
    shop.sql(USERS)
    other = SqliteSource.__new__(SqliteSource)
    other.__dict__ |= shop.__dict__ | {"home": tmp_path / "other"}
    other.log = open_log(other.home)
    shop.drain()
    other.drain()
    shop.sql("INSERT INTO users (id) VALUES (1)")
    shop.drain()
    other.drain()
    shop.same()
    other.same()
    other.log.close()


def test_a_second_process_is_refused(shop: SqliteSource, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sql(USERS)
    shop.drain()
    shop.sql("INSERT INTO users (id) VALUES (1)")
    write, fenced = capturing.Taking.all_there_is, list[bool]()

    def late(self: taking.Taking) -> bool:
        found = write(self)
        if not fenced:
            fenced.append(True)
            shop.drain()
        return found

    monkeypatch.setattr(capturing.Taking, "all_there_is", late)
    with pytest.raises(CaptureFenced):
        shop.drain()
    assert shop.ops() == ["loaded", "upsert"]


def test_addresses(tmp_path: Path) -> None:
    for wrong in "sqlite://shop.db", "sqlite:///", "sqlite:///:memory:", "sqlite:///a?mode=ro":
        with pytest.raises(InvalidArgument, match="address of a"):
            choice_of(wrong)
    missing = SqliteSource(tmp_path)
    missing.url = f"sqlite:///{tmp_path}/nowhere.db"
    with pytest.raises(CaptureFailed, match="no such file"):
        missing.drain()
    assert not (tmp_path / "nowhere.db").exists()
    (tmp_path / "text.db").write_text("no database at all" * 100)
    missing.url = f"sqlite:///{tmp_path}/text.db"
    with pytest.raises(CaptureFailed, match="not a database"):
        missing.drain()
    missing.close()


def choice_of(url: str) -> None:
    check_address(url)


def test_another_process_asks_to_read_again(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x')")
    shop.drain()
    shop.capture().ask_again(["users"])
    shop.capture().ask_again(["nothing"])
    (outbox,) = (name for name in shop.own() if name.count("_") == 2)
    shop.sql(*(f"INSERT INTO {outbox} (op, at_ms, v0) VALUES ('a', 1, {said})" for said in ("NULL", "5", "'['")))
    shop.drain()
    assert shop.state().epoch == 1
    shop.same()


# -- programs and commands ---------------------------------------------------------------------------


def test_a_program_captures_while_it_runs(shop: SqliteSource) -> None:
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x')")
    with hr.App("asks", home=shop.home) as app:
        users = app.capture("shop", shop.url).table("users", history="versions")
        assert (users.name, users.key, users.columns.names) == ("shop_users", ("id",), ["id", "name", "note"])
    shop.drain()
    with hr.App("site", home=shop.home) as app:
        db = app.capture("shop", shop.url, mask={"users.note": "hash"})
        app.start()
        topic = shop.log.topic("shop_users")
        found = iter(topic.records(follow=True, timeout="30 seconds"))
        assert [next(found).value["_op"] for _ in range(2)] == ["upsert", "loaded"]
        shop.sql("INSERT INTO users VALUES (2, 'bob', 'y')")
        assert next(found).value["name"] == "bob"
        status = db.status()
        assert (status.state, [table.state for table in status.tables]) == ("running", ["live"])
    assert status.database == f"sqlite:///{shop.path}" and status.committed_at is not None


def test_commands(shop: SqliteSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(shop.home))
    shell = Shell(shop.home)
    shop.sql(USERS, "INSERT INTO users VALUES (1, 'ann', 'x')", "CREATE TABLE plain (a)")
    shell.ok("capture", "add", "shop", shop.url, "--table", "*", "--mask", "users.note=null")
    found = shell("capture", "doctor", "shop")
    assert found.code == 3 and {row["check"]: row["ok"] for row in found.rows} == {
        "writable": True,
        "journal_mode": True,
        "table main.plain": False,
        "table main.users": True,
    }
    assert "0 changes captured" in shell.ok("capture", "run", "shop", "--drain").err
    assert "outbox headrace_shop_" in shell("capture", "doctor", "shop").out.decode()
    states = {row["table"]: row["state"] for row in shell.ok("capture", "status", "shop").rows}
    assert states == {"main.plain": "stopped", "main.users": "live"}
    shop.sql("ALTER TABLE users RENAME COLUMN name TO called")
    shell.ok("capture", "run", "shop", "--drain")
    assert "'name' is gone" in shell.ok("capture", "status", "shop").rows[1]["why"]
    shell.ok("capture", "snapshot", "shop", "users")
    assert shop.rows() == {(1,): {"id": 1, "name": None, "note": None, "called": "ann"}}
    asked = shell("capture", "uninstall", "shop")
    assert asked.code == 2 and "Say --yes" in asked.err
    assert "removed headrace_shop_" in shell.ok("capture", "uninstall", "shop", "--yes").err
    assert shop.own() == []
    assert "has made nothing" in shell.ok("capture", "uninstall", "shop", "--yes").err
