"""What is captured is what is there, after any transactions, while the capture is killed again and again, the database
is killed or restarted, and connections are cut."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pymysql.err import MySQLError

from headrace import failpoints
from headrace.cdc import applying, life
from headrace.cdc.choice import Choice
from headrace.cdc.mysql import copying
from headrace.cdc.open import open_source
from headrace.errors import CaptureFailed
from headrace.log.open import open_log
from tests.faults.children import Children, ack
from tests.mysql.conftest import Source

POINTS = [point for point in failpoints.KNOWN if point.startswith("capture.")]
TABLES = (
    "CREATE TABLE users (id int PRIMARY KEY, name varchar(40), note text, n decimal(12, 2), e enum('a', 'b', 'c'))",
    "CREATE TABLE pairs (a int, b varchar(10) CHARACTER SET latin1, v int unsigned, PRIMARY KEY (a, b))",
    "CREATE TABLE events (id bigint AUTO_INCREMENT PRIMARY KEY, body text)",
    "CREATE TABLE notes (id int PRIMARY KEY, of int, FOREIGN KEY (of) REFERENCES users (id) "
    "ON DELETE CASCADE ON UPDATE CASCADE)",
)
CHOSEN = ("users", "pairs", "events", "notes")
SWAP = (
    "CREATE OR REPLACE TABLE other LIKE pairs",
    "INSERT INTO other SELECT a, b, v + 1 FROM pairs",
    "RENAME TABLE pairs TO old, other TO pairs",
    "DROP TABLE old",
)


def capturing(home: str, url: str, database: str, armed: str, skip: int) -> None:
    """Until it is killed, or ends itself at a point. Chunks, pieces and batches are small, so that there are many."""
    copying.chunks.__defaults__ = (500,)
    copying.PIECE_ROWS = 10  # type: ignore[misc]
    applying.PIECE_ROWS = 50  # type: ignore[misc]
    life.BATCH_ROWS = 100  # type: ignore[misc]
    if armed:
        failpoints.arm(armed, "kill", skip=skip)
    with open_log(home) as log:
        ack("started")
        while True:
            with contextlib.suppress(CaptureFailed):
                open_source(log, "shop", url, Choice.of(CHOSEN, None, database), Path(home)).run(lambda: False)
            time.sleep(0.05)


class Writer:
    """Random transactions. `events`: how many rows that table got, for it is only added to."""

    def __init__(self, source: Source, dice: random.Random) -> None:
        self.source, self.dice, self.events, self.columns = source, dice, 0, 0

    def transaction(self) -> None:
        dice, events = self.dice, 0
        if dice.random() < 0.04:
            self.source.sql(*SWAP)
        if dice.random() < 0.04:
            key, how = dice.randrange(60), dice.choice(("COMMIT", "ROLLBACK"))
            self.source.sql(
                "XA START 'x'", f"UPDATE users SET name = 'xa' WHERE id = {key}", "XA END 'x'", "XA PREPARE 'x'"
            )
            self.source.sql(f"XA {how} 'x'")
        db = self.source.db
        with db.cursor() as cursor:
            cursor.execute("BEGIN")
            for _ in range(dice.choice((1, 1, 2, 5))):
                statement, count = self.statement()
                if statement.startswith(("ALTER", "TRUNCATE")):  # ends the transaction that is open
                    cursor.execute("COMMIT")
                    self.events, events = self.events + events, 0
                with contextlib.suppress(MySQLError):
                    cursor.execute(statement)
                    events += count
                if statement.startswith(("ALTER", "TRUNCATE")):
                    cursor.execute("BEGIN")
            if dice.random() < 0.2:
                cursor.execute("ROLLBACK")
            else:
                cursor.execute("COMMIT")
                self.events += events

    def statement(self) -> tuple[str, int]:
        dice = self.dice
        one, other, word = dice.randrange(60), dice.randrange(60), dice.choice("abc")
        kind = dice.choices(range(13), weights=(8, 8, 5, 5, 4, 6, 4, 4, 1, 4, 1, 1, 5))[0]
        if kind == 10:
            if self.columns > 3:
                return "ALTER TABLE users COMMENT = 'more'", 0
            self.columns += 1
            default = dice.choice(("", " DEFAULT 7", " NOT NULL DEFAULT 'x'"))
            where = dice.choice((" FIRST", "", " AFTER name"))
            kind_ = "varchar(9)" if "x" in default else "int"
            return f"ALTER TABLE users ADD c{self.columns}_{one} {kind_}{default}{where}", 0
        count = dice.choice((1, 2, 300))
        return (
            (f"INSERT IGNORE INTO users (id, name, note, n, e) VALUES ({one}, '{word}', repeat(md5({one}), 80), "
             f"{other}.25, '{word}')", 0),
            (f"UPDATE users SET name = concat('{word}', {other}), e = '{word}' WHERE id % 7 = {one % 7}", 0),
            (f"UPDATE users SET id = {other} WHERE id = {one}", 0),
            (f"DELETE FROM users WHERE id = {one}", 0),
            (f"UPDATE users SET note = {f'repeat(md5({other}), 90)' if dice.random() < 0.5 else 'null'} "
             f"WHERE id = {one}", 0),
            (f"INSERT INTO pairs VALUES ({one % 9}, '{word}', {other}) ON DUPLICATE KEY UPDATE v = {other}", 0),
            (f"UPDATE pairs SET a = {other % 9}, v = v + 1 WHERE a = {one % 9} AND b = '{word}'", 0),
            (f"DELETE FROM pairs WHERE a = {one % 9}", 0),
            ("TRUNCATE pairs", 0),
            (f"INSERT INTO events (body) SELECT repeat('e', 40) FROM seq_1_to_{count}", count),
            ("", 0),
            ("UPDATE users SET name = concat(left(name, 30), '.')", 0),
            (f"REPLACE INTO notes SELECT {other}, id FROM users WHERE id >= {one} LIMIT 1", 0),
        )[kind]  # fmt: skip


def check(source: Source, writer: Writer) -> None:
    source._db = None
    source.sql("UPDATE users SET name = 'last'", "INSERT IGNORE INTO users (id) VALUES (-1)")
    source.drain()
    for table in CHOSEN:
        assert source.state(table).state == "live", source.state(table)
        source.same(table)
    assert source.sql("SELECT count(*) FROM events")[0][0] == writer.events
    twice = [key for key, times in Counter(each["id"] for each in source.records("events")).items() if times > 1]
    assert twice == [], "changes were written twice"


def cut(source: Source) -> None:
    """Ends all connections that are read from, and our own."""
    for number, *_ in source.sql("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"):
        with contextlib.suppress(MySQLError):
            source.sql(f"KILL {number}")


def rounds(source: Source, children: Children, dice: random.Random, until: float, most: int) -> None:
    source.choice = source.chosen(*CHOSEN)
    source.sql(*TABLES)
    writer = Writer(source, dice)
    for _ in range(15):
        writer.transaction()
    done = 0
    while done < most and time.monotonic() < until:
        armed = dice.choice((*POINTS, "")) if dice.random() < 0.7 else ""
        child = children.start(capturing, str(source.home), source.url, source.name, armed, dice.randrange(6))
        child.next()
        for _ in range(dice.randrange(12)):
            writer.transaction()
            if dice.random() < 0.05:
                cut(source)
        if dice.random() < 0.15:
            dice.choice((source.server.kill, source.server.restart))()
            source._db = None
        if dice.random() < 0.2:
            source.sql("FLUSH BINARY LOGS")
        time.sleep(dice.random() * 0.4)
        child.kill()
        child.close()
        done += 1
        if done % 25 == 0:
            check(source, writer)
    check(source, writer)


@pytest.mark.timeout(180)
def test_killed_again_and_again(source: Source, children: Children, seed: int) -> None:
    rounds(source, children, random.Random(seed), time.monotonic() + 30, 6)


@pytest.mark.soak
def test_killed_for_long(source: Source, children: Children, seed: int, soak_seconds: float) -> None:
    rounds(source, children, random.Random(seed), time.monotonic() + soak_seconds, 10_000)
