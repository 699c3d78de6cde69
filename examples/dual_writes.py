"""Two systems that one program writes to disagree, and nothing ever mends it: here a database and a search index. Two
writers get in each other's way; then one write fails half-way. The same program on change capture writes to the
database alone, and the index follows it. The same check compares both, key by key. Runs without a server or Spark.

Prints:
written twice:
  user 1: the database has 'Bea', the index 'Ann'
  user 3: the database has 'Cem', the index nothing
  and a search for 'ann' finds [1], who is not called so
written once, and captured:
  no difference
  a search for 'ann' finds [], for 'bea' [1], for 'cem' [3]
  the index is what the log says: True
"""

import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import headrace as hr

Rows = dict[int, str]
Write = Callable[[int, str], None]


def database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    db.execute("INSERT INTO users VALUES (1, 'Zoe'), (2, 'Bob')")
    db.commit()
    return db


def store(db: sqlite3.Connection, user: int, name: str) -> None:
    with db:
        db.execute("INSERT OR REPLACE INTO users VALUES (?, ?)", (user, name))


def differences(db: sqlite3.Connection, index: Rows) -> list[str]:
    """The check, key by key."""
    rows: Rows = dict(db.execute("SELECT id, name FROM users ORDER BY id").fetchall())
    said = {key: repr(index[key]) if key in index else "nothing" for key in sorted(rows.keys() | index.keys())}
    return [
        f"user {key}: the database has {rows.get(key, 'nothing')!r}, the index {what}"
        for key, what in said.items()
        if index.get(key) != rows.get(key)
    ]


def the_program(db: sqlite3.Connection, tell_index: Write) -> None:
    """Two writers change one user. The first is held up between its two writes: by a slow network, the scheduler, a
    garbage collection. Of a third only the first write succeeds."""
    stored, told = threading.Event(), threading.Event()

    def first() -> None:
        store(db, 1, "Ann")
        stored.set()
        told.wait()
        tell_index(1, "Ann")

    def second() -> None:
        stored.wait()
        store(db, 1, "Bea")
        tell_index(1, "Bea")
        told.set()

    writers = [threading.Thread(target=each) for each in (first, second)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    store(db, 3, "Cem")
    with contextlib.suppress(ConnectionError):  # Cem is stored, and whoever asked was told so: what should one do here?
        tell_index(3, "Cem")


def written_twice(home: Path) -> None:
    print("written twice:")
    db = database(home / "twice.db")
    index: Rows = {1: "Zoe", 2: "Bob"}

    def tell_index(user: int, name: str) -> None:
        if user == 3:
            raise ConnectionError("the index does not answer")
        index[user] = name

    the_program(db, tell_index)
    found = differences(db, index)
    assert len(found) == 2
    print(*(f"  {line}" for line in found), sep="\n")
    print(
        f"  and a search for 'ann' finds {[key for key, name in index.items() if name == 'Ann']}, who is not called so"
    )


def written_once(home: Path) -> None:
    print("written once, and captured:")
    db = database(home / "once.db")
    with hr.App("site", home=home / "site") as app:
        app.capture("shop", f"sqlite:///{home / 'once.db'}")
        people = app.stream("shop_users").to_sink("people", hr.search_index("people.db", text="name"))
        app.drain()
        the_program(db, lambda *_: None)  # nobody tells the index: it follows the database
        app.drain()
        names = {hit.row["id"]: hit.row["name"] for hit in people.search("zoe OR bob OR ann OR bea OR cem").hits}
        found = differences(db, names)
        print(*(f"  {line}" for line in found or ["no difference"]), sep="\n")
        keys = {word: [hit.row["id"] for hit in people.search(word).hits] for word in ("ann", "bea", "cem")}
        print(f"  a search for 'ann' finds {keys['ann']}, for 'bea' {keys['bea']}, for 'cem' {keys['cem']}")
        print(f"  the index is what the log says: {people.audit().ok}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written_twice(Path(folder))
        written_once(Path(folder))
