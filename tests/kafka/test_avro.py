"""Avro values in a registry's wire format: read column by column or one by one, with the same rows; what is no value of
its schema is no row. And the registry: kept answers, no answer, answers that lead elsewhere."""

from __future__ import annotations

import io
import json
import pickle
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.forms import registry as registry_module
from headrace.log.kafka.forms.avro import AvroForm, Schemas
from headrace.log.kafka.forms.registry import Registry, registry_of
from headrace.log.kafka.values import Unreadable, decode
from headrace.log.settings import Avro, settings_of
from headrace.rows import to_rows
from headrace.schema import parse_ddl
from tests.kafka.registry import FakeRegistry, running

AT = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
ARRIVED_US = int(AT.timestamp() * 1e6)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


CLICK = record(("user", "string"), ("page", ["null", "string"]), ("ms", "int"), ("at", MILLIS))
CLICKS = "user string, page string, ms int, at timestamp"


def written(schema: Any, value: Any, id: int = 7) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + id.to_bytes(4, "big") + out.getvalue()


def entry(ddl: str, unit: str | None = None, **settings: Any) -> Entry:
    return Entry("t", "0" * 32, parse_ddl(ddl), settings_of(settings), foreign=True, unit=unit, avro=Avro())


def read(
    values: list[Any], of: Entry, schemas: dict[int, Any], keys: list[Any] | None = None
) -> tuple[list[dict[str, Any]], list[Unreadable]]:
    form = AvroForm(Schemas({id: json.dumps(schema) for id, schema in schemas.items()}, None))
    batch, bad = decode(values, keys or [None] * len(values), np.full(len(values), ARRIVED_US), of, form)
    assert batch.schema == of.columns
    return to_rows(batch), bad


# -- values --------------------------------------------------------------------------------------------


def test_records_are_rows() -> None:
    rows = [
        {"user": "ann", "page": None, "ms": -3, "at": AT},
        {"user": "größe", "page": "/", "ms": 2**31 - 1, "at": AT},
    ]
    assert read([written(CLICK, row) for row in rows], entry(CLICKS, event_time="at"), {7: CLICK}) == (rows, [])


def test_columns_that_a_writer_does_not_know_are_null_and_its_own_are_left_out() -> None:
    value = written(CLICK, {"user": "ann", "page": "/", "ms": 3, "at": AT})
    assert read([value], entry("user string, country string"), {7: CLICK}) == ([{"user": "ann", "country": None}], [])
    rows, (bad,) = read([value], entry("user string, country string NOT NULL"), {7: CLICK})
    assert rows == [] and "country" in bad.why


def test_values_of_several_schemas_stay_in_order() -> None:
    newer = record(("user", "string"), ("country", "string"))
    values = [written(*each) for each in ((CLICK, {"user": "a", "page": None, "ms": 1, "at": AT}, 1),) * 3]
    values.insert(1, written(newer, {"user": "b", "country": "de"}, 2))
    rows, bad = read(values, entry("user string, country string"), {1: CLICK, 2: newer})
    assert [(row["user"], row["country"]) for row in rows] == [("a", None), ("b", "de"), ("a", None), ("a", None)]
    assert bad == []


def test_what_columns_cannot_hold_quickly_is_read_one_by_one() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    tag = {"type": "enum", "name": "Tag", "symbols": ["a", "b"]}
    inner = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "long"}]}
    key = {"type": "string", "logicalType": "uuid"}
    day = {"type": "int", "logicalType": "date"}
    fields = ("price", price), ("tags", {"type": "array", "items": tag}), ("i", inner), ("id", key), ("day", day)
    value = {"price": Decimal("12.50"), "tags": ["a", "b"], "i": {"n": 5}, "id": "x-1", "day": date(2026, 1, 1)}
    of = entry("price decimal(9,2), tags array<string>, i struct<n: bigint>, id string, day date")
    schema = record(*fields)
    assert read([written({**schema, "fields": schema["fields"]}, value)], of, {7: schema}) == ([value], [])


