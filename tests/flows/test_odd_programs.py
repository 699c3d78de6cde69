"""Programs at the edge: names that are SQL, columns that change, topics of different types, sums that do not fit. Each
gives the right rows, or an error that says what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with hr.App("odd", home=tmp_path, spark=spark) as made:
        yield made


def rows(app: hr.App, view: str, *columns: str) -> list[tuple[Any, ...]]:
    found = app.view(view).to_arrow().select(columns).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_an_aggregates_text_is_sql_also_where_a_column_has_that_name(app: hr.App) -> None:
    topic = app.topic("t", "`a-b` int, a int, b int, `true` boolean")
    topic.append({"a-b": 100, "a": 5, "b": 3, "true": False})
    app.stream(topic).agg(s=hr.sum("a-b"), q=hr.sum("`a-b`"), n=hr.count(where="true")).to_view("v")
    app.drain()
    assert rows(app, "v", "s", "q", "n") == [(2, 100, 1)]


@pytest.mark.parametrize("name", ["2024", "a b", "x.y", "a`b", "select"])
def test_a_group_may_have_any_name_in_views_and_topics(app: hr.App, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    topic = app.topic("t", f"{quoted} int")
    topic.append({name: 7})
    grouped = app.stream(topic).group_by(name).agg(n=hr.count())
    grouped.to_view("v")
    out = grouped.to_topic("o")
    app.drain()
    assert rows(app, "v", name, "n") == [(7, 1)]
    assert [dict(record.value) for record in out.records()] == [{"op": "+", name: 7, "n": 1}]


def test_a_window_needs_a_time(app: hr.App) -> None:
    topic = app.topic("t", "k int")
    app.stream(topic).window(hr.tumbling("1 minute")).agg(n=hr.count()).to_view("v")
    with pytest.raises(hr.InvalidArgument, match=r"'t' has no event time.*time=…"):
        app.drain()
    topic = app.topic("u", "name string, ms bigint")
    for column, made in ("name", r"to_timestamp\(name\)"), ("ms", r"timestamp_millis\(ms\)"):
        app.flows.clear()
        app.stream(topic).window(hr.tumbling("1 minute"), time=column).agg(n=hr.count()).to_view("v")
        with pytest.raises(hr.InvalidArgument, match=f"a window needs a timestamp.*{made}"):
            app.drain()
    with pytest.raises(hr.InvalidArgument, match="must be the name of a column"):
        app.stream(topic).window(hr.tumbling("1 minute"), time=5)  # type: ignore[arg-type]


def test_topics_of_different_types_are_one_type_whichever_has_records(app: hr.App) -> None:
    days, times = app.topic("days", "day date"), app.topic("times", "day timestamp")
    app.stream(days).union(app.stream(times)).group_by("day").agg(n=hr.count()).to_view("v")
    app.drain()
    app.running.query(app.flows["v"]).small_rows = 0
    days.append({"day": date(2026, 1, 1)})
    app.drain()
    times.append({"day": DAY})
    app.drain()
    assert rows(app, "v", "day", "n") == [(DAY, 2)]


def test_a_column_that_became_wider_stops_the_flow_and_buries_nothing(app: hr.App) -> None:
    topic = app.topic("t", "v int, other int")
    app.stream(topic).agg(most=hr.max("v")).to_view("v")
    topic.append({"v": 5})
    app.drain()
    topic.alter(schema="v int, other bigint, more string")  # nobody reads these
    topic.append({"v": 6, "other": 2**40})
    app.drain()
    topic.alter(schema="v bigint, other bigint, more string")
    topic.append({"v": 2**40})
    with pytest.raises(hr.FlowChanged, match="column 'v' of topic 't': int became bigint"):
        app.drain()
    assert rows(app, "v", "most") == [(6,)]


def test_a_sum_that_does_not_fit_is_said_and_not_tried_again(app: hr.App) -> None:
    topic = app.topic("t", "v bigint")
    app.stream(topic).agg(s=hr.sum("v")).to_view("v")
    topic.append([{"v": 2**62}, {"v": 2**62}])
    with pytest.raises(hr.DoesNotFit, match="9223372036854775808 does not fit bigint"):
        app.drain()
    app.start()
    with pytest.raises(hr.DoesNotFit):
        app.wait("20 seconds")
    app.stop()


def test_audit_knows_groups_that_are_no_number(app: hr.App) -> None:
    topic = app.topic("t", "d double")
    app.stream(topic).group_by("d").agg(n=hr.count()).to_view("v")
    topic.append([{"d": math.nan}, {"d": math.nan}, {"d": None}])
    app.drain()
    assert app.audit().ok


def test_topics_with_and_without_event_time_are_counted_together(app: hr.App) -> None:
    timed, plain = app.topic("timed", "k int, at timestamp", event_time="at"), app.topic("plain", "k int, at timestamp")
    both = app.stream(timed).union(app.stream(plain))
    both.group_by("k").agg(n=hr.count()).to_view("v")
    out = both.to_topic("o")
    timed.append({"k": 1, "at": DAY})
    plain.append({"k": 1})
    app.drain()
    assert rows(app, "v", "k", "n") == [(1, 2)]
    assert len(list(out.records())) == 2
    both.window(hr.tumbling("1 minute")).agg(n=hr.count()).to_view("w")
    with pytest.raises(hr.InvalidArgument, match=r"window\(…, time=…\)"):
        app.drain()


def test_status_can_be_asked_when_a_topic_is_gone(app: hr.App) -> None:
    topic = app.topic("t", "k int")
    app.stream(topic).agg(n=hr.count()).to_view("v")
    app.drain()
    app.start()
    app.log.delete_topic("t")
    with pytest.raises(hr.TopicReplaced):
        app.wait("20 seconds")
    (status,) = app.status()
    assert status.state == "failed" and "deleted" in status.error
    app.stop()


def test_a_sum_of_texts_is_refused_before_it_starts(spark: Any, tmp_path: Path) -> None:
    with hr.App("odd", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "shop string, n int")
        app.stream(topic).group_by("n").agg(total=hr.sum("shop")).to_view("v")
        with pytest.raises(hr.InvalidArgument, match=r"flow 'v': sum\(shop\) is of texts"):
            app.running.check()


def test_a_column_that_is_not_there_is_named_on_the_way_to_a_topic(app: hr.App) -> None:
    stream = app.stream(app.topic("t", "k string, n int"))
    with pytest.raises(hr.UnknownColumn, match=r"flow 'o': there is no column 'nn'\. Did you mean 'n'"):
        stream.transform(lambda df: df.where("nn > 1")).to_topic("o")


def test_a_topic_without_a_column_that_is_written_is_refused_before_it_starts(app: hr.App) -> None:
    """As when a program that has run writes one more."""
    stream = app.stream(app.topic("t", "k string, n int"))
    app.topic("o", "k string")
    stream.to_topic("o")
    for start in app.running.check, app.drain:
        with pytest.raises(hr.InvalidArgument, match=r"flow 'o' writes column 'n', and topic 'o' has none"):
            start()
    app.topic("more", "k string", extra="keep")
    app.flows.clear()
    stream.to_topic("more")
    app.running.check()


def test_a_group_that_is_an_expression_is_computed_before(app: hr.App) -> None:
    app.stream(app.topic("t", "v int")).group_by("v % 2").agg(n=hr.count()).to_view("v")
    with pytest.raises(
        hr.UnknownColumn, match=r"no column 'v % 2'.*\.transform\(lambda df: df\.withColumn\('x', F\.expr"
    ):
        app.drain()


def test_a_transform_with_an_action_is_refused(app: hr.App) -> None:
    topic = app.topic("t", "v int")
    topic.append({"v": 1})
    app.stream(topic).transform(lambda df: df if df.count() else df.where("v > 1")).agg(n=hr.count()).to_view("v")
    with pytest.raises(hr.TransformRefused, match=r"count\(\) is an action.*one plan serves many batches"):
        app.drain()
