"""The program of the README, and what a user meets first."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import app as apps


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Any:
    with hr.App("shop", home=tmp_path, spark=spark) as app:
        yield app


def test_the_first_program(app: hr.App) -> None:
    clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
    views = (
        app.stream(clicks)
        .transform(lambda df: df.where("page <> '/health'"))
        .window(hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 hour"), idle="1 day")
        .group_by("page")
        .agg(views=hr.count())
        .to_view("views_per_minute")
    )
    for at in "09:00:05", "09:00:40", "09:01:30", "09:00:59":
        clicks.append({"user": "ann", "page": "/", "at": f"2026-01-01T{at}Z"})
    clicks.append({"user": "bob", "page": "/health", "at": "2026-01-01T09:01:31Z"})
    assert app.drain() == 5
    rows = [(row["views"], row["_status"], row["_corrections"]) for row in views.to_arrow().to_pylist()]
    assert rows == [(3, "final", 1), (1, "open", 0)]
    assert [tuple(row.values())[2:] for row in views.ledger().to_pylist()] == [(2, 1, 0, 0), (1, 0, 0, 0)]
    found = app.query("select views from views_per_minute where page = ? order by 1", ("/",))
    assert found.to_pylist() == [{"views": 1}, {"views": 3}]


def test_changes_of_a_view(app: hr.App) -> None:
    clicks = app.topic("clicks", "page string, at timestamp", event_time="at")
    window = app.stream(clicks).window(hr.tumbling("1 minute"), late=hr.correct(within="1 hour"), idle="1 day")
    views = window.group_by("page").agg(n=hr.count()).to_view("per_minute")
    total = app.stream(clicks).agg(n=hr.count()).to_view("total")
    assert views.to_arrow().num_rows == 0 and views.get(page="/") is None
    with pytest.raises(hr.UnknownView, match="was not run yet"):
        views.ledger()
    before, schema = views.changes(start="latest", timeout="0 seconds"), views.to_arrow().schema
    assert next(before, None) is None, "there is none yet"
    waiting = views.changes(start="latest", timeout="0 seconds")

    def click(*times: str) -> None:
        clicks.append([{"page": "/", "at": f"2026-01-01T{time}Z"} for time in times])
        app.drain()

    click("09:00:05", "09:00:06")
    (came,) = waiting
    assert (came["op"], came["n"], came["_position"]) == ("+", 2, 2)
    found, record = views.get(page="/", window_start="2026-01-01T09:00:00Z"), next(iter(clicks.records()))
    assert found and {found["window_start"].tzinfo, came["window_end"].tzinfo, record.value["at"].tzinfo} == {UTC}
    assert views.to_arrow().schema == schema
    with (
        views.changes(timeout="0 seconds") as every,
        views.changes(start="latest", timeout="0 seconds") as later,
        views.changes("final", timeout="0 seconds") as final,
    ):
        click("09:01:01")
        click("09:00:07")
        seen = [[(c["op"], c["n"], c["_status"], c["_position"]) for c in some] for some in (every, later, final)]
    first, closed = ("+", 2, "open", 2), [("-", 2, "open", 3), ("+", 2, "final", 3), ("+", 1, "open", 3)]
    corrected = [("-", 2, "final", 4), ("+", 3, "final", 4)]
    assert seen == [[first, *closed, *corrected], [*closed, *corrected], [closed[1], *corrected]]
    with pytest.raises(hr.InvalidArgument, match="no result is ever final"):
        total.changes("final")
    with pytest.raises(hr.InvalidArgument, match=r"\.to_topic"):
        views.changes(start={0: 1})  # type: ignore[arg-type]


def test_a_key_of_several_columns_may_be_a_list(app: hr.App) -> None:
    for _ in range(2):  # made, and there
        assert app.topic("t", "shop string, id int", key=["shop", "id"]).settings.key == ("shop", "id")
    with pytest.raises(hr.InvalidArgument, match=r"has \('shop', 'id'\)"):
        app.topic("t", "shop string, id int", key=["id", "shop"])


def test_a_batch_has_at_least_one_row(app: hr.App) -> None:
    nonsense: Any
    for nonsense in 0, -1, True, 1.5, "1":
        with pytest.raises(hr.InvalidArgument, match="batch_rows"):
            app.drain(nonsense)


def test_where_a_stream_starts_is_checked_where_it_is_written(app: hr.App) -> None:
    topic = app.topic("t", "n int")
    app.stream(topic).agg(n=hr.count()).to_view("v")
    nonsense: Any
    starting: Any
    for nonsense in "erliest", None, 5, True, [1], {0: "1"}, {"0": 1}, {0: -1}, datetime(2026, 1, 1):
        for starting, of in (app.stream, topic), (app.rebuild, "v"):
            with pytest.raises(hr.InvalidArgument, match=r"start=.* 'latest', a time with zone, or \{partition"):
                starting(of, start=nonsense)
    for start in "2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC):
        assert app.stream(topic, start=start).node.start == datetime(2026, 1, 1, tzinfo=UTC)  # type: ignore[arg-type]


def test_only_an_apps_own_views_are_streamed(app: hr.App) -> None:
    with pytest.raises(hr.UnknownView):
        app.stream(app.view("somebody_elses"))


def test_the_command_line_says_where_home_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a program that has a temporary one, too: and then nothing is removed at the end."""
    monkeypatch.setitem(apps.overrides, "home", str(tmp_path / "said"))
    with hr.App("shop", home=":temp:") as app:
        app.topic("clicks", "user string").append({"user": "ann"})
    assert (tmp_path / "said" / "log.db").exists()