def test_a_number_is_the_event_time_where_the_topic_says_so() -> None:
    schema = record(("id", "int"), ("ts", "long"))
    values = [written(schema, {"id": 1, "ts": ARRIVED_US // 1000}), written(schema, {"id": 2, "ts": 2**62})]
    rows, (bad,) = read(values, entry("id int, ts timestamp", "ms", event_time="ts"), {7: schema})
    assert rows == [{"id": 1, "ts": AT}]
    assert bad.number == 1
    logical = record(("id", "int"), ("ts", MILLIS))  # its writer calls it a time already
    of = entry("id int, ts timestamp", "s", event_time="ts")
    assert read([written(logical, {"id": 1, "ts": AT})], of, {7: logical})[0][0]["id"] == 1


def test_a_record_without_a_value_has_its_key_as_avro_or_text() -> None:
    of = entry("user string, ms int", key="user")
    keys = [b"bob", written("string", "ann", 8), written(record(("user", "string")), {"user": "cid"}, 9), b"\0\0"]
    rows, (bad,) = read([None] * 4, of, {8: "string", 9: record(("user", "string"))}, keys)
    assert [row["user"] for row in rows] == ["bob", "ann", "cid"] and bad.number == 3


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "0 bytes"),
        (b"\0\0\0", "3 bytes"),
        (b'{"user": "ann"}', "begins with byte 123"),
        (b"\0\0\0\0\x09\0", "schema 9 is not given"),
        (written(CLICK, {"user": "ann", "page": None, "ms": 1, "at": AT}) + b"!", "bytes are left behind"),
        (written(CLICK, {"user": "ann", "page": None, "ms": 1, "at": AT})[:-1], "no value of schema 7"),
        (b"\0\0\0\0\x07" + b"\xff" * 20, "no value of schema 7"),
    ],
)
def test_what_is_no_value_is_no_row_and_costs_its_neighbours_nothing(value: bytes, why: str) -> None:
    good = written(CLICK, {"user": "ann", "page": None, "ms": 1, "at": AT})
    rows, (bad,) = read([good, value, good], entry(CLICKS), {7: CLICK})
    assert len(rows) == 2 and bad.number == 1 and bad.raw == value and why in bad.why


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]},
        record(("all", {"type": "array", "items": "null"})),
        "no schema",
    ],
)
def test_a_schema_that_could_make_a_reader_run_for_ever_is_not_used(schema: Any) -> None:
    rows, (bad,) = read([b"\0\0\0\0\x07\2\2\2\2\2\0"], entry("next string"), {7: schema})
    assert rows == [] and "schema 7 cannot be used" in bad.why


def test_a_schema_that_unfolds_without_end_is_not_used() -> None:
    kinds: Any = "int"
    for number in range(40):
        fields = [{"name": "a", "type": kinds}, {"name": "b", "type": f"R{number - 1}" if number else "int"}]
        kinds = {"type": "record", "name": f"R{number}", "fields": fields}
    _, (bad,) = read([b"\0\0\0\0\x07\2"], entry("a string"), {7: kinds})
    assert "more than 10000 parts" in bad.why


PLAIN: dict[str, tuple[Any, str, Any]] = {  # a type, a column for it, and random values
    "int": ("int", "int", lambda r: r.choice([0, -1, 2**31 - 1, -(2**31), r.randrange(-1000, 1000)])),
    "long": ("long", "bigint", lambda r: r.choice([0, -1, 2**63 - 1, -(2**63), r.randrange(-(2**40), 2**40)])),
    "narrow": ("long", "int", lambda r: r.choice([0, 2**31 - 1, 2**31])),
    "double": ("double", "double", lambda r: r.choice([0.0, -0.5, 1e300, float("inf"), r.random()])),
    "float": ("float", "double", lambda r: r.choice([0.0, -0.5, 1.5])),
    "boolean": ("boolean", "boolean", lambda r: r.random() < 0.5),
    "string": ("string", "string", lambda r: r.choice(["", "a", "größe", "x" * 200])),
    "bytes": ("bytes", "binary", lambda r: r.randbytes(r.choice([0, 1, 70]))),
    "enum": ({"type": "enum", "name": "E", "symbols": ["x", "y"]}, "string", lambda r: r.choice("xy")),
    "millis": (MILLIS, "timestamp", lambda r: AT + timedelta(milliseconds=r.randrange(10**9))),
    "micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        "timestamp",
        lambda r: AT + timedelta(microseconds=r.randrange(10**15)),
    ),
}


