"""Tables and joins as a program has them: rows put, records looked up, pairs found, views and windows behind them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import FlowChanged, InvalidArgument, UnknownColumn
from headrace.flows.folding import reading_in_parts
from headrace.testing import add, advance, assert_cut_invariant, crash_points

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
USERS = "id string, zip string, at timestamp"
CLICKS = "user string, page string, at timestamp"


def at(seconds: float) -> datetime:
    return ZERO + timedelta(seconds=seconds)


class Clock:
    """Moves on by a second with every look of the log, so that each append arrives later than the one before."""

    def __init__(self) -> None:
        self.us = int(at(1_000).timestamp()) * 1_000_000

    def __call__(self) -> int:
        self.us += 1_000_000
        return self.us


@pytest.fixture
def app(spark: Any) -> Iterator[hr.App]:
    with hr.App("shop", home=":temp:", spark=spark, clock_us=Clock()) as app:
        yield app


def rows(view: hr.View, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in view.to_arrow().to_pylist())


# -- tables ----------------------------------------------------------------------------------------------


def test_a_table_has_the_rows_that_were_put_and_not_deleted(app: hr.App) -> None:
    users = app.table("users", "id string, zip string", key="id")
    users.upsert([{"id": "ann", "zip": "8001"}, {"id": "bob", "zip": "8002"}])
    users.upsert({"id": "ann", "zip": "8003"})
    users.delete("bob")
    app.drain()
    assert rows(users, "id", "zip", "version") == [("ann", "8003", "0:2")]
    assert users.get("bob") is None
    found = users.get("ann")
    assert found is not None and found["zip"] == "8003"
    assert app.query("select zip from users where id = 'ann'").to_pylist() == [{"zip": "8003"}]
    users.upsert({"id": "bob", "zip": "8009"})
    app.drain()
    assert rows(users, "id", "zip") == [("ann", "8003"), ("bob", "8009")]


def test_a_table_with_versions_is_read_as_of_a_time(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="versions")
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    users.upsert({"id": "ann", "zip": "8003", "at": at(30)})
    users.upsert({"id": "ann", "zip": "8002", "at": at(20)})  # known later, valid in between
    users.delete("ann", at=at(40))
    app.drain()
    assert [row["zip"] for row in users.as_of(at(25)).to_pylist()] == ["8002"]
    assert users.as_of(at(5)).num_rows == 0
    assert users.as_of(at(45)).num_rows == 0
    assert users.get("ann") is None
    history = app.query("select zip, valid_from, valid_to from users_history order by valid_from").to_pylist()
    assert [tuple(row.values()) for row in history] == [
        ("8001", at(10), at(20)),
        ("8002", at(20), at(30)),
        ("8003", at(30), at(40)),
    ]


def test_a_table_keeps_its_versions_for_as_long_as_it_says_and_so_does_who_looks_up(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="versions", keep="10 minutes")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    stream = app.stream(clicks).enrich(users, on={"user": "id"}, as_of="at", columns=["zip"], late=hr.drop())
    view = stream.to_view("seen")
    users.upsert([{"id": "ann", "zip": str(n), "at": at(100 * n)} for n in range(9)])  # it is 1,000 o'clock, at least
    clicks.append([{"user": "ann", "page": str(t), "at": at(t)} for t in (250, 450, 850)])
    app.drain()
    assert [row["zip"] for row in app.query("select zip from users_history order by zip").to_pylist()] == list("45678")
    assert rows_by(view, "page", "zip") == [("250", None), ("450", "4"), ("850", "8")]
    assert [row["zip"] for row in users.as_of(at(450)).to_pylist()] == ["4"]
    with pytest.raises(InvalidArgument, match="keeps versions for 10 minutes"):
        users.as_of(at(100))
    for n in range(10, 13):
        users.upsert({"id": "ann", "zip": str(n), "at": at(100 * n)})
        clicks.append({"user": "ann", "page": "now", "at": at(1_000)})
        app.drain()
    kept = {each.side: each.rows for each in app.views.kept("seen")}
    assert kept["versions"] < 12  # the oldest are gone
    with pytest.raises(InvalidArgument, match="bounds a history of versions"):
        app.table("zips", "zip string", key="zip", keep="1 day")


def test_a_bitemporal_table_knows_what_was_known(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="bitemporal")
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    before = app.log.topic("users").offsets()[0].arrived_at
    assert before is not None
    users.upsert({"id": "ann", "zip": "8009", "at": at(20)})
    app.drain()
    assert [row["zip"] for row in users.as_known(before).to_pylist()] == ["8001"]
    assert [row["zip"] for row in users.as_of(at(25)).to_pylist()] == ["8009"]


# -- enrich ----------------------------------------------------------------------------------------------


def enriched(app: hr.App, **settings: Any) -> tuple[Any, Any, hr.View]:
    users = app.table("users", USERS, key="id", event_time="at", history="versions")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    stream = app.stream(clicks).enrich(users, on={"user": "id"}, as_of="at", columns=["zip"], **settings)
    return users, clicks, stream.to_view("enriched")


def test_a_record_gets_the_row_that_was_valid_at_its_time(app: hr.App) -> None:
    users, clicks, view = enriched(app)
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    users.upsert({"id": "ann", "zip": "8002", "at": at(20)})
    clicks.append([{"user": "ann", "page": "/a", "at": at(15)}, {"user": "ann", "page": "/b", "at": at(25)}])
    clicks.append({"user": "bob", "page": "/c", "at": at(25)})
    app.drain()
    found = rows(view, "page", "zip", "users_version", "_status")
    assert found == [("/a", "8001", "0:0", "final"), ("/b", "8002", "0:1", "final"), ("/c", None, None, "final")]


@pytest.mark.parametrize("event_time", ["at", None])
def test_a_table_that_is_loaded_after_its_records_was_there_from_the_beginning(
    app: hr.App, event_time: str | None
) -> None:
    users = app.table("users", USERS, key="id", event_time=event_time, loads=True)
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    stream = app.stream(clicks).enrich(
        users, on={"user": "id"}, as_of="at", columns={"zip": "zip"}, missing="drop", late=hr.drop()
    )
    view = stream.to_view("seen")
    clicks.append([{"user": user, "page": "/a", "at": at(15)} for user in ("ann", "bob")])
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    app.drain()
    assert rows(view, "user", "zip", "_status") == [("ann", "8001", "open")]
    users.upsert({"id": "ann", "zip": "8002", "at": at(12)})
    users.loaded()
    users.upsert({"id": "bob", "zip": "8003", "at": at(12)})  # too late, as without a load
    app.drain()
    columns = ("user", "zip", "_corrections", "_status")
    assert rows(view, *columns) == [("ann", "8002", 0, "final")]
    assert view.ledger().to_pylist()[0]["dropped"] == 1
    assert [(row["id"], row["zip"]) for row in users.to_arrow().to_pylist()] == [("ann", "8002"), ("bob", "8003")]
    assert app.audit().ok


def test_many_versions_are_read_by_sparks_workers(app: hr.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two tasks, which find what the driver finds: here, versions that are not the newest of their keys."""
    users, clicks, view = enriched(app)
    names = [f"u{n:02}" for n in range(40)]
    users.upsert([{"id": name, "zip": f"{n}/{name}", "at": at(n)} for n in (10, 30) for name in names])
    app.drain()
    wanted = {(name, at(n), f"{n - 10}/{name}") for n in (20, 40) for name in names}
    wanted |= {("nobody", at(n), None) for n in (20, 40)}
    for count, (keys_min, tasks) in enumerate([(10**9, 0), (30, 2)], 1):
        monkeypatch.setattr(reading_in_parts, "KEYS_MIN", keys_min)
        clicks.append([{"user": name, "page": "p", "at": at(n)} for n in (20, 40) for name in (*names, "nobody")])
        before = app.status()
        app.drain()
        assert sum(b.spark_tasks - a.spark_tasks for a, b in zip(before, app.status(), strict=True)) == tasks
        found = rows(view, "user", "at", "zip")
        assert (len(found), set(found)) == (count * len(wanted), wanted)