def test_a_stream_is_called_by_its_name_where_its_transforms_are_refused(app: hr.App) -> None:
    web, shop = (app.topic(name, "page string, at timestamp", event_time="at") for name in ("web", "shop"))
    both = app.stream(web, name="browsers").union(app.stream(shop, name="tills").transform(lambda _: 7))
    alone = app.stream(web, name="phones", start="latest").transform(lambda _: 7)
    unnamed = app.stream(web).transform(lambda _: 7)
    for stream, step in (both, "transform 1 of tills"), (alone, "transform 1 of phones"), (unnamed, "transform 1"):
        app.flows.clear()
        stream.agg(n=hr.count()).to_view("n")
        with pytest.raises(hr.TransformRefused) as refused:
            app.running.check()
        assert refused.value.step == step
    with pytest.raises(hr.InvalidName):
        app.stream(web, name="")


def test_what_cannot_be_elsewhere_is_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for them elsewhere is told: an address must not become a directory of that name, nor be printed."""
    elsewhere: Any = "mysql://ann:secret@host/db"
    with hr.App("shop", home=tmp_path, log=None, views=None) as app:
        for refused in (
            lambda: hr.App("shop", views=elsewhere),
            lambda: hr.App("shop", log=elsewhere),
            lambda: app.replace(home=":temp:", views=elsewhere),
            lambda: hr.open_views(elsewhere),
            lambda: hr.open_log(elsewhere),
            lambda: hr.App("shop", home=elsewhere).home,
        ):
            with pytest.raises(hr.InvalidArgument, match=r"mysql://…'.* (directory|Postgres)") as told:
                refused()
            assert "secret" not in str(told.value)
    monkeypatch.setenv("HEADRACE_VIEWS", elsewhere)
    with pytest.raises(hr.InvalidArgument, match=r"mysql://…'.* Postgres"):
        _ = hr.App("shop", home=tmp_path).views


def test_the_environment_says_where_spark_is_unless_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SPARK", "local[1]")
    monkeypatch.delitem(apps.overrides, "spark", raising=False)
    with hr.App("shop", home=tmp_path) as app:
        assert app.running._given == "local[1]"
    with hr.App("shop", home=tmp_path, spark="local[2]") as app:
        assert app.running._given == "local[2]"


def test_who_takes_steps_in_another_order_is_told(app: hr.App) -> None:
    stream: Any = app.stream(app.topic("clicks", "page string, at timestamp", event_time="at"))
    windowed = stream.window(hr.tumbling("1 minute"))
    for step, where in (
        (lambda: windowed.to_view, r"\.agg\(n=hr\.count\(\)\)\.to_view"),
        (lambda: windowed.dedup, "before .window"),
        (lambda: stream.group_by("page").window, "before .group_by"),
        (lambda: stream.nothing, "has no attribute 'nothing'$"),
    ):
        with pytest.raises(AttributeError, match=where):
            step()
    for given in stream, windowed, stream.group_by("page"):
        with pytest.raises(hr.InvalidArgument, match="has no name"):
            given.agg(hr.count())
    with pytest.raises(hr.InvalidArgument, match=r"hr\.correct"):
        stream.window(hr.tumbling("1 minute"), late="1 hour")
    with pytest.raises(hr.InvalidArgument, match="within"):
        stream.dedup("page", within=600)


def test_a_view_whose_temporary_home_is_gone_is_not_empty(spark: Any) -> None:
    with hr.App("shop", home=":temp:", spark=spark) as app:
        numbers = app.topic("numbers", "n int")
        total = app.stream(numbers).agg(n=hr.sum("n")).to_view("total")
        numbers.append({"n": 1})
        app.drain()
    with pytest.raises(hr.Closed, match="the app 'shop' is closed"):
        total.to_arrow()