def test_column_by_column_gives_what_one_by_one_gives_whatever_the_bytes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(seed)
    for _ in range(40):
        names = r.sample(sorted(PLAIN), r.randrange(1, len(PLAIN)))
        fields, columns = [], []
        for name in names:
            kind, column, _ = PLAIN[name]
            union = r.choice([kind, ["null", kind], [kind, "null"]])
            fields.append((name, union))
            if r.random() < 0.8:
                columns.append(f"{name} {column}")
        columns.append("other string")
        r.shuffle(columns)
        schema, of = record(*fields), entry(", ".join(columns))
        values = []
        for _ in range(r.choice([1, 5, 80])):
            made = {
                name: None if isinstance(kind, list) and r.random() < 0.3 else PLAIN[name][2](r)
                for name, kind in fields
            }
            value = bytearray(written(schema, made))
            if r.random() < 0.1:  # broken: flipped, cut, or longer
                at = r.randrange(5, len(value) + 1)
                value = r.choice([value[:at], value + b"\2", value[: at - 1] + r.randbytes(1) + value[at:]])
            values.append((bytes(value), made))
        rows, bad = read([value for value, _ in values], of, {7: schema})
        skipped = {each.number for each in bad}
        kept = [values[number] for number in range(len(values)) if number not in skipped]
        assert len(kept) == len(rows)
        with monkeypatch.context() as patched:
            patched.setattr("headrace.log.kafka.forms.avro.columns_of", lambda *_: None)
            for (value, _), row in zip(kept, rows, strict=True):
                assert repr(read([value], of, {7: schema})) == repr(([row], [])), (names, columns, value)
        for each in bad:
            value, made = values[each.number]
            fits = made.get("narrow") != 2**31 or "narrow int" not in columns
            assert value != written(schema, made) or not fits, each


# -- the registry --------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(registry_module, "TRY_AGAIN_SECONDS", (0.001, 0.001))
    with running() as found:
        yield found


def client(registry: FakeRegistry, **more: Any) -> Registry:
    settings = hr.kafka("a:1", registry=registry.url, **{"registry_private": True, **more})
    found = registry_of(settings)
    assert found is not None
    return found


def test_what_the_registry_answered_is_kept_while_it_is_down(registry: FakeRegistry) -> None:
    registry.put(7, CLICK)
    of = client(registry)
    assert json.loads(of.schema(7)[0]) == CLICK
    registry.answers = [(503, {}, b"")] * 10
    assert json.loads(of.schema(7)[0]) == CLICK
    with pytest.raises(hr.RegistryFailed, match="status 503") as error:
        of.schema(8)
    assert (error.value.url, error.value.what) == (registry.url, "schema 8")
    other = Registry(of._place)
    other.remember(of.known())  # as a worker is told
    assert json.loads(other.schema(7)[0]) == CLICK


def test_a_registry_that_does_not_answer_fails_the_reader_and_makes_no_dead_letters(registry: FakeRegistry) -> None:
    registry.answers = [(500, {}, b"")] * 10
    form = AvroForm(Schemas({}, client(registry)))
    value = written(CLICK, {"user": "ann", "page": None, "ms": 1, "at": AT})
    with pytest.raises(hr.RegistryFailed):
        decode([value], [None], np.array([ARRIVED_US]), entry(CLICKS), form)
    registry.answers = []
    registry.put(7, CLICK)
    batch, bad = decode([value], [None], np.array([ARRIVED_US]), entry(CLICKS), form)
    assert batch.num_rows == 1 and bad == []


