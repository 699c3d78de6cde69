"""Captures in programs and on the command line, without Spark."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.cdc.journal import Journal
from headrace.errors import AlreadyRunning, CaptureFailed, InvalidArgument, UnknownCapture
from tests.cdc.conftest import Source
from tests.cli.conftest import Shell

USERS = "CREATE TABLE users (id int PRIMARY KEY, name text)"


@pytest.fixture
def home(source: Source, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(source.home))
    return source.home


def until(reached: object) -> None:
    limit = time.monotonic() + 30
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_program_captures_while_it_runs(source: Source, home: Path) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')")
    with hr.App("site") as app:
        db = app.capture("shop", source.url)
        app.start()
        until(lambda: "shop_users" in {topic.name for topic in source.log.topics()} and len(source.records()) == 2)
        source.sql("INSERT INTO users VALUES (2, 'bob')")
        until(lambda: len(source.records()) == 3)
        with pytest.raises(InvalidArgument, match="is running"):
            app.drain()
        with hr.App("other", home=home) as other:
            other.capture("shop", source.url)
            with pytest.raises(AlreadyRunning):
                other.start()
        assert not app.wait("10 milliseconds")
        status = db.status()
        assert (status.state, [table.state for table in status.tables]) == ("running", ["live"])
        app.stop()
        assert db.status().state == "stopped"
    source.idle()
    source.sql("INSERT INTO users VALUES (3, 'cem')")
    with hr.App("site") as app:
        app.capture("shop", source.url)
        app.drain()
    source.same()


def test_a_table_is_described_before_and_after_it_is_captured(source: Source, home: Path) -> None:
    source.sql(USERS, "CREATE TABLE audit (id int PRIMARY KEY)")
    for _ in range(2):
        with hr.App("site", home=home) as app:
            db = app.capture("shop", source.url, tables=["users"])
            users = db.table("users", history="versions")
            assert (users.name, users.key, users.columns.names) == ("shop_users", ("id",), ["id", "name"])
            with pytest.raises(InvalidArgument, match="is not captured"):
                db.table("audit")
            with pytest.raises(InvalidArgument, match="choose another"):
                app.capture("shop", source.url)
        source.choice = db.choice
        source.drain()


def test_a_program_that_only_captures_makes_its_home(source: Source, tmp_path: Path) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')")
    for home in ("drained", "started"):
        with hr.App("site", home=tmp_path / home) as app:
            db = app.capture("shop", source.url)
            app.drain() if home == "drained" else app.start()
            until(lambda app=app: "shop_users" in {topic.name for topic in app.log.topics()})
            until(lambda db=db: [table.state for table in db.status().tables] == ["live"])


def test_a_connection_that_is_lost_is_tried_again(source: Source, home: Path) -> None:
    source.sql(USERS)
    with hr.App("site", home=home) as app:
        db = app.capture("shop", source.url)
        app.start()
        until(lambda: source.sql("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"))
        source.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication", "INSERT INTO users VALUES (1, 'ann')")
        until(lambda: [*source.rows()] == [(1,)])
        until(lambda: db.status().state == "running")
        assert db.status().restarts >= 1


def test_what_cannot_be_tried_again_ends_the_program(source: Source, home: Path) -> None:
    with hr.App("site", home=home) as app:
        app.capture("shop", source.url.replace(source.name, "nowhere"))
        app.start()
        with pytest.raises(CaptureFailed, match="nowhere"):
            app.wait("30 seconds")


@pytest.mark.usefixtures("home")
def test_commands(source: Source, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "sesame")
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')", "CREATE TABLE plain (a int)")
    url = f"{source.url}?password=env:SHOP_PASSWORD"
    assert "would be stored" in shell.refused("capture", "add", "shop", source.url.replace("@", ":sesame@"))
    shell.ok("capture", "add", "shop", url, "--table", "public.*", "--mask", "users.name=hash")
    found = {row["check"]: row for row in shell("capture", "doctor", "shop").rows}
    assert (found["wal_level"]["ok"], found["table public.plain"]["ok"]) == (True, False)
    assert shell("capture", "doctor", "shop").code == 3
    assert "0 changes captured" in shell.ok("capture", "run", "shop", "--drain").err
    status = shell.ok("capture", "status", "shop")
    assert [(row["table"], row["state"]) for row in status.rows] == [
        ("public.plain", "stopped"),
        ("public.users", "live"),
    ]
    assert len(source.rows()[(1,)]["name"]) == 64
    source.sql("ALTER TABLE users DROP name", "INSERT INTO users VALUES (2)")
    shell.ok("capture", "run", "shop", "--drain")
    (row,) = (row for row in shell("capture", "status").rows if row["table"] == "public.users")
    assert (row["state"], row["why"]) == ("stopped", "the table has changed: column 'name' is gone")
    shell.ok("capture", "snapshot", "shop", "users")
    source.same()
    assert "no capture 'shp'. Did you mean 'shop'?" in shell.refused("capture", "run", "shp")
    assert "sesame" not in json.dumps([str(record.value) for record in source.log.topic("shop.capture").records()])


def test_a_capture_that_runs_is_asked_to_read_a_table_again(source: Source, shell: Shell, home: Path) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')")
    with hr.App("site", home=home) as app:
        app.capture("shop", source.url)
        app.start()
        until(lambda: source.tables() and source.state().state == "live")
        assert "asked" in shell.ok("capture", "snapshot", "shop", "users", "--url", source.url).err
        until(lambda: source.state().epoch >= 1 and source.state().state == "live")
    shell.ok("capture", "run", "shop", "--drain", "--url", source.url)
    assert source.state().epoch == 1, "it was asked once"
    source.same()


def test_a_capture_that_has_not_begun_cannot_be_asked(source: Source) -> None:
    """It would not see the message, which is behind its slot."""
    Journal(source.log, "shop").write([], {("capture", ""): {"database": "shop"}})  # and no slot yet
    with pytest.raises(CaptureFailed, match="ask again in a moment"):
        source.capture().ask_again(["users"])


def test_there_is_none(source: Source, shell: Shell, home: Path) -> None:
    assert "No captures yet" in shell.ok("capture", "status").err
    with hr.App("site", home=home) as app, pytest.raises(UnknownCapture):
        app.capture("shop", source.url).status()


def test_writes_go_on_while_a_snapshot_is_read(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the snapshot is not in the stream, and the other way round: an append-only table has each row once."""
    monkeypatch.setattr("headrace.cdc.postgres.copying.chunks.__defaults__", (5_000,))
    source.sql(USERS, "INSERT INTO users SELECT n, 'x' FROM generate_series(1, 3000) n")
    written = [3000]
    stopping = threading.Event()

    def write() -> None:
        import psycopg

        with psycopg.connect(source.url, autocommit=True) as db:
            while not stopping.is_set():
                written[0] += 10
                low = written[0] - 9
                db.execute(
                    "INSERT INTO users SELECT n, 'y' FROM generate_series(%s::int, %s::int) n", (low, written[0])
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        source.drain()
        source.drain()
    finally:
        stopping.set()
        writer.join(30)
    source.drain()
    assert source.ops().count("upsert") == written[0]
    source.same()
