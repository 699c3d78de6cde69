"""Whole programs that search, from the log to topic and view, without a JVM: in any cuts, with restarts and kills
between, what they find is what brute force finds in both logs."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.testing import CRASH_POINTS
from tests.operators.sparkless_joins import without_spark
from tests.search.asking import TEXT, WORDS, fits, query, record, written

COLUMNS = "id bigint, title string, body string, sku string, price double, n bigint, ok boolean, at timestamp"
ZERO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)


def media(home: Path | str, **settings: Any) -> hr.App:
    app = hr.App("media", home=home, **settings)
    alerts = app.queries("alerts")
    found = app.stream(app.topic("articles", COLUMNS, partitions=2)).search(alerts, text=TEXT)
    found.to_topic("hits")
    found.to_view("found")
    return app


def queries(app: hr.App) -> hr.Queries:
    return hr.Queries(app._tables["alerts"], None)


def brute_force(app: hr.App, asked: dict[tuple[int, int], Any]) -> set[tuple[int, str, str]]:
    """Record, query and version: of all records, with the queries that were there when each arrived."""
    changes = [*app.log.topic("alerts").records()]
    out = set()
    for fact in app.log.topic("articles").records():
        latest = {each.value["query"]: each for each in changes if each.arrived_at < fact.arrived_at}
        for name, each in latest.items():
            meaning = asked.get((each.partition, each.offset))
            if meaning is not None and fits(meaning, fact.value):
                out.add((fact.value["id"], name, f"{each.partition}:{each.offset}"))
    return out


def sent(app: hr.App) -> list[tuple[int, str, str]]:
    return sorted(
        (row["id"], row["query"], row["version"]) for row in (each.value for each in app.log.topic("hits").records())
    )


@pytest.mark.parametrize("number", range(3))
def test_any_program_finds_what_brute_force_finds(number: int, seed: int, tmp_path: Path) -> None:
    run(random.Random(seed + number), tmp_path / "home", steps=12)


@pytest.mark.soak
def test_any_program_finds_what_brute_force_finds_for_long(seed: int, soak_seconds: float, tmp_path: Path) -> None:
    import time

    dice, until, number = random.Random(seed), time.monotonic() + soak_seconds, 0
    while time.monotonic() < until:
        number += 1
        run(dice, tmp_path / str(number), steps=60)
        shutil.rmtree(tmp_path / str(number))


def run(dice: random.Random, home: Path, steps: int) -> None:
    asked: dict[tuple[int, int], Any] = {}
    ids = iter(range(10**6))
    app = media(home, driver_rows=10_000)
    for _ in range(steps):
        match dice.randint(0, 5):
            case 0 | 1:
                app.log.topic("articles").append([{"id": next(ids), **record(dice)} for _ in range(dice.randint(1, 9))])
            case 2 | 3:
                name, meaning = dice.choice("abcdefgh"), query(dice)
                try:
                    place = only(queries(app).put(name, written(meaning)))
                    asked[place] = meaning if is_accepted(written(meaning)) else None
                except hr.InvalidSearch:
                    continue
            case 4:
                app.drain(batch_rows=dice.choice([1, 3, None]))
                if dice.random() < 0.5:
                    app.close()
                    app = media(home)
            case 5:
                known = [*{each.value["query"]: each for each in app.log.topic("alerts").records()}.values()]
                there = [each.value["query"] for each in known if each.value["_op"] == "upsert"]
                if there:
                    queries(app).remove(dice.choice(there))
    app.drain(batch_rows=dice.choice([2, None]))
    wanted = sorted(brute_force(app, asked))
    assert sent(app) == wanted
    rows = app.view("found").to_arrow().to_pylist()
    assert sorted((row["id"], row["query"], row["version"]) for row in rows) == wanted
    assert app.audit().ok
    app.close()


def is_accepted(text: str) -> bool:
    from headrace.queries import checked
    from headrace.schema import parse_ddl

    try:
        checked(text, parse_ddl(COLUMNS), tuple(TEXT))
    except hr.InvalidSearch:
        return False
    return True


def only(done: hr.Appended) -> tuple[int, int]:
    """Partition and offset of one record."""
    ((partition, (start,)),) = done.ranges.items()
    return partition, start


def article(number: int, title: str) -> dict[str, Any]:
    return {"id": number, "title": title, "at": ZERO + timedelta(seconds=number)}


def test_a_query_finds_what_arrives_after_it_and_until_it_goes(tmp_path: Path) -> None:
    with media(tmp_path) as app:
        alerts, articles = queries(app), app.log.topic("articles")
        articles.append(article(0, "heat"))  # before there is a query
        alerts.put("q", "heat")
        articles.append(article(1, "Heat!"))
        with app.log.transaction() as tx:  # in one commit: it does not count for its own
            tx.append("alerts", [{"query": "same", "text": "heat", "_op": "upsert"}])
            tx.append("articles", [article(2, "heat")])
        alerts.put("q", "pump")
        articles.append([article(3, "heat"), article(4, "pump")])
        alerts.remove("q")
        alerts.remove("same")
        articles.append(article(5, "heat pump"))
        app.drain()
        assert sent(app) == [(1, "q", "0:0"), (2, "q", "0:0"), (3, "same", "0:1"), (4, "q", "0:2")]


def test_a_saved_search_over_what_the_log_has(tmp_path: Path) -> None:
    with hr.App("media", home=tmp_path) as app:
        articles, alerts = app.topic("articles", COLUMNS), app.queries("alerts")
        articles.append([article(0, "heat"), article(1, "pump")])
        alerts.put("q", "pump")
        alerts.put("q", "heat")
        now = app.log.topic("alerts").offsets()[0].arrived_at + timedelta(microseconds=1)
        app.stream(articles).search(alerts, text=["title"]).to_topic("from_now_on")
        app.stream(articles).search(alerts, text=["title"], as_of=now).to_topic("ever")
        app.drain()
        assert [each.value["id"] for each in app.log.topic("ever").records()] == [0]
        assert not [*app.log.topic("from_now_on").records()]
        articles.append(article(2, "heat"))
        app.drain()
        assert [each.value["id"] for each in app.log.topic("ever").records()] == [0, 2]
        with pytest.raises(hr.InvalidArgument, match="in the future"):
            app.stream(articles).search(alerts, text=["title"], as_of="9999-01-01T00:00:00Z")


def test_a_tenants_queries_are_asked_of_its_records_only(tmp_path: Path) -> None:
    with hr.App("media", home=tmp_path) as app:
        articles = app.topic("articles", "customer string, title string")
        alerts = app.queries("alerts", tenant="customer")
        app.stream(articles).search(alerts, text="title").to_topic("hits")
        alerts.put("q", "heat", tenant="acme")
        alerts.put("q", "pump", tenant="umbrella")
        alerts.put("r", "heat", tenant="umbrella")
        alerts.remove("r", tenant="umbrella")
        articles.append([{"customer": each, "title": "heat pump"} for each in ("acme", "umbrella", "other", None)])
        app.drain()
        found = [each.value for each in app.log.topic("hits").records()]
        assert [(each["customer"], each["query"]) for each in found] == [("acme", "q"), ("umbrella", "q")]
        assert alerts.explain("q", tenant="umbrella").meaning == "pump"
        for tenant in (None, "", 7):
            with pytest.raises(hr.InvalidArgument, match="tenant="):
                alerts.put("q", "heat", tenant=tenant)
        with pytest.raises(hr.UnknownQuery, match="no query 'r'"):
            alerts.remove("r", tenant="umbrella")


def test_what_is_stored_is_checked_and_what_is_wrong_in_the_topic_does_no_harm(tmp_path: Path) -> None:
    with media(tmp_path) as app:
        mine = queries(app)
        with pytest.raises(hr.InvalidSearch, match=r"query 'b', character 1 of .*: .*nearly all") as refused:
            app.stream("articles").search(mine, text=TEXT)
            mine.put_all({"a": "heat", "b": "NOT heat"})
        assert (refused.value.query, refused.value.at) == ("b", 0)
        assert not [*app.log.topic("alerts").records()]  # all, or none
        with pytest.raises(hr.InvalidArgument, match="tenant="):
            mine.put("q", "heat", tenant="acme")
        app.log.topic("alerts").append({"query": "bad", "text": "nowhere:1"})
        app.log.topic("alerts").append({"query": "empty", "text": None})
        mine.put("q", "heat")
        app.log.topic("articles").append(article(0, "heat"))
        app.drain()
        assert [each[1] for each in sent(app)] == ["q"]
        letters = [*app.log.dead_letters()]
        assert {(each.reason, each.value["query"]) for each in letters} == {("invalid", "bad"), ("invalid", "empty")}
        assert "no column 'nowhere'" in letters[0].error
        assert mine.explain("bad").error is not None


def test_explain_says_where_a_query_lies(tmp_path: Path) -> None:
    with media(tmp_path) as app:
        mine = queries(app)
        app.stream("articles").search(mine, text=TEXT)
        app.log.topic("articles").append(
            [article(number, "the heat" if number % 10 else "the pump") for number in range(50)]
        )
        mine.put("q", "The AND Pump NOT solar")
        told = mine.explain("q")
        assert (told.version, told.meaning) == ("0:0", "the AND pump AND NOT solar")
        assert (told.terms, told.seen, told.records, told.candidates, told.hits) == (("pump",), (5,), 50, 5, 5)
        with pytest.raises(hr.UnknownQuery, match=r"no query 'p'\."):
            mine.explain("p")


OFTEN = ("flow.computed", "view.committed", "relay.appended")


# -- kills ---------------------------------------------------------------------------------------------


def begun_and_killed(home: Path, point: str) -> None:
    without_spark()
    with media(home) as app:
        failpoints.arm(point, "kill")
        app.drain()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, str]]]:
    """Some was found; queries and records that are further on are in the log, and not read."""
    home = tmp_path_factory.mktemp("kills") / "before"
    dice = random.Random(3)
    with pytest.MonkeyPatch.context() as patch, media(home) as app:
        without_spark(patch.setattr)
        mine = queries(app)
        mine.put_all({word: word for word in WORDS})
        for part in range(2):
            app.log.topic("articles").append([{"id": 10 * part + number, **record(dice)} for number in range(10)])
            mine.put("heat", "heat*")
            if not part:
                app.drain()
        mine.remove("pump")
    whole = home.parent / "whole"
    shutil.copytree(home, whole)
    with pytest.MonkeyPatch.context() as patch, media(whole) as app:
        without_spark(patch.setattr)
        app.drain()
        return home, sent(app)


@pytest.fixture(scope="module")
def start() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])

    def ended(*arguments: Any) -> int:
        process = context.Process(target=begun_and_killed, args=arguments)
        process.start()
        process.join(60)
        return int(process.exitcode or 0)

    return ended


@pytest.mark.parametrize(
    "point", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.soak) for each in CRASH_POINTS]
)
def test_a_kill_at_any_point_finds_the_same_once(
    point: str, before: tuple[Path, list[tuple[int, str, str]]], tmp_path: Path, start: Any
) -> None:
    home = tmp_path / "home"
    shutil.copytree(before[0], home)
    assert start(home, point) == -signal.SIGKILL
    with media(home) as app:
        app.drain()
        assert sent(app) == before[1]
        assert len(before[1]) > 10
        assert app.audit().ok