def test_an_id_that_the_registry_does_not_know_is_asked_for_again_then_no_row(registry: FakeRegistry) -> None:
    registry.put(7, CLICK)
    registry.answers = [(404, {}, b"{}")]  # by a node that does not know it yet
    assert client(registry).schema(7)
    form = AvroForm(Schemas({}, client(registry)))
    for _ in range(2):
        batch, (bad,) = decode([written(CLICK, {"user": "a", "page": None, "ms": 1, "at": AT}, 9)], [None],
                               np.array([ARRIVED_US]), entry(CLICKS), form)  # fmt: skip
        assert batch.num_rows == 0 and bad.why == "the registry has no schema 9"
    assert sum(path == "/schemas/ids/9" for path, _ in registry.asked) == 3  # and not for each record


def test_a_schema_may_refer_to_others(registry: FakeRegistry) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int"}]}
    outer = record(("i", "Inner"), ("s", "string"))
    registry.put(7, outer, references=[{"name": "Inner", "subject": "in/ner", "version": 3}])
    registry.subjects["/subjects/in%2Fner/versions/3"] = {"schema": json.dumps(inner), "id": 6}
    form = AvroForm(Schemas({}, client(registry)))
    whole = record(("i", inner), ("s", "string"))
    value = written(whole, {"i": {"n": 4}, "s": "x"})
    batch, bad = decode([value], [None], np.array([ARRIVED_US]), entry("i struct<n: int>, s string"), form)
    assert (to_rows(batch), bad) == ([{"i": {"n": 4}, "s": "x"}], [])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "status 302"),
        ((401, {}, b""), "status 401"),
        ((200, {}, b"<html>"), "no JSON object"),
        ((200, {}, b"[" * 100_000), "no JSON object"),
        ((200, {}, b'"' + b"x" * (5 << 20) + b'"'), "longer than"),
        ((200, {}, b'{"schema": "\\"int\\"", "references": ["in"]}'), "references"),
        ((200, {}, b'{"schema": "\\"int\\"", "references": [{"subject": "in", "version": "last"}]}'), "references"),
        ((200, {}, b'{"schema": "\\"int\\"", "references": 1}'), "references"),
    ],
)
def test_an_answer_that_is_none_is_refused(registry: FakeRegistry, answer: Any, why: str) -> None:
    registry.answers = [answer]
    with pytest.raises(hr.RegistryFailed, match=why):
        client(registry).schema(7)
    assert len(registry.asked) == 1


def test_a_schema_of_another_kind_is_none(registry: FakeRegistry) -> None:
    registry.schemas[7] = {"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"}
    with pytest.raises(ValueError, match="is PROTOBUF, not AVRO"):
        client(registry).schema(7)


def test_addresses_of_this_machine_and_of_the_cloud_are_not_asked(registry: FakeRegistry) -> None:
    registry.put(7, CLICK)
    with pytest.raises(hr.RegistryFailed, match="registry_private=True"):
        client(registry, registry_private=False).schema(7)
    assert registry.asked == []
    for host in ("169.254.169.254", "[fe80::1]", "0.0.0.0", "[::ffff:a9fe:a9fe]"):
        found = registry_of(hr.kafka("a:1", registry=f"http://{host}:1", registry_private=True))
        with pytest.raises(hr.RegistryFailed, match="no such service is"):
            found.schema(7)  # type: ignore[union-attr]


