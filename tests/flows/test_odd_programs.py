"""Programs at the edge: names that are SQL, columns that change, topics of different types, sums that do not fit. Each
gives the right rows, or an error that says what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    topic = app.topic("u", "name string, ms bigint, day date")
    times = {"name": r"to_timestamp\(name\)", "ms": r"timestamp_millis\(ms\)", "day": r"to_timestamp\(day\)"}
    for column, made in times.items():
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
    app.running.query(app.flows["v"]).one_task_rows = 0
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


@pytest.mark.parametrize("by", ["arrow", "spark"])
def test_sums_of_whole_numbers_are_as_wide_as_they_have_to_be(app: hr.App, by: str) -> None:
    topic = app.topic("t", "k string, v bigint, at timestamp", event_time="at")
    stream = app.stream(topic)
    if by == "spark":
        stream = stream.transform(lambda df: df.where("v + 0.5D is not null"))
    by_minute = stream.window(hr.tumbling("1 minute")).group_by("k")
    by_minute.agg(total=hr.sum("v"), mean=hr.avg("v")).to_view("minutes")
    stream.window(hr.hopping("2 minutes", every="1 minute")).group_by("k").agg(total=hr.sum("v")).to_view("hops")
    stream.window(hr.session("1 minute")).group_by("k").agg(total=hr.sum("v"), mean=hr.avg("v")).to_view("sessions")
    changes = app.stream(app.view("minutes"))
    rolled = {"total": hr.sum("total"), "merged": hr.merge("total"), "mean": hr.merge("mean")}
    changes.group_by("k").agg(**rolled).to_view("all")
    chosen = changes.transform(lambda df: df.where("k <> 'z'"))
    chosen.agg(total=hr.sum("total"), merged=hr.merge("total")).to_view("chosen")
    written = by_minute.agg(total=hr.sum("v")).to_topic("written")
    assert "total__whole" not in changes.to_topic("copied").schema.names

    values: dict[str, list[int]] = {key: [] for key in "abcd"}

    def add(**added: list[int]) -> None:
        for key, some in added.items():
            values[key] += some
            at = DAY + timedelta(seconds=len(values[key]))
            topic.append([{"k": key, "v": value, "at": at} for value in some])
        app.drain()

    add(a=[2**62, 2**62], b=[2**62], c=[-(2**63), -(2**63), 2**63 - 1], d=[7])
    add(b=[2**62, -5], c=[-(2**63)])  # of b the sum fits, and not that of some of its parts
    total = {key: sum(some) for key, some in values.items()}
    mean = {key: sum(some) / len(some) for key, some in values.items()}
    for name in ("minutes", "sessions", "all"):
        table = app.view(name).to_arrow()
        assert table.schema.field("total").type == pa.decimal128(38, 0)
        assert dict(zip(table["k"].to_pylist(), table["total"].to_pylist(), strict=True)) == total
        assert dict(zip(table["k"].to_pylist(), table["mean"].to_pylist(), strict=True)) == pytest.approx(mean)
    assert {row["k"]: row["merged"] for row in app.view("all").to_arrow().to_pylist()} == total
    assert app.query("select total from hops where k = 'c'")["total"].to_pylist() == [total["c"]] * 2
    assert app.query("select total from hops where k = 'd'")["total"].type == pa.int64()
    (row,) = app.view("chosen").to_arrow().to_pylist()
    assert (row["total"], row["merged"]) == (total["b"] + 7, sum(total.values())), "a transform is given bigint or null"
    last = {each.value["k"]: each.value["total"] for each in written.records() if each.value["op"] == "+"}
    assert last == {"a": None, "b": total["b"], "c": None, "d": 7}
    assert app.audit().ok


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
    written = stream.transform(lambda df: df.where("nn > 1")).to_topic("o")
    for use in app.running.check, app.drain, written.opened:
        with pytest.raises(hr.UnknownColumn, match=r"flow 'o': there is no column 'nn'\. Did you mean 'n'"):
            use()


def test_a_copy_goes_on_when_its_topic_gets_a_column(spark: Any, tmp_path: Path) -> None:
    """The topic that the flow has made gets it, too; one that was there before does not."""

    def program() -> hr.App:
        app = hr.App("app", home=tmp_path, spark=spark)
        topic = app.topic("t", "v int", durability="os")
        app.topic("before", "v int", durability="os")
        app.stream(topic).to_topic("made")
        app.stream(topic).to_topic("before")
        return app

    with program() as app:
        app.log.topic("t").append({"v": 1})
        app.drain()
        app.log.topic("t").alter(schema="v int, more string")
    for value in (2, 3):
        with program() as app:
            app.log.topic("t").append({"v": value, "more": "m"})
            app.drain()
    with hr.open_log(tmp_path) as log:
        made, before = ([dict(each.value) for each in log.topic(name).records()] for name in ("made", "before"))
        assert made == [{"v": 1, "more": None}, {"v": 2, "more": "m"}, {"v": 3, "more": "m"}]
        assert before == [{"v": 1}, {"v": 2}, {"v": 3}]


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


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [
        (hr.count(where="v > "), r"where='v > ' cannot be computed\. Syntax error at or near end of input"),
        (hr.sum("nope(v)"), r"sum\(nope\(v\)\) cannot be computed\. Cannot resolve routine `nope`"),
        (hr.max("v + array(1)"), r"max\(v \+ array\(1\)\) cannot be computed\. .*type"),
    ],
)
def test_an_expression_that_spark_refuses_is_named_without_a_traceback(app: hr.App, aggregate: Any, said: str) -> None:
    app.stream(app.topic("t", "v int")).agg(n=aggregate).to_view("v")
    with pytest.raises(hr.InvalidArgument, match=rf"agg='n': flow 'v': {said}") as refused:
        app.drain()
    assert "\n" not in str(refused.value) and "SQLSTATE" not in str(refused.value)


def test_a_spark_dataframe_with_times_is_appended_as_it_is(spark: Any, app: hr.App) -> None:
    df = spark.sql("select 7 as v, timestamp'2026-01-01T09:00:05Z' as at")
    topic = app.topic("t", "v int, at timestamp", event_time="at")
    table = app.table("k", "v int, at timestamp", key="v")
    topic.append(df)
    topic.load(df)
    table.upsert(df)
    app.drain()
    assert [record.value for record in topic.records()] == [{"v": 7, "at": DAY + timedelta(hours=9, seconds=5)}] * 2
    assert rows(app, "k", "v", "at") == [(7, DAY + timedelta(hours=9, seconds=5))]
