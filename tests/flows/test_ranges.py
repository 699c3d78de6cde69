"""What a worker keeps open, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.flows import ranges


def test_a_worker_keeps_the_topics_it_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "OPEN_MAX", 3)
    monkeypatch.setattr(ranges, "_open", {})
    ids = {}
    for number in range(5):
        with hr.open_log(tmp_path / str(number)) as log:
            ids[str(tmp_path / str(number))] = log.create_topic("t", "a int").topic_id
    first, *others = ids
    topics = []
    for home in others:
        topics += [ranges.worker_topic(first, "t", ids[first]), ranges.worker_topic(home, "t", ids[home])]
    assert len({id(topic) for topic in topics}) == 5  # the first was never closed
    assert [home for home, _ in ranges._open] == [others[-2], first, others[-1]]
    with pytest.raises(hr.Closed):
        topics[1].offsets()
    for log, _ in ranges._open.values():
        log.close()
