"""What is captured of a SQLite is what is there, after any transactions of several writers, while the capture is killed
again and again."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import failpoints
from headrace.cdc.journal import Journal
from headrace.cdc.open import choice_for, open_source
from headrace.cdc.sqlite import capture, taking
from headrace.errors import CaptureFailed
from headrace.log.open import open_log
from tests.cdc.sqlite_source import SqliteSource
from tests.faults.children import ChildEnded, Children, ack, hear

POINTS = [point for point in failpoints.KNOWN if point.startswith("capture.")]
TABLES = (
    "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, mail TEXT COLLATE NOCASE UNIQUE, n REAL)",
    "CREATE TABLE pairs (a INT, b TEXT COLLATE NOCASE, v, PRIMARY KEY (a, b)) WITHOUT ROWID",
    "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)",
    "CREATE TABLE pets (name TEXT PRIMARY KEY, of INT REFERENCES users ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TRIGGER seen AFTER UPDATE OF name ON users BEGIN UPDATE users SET n = n + 1 WHERE id = NEW.id; END",
)


def capturing(home: str, url: str, armed: str, skip: int) -> None:
    """Until it is killed, or ends itself at a point; tells when it has written something. Chunks and reads are small,
    so that there are many."""
    taking.CHUNK_ROWS, taking.FETCH_ROWS, taking.READ_ROWS = 40, 10, 60  # type: ignore[misc]
    capture.CONFIRM_SECONDS, capture.REMOVED_ROWS = 0.02, 30  # type: ignore[misc]
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
                open_source(log, "shop", url, choice_for(url, None, None), Path(home)).run(lambda: False)
            time.sleep(0.01)


def writing(path: str, seed: int, setting: str) -> None:
    """Transactions until it is told to stop; then how many events there are."""
    writer = Writer(path, random.Random(seed), setting)
    ack("started")
    while hear() != "stop":
        for _ in range(10):
            writer.transaction()
        writer.event()
        ack("written")
    ack(writer.events)


class Writer:
    """Random transactions. `events`: how many rows that table got, for it is only added to."""

    def __init__(self, path: str | Path, dice: random.Random, setting: str) -> None:
        self.dice, self.events = dice, 0
        self.db = sqlite3.connect(path, isolation_level=None, timeout=60)
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute(f"PRAGMA recursive_triggers = {setting}")
        self.db.execute(f"PRAGMA foreign_keys = {setting}")

    def transaction(self) -> None:
        events = 0
        self.db.execute("BEGIN IMMEDIATE")
        for _ in range(self.dice.choice((1, 1, 2, 6))):
            statement, count = self.statement()
            with contextlib.suppress(sqlite3.IntegrityError):
                self.db.execute(statement)
                events += count
        if self.dice.random() < 0.2:
            self.db.execute("ROLLBACK")
        else:
            self.db.execute("COMMIT")
            self.events += events

    def event(self) -> None:
        """Something that is not rolled back."""
        self.db.execute("INSERT INTO events (body) VALUES ('last')")
        self.events += 1

    def statement(self) -> tuple[str, int]:
        dice = self.dice
        one, other, word, how = (
            dice.randrange(60),
            dice.randrange(60),
            dice.choice("abAB"),
            dice.choice(("", " OR REPLACE", " OR IGNORE")),
        )
        count = dice.choice((1, 2, 90))
        found: tuple[tuple[str, int], ...] = (
            (f"INSERT{how} INTO users (id, name, mail, n) VALUES ({one}, '{word}', '{word}{other % 20}', {other})", 0),
            (f"UPDATE{how} users SET mail = '{word}{other % 20}' WHERE id = {one}", 0),
            (f"UPDATE users SET name = '{word}' || {other} WHERE id % 7 = {one % 7}", 0),
            (f"UPDATE{how} users SET id = {other} WHERE id = {one}", 0),
            (f"DELETE FROM users WHERE id % 30 = {one % 30}", 0),
            (f"INSERT{how} INTO pairs VALUES ({one % 9}, '{word}', {other})", 0),
            (f"UPDATE{how} pairs SET a = {other % 9}, b = '{word}', v = v + 1 WHERE a = {one % 9}", 0),
            (f"DELETE FROM pairs WHERE a = {one % 9}", 0),
            ("DELETE FROM pairs" if one < 6 else "SELECT 1", 0),
            (f"WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
             "INSERT INTO events (body) SELECT 'e' || i FROM n", count),
            (f"INSERT{how} INTO pets VALUES ('{word}{other}', {one})", 0),
        )  # fmt: skip
        return dice.choice(found)


def check(shop: SqliteSource, events: int) -> None:
    shop.sql("UPDATE users SET name = 'last'")
    shop.drain()
    for table in "users", "pairs", "events", "pets":
        assert shop.state(table).state == "live", shop.state(table)
        shop.same(table)
    assert shop.sql("SELECT count(*) FROM events")[0][0] == events
    twice = [key for key, times in Counter(each["id"] for each in shop.records("events")).items() if times > 1]
    assert twice == [None] or twice == [], "changes were written twice"
    assert len(shop.outbox()) == 1


def rounds(shop: SqliteSource, dice: random.Random, until: float) -> None:
    shop.sql(*TABLES)
    first = Writer(shop.path, dice, "OFF")
    for _ in range(30):
        first.transaction()
    check(shop, events := first.events + some_rounds(shop, dice))
    while time.monotonic() < until:
        check(shop, events := events + some_rounds(shop, dice))


def some_rounds(shop: SqliteSource, dice: random.Random) -> int:
    """How many events were written."""
    with contextlib.closing(Children()) as children:
        writers = [children.start(writing, str(shop.path), dice.randrange(1 << 30), on) for on in ("ON", "OFF")]
        for writer in writers:
            writer.next()
        for done in range(5):
            armed = dice.choice((*POINTS, "")) if dice.random() < 0.7 else ""
            child = children.start(capturing, str(shop.home), shop.url, armed, dice.randrange(8))
            child.next()
            for _ in range(dice.randrange(3, 15)):
                for writer in writers:
                    writer.tell("go")
                for writer in writers:
                    writer.next()
                with contextlib.suppress(ChildEnded):
                    child.next()  # it has written, or it has ended itself
            if done == 1 and dice.random() < 0.5 and (columns := len(shop.sql("PRAGMA table_info(users)"))) < 9:
                shop.sql(f"ALTER TABLE users ADD COLUMN c{columns} {dice.choice(('INT', 'TEXT DEFAULT 7'))}")
            child.kill()
        for writer in writers:
            writer.tell("stop")
        return sum(writer.next() for writer in writers)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_killed_again_and_again(tmp_path: Path, seed: int, mode: str) -> None:
    shop = SqliteSource(tmp_path, mode=mode)
    rounds(shop, random.Random(seed), 0)
    shop.close()


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_killed_for_long(tmp_path: Path, seed: int, soak_seconds: float, mode: str) -> None:
    shop = SqliteSource(tmp_path, mode=mode)
    rounds(shop, random.Random(seed), time.monotonic() + soak_seconds)
    shop.close()
