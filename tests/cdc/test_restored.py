"""A server whose log is not the one that was captured: an older copy, or one that was recovered to an earlier place."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from headrace.cdc.choice import Choice
from headrace.cdc.postgres.capture import PostgresCapture
from headrace.errors import CaptureGap
from headrace.log.open import open_log
from tests.databases import SCRIPTS


def _script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("postgres_script", str(SCRIPTS / "postgres"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    loader.exec_module(found)
    return found


class Restored:
    """A Postgres of one's own, whose files can be put back."""

    def __init__(self, server: Any, home: Path) -> None:
        self._server, self.log = server, open_log(home)
        self._data, self._home = server._folder / "data", home

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as db:
            for each in statements:
                db.execute(each)

    def drain(self, **settings: Any) -> int:
        folder = self._home / "captures" / "shop"
        return PostgresCapture(self.log, "shop", self._server.url, Choice.of(None, None), folder).drain(**settings)

    def ids(self) -> set[int]:
        return {record.value["id"] for record in self.log.topic("shop_users").records() if record.value["id"]}

    def stopped(self, meanwhile: Callable[[Path], None]) -> None:
        self._server.stop()
        meanwhile(self._data)
        self._server.start()


def keep(data: Path) -> None:
    subprocess.run(["cp", "-a", str(data), f"{data}.kept"], check=True)


def put_back(data: Path) -> None:
    shutil.rmtree(data)
    Path(f"{data}.kept").rename(data)


def recover(data: Path) -> None:
    """To the end of the log that there is; then another timeline begins."""
    (data / "recovery.signal").touch()
    with open(data / "postgresql.conf", "a") as file:
        file.write("\nrestore_command = 'false'\nhot_standby = off\n")


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    script = _script()
    if script.programs() is None:
        pytest.skip("no programs of Postgres")
    with script.Server(script.programs(), ["wal_level=logical", "fsync=off"]) as server:
        found = Restored(server, tmp_path / "home")
        found.sql("CREATE TABLE users (id int PRIMARY KEY)", "INSERT INTO users VALUES (1)")
        found.drain()
        yield found
        found.log.close()


def test_an_older_copy_of_the_server_is_a_gap(restored: Restored) -> None:
    restored.stopped(keep)
    restored.sql("INSERT INTO users SELECT generate_series(2, 500)")
    restored.drain()
    restored.stopped(put_back)
    restored.sql("INSERT INTO users VALUES (1000)")
    with pytest.raises(CaptureGap, match=r"does not have all that is here .*it ends at"):
        restored.drain()
    restored.drain(again=())
    assert 1000 in restored.ids()


def test_another_timeline_is_a_gap_if_it_left_ours_before(restored: Restored) -> None:
    restored.stopped(recover)
    restored.sql("INSERT INTO users VALUES (2)")  # nothing of ours is missing there
    restored.drain()
    restored.stopped(keep)
    restored.sql("INSERT INTO users SELECT generate_series(3, 500)")
    restored.drain()
    restored.stopped(put_back)
    restored.stopped(recover)
    restored.sql("INSERT INTO users SELECT generate_series(1000, 9000)")  # its log is longer than ours now
    with pytest.raises(CaptureGap, match=r"does not have all that is here .*timeline 3 leaves 2 at"):
        restored.drain()
    assert restored.ids() == set(range(1, 501))
