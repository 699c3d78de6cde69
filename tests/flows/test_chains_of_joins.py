"""Joins behind joins: what one takes back, the next takes back; arrival and progress go through the chain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import InvalidArgument
from headrace.testing import add, assert_cut_invariant, crash_points

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
CLICKS, BUYS = "user string, page string, at timestamp", "user string, euros int, at timestamp"
EVERYTHING = pa.table({"x": [1]}).select([])


def at(seconds: int) -> datetime:
    return ZERO + timedelta(seconds=seconds)


class Clock:
    """Each append arrives a second later than the one before."""

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
    return sorted((tuple(row[name] for name in names) for row in view.to_arrow().to_pylist()), key=str)


def chain(app: hr.App) -> hr.View:
    """Clicks with the zip of their user, and the city of that, left joined with what the user buys: by city."""
    times = {"history": "versions", "event_time": "at"}
    users = app.table("users", "id string, zip string, at timestamp", key="id", **times)
    zips = app.table("zips", "zip string, city string, at timestamp", key="zip", **times)
    clicks = app.stream(app.topic("clicks", CLICKS, key="user", event_time="at", partitions=2))
    buys = app.stream(app.topic("buys", BUYS, key="user", event_time="at"))
    return (
        clicks.enrich(users, on={"user": "id"}, as_of="at", columns=["zip"], grace="1 hour")
        .enrich(zips, on="zip", as_of="at", columns=["city"], grace="1 hour")
        .join(buys, on="user", before="5 seconds", after="5 seconds", how="left", grace="100 seconds")
        .window(hr.tumbling("20 seconds"))
        .group_by("city")
        .agg(n=hr.count(), euros=hr.sum("euros"))
        .to_view("by_city")
    )


def random_steps(seed: int, count: int) -> list[Any]:
    dice = random.Random(seed)
    made = []
    for number in range(count):
        user, zip_, when = dice.choice("ab"), dice.choice("12"), at(dice.randint(0, 40))
        made.append(
            dice.choice(
                [
                    add("users", {"id": user, "zip": zip_, "at": when, "_op": "upsert"}),
                    add("zips", {"zip": zip_, "city": dice.choice("XY"), "at": when, "_op": "upsert"}),
                    add("clicks", {"user": user, "page": str(number), "at": when}),
                    add("buys", {"user": user, "euros": number, "at": when}),
                ]
            )
        )
    return made


def answer(steps: list[Any]) -> list[tuple[Any, ...]]:
    """The rows of `chain`, of all records at once. All is in time: of two versions valid from the same time, the later
    record counts."""
    read: dict[str, list[dict[str, Any]]] = {"users": [], "zips": [], "clicks": [], "buys": []}
    for step in steps:
        read[step.topic] += step.rows

    def as_of(table: str, key: str, value: Any, when: datetime, column: str) -> Any:
        valid = [(each["at"], n, each) for n, each in enumerate(read[table]) if each[key] == value]
        valid = [each for each in valid if each[0] <= when]
        return max(valid, key=lambda each: each[:2])[2][column] if valid else None

    found: dict[tuple[datetime, Any], list[Any]] = {}
    for click in read["clicks"]:
        zip_ = as_of("users", "id", click["user"], click["at"], "zip")
        city = as_of("zips", "zip", zip_, click["at"], "city")
        mine = [buy for buy in read["buys"] if buy["user"] == click["user"]]
        near = [buy for buy in mine if abs(buy["at"] - click["at"]) <= timedelta(seconds=5)]
        for buy in near or [None]:
            joined_at = max(click["at"], click["at"] if buy is None else buy["at"])
            start = ZERO + (joined_at - ZERO) // timedelta(seconds=20) * timedelta(seconds=20)
            found.setdefault((start, city), []).append(None if buy is None else buy["euros"])
    sums = {place: [each for each in some if each is not None] for place, some in found.items()}
    return sorted(((*place, len(found[place]), sum(sums[place]) if sums[place] else None) for place in found), key=str)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 10))])
def test_a_chain_of_joins_is_the_same_as_one_batch(app: hr.App, seed: int) -> None:
    view, dice = chain(app), random.Random(seed)
    steps = random_steps(seed, 40)
    assert len(answer(steps)) >= 4
    for step in steps:
        app.log.topic(step.topic).append(step.rows)
        if dice.random() < 0.2:
            app.drain()
    app.drain(close=True)
    assert rows(view, "window_start", "city", "n", "euros") == answer(steps)
    assert {status for (status,) in rows(view, "_status")} == {"final"}
    ends = {name: app.log.topic(name).offsets() for name in ("buys", "clicks", "users", "zips")}
    read = {name: dict(places) for name, _, places in view.status().position.topics}
    assert read == {name: {at: end.next for at, end in some.items() if end.next} for name, some in ends.items()}
    assert {each.flow: each.lag for each in app.status()}["by_city"] == 0


def test_any_cut_of_a_chain_gives_the_same(app: hr.App) -> None:
    chain(app)
    assert_cut_invariant(app, *random_steps(3, 20), cuts=1, seed=3)


def test_a_chain_that_is_struck_anywhere_comes_to_the_same(app: hr.App) -> None:
    chain(app)
    assert len(crash_points(app, *random_steps(5, 8))) > 5


def changes_in(app: hr.App, topic: str) -> list[str]:
    return [op for record in app.log.topic(topic).records() if (op := record.value["change__op"]) != "."]


def test_a_late_version_publishes_only_the_facts_that_it_answers(app: hr.App) -> None:
    view = chain(app)
    for name, key in (("users", "id"), ("zips", "zip")):
        values = [{key: str(n), "zip": str(n), "at": at(0), "_op": "upsert"} for n in range(10)]
        app.log.topic(name).append([{**each, "city": "X"} if name == "zips" else each for each in values])
    app.log.topic("clicks").append([{"user": str(n % 10), "page": "/", "at": at(n)} for n in range(40)])
    app.drain(close=True)
    feeds = ["__changes.by_city.join.left.enrich.facts.enrich", "__changes.by_city.join.left.enrich"]
    before = [len(changes_in(app, topic)) for topic in feeds]
    assert before == [40, 40]
    app.log.topic("zips").append({"zip": "3", "city": "Y", "at": at(20), "_op": "upsert"})  # clicks at 23 and 33
    app.drain(close=True)
    assert [changes_in(app, topic)[count:] for topic, count in zip(feeds, before, strict=True)] == [
        [],
        ["-", "-", "+", "+"],
    ]
    app.log.topic("users").append({"id": "3", "zip": "4", "at": at(30), "_op": "upsert"})  # the click at 33
    app.drain(close=True)
    told = [changes_in(app, topic)[count:] for topic, count in zip(feeds, before, strict=True)]
    assert told == [["-", "+"], ["-", "-", "+", "+", "-", "+"]]
    view.drop()
    assert not [each.name for each in app.log.topics() if each.name.startswith("__changes.by_city")]


def test_why_names_the_records_of_the_whole_chain(app: hr.App) -> None:
    users, zips = (app.table(name, "id string, zip string", key="id") for name in ("users", "zips"))
    clicks = app.stream(app.topic("clicks", f"{CLICKS}, clicks_version string", key="user", event_time="at"))
    named = clicks.enrich(users, on={"user": "id"}, columns=["zip"]).enrich(
        zips, on={"zip": "id"}, columns={"zip": "city"}
    )
    view = named.join(clicks, on="user", grace="0 seconds").to_view("v")
    users.upsert({"id": "ann", "zip": "1"})
    zips.upsert({"id": "1", "zip": "X"})
    app.log.topic("clicks").append({"user": "ann", "page": "/", "at": at(0), "clicks_version": "1.2, no receipt"})
    app.drain()
    [(id_, city)] = rows(view, "_id", "city")
    found = view.why(id_)
    assert city == "X" and sorted(each.topic for each in found.origins) == ["clicks", "clicks", "users", "zips"]


def test_a_record_that_was_passed_on_looks_up_by_its_own_arrival(app: hr.App) -> None:
    """However late the flow between them runs: the row of the table had not arrived when the record did."""
    zips = app.table("zips", "page string, zip string", key="page")
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    view = app.stream(clicks).remember(str.upper, key="page", column="label").enrich(zips, on="page").to_view("v")
    zips.upsert({"page": "a", "zip": "1"})
    clicks.append([{"user": "ann", "page": "a", "at": at(0)}, {"user": "ann", "page": "b", "at": at(0)}])
    zips.upsert([{"page": "a", "zip": "2"}, {"page": "b", "zip": "3"}])
    app.drain()
    assert rows(view, "page", "label", "zip") == [("a", "A", "1"), ("b", "B", None)]


def test_results_of_a_view_are_joined_and_looked_up_as_they_change(app: hr.App) -> None:
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    names = app.table("names", "user string, name string", key="user")
    per_user = (
        app.stream(clicks).window(hr.tumbling("10 seconds")).group_by("user").agg(n=hr.count()).to_view("per_user")
    )
    named = app.stream(per_user).enrich(names, on="user", columns=["name"]).to_view("named")
    buys = app.topic("buys", BUYS, key="user", event_time="at")
    both = (
        app.stream(per_user)
        .join(app.stream(buys), on="user", before="10 seconds", how="left", grace="0 seconds")
        .to_view("both")
    )
    names.upsert({"user": "ann", "name": "Ann"})
    clicks.append({"user": "ann", "page": "/", "at": at(1)})
    buys.append({"user": "ann", "euros": 7, "at": at(2)})  # in [10 - 10, 10]: the time of a result is its window's end
    app.drain()
    assert rows(both, "user", "n", "euros") == [("ann", 1, 7)]
    clicks.append([{"user": user, "page": "/", "at": at(3)} for user in ("ann", "bob")])
    app.drain(close=True)
    assert rows(named, "user", "n", "name") == [("ann", 2, "Ann"), ("bob", 1, None)]
    assert rows(both, "user", "n", "euros") == [("ann", 2, 7), ("bob", 1, None)]


def test_records_that_dedup_takes_back_leave_their_joins(app: hr.App) -> None:
    """An earlier record of the same key takes the other's place, in the pairs and in the rows without a match."""
    clicks = app.topic("clicks", f"{CLICKS}, page__count int", key="user", event_time="at")
    buys = app.topic("buys", BUYS, key="user", event_time="at")
    once = app.stream(clicks).dedup("page", within="1 minute", grace="1 minute")
    view = once.join(app.stream(buys), on="user", after="5 seconds", how="full", grace="1 minute").to_view("v")
    clicks.append({"user": "ann", "page": "p", "at": at(20), "page__count": 3})
    buys.append({"user": "ann", "euros": 1, "at": at(22)})
    app.drain()
    assert rows(view, "user", "at", "euros", "page__count") == [("ann", at(20), 1, 3)]
    clicks.append({"user": "ann", "page": "p", "at": at(10)})
    app.drain(close=True)
    assert rows(view, "user", "at", "euros") == [("ann", None, 1), ("ann", at(10), None)]


