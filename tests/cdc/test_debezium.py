"""Debezium's events become the topics of tables: those of its engine, and of every form that it can write."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cdc.debezium.address import events_at
from headrace.cdc.debezium.connect import columns_of, is_placeholder, reader_of, type_of
from headrace.cdc.debezium.events import Unreadable, read_event
from headrace.cdc.open import choice_for, open_source, source_findings
from headrace.cdc.running import TableStatus, status_of
from headrace.cdc.tables import NotHeld
from headrace.errors import CaptureFailed, CaptureGap, InvalidArgument, UnknownTopic
from headrace.log.contract import Log
from headrace.log.open import open_log
from tests.cdc.debezium_events import PLACEHOLDER, Event, Table, field, golden, number_bytes
from tests.cli.conftest import Shell
from tests.kafka.test_foreign import make_topic, produce

COLUMNS = "id bigint, name string, amount decimal(12, 2), qty int, ts timestamp_ntz, tstz timestamp, d date, b binary, "
COLUMNS += "arr array<int>, big string, extra string"


class Events:
    """A log whose topic `events` gets events, and their capture."""

    def __init__(self, home: Path) -> None:
        self.home, self.log = home, open_log(home)
        self.topic = self.log.create_topic("events", "destination string, key string, value string")
        self.settings: dict[str, Any] = {}
        self.mask: dict[str, str] = {}

    def add(self, *events: Event) -> None:
        self.topic.append([*events])

    def drain(self, **more: Any) -> int:
        url = hr.debezium("log", "events", **self.settings)
        choice = choice_for(url, None, self.mask)
        return open_source(self.log, "shop", url, choice, self.home).drain(**more)

    def take(self, *events: Event) -> int:
        self.add(*events)
        return self.drain()

    def records(self, table: str = "inv") -> list[dict[str, Any]]:
        return [record.value for record in self.log.topic(f"shop_{table}").records()]

    def ops(self, table: str = "inv") -> list[str]:
        return [value["_op"] for value in self.records(table)]

    def rows(self, table: str = "inv") -> dict[Any, dict[str, Any]]:
        return rows_of(self.log, f"shop_{table}")

    def state(self, table: str = "inv") -> TableStatus:
        return next(each for each in status_of(self.log, "shop").tables if each.table == f"public.{table}")


def rows_of(log: Log, topic: str) -> dict[Any, dict[str, Any]]:
    """What is there, by key."""
    found: dict[Any, dict[str, Any]] = {}
    for record in log.topic(topic).records():
        row = dict(record.value)
        op = row.pop("_op")
        if op == "delete":
            found.pop(record.key, None)
        elif op == "upsert":
            found[record.key] = row
    return found


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    found = Events(tmp_path / "home")
    with found.log:
        yield found


NOTES = [field("id", "int64"), field("note", "string"), field("n", "int32")]


# -- the engine's events -------------------------------------------------------------------------------


def test_what_the_engine_wrote_with_schemas(events: Events) -> None:
    events.take(*golden("with_schema"))
    assert events.records()[0] == {
        "id": 1,
        "name": "alpha",
        "amount": Decimal("12.34"),
        "qty": 5,
        "f8": 1.5,
        "flag": True,
        "ts": dt.datetime(2024, 1, 2, 3, 4, 5, 678901),
        "tstz": dt.datetime(2024, 1, 2, 3, 4, 5, 678901, dt.UTC),
        "d": dt.date(2024, 1, 2),
        "t": "03:04:05.123456",
        "j": '{"a": [1, 2]}',
        "b": b"\xde\xad\xbe\xef",
        "u": "11111111-2222-3333-4444-555555555555",
        "arr": [1, 2, 3],
        "big": "12345678901234567890.123",
        "iv": "PT26H",
        "_op": "upsert",
        "extra": None,
    }
    # 3 came, changed, and became 4 (a delete, its tombstone, an insert); 4 went; all were truncated; a column came
    assert events.ops() == ["upsert"] * 3 + ["delete", "upsert", "delete", "delete"] + ["upsert"] * 2 + ["loaded"]
    assert {key: row["extra"] for key, row in events.rows().items()} == {100: "dflt"}
    assert events.drain() == 0
    assert {topic.name for topic in events.log.topics()} == {
        "events", "shop.capture", "shop_heartbeat", "shop_inv"}  # fmt: skip


def test_what_the_engine_wrote_without_schemas(events: Events) -> None:
    events.take(*golden("without_schema"))
    assert events.state().state == "stopped"
    assert "say what the columns are" in events.state().why
    events.settings = {"columns": {"inv": COLUMNS}}
    events.drain(again=["inv"])
    assert events.state().state == "live"
    first = events.records()[0]
    assert (first["amount"], first["big"]) == (Decimal("12.34"), "12345678901234567890.123")
    assert (first["ts"], first["d"]) == (dt.datetime(2024, 1, 2, 3, 4, 5, 678901), dt.date(2024, 1, 2))
    assert (first["b"], first["arr"]) == (b"\xde\xad\xbe\xef", [1, 2, 3])
    assert {key: row["name"] for key, row in events.rows().items()} == {
        100: "r100x", 101: "r101", 102: "r102", 103: "r103"}  # fmt: skip


@pytest.mark.parametrize("how", ["tombstones", "rewritten"])
def test_rows_by_themselves(events: Events, how: str) -> None:
    """As the transformation ExtractNewRecordState leaves them."""
    flat = []
    for event in golden("with_schema"):
        value = json.loads(event["value"]) if event["value"] else None
        payload = value and value["payload"]
        if payload is None or payload.get("op") in ("m", "t") or "after" not in payload:
            flat += [event] if payload is not None or how == "tombstones" else []
        elif payload["op"] != "d":
            fields = next(each["fields"] for each in value["schema"]["fields"] if each["field"] == "after")
            fields = [*fields, field("__deleted", "string")]
            row = {
                "schema": {"type": "struct", "fields": fields},
                "payload": {**payload["after"], "__deleted": "false"},
            }
            flat.append({**event, "value": json.dumps(row)})
        elif how == "rewritten":
            row = {"schema": {"type": "struct", "fields": []}, "payload": {**payload["before"], "__deleted": "true"}}
            flat.append({**event, "value": json.dumps(row)})
    events.take(*[each for each in flat if each["key"] is not None and "message" not in each["destination"]])
    assert events.ops() == ["upsert"] * 3 + ["delete", "upsert", "delete"] + ["upsert"] * 2 + ["loaded"]
    assert events.records()[0]["amount"] == Decimal("12.34")
    assert set(events.rows()) == {1, 100}


# -- types ---------------------------------------------------------------------------------------------

TIME = "io.debezium.time."
DATA = "io.debezium.data."
CONNECT = "org.apache.kafka.connect.data."
TYPES = [
    # MySQL's connector
    (field("c", "int64", f"{TIME}Timestamp"), 1_704_164_645_678, dt.datetime(2024, 1, 2, 3, 4, 5, 678000)),
    (field("c", "int64", f"{TIME}MicroTimestamp"), -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
    (field("c", "int64", f"{TIME}NanoTimestamp"), 1_999, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    (field("c", "int64", f"{TIME}MicroTime"), -3_600_000_000, "-01:00:00"),
    (field("c", "int32", f"{TIME}Time"), 45_296_789, "12:34:56.789"),
    (field("c", "int32", f"{TIME}Year"), 2024, 2024),
    (field("c", "int32", f"{TIME}Date"), -1, dt.date(1969, 12, 31)),
    (field("c", "string", f"{TIME}ZonedTimestamp"), "2024-01-02T04:04:05+01:00",
     dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    (field("c", "string", f"{DATA}Enum", allowed="a,b"), "a", "a"),
    (field("c", "string", f"{DATA}EnumSet", allowed="a,b"), "a,b", "a,b"),
    (field("c", "string", f"{DATA}Json"), '{"a":1}', '{"a":1}'),
    (field("c", "bytes", f"{DATA}Bits", length=12), "BQI=", "001000000101"),
    (field("c", "int16"), -5, -5),
    (field("c", "bytes", f"{CONNECT}Decimal", scale=2, connect_decimal_precision=10), number_bytes(-99_999_999),
     Decimal("-999999.99")),
    (field("c", "bytes", f"{CONNECT}Decimal", scale=0, connect_decimal_precision=20), number_bytes(2**63),
     Decimal(2**63)),
    (field("c", "bytes", f"{CONNECT}Decimal", scale=3), number_bytes(-12), "-0.012"),
    (field("c", "bytes", f"{CONNECT}Decimal", scale=30, connect_decimal_precision=65), number_bytes(10**64 + 1),
     f"1{'0' * 34}.{'0' * 29}1"),
    # time.precision.mode=connect
    (field("c", "int64", f"{CONNECT}Timestamp"), 1_000, dt.datetime(1970, 1, 1, 0, 0, 1)),
    (field("c", "int32", f"{CONNECT}Time"), 1_000, "00:00:01"),
    (field("c", "int32", f"{CONNECT}Date"), 19_724, dt.date(2024, 1, 2)),
    # Postgres' connector
    (field("c", "struct", f"{DATA}VariableScaleDecimal"), {"scale": 1, "value": number_bytes(-15)}, "-1.5"),
    (field("c", "int64", f"{TIME}MicroDuration"), 93_784_000_500, "PT26H3M4.0005S"),
    (field("c", "string", f"{TIME}Interval"), "P1Y2M", "P1Y2M"),
    (field("c", "string", f"{DATA}Uuid"), "1-2", "1-2"),
    ({**field("c", "array"), "items": {"type": "string"}}, ["a", None], ["a", None]),
    ({**field("c", "array"), "items": field("", "bytes", f"{CONNECT}Decimal", scale=1, connect_decimal_precision=4)},
     [number_bytes(15)], [Decimal("1.5")]),
    (field("c", "map"), {"a": "1"}, '{"a":"1"}'),
    (field("c", "struct", f"{DATA}geometry.Point"), {"x": 1.0, "wkb": "AQ=="}, '{"x":1.0,"wkb":"AQ=="}'),
    (field("c", "double"), "NaN", float("nan")),
    (field("c", "float"), 1.5, 1.5),
]  # fmt: skip


@pytest.mark.parametrize(("said", "value", "wanted"), TYPES, ids=lambda each: str(each)[:60])
def test_types(said: dict[str, Any], value: object, wanted: object) -> None:
    (column,) = columns_of([said])
    (found,) = reader_of(column, type_of(column))([value]).to_pylist()
    assert found == wanted or str(found) == str(wanted) == "nan"


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (field("c", "int64", f"{TIME}MicroTimestamp"), "2024-01-01"),
        (field("c", "int64", f"{TIME}MicroTimestamp"), 10**18),
        (field("c", "bytes", f"{CONNECT}Decimal", scale=2, connect_decimal_precision=4), number_bytes(10**6)),
        (field("c", "bytes"), "%%"),
        (field("c", "int32"), "seven"),
        (field("c", "string", f"{TIME}ZonedTimestamp"), "2024-01-02T04:04:05"),
    ],
)
def test_values_of_another_type_are_refused_and_not_quoted(said: dict[str, Any], value: object) -> None:
    (column,) = columns_of([said])
    with pytest.raises(NotHeld) as refused:
        reader_of(column, type_of(column))([value])
    assert str(value) not in str(refused.value)


def test_a_value_that_no_column_can_hold_stops_its_table(events: Events) -> None:
    times = Table("public.inv", [field("id", "int64"), field("at", "int64", f"{TIME}Timestamp")])
    other = Table("public.other", NOTES)
    events.take(times.event("c", None, {"id": 1, "at": 10**17}), other.event("c", None, {"id": 1}))
    assert (events.state().state, events.state("other").state) == ("stopped", "live")
    assert "'at' is no timestamp_ntz" in events.state().why


# -- large values that an update did not touch ---------------------------------------------------------


def test_unavailable_values_are_filled_in(events: Events) -> None:
    """From the topic, from the same batch, and from the row of another key that it comes from."""
    inv = Table("public.inv", NOTES)
    events.take(inv.event("c", None, {"id": 1, "note": "large", "n": 1}))
    events.take(
        inv.event("u", None, {"id": 1, "note": PLACEHOLDER, "n": 2}),
        inv.event("u", None, {"id": 1, "note": "new", "n": 3}),
        inv.event("u", None, {"id": 1, "note": PLACEHOLDER, "n": 4}),
    )
    assert events.rows() == {1: {"id": 1, "note": "new", "n": 4}}
    moved = [inv.event("d", {"id": 1, "note": None, "n": None}, None), inv.tombstone({"id": 1})]
    moved.append(inv.event("c", None, {"id": 2, "note": PLACEHOLDER, "n": 5}, lsn=inv.lsn))
    events.take(*moved)
    assert events.rows() == {2: {"id": 2, "note": "new", "n": 5}}
    assert events.state().state == "live"


def test_what_cannot_be_filled_in_stops_its_table(events: Events) -> None:
    inv = Table("public.inv", NOTES)
    events.take(inv.event("u", None, {"id": 1, "note": PLACEHOLDER, "n": 2}))
    assert events.state().state == "stopped"
    assert "does not have the row" in events.state().why


def test_placeholders_in_every_encoding() -> None:
    encoded = PLACEHOLDER, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", [PLACEHOLDER], [*PLACEHOLDER.encode()]
    assert all(is_placeholder(each) for each in encoded)
    assert not any(is_placeholder(each) for each in ("x", [], [1], {}, 7))


# -- tables --------------------------------------------------------------------------------------------


def test_any_batches_make_the_same_rows(tmp_path: Path, seed: int) -> None:
    """Cut anywhere, and begun again by a new capture each time."""
    dice = random.Random(seed)
    inv, made, there = Table("public.inv", NOTES), list[Event](), set[int]()
    for n in range(300):
        one = dice.randrange(12)
        if one not in there or dice.random() < 0.6:
            note = PLACEHOLDER if one in there and dice.random() < 0.5 else f"note {n}"
            made.append(inv.event("u" if one in there else "c", None, {"id": one, "note": note, "n": n}))
            there.add(one)
        elif dice.random() < 0.5:
            other = dice.randrange(12, 24)
            made += [inv.event("d", {"id": one, "note": None, "n": None}, None), inv.tombstone({"id": one})]
            made.append(inv.event("c", None, {"id": other, "note": PLACEHOLDER, "n": n}, lsn=inv.lsn))
            there.discard(one)
        else:
            made += [inv.event("d", {"id": one, "note": None, "n": None}, None), inv.tombstone({"id": one})]
            there.discard(one)
    whole, parts = Events(tmp_path / "whole"), Events(tmp_path / "parts")
    with whole.log, parts.log:
        whole.take(*made)
        at = 0
        while at < len(made):
            count = dice.choice((1, 2, 3, 40))
            parts.take(*made[at : at + count])
            at += count
        assert whole.state().state == parts.state().state == "live"
        assert whole.rows() == parts.rows()
        assert [op for op in whole.ops() if op != "loaded"] == [op for op in parts.ops() if op != "loaded"]


def test_columns_that_come_are_followed_and_others_stop_the_table(events: Events) -> None:
    old, new = Table("public.inv", NOTES), Table("public.inv", [*NOTES, field("more", "string")])
    events.take(old.event("c", None, {"id": 1, "n": 1}), new.event("c", None, {"id": 2, "more": "x"}))
    assert [row["more"] for row in events.rows().values()] == [None, "x"]
    less = Table("public.inv", NOTES[:2])
    events.take(less.event("c", None, {"id": 3, "note": "y"}))
    assert events.state().why == "the table has changed: column 'n' is gone, column 'more' is gone"
    events.take(less.event("c", None, {"id": 4, "note": "z"}))
    assert set(events.rows()) == {1, 2}
    events.drain(again=["inv"])
    assert (events.state().state, events.state().epoch) == ("live", 1)
    assert {key: row["note"] for key, row in events.rows().items()} == {1: None, 2: None, 3: "y", 4: "z"}
    events.take(less.event("u", None, {"id": 4, "note": "z2"}))
    assert events.rows()[4]["note"] == "z2"


def test_only_the_table_that_is_behind_is_read_again(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cdc.debezium.feed.READ_ROWS", 3)
    inv, other = Table("public.inv", NOTES), Table("public.other", NOTES)
    made = [table.event("c", None, {"id": n, "n": n}) for n in range(10) for table in (inv, other)]
    assert events.take(*made) == 20
    place = events.log.topic("shop.capture").offsets()[0].next
    events.add(inv.event("u", None, {"id": 3, "n": 33}), other.event("u", None, {"id": 3, "n": 33}))
    assert events.drain(again=["inv"]) == 10 + 2
    assert (events.ops().count("upsert"), events.ops("other").count("upsert")) == (21, 11)
    assert events.rows() == events.rows("other")
    written = events.log.topic("shop.capture").offsets()[0].next - place
    assert events.drain() == 0
    assert written < 80


def test_a_table_without_a_key_is_stopped(events: Events) -> None:
    events.take(Table("public.inv", NOTES, key=()).event("c", None, {"id": 1}))
    assert "have no key" in events.state().why


def test_a_snapshot_is_loaded_when_it_says_so(events: Events) -> None:
    inv, other = Table("public.inv", NOTES), Table("public.other", NOTES)
    events.take(inv.event("r", None, {"id": 1}, snapshot="first"), other.event("r", None, {"id": 1}, snapshot="true"))
    assert (events.state().state, events.state("other").state) == ("copying", "copying")
    assert events.ops() == ["upsert"]
    events.take(inv.event("r", None, {"id": 2}, snapshot="last_in_data_collection"))
    assert (events.ops(), events.state().copied) == (["upsert", "upsert", "loaded"], 2)
    assert events.ops("other") == ["upsert"]
    events.take(other.event("r", None, {"id": 2}, snapshot="last"))
    assert events.ops("other") == ["upsert", "upsert", "loaded"]


def test_masks(events: Events) -> None:
    events.mask = {"inv.note": "hash"}
    inv = Table("public.inv", NOTES)
    events.take(inv.event("c", None, {"id": 1, "note": "secret"}), inv.event("c", None, {"id": 2, "note": "secret"}))
    one, two = (row["note"] for row in events.rows().values())
    assert one == two and len(one) == 64


def test_keys_of_types_that_cannot_be_keys_are_text(events: Events) -> None:
    inv = Table("public.inv", [field("at", "int64", f"{TIME}MicroTimestamp"), field("id", "int64")], key=("id", "at"))
    events.take(inv.event("c", None, {"at": 1, "id": 2}), inv.event("d", {"at": 1, "id": 2}, None))
    assert [(row["id"], row["at"]) for row in events.records()[:2]] == [(2, "1970-01-01 00:00:00.000001")] * 2


def test_what_is_no_event_is_named_and_stops_the_capture(events: Events) -> None:
    events.add({"destination": "srv1.public.inv", "key": '{"id": 1}', "value": "sesame{"})
    with pytest.raises(CaptureFailed, match="events/0 offset 0: it is no JSON") as refused:
        events.drain()
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("value", ['{"op": "c", "source": {"table": "t"}, "after": null}', "7", "[1]"])
def test_values_that_are_no_events(value: str) -> None:
    with pytest.raises(Unreadable):
        read_event("srv1.public.inv", '{"id": 1}', value)


def test_events_that_retention_took_are_a_gap(events: Events) -> None:
    inv = Table("public.inv", NOTES)
    events.take(inv.event("c", None, {"id": 1}))
    events.log.delete_topic("events")
    events.topic = events.log.create_topic("events", "destination string, key string, value string")
    with pytest.raises(CaptureGap, match="capture snapshot shop"):
        events.drain()
    events.add(inv.event("c", None, {"id": 2}))
    events.drain(again=())
    assert set(events.rows()) == {1, 2}


# -- addresses, programs, commands ---------------------------------------------------------------------


def test_addresses() -> None:
    url = hr.debezium("kafka://b:9092?username=u&password=env:P", "srv1", columns={"t": "id int"}, timestamps="ms")
    found = events_at(url)
    assert found.cluster is not None and (found.cluster.username, found.cluster.password) == ("u", "env:P")
    assert (found.name, found.timestamps) == ("srv1", "ms")
    assert found.columns["public.t"] == pa.schema([("id", pa.int32())])
    assert events_at(hr.debezium("log", "events", schema="shop")).home == "shop"
    for wrong in (
        "debezium:///",
        "debezium://host/events",
        "debezium+kafka://b:9092/",
        "debezium+kafka://b:9092/srv1?prefix=x",
        "debezium+kafka://b:9092/srv1?timestamps=h",
        "debezium+kafka://b:9092/srv1?username=u&password=sesame",
        "debezium+kafka://u:sesame@b:9092/srv1",
        "debezium:///events?colour=red",
    ):
        with pytest.raises(InvalidArgument) as refused:
            events_at(wrong)
        assert "sesame" not in str(refused.value)


def test_a_program(tmp_path: Path) -> None:
    for captured in (False, True):
        with hr.App("site", home=tmp_path / "home") as app:  # which only says what the table is
            received = app.topic("events", "destination string, key string, value string")
            if not captured:
                received.append(golden("with_schema"))
            db = app.capture("shop", hr.debezium("log", "events"))
            table = db.table("inv")
            assert (table.name, table.key, table.columns.names[:2]) == ("shop_inv", ("id",), ["id", "name"])
            with pytest.raises(CaptureFailed, match=r"no event of public\.nothing"):
                db.table("nothing")
        with hr.App("site", home=tmp_path / "home") as app:
            db = app.capture("shop", hr.debezium("log", "events"))
            app.drain()
            assert {each.table for each in db.status().tables} == {"public.heartbeat", "public.inv"}


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    shell = Shell(tmp_path / "home")
    lines = "".join(json.dumps(event) + "\n" for event in golden("with_schema"))
    shell.ok("topics", "create", "events", "destination string, key string, value string")
    shell.ok("produce", "events", stdin=lines.encode())
    shell.ok("capture", "add", "shop", "debezium:///events")
    assert "events" in shell.ok("capture", "doctor", "shop").text
    assert "captured" in shell.ok("capture", "run", "shop", "--drain").err
    states = {row["table"]: row["state"] for row in shell.ok("capture", "status", "shop").rows}
    assert states == {"public.heartbeat": "live", "public.inv": "live"}
    shell.ok("capture", "add", "gone", "debezium:///nothing")
    assert "nothing" in shell.refused("capture", "run", "gone", "--drain")


# -- on Kafka ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["a directory", "the same cluster"])
def test_topics_of_debezium_on_kafka(broker: str, tmp_path: Path, into: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    prefix = f"srv{uuid.uuid4().hex[:8]}"
    topics = {name: f"{prefix}.{name}" for name in ("public.inv", "public.heartbeat", "transaction")}

    def send(*events: Event) -> None:
        for name, topic in topics.items():
            given = [(each["key"], each["value"]) for each in events if each["destination"].endswith(f".{name}")]
            produce(broker, topic, *[(key and key.encode(), value and value.encode()) for key, value in given])

    for topic in topics.values():
        make_topic(broker, topic)
    url = hr.debezium(f"kafka://{broker}", prefix)
    made = golden("with_schema")
    send(*made[:-1])
    with open_log(tmp_path / "home" if into == "a directory" else f"kafka://{broker}?prefix=log-{prefix}.") as log:
        source = open_source(log, "shop", url, choice_for(url, ["inv"], None), tmp_path / "own")
        assert source.drain() == 8
        assert set(rows_of(log, "shop_inv")) == {100}
        assert source.drain() == 0
        send(Table("public.inv", None).tombstone({"id": 100}))
        assert source.drain() == 1
        assert rows_of(log, "shop_inv") == {}
        (found,) = status_of(log, "shop").tables
        assert (found.table, found.state) == ("public.inv", "live")
        findings = {each.check: each.ok for each in source_findings("shop", url, choice_for(url, ["inv"], None))}
        topic, other = f"topic {topics['public.inv']}", f"topic {topics['public.heartbeat']}"
        assert findings == {"cluster": True, topic: True, other: None}
        send(made[-1])
        everything = TopicPartition(topics["public.inv"], 0, -1)
        admin = AdminClient({"bootstrap.servers": broker})
        admin.delete_records([everything])[everything].result(10)
        with pytest.raises(CaptureGap, match="was deleted by retention"):
            source.drain()
        send(made[-1])
        source.drain(again=())
        assert set(rows_of(log, "shop_inv")) == {100}


def test_a_topic_that_is_not_there(tmp_path: Path) -> None:
    with open_log(tmp_path / "home") as log, pytest.raises(UnknownTopic):
        url = "debezium:///nothing"
        open_source(log, "shop", url, choice_for(url, None, None), tmp_path / "home").drain()