def test_keys_are_read_in_ranges_and_equal_ones_together() -> None:
    asked = pa.table({"id": [n % 7 for n in range(50)], "/high": list(range(50))})
    parts = reading_in_parts._parts(asked, ("id", "time"), 3)
    keys = [part["id"].to_pylist() for part in parts]
    assert [sorted(set(some)) for some in keys] == [[0, 1], [2, 3], [4, 5, 6]]
    assert sorted(bound for part in parts for bound in part["/high"].to_pylist()) == list(range(50))
    assert all(part["id"].to_pylist() == [bound % 7 for bound in part["/high"].to_pylist()] for part in parts)


def test_why_names_the_versions_and_positions_that_a_row_comes_from(app: hr.App) -> None:
    users, clicks, view = enriched(app, late=hr.correct(within="1 hour"))
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    clicks.append({"user": "ann", "page": "/a", "at": at(15)})
    app.drain()
    found = view.why("clicks/0/0000000000000000")
    assert [(each.topic, each.partition, each.offset) for each in found.origins] == [("clicks", 0, 0), ("users", 0, 0)]
    assert [each.record and each.record.get("zip") for each in found.origins] == [None, "8001"]
    assert found.row["zip"] == "8001" and found.waits_for is None
    assert users.why("ann").origins[0].record == {"id": "ann", "zip": "8001", "at": at(10), "_op": "upsert"}
    with pytest.raises(InvalidArgument, match="has no such row"):
        view.why("clicks/0/0000000000000009")
    with pytest.raises(InvalidArgument, match="is known by _id"):
        view.why()