def test_rows_of_a_join_are_joined_with_a_third_stream(app: hr.App) -> None:
    """By `joined_at`, which is that of the whole row then. A match that comes late takes the row without one back."""
    clicks, buys, sends = (
        app.topic(name, f"user string, {name} int, at timestamp", key="user", event_time="at")
        for name in ("clicks", "buys", "sends")
    )
    late = {"grace": "0 seconds", "late": hr.correct(within="1 minute")}
    first = app.stream(clicks).join(
        app.stream(buys), on="user", after="5 seconds", how="left", suffix="_bought", **late
    )
    view = first.join(app.stream(sends), on="user", after="5 seconds", how="left", suffix="_sent", **late).to_view("v")
    seen = ("user", "clicks", "buys", "sends", "joined_at")
    clicks.append([{"user": user, "clicks": 1, "at": at(0)} for user in ("ann", "bob")])
    buys.append({"user": "bob", "buys": 2, "at": at(4)})
    sends.append([{"user": user, "sends": 3, "at": at(7)} for user in ("ann", "bob")])
    app.drain(close=True)
    assert rows(view, *seen) == [("ann", 1, None, None, at(0)), ("bob", 1, 2, 3, at(7))]
    buys.append({"user": "ann", "buys": 4, "at": at(3)})
    app.drain(close=True)
    assert rows(view, *seen) == [("ann", 1, 4, 3, at(7)), ("bob", 1, 2, 3, at(7))]


