"""Audits that cannot begin at the log's first record: the flow did not, or retention has deleted it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows.audit import audit
from headrace.places import Home
from tests.flows.sparkless import Sparkless


def counting(app: hr.App, start: Any = "earliest", **settings: Any) -> Any:
    topic = app.topic("t", "who string, at timestamp", event_time="at", **settings)
    stream = app.stream(topic, start=start)
    window = stream.window(hr.tumbling("1 millisecond"), late=hr.correct(within="1 hour"), idle="1 day")
    window.group_by("who").agg(n=hr.count()).to_view("windows")
    stream.group_by("who").agg(n=hr.count()).to_view("totals")
    return topic


def spoil(app: hr.App, view: str) -> None:
    app.running.store._db.execute(f'UPDATE "{view}/rows" SET n = n + 1')


def test_a_flow_that_began_at_the_end(spark: Any, tmp_path: Path) -> None:
    """With lateness as it was judged: progress is the log's, and does not begin anew with the flow."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    with hr.App("latest", home=tmp_path, spark=spark) as app:
        topic = counting(app, "latest", partitions=2)
        topic.append([{"who": "a", "at": first + timedelta(hours=3)}] * 4)
        app.drain()
        for hours in 0, 2, 4:  # too late, late, and on time
            topic.append([{"who": "b", "at": first + timedelta(hours=hours)}] * 2)
        app.drain()
        assert [(row["who"], row["n"]) for row in app.view("totals").to_arrow().to_pylist()] == [("b", 6)]
        ledger = [tuple(row.values())[2:] for row in app.view("windows").ledger().to_pylist()]
        assert sorted(ledger) == [(0, 0, 2, 0), (0, 2, 0, 0), (2, 0, 0, 0)]
        topic.alter(partitions=3)  # one that is added is read from its begin
        for _ in range(3):
            topic.append({"who": "c", "at": first + timedelta(hours=5)})
        app.drain()
        audited = app.audit()
        assert audited.ok and audited.gone == [] and (audited.views, audited.rows) == (2, 5)
        with hr.App("latest", home=tmp_path, spark=spark) as other:
            other.stream(topic).group_by("who").agg(m=hr.count()).to_view("totals")
            with pytest.raises(hr.FlowChanged, match="'m' was added"):
                other.audit()
        spoil(app, "totals")
        assert {each.view for each in app.audit().differences} == {"totals"}


def test_what_retention_deleted_cannot_be_recomputed(spark: Any, tmp_path: Path) -> None:
    with hr.App("gone", home=tmp_path, spark=spark) as app:
        topic = counting(app, max_ahead="1 millisecond")

        def put(who: str) -> datetime:
            at = datetime.now(UTC)
            topic.append({"who": who, "at": at})
            app.drain()
            return at

        put("a")
        topic.alter(retention="1 microsecond")
        app.log.maintain()
        topic.alter(retention=None)
        assert topic.offsets()[0].earliest == 1
        audited = app.audit()  # nothing is left
        assert audited.ok and audited.rows == 0 and [each.stop for each in audited.gone] == [1, 1]
        at = put("b")
        while datetime.now(UTC) < at + timedelta(milliseconds=5):  # what comes now cannot be beside what is gone
            time.sleep(0.001)
        put("c")
        audited = app.audit()
        assert audited.ok and (audited.views, audited.rows) == (2, 1)
        windows, totals = audited.gone
        assert (windows.view, windows.topic, windows.partition, windows.start, windows.stop) == (
            "windows",
            "t",
            0,
            0,
            1,
        )
        assert windows.compared_from is not None and windows.compared_from > at
        assert totals.view == "totals" and totals.compared_from is None
        assert "windows that begin before" in str(windows) and str(totals).endswith("it cannot be recomputed.")
        spoil(app, "windows")
        (difference,) = app.audit().differences
        assert (difference.column, difference.stored, difference.expected) == ("n", 2, 1) and "c" in difference.row
        topic.alter(retention="1 microsecond")
        app.log.maintain()
        topic.append({"who": "d", "at": datetime.now(UTC)})
        app.log.maintain()  # and what the flow has not read
        assert app.audit().ok


def test_a_topic_of_the_same_name_is_another(spark: Any, tmp_path: Path) -> None:
    with hr.App("other", home=tmp_path, spark=spark) as app:
        counting(app)
        app.drain()
        app.log.delete_topic("t")
    with hr.App("other", home=tmp_path, spark=spark) as app:
        counting(app)
        with pytest.raises(hr.TopicReplaced):
            app.audit()


@pytest.mark.parametrize("how", ["erased", "compacted"])
def test_what_was_erased_or_compacted_is_no_difference(spark: Any, tmp_path: Path, how: str) -> None:
    with hr.App("holes", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "who string, n int", key="who", durability="os")
        app.stream(topic).group_by("who").agg(total=hr.sum("n")).to_view("v")
        topic.append([{"who": who, "n": 1} for who in "aab"])
        app.drain()
        assert app.audit().gone == []
        if how == "erased":
            assert topic.erase("a").records == 2
        else:
            topic.alter(cleanup="compact")
            topic.append({"who": "a", "n": 1})
            app.drain()
            assert app.log.maintain().records_compacted > 0
        audited = app.audit()
        assert audited.ok
        (gone,) = audited.gone
        assert (gone.topic, gone.partition, gone.start) == ("t", 0, 0)
        assert "erased or compacted" in str(gone) and "cannot be recomputed" in str(gone)


def test_a_partition_that_was_not_read_yet_is_no_difference(tmp_path: Path) -> None:
    with Sparkless(tmp_path, None, names=("records",)) as flow:
        flow.topic.append({"word": "a"})
        flow.loop.drain()
        flow.topic.alter(partitions=2)
        flow.topic.append({"word": "a"}, partition=1)
        assert audit([flow.loop._query], flow.log, Home.at(flow.log.home)).differences == []


def test_what_is_committed_meanwhile_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is compared as it was when the audit began: whoever makes it goes on."""
    with Sparkless(tmp_path, None, names=("records",)) as flow:
        flow.topic.append({"word": "a"})
        flow.loop.drain()
        recomputed = flow.loop._query.rows

        def and_meanwhile(planned: Any) -> Any:
            monkeypatch.undo()
            flow.topic.append({"word": "a"})
            assert flow.loop.drain() == 1
            return recomputed(planned)

        monkeypatch.setattr(flow.loop._query, "rows", and_meanwhile)
        audited = audit([flow.loop._query], flow.log, Home.at(flow.log.home))
        assert audited.differences == [] and audited.rows == 1
