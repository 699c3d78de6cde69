"""References to topics: pickled in one process, opened in another, and capabilities."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.log.capabilities import Erasure, Queues, capability
from headrace.log.embedded import topic as topics
from headrace.log.embedded.topic import EmbeddedTopic


def test_the_topics_used_last_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "OPEN_MAX", 3)
    monkeypatch.setattr(topics, "_open", {})
    refs = []
    for number in range(5):
        with hr.open_log(tmp_path / str(number)) as log:
            refs.append(log.create_topic("t", "a int").ref())
    first, *others = refs
    opened: list[EmbeddedTopic] = []
    for ref in others:
        opened += [first.open(), ref.open()]
    assert len({id(topic) for topic in opened}) == 5  # the first was never closed
    assert list(topics._open) == [others[-2], first, others[-1]]
    with pytest.raises(hr.Closed):
        opened[1].offsets()


def test_a_reference_opens_the_topic_in_another_process(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        topic = log.create_topic("t", "a int")
        topic.append([{"a": 1}, {"a": 2}])
        code = "import pickle, sys; topic = pickle.loads(sys.stdin.buffer.read()).open(); "
        code += "print([record.value['a'] for record in topic.records()])"
        done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(topic.ref()), capture_output=True)
    assert done.stdout.decode().strip() == "[1, 2]", done.stderr


def test_a_reference_does_not_take_another_topic_of_the_same_name(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        ref = log.create_topic("t", "a int").ref()
        log.delete_topic("t")
        log.create_topic("t", "a int")
        with pytest.raises(hr.TopicReplaced):
            ref.open()


def test_a_capability_is_the_handle_itself_or_an_error_that_names_it(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        topic = log.create_topic("t", "a int", key="a")
        assert capability(topic, Queues) is topic and capability(topic, Erasure) is topic
        with pytest.raises(hr.Unsupported, match="has no queues: only a log in a directory has") as raised:
            capability(log, Queues)
        assert (raised.value.handle, raised.value.what) == (repr(log), "queues")
