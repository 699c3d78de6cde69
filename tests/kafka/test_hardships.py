"""What goes wrong around a log on Kafka: processes that create, fork and die, clients that cannot be made."""

from __future__ import annotations

import multiprocessing
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import failpoints
from headrace.failpoints import InjectedFault
from tests.kafka.test_foreign import make_topic, produce


@pytest.fixture
def address(broker: str) -> str:
    return f"kafka://{broker}?prefix=h{uuid.uuid4().hex[:8]}."


def test_a_client_that_cannot_be_made_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(hr.KafkaFailed, match=r"ca\.location"):
        hr.open_log(hr.kafka("127.0.0.1:9", ca=str(tmp_path / "none.pem")))


def test_a_file_without_a_secret_in_it_is_named(tmp_path: Path) -> None:
    for text, why in ((b"\n", "is empty"), (b"s3cret\xff", "no text")):
        secret = tmp_path / "secret"
        secret.write_bytes(text)
        secret.chmod(0o600)
        with pytest.raises(hr.InvalidArgument, match=why) as error:
            hr.kafka("127.0.0.1:9", username="ann", password=f"file:{secret}").client_config()
        assert "s3cret" not in str(error.value) + repr(error.value.__context__)


def test_an_admin_client_that_is_replaced_answers_what_it_was_asked(address: str) -> None:
    """Else a thread waits in vain, because another one has met a partition that moved."""
    from headrace.log.kafka.client import Client
    from headrace.log.kafka.settings import parse_address

    client = Client(parse_address(address))
    for _ in range(5):
        asked = client.admin.describe_cluster()
        client.admin_stale, client._admin_made = True, 0.0  # as long ago as it may be
        assert client.admin is not None
        assert client.ask("asking for the cluster", asked).cluster_id


def test_an_append_does_not_wait_for_what_another_thread_was_told(address: str) -> None:
    """Threads share a producer, and a report of delivery comes to whoever polls it."""
    with hr.open_log(address) as log:
        topic = log.create_topic("t", "n int")
        topic.append({"n": 0})
        producer, over = topic._client.producer, threading.Event()

        def poll() -> None:
            while not over.is_set():
                producer.poll(0.5)

        others = [threading.Thread(target=poll) for _ in range(16)]
        for thread in others:
            thread.start()
        begun = time.monotonic()
        for number in range(20):
            topic.append({"n": number})
        took = time.monotonic() - begun
        over.set()
        for thread in others:
            thread.join()
    assert took < 4  # half a second for each that went to another