def test_a_row_that_comes_too_late_for_a_record_corrects_it_within_bounds(app: hr.App) -> None:
    users, clicks, view = enriched(app, grace="10 seconds", late=hr.correct(within="1 hour"))
    clicks.append({"user": "ann", "page": "/a", "at": at(15)})
    app.drain()
    assert rows(view, "page", "zip", "_corrections") == [("/a", None, 0)]
    for _ in range(20):  # the log's clock
        clicks.append({"user": "bob", "page": "/x", "at": at(15)})
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    app.drain()
    assert ("/a", "8001", 1) in rows(view, "page", "zip", "_corrections")


def test_windows_behind_an_enrichment_follow_its_corrections(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="versions")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    view = (
        app.stream(clicks)
        .enrich(users, on={"user": "id"}, as_of="at", columns=["zip"], late=hr.correct(within="1 hour"))
        .window(hr.tumbling("1 minute"))
        .group_by("zip")
        .agg(clicks=hr.count())
        .to_view("by_zip")
    )
    clicks.append([{"user": "ann", "page": "/a", "at": at(15)}, {"user": "bob", "page": "/b", "at": at(16)}])
    app.drain()
    assert [row[1:] for row in rows_of(view)] == [(None, 2)]
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    app.drain()
    assert sorted(rows_of(view), key=str) == sorted([(at(0), "8001", 1), (at(0), None, 1)], key=str)


def rows_of(view: hr.View) -> list[tuple[Any, ...]]:
    return [(row["window_start"], row["zip"], row["clicks"]) for row in view.to_arrow().to_pylist()]


def test_a_transform_of_joined_rows_filters_computes_and_explodes(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="versions")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    view = (
        app.stream(clicks)
        .enrich(users, on={"user": "id"}, as_of="at", columns=["zip"], late=hr.correct(within="1 hour"))
        .transform(
            lambda df: df.where("zip is null or zip <> '9'").withColumn("both", F.expr("concat(user, ' ', zip)"))
        )
        .transform(lambda df: df.select("_id", "op", "both", F.explode(F.split("page", "/")).alias("part")))
        .to_view("shaped")
    )
    clicks.append([{"user": "ann", "page": "a/b", "at": at(15)}, {"user": "bob", "page": "c", "at": at(16)}])
    app.drain()
    assert rows_by(view, "both", "part") == [(None, "a"), (None, "b"), (None, "c")]
    users.upsert([{"id": "ann", "zip": "8", "at": at(10)}, {"id": "bob", "zip": "9", "at": at(10)}])
    app.drain()
    assert rows_by(view, "both", "part") == [("ann 8", "a"), ("ann 8", "b")]


def test_rows_that_are_exploded_before_and_behind_a_join_have_different_ids(app: hr.App) -> None:
    clicks, buys = (app.topic(name, CLICKS, key="user", event_time="at") for name in ("clicks", "buys"))
    parts = app.stream(buys).transform(lambda df: df.withColumn("page", F.explode(F.split("page", "/"))))
    joined = app.stream(clicks).join(parts, on="user", grace="0 seconds")
    again = joined.transform(lambda df: df.withColumn("page", F.explode(F.split("page", "/"))))
    view = again.to_view("both")
    clicks.append({"user": "ann", "page": "a/b", "at": at(15)})
    buys.append({"user": "ann", "page": "1/2", "at": at(15)})
    app.drain()
    assert rows(view, "page", "page_right") == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]


