"""Captures of MariaDB in programs and on the command line, without Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CaptureFailed, InvalidArgument
from tests.cli.conftest import Shell
from tests.mysql.conftest import Source

USERS = "CREATE TABLE users (id int PRIMARY KEY, name varchar(50))"


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
    source.sql(USERS, "CREATE TABLE audit (id int PRIMARY KEY)", "INSERT INTO users VALUES (1, 'ann')")
    with hr.App("site", home=home) as app:
        db = app.capture("shop", source.url, tables=["users"])
        users = db.table("users", history="versions")
        assert (users.name, users.key, users.columns.names) == ("shop_users", ("id",), ["id", "name"])
        with pytest.raises(InvalidArgument, match="is not captured"):
            db.table("audit")
    with hr.App("site", home=home) as app:
        db = app.capture("shop", source.url, tables=["users"])
        app.start()
        until(lambda: "shop_users" in {topic.name for topic in source.log.topics()} and len(source.records()) == 2)
        source.sql("INSERT INTO users VALUES (2, 'bob')")
        until(lambda: len(source.records()) == 3)
        for number, *_ in source.sql("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"):
            source.sql(f"KILL {number}")
        source.sql("INSERT INTO users VALUES (3, 'cem')")
        until(lambda: len(source.records()) == 4)
        until(lambda: db.status().state == "running")
        assert db.status().restarts >= 1
        app.stop()
    source.same()


def test_what_cannot_be_tried_again_ends_the_program(source: Source, home: Path) -> None:
    with hr.App("site", home=home) as app:
        app.capture("shop", source.url.replace(source.name, "nowhere"))
        app.start()
        with pytest.raises(CaptureFailed, match="nowhere"):
            app.wait("30 seconds")


@pytest.mark.usefixtures("home")
def test_commands(source: Source, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "")
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')", "CREATE TABLE plain (a int)")
    url = f"{source.url}?password=env:SHOP_PASSWORD"
    refused = shell.refused("capture", "add", "shop", source.url.replace("@", ":sesame@"))
    assert "would be stored" in refused and "sesame" not in refused
    shell.ok("capture", "add", "shop", url, "--mask", "users.name=hash")
    found = {row["check"]: row for row in shell("capture", "doctor", "shop").rows}
    good = ("version", "log_bin", "server_id", "binlog_format", "binlog_row_image", "binlog_row_metadata",
            "replication slave", "replication client", f"table {source.name}.users")  # fmt: skip
    assert [name for name in good if found[name]["ok"] is not True] == []
    assert found[f"table {source.name}.plain"]["ok"] is False
    assert shell("capture", "doctor", "shop").code == 3
    assert "0 changes captured" in shell.ok("capture", "run", "shop", "--drain").err
    status = shell.ok("capture", "status", "shop")
    assert [(row["table"], row["state"]) for row in status.rows] == [
        (f"{source.name}.plain", "stopped"),
        (f"{source.name}.users", "live"),
    ]
    assert len(source.rows()[(1,)]["name"]) == 64
    source.sql("ALTER TABLE users DROP name", "INSERT INTO users VALUES (2)")
    shell.ok("capture", "run", "shop", "--drain")
    assert "binlog." in shell("capture", "status").err
    (row,) = (row for row in shell("capture", "status").rows if row["table"] == f"{source.name}.users")
    assert (row["state"], row["why"]) == ("stopped", "the table has changed: column 'name' is gone")
    shell.ok("capture", "snapshot", "shop", "users")
    source.same()
    assert "sesame" not in json.dumps([str(record.value) for record in source.log.topic("shop.capture").records()])


def test_doctor_says_what_is_missing(source: Source, shell: Shell, home: Path) -> None:
    name = f"u{source.name[2:12]}"
    source.sql(USERS, f"CREATE USER '{name}'@'127.0.0.1'", f"GRANT SELECT ON {source.name}.* TO '{name}'@'127.0.0.1'")
    source.sql("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        url = source.url.replace("headrace@", f"{name}@")
        found = {row["check"]: row for row in shell("capture", "doctor", "shop", "--url", url).rows}
        missing = {check for check, row in found.items() if row["ok"] is False}
        assert missing == {"binlog_row_metadata", "replication slave", "replication client"}
        with hr.App("site", home=home) as app:
            app.capture("shop", url)
            with pytest.raises(CaptureFailed, match=r"Access denied.*1227"):
                app.drain()
    finally:
        source.sql("SET GLOBAL binlog_row_metadata = FULL", f"DROP USER '{name}'@'127.0.0.1'")


def test_a_capture_that_runs_is_asked_to_read_a_table_again(
    source: Source, shell: Shell, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')")
    with hr.App("site", home=home) as app:
        app.capture("shop", source.url)
        app.start()
        until(lambda: source.tables() and source.state().state == "live")
        shell.ok("capture", "snapshot", "shop", "nothing", "--url", source.url)  # a wrong name ends no capture
        until(lambda: "is not captured" in caplog.text)
        assert "asked" in shell.ok("capture", "snapshot", "shop", "users", "--url", source.url).err
        until(lambda: source.state().epoch == 1 and source.state().state == "live")
    source.same()