def test_a_topic_of_joined_rows_says_how_far_it_is(app: hr.App) -> None:
    """So what the next join keeps goes: of 50 parcels those that a pair still to come may meet."""
    orders, payments, parcels = (
        app.topic(name, f"id int, {name} int, at timestamp", key="id", event_time="at")
        for name in ("orders", "payments", "parcels")
    )
    paid = app.stream(orders).join(app.stream(payments), on="id", after="5 seconds", grace="2 seconds")
    pairs = app.stream(paid.to_topic("paid", event_time="at", changes=False))
    sent = pairs.transform(lambda df: df.drop("at_right", "joined_at")).join(
        app.stream(parcels), on="id", before="3 seconds", after="3 seconds", grace="1 second"
    )
    view = sent.to_view("sent")
    for n in range(50):
        for topic in (parcels, orders, payments):
            topic.append({"id": n, topic.name: n, "at": at(n)})
        if n % 5 == 4:
            app.drain()
    assert len(rows(view, "id")) == 50
    loop = app.running.loop(app.flows["sent"])
    state = app.running.store.read_state(loop.position)
    kept = [row["parcels"] for row in state.scan("right", EVERYTHING).to_pylist()]
    # The pairs reach to 49 - 2 (grace) - 5 (after), a batch before to 44 - 7; a parcel goes 3 + 1 seconds behind that.
    assert min(kept) >= 37 - 4 - 1 and len(kept) < 20