# -- interval joins --------------------------------------------------------------------------------------


def test_pairs_whose_times_are_close(app: hr.App) -> None:
    orders = app.topic("orders", "id string, amount int, at timestamp", key="id", event_time="at")
    payments = app.topic("payments", "id string, paid int, at timestamp", key="id", event_time="at")
    view = (
        app.stream(orders)
        .join(app.stream(payments), on="id", after="5 minutes", how="left", grace="0 seconds")
        .to_view("paid")
    )
    orders.append([{"id": "o1", "amount": 1, "at": at(0)}, {"id": "o2", "amount": 2, "at": at(1)}])
    payments.append([{"id": "o1", "paid": 1, "at": at(60)}])
    app.drain()
    assert rows(view, "id", "amount", "paid") == [("o1", 1, 1)]
    orders.append({"id": "o3", "amount": 3, "at": at(800)})
    payments.append({"id": "o3", "paid": 3, "at": at(800)})
    app.drain()
    found = [tuple(row[name] for name in ("id", "amount", "paid")) for row in view.to_arrow().to_pylist()]
    assert sorted(found) == [("o1", 1, 1), ("o2", 2, None), ("o3", 3, 3)]
    app.drain(close=True)
    assert app.audit().ok


# -- table joins -----------------------------------------------------------------------------------------


def test_tables_are_joined_by_a_foreign_key(app: hr.App) -> None:
    posts = app.table("posts", "id int, day date, hash binary, author string, text string", key=("id", "day", "hash"))
    users = app.table("users", "id string, name string", key="id")
    view = posts.join(users, on={"author": "id"}, how="left").to_view("timeline")
    own = {"day": ZERO.date(), "hash": b"\xff\x00"}
    posts.upsert([{"id": 1, **own, "author": "ann", "text": "a"}, {"id": 2, **own, "author": "bob", "text": "b"}])
    users.upsert({"id": "ann", "name": "Ann"})
    app.drain()
    assert rows_by(view, "text", "name") == [("a", "Ann"), ("b", None)]
    users.upsert([{"id": "ann", "name": "Anne"}, {"id": "bob", "name": "Bob"}])
    posts.delete([(1, *own.values())])
    app.drain()
    assert rows_by(view, "text", "name") == [("b", "Bob")]
    found = view.why(view.to_arrow()["_id"][0].as_py())
    assert [(each.topic, each.offset) for each in found.origins] == [("posts", 1), ("users", 2)]


def rows_by(view: hr.View, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in view.to_arrow().to_pylist()), key=str)


# -- what is refused -------------------------------------------------------------------------------------


def test_what_cannot_be_is_said_when_it_is_written(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at")
    clicks = app.stream(app.topic("clicks", CLICKS, key="user", event_time="at"))
    with pytest.raises(InvalidArgument, match="whole key of table 'users': id"):
        clicks.enrich(users, on={"user": "zip"})
    with pytest.raises(InvalidArgument, match="has no such column"):
        clicks.enrich(users, on={"user": "id"}, columns=["zap"])
    with pytest.raises(InvalidArgument, match="must be a table"):
        clicks.enrich("users", on="id")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grace"):
        clicks.join(clicks, on="user")  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="aggregate first"):
        clicks.to_view("clicks_seen")
    with pytest.raises(InvalidArgument, match="say from when on"):
        users.delete("ann")
    with pytest.raises(InvalidArgument, match="make it with loads=True"):
        users.loaded()
    with pytest.raises(InvalidArgument, match="keeps no such history"):
        users.as_of(at(0))


