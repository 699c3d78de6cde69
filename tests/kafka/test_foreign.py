"""What is Kafka's own: topics of others, plain clients beside us, secrets, transactions that die, retention."""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import keys
from headrace.log.capabilities import Clock, Erasure, Files, Queues, Usage, Versions, capability
from headrace.log.contract import Log, Topic
from headrace.log.kafka import client

CLICKS = "user string, page string, at timestamp"


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:8]}."


@pytest.fixture
def log(broker: str, prefix: str) -> Iterator[Any]:
    with hr.open_log(hr.kafka(broker, prefix=prefix)) as log:
        yield log


def plain_records(broker: str, topic: str) -> list[Any]:
    """All that a client which knows nothing of headrace reads: committed records, to the end."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": "plain",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    out, left = [], len(partitions)
    while left:
        message = consumer.poll(10)
        assert message is not None, "nothing came for ten seconds"
        if message.error() is None:
            out.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            left -= 1
    consumer.close()
    return out


def produce(broker: str, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    """(key, value) pairs, by a plain client."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(10) == 0


def committed_for_kafka(broker: str, group: str) -> dict[int, int]:
    """As Kafka's own tools ask for it."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
    return {at.partition: at.offset for at in found.topic_partitions}


def make_topic(broker: str, topic: str, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(10)


# -- beside plain clients ------------------------------------------------------------------------------


def test_it_is_a_log_and_has_queues_of_all_the_capabilities(log: Any) -> None:
    topic = log.create_topic("t", "a int", key="a")
    assert isinstance(log, Log) and isinstance(topic, Topic) and isinstance(topic.ref().open(), Topic)
    kinds = [(topic, kind) for kind in (Erasure, Usage)] + [(log, Files), (log, Clock)]
    for handle, kind in kinds:
        with pytest.raises(hr.Unsupported, match=f"has no {kind.__name__.lower()}"):
            capability(handle, kind)
    with pytest.raises(hr.Unsupported, match="versions"):
        log.create_topic("v", "a int", key="a", versioned=True)
    assert isinstance(topic, Queues) and not isinstance(topic, Versions)


def test_a_plain_client_reads_json_values_text_keys_and_the_published_partition(
    log: Any, broker: str, prefix: str
) -> None:
    topic = log.create_topic("clicks", CLICKS, key="user", event_time="at", partitions=4)
    topic.append([{"user": f"u{n}", "page": "/", "at": "2026-01-01T00:00:00Z"} for n in range(8)])
    found = plain_records(broker, f"{prefix}clicks")
    assert len(found) == 8
    for message in found:
        value = json.loads(message.value())
        assert value == {"user": message.key().decode(), "page": "/", "at": "2026-01-01T00:00:00Z"}
        assert message.partition() == zlib.crc32(message.key()) % 4


def test_a_plain_client_writes_what_we_read_and_what_is_no_row_becomes_one_dead_letter(
    log: Any, broker: str, prefix: str
) -> None:
    topic = log.create_topic("clicks", CLICKS, key="user", event_time="at")
    good = b'{"user": "ann", "page": "/", "at": "2026-01-01T00:00:00Z", "more": 1}'
    produce(broker, f"{prefix}clicks", (b"ann", good), (b"bob", b"not json"), (b"cid", None), (None, b'{"user": 5}'))
    for _ in range(2):  # whoever reads, and however often
        assert [(r.offset, r.value["user"], r.value["page"]) for r in topic.records()] == [
            (0, "ann", "/"),
            (2, "cid", None),  # a tombstone is a row that has only its key
        ]
    letters = list(log.dead_letters())
    assert [(each.reason, each.origin.topic, each.origin.offset, each.value) for each in letters] == [
        ("unreadable", "clicks", 1, b"not json"),
        ("unreadable", "clicks", 3, b'{"user": 5}'),
    ]
    assert "user" in letters[1].error
    letters[0].drop()
    assert [each.origin.offset for each in log.dead_letters()] == [3]
    assert log.dead_letters_count() == 1


def test_json_made_by_column_is_json_made_by_row() -> None:
    import orjson
    import pyarrow as pa

    from headrace.log.kafka.values import _json_by_column
    from headrace.rows import to_rows
    from headrace.schema import parse_ddl

    schema = parse_ddl("a string, n int, t timestamp, b boolean")
    texts = ["x", "", None, "größe /", "\u2028"]
    times = [datetime(1850, 1, 1, 5, 6, 7, 123000, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None]
    rows = [{"a": a, "n": n, "t": t, "b": n > 0} for a in texts for n in (-5, 7) for t in times]
    batch = pa.RecordBatch.from_pylist([*rows, {}], schema=schema)
    assert _json_by_column(batch) == [orjson.dumps(row, option=orjson.OPT_UTC_Z) for row in to_rows(batch)]
    for text in ('a"b', "a\\b", "a\nb", "\x00", "\x1f"):  # these are encoded row by row
        assert _json_by_column(pa.RecordBatch.from_pylist([{"a": "x"}, {"a": text}])) is None


# -- topics of others ----------------------------------------------------------------------------------


def test_a_foreign_topic_is_adopted_with_a_number_as_its_event_time(log: Any, broker: str, prefix: str) -> None:
    make_topic(broker, f"{prefix}orders")
    produce(broker, f"{prefix}orders", (b"k", b'{"id": 1, "ts": 1767225600000}'), (b"k", b'{"id": 2, "ts": 0}'))
    with pytest.raises(hr.UnknownTopic):
        log.topic("orders")
    orders = log.adopt_topic("orders", "id int, ts bigint", event_time=hr.epoch("ts", "ms"))
    first, second = orders.records()
    assert str(first.value["ts"]) == "2026-01-01 00:00:00+00:00"
    assert second.progress == first.value["ts"]  # event time makes progress as everywhere
    assert orders.settings.partitions_added  # nobody knows by which rule its writers choose partitions
    assert [each.name for each in log.topics()] == ["orders"]
    with pytest.raises(hr.InvalidArgument, match="others write this topic"):
        orders.append({"id": 3, "ts": first.value["ts"]})
    with pytest.raises(hr.UnknownTopic):
        log.adopt_topic("nothing", "id int")


def test_a_foreign_topic_is_adopted_with_kafkas_timestamp_as_its_event_time(log: Any, broker: str, prefix: str) -> None:
    make_topic(broker, f"{prefix}orders", **{"message.timestamp.type": "LogAppendTime"})
    produce(broker, f"{prefix}orders", (None, b'{"id": 1}'))
    (record,) = log.adopt_topic("orders", "id int", event_time="_timestamp").records()
    assert record.value == {"id": 1, "_timestamp": record.arrived_at}


# -- what dies, what is deleted ------------------------------------------------------------------------


def test_records_that_others_aborted_are_not_read_and_leave_a_hole(log: Any, broker: str, prefix: str) -> None:
    from confluent_kafka import Producer

    topic = log.create_topic("t", "n int")
    topic.append({"n": 1})
    other = Producer({"bootstrap.servers": broker, "transactional.id": f"{prefix}other"})
    other.init_transactions(20)
    other.begin_transaction()
    other.produce(f"{prefix}t", b'{"n": 2}', partition=0)
    assert other.flush(10) == 0
    assert [record.value["n"] for record in topic.records()] == [1]  # it is open: nobody reads past it
    other.abort_transaction(20)
    topic.append({"n": 3})
    found = list(itertools.islice(topic.records(follow=True, timeout="10 seconds"), 2))
    assert [record.value["n"] for record in found] == [1, 3] and found[1].offset >= 2
    assert [record.value["n"] for record in topic.records({0: 1})] == [3]


def test_a_sender_sends_each_number_once_and_fences_the_one_before_it(log: Any, broker: str, prefix: str) -> None:
    import pyarrow as pa

    log.create_topic("out", "n int")
    rows = pa.table({"n": pa.array([1, 2], pa.int32())})
    old = log.sender("flow.f")
    old.send("out", rows, 0)
    old.send("out", rows, 0)  # again, after a crash that the store does not know of
    new = log.sender("flow.f")
    new.send("out", rows, 0)
    new.send("out", rows, 2)
    with pytest.raises(hr.ProducerFenced):
        old.send("out", rows, 4)
    assert [json.loads(each.value())["n"] for each in plain_records(broker, f"{prefix}out")] == [1, 2, 1, 2]


def test_offsets_that_retention_deleted_are_our_error(log: Any, broker: str, prefix: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = log.create_topic("t", "n int")
    topic.append([{"n": n} for n in range(5)])
    physical = TopicPartition(f"{prefix}t", 0, 3)
    admin = AdminClient({"bootstrap.servers": broker})
    for done in admin.delete_records([physical]).values():
        done.result(10)
    with pytest.raises(hr.OffsetOutOfRange) as error:
        list(topic.records({0: 1}))
    assert (error.value.offset, error.value.earliest, error.value.next) == (1, 3, 5)
    assert [record.offset for record in topic.records()] == [3, 4]


def test_a_group_that_retention_overtook_is_told_what_it_lost(log: Any, broker: str, prefix: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = log.create_topic("t", "n int")
    topic.append([{"n": n} for n in range(5)])
    with topic.group("g").join() as member:
        assert len(member.poll(timeout="20 seconds", max_records=1)) == 1
        member.commit()
    admin = AdminClient({"bootstrap.servers": broker})
    for done in admin.delete_records([TopicPartition(f"{prefix}t", 0, 3)]).values():
        done.result(10)
    with topic.group("g").join() as member:
        for _ in range(2):
            with pytest.raises(hr.OffsetOutOfRange) as error:
                member.poll(timeout="20 seconds")
            assert (error.value.offset, error.value.earliest, error.value.next) == (1, 3, 5)
    topic.group("g").rewind("earliest")
    with topic.group("g").join() as member:
        assert [record.offset for record in member.poll(timeout="20 seconds")] == [3, 4]
    with topic.group("new").join() as member:  # one that has read nothing has lost nothing
        assert [record.offset for record in member.poll(timeout="20 seconds")] == [3, 4]


def test_a_topic_that_others_created_again_is_another(log: Any, broker: str, prefix: str) -> None:
    from confluent_kafka.admin import AdminClient

    topic = log.create_topic("t", "n int")
    topic.append({"n": 1})
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([f"{prefix}t"])[f"{prefix}t"].result(10)
    until = time.monotonic() + 10
    with pytest.raises(hr.TopicReplaced):
        while time.monotonic() < until:
            topic.settings  # noqa: B018
    with pytest.raises((hr.TopicReplaced, hr.UnknownTopic)):
        log.topic("t")


def test_two_members_that_poll_share_a_topic_and_kafka_knows_their_lag(log: Any, broker: str, prefix: str) -> None:
    topic = log.create_topic("t", "n int", partitions=2)
    topic.append([{"n": n} for n in range(100)])
    found: list[int] = []
    lock, done = threading.Lock(), threading.Event()

    def work(member: Any) -> None:
        with member:
            while not done.is_set():
                records = member.poll(timeout="100 milliseconds")
                member.commit()
                with lock:
                    found.extend(record.value["n"] for record in records)
                    if len(found) >= 100:
                        done.set()

    workers = [threading.Thread(target=work, args=(topic.group("g").join(lease="6 seconds"),)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(set(found)) == list(range(100))
    assert {number: lag.records for number, lag in topic.group("g").lag().items()} == {0: 0, 1: 0}
    assert committed_for_kafka(broker, f"{prefix}g") == topic.group("g").committed()


def test_verify_names_what_others_have_done_to_topics(log: Any, broker: str, prefix: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    topic = log.create_topic("t", "n int", key="n", partitions=2)
    topic.append([{"n": n} for n in range(20)])
    log.create_topic("gone", "n int")
    assert (log.verify().ok, log.verify().records, log.verify().topics) == (True, 20, 2)
    produce(broker, f"{prefix}t", (None, b"no row"))
    number = int(keys.partitions_of(pa.record_batch({"n": pa.array([7], pa.int32())}), ("n",), 2)[0])
    plain = Producer({"bootstrap.servers": broker})
    plain.produce(f"{prefix}t", b'{"n": 7}', b"7", 1 - number)  # by another rule than ours
    assert plain.flush(10) == 0
    admin = AdminClient({"bootstrap.servers": broker})
    shorter = ConfigEntry("retention.ms", "1000000", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, f"{prefix}t", incremental_configs=[shorter])
    for done in [*admin.incremental_alter_configs([asked]).values(), *admin.delete_topics([f"{prefix}gone"]).values()]:
        done.result(10)
    found = {(each.topic, each.what.partition(":")[0].partition(" in Kafka")[0]) for each in log.verify().problems}
    assert found == {
        ("gone", "is not in the cluster any more"),
        ("t", "is no row"),
        ("t", "lies outside the partition of its key"),
        ("t", "retention.ms is 1000000"),
    }
    assert log.dead_letters_count() == 0  # it changes nothing


# -- settings and secrets ------------------------------------------------------------------------------


def test_an_address_says_what_the_settings_say() -> None:
    from headrace.log.kafka.settings import parse_address

    given = hr.kafka("a:9092,b:9092", prefix="shop.", username="ann", password="env:PASS", mechanism="PLAIN")
    assert parse_address(given.address) == given
    assert given.address == ("kafka://a:9092,b:9092?prefix=shop.&username=ann&password=env%3APASS&mechanism=PLAIN")
    assert parse_address("kafka://a:9092") == hr.kafka("a:9092")


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"servers": "a"}, "servers"),
        ({"servers": "http://a:1"}, "servers"),
        ({"prefix": "a b"}, "prefix"),
        ({"username": "ann", "password": "s3cret"}, "password"),
        ({"username": "ann"}, "username"),
        ({"mechanism": "OAUTHBEARER"}, "mechanism"),
        ({"username": "ann", "password": "env:P", "tls": False}, "tls"),
        ({"ca": "ca.pem", "tls": False}, "tls"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named_without_its_secret(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(hr.InvalidArgument) as error:
        hr.kafka(**{"servers": "a:9092", **settings})
    assert error.value.argument == argument
    assert "s3cret" not in str(error.value) + repr(error.value)


@pytest.mark.parametrize("address", ["kafka://ann:s3cret@a:9092", "kafka://a:9092/x", "kafka://a:9092?pass=s3cret"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(hr.InvalidArgument) as error:
        hr.App("shop", log=address)
    assert "s3cret" not in str(error.value) + repr(error.value)


def test_a_secret_is_resolved_for_the_client_and_nowhere_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.setenv("CANARY", "s3cret")
    by_env = hr.kafka("127.0.0.1:9", username="ann", password="env:CANARY")
    assert by_env.client_config()["sasl.password"] == "s3cret"
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    by_file = hr.kafka("127.0.0.1:9", username="ann", password=f"file:{secret}")
    with pytest.raises(hr.InvalidArgument, match="others can read this file"):
        by_file.client_config()
    secret.chmod(0o600)
    assert by_file.client_config()["sasl.password"] == "s3cret"
    said = repr(by_env) + by_env.address + str(pickle.dumps(by_env)) + repr(hr.App("shop", log=by_env))
    assert "s3cret" not in said
    monkeypatch.delenv("CANARY")
    with pytest.raises(hr.InvalidArgument, match="not set"):
        by_env.client_config()


# -- what a newcomer meets -----------------------------------------------------------------------------


def test_a_topic_of_others_is_to_be_adopted(log: Any, broker: str, prefix: str) -> None:
    make_topic(broker, f"{prefix}theirs")
    produce(broker, f"{prefix}theirs", (None, b'{"a": 7}'))
    with pytest.raises(hr.UnknownTopic, match=r"is of others.*app\.topic\('theirs', .*create=False\)"):
        log.topic("theirs")
    with pytest.raises(hr.TopicExists, match=r"others have made it.*create=False") as refused:
        log.create_topic("theirs", "a int")
    assert refused.value.foreign
    assert [record.value for record in log.adopt_topic("theirs", "a int").records()] == [{"a": 7}]
    with pytest.raises(hr.UnknownTopic, match=r"^there is no topic 'nobodys'"):
        log.topic("nobodys")


@pytest.mark.parametrize(
    ("servers", "why"), [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid:9092", "Failed to resolve")]
)
def test_a_cluster_that_cannot_be_reached_is_told_soon_and_why(
    monkeypatch: pytest.MonkeyPatch, servers: str, why: str
) -> None:
    monkeypatch.setattr(client, "UNREACHED_SECONDS", 0.5)
    begun = time.monotonic()
    with pytest.raises(hr.KafkaFailed, match=rf"{why}.* Does a broker run at this address"):
        hr.open_log(f"kafka://{servers}")
    assert time.monotonic() - begun < client.REQUEST_SECONDS / 2
