"""Flows on Kafka, without a JVM, which has no part in it: the view is that of the embedded log, whatever the cuts and
the restarts, and a flow that is killed writes each change once."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import failpoints
from tests.flows.sparkless import Sparkless
from tests.kafka.test_foreign import plain_records

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("records", "total")


def row(seconds: float, number: int) -> dict[str, Any]:
    return {"word": "ab"[number % 2], "n": number, "at": START + timedelta(seconds=seconds)}


def opened(home: Path, address: str | None, window: Any = None, **how: Any) -> Sparkless:
    log = None if address is None else hr.open_log(address)
    return Sparkless(home, window or hr.tumbling("4 seconds"), names=NAMES, within=6, log=log, **how)


def view_of(flow: Sparkless) -> tuple[list[str], list[str]]:
    """Rows without the time of their update, and the ledger."""
    with flow.views as views:
        schema, batches = views.batches("view")
        rows = pa.Table.from_batches(batches, schema).drop_columns(["_updated_at"]).to_pylist()
        return sorted(map(str, rows)), sorted(map(str, views.ledger("view").to_pylist()))


def test_a_view_is_that_of_the_embedded_log_whatever_the_cuts_holes_and_restarts(
    broker: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    some = [row(n / 4 + rng.uniform(-15, 0), n) for n in range(120)]  # some late, some too late
    with opened(tmp_path / "embedded", None) as flow:
        flow.topic.append(some)
        flow.loop.drain()
        wanted = view_of(flow)
    assert "dropped" in wanted[1][0]
    address = f"kafka://{broker}?prefix=c{uuid.uuid4().hex[:8]}."
    for begin in range(0, 120, 40):
        with opened(tmp_path / "kafka", address) as flow:  # a new process knows what the view store knows
            for at in range(begin, begin + 40, 8):
                if rng.random() < 0.5:  # its end is a hole in the offsets
                    with flow.log.transaction() as tx:
                        tx.append("events", some[at : at + 8])
                else:
                    flow.topic.append(some[at : at + 8])
                while flow.loop.step(rng.randrange(1, 9)):
                    pass
            if begin == 80:
                assert view_of(flow) == wanted
                shown = flow.topic.group("__flow.view").lag()
                assert 0 < (shown[0].committed or 0) <= shown[0].next  # for Kafka's own tools


def test_what_a_flow_wrote_of_several_partitions_is_late_by_none_of_the_others(broker: str, tmp_path: Path) -> None:
    """Records carry the progress of the partition that they were read from: one hour lies behind another here."""
    hours = [[row(3600 * hour + n, n) for n in range(8)] for hour in (2, 0, 1)]
    found = []
    for address in (None, f"kafka://{broker}?prefix=o{uuid.uuid4().hex[:8]}."):
        with opened(tmp_path / ("one" if address is None else "other"), address) as flow:
            for some in hours:
                flow.topic.append(some, progress=[None, *(each["at"] for each in some[:-1])])
                while flow.loop.step(3):
                    pass
            found.append(view_of(flow))
    assert found[0] == found[1] and sum("'dropped': 0" in each for each in found[1][1]) == len(found[1][1]) >= 6


def test_a_header_that_is_no_time_of_here_and_now_moves_nothing(broker: str, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    prefix = f"h{uuid.uuid4().hex[:8]}."
    with opened(tmp_path, f"kafka://{broker}?prefix={prefix}") as flow:
        flow.topic.append(row(1, 0))
        producer = Producer({"bootstrap.servers": broker})
        for value in ("999999999999999999", "-999999999999999999", str(2**53), ""):
            body = json.dumps({"word": "a", "n": 1, "at": "2026-01-01T00:00:02Z"}).encode()
            producer.produce(f"{prefix}events", body, headers=[("headrace-progress", value.encode())])
        assert producer.flush(10) == 0
        flow.topic.append(row(3, 1))
        flow.loop.drain()
        assert flow.topic.offsets()[0].progress == START + timedelta(seconds=3)
        assert [each.progress for each in flow.topic.records()][-2] is None
        assert all("'dropped': 0" in each for each in view_of(flow)[1])


def test_views_from_an_older_copy_write_nothing_twice(broker: str, tmp_path: Path) -> None:
    """Kafka has what was written since: rows that come now would be taken for it, and left out."""
    prefix, home, backup = f"v{uuid.uuid4().hex[:8]}.", tmp_path / "home", tmp_path / "backup"
    for number in range(2):
        with opened(home, f"kafka://{broker}?prefix={prefix}", emit="updates") as flow:
            flow.topic.append([row(4 * number + n, n) for n in range(4)])
            flow.loop.drain()
        if number == 0:
            shutil.copytree(home, backup)
    before = len(plain_records(broker, f"{prefix}view"))
    with pytest.raises(hr.ViewsDiverged, match="headrace views drop view"):
        opened(backup, f"kafka://{broker}?prefix={prefix}", emit="updates")
    assert len(plain_records(broker, f"{prefix}view")) == before


def test_progress_is_what_the_flow_has_stored_where_retention_took_the_records(broker: str, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    prefix = f"p{uuid.uuid4().hex[:8]}."
    address = f"kafka://{broker}?prefix={prefix}"
    with opened(tmp_path / "home", address) as flow:
        flow.topic.append([row(100, 0), row(50, 1)])
        flow.loop.drain()
    admin = AdminClient({"bootstrap.servers": broker})
    for done in admin.delete_records([TopicPartition(f"{prefix}events", 0, 2)]).values():
        done.result(10)
    from headrace.log.kafka import base_topic

    base_topic._readers.clear()  # as in another process
    with opened(tmp_path / "home", address) as flow:
        flow.topic.append([row(60, 2)])  # late by what is gone: 100 - 64 is more than within
        flow.loop.drain()
        with flow.views as views:
            ledger = views.ledger("view").to_pylist()
    assert sum(each["dropped"] for each in ledger) == 2


def killed(home: Path, address: str, point: str) -> None:
    with opened(home, address, hr.session("4 seconds"), emit="updates") as flow:
        failpoints.arm(point, "kill")
        flow.loop.drain()


@pytest.mark.parametrize("point", ["view.committed", "kafka.sent", "kafka.committed", "relay.appended"])
def test_a_plain_consumer_sees_each_change_once_wherever_the_flow_is_killed(
    point: str, broker: str, tmp_path: Path
) -> None:
    prefix = f"x{uuid.uuid4().hex[:8]}."
    address, home = f"kafka://{broker}?prefix={prefix}", tmp_path / "home"
    with opened(home, address, hr.session("4 seconds"), emit="updates") as flow:
        flow.topic.append([row(0, 2), row(3, 4), row(9, 6)])
        flow.loop.drain()
        flow.topic.append([row(6, 8)])  # it makes two sessions one
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=killed, args=(home, address, point))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    with opened(home, address, hr.session("4 seconds"), emit="updates") as flow:
        flow.loop.drain()
    found = [json.loads(each.value()) for each in plain_records(broker, f"{prefix}view")]
    assert [(each["op"], each["records"], each["total"]) for each in found] == [
        *(("+", 2, 6), ("+", 1, 6)),
        *(("-", 2, 6), ("-", 1, 6), ("+", 4, 20)),  # -A -B +AB
    ]
