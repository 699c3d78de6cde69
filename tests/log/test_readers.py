"""Flows as readers: retention minds what they told, and lag tools see it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

ROW = {"s": "x" * 100}


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with hr.open_log(tmp_path) as log:
        yield log


def test_a_start_with_a_typo_is_told_what_a_start_is(log: Any) -> None:
    topic = log.create_topic("t", "s string")
    for begin in (topic.records, lambda start: topic.group("g").rewind(start)):
        with pytest.raises(hr.InvalidArgument, match="start='erliest': must be 'earliest', 'latest', a time with zone"):
            list(begin(start="erliest"))


def test_what_a_flow_has_not_read_is_kept_until_it_tells(log: Any) -> None:
    topic = log.create_topic("t", "s string", retention_bytes=3_000, unread="keep", durability="os")
    log.report("v", [(topic, {0: 0})]).result()
    with pytest.raises(hr.TopicFull):
        for _ in range(100):
            topic.append(ROW)
    held = topic.offsets()[0].next
    log.report("v", [(topic, {0: held - 1})]).result()
    topic.append(ROW)
    assert 0 < topic.offsets()[0].earliest <= held - 1
    with pytest.raises(hr.TopicFull):
        for _ in range(100):
            topic.append(ROW)
    log.forget_flow("v")
    for _ in range(100):
        topic.append(ROW)
    assert topic.usage().consumers == [] and topic.groups() == []


def test_a_flow_is_seen_by_those_who_look_for_lag(log: Any) -> None:
    topic = log.create_topic("t", "s string", partitions=2, retention="1 hour")
    other = log.create_topic("u", "s string", retention="1 hour")
    topic.append([ROW] * 10)
    log.report("v", [(topic, {0: 2, 1: 0}), (other, {0: 0})]).result()
    assert {(each.kind, each.name, each.partition, each.offset) for each in topic.usage().consumers} == {
        ("flow", "v", 0, 2),
        ("flow", "v", 1, 0),
    }
    (group,) = topic.groups()
    assert (group.name, group.flow, group.committed()) == ("__flow.v", "v", {0: 2, 1: 0})
    assert sum(lag.records for lag in group.lag().values()) == 8
    left = group.time_to_loss()
    assert left is not None and timedelta(minutes=59) < left <= timedelta(hours=1)
    for use in (group.join, lambda: group.rewind("earliest")):
        with pytest.raises(hr.InvalidArgument, match="headrace views drop v"):
            use()
    with pytest.raises(hr.InvalidName, match="reserved"):
        topic.group("__other")
    log.report("v", [(topic, {0: 5, 1: 5})]).result()
    assert group.wait(lag=0, timeout="0 seconds") == (0, 0)
    group.delete()
    assert topic.groups() == [] and [each.flow for each in other.groups()] == ["v"]


def test_a_flow_that_is_overtaken_is_told(log: Any) -> None:
    topic = log.create_topic("t", "s string", retention_bytes=2_000, durability="os")
    log.report("v", [(topic, {0: 1})]).result()
    for _ in range(50):
        topic.append(ROW)
    topic.alter(retention="1 microsecond", retention_bytes=None)
    (told,) = log.maintain().overtaken
    assert (told.kind, told.consumer, told.start) == ("flow", "v", 1) and "before flow 'v' had read them" in str(told)


def test_a_topic_that_is_gone_is_told(log: Any) -> None:
    topic = log.create_topic("t", "s string")
    log.report("v", [(topic, {0: 0})]).result()
    log.delete_topic("t")
    with pytest.raises(hr.TopicReplaced):
        log.report("v", [(topic, {0: 1})])
    assert log.create_topic("t", "s string").groups() == []