def test_a_flow_into_a_topic_can_be_dropped(app: hr.App) -> None:
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    app.stream(clicks).to_topic("copies")
    clicks.append({"user": "ann", "page": "a", "at": at(0)})
    app.drain()
    app.running.drop("copies")
    app.drain()
    assert len(list(app.log.topic("copies").records())) == 2, "it begins anew"


def test_what_does_not_say_which_row_it_takes_back_is_refused(app: hr.App) -> None:
    users = app.table("users", "user string, zip string", key="user")
    clicks = app.stream(app.topic("clicks", CLICKS, key="user", event_time="at"))
    told = clicks.enrich(users, on="user").to_topic("told")
    with pytest.raises(InvalidArgument, match="does not say which row"):
        app.stream(told).join(clicks, on="user", grace="0 seconds")
    counts = clicks.enrich(users, on="user").group_by("user").agg(n=hr.count()).to_view("counts")
    with pytest.raises(InvalidArgument, match=r"does not know when it arrived. Call enrich\(\) before .agg"):
        app.stream(counts).enrich(users, on="user")
    shaped = clicks.group_by("user").agg(n=hr.count()).transform(lambda df: df).to_view("shaped")
    with pytest.raises(InvalidArgument, match="has a transform behind agg"):
        app.stream(shaped).enrich(users, on="user")
    with pytest.raises(InvalidArgument, match="a dead letter could not"):
        clicks.enrich(users, on="user").enrich(users, on="user", missing="dead_letter")


def test_aggregates_behind_pairs_that_stay_keep_no_values(app: hr.App) -> None:
    """An inner join without corrections takes nothing back: so what cannot be taken out of an aggregate is allowed."""
    clicks = app.topic("clicks", CLICKS, key="user", event_time="at")
    pairs = app.stream(clicks).join(app.stream(clicks), on="user", after="5 seconds", grace="0 seconds")
    view = (
        pairs.group_by("user")
        .agg(n=hr.count(), last=hr.max("page_right"), users=hr.approx_count_distinct("page"))
        .to_view("v")
    )
    clicks.append([{"user": "ann", "page": page, "at": at(0)} for page in ("a", "b")])
    app.drain()
    assert rows(view, "user", "n", "last", "users") == [("ann", 4, "b", 2)]
    assert [table.name for table in app.running.query(app.flows["v"]).compiled.spec.tables] == ["rows"]
