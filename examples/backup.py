"""Copies a home while it is in use: views first, with the files of rows that wait to go out, then the log's index,
then the bytes of the data files that this index knows. In that order, because what is copied later may be newer: a log
may be ahead of its views, never behind. Bytes behind what the index knows are left out, because they would tell of
commits that the copy does not have.

    python backup.py .headrace backup-of-monday
    headrace verify --home backup-of-monday

To restore, stop what uses the home, move it away, and put the copy in its place."""

import contextlib
import shutil
import sqlite3
import sys
from pathlib import Path


def copied(source: Path, target: Path) -> sqlite3.Connection:
    """A database as it is at one moment, through SQLite: nothing else may open its files while they are in use."""
    with contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as db:
        copy = sqlite3.connect(target)
        db.backup(copy)
    return copy


def backup(home: Path, target: Path) -> None:
    target.mkdir(mode=0o700)  # refuses one that is there
    (target / "data").mkdir(mode=0o700)
    if (home / "views.db").exists():
        (target / "outbox").mkdir(mode=0o700)
        with contextlib.closing(copied(home / "views.db", target / "views.db")) as views:
            waiting = "SELECT CAST(rows AS TEXT) FROM _outbox WHERE substr(rows, 1, 5) = CAST('file ' AS BLOB)"
            for (name,) in views.execute(waiting).fetchall():
                shutil.copyfile(home / "outbox" / name[5:], target / "outbox" / name[5:])
    with contextlib.closing(copied(home / "log.db", target / "log.db")) as index:
        for name, committed in index.execute("SELECT name, committed FROM files").fetchall():
            with open(home / "data" / name, "rb") as source, open(target / "data" / name, "wb") as copy:
                shutil.copyfileobj(source, copy)
                copy.truncate(committed)
    for file in target.rglob("*"):
        if file.is_file():
            file.chmod(0o600)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: backup.py HOME TARGET")
    try:
        backup(Path(sys.argv[1]), Path(sys.argv[2]))
    except FileNotFoundError as error:  # upkeep removed a file meanwhile, or its rows have arrived
        raise SystemExit(f"{error}: remove {sys.argv[2]} and try again") from None