def test_columns_that_do_not_fit_are_said_before_anything_runs(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="versions")
    plain = app.topic("plain", "user string, zip string, ms bigint, at timestamp", event_time="at")
    odd = app.topic("odd", "user int, op string, at timestamp", event_time="at")

    def refused(stream: hr.Stream, error: type[Exception], match: str) -> None:
        name = f"v{len(app.flows)}"
        stream.to_view(name)
        with pytest.raises(error, match=match):
            app.running.query(app.flows[name])
        del app.flows[name]

    on = {"user": "id"}
    refused(app.stream(plain).enrich(users, on=on, as_of="at"), InvalidArgument, "have a column of this name.*columns=")
    refused(app.stream(plain).enrich(users, on={"usr": "id"}, columns=[]), UnknownColumn, "usr")
    counted = app.stream(plain).enrich(users, on=on, columns=[]).group_by("zap").agg(n=hr.count())
    refused(counted, UnknownColumn, r"'zip'\? There are: zip, (?!.*change__)")
    refused(app.stream(plain).enrich(users, on=on, as_of="ms", columns=[]), InvalidArgument, "must be a timestamp")
    without = app.stream(odd).transform(lambda df: df.drop("op"))
    refused(
        without.enrich(users, on=on, columns=["zip"]), InvalidArgument, "is int, and 'id' of table 'users' is string"
    )
    both = app.stream(odd).join(app.stream(odd), on="user", grace="0 seconds")
    refused(both, InvalidArgument, "joined rows have their own column of this name")
    late = hr.correct(within="1 hour", dropped_to="gone")
    refused(app.stream(plain).enrich(users, on=on, columns={"zip": "z"}, late=late), InvalidArgument, "dropped_to")


def test_names_and_places_that_would_collide_are_refused(app: hr.App) -> None:
    app.table("users", USERS, key="id", event_time="at", history="versions")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    with pytest.raises(InvalidArgument, match="the history of 'users'"):
        app.stream(clicks).group_by("page").agg(n=hr.count()).to_view("Users_History")
    with pytest.raises(InvalidArgument, match="give both one start"):
        app.stream(clicks).join(app.stream(clicks, start="latest"), on="user", grace="0 seconds")
    joined = app.stream(clicks).join(app.stream(clicks), on="user", how="left", grace="0 seconds")
    with pytest.raises(InvalidArgument, match="can be taken back"):
        joined.transform(lambda df: df).to_topic("pairs", changes=False)


def test_a_topic_that_one_side_reads_twice_gives_each_record_twice(app: hr.App) -> None:
    zips = app.table("zips", "zip string, city string", key="zip")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    stream = app.stream(clicks)
    view = (
        stream.union(stream.transform(lambda df: df.where("page <> '9'"))).enrich(zips, on={"page": "zip"}).to_view("v")
    )
    zips.upsert({"zip": "1", "city": "X"})
    clicks.append([{"user": "ann", "page": page, "at": at(15)} for page in ("1", "9")])
    app.drain()
    assert rows_by(view, "page", "city") == [("1", "X"), ("1", "X"), ("9", None)]
    assert {each.record and each.record["page"] for each in view.why("clicks#2/0/0000000000000000").origins[:1]} == {
        "1"
    }


def test_records_are_read_while_their_table_keeps_changing(app: hr.App) -> None:
    """The table gets a record before every look at it: who waited for its end would wait for ever."""
    users, clicks, view = enriched(app)
    clicks.append([{"user": "ann", "page": f"/{n}", "at": at(15)} for n in range(5)])
    loop = app.running.loop(app.flows["enriched"])
    for n in range(3):
        users.upsert({"id": "ann", "zip": str(n), "at": at(10)})
        loop.step()
    assert len(rows_by(view, "page", "zip")) == 5


def test_records_too_late_for_a_join_go_to_a_topic_with_the_columns_of_both_sides(app: hr.App) -> None:
    orders = app.topic("orders", "id string, at timestamp", key="id", event_time="at")
    payments = app.topic("payments", "id string, paid int, at timestamp", key="id", event_time="at")
    late = hr.drop(dropped_to="too_late")
    app.stream(orders).join(app.stream(payments), on="id", grace="0 seconds", late=late).to_view("paid")
    for topic, more in ((orders, {}), (payments, {"paid": 1})):
        topic.append([{"id": "a", "at": at(100), **more}, {"id": "b", "at": at(101), **more}])
        topic.append({"id": "late", "at": at(1), **more})
    app.drain()
    gone = [record.value for record in app.log.topic("too_late").records()]
    assert {(row["id"], row["at"], row["at_right"], row["paid"]) for row in gone} == {
        ("late", at(1), None, None),
        ("late", None, at(1), 1),
    }


