"""A log to check a program with: it shows what would be there, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.open import trial_log

NARROW, WIDE = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.int64()), ("m", pa.string())])


def test_topics_are_made_and_widened_beside(tmp_path: Path) -> None:
    with hr.open_log(tmp_path / "home") as log:
        log.create_topic("clicks", "a int")
        log.own_topic("__changes.v", NARROW)
        log.flow_topic("out", NARROW, flow="f")
        with trial_log(tmp_path / "beside", log) as trial:
            assert trial.create_topic("clicks", "a int", exist_ok=True).topic_id == log.topic("clicks").topic_id
            with pytest.raises(hr.TopicExists):
                trial.create_topic("clicks", "a int")
            trial.create_topic("new", "a int")
            assert trial.topic("new").schema.names == ["a"]
            for made in trial.own_topic("__changes.v", WIDE), trial.flow_topic("out", WIDE, flow="f"):
                assert made.schema.names == ["n", "m"], "as the program would have it"
            with pytest.raises(hr.IncompatibleSchema):
                trial.own_topic("__changes.v", pa.schema([("n", pa.string())]))
            trial.delete_own_topic("__changes.v")
        assert [topic.name for topic in log.topics()] == ["clicks", "out"]
        assert log.topic("out").schema == log.topic("__changes.v").schema == NARROW


def test_without_a_log_all_is_made_beside(tmp_path: Path) -> None:
    with trial_log(tmp_path / "beside", None) as trial:
        trial.create_topic("clicks", "a int")
        with pytest.raises(hr.UnknownTopic):
            trial.topic("other")
    assert not (tmp_path / "home").exists()
