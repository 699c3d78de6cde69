"""Views as tables: joined with tables and with each other, looked up in by their windows, read as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import InvalidArgument
from headrace.testing import add, advance, assert_cut_invariant, crash_points

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
CLICKS = "user string, page string, at timestamp"


def at(seconds: float) -> datetime:
    return ZERO + timedelta(seconds=seconds)


@pytest.fixture
def app(spark: Any) -> Iterator[hr.App]:
    with hr.App("shop", home=":temp:", spark=spark) as app:
        yield app


def rows(view: hr.View, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in view.to_arrow().to_pylist()), key=str)


# -- joined with tables ----------------------------------------------------------------------------------


def test_a_view_is_joined_with_a_table_and_follows_both(app: hr.App) -> None:
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    users = app.table("users", "id string, zip string", key="id")
    counts = app.stream(clicks).group_by("user").agg(n=hr.count()).to_view("counts")
    view = counts.join(users, on={"user": "id"}, how="full").to_view("active")
    clicks.append([{"user": user, "page": "/", "at": at(1)} for user in ("ann", "ann", "bob")])
    users.upsert([{"id": "ann", "zip": "1"}, {"id": "cid", "zip": "3"}])
    app.drain()
    assert rows(view, "user", "n", "id", "zip") == [
        ("ann", 2, "ann", "1"),
        ("bob", 1, None, None),
        (None, None, "cid", "3"),
    ]
    clicks.append({"user": "ann", "page": "/", "at": at(2)})
    users.delete("cid")
    app.drain()
    assert rows(view, "user", "n", "zip") == [("ann", 3, "1"), ("bob", 1, None)]
    assert app.audit().ok
    for name in ("counts", "active"):
        made = app.rebuild(name)
        assert made.diff().num_rows == 0
        made.switch()
    clicks.append({"user": "bob", "page": "/", "at": at(3)})
    app.drain()
    assert rows(view, "user", "n", "zip") == [("ann", 3, "1"), ("bob", 2, None)]


def test_a_change_touches_only_the_rows_that_it_is_joined_with(app: hr.App) -> None:
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    users = app.table("users", "id string, zip string", key="id")
    counts = app.stream(clicks).window(hr.tumbling("1 minute")).group_by("user").agg(n=hr.count()).to_view("counts")
    joined = users.join(counts, on={"id": "user"}).to_topic("active")
    users.upsert([{"id": user, "zip": "1"} for user in ("ann", "bob")])
    clicks.append([{"user": user, "page": "/", "at": at(t)} for user in ("ann", "bob") for t in (1, 61)])
    app.drain()
    before = joined.offsets()[0].next
    clicks.append({"user": "ann", "page": "/", "at": at(62)})
    app.drain()
    told = [record.value for record in joined.records(start={0: before})]
    assert [(row["op"], row["id"], row["window_start"], row["n"]) for row in told] == [
        ("-", "ann", at(60), 1),
        ("+", "ann", at(60), 2),
    ]


def test_what_a_join_of_tables_gave_is_joined_again(app: hr.App) -> None:
    posts = app.table("posts", "id int, author string", key="id")
    authors = app.table("authors", "author string, zip string", key="author")
    cities = app.table("cities", "zip string, city string", key="zip")
    written = posts.join(authors, on="author", how="left").to_view("written")
    view = written.join(cities, on="zip", how="left").to_view("placed")
    back = cities.join(app.view("placed"), on=("zip", "city")).to_view("back")
    posts.upsert([{"id": 1, "author": "ann"}, {"id": 2, "author": "bob"}])
    authors.upsert([{"author": "ann", "zip": "1"}, {"author": "bob", "zip": "1"}])
    cities.upsert({"zip": "1", "city": "Zug"})
    app.drain()
    assert rows(view, "id", "author", "city") == [(1, "ann", "Zug"), (2, "bob", "Zug")]
    authors.upsert({"author": "ann", "zip": "2"})  # another foreign key
    posts.delete(2)
    app.drain()
    assert rows(view, "id", "zip", "city") == [(1, "2", None)]
    assert rows(back, "id", "city") == []
    cities.upsert({"zip": "2", "city": "Chur"})
    app.drain()
    assert rows(back, "id", "city") == [(1, "Chur")]
    assert app.audit().ok


def test_a_joined_view_is_read_as_it_was(app: hr.App) -> None:
    posts = app.table("posts", "id int, author string", key="id")
    authors = app.table("authors", "author string, zip string", key="author")
    view = posts.join(authors, on="author", how="left").to_view("written", history="versions")
    arrived = []
    for table, row in (
        (posts, {"id": 1, "author": "ann"}),
        (authors, {"author": "ann", "zip": "1"}),
        (authors, {"author": "ann", "zip": "2"}),
    ):
        table.upsert(row)
        arrived.append(app.log.topic(table.name).offsets()[0].arrived_at)
    app.drain()
    posts.delete(1)
    app.drain()
    assert [[row["zip"] for row in view.as_of(str(when)).to_pylist()] for when in arrived] == [[None], ["1"], ["2"]]
    assert rows(view, "id") == []
    found = app.query("select id, zip, valid_from, valid_to from written_history order by valid_from").to_pylist()
    assert [(row["zip"], row["valid_from"]) for row in found] == [*zip([None, "1", "2"], arrived, strict=True)]
    assert [row["valid_to"] for row in found[:2]] == arrived[1:] and found[2]["valid_to"] is not None
    with pytest.raises(InvalidArgument, match="the history of 'written'"):
        posts.join(authors, on="author").to_view("written_history")
    with pytest.raises(InvalidArgument, match="those of a view have none"):
        view.join(authors, on="author").to_view("again", history="versions")
    with pytest.raises(InvalidArgument, match="must be 'latest' or 'versions'"):
        posts.join(authors, on="author").to_view("both", history="bitemporal")
    plain = posts.join(authors, on="author").to_view("plain")
    app.drain()
    with pytest.raises(InvalidArgument, match="view 'plain' keeps its latest rows only"):
        plain.as_of(at(0))
    assert app.audit().ok


def test_views_that_cannot_be_joined_are_refused(app: hr.App) -> None:
    clicks = app.stream(app.topic("clicks", CLICKS, key="user", event_time="at"))
    users = app.table("users", "user string", key="user")
    shaped = clicks.group_by("user").agg(n=hr.count()).transform(lambda df: df).to_view("shaped")
    with pytest.raises(InvalidArgument, match="may make several rows of one result"):
        users.join(shaped, on="user")
    with pytest.raises(InvalidArgument, match="has one row, and no key"):
        users.join(clicks.agg(n=hr.count()).to_view("all"), on="user")
    going = clicks.group_by("user").agg(n=hr.count()).to_view("going", keep="1 day")
    with pytest.raises(InvalidArgument, match="drops groups that get no record"):
        users.join(going, on="user").to_view("joined")
    counts = clicks.group_by("user").agg(n=hr.count()).to_view("counts")
    with pytest.raises(InvalidArgument, match="view 'counts' has no column 'usr'"):
        users.join(counts, on={"user": "usr"})
    with pytest.raises(InvalidArgument, match=r"must be a table.*or a view"):
        counts.join("users", on="user")  # type: ignore[arg-type]


# -- looked up in ----------------------------------------------------------------------------------------


def looked_up(app: hr.App, **settings: Any) -> tuple[Any, Any, hr.View]:
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    buys = app.topic("buys", "who string, euros int, at timestamp", key="who", event_time="at")
    busy = (
        app.stream(clicks)
        .window(hr.tumbling("10 seconds"), grace="2 seconds", late=hr.correct(within="20 seconds"))
        .group_by("user")
        .agg(n=hr.count())
        .to_view("busy")
    )
    view = app.stream(buys).enrich(busy, on={"who": "user"}, as_of="at", **settings).to_view("bought")
    return clicks, buys, view


def test_a_record_gets_the_row_of_the_last_window_that_ended_by_its_time(app: hr.App) -> None:
    clicks, buys, view = looked_up(app)
    clicks.append([{"user": "ann", "page": "/", "at": at(t)} for t in (1, 2, 11, 25)])
    buys.append(
        [{"who": who, "euros": t, "at": at(t)} for who, t in (("ann", 5), ("ann", 10), ("ann", 29), ("bob", 29))]
    )
    app.drain()
    columns = ("euros", "who", "n", "busy_version", "_status", "_corrections")
    found = rows(view, *columns)
    assert found == [
        (10, "ann", 2, "2026-01-01T00:00:10.000000Z", "final", 0),
        (29, "ann", 1, "2026-01-01T00:00:20.000000Z", "open", 0),  # the view is at 23: a window may end by then
        (29, "bob", None, None, "open", 0),
        (5, "ann", None, None, "final", 0),
    ]
    assert "to be final past" in (view.why("buys/0/0000000000000002").waits_for or "")
    clicks.append([{"user": "ann", "page": "/", "at": at(9)}, {"user": "bob", "page": "/", "at": at(40)}])
    app.drain()  # the first is late, and corrects its window: so it does the row of whoever asked for that
    found = rows(view, *columns)
    assert found[0] == (10, "ann", 3, "2026-01-01T00:00:10.000000Z", "final", 1)
    assert {row[4] for row in found} == {"final"}
    assert app.audit().ok
    for name in ("busy", "bought"):
        made = app.rebuild(name)
        assert made.diff().num_rows == 0
        made.switch()
    app.drain(close=True)
    assert rows(view, *columns) == found


def test_views_that_have_no_time_are_not_looked_up_in(app: hr.App) -> None:
    looked_up(app)
    clicks = app.stream("clicks")
    counts = clicks.group_by("user").agg(n=hr.count()).to_view("counts")
    with pytest.raises(InvalidArgument, match="view 'counts' has no windows, so its rows have no time"):
        clicks.enrich(counts, on="user", as_of="at")
    with pytest.raises(InvalidArgument, match="has no windows"):
        clicks.enrich(app.view("bought"), on="user", as_of="at")
    with pytest.raises(InvalidArgument, match="name the record's time"):
        clicks.enrich(app.view("busy"), on="user")
    with pytest.raises(InvalidArgument, match="is never late"):
        clicks.enrich(app.view("busy"), on="user", as_of="at", grace="1 second")
    with pytest.raises(InvalidArgument, match="must name all groups of view 'busy': user"):
        clicks.enrich(app.view("busy"), on={"page": "n"}, as_of="at")


# -- from the log alone ----------------------------------------------------------------------------------


def test_a_compacted_topic_alone_makes_the_same_rows_on_an_empty_disk(tmp_path: Path, spark: Any) -> None:
    """And what has never read it before begins with what is left of it."""
    home = tmp_path / "home"

    def program(*more: str) -> tuple[hr.App, Any]:
        app = hr.App("shop", home=home, spark=spark)
        users = app.table("users", "id string, zip string", key="id")
        cities = app.table("cities", "zip string, city string", key="zip")
        counts = app.stream(users).group_by("zip").agg(n=hr.count()).to_view("counts")
        users.join(cities, on="zip", how="left").to_view("placed")
        cities.join(counts, on="zip").to_view("sizes")
        for name in more:
            users.join(cities, on="zip", how="left").to_view(name)
        return app, (users, cities)

    def all_rows(app: hr.App) -> list[Any]:
        names = ("id", "zip", "city", "n", "version", "_updated_at")
        views = (app.view(name).to_arrow().to_pylist() for name in ("users", "placed", "counts", "sizes"))
        return [sorted(repr([row.get(name) for name in names]) for row in view) for view in views]

    app, (users, cities) = program()
    with app:
        cities.upsert([{"zip": str(n), "city": f"C{n}"} for n in range(3)])
        for n in range(40):
            users.upsert({"id": f"u{n % 7}", "zip": str(n % 3)})
        users.delete(["u0", "u6"])
        app.drain()
        app.log.maintain()
        assert app.log.maintain().records_compacted > 0 or len([*app.log.topic("users").records()]) < 42
        before = all_rows(app)
        for file in home.glob("views.db*"):
            file.unlink()
        feed = app.log.topic("__changes.counts").topic_id
        with program()[0] as other:
            other.running.check()
        assert app.log.topic("__changes.counts").topic_id == feed, "it is in use, whatever store its views are in"
    app, _ = program("new")
    with app:
        app.drain()
        assert all_rows(app) == before
        assert rows(app.view("new"), "id", "city") == rows(app.view("placed"), "id", "city")
        assert len(rows(app.view("new"), "id")) == 5


# -- any cut, and any crash ------------------------------------------------------------------------------


def everything(spark: Any) -> hr.App:
    """A view of windows and one of groups, joined with a table; what came of that, joined again; and records that look
    up in the windows, with windows behind."""
    app = hr.App("shop", home=":temp:", spark=spark)
    users = app.table("users", "user string, zip string", key="user")
    clicks = app.stream(app.topic("clicks", CLICKS, key="user", event_time="at", partitions=2))
    late = hr.correct(within="20 seconds")
    windows = clicks.window(hr.tumbling("10 seconds"), grace="2 seconds", late=late)
    busy = windows.group_by("user").agg(n=hr.count()).to_view("busy")
    pages = clicks.dedup("user", "page", within="30 seconds").group_by("page").agg(n=hr.count()).to_view("pages")
    placed = busy.join(users, on="user", how="full").to_view("placed")
    placed.join(pages, on={"zip": "page"}, how="left").to_view("both")
    sessions = clicks.window(hr.session("4 seconds"), late=late).group_by("user").agg(clicks=hr.count())
    buys = app.stream(app.topic("buys", "user string, euros int, at timestamp", key="user", event_time="at"))
    seen = buys.enrich(sessions.to_view("sessions"), on="user", as_of="at", missing="drop")
    seen.to_view("seen")
    behind = buys.enrich(busy, on="user", as_of="at").window(hr.tumbling("20 seconds"))
    behind.group_by("n").agg(euros=hr.sum("euros")).to_view("by_n")
    return app


def random_steps(seed: int, count: int = 16) -> list[Any]:
    dice = random.Random(seed)
    steps: list[Any] = []
    for _ in range(count):
        user, zip_, when = dice.choice("abc"), dice.choice("12"), at(dice.randint(0, 60))
        steps += dice.choice(
            [
                [add("users", {"user": user, "zip": zip_, "_op": dice.choice(["upsert", "upsert", "delete"])})],
                [add("clicks", {"user": user, "page": zip_, "at": when})],
                [add("clicks", {"user": user, "page": zip_, "at": when}, {"user": None, "page": zip_, "at": when})],
                [add("buys", {"user": user, "euros": dice.randint(1, 9), "at": when})],
                [advance("3 seconds")],
            ]
        )
    return steps


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
def test_any_cut_gives_the_same(spark: Any, seed: int) -> None:
    with everything(spark) as app:
        assert_cut_invariant(app, *random_steps(seed), cuts=2, seed=seed)


def test_struck_anywhere_it_comes_to_the_same(spark: Any) -> None:
    with everything(spark) as app:
        assert len(crash_points(app, *random_steps(7, count=8))) > 5
