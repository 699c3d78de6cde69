"""A flow over a topic whose old records are in an archive: the same view, without a JVM."""

from __future__ import annotations

from pathlib import Path

import headrace as hr
from tests.flows.sparkless import Sparkless
from tests.flows.test_windows_sparkless import at


def test_a_flow_reads_an_archive(tmp_path: Path) -> None:
    words = "abcabcaab" * 5
    with Sparkless(tmp_path / "home", hr.tumbling("4 seconds"), names=("records", "total")) as flow:
        for number, word in enumerate(words):
            flow.topic.append({"word": word, "n": number, "at": at(number)})
        flow.topic.alter(retention="1 microsecond", archive=str(tmp_path / "archive"))
        done = flow.log.maintain()
        assert (done.records_archived, done.postponed) == (len(words), []) and flow.topic.usage().bytes == 0
        flow.topic.append({"word": "z", "n": 0, "at": at(100)})
        flow.loop.drain(7)
        rows = flow.views.to_arrow("view").to_pylist()
    assert sum(row["records"] for row in rows) == len(words) + 1
    assert sum(row["total"] for row in rows) == sum(range(len(words)))
    assert all(row["_corrections"] == 0 for row in rows), "each record has the progress that it had"
