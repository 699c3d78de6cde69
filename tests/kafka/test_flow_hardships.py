"""Flows on Kafka in bad times: transactions of others that do not end or are aborted, a driver that is stopped and goes
on when another has taken its flow, partitions that sleep, records that retention takes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import uuid
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.flows.loop import FlowLoop
from headrace.log.kafka import base_topic, held
from headrace.views.open import open_store
from headrace.views.sql import flow_rows
from headrace.why import why
from tests.kafka.test_flow_loop import START, opened, row, view_of
from tests.kafka.test_foreign import plain_records

KAFKA_FENCED = 7


@pytest.fixture
def prefix() -> str:
    return f"b{uuid.uuid4().hex[:8]}."


@pytest.fixture
def address(broker: str, prefix: str) -> str:
    return f"kafka://{broker}?prefix={prefix}"


def begun(broker: str, topic: str, values: list[dict[str, Any]]) -> Any:
    """A transaction of somebody else, with records in it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(10)
    producer.begin_transaction()
    for value in values:
        value = {**value, "at": value["at"].isoformat()}
        producer.produce(topic, json.dumps(value), partition=0)
    assert producer.flush(10) == 0
    return producer


def test_a_transaction_that_does_not_end_is_named_and_an_aborted_one_is_not_read(
    broker: str, prefix: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "home", address) as flow:
        flow.topic.append([row(0, 2), row(1, 4)])
        others = begun(broker, f"{prefix}events", [row(2, 100)])
        flow.topic.append([row(3, 6)])  # behind the open transaction: nobody reads it
        flow.loop.drain()
        assert flow.topic.open_transactions() == []  # it may be about to end
        monkeypatch.setattr(held, "HELD_SECONDS", 0.0)
        (found,) = flow.topic.open_transactions()
        assert (found.topic, found.partition, found.offset, found.end) == ("events", 0, 2, 4)
        with flow.views as views:
            told = why(views, flow.log, "view", START, "a").waits_for
        assert told is not None and f"events/0: a transaction that is open since {found.since.isoformat()}" in told
        assert f"abort --topic {prefix}events --partition 0 --start-offset 2" in told
        others.abort_transaction(10)
        until_ended(flow.topic)
        flow.loop.drain()
        assert flow.topic.open_transactions() == []
        assert sum(each["records"] for each in rows_of(flow)) == 3  # 100 is not among them


def until_ended(topic: Any) -> None:
    """A transaction's end is answered before readers see it."""
    limit = time.monotonic() + 30
    while topic.ends()[0].next < topic.written()[0]:
        assert time.monotonic() < limit
        time.sleep(0.01)


def rows_of(flow: Any) -> list[dict[str, Any]]:
    with flow.views as views:
        _, batches = views.batches("view")
        return [each for batch in batches for each in batch.to_pylist()]


def stopped_driver(home: Path, address: str) -> None:
    with opened(home, address, hr.session("4 seconds"), emit="updates") as flow:
        failpoints.arm("kafka.sent", lambda: os.kill(os.getpid(), signal.SIGSTOP))
        try:
            flow.loop.drain()
        except hr.HeadraceError as error:
            os._exit(KAFKA_FENCED if isinstance(error, hr.FlowFenced) else 1)
        os._exit(0)


def test_a_driver_that_is_stopped_inside_a_transaction_and_goes_on_writes_nothing(
    broker: str, prefix: str, address: str, tmp_path: Path
) -> None:
    with opened(tmp_path / "home", address, hr.session("4 seconds"), emit="updates") as flow:
        flow.topic.append([row(0, 2), row(10, 4)])
    old = multiprocessing.get_context("forkserver").Process(target=stopped_driver, args=(tmp_path / "home", address))
    old.start()
    assert old.pid is not None
    stat = Path(f"/proc/{old.pid}/stat")
    limit = time.monotonic() + 60
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < limit
        time.sleep(0.02)
    with opened(tmp_path / "home", address, hr.session("4 seconds"), emit="updates") as flow:  # takes the flow
        flow.topic.append([row(20, 6)])
        flow.loop.drain()
        os.kill(old.pid, signal.SIGCONT)
        old.join(60)
        assert old.exitcode == KAFKA_FENCED
        flow.topic.append([row(30, 8)])
        flow.loop.drain()  # the old one took nothing back
    found = [json.loads(each.value()) for each in plain_records(broker, f"{prefix}view")]
    assert [(each["op"], each["total"]) for each in found] == [("+", 2), ("+", 4), ("+", 6), ("+", 8)]


