"""Topics copied from one log to another: all of each, with their progress and groups' positions, however often the copy
was interrupted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import copying
from headrace.copying import copy_topics
from headrace.log.contract import Log, Sender, Topic

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[tuple[Log, Log]]:
    with hr.open_log(tmp_path / "one") as one, hr.open_log(tmp_path / "two") as two:
        yield one, two


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK_ROWS", 7)


def held(topic: Topic) -> list[list[tuple[Any, ...]]]:
    """Of each partition, its records in order: value, key and progress."""
    return [
        [(record.value, record.key, record.progress) for record in topic.records(partition=number)]
        for number in sorted(topic.offsets())
    ]


def some(log: Log, dice: random.Random, count: int = 30) -> Topic:
    """A topic with disorder, nulls and texts that have to be escaped."""
    columns = "user string, n int, x double, d decimal(9,2), at timestamp, l array<int>"
    topic = log.create_topic("clicks", columns, key="user", event_time="at", partitions=3)
    for _ in range(count):
        rows = [
            {
                "user": dice.choice(["ann", "bob", None, 'c"\n']),
                "n": dice.choice([1, None]),
                "x": dice.choice([0.1, float("nan"), None]),
                "d": dice.choice(["1.50", None]),
                "at": dice.choice([None, at(dice.uniform(0, 100))]),
                "l": dice.choice([[1, None], [], None]),
            }
            for _ in range(dice.randrange(1, 6))
        ]
        topic.append(rows)
    return topic


def test_all_of_it_is_the_same(logs: tuple[Log, Log], seed: int) -> None:
    one, two = logs
    topic = some(one, random.Random(seed))
    one.create_topic("empty", "a int")
    seen: list[int] = []
    copied, groups = copy_topics(one, two, progress=seen.append)
    assert [(each.topic, each.partition) for each in copied] == [*(("clicks", n) for n in range(3)), ("empty", 0)]
    assert all(each.same for each in copied) and not groups
    made = two.topic("clicks")
    assert repr(held(made)) == repr(held(topic))  # NaN is not NaN
    assert (made.schema, made.settings) == (topic.schema, topic.settings)
    assert {n: each.progress for n, each in made.offsets().items()} == {
        n: each.progress for n, each in topic.offsets().items()
    }
    assert seen[-1] == topic.describe().records == sum(each.copied for each in copied)


class Cut(Exception):
    pass


class Cutting:
    """A log whose senders are killed before or behind what they send."""

    def __init__(self, log: Log, dice: random.Random) -> None:
        self._log, self._dice = log, dice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def sender(self, name: str) -> Sender:
        sender, dice = self._log.sender(name), self._dice

        class Killed:
            def send(self, *what: Any, **how: Any) -> Any:
                if dice.random() < 0.1:
                    raise Cut
                done = sender.send(*what, **how)
                if dice.random() < 0.1:
                    raise Cut
                return done

        return Killed()  # type: ignore[return-value]


def test_interrupted_anywhere_each_record_is_there_once(logs: tuple[Log, Log], seed: int) -> None:
    one, two = logs
    dice = random.Random(seed)
    topic = some(one, dice)
    runs = 0
    while True:
        runs += 1
        try:
            copied, _ = copy_topics(one, Cutting(two, dice), progress=None)  # type: ignore[arg-type]
            break
        except Cut:
            if dice.random() < 0.3:  # what comes meanwhile is copied, too
                topic.append([{"user": "dan", "n": runs, "at": at(runs)}])
    assert runs > 5 and all(each.same for each in copied)
    assert repr(held(two.topic("clicks"))) == repr(held(topic))


def test_run_again_it_copies_what_has_come_since(logs: tuple[Log, Log]) -> None:
    one, two = logs
    topic = one.create_topic("clicks", "user string, at timestamp", event_time="at", partitions=2)
    for second in range(20):
        topic.append({"user": "ann", "at": at(second)}, partition=second % 2)
    assert [each.copied for each in copy_topics(one, two)[0]] == [10, 10]
    assert [each.copied for each in copy_topics(one, two)[0]] == [0, 0]
    topic.alter(schema="user string, at timestamp, more int", partitions=3)
    topic.append([{"user": "bob", "at": at(50), "more": 1}], partition=2)
    topic.append([{"user": "bob", "at": at(51), "more": 2}], partition=0)
    copied, _ = copy_topics(one, two)
    assert [(each.copied, each.records, each.same) for each in copied] == [(1, 11, True), (0, 10, True), (1, 1, True)]
    assert held(two.topic("clicks")) == held(topic)


def test_progress_that_records_carry_is_carried_on(logs: tuple[Log, Log]) -> None:
    """As a flow wrote them, or as they began behind what retention has deleted."""
    one, two = logs
    topic = one.create_topic("out", "n int, at timestamp", event_time="at")
    table = pa.table({"n": pa.array([1, 2, 3], pa.int32()), "at": pa.array([at(1), at(2), at(3)])})
    topic.append(table, progress=[at(100), None, at(200)])
    topic.append([{"n": 4, "at": at(10)}])
    copied, _ = copy_topics(one, two)
    assert copied[0].same and held(two.topic("out")) == held(topic)


def test_behind_what_retention_has_deleted(logs: tuple[Log, Log]) -> None:
    one, two = logs
    topic = one.create_topic("clicks", "n int, at timestamp", event_time="at")
    for n in range(40):
        topic.append({"n": n, "at": at(n)})
    one.maintain()  # type: ignore[attr-defined]
    topic.alter(retention_bytes=1)
    for n in range(40, 60):
        topic.append({"n": n, "at": at(n)})
    one.maintain()  # type: ignore[attr-defined]
    topic.alter(retention_bytes=None)
    for n in range(60, 75):
        topic.append({"n": n, "at": at(n)})
    first = topic.offsets()[0].earliest
    assert first > 0
    topic.group("g").rewind({0: first + 9})
    (copied,), (group,) = copy_topics(one, two)
    made = two.topic("clicks")
    assert copied.same and held(made) == held(topic)
    assert made.offsets()[0].progress == at(73)  # records that carry their progress do not move it by their own time
    assert group.offsets == {0: 9}


def test_positions_of_groups(logs: tuple[Log, Log]) -> None:
    one, two = logs
    topic = one.create_topic("numbers", "n int", key="n", partitions=2)
    topic.append([{"n": n} for n in range(100)])
    topic.erase(3)  # type: ignore[attr-defined]  # offsets have holes, there and not here
    ends = {number: each.next for number, each in topic.offsets().items()}
    for name, share in (("half", 2), ("all", 1), ("none", 1000)):
        topic.group(name).rewind({number: end // share for number, end in ends.items()})
    _, groups = copy_topics(one, two)
    made = two.topic("numbers")
    for group in groups:
        wanted, found = (
            [
                record.value["n"]
                for number, offset in sorted(each.group(group.group).committed().items())
                for record in each.records(start={number: offset}, partition=number)
            ]
            for each in (topic, made)
        )
        assert wanted == found, group
    assert {group.group for group in groups} == {"half", "all", "none"}
    made.group("half").rewind("latest")
    topic.append([{"n": n} for n in range(5)])
    _, again = copy_topics(one, two)
    (half,) = [group for group in again if group.group == "half"]
    assert sum(half.offsets.values()) == 99, "a group that went on in the target is not sent back"


def test_what_others_have_written_is_not_the_same(logs: tuple[Log, Log]) -> None:
    one, two = logs
    one.create_topic("a", "n int").append([{"n": n} for n in range(10)])
    copy_topics(one, two)
    two.topic("a").append({"n": 99})
    assert [each.same for each in copy_topics(one, two)[0]] == [True]  # behind what was copied
    one.topic("a").append({"n": 10})
    assert [each.same for each in copy_topics(one, two)[0]] == [False]


def test_what_a_flow_writes_again_is_copied_only_if_it_is_named(logs: tuple[Log, Log]) -> None:
    one, two = logs
    one.create_topic("clicks", "n int").append({"n": 1})
    one.flow_topic("alerts", pa.schema([("n", pa.int32())]), flow="alerts").append({"n": 1})
    assert [each.topic for each in copy_topics(one, two)[0]] == ["clicks"]
    assert [each.topic for each in copy_topics(one, two, ["alerts"])[0]] == ["alerts"]


def test_what_is_refused(logs: tuple[Log, Log]) -> None:
    one, two = logs
    one.create_topic("a", "n int").append({"n": 1})
    two.create_topic("a", "n int").append({"n": 2})
    with pytest.raises(hr.InvalidArgument, match=r"'a'.*no copy of this topic has made: delete it there"):
        copy_topics(one, two, ["a"])
    one.create_topic("loose", "n int", extra="keep").append({"n": 1, "m": 2})
    with pytest.raises(hr.Unsupported, match="extra='keep'"):
        copy_topics(one, two, ["loose"])
    moved = one.create_topic("moved", "n int", key="n")
    moved.append([{"n": n} for n in range(10)])
    moved.alter(partitions=2)
    with pytest.raises(hr.Unsupported, match="partition of their key"):
        copy_topics(one, two, ["moved"])
    with pytest.raises(hr.UnknownTopic):
        copy_topics(one, two, ["nothing"])
    assert [topic.name for topic in two.topics()] == ["a", "moved"]
