"""What a program is told when it writes a step that there is not, or in a way that there is not. No Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows.compiler import plan_rules
from headrace.streams import Aggregated, Grouped, Stream, Windowed

STEPS = (Stream, Windowed, Grouped, Aggregated)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Any]:
    with hr.App("shop", home=tmp_path) as app:
        yield app.stream(app.topic("t", "v int, at timestamp", event_time="at"))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("where", r"\.transform\(lambda df: df\.where"),
        ("withColumn", r"\.transform\(lambda df: df\.withColumn"),
        ("groupBy", r"\.group_by"),
        ("map", r"\.transform\(lambda df"),
        ("foreachBatch", r"view\.changes\(\)"),
        ("dropDuplicates", r"\.dedup\('id', within="),
        ("count", r"\.agg\(n=hr\.count\(\)"),
        ("writeStream", r"\.to_view\(name\) or \.to_topic\(name\)"),
    ],
)
def test_a_step_of_another_library_is_answered_with_ours(stream: Any, name: str, instead: str) -> None:
    for step in (stream, stream.window(hr.tumbling("1 minute")), stream.group_by("v")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
            getattr(step, name)


@pytest.mark.parametrize("name", ["to_pandas", "show", "collect", "filter"])
def test_results_are_read_from_a_view(stream: Any, name: str) -> None:
    instead = r"\.transform\(lambda" if name == "filter" else r"\.to_view\(name\), then app\.drain\(\)"
    with pytest.raises(AttributeError, match=f"'Aggregated' object has no attribute '{name}': .*{instead}"):
        getattr(stream.agg(n=hr.count()), name)


def test_what_is_recommended_exists() -> None:
    texts = [text for step in STEPS for text in getattr(step, "elsewhere", {}).values()]
    texts += [text for pair in plan_rules.REFUSED.values() for text in pair]
    assert len(texts) > 40
    steps = {name for step in STEPS for name in dir(step)} | {
        name for step in STEPS for name in step.__dataclass_fields__
    }
    for text in texts:
        for name in re.findall(r"(?<![\w)])\.(\w+)\(", text):
            assert name in steps, f"{text!r} recommends .{name}(…)"
        for name in re.findall(r"\bhr\.(\w+)", text):
            assert hasattr(hr, name), f"{text!r} recommends hr.{name}"


def test_columns_that_a_table_does_not_have_are_answered_with_those_it_has(stream: Any) -> None:
    users = stream.app.table("users", "id int, zip string", key="id")
    with pytest.raises(hr.InvalidArgument, match=r"'users' has no such column\. There are: id, zip\."):
        stream.enrich(users, on={"v": "id"}, columns=["country"])
    with pytest.raises(hr.InvalidArgument, match=r"no column 'number'\. There are: id, zip\."):
        stream.enrich(users, on={"v": "number"})


@pytest.mark.parametrize(
    ("window", "fill", "why"),
    [
        (hr.tumbling("1 minute"), "nothing", "must be one of 'null', 'zero', 'previous'"),
        (hr.tumbling("1 minute"), 0, "must be one of"),
        (hr.session("1 minute"), "zero", "only where there are records.* Use hr.tumbling"),
        (hr.sliding("1 minute"), "null", "only where there are records"),
        (hr.hopping("2 minutes", every="1 minute"), "zero", "overlap.* Use hr.tumbling"),
        (hr.cumulative("1 day", step="1 hour"), "previous", "overlap"),
    ],
)
def test_gaps_are_filled_where_there_are_some(stream: Any, window: Any, fill: Any, why: str) -> None:
    with pytest.raises(hr.InvalidArgument, match=why) as refused:
        stream.window(window, fill=fill)
    assert refused.value.argument == "fill"


def test_gaps_are_filled_in_views_alone(stream: Any) -> None:
    filled = stream.window(hr.tumbling("1 minute"), fill="zero").group_by("v").agg(n=hr.count())
    with pytest.raises(hr.InvalidArgument, match=r"a topic has stored rows only.*\.to_view"):
        filled.to_topic("minutes")
    with pytest.raises(hr.InvalidArgument, match="a transform behind agg"):
        filled.transform(lambda df: df).to_view("minutes")
    view = filled.to_view("minutes")
    with pytest.raises(hr.InvalidArgument, match="without fill=, and stream that"):
        stream.app.stream(view)
    assert [name for name, flow in stream.app.flows.items() if flow.fill] == ["minutes"]


def test_groups_that_go_are_of_records(stream: Any) -> None:
    deduped = stream.dedup("v", within="1 hour").group_by("v").agg(n=hr.count())
    with pytest.raises(hr.InvalidArgument, match="records can be retracted"):
        deduped.to_view("some", keep="90 days")
    assert stream.app.flows == {}
    view = stream.group_by("v").agg(n=hr.count()).to_view("all", keep="90 days")
    with pytest.raises(hr.InvalidArgument, match="without keep=, and stream that"):
        stream.app.stream(view)


def test_repetitions_are_for_dedup() -> None:
    for operator in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct"):
        assert "Use .dedup('id', within='1 hour') on the stream" in plan_rules.REFUSED[operator][1]


def test_an_app_takes_a_topic_that_is_there_without_being_asked_to(tmp_path: Path) -> None:
    with hr.App("shop", home=tmp_path) as app:
        app.topic("t", "v int")
        assert app.topic("t", "v int").name == "t"
        with pytest.raises(hr.InvalidArgument, match=r"exist_ok=True: leave it out"):
            app.topic("t", "v int", exist_ok=True)


def test_a_column_that_a_topic_does_not_have_yet_is_added_with_alter(tmp_path: Path) -> None:
    with hr.App("shop", home=tmp_path) as app:
        app.topic("t", "v int").append({"v": 1})
        with pytest.raises(hr.InvalidArgument, match=r"headrace topics alter t --add-column 'country string'"):
            app.topic("t", "v int, country string").offsets()


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (hr.tumbling("1 day", offset="-2 hours"), "hr.tumbling('1 day', offset='22 hours')"),
        (hr.hopping("2 minutes", every="1 minute"), "hr.hopping('2 minutes', every='1 minute')"),
        (hr.cumulative("1 day", step="1 hour"), "hr.cumulative('1 day', step='1 hour')"),
        (hr.calendar("day", timezone="UTC"), "hr.calendar('day', timezone='UTC')"),
        (hr.session("20 minutes"), "hr.session('20 minutes')"),
        (hr.sliding("5 minutes"), "hr.sliding('5 minutes')"),
        (hr.drop(), "hr.drop()"),
        (hr.drop(dropped_to="late"), "hr.drop(dropped_to='late')"),
        (hr.correct(within="1 hour"), "hr.correct(within='1 hour')"),
        (hr.correct("1 day", "late"), "hr.correct(within='1 day', dropped_to='late')"),
    ],
)
def test_a_window_and_what_becomes_of_stragglers_are_shown_as_they_are_written(window: Any, text: str) -> None:
    assert repr(window) == text
    assert eval(text, {"hr": hr}) == window


def test_a_step_is_shown_in_a_line(stream: Any) -> None:
    minutes = stream.transform(lambda df: df).window(hr.tumbling("1 minute"))
    other = stream.app.stream(stream.app.topic("u", "v int"))
    assert repr(stream) == "<stream of t>"
    assert repr(stream.union(other)) == "<stream of t, u>"
    assert repr(stream.dedup("v", within="1 hour")) == "<stream of t, without repetitions>"
    assert repr(minutes) == "<stream of t by tumbling('1 minute')>"
    assert repr(minutes.group_by("v")) == "<stream of t by tumbling('1 minute'), v>"
    assert repr(minutes.group_by("v").agg(n=hr.count())) == "<count() as n of <stream of t by tumbling('1 minute'), v>>"
    view = minutes.group_by("v").agg(n=hr.count()).to_view("w")
    assert repr(stream.app.stream(view)) == "<stream of w>"
