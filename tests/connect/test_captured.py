"""A database, its capture, and an index over a captured table, as one program: the index agrees with the database,
whatever is killed. No Spark."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

import headrace as hr
from headrace import failpoints
from tests.faults.children import Children, ack

POINTS = [name for name in failpoints.KNOWN if name.startswith(("capture.written", "capture.before", "index."))]
WORDS = ("ann", "bea", "cem", "dora")


def program(home: str, database: str) -> tuple[hr.App, hr.Sink]:
    app = hr.App("site", home=home)
    app.capture("shop", f"sqlite:///{database}")
    return app, app.stream("shop_users").to_sink("people", hr.search_index("people.db", text="name"))


def run_until_killed(home: str, database: str, point: str, skip: int) -> None:
    failpoints.arm(point, "kill", skip=skip)
    app, people = program(home, database)
    app.start()
    ack("started")
    while True:
        time.sleep(0.01)
        with contextlib.suppress(hr.HeadraceError):
            people.rebuild()


class Writers:
    """Two writers of the application, until the block ends. Transactions, some of which are rolled back."""

    def __init__(self, database: str, seed: int) -> None:
        self._database, self._stop = database, threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(random.Random(seed + n),)) for n in range(2)]

    def _write(self, dice: random.Random) -> None:
        with contextlib.closing(sqlite3.connect(self._database, timeout=30, isolation_level=None)) as db:
            while not self._stop.wait(0.002):
                db.execute("BEGIN IMMEDIATE")
                for _ in range(dice.choice((1, 1, 5))):
                    one, other = dice.randrange(30), dice.randrange(30)
                    word = " ".join(dice.choices(WORDS, k=dice.randrange(3)))
                    db.execute(
                        *dice.choice(
                            (
                                ("INSERT OR REPLACE INTO users VALUES (?, ?)", (one, word)),
                                ("UPDATE users SET name = ? WHERE id = ?", (word, one)),
                                ("DELETE FROM users WHERE id = ?", (one,)),
                                ("UPDATE OR IGNORE users SET id = ? WHERE id = ?", (other, one)),
                            )
                        )
                    )
                db.execute("ROLLBACK" if dice.random() < 0.2 else "COMMIT")

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_an_index_of_a_captured_table_agrees_however_it_is_killed(
    tmp_path: Path, children: Children, seed: int
) -> None:
    home, database = str(tmp_path / "home"), str(tmp_path / "shop.db")
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.executescript("PRAGMA journal_mode = wal; CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    dice = random.Random(seed)
    for point in dice.sample(POINTS, len(POINTS)):
        with Writers(database, dice.randrange(10**6)):
            child = children.start(run_until_killed, home, database, point, dice.randrange(4))
            assert child.wait() == -signal.SIGKILL
    app, people = program(home, database)
    with app, contextlib.closing(sqlite3.connect(database)) as db:
        app.drain()
        rows = dict(db.execute("SELECT id, name FROM users").fetchall())
        audited = people.audit()
        assert audited.ok and audited.keys == len(rows)
        for word in WORDS:
            found = {hit.row["id"]: hit.row["name"] for hit in people.search(word, limit=100).hits}
            assert found == {id: name for id, name in rows.items() if word in name.split()}
