"""Defining a program is pure: nothing is created, opened or started before the first use; and what is wrong is said as
early as it can be known. No Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

PROGRAM = """
import sys
import headrace as hr

app = hr.App("shop", home=sys.argv[1])
clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
views = (app.stream(clicks)
         .transform(lambda df: df.where("page <> '/health'"))
         .window(hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 hour"))
         .group_by("page").agg(views=hr.count())
         .to_view("views_per_minute"))

hours = app.stream(views).window(hr.tumbling("1 hour")).group_by("page").agg(views=hr.sum("views")).to_view("per_hour")
totals = app.stream(hours).group_by("page").agg(views=hr.sum("views")).to_topic("totals", partitions=2)
app.stream(totals).agg(pages=hr.count()).to_view("pages")

once = app.stream(clicks).dedup("user", within="1 hour")
once.window(hr.tumbling("1 day")).agg(users=hr.count()).to_view("users")
app.stream(clicks).dedup("user", within="1 hour", approx=0.01).to_topic("about")
app.stream("somebody_elses").union(app.stream("clicks")).agg(n=hr.count()).to_view("both")
app.topic("adopted", create=False)
app.view("per_hour"), repr(app), repr(clicks), app._repr_html_()

assert "pyspark" not in sys.modules and not done, done
print(*app.flows)
"""
WATCH = """
import sys

done = []
WATCHED = {"sqlite3.connect", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.mkdir", "socket.connect"}
sys.addaudithook(lambda event, args: done.append((event, args)) if event in WATCHED else None)
"""


def test_defining_a_program_creates_nothing_and_starts_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-c", WATCH + PROGRAM, str(home)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    names = "views_per_minute per_hour totals pages users.dedup users about.dedup about both"
    assert ran.stdout.split() == names.split()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_topic_is_created_when_it_is_first_used(home: Path) -> None:
    with hr.App("shop", home=home) as app:
        clicks = app.topic("clicks", "user string", key="user", partitions=2)
        orders = app.topic("orders", "id int")
        assert (clicks.name, repr(clicks)) == ("clicks", "<topic 'clicks', not used yet>") and not home.exists()
        assert clicks.append({"user": "ann"}).position
        with hr.open_log(home) as log:
            assert [topic.name for topic in log.topics()] == ["clicks"]
            assert log.topic("clicks").topic_id == clicks.topic_id and clicks.settings.partitions == 2
        assert [topic.name for topic in app.log.topics()] == ["clicks", "orders"], "app.log is a use of all"
        assert orders.offsets()[0].next == 0
        app.log.delete_topic("orders")
        with pytest.raises(hr.TopicReplaced):
            orders.append({"id": 1})


@pytest.mark.parametrize(
    ("schema", "settings", "wrong"),
    [
        ("user strin", {}, "schema"),
        ("user string", {"key": "usr"}, "key"),
        ("user string", {"event_time": "at"}, "event_time"),
        ("user string", {"event_time": "user"}, "event_time"),
        ("user string", {"partitions": 0}, "partitions"),
        ("user string", {"retention": "soon"}, "retention"),
        ("user string", {"cleanup": "compact"}, "cleanup"),
        ("user string", {"partition": 2}, "partition"),
        (None, {}, "schema"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(home: Path, schema: Any, settings: Any, wrong: str) -> None:
    with hr.App("shop", home=home) as app:
        with pytest.raises(hr.HeadraceError) as refused:
            app.topic("clicks", schema, **settings)
        assert getattr(refused.value, "argument", wrong) == wrong
        with pytest.raises(hr.InvalidName):
            app.topic("no name", "user string")
    assert not home.exists()


def test_two_declarations_that_cannot_both_be_are_refused_at_once(home: Path) -> None:
    with hr.App("shop", home=home) as app:
        app.topic("clicks", "user string, n int", key="user")
        app.topic("clicks", "n int", create=False)
        for schema, settings in ("n string", {}), ("n int", {"key": "n"}):
            with pytest.raises(hr.InvalidArgument, match="topic 'clicks'"):
                app.topic("clicks", schema, create=False, **settings)
    assert not home.exists()


def test_a_declaration_is_compared_with_a_topic_that_is_in_use_at_once(home: Path) -> None:
    with hr.App("shop", home=home) as app:
        clicks = app.topic("clicks", "user string")
        app.topic("clicks", "user string, page string")  # which may be there
        clicks.append({"user": "ann"})
        with pytest.raises(hr.InvalidArgument, match="no such column"):
            app.topic("clicks", "user string, page string")


def test_a_topic_that_is_another_is_refused_at_its_first_use_and_before_spark_starts(home: Path) -> None:
    with hr.open_log(home) as log:
        log.create_topic("clicks", "user string, n int", key="user")
    for schema, settings, wrong in (
        ("user string, n string", {}, "is int in topic 'clicks', not string"),
        ("user string, page string", {}, "has no such column"),
        ("user string, n int", {"key": "n"}, r"has \('user',\)"),
    ):
        with hr.App("shop", home=home, spark="nowhere://") as app:
            clicks = app.topic("clicks", schema, **settings)
            app.stream(clicks).agg(n=hr.count()).to_view("v")
            uses: list[Any] = [hr.App.log.fget, hr.App.running.fget, hr.App.drain, hr.App.start]  # type: ignore[attr-defined]
            for use in uses:
                with pytest.raises(hr.InvalidArgument, match=wrong):
                    use(app)
            with pytest.raises(hr.InvalidArgument, match=wrong):
                clicks.offsets()


def test_a_topic_that_is_not_there_and_not_to_be_created_is_unknown_at_its_first_use(home: Path) -> None:
    for named in True, False:
        with hr.App("shop", home=home, spark="nowhere://") as app:
            source: Any = "clicks" if named else app.topic("clicks", create=False)
            app.stream(source).agg(n=hr.count()).to_view("v")
            with pytest.raises(hr.UnknownTopic, match="clicks"):
                app.drain()


def test_settings_of_a_topic_that_a_flow_writes_are_checked_where_they_are_written(home: Path) -> None:
    with hr.App("shop", home=home) as app:
        stream = app.stream(app.topic("clicks", "user string", key="user"))
        with pytest.raises(hr.InvalidArgument, match="no such setting"):
            stream.to_topic("out", retain="1 day")
        with pytest.raises(hr.InvalidArgument, match="partitions"):
            stream.agg(n=hr.count()).to_topic("out", partitions="many")
        assert app.flows == {}
        stream.to_topic("out", cleanup="compact")
    assert not home.exists()


def test_a_misspelt_setting_of_a_table_is_named(home: Path) -> None:
    with hr.App("shop", home=home) as app, pytest.raises(hr.InvalidArgument, match="Did you mean 'history'"):
        app.table("users", "id string", key="id", histroy="versions")
