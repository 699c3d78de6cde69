"""Topics copied from a directory to Kafka and back."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

import headrace as hr
from headrace import copying
from headrace.copying import copy_topics
from tests.cli.conftest import Shell
from tests.test_copying import at, held, some


def test_to_kafka_and_back(broker: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK_ROWS", 50)
    address = f"kafka://{broker}?prefix=c{uuid.uuid4().hex[:8]}."
    with hr.open_log(tmp_path / "one") as one, hr.open_log(address) as there, hr.open_log(tmp_path / "two") as two:
        topic = some(one, random.Random(seed))
        topic.group("billing").rewind({number: each.next // 2 for number, each in topic.offsets().items()})
        committed = topic.group("billing").committed()
        for source, target in ((one, there), (there, two)):
            copied, (group,) = copy_topics(source, target)
            assert all(each.same for each in copied)
            made = target.topic("clicks")
            assert repr(held(made)) == repr(held(topic))
            assert (made.schema, made.settings) == (topic.schema, topic.settings)
            assert [each.progress for each in made.offsets().values()] == [
                each.progress for each in topic.offsets().values()
            ]
            for number, offset in group.offsets.items():
                left = sum(1 for _ in made.records(start={number: offset}, partition=number))
                assert left == topic.offsets()[number].next - committed[number]
        topic.append([{"user": "dan", "n": 1, "at": at(200)}])
        assert sum(each.copied for each in copy_topics(one, there)[0]) == 1
        assert sum(each.copied for each in copy_topics(there, two)[0]) == 1
        assert repr(held(two.topic("clicks"))) == repr(held(topic))


def test_the_command(broker: str, shell: Shell, tmp_path: Path) -> None:
    address = f"kafka://{broker}?prefix=c{uuid.uuid4().hex[:8]}."
    archive = ("--retention", "1 microsecond", "--archive", str(tmp_path / "archive"))
    shell.ok("topics", "create", "numbers", "n int", "--partitions", "2", *archive)
    shell.ok("produce", "numbers", stdin=b'{"n": 1}\n{"n": 2}\n{"n": 3}')
    shell.ok("groups", "rewind", "g", "numbers", "--start", "latest")
    assert shell.ok("maintain").rows[0]["records_archived"] == 3
    done = shell.ok("copy", "--from", str(shell.home), "--to", address)
    assert [(row["partition"], row["copied"], row["same"]) for row in done.rows] == [(0, 2, True), (1, 1, True)]
    assert "group g of numbers: 0:" in done.err
    assert sorted(row["n"] for row in shell.ok("consume", "numbers", "--log", address).rows) == [1, 2, 3]
    assert [row["copied"] for row in shell.ok("copy", "--from", str(shell.home), "--to", address).rows] == [0, 0]
    assert shell("copy", "--from", str(shell.home), "--to", str(shell.home)).code == 2
    assert "there is no log" in shell.refused("copy", "--from", str(tmp_path / "none"), "--to", address)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return Shell(tmp_path / "home")
