"""What is captured is what is there, after any transactions, while the capture is killed again and again, the database
is restarted, and connections are cut."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from headrace import failpoints
from headrace.cdc import applying, life
from headrace.cdc.choice import Choice
from headrace.cdc.open import open_source
from headrace.cdc.postgres import applying as reading
from headrace.cdc.postgres import copying
from headrace.errors import CaptureFailed
from headrace.log.open import open_log
from tests.cdc.conftest import Source
from tests.faults.children import Children, ack

POINTS = [point for point in failpoints.KNOWN if point.startswith("capture.")]
TABLES = (
    "CREATE TABLE users (id int PRIMARY KEY, name text, note text, n numeric(12, 2))",
    "ALTER TABLE users ALTER note SET STORAGE EXTERNAL",
    "CREATE TABLE pairs (a int, b text, v int, PRIMARY KEY (a, b))",
    "ALTER TABLE pairs REPLICA IDENTITY FULL",
    "CREATE TABLE events (id bigserial PRIMARY KEY, body text)",
)


def capturing(home: str, url: str, armed: str, skip: int) -> None:
    """Until it is killed, or ends itself at a point. Chunks, pieces and batches are small, so that there are many."""
    copying.chunks.__defaults__ = (500,)
    applying.PIECE_ROWS = 50  # type: ignore[misc]
    reading.Spool.__init__.__defaults__ = (4_000,)
    life.BATCH_ROWS = 100  # type: ignore[misc]
    if armed:
        failpoints.arm(armed, "kill", skip=skip)
    with open_log(home) as log:
        ack("started")
        while True:
            with contextlib.suppress(CaptureFailed):
                open_source(log, "shop", url, Choice.of(None, None), Path(home)).run(lambda: False)
            time.sleep(0.05)


class Writer:
    """Random transactions. `events`: how many rows that table got, for it is only added to."""

    def __init__(self, source: Source, dice: random.Random) -> None:
        self.source, self.dice, self.events, self.columns = source, dice, 0, 0

    def transaction(self) -> None:
        dice = self.dice
        events = 0
        with psycopg.connect(self.source.url) as db:
            db.execute("SELECT 1")  # begins it: what follows are savepoints
            for _ in range(dice.choice((1, 1, 2, 5))):
                statement, count = self.statement()
                with contextlib.suppress(psycopg.errors.UniqueViolation), db.transaction():
                    db.execute(statement)
                    events += count
            if dice.random() < 0.2:
                db.rollback()
            else:
                db.commit()
                self.events += events

    def statement(self) -> tuple[str, int]:
        dice = self.dice
        one, other, word = dice.randrange(60), dice.randrange(60), dice.choice("abc")
        large = f"(SELECT string_agg(md5((i * {one + 1})::text), '') FROM generate_series(1, 80) i)"
        kind = dice.choices(range(12), weights=(8, 8, 5, 5, 4, 6, 4, 4, 1, 4, 1, 1))[0]
        if kind == 10:
            if self.columns > 3:
                return "SELECT 1", 0
            self.columns += 1
            default = dice.choice(("", " DEFAULT 7", " NOT NULL DEFAULT 'x'"))
            return f"ALTER TABLE users ADD c{self.columns}_{one} {'text' if 'x' in default else 'int'}{default}", 0
        count = dice.choice((1, 2, 300))
        return (
            (f"INSERT INTO users VALUES ({one}, '{word}', {large}, {other}.25) ON CONFLICT DO NOTHING", 0),
            (f"UPDATE users SET name = '{word}' || {other} WHERE id % 7 = {one % 7}", 0),
            (f"UPDATE users SET id = {other} WHERE id = {one}", 0),
            (f"DELETE FROM users WHERE id = {one}", 0),
            (f"UPDATE users SET note = {large if dice.random() < 0.5 else 'null'} WHERE id = {one}", 0),
            (
                f"INSERT INTO pairs VALUES ({one % 9}, '{word}', {other}) ON CONFLICT (a, b) DO UPDATE SET v = {other}",
                0,
            ),
            (f"UPDATE pairs SET a = {other % 9}, v = v + 1 WHERE a = {one % 9} AND b = '{word}'", 0),
            (f"DELETE FROM pairs WHERE a = {one % 9}", 0),
            ("TRUNCATE pairs", 0),
            (f"INSERT INTO events (body) SELECT repeat('e', 40) FROM generate_series(1, {count})", count),
            ("SELECT 1", 0),
            ("UPDATE users SET name = name || '.'", 0),
        )[kind]


def check(source: Source, writer: Writer) -> None:
    source._db = None
    source.sql("UPDATE users SET name = 'last'", "INSERT INTO users VALUES (-1) ON CONFLICT DO NOTHING")
    source.drain()
    for table in "users", "pairs", "events":
        assert source.state(table).state == "live", source.state(table)
        source.same(table)
    assert source.sql("SELECT count(*) FROM events")[0][0] == writer.events
    twice = [key for key, times in Counter(each["id"] for each in source.records("events")).items() if times > 1]
    assert twice == [], "changes were written twice"


def rounds(source: Source, children: Children, dice: random.Random, until: float, most: int) -> None:
    source.sql(*TABLES)
    writer = Writer(source, dice)
    for _ in range(15):
        writer.transaction()
    done = 0
    while done < most and time.monotonic() < until:
        armed = dice.choice((*POINTS, "")) if dice.random() < 0.7 else ""
        child = children.start(capturing, str(source.home), source.url, armed, dice.randrange(6))
        child.next()
        for _ in range(dice.randrange(12)):
            writer.transaction()
            if dice.random() < 0.05:
                with contextlib.suppress(psycopg.OperationalError):
                    source.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        if dice.random() < 0.08:
            source.server.kill()
            source._db = None
        time.sleep(dice.random() * 0.4)
        child.kill()
        child.close()
        done += 1
    check(source, writer)


@pytest.mark.timeout(180)
def test_killed_again_and_again(source: Source, children: Children, seed: int) -> None:
    rounds(source, children, random.Random(seed), time.monotonic() + 30, 6)


@pytest.mark.soak
def test_killed_for_long(source: Source, children: Children, seed: int, soak_seconds: float) -> None:
    rounds(source, children, random.Random(seed), time.monotonic() + soak_seconds, 10_000)