def test_many_processes_create_one_topic_at_once(address: str) -> None:
    """Each catalog is as that of a process of its own."""
    from headrace.log.kafka.catalog import Catalog
    from headrace.log.kafka.client import Client
    from headrace.log.kafka.settings import parse_address
    from headrace.log.settings import settings_of

    settings = parse_address(address)
    catalogs = [Catalog(Client(settings), settings.prefix) for _ in range(3)]
    found: list[Any] = []
    begin = threading.Barrier(3)

    def create(catalog: Catalog) -> None:
        begin.wait()
        found.append(catalog.create("t", "n int", settings_of({}), exist_ok=True).topic_id)

    threads = [threading.Thread(target=create, args=(each,)) for each in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and len(set(found)) == 1


def test_what_two_processes_change_of_a_topic_at_once_is_both_there(address: str) -> None:
    """Workers of several queues start together. Each catalog is as that of a process of its own."""
    from headrace.log.kafka.catalog import Catalog, QueueEntry
    from headrace.log.kafka.client import Client
    from headrace.log.kafka.settings import parse_address

    settings = parse_address(address)
    with hr.open_log(address) as log:
        log.create_topic("t", "n int")
    catalogs = [Catalog(Client(settings), settings.prefix) for _ in range(3)]
    begin = threading.Barrier(3)

    def put(number: int, names: list[str]) -> None:
        catalog = catalogs[number]
        for name in names:
            entry = catalog.named("t")
            begin.wait()
            catalog.put_queue(
                entry,
                QueueEntry(name, 30_000, 5),
                f"{settings.prefix}{name}",
                {"share.isolation.level": "read_committed"},
            )

    names = [[f"q{number}{round}" for round in range(4)] for number in range(3)]
    threads = [threading.Thread(target=put, args=each) for each in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for catalog in catalogs:
        catalog.refresh(now=True)
        assert [each.name for each in catalog.named("t").queues] == sorted(name for each in names for name in each)


def test_a_topic_whose_creator_died_in_between_is_finished_and_one_of_others_is_not(address: str, broker: str) -> None:
    from headrace.log.kafka.catalog import config_of
    from headrace.log.settings import settings_of

    prefix = address.partition("prefix=")[2]
    make_topic(broker, f"{prefix}ours", **config_of(settings_of({})))
    make_topic(broker, f"{prefix}others")
    with hr.open_log(address) as log:
        ours: Any = log.create_topic("ours", "n int", exist_ok=True)
        ours.append({"n": 1})
        with pytest.raises(hr.TopicExists):
            log.create_topic("others", "n int", exist_ok=True)


def test_a_topic_that_cannot_be_understood_keeps_nobody_from_the_others(address: str, broker: str) -> None:
    """A newer headrace has settings that this one does not know; and anybody may write what is nonsense."""
    import orjson

    prefix = address.partition("prefix=")[2]
    with hr.open_log(address) as log:
        log.create_topic("ours", "n int").append({"n": 1})
        newer: Any = log.create_topic("newer", "n int")
        said = orjson.loads(newer.entry().encoded())
        said["settings"]["of_a_later_version"] = 1
        odd = [(b"newer", orjson.dumps(said)), (b"text", b"{nonsense"), (b"list", b"[1]"), (b"\xff", b"{}")]
        produce(broker, f"{prefix}__headrace.topics", *odd)
        newer._handle.catalog.refresh(now=True)
        (record,) = log.topic("ours").records()
        assert record.value == {"n": 1}
        for ask in (
            lambda: log.topic("newer"),
            newer.offsets,
            lambda: newer.append({"n": 2}),
            lambda: log.create_topic("text", "n int", exist_ok=True),
            lambda: log.adopt_topic("list", "n int"),
        ):
            with pytest.raises(hr.UnsupportedFormat, match="Upgrade headrace"):
                ask()
        assert [topic.name for topic in log.topics()] == ["ours"]
        assert {each.topic for each in log.verify().problems} == {"newer", "text", "list", "\ufffd"}


def test_a_sender_that_failed_inside_a_transaction_goes_on(address: str) -> None:
    with hr.open_log(address) as log:
        out: Any = log.create_topic("out", "n int")
        sender = log.sender("flow.f")
        rows = [pa.table({"n": pa.array([n], pa.int32())}) for n in range(2)]
        sender.send("out", rows[0], 0)
        for point in ("kafka.sent", "kafka.committed"):
            failpoints.arm(point, "raise")
            try:
                with pytest.raises(InjectedFault):
                    sender.send("out", rows[1], 1)
            finally:
                failpoints.disarm()
        sender.send("out", rows[1], 1)
        assert [record.value["n"] for record in out.records()] == [0, 1]


def test_rows_that_a_sender_has_sent_in_part_are_refused(address: str) -> None:
    with hr.open_log(address) as log:
        out: Any = log.create_topic("out", "n int")
        sender = log.sender("flow.f")
        rows = pa.table({"n": pa.array(range(4), pa.int32())})
        sender.send("out", rows.slice(0, 2), 0)
        sender.send("out", rows.slice(0, 2), 0)
        with pytest.raises(hr.BatchDiffers):
            sender.send("out", rows, 0)
        assert (sender.sent("out"), sender.sent("nothing"), len(list(out.records()))) == (2, 0, 2)


def test_a_forked_child_is_told_to_open_its_own(address: str) -> None:
    with hr.open_log(address) as log:
        topic: Any = log.create_topic("t", "n int")
        topic.append({"n": 1})

        def child() -> None:
            with pytest.raises(hr.ForkedProcess):
                topic.append({"n": 2})
            with hr.open_log(address) as own:
                own.topic("t").append({"n": 3})

        forked = multiprocessing.get_context("fork").Process(target=child)
        forked.start()
        forked.join(30)
        assert forked.exitcode == 0
        assert [record.value["n"] for record in topic.records()] == [1, 3]


def test_values_that_end_other_readers_become_dead_letters(address: str, broker: str) -> None:
    with hr.open_log(address) as log:
        topic: Any = log.create_topic("t", "n int, at timestamp", event_time="at")
        values = (b"null", b'{"n": 1, "at": "2999-01-01T00:00:00Z"}', b'{"n": 2}')
        produce(broker, f"{address.partition('prefix=')[2]}t", *((None, value) for value in values))
        for _ in range(2):
            assert [record.value["n"] for record in topic.records()] == [2]
        letters = list(log.dead_letters())
        assert [(each.reason, each.origin.offset) for each in letters] == [("unreadable", 0), ("max_ahead", 1)]
        assert topic.offsets()[0].progress is None
        with topic.group("g").join() as member:
            assert [record.value["n"] for record in member.poll("5 seconds")] == [2]
        assert log.dead_letters_count() == 2


def test_what_is_behind_is_read_first(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.flows.reading import ranges
    from headrace.log.kafka import reading

    monkeypatch.setattr(reading, "CHUNK_ROWS", 10)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with hr.open_log(address) as log:
        topic: Any = log.create_topic("t", "n int, at timestamp", event_time="at", partitions=2)
        for partition in (0, 1):
            topic.append([{"n": n, "at": at + timedelta(seconds=n)} for n in range(100)], partition=partition)
        behind = ranges.Behind(topic, {0: 0, 1: 40}, topic.offsets())
        assert [span.stop for span in topic.spans(0, 0)][-1] == 100 and len(topic.spans(0, 0, 3)) == 3
        planned = {each.partition: each.stop for each in ranges.plan([behind], 60)["t"]}
    assert planned[0] >= 40 and planned[1] <= 60  # those of partition 1 are ahead by 40 seconds


def test_an_error_of_a_poll_loses_no_record(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the registry is away, or a dead letter cannot be written: what was fetched comes with the next poll."""
    from headrace.log.kafka.consume import groups

    with hr.open_log(address) as log:
        topic = log.create_topic("t", "n int")
        topic.append([{"n": n} for n in range(4)])
        with topic.group("g").join() as member, monkeypatch.context() as patched:

            def fails(*_: Any) -> Any:
                patched.undo()
                raise hr.KafkaFailed("broker", "decoding", "_TEST", "the registry is away", True)

            patched.setattr(groups, "decode", fails)
            with pytest.raises(hr.KafkaFailed):
                while not (found := member.poll(timeout="10 seconds")):
                    pass
            found = []
            while len(found) < 4:
                found += member.poll(timeout="10 seconds")
            assert [record.value["n"] for record in found] == [0, 1, 2, 3]