def test_the_login_goes_to_the_registry_and_nowhere_else(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_SECRET", "s3cret")
    registry.answers = [(403, {}, b"")]
    of = client(registry, registry_username="ann", registry_password="env:REGISTRY_SECRET")
    with pytest.raises(hr.RegistryFailed) as error:
        of.schema(7)
    assert registry.asked == [("/schemas/ids/7", "Basic YW5uOnMzY3JldA==")]
    said = str(error.value) + repr(error.value.__dict__) + repr(vars(of)) + str(pickle.dumps(of._place))
    assert "s3cret" not in said and "YW5u" not in said
    monkeypatch.delenv("REGISTRY_SECRET")
    with pytest.raises(hr.RegistryFailed, match="not set"):
        of.schema(7)


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"registry": "ftp://a"}, "registry"),
        ({"registry": "https://ann:s3cret@a"}, "registry"),
        ({"registry": "https://a?x=s3cret"}, "registry"),
        ({"registry": "http://a", "registry_username": "ann", "registry_password": "env:P"}, "registry"),
        ({"registry": "https://a", "registry_password": "s3cret", "registry_username": "ann"}, "registry_password"),
        ({"registry": "https://a", "registry_username": "ann"}, "registry_username"),
        ({"registry_private": True}, "registry"),
    ],
)
def test_a_registry_that_makes_no_sense_is_named_without_its_secret(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(hr.InvalidArgument) as error:
        hr.kafka("a:9092", **settings)
    assert error.value.argument == argument and "s3cret" not in str(error.value)


def test_an_address_names_the_registry() -> None:
    from headrace.log.kafka.settings import parse_address

    given = hr.kafka("a:1", registry="http://r:8081/x", registry_private=True)
    assert parse_address(given.address) == given
    with pytest.raises(hr.InvalidArgument, match="true or false"):
        parse_address("kafka://a:1?registry=http://r&registry_private=yes")


@pytest.mark.parametrize("given", [{"7": CLICK}, {-1: CLICK}, {7: "{"}, {7: 5}])
def test_schemas_that_make_no_sense(given: Any) -> None:
    with pytest.raises(hr.InvalidArgument):
        hr.avro(given)


# -- on a broker ---------------------------------------------------------------------------------------


def test_a_topic_of_avro_is_read_like_any_other(broker: str, registry: FakeRegistry) -> None:
    from tests.kafka.test_foreign import make_topic, produce

    registry.put(7, CLICK)
    make_topic(broker, "avro.clicks")
    good = [written(CLICK, {"user": f"u{n}", "page": None, "ms": n, "at": AT}) for n in range(3)]
    produce(broker, "avro.clicks", *[(b"k", value) for value in good], (b"k", b"\0\0\0\0\x09\0"))
    address = hr.kafka(broker, prefix="avro.", registry=registry.url, registry_private=True)
    with hr.open_log(address) as log:
        clicks = log.adopt_topic("clicks", CLICKS, event_time="at", values=hr.avro())
        assert [record.value["ms"] for record in clicks.records()] == [0, 1, 2]
        assert [(each.reason, each.origin.offset) for each in log.dead_letters()] == [("unreadable", 3)]
        with pytest.raises(hr.InvalidArgument, match="which headrace only reads"):
            clicks.append({"user": "ann"})
        with clicks.group("g").join() as member:
            assert [record.value["ms"] for record in member.poll(timeout="20 seconds")] == [0, 1, 2]
        (batch,) = pickle.loads(pickle.dumps(clicks.ref())).open().batches(columns=["user"])
        assert batch == pa.record_batch({"user": ["u0", "u1", "u2"]})
        assert clicks.ref().schemas  # a worker asks the registry for nothing that the driver knows
        with pytest.raises(hr.InvalidArgument, match=r"must be hr.avro\(\)"):
            log.adopt_topic("clicks", CLICKS, values="avro")
    with hr.open_log(hr.kafka(broker, prefix="avro.")) as log:  # what is known of the topic has no address in it
        again = log.adopt_topic("clicks", CLICKS, event_time="at", values=hr.avro({7: CLICK}))
        assert [record.value["user"] for record in again.records()] == ["u0", "u1", "u2"]
