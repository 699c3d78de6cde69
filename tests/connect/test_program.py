"""Sinks in programs and on the command line, without Spark."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    AlreadyRunning,
    DiskFull,
    HeadraceError,
    InvalidArgument,
    KafkaFailed,
    SinkFailed,
    TopicFull,
)
from tests.cli.conftest import Shell

USERS = "_op string, id int, name string"


def until(reached: Any) -> None:
    limit = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < limit
        time.sleep(0.01)


def put(log: Any, *rows: tuple[int, str]) -> None:
    log.topic("users").append([{"_op": "upsert", "id": id, "name": name} for id, name in rows])


@pytest.fixture
def log(shell: Shell) -> Any:
    with hr.open_log(shell.home) as log:
        log.create_topic("users", USERS, key="id")
        yield log


def program(app: hr.App) -> hr.Sink:
    return app.stream("users").to_sink("people", hr.search_index("people.db", text="name"))


def test_a_program_keeps_an_index_up_while_it_runs(log: Any) -> None:
    with hr.App("site") as app:
        people = program(app)
        app.start()
        put(log, (1, "Ann"), (2, "Bob"))
        until(lambda: people.state == "running" and (people.app.home / "indexes").exists() and found(people, "ann"))
        put(log, (1, "Zoë"))
        until(lambda: found(people, "zoe") == [1])
        assert found(people, "ann") == []
        with pytest.raises(InvalidArgument, match="is running"):
            app.drain()
        with hr.App("other") as other:
            program(other)
            with pytest.raises(AlreadyRunning):
                other.start()
        assert people.rebuild() == 2  # beside the one that is kept up
        assert not app.wait("10 milliseconds")
        app.stop()
        assert people.state == "stopped"
    put(log, (3, "Cem"))
    with hr.App("site") as app:
        people = program(app)
        assert people.lag == 1
        app.drain()
        assert (people.lag, people.audit().ok, people.status().rows) == (0, True, 3)


def found(sink: hr.Sink, query: str) -> list[Any]:
    with contextlib.suppress(hr.StorageError):
        return [hit.key[0] for hit in sink.search(query).hits]
    return []


def test_a_topic_may_come_later(shell: Shell) -> None:
    with hr.App("site") as app:
        people = program(app)
        assert app.drain() == 0
        app.start()
        with hr.open_log(shell.home) as log:
            log.create_topic("users", USERS, key="id")
            put(log, (1, "Ann"))
        until(lambda: found(people, "ann") == [1])


def test_a_function_that_fails_is_called_again(log: Any) -> None:
    batches: list[tuple[str, int]] = []

    def deliver(rows: pa.Table, key: str) -> None:
        batches.append((key, rows.num_rows))
        if len(batches) < 3:
            raise OSError("down")

    put(log, (1, "Ann"))
    with hr.App("site") as app:
        out = app.stream("users").to_sink("out", deliver)
        with pytest.raises(SinkFailed, match="OSError: down"):
            app.drain()
        app.start()
        until(lambda: len(batches) == 3)
        until(lambda: out.error == "")
        app.stop()
        with pytest.raises(InvalidArgument, match="Only an index can be asked"):
            out.search("ann")
    assert batches == [("out-0000000000000001", 1)] * 3


@pytest.mark.parametrize(
    "passing",
    [
        KafkaFailed("b:9092", "a read", "_TRANSPORT", "down", True),
        TopicFull("users.dead", 2, 1),
        DiskFull(Path("x"), "no space"),
    ],
)
def test_what_is_wrong_with_the_log_for_a_while_ends_no_sink(log: Any, passing: HeadraceError) -> None:
    failed: list[HeadraceError] = []

    def deliver(rows: pa.Table, key: str) -> None:  # noqa: ARG001
        if not failed:
            failed.append(passing)
            raise passing

    put(log, (1, "Ann"))
    with hr.App("site") as app:
        out = app.stream("users").to_sink("out", deliver)
        app.start()
        until(lambda: out.lag == 0)
        assert out.state == "running"
        app.stop()
    assert failed


@pytest.mark.usefixtures("log")
def test_what_ends_a_sink_ends_the_program() -> None:
    with hr.App("site") as app:
        app.stream("users").to_sink("people", hr.search_index("people.db", text="nam"))
        app.start()
        with pytest.raises(InvalidArgument, match="has no such column"):
            app.wait("30 seconds")


@pytest.mark.usefixtures("log")
def test_names_and_settings() -> None:
    with hr.App("site") as app:
        program(app)
        with pytest.raises(InvalidArgument, match="choose another"):
            program(app)
        with pytest.raises(InvalidArgument, match="topic 'users' is there"):
            app.stream("users").to_sink("other", print, partitions=2)


@pytest.mark.usefixtures("log")
def test_a_table_is_read_from_its_own_topic() -> None:
    """No Spark is started: nothing but the sink reads it."""
    with hr.App("site") as app:
        pets = app.table("pets", "id int, name string", key="id")
        sink = app.stream(pets).to_sink("pets_index", hr.search_index("pets.db", text="name"))
        pets.upsert([{"id": 1, "name": "Rex"}, {"id": 2, "name": "Tom"}])
        pets.delete(2)
        assert sink.drain() == 3
        assert (found(sink, "rex"), found(sink, "tom")) == ([1], [])


def test_the_log_knows_how_far_a_sink_is(log: Any) -> None:
    put(log, (1, "Ann"))
    with hr.App("site") as app:
        program(app)
        app.drain()
    put(log, (2, "Bob"))
    (group,) = log.topic("users").groups()
    assert (group.flow, {p: lag.records for p, lag in group.lag().items()}) == ("sink.people", {0: 1})


def test_commands(log: Any, shell: Shell) -> None:
    assert "No indexes yet" in shell.ok("index", "list").err
    assert "No sinks yet" in shell.ok("sinks", "list").err
    assert "there is no topic 'user'" in shell.refused("index", "add", "people", "user", "--text", "name")
    shell.ok("index", "add", "people", "users", "--text", "name")
    assert "headrace index run people" in shell.refused("index", "search", "people", "ann")
    (row,) = shell("index", "list").rows
    assert (row["state"], row["problem"] is not None) == ("waiting", True)
    put(log, (1, "Ann \x1b[31mRed"), (2, "Bob"))
    assert "2 records taken" in shell.ok("index", "run", "people", "--drain").err
    (row,) = shell.ok("index", "list").rows
    assert (row["topic"], row["rows"], row["lag_records"]) == ("users", 2, 0)
    (row,) = shell.ok("index", "search", "people", "an*").rows
    assert (row["key"], row["id"]) == ([1], 1)
    done = shell.ok("index", "search", "people", "--", "-ann")
    assert done.rows == [] and "add one that has to be there" in done.err
    assert "1 key" not in shell.ok("index", "audit", "people").err
    with contextlib.closing(sqlite3.connect(shell.home / "indexes" / "people.db", isolation_level=None)) as db:
        db.execute("UPDATE text_1 SET c0 = 'Eve' WHERE rowid = 2")
    audited = shell("index", "audit", "people")
    assert audited.code == 3 and "2 keys compared, 1 difference" in audited.err
    (row,) = audited.rows
    assert (row["key"], row["what"], row["index"]["name"], row["log"]["name"]) == ([2], "different", "Eve", "Bob")
    assert "built again, 2 rows" in shell.ok("index", "rebuild", "people").err
    shell.ok("index", "audit", "people")
    assert "no index 'peple'. Did you mean 'people'?" in shell.refused("index", "audit", "peple")
    assert "headrace index rebuild people" in shell.refused("sinks", "rewind", "people")
    with hr.App("site") as app:
        app.stream("users").to_sink("out", lambda *_: None)
        app.drain()
    put(log, (3, "Cem"))
    assert [(row["sink"], row["kind"], row["lag_records"]) for row in shell.ok("sinks", "list").rows] == [
        ("out", "function", 1),
        ("people", "index", 1),
    ]
    shell.ok("sinks", "rewind", "out", "--yes")
    batches = []
    with hr.App("site") as app:
        app.stream("users").to_sink("out", lambda rows, key: batches.append((key, rows.num_rows)))
        app.drain()
    assert batches == [("out-0000000000000002", 3)]
    assert "no sink 'outt'. Did you mean 'out'?" in shell.refused("sinks", "drop", "outt", "--yes")
    for name in ("out", "people"):
        shell.ok("sinks", "drop", name, "--yes")
    assert [*(shell.home / "indexes").iterdir()] == [] and log.topic("users").groups() == []
    assert "No sinks yet" in shell.ok("sinks", "list").err


def test_what_is_recorded_of_an_index(log: Any, shell: Shell) -> None:
    shell.ok("index", "add", "people", "users", "--text", "name")
    assert json.loads(next(log.topic("people.sink").records()).value["value"])["path"] == "people.db"


def test_a_path_outside_of_the_home(log: Any, shell: Shell, tmp_path: Path) -> None:
    put(log, (1, "Ann"))
    shell.ok("index", "add", "people", "users", "--text", "name", "--path", str(tmp_path / "far" / "people.db"))
    shell.ok("index", "run", "people", "--drain")
    assert (tmp_path / "far" / "people.db").exists()
    assert len(shell.ok("index", "search", "people", "ann").rows) == 1


PROGRAM = """
import headrace as hr
app = hr.App("site")
app.capture("shop", "sqlite:///{database}")
app.stream("shop_users").to_sink("people", hr.search_index("people.db", text="name"))
"""


def test_a_program_without_flows_runs_without_spark(shell: Shell, tmp_path: Path) -> None:
    database, program = tmp_path / "shop.db", tmp_path / "site_app.py"
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.executescript("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO users VALUES (1, 'Ann')")
    program.write_text(PROGRAM.format(database=database))
    assert "site: 1 capture, 1 sink, ok" in shell.ok("check", str(program)).err
    done = shell.ok("run", str(program), "--drain")
    assert "Spark" not in done.err and "2 records processed" in done.err
    assert [row["id"] for row in shell.ok("index", "search", "people", "ann").rows] == [1]
    misspelt = "import headrace as hr\napp = hr.App('site')\napp.stream('shop_usrs').to_sink('out', lambda *_: None)\n"
    program.write_text(misspelt)
    said = shell.ok("run", str(program), "--drain").err
    assert "sink 'out' waits: there is no topic 'shop_usrs'. Did you mean 'shop_users'?" in said
    program.write_text("import headrace as hr\napp = hr.App('site')\n")
    assert "has no flows" in shell("run", str(program), "--drain").err