def asleep(home: Path, address: str | None) -> Any:
    log: Any = hr.open_log(home if address is None else address)
    ddl = "word string, n int, at timestamp"
    log.create_topic("events", ddl, event_time="at", partitions=2, forget="1 second")
    return opened(home, address, partitions=2)


def test_a_partition_that_slept_does_not_reopen_the_past(address: str, tmp_path: Path) -> None:
    """As on the embedded log, where an append stamps it; here it is a mark of the flow's, which its audit knows."""
    wanted = None
    for home, log in ((tmp_path / "embedded", None), (tmp_path / "kafka", address)):
        with asleep(home, log) as flow:
            flow.topic.append([row(0, 1)], partition=1)
            time.sleep(1.2)  # longer than `forget`
            flow.topic.append([row(200, 2)], partition=0)
            flow.loop.drain()
            flow.topic.append([row(150, 3)], partition=1)  # its progress is at least 199
            flow.loop.drain()
            found = view_of(flow)
            wanted = wanted or found
            assert found == wanted
            if log is not None:
                assert audited(flow, tmp_path / "audit") == wanted
    assert "'dropped': 1" in str(wanted)


def audited(flow: Any, home: Path) -> tuple[list[str], list[str]]:
    """The view and the ledger, made again from the log and the flow's marks by a process that knows nothing else."""
    base_topic._readers.clear()
    with flow.views as views:
        until = replace(views.state("view"), read_marks=views.read_marks("view"))
    flow.store.close()
    flow.home = home
    with open_store(home) as store:
        loop = FlowLoop(flow.loop._query, log=flow.log, store=store, until=until)
        loop.begin()
        loop.drain()
        return view_of(flow)


def test_marks_are_kept_for_records_whose_past_retention_takes(
    broker: str, prefix: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    monkeypatch.setattr(flow_rows, "MARK_OFFSETS", 1)
    with opened(tmp_path / "home", address) as flow:
        for some in ([row(100, 0)], [row(60, 2), row(101, 4)]):  # the second is late by the first
            flow.topic.append(some)
            flow.loop.drain()
        with flow.views as views:
            assert [mark.offset for mark in views.read_marks("view")] == [0, 1, 3]
            whole = views.ledger("view").to_pylist()
        admin = AdminClient({"bootstrap.servers": broker})
        for done in admin.delete_records([TopicPartition(f"{prefix}events", 0, 1)]).values():
            done.result(10)
        _, ledger = audited(flow, tmp_path / "audit")
    assert sum(each["dropped"] for each in whole) == 1
    assert "'dropped': 1" in str(ledger)


def test_a_flow_that_retention_overtakes_while_it_reads_says_what_is_lost(
    broker: str, prefix: str, address: str, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    with opened(tmp_path / "home", address) as flow:
        flow.topic.append([row(n, n) for n in range(10)])
        assert flow.loop.step(4) == 4
        admin = AdminClient({"bootstrap.servers": broker})
        for done in admin.delete_records([TopicPartition(f"{prefix}events", 0, 7)]).values():
            done.result(10)
        with pytest.raises(hr.OffsetOutOfRange) as error:
            flow.loop.drain()
        assert (error.value.offset, error.value.earliest) == (4, 7)
    assert isinstance(START, datetime)
