"""Changes of MariaDB in Debezium's envelope: fields and encodings as its documentation says, and what is written can be
captured again."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

import headrace as hr
from headrace.cdc.choice import Choice
from headrace.cdc.open import choice_for, open_source
from headrace.errors import InvalidArgument
from tests.cdc.test_debezium import rows_of
from tests.mysql.conftest import Source

KINDS = (
    "CREATE TABLE kinds (id int PRIMARY KEY, tiny tinyint, small smallint unsigned, medium mediumint unsigned, "
    "whole int unsigned, big bigint unsigned, price decimal(10, 2), f float, d double, flag bit(1), bits bit(12), "
    "day date, at datetime, at6 datetime(6), ts timestamp(3) NULL, t time(6), y year, word varchar(20), "
    "kind enum('a','it''s'), tags set('x','y'), data blob, fixed binary(4), doc json, p point, "
    "area polygon)"
)
ROW = (
    "INSERT INTO kinds VALUES (1, -5, 65535, 16777215, 4294967295, 9223372036854775807, -12.34, 1.1, 2.5, b'1', "
    "b'100000000001', '2024-01-02', '2024-01-02 03:04:05', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05.678', "
    "'-12:30:00.5', 2024, 'Zoë', 'it''s', 'x,y', X'00ff', X'01', '{\"a\": 1}', ST_GeomFromText('POINT(1 2)'), "
    "ST_GeomFromText('POLYGON((0 0, 0 1, 1 1, 0 0))', 4326))"
)
ENCODED = {
    "id": 1,
    "tiny": -5,
    "small": 65535,
    "medium": 16777215,
    "whole": 4294967295,
    "big": 2**63 - 1,
    "price": base64.b64encode((-1234).to_bytes(2, "big", signed=True)).decode(),
    "f": 1.1,
    "d": 2.5,
    "flag": True,
    "bits": base64.b64encode((0b100000000001).to_bytes(2, "little")).decode(),
    "day": 19724,
    "at": 1704164645000,
    "at6": 1704164645678901,
    "ts": "2024-01-02T03:04:05.678Z",
    "t": -45_000_500_000,
    "y": 2024,
    "word": "Zoë",
    "kind": "it's",
    "tags": "x,y",
    "data": base64.b64encode(b"\x00\xff").decode(),
    "fixed": base64.b64encode(b"\x01\0\0\0").decode(),
    "doc": '{"a": 1}',
}
SAID = {
    "tiny": ("int16", None),
    "small": ("int32", None),
    "medium": ("int32", None),
    "whole": ("int64", None),
    "big": ("int64", None),
    "price": ("bytes", "org.apache.kafka.connect.data.Decimal"),
    "f": ("float", None),
    "flag": ("boolean", None),
    "bits": ("bytes", "io.debezium.data.Bits"),
    "day": ("int32", "io.debezium.time.Date"),
    "at": ("int64", "io.debezium.time.Timestamp"),
    "at6": ("int64", "io.debezium.time.MicroTimestamp"),
    "ts": ("string", "io.debezium.time.ZonedTimestamp"),
    "t": ("int64", "io.debezium.time.MicroTime"),
    "y": ("int32", "io.debezium.time.Year"),
    "kind": ("string", "io.debezium.data.Enum"),
    "tags": ("string", "io.debezium.data.EnumSet"),
    "doc": ("string", None),  # in MariaDB it is a longtext
    "p": ("struct", "io.debezium.data.geometry.Point"),
    "area": ("struct", "io.debezium.data.geometry.Geometry"),
}


def echoing(source: Source, **more: Any) -> None:
    source.choice = Choice.of(None, more.pop("mask", None), source.name, debezium="srv1", **more)


def events(source: Source, table: str) -> list[dict[str, Any]]:
    return [record.value for record in source.log.topic(f"srv1.{source.name}.{table}").records()]


def values(source: Source, table: str = "kinds") -> list[dict[str, Any]]:
    return [json.loads(each["value"]) for each in events(source, table) if each["value"] is not None]


def test_values_from_snapshot_binlog_and_topic_are_encoded_alike(source: Source) -> None:
    echoing(source, schemas=True)
    source.sql(KINDS, ROW)
    source.drain()
    source.sql("DELETE FROM kinds", ROW)
    source.drain()
    source.sql("SET SESSION sql_log_bin = 0", "UPDATE kinds SET word = 'silent'", "SET SESSION sql_log_bin = 1")
    source.drain(again=["kinds"])
    snapshot, deleted, inserted, again = values(source)
    assert [each["payload"]["op"] for each in (snapshot, deleted, inserted, again)] == ["r", "d", "c", "r"]
    for row in snapshot["payload"]["after"], deleted["payload"]["before"], inserted["payload"]["after"]:
        point, area = row.pop("p"), row.pop("area")
        assert (area["srid"], base64.b64decode(area["wkb"])[:5]) == (4326, b"\x01\x03\0\0\0")
        assert (point["x"], point["y"], point["srid"]) == (1.0, 2.0, None)
        assert base64.b64decode(point["wkb"])[:5] == b"\x01\x01\0\0\0"
        assert row == ENCODED
    whole = snapshot["payload"]["after"] | {"word": "silent"}
    assert {name: again["payload"]["after"][name] for name in whole} == whole
    said = {each["field"]: each for each in snapshot["schema"]["fields"][1]["fields"]}
    assert {name: (said[name]["type"], said[name].get("name")) for name in SAID} == SAID
    assert said["price"]["parameters"] == {"scale": "2", "connect.decimal.precision": "10"}
    assert (said["kind"]["parameters"], said["bits"]["parameters"]) == ({"allowed": "a,it's"}, {"length": "12"})


def test_nulls_zero_dates_and_what_has_no_form(source: Source) -> None:
    echoing(source)
    source.sql("CREATE TABLE kinds (id int PRIMARY KEY, at datetime, day date, big bigint unsigned)")
    source.drain()
    source.sql("SET SESSION sql_mode = ''", "INSERT INTO kinds VALUES (1, 0, '2024-00-01', 1), (2, NULL, NULL, NULL)")
    source.drain()
    assert [each["after"] for each in values(source)] == [
        {"id": 1, "at": None, "day": None, "big": 1},
        {"id": 2, "at": None, "day": None, "big": None},
    ]
    source.sql(f"INSERT INTO kinds VALUES (3, NULL, NULL, {2**63})")
    source.drain()
    assert source.state("kinds").state == "stopped" and "64 bits" in source.state("kinds").why


def test_where_a_change_comes_from(source: Source) -> None:
    echoing(source)
    source.sql("CREATE TABLE users (id int PRIMARY KEY, name varchar(20))", "INSERT INTO users VALUES (1, 'ann')")
    source.drain()
    source.sql("BEGIN", "INSERT INTO users VALUES (2, 'bob'), (3, 'cem')", "UPDATE users SET id = 4 WHERE id = 3")
    source.sql("COMMIT", "TRUNCATE users")
    source.drain()
    snapshot, *rest = values(source, "users")
    assert [(each["op"], each["before"], each["after"]) for each in rest] == [
        ("c", None, {"id": 2, "name": "bob"}),
        ("c", None, {"id": 3, "name": "cem"}),
        ("d", {"id": 3, "name": "cem"}, None),
        ("c", None, {"id": 4, "name": "cem"}),
        ("t", None, None),
    ]
    for each in snapshot, *rest:
        assert each["source"].keys() == {
            *("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "table"),
            *("server_id", "gtid", "file", "pos", "row", "thread", "query"),
        }
        assert (each["source"]["connector"], each["source"]["db"]) == ("mariadb", source.name)
    assert (snapshot["source"]["snapshot"], snapshot["source"]["server_id"]) == ("true", 0)
    assert [each["source"]["row"] for each in rest] == [0, 1, 0, 0, 0]
    places = [(each["source"]["file"], each["source"]["pos"]) for each in rest]
    assert places[0] == places[1] < places[2] == places[3] < places[4]
    file, pos = places[0]
    found = source.sql(f"SHOW BINLOG EVENTS IN '{file}' FROM {pos} LIMIT 1")[0]
    assert found[1] == pos and "rows" in found[2].lower() and found[3] == rest[0]["source"]["server_id"]
    gtids = [each["source"]["gtid"] for each in rest]
    assert gtids[0] == gtids[3] != gtids[4]
    orders = [(each["transaction"]["id"], each["transaction"]["total_order"]) for each in rest]
    assert orders == [(gtids[0], 1), (gtids[0], 2), (gtids[0], 3), (gtids[0], 4), (gtids[4], 1)]
    keys = [each["key"] for each in events(source, "users")]
    assert keys == [f'{{"id":{n}}}' for n in (1, 2, 3, 3, 3, 4)] + [None]
    assert [each["value"] is None for each in events(source, "users")] == [False] * 4 + [True, False, False]


def test_masked_values_are_those_of_the_topic_also_when_read_again(source: Source) -> None:
    echoing(source, mask={"users.email": "hash", "users.born": "hash", "users.age": "null"})
    source.sql("CREATE TABLE users (id int PRIMARY KEY, email varchar(20), born date, age int, name varchar(9))")
    source.sql("INSERT INTO users VALUES (1, 'sesame', '2000-01-02', 33, 'a')")
    source.drain()
    source.sql("UPDATE users SET age = 34")
    source.drain()
    source.sql("SET SESSION sql_log_bin = 0", "UPDATE users SET name = 'b'", "SET SESSION sql_log_bin = 1")
    source.drain(again=["users"])
    (row,) = source.rows().values()
    assert len(row["email"]) == len(row["born"]) == 64
    told = [each["after"] for each in values(source, "users")]
    assert [each["name"] for each in told] == ["a", "a", "b"]
    assert {(each["email"], each["born"], each["age"]) for each in told} == {(row["email"], row["born"], None)}


def test_what_is_written_can_be_captured_again(source: Source, seed: int) -> None:
    """The events of a capture, captured: the same rows."""
    dice = random.Random(seed)
    echoing(source, schemas=True)
    source.sql(
        "CREATE TABLE users (id int PRIMARY KEY, name varchar(20), n decimal(9, 3), at datetime(6), ts timestamp NULL, "
        "t time, kind enum('a','b'), data blob, f float, day date)"
    )
    for change in None, "ALTER TABLE users ADD more int DEFAULT 7":
        if change is not None:
            source.sql(change)
        for _ in range(40):
            one, other = dice.randrange(12), dice.randrange(12)
            statement = dice.choice((
                f"INSERT IGNORE INTO users (id, name, n, at, ts, t, kind, data, f, day) VALUES ({one}, 'u{other}', "
                f"{other}.125, '2024-01-02 03:04:05.{other:06}', '2024-01-02 03:04:{other:02}', '-1:00:{other:02}', "
                f"'b', X'0{other % 10}', {other}.1, '2024-02-{other + 1:02}')",
                f"UPDATE users SET name = 'v{other}', ts = NULL WHERE id = {one}",
                f"UPDATE IGNORE users SET id = {other} + 20, n = -n WHERE id = {one}",
                f"DELETE FROM users WHERE id = {one}",
            ))  # fmt: skip
            source.sql(statement)
        source.drain()
        url = hr.debezium("log", f"srv1.{source.name}.users", schema=source.name)
        open_source(source.log, "copy", url, choice_for(url, None, None), source.home).drain()
        assert rows_of(source.log, "copy_users") == rows_of(source.log, "shop_users")
    source.sql("TRUNCATE users")
    source.drain()
    open_source(source.log, "copy", url, choice_for(url, None, None), source.home).drain()
    assert rows_of(source.log, "copy_users") == rows_of(source.log, "shop_users") == {}


def test_sqlite_is_refused_by_name() -> None:
    """Debezium has no connector for it, so nobody says what its events would be."""
    with pytest.raises(InvalidArgument, match="Postgres and MySQL or MariaDB, and this is SQLite"):
        choice_for("sqlite:///shop.db", None, None, debezium="srv1")
