"""When and where a record arrives, as the caller of the embedded log may say: a clock of its own, a partition."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.durations import from_us
from headrace.log.embedded.log import EmbeddedLog


def test_arrival_is_by_the_clock_it_was_opened_with(tmp_path: Path) -> None:
    now = [1_000_000]

    def clock() -> int:
        return now[0]

    with EmbeddedLog(tmp_path, clock_us=clock) as log:
        topic = log.create_topic("t", "at timestamp", event_time="at", max_ahead="1 second")
        for _ in range(2):
            topic.append({"at": from_us(2_000_000)})  # at most a second ahead of the clock
            now[0] += 1
        assert [record.arrived_at for record in topic.records()] == [from_us(1_000_000), from_us(1_000_001)]
        for rows in ({"at": from_us(2_000_003)}, [{"at": from_us(2_000_003)}] * 100):  # few and many go different ways
            assert topic.append(rows).ranges == {}
        with hr.open_log(tmp_path) as other:  # the same engine
            assert other.topic("t").append({"at": None}).ranges == {0: range(2, 3)}
        with pytest.raises(hr.InvalidArgument, match="another clock"):
            EmbeddedLog(tmp_path, clock_us=lambda: 0)


def test_a_partition_is_for_rows_without_a_key(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        plain, keyed = log.create_topic("plain", "a int", partitions=2), log.create_topic("keyed", "a int", key="a")
        plain.append([{"a": 1}, {"a": 2}], partition=1)
        assert [end.next for end in plain.offsets().values()] == [0, 2]
        for topic, partition in ((plain, 2), (keyed, 0), (plain, True)):
            with pytest.raises(hr.InvalidArgument, match="partition"):
                topic.append({"a": 1}, partition=partition)
