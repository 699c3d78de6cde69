"""What goes wrong when somebody tries captures, indexes, sinks and calls for the first time, and what is said then."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import headrace as hr
from headrace.cli.root import cli
from headrace.views.owner import FlowLock
from tests.cli.conftest import Shell

USERS = "_op string, id int, name string"


@pytest.fixture
def url(tmp_path: Path) -> str:
    db = sqlite3.connect(tmp_path / "shop.db")
    db.executescript(
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE notes (text TEXT);"
        "INSERT INTO users VALUES (1, 'Ann'), (2, 'Bob')"
    )
    db.close()
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_a_first_capture_says_what_it_copied_and_what_it_left_out(shell: Shell, url: str) -> None:
    assert "capture shop is added" in shell.ok("capture", "add", "shop", url, "--table", "user").err
    assert "no table is captured" in shell.ok("capture", "run", "shop", "--drain").err
    assert "capture shop is changed" in shell.ok("capture", "add", "shop", url).err
    assert "capture shop is as it was" in shell.ok("capture", "add", "shop", url).err
    said = shell.ok("capture", "run", "shop", "--drain").err
    assert "2 rows copied, 0 changes captured" in said
    assert "main.notes is not captured: it has no primary key" in said


def test_a_doctor_of_a_capture_that_nobody_added(shell: Shell, url: str) -> None:
    assert shell("capture", "doctor", "shop", "--url", url).rows  # needs no log
    shell.ok("capture", "add", "shop", url)
    assert "no capture 'shpo'. Did you mean 'shop'?" in shell.refused("capture", "doctor", "shpo")


def test_nobody_answers_there(shell: Shell) -> None:
    shell.ok("capture", "add", "shop", "mysql://app@127.0.0.1:1/shop")
    assert "cannot be reached: " in shell.refused("capture", "run", "shop", "--drain")


def test_an_index_over_columns_that_are_not_there(shell: Shell) -> None:
    shell.ok("topics", "create", "users", USERS, "--key", "id")
    said = shell.refused("index", "add", "people", "users", "--text", "nam")
    assert "topic 'users' has no such column. Did you mean 'name'?" in said
    assert "is int in topic 'users', not string" in shell.refused("index", "add", "people", "users", "--text", "id")
    assert "no such column" in shell.refused("index", "add", "people", "users", "--text", "name", "--key", "idd")
    assert "No indexes yet" in shell.ok("index", "list").err
    for said in ("added", "as it was"):
        assert f"index people is {said}" in shell.ok("index", "add", "people", "users", "--text", "name").err
    again = shell.ok("index", "add", "people", "users", "--text", "name", "--tokenizer", "porter").err
    assert "index people is changed, and built again" in again


def test_a_program_with_such_an_index_is_not_ok(shell: Shell) -> None:
    shell.ok("topics", "create", "users", USERS, "--key", "id")
    with hr.App("site") as app:
        app.stream("users").to_sink("people", hr.search_index("people.db", text="nam"))
        with pytest.raises(hr.InvalidArgument, match="Did you mean 'name'"):
            app._check()


@pytest.mark.parametrize(
    "sink", [hr.webhook("https://hooks.example.org/pager"), hr.command(["notify"])], ids=["webhook", "command"]
)
def test_a_sink_of_any_kind_begins_anew_and_keeps_its_name(shell: Shell, sink: hr.Sink) -> None:
    shell.ok("topics", "create", "users", USERS, "--key", "id")
    with hr.App("site") as app:
        out = app.stream("users").to_sink("out", sink)
        app.drain()
        with pytest.raises(hr.InvalidArgument, match=f"is a {sink.kind}, "):  # type: ignore[attr-defined]
            out.search("ann")
    assert "out gets all of users again" in shell.ok("sinks", "rewind", "out", "--yes").err
    assert "choose another name" in shell.refused("index", "add", "out", "users", "--text", "name")


def test_a_sink_that_has_delivered_nothing_has_all_of_it_to_do(shell: Shell) -> None:
    shell.ok("topics", "create", "users", USERS, "--key", "id")
    shell.ok("produce", "users", stdin=b'{"_op": "upsert", "id": 1, "name": "Ann"}')
    with hr.App("site") as app:
        app.stream("users").to_sink("out", lambda *_: 1 // 0)
        with pytest.raises(hr.SinkFailed):
            app.drain()
    assert [row["lag_records"] for row in shell.ok("sinks", "list").rows] == [1]


def test_a_sink_is_dropped_only_by_somebody_who_says_so(shell: Shell) -> None:
    shell.ok("topics", "create", "users", USERS, "--key", "id")
    with hr.App("site") as app:
        app.stream("users").to_sink("out", lambda *_: None)
        app.drain()
    for command in ("drop", "rewind"):
        asked = shell("sinks", command, "out", stdin=b"y\n")  # a pipe is no terminal, whatever it says
        assert asked.code == 2 and "Say --yes to do it" in asked.err
    assert len(shell.ok("sinks", "list").rows) == 1


def test_a_request_names_its_id_by_the_option(shell: Shell) -> None:
    shell.ok("topics", "create", "quotes", "id string, sku string", "--key", "id")
    assert "(--id)" in shell.refused("call", "quotes", '{"id": "1", "sku": "k1"}')


def test_debezium_without_a_scheme() -> None:
    with pytest.raises(hr.InvalidArgument, match="must be a Kafka cluster, 'kafka://host:9092', or 'log'"):
        hr.debezium("broker:9092", "srv1")


def test_two_of_the_same(shell: Shell, url: str) -> None:
    shell.ok("capture", "add", "shop", url)
    shell.ok("capture", "run", "shop", "--drain")
    shell.ok("index", "add", "people", "shop_users", "--text", "name")
    for command, kind, name in (("capture", "capture", "shop"), ("index", "sink", "people")):
        lock = FlowLock(shell.home, f"{kind}/{name}")
        lock.take()
        told = shell.refused(command, "run", name, "--drain")
        lock.release()
        assert f"{kind} '{name}' is run by process" in told and "--take-over" not in told  # an option of others


def offered(*words: str) -> list[str]:
    found = ShellComplete(cli, {}, "headrace", "_HEADRACE_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [each.value for each in found]


def test_names_of_captures_indexes_and_sinks_are_completed(shell: Shell, url: str) -> None:
    shell.ok("capture", "add", "shop", url)
    shell.ok("capture", "run", "shop", "--drain")
    shell.ok("index", "add", "people", "shop_users", "--text", "name")
    for command in ("run", "status", "snapshot", "uninstall", "doctor"):
        assert offered("capture", command, "sh") == ["shop"]
    assert offered("capture", "snapshot", "shop", "main.u") == ["main.users"]
    assert offered("capture", "snapshot", "shpo", "") == []
    assert offered("index", "add", "more", "shop_u") == ["shop_users"]
    for command in ("run", "search", "audit", "rebuild"):
        assert offered("index", command, "") == ["people"]
    for command in ("rewind", "drop"):
        assert offered("sinks", command, "") == ["people"]
    assert offered("capture", "add", "sh") == offered("index", "add", "pe") == []  # a new name