def test_a_table_feeds_who_read_its_changes_in_another_program(tmp_path: Path, spark: Any) -> None:
    def program(*, counted: bool) -> hr.App:
        app = hr.App("shop", home=tmp_path / "home", spark=spark)
        users = app.table("users", "id string, zip string", key="id")
        if counted:
            app.stream(users).group_by("zip").agg(n=hr.count()).to_view("counts")
        return app

    for counted, zip_ in ((True, "1"), (False, "2"), (True, "3")):
        with program(counted=counted) as app:
            app._tables["users"].upsert({"id": "ann", "zip": zip_})
            app.drain()
            if counted:
                assert rows_by(app.view("counts"), "zip", "n") == [(zip_, 1)]


# -- any cut, and any crash ------------------------------------------------------------------------------


def everything(spark: Any) -> hr.App:
    """A table, what looks up in it, windows behind that, two streams that meet, and tables that are joined."""
    app = hr.App("shop", home=":temp:", spark=spark)
    users = app.table("users", USERS, key="id", event_time="at", history="bitemporal")
    zips = app.table("zips", "zip string, city string", key="zip", partitions=2, loads=True)
    clicks = app.stream(app.topic("clicks", CLICKS, key="user", event_time="at", partitions=2))
    buys = app.stream(app.topic("buys", "user string, euros int, at timestamp", key="user", event_time="at"))
    seen = clicks.enrich(users, on={"user": "id"}, as_of="at", columns=["zip"], late=hr.correct(within="1 hour"))
    seen.to_view("seen")
    seen.window(hr.tumbling("10 seconds"), grace="5 seconds").group_by("zip").agg(n=hr.count()).to_view("by_zip")
    clicks.enrich(zips, on={"page": "zip"}).to_view("latest")
    late = hr.correct(within="20 seconds")
    clicks.join(
        buys, on="user", before="5 seconds", after="3 seconds", how="full", grace="2 seconds", late=late
    ).to_view("bought")
    users.join(zips, on="zip", how="full").to_view("cities")
    return app


