"""What the server says of a real capture: lag in bytes and time, what the database keeps, a stopped table and the
command by which it goes on."""

from __future__ import annotations

import shlex
import time
from typing import Any

from headrace.log.contract import Log
from headrace.serve.routes.captured import capture_facts
from tests.cdc.conftest import Source
from tests.cdc.test_program import USERS
from tests.cli.conftest import Shell


def facts(log: Log) -> dict[str, Any]:
    return capture_facts(log, "shop")


def test_a_capture_that_runs(source: Source) -> None:
    source.sql(USERS, "INSERT INTO users VALUES (1, 'ann')")
    source.drain()
    ends = time.monotonic() + 30

    def measured() -> bool:
        assert time.monotonic() < ends
        found = facts(source.log)
        return found["measured_at"] is not None and found["lag_ms"] is not None

    source.capture(heartbeat_seconds=0.05).run(measured)
    found = facts(source.log)
    assert found["lag_bytes"] >= 0 and found["slot_bytes"] >= 0 and found["wal_status"] == "reserved"
    assert 0 <= found["lag_ms"] < 60_000
    assert found["slot"].startswith("headrace_shop_")


def test_a_stopped_table_goes_on_by_its_command(source: Source, shell: Shell) -> None:
    source.sql(USERS, "CREATE SCHEMA billing", "CREATE TABLE billing.invoices (id int PRIMARY KEY, n int)")
    shell.home = source.home
    home = ("--home", str(source.home))
    shell.ok("capture", "add", "shop", source.url, "--table", "*.*", *home)
    shell.ok("capture", "run", "shop", "--drain", *home)
    source.sql("ALTER TABLE billing.invoices DROP n", "ALTER TABLE users DROP name", "INSERT INTO users VALUES (7)")
    source.sql("INSERT INTO billing.invoices VALUES (1)")
    shell.ok("capture", "run", "shop", "--drain", *home)
    commands = {table["table"]: table["command"] for table in facts(source.log)["tables"]}
    assert commands == {
        "billing.invoices": "headrace capture snapshot shop billing.invoices",
        "public.users": "headrace capture snapshot shop users",
    }
    for command in commands.values():
        shell.ok(*shlex.split(command)[1:], *home)
    assert {table["state"] for table in facts(source.log)["tables"]} == {"live"}


def test_a_command_is_one_whatever_a_table_is_called(source: Source) -> None:
    names = ["x; touch y", "$(touch y)", "it's", "-all"]
    for name in names:
        source.sql(f'CREATE TABLE "{name}" (id int PRIMARY KEY, _n int)')
    source.drain()
    said = [shlex.split(table["command"]) for table in facts(source.log)["tables"]]
    assert all(words[:4] == ["headrace", "capture", "snapshot", "shop"] for words in said)
    assert {words[4] for words in said if len(words) == 5} == {*names[:3], "public.-all"}
