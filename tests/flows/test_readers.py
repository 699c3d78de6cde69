"""A flow tells the log how far it is: retention waits for it, lag tools see it, and one that was overtaken says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr


def app_of(home: Path, spark: Any, **settings: Any) -> hr.App:
    app = hr.App("words", home=home, spark=spark)
    words = app.topic("words", "word string", partitions=2, **settings)
    app.stream(words).group_by("word").agg(n=hr.count()).to_view("per_word")
    return app


def test_a_topic_keeps_what_its_flow_has_not_read(spark: Any, tmp_path: Path) -> None:
    with app_of(tmp_path, spark, retention_bytes=6_000, unread="keep", durability="os") as app:
        words = app.log.topic("words")
        assert app.drain() == 0  # it is a reader now
        sent = 0

        def fill() -> None:
            nonlocal sent
            with pytest.raises(hr.TopicFull):
                while True:
                    words.append([{"word": f"w{sent % 3}"}] * 5)
                    sent += 5

        fill()
        assert app.drain() == sent > 0
        before = sent
        fill()  # there is room again, for as much as before
        (group,) = words.groups()
        assert group.flow == "per_word" and sum(lag.records for lag in group.lag().values()) == sent - before > 0
        app.start()
        group.wait(lag=0, timeout="1 minute")
        app.stop()
        assert sum(row["n"] for row in app.view("per_word").to_arrow().to_pylist()) == sent
        assert app.audit().views == 1
        assert sum(lag.records for lag in group.lag().values()) == 0, "an audit tells nothing"


def test_a_flow_into_a_topic_is_dropped_by_its_name(spark: Any, tmp_path: Path) -> None:
    """What FlowChanged advises works: and what it wrote before stays."""
    from click.testing import CliRunner

    from headrace.cli.views import drop

    for turn, column in (1, "word"), (2, "upper(word) as word"):
        with hr.App("words", home=tmp_path, spark=spark) as app:
            words = app.topic("words", "word string")
            counted = app.stream(words).transform(lambda df, c=column: df.selectExpr(c, *hr.META)).group_by("word")
            aggregates = {"n": hr.count()} if turn == 1 else {"n": hr.count(), "first": hr.min("word")}
            counted.agg(**aggregates).transform(lambda df: df.select("op", "word", "n")).to_topic("counts")
            if turn == 1:
                words.append([{"word": "a"}, {"word": "b"}])
            else:
                with pytest.raises(hr.FlowChanged, match="headrace views drop counts"):
                    app.drain()
                done = CliRunner().invoke(drop, ["counts", "--yes", "--force", "--home", str(tmp_path)])
                assert done.exit_code == 0, done.output
                assert words.groups() == []
            app.drain()
            (group,) = words.groups()
            assert group.flow == "counts"
            found = [record.value["word"] for record in app.log.topic("counts").records()]
            assert found == ["a", "b", "A", "B"][: 2 * turn]


def test_a_flow_that_was_overtaken_names_what_it_lost(spark: Any, tmp_path: Path) -> None:
    with app_of(tmp_path, spark, retention_bytes=3_000, durability="os") as app:
        words = app.log.topic("words")
        words.append([{"word": "a"}] * 4)
        app.drain()
        for _ in range(100):
            words.append([{"word": "b"}] * 4)
        earliest = {partition: each.earliest for partition, each in words.offsets().items()}
        with pytest.raises(hr.OffsetOutOfRange, match="was deleted by retention") as lost:
            app.drain()
        assert (lost.value.offset, lost.value.earliest) == (2, earliest[lost.value.partition])
        app.start()
        with pytest.raises(hr.OffsetOutOfRange):
            app.wait("1 minute")