def random_steps(seed: int, count: int = 24) -> list[Any]:
    dice = random.Random(seed)
    steps: list[Any] = []
    for _ in range(count):
        user, zip_, when = dice.choice("abc"), dice.choice("12"), at(dice.randint(0, 60))
        steps += dice.choice(
            [
                [
                    add(
                        "users",
                        {"id": user, "zip": zip_, "at": when, "_op": dice.choice(["upsert", "upsert", "delete"])},
                    )
                ],
                [add("zips", {"zip": zip_, "city": dice.choice("XY"), "_op": dice.choice(["upsert", "delete"])})],
                [add("zips", {"_op": "loaded"})] if dice.random() < 0.5 else [],
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
        assert len(crash_points(app, *random_steps(7))) > 5


def test_a_quiet_flow_commits_nothing(app: hr.App) -> None:
    """However often it looks; what became final by the clock alone is committed once."""
    users, clicks, _ = enriched(app, late=hr.correct(within="1 hour"))
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    clicks.append({"user": "ann", "page": "/a", "at": at(15)})
    app.drain()
    app.drain()
    before = app.view("enriched").status().commits
    for _ in range(3):
        app.drain()
    assert app.view("enriched").status().commits == before


def test_windows_behind_an_enrichment_close_when_their_records_are_final(app: hr.App) -> None:
    users = app.table("users", USERS, key="id", event_time="at", history="versions")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    stream = app.stream(clicks).enrich(users, on={"user": "id"}, as_of="at", columns=["zip"])
    view = stream.window(hr.tumbling("1 minute")).group_by("zip").agg(n=hr.count()).to_view("by_zip")
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    clicks.append([{"user": "ann", "page": "/a", "at": at(15)}, {"user": "ann", "page": "/b", "at": at(200)}])
    app.drain()
    assert [row["_status"] for row in view.to_arrow().to_pylist()] == ["final", "open"]


def test_a_join_that_was_closed_goes_on_as_before(app: hr.App) -> None:
    orders = app.topic("orders", "id string, at timestamp", key="id", event_time="at")
    payments = app.topic("payments", "id string, paid int, at timestamp", key="id", event_time="at")
    stream = app.stream(orders).join(app.stream(payments), on="id", after="1 minute", how="left", grace="0 seconds")
    view = stream.to_view("paid")
    orders.append({"id": "o1", "at": at(0)})
    app.drain(close=True)
    assert rows_by(view, "id", "paid", "_status") == [("o1", None, "final")]
    payments.append({"id": "o1", "paid": 1, "at": at(30)})
    orders.append({"id": "o2", "at": at(1)})
    app.drain()
    assert rows_by(view, "id", "paid") == [("o1", 1)]
    frontier = view.status().frontier
    assert frontier is not None and frontier < at(60)


def test_joined_rows_are_rebuilt_streamed_and_watched(app: hr.App) -> None:
    users, clicks, view = enriched(app, late=hr.correct(within="1 hour"))
    counts = app.stream(view).group_by("zip").agg(n=hr.count()).to_view("counts")
    users.upsert({"id": "ann", "zip": "8001", "at": at(10)})
    clicks.append([{"user": user, "page": "/a", "at": at(15)} for user in ("ann", "bob", "bob")])
    app.drain()
    assert rows_by(counts, "zip", "n") == [("8001", 1), (None, 2)]
    with view.changes(timeout="10 seconds") as changes:
        first = [next(changes) for _ in range(3)]
        assert {(row["op"], row["zip"]) for row in first} == {("+", "8001"), ("+", None)}
        users.upsert({"id": "bob", "zip": "8002", "at": at(10)})
        app.drain()
        told = [next(changes) for _ in range(4)]
    assert sorted((row["op"], str(row["zip"])) for row in told) == [
        ("+", "8002"),
        ("+", "8002"),
        ("-", "None"),
        ("-", "None"),
    ]
    assert rows_by(counts, "zip", "n") == [("8001", 1), ("8002", 2)]
    made = app.rebuild("enriched")
    assert made.diff().num_rows == 0
    made.switch()
    clicks.append({"user": "bob", "page": "/z", "at": at(16)})
    app.drain()
    assert rows_by(counts, "zip", "n") == [("8001", 1), ("8002", 3)]
    assert app.audit().ok


def test_a_column_that_a_topic_gets_is_in_its_joins_when_the_program_declares_it(tmp_path: Path, spark: Any) -> None:
    def program(more: str = "") -> tuple[hr.App, list[hr.View]]:
        app = hr.App("shop", home=tmp_path, spark=spark)
        zips = app.table("zips", f"zip string, city string{more}", key="zip")
        clicks = app.stream(app.topic("clicks", f"{CLICKS}{more.replace('x', 'y')}", key="user", event_time="at"))
        seen = clicks.enrich(zips, on={"page": "zip"})
        both = seen.join(clicks, on="user", grace="0 seconds")
        return app, [zips, seen.to_view("seen"), both.to_view("both"), zips.join(zips, on="zip").to_view("pairs")]

    def append(app: hr.App, **more: int) -> None:
        app.log.topic("zips").append({"zip": "1", "city": str(more), "_op": "upsert"})
        app.log.topic("clicks").append({"user": "ann", "page": "1", "at": at(15), **more})

    app, views = program()
    with app:
        append(app)
        app.drain()
        app.log.topic("zips").alter(schema="zip string, city string, _op string, x int")
        app.log.topic("clicks").alter(schema=f"{CLICKS}, y int")
        append(app, y=1)
        app.drain()
        columns = [each.to_arrow().column_names for each in views]
    app, views = program()  # the same
    with app:
        append(app, y=2)
        app.drain()
        assert [each.to_arrow().num_rows for each in views] == [1, 3, 9, 1]
        assert [each.to_arrow().column_names for each in views] == columns
        assert app.audit().ok
    app, views = program(", x int")
    with app:
        with pytest.raises(FlowChanged, match="what is kept: x int came"):
            app.drain()
        assert views[0].to_arrow().column_names == columns[0]  # is still there to be read
        for name in ("zips", "seen", "pairs"):
            app.rebuild(name).switch()
        assert {row["y"] for row in views[1].to_arrow().to_pylist()} == {None, 1, 2}


def test_a_record_of_a_table_that_does_not_say_what_it_does_is_an_upsert(app: hr.App) -> None:
    users = app.table("users", "id string, version int", key="id", history="versions")
    app.log.topic("users").append({"id": "ann", "version": 8})
    app.drain()
    assert rows_by(users, "id", "version", "_version") == [("ann", 8, "0:0")]  # its own column, and the receipt
    assert app.query("select version, _version from users_history").to_pylist() == [{"version": 8, "_version": "0:0"}]
    assert [(each.topic, each.offset) for each in users.why("ann").origins] == [("users", 0)]
