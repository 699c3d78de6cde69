"""Queries as of a time and of a position, in SQLite and in Postgres. After each step of a random program all tables are
stored; later each is asked for again, as it was. Programs run without a JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace.errors import InvalidArgument, WaitTimeout
from headrace.serve.server import Server
from headrace.views.past import arrival_of
from tests.cli.conftest import Shell, shell
from tests.databases import PostgresServer
from tests.operators.sparkless_joins import without_spark

__all__ = ["shell"]

ZERO = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["ann", "bob", None]
JOINED = "SELECT id, zip, city FROM people_in"
"""Its `_updated_at` is not known of the past."""
ALL = ["SELECT * FROM people", JOINED, "WITH p AS (SELECT * FROM people) SELECT zip, count(*) AS n FROM p GROUP BY zip"]


class Clock:
    """Moves on when it is told to."""

    def __init__(self) -> None:
        self.now = ZERO

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1_000_000)


@pytest.fixture(params=["sqlite", "postgres"])
def views(request: pytest.FixtureRequest) -> str | None:
    """Where they are."""
    if request.param == "sqlite":
        return None
    pytest.importorskip("psycopg")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.schema(request.node.nodeid)


class Shop:
    """Tables of every kind. `step` changes some, and reads what is new."""

    def __init__(self, home: Path, views: str | None, dice: random.Random) -> None:
        self.clock, self.dice = Clock(), dice
        self.app = app = hr.App("shop", home=home, views=views, clock_us=self.clock)
        self.people = app.table("people", "id string, zip int", key="id", history="versions", partitions=2)
        self.cities = app.table("cities", "zip int, city string", key="zip", history="versions")
        since = "sku int, euros int, since timestamp"
        self.rates = app.table("rates", since, key="sku", event_time="since", history="bitemporal")
        self.prices = app.table("prices", since, key="sku", event_time="since", history="versions")
        self.now = app.table("now", "id string, n int", key="id")
        self.people.join(self.cities, on="zip", how="left").to_view("people_in", history="versions")
        self.now.upsert({"id": "x", "n": 1})

    def step(self) -> hr.Position:
        """Several changes may arrive at the same moment, also of one key."""
        self.clock.now += timedelta(seconds=self.dice.choice([1, 30]))
        done = self.people.upsert({"id": self.dice.choice(NAMES), "zip": self.dice.randrange(3)})
        for _ in range(self.dice.randrange(3)):
            done = self._change()
        self.app.drain(batch_rows=self.dice.choice([1, 3, None]))
        return done.position

    def _change(self) -> Any:
        roll, zip = self.dice.random(), self.dice.randrange(3)
        since = self.clock.now + timedelta(seconds=self.dice.randrange(-90, 90))
        if roll < 0.2:
            return self.people.delete(self.dice.choice(NAMES))
        if roll < 0.4:
            return self.cities.upsert({"zip": zip, "city": f"c{self.dice.randrange(9)}"})
        if roll < 0.5:
            return self.cities.delete(zip)
        table = self.dice.choice([self.rates, self.prices])
        if roll < 0.6:
            return table.delete(zip, at=since)
        return table.upsert({"sku": zip, "euros": self.dice.randrange(9), "since": since})

    def valid(self, table: hr.Table, time: datetime, *, known: bool) -> set[tuple[int, int]]:
        """Which rows were valid, by brute force over the log. `known`: as far as they had arrived."""
        last: dict[int, tuple[Any, ...]] = {}
        for record in table.topic.records():
            cells = record.value
            order = (cells["since"], record.arrived_at, record.offset)
            if cells["since"] <= time and (not known or record.arrived_at <= time):
                last[cells["sku"]] = max(last.get(cells["sku"], ()), (*order, cells["_op"], cells["euros"]))
        return {(sku, found[-1]) for sku, found in last.items() if found[-2] == "upsert"}


@pytest.fixture
def shop(tmp_path: Path, views: str | None, seed: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    without_spark(monkeypatch.setattr)
    made = Shop(tmp_path / "home", views, random.Random(seed))
    with closing(made.app):
        yield made


def rows(found: Any) -> list[str]:
    return sorted(repr(row) for row in found.to_pylist())


def check(shop: Shop, steps: int) -> None:
    seen: list[tuple[datetime, hr.Position, list[list[str]]]] = []
    for _ in range(steps):
        position = shop.step()
        seen.append((shop.clock.now, position, [rows(shop.app.query(sql)) for sql in ALL]))
    between = timedelta(milliseconds=1)
    for time, position, found in seen:
        for as_of in (time, time + between, str(time), position):
            assert [rows(shop.app.query(sql, as_of=as_of)) for sql in ALL] == found, as_of
        for table in (shop.rates, shop.prices):
            got = shop.app.query(f"SELECT sku, euros FROM {table.name}", as_of=time).to_pylist()
            wanted = shop.valid(table, time, known=table is shop.rates)
            assert {(row["sku"], row["euros"]) for row in got} == wanted, time
    assert all(not shop.app.query(sql, as_of=ZERO).num_rows for sql in ALL), "there was nothing yet"


def test_every_step_is_found_again(shop: Shop) -> None:
    check(shop, 12)


@pytest.mark.soak
def test_every_step_is_found_again_at_length(shop: Shop) -> None:
    check(shop, 300)


def test_a_name_without_a_history_is_refused(shop: Shop, views: str | None) -> None:
    shop.step()
    query, schema = shop.app.query, "headrace" if views is None else views.rpartition("schema=")[2]
    own = f"{schema}." if views else "main."
    for sql in (
        "SELECT * FROM now",
        "SELECT count(*) FROM people, now",
        "SELECT (SELECT max(n) FROM now) FROM people",
        "WITH people AS (SELECT * FROM now) SELECT * FROM people",
        f"SELECT * FROM {own}now",
        f'SELECT * FROM {own}"now/rows"',
    ):
        with pytest.raises(InvalidArgument, match=r"now.*keeps its latest rows only: .*history='versions'"):
            query(sql, as_of=shop.clock.now)
        if "/" not in sql:
            assert query(sql).num_rows, "without as_of it is read"
    for sql in (f"SELECT * FROM {own}people", f"SELECT * FROM {own}_flows"):
        with pytest.raises(InvalidArgument, match=r"people' is read past its name|no history"):
            query(sql, as_of=shop.clock.now)
    with pytest.raises(InvalidArgument, match="as_of"):
        query("SELECT * FROM people", as_of="2026-01-01T00:00:00")  # without a zone
    for sql in ("SELECT * FROM nothing", "SELECT 1) AS a; SELECT (1", "SELECT 1; SELECT 2", "DELETE FROM people"):
        with pytest.raises(hr.InvalidQuery):
            query(sql, as_of=shop.clock.now)
    with pytest.raises(hr.InvalidQuery, match="_updated_at") as refused:
        query("SELECT _updated_at FROM people_in", as_of=shop.clock.now)
    assert "Did you mean" not in str(refused.value), "it is there now"
    histories = "SELECT count(*) AS n FROM people_history"
    assert query(histories, as_of=ZERO) == query(histories), "a history has all times"
    kept = query("SELECT * FROM people", as_of=shop.clock.now)
    assert kept.schema == query("SELECT * FROM people").schema
    assert query("SELECT zip FROM people WHERE id = ?", ("nobody",), as_of=shop.clock.now).num_rows == 0


def test_a_time_that_is_not_kept_any_more_is_refused(shop: Shop) -> None:
    kept = shop.app.table("kept", "id int, n int", key="id", history="versions", keep="1 hour")
    for n in range(3):
        shop.clock.now += timedelta(minutes=50)
        kept.upsert({"id": 1, "n": n})
        shop.app.drain()
        for minutes in (0, 10, 49, 60):
            time = shop.clock.now - timedelta(minutes=minutes)
            found = shop.app.query("SELECT n FROM kept", as_of=time).to_pylist()
            assert found == [{"n": n - (minutes + 49) // 50}][: n + 1 - (minutes + 49) // 50]
        with pytest.raises(InvalidArgument, match="bounds its history with keep=: it has versions since 20"):
            shop.app.query("SELECT n FROM kept", as_of=shop.clock.now - timedelta(minutes=61))


def test_a_position_is_the_arrival_of_its_last_record(shop: Shop) -> None:
    shop.step()
    done = shop.people.upsert([{"id": "ann", "zip": 7}, {"id": "ann", "zip": 8}])
    with pytest.raises(WaitTimeout):
        shop.app.query("SELECT * FROM people", as_of=done.position, timeout="10 milliseconds")
    shop.app.drain()
    ask = "SELECT zip FROM people WHERE id = 'ann'"
    ((partition, offset),) = done.position.offsets("people").items()
    topic = shop.app.log.topic("people")
    for nexts in (offset, offset - 1):  # both arrived at once
        there = hr.Position.of("people", topic.topic_id, {partition: nexts})
        assert shop.app.query(ask, as_of=there).to_pylist() == [{"zip": 8}]
    shop.clock.now += timedelta(seconds=1)
    shop.people.upsert({"id": "ann", "zip": 9})
    shop.app.drain()
    assert shop.app.query(ask, as_of=done.position).to_pylist() == [{"zip": 8}]
    with pytest.raises(InvalidArgument, match="behind the end of the log"):
        shop.app.query(ask, as_of=hr.Position.of("people", topic.topic_id, {partition: 1_000}))
    with pytest.raises(hr.TopicReplaced):
        shop.app.query(ask, as_of=hr.Position.of("people", "abc", {partition: 1}))
    with pytest.raises(InvalidArgument, match="before all records"):
        shop.app.query(ask, as_of=hr.Position())


def test_a_position_where_compaction_left_nothing(tmp_path: Path) -> None:
    """It is not looked for at each of the offsets before."""
    with hr.open_log(tmp_path / "home") as log:
        topic = log.create_topic("counts", "id string, n int", key="id", cleanup="compact")
        first = topic.append({"id": "a", "n": 0})
        topic.append([{"id": "b", "n": n} for n in range(100_000)])
        topic.append({"id": "b", "n": -1})
        log.maintain()
        assert sum(1 for _ in topic.records()) == 2
        (kept, _) = topic.records()
        began = process_time()
        for offset in (1, 2, 50_000, 100_001):
            there = hr.Position.of("counts", topic.topic_id, {0: offset})
            assert arrival_of(log, there) == kept.arrived_at == arrival_of(log, first.position)
        assert process_time() - began < 2, "a hundred thousand looks take ten seconds"


def test_other_services_and_the_command_line_ask_too(
    shop: Shop, views: str | None, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    position, first = shop.step(), shop.clock.now
    before = rows(shop.app.query("SELECT * FROM people"))
    shop.step()
    found = hr.open_views(views or tmp_path / "home")
    assert rows(found.query("SELECT * FROM people", as_of=first)) == before
    if views is None:
        assert rows(found.query("SELECT * FROM people", as_of=position)) == before
    else:
        with pytest.raises(InvalidArgument, match="do not know the log"):
            found.query("SELECT * FROM people", as_of=position)
        monkeypatch.setenv("HEADRACE_VIEWS", views)
    for as_of in (first.isoformat(), str(position)):
        said = shell.ok("query", "people", "--as-of", as_of, "--format", "json", "--home", str(tmp_path / "home"))
        assert len([json.loads(line) for line in said.out.splitlines()]) == len(before)
    said = shell.ok("query", "SELECT count(*) AS n FROM people", "--as-of", first.isoformat(), "--format", "arrow")
    assert said.out
    with Server(tmp_path / "home", port=0, views=views) as server:
        token = {"Authorization": f"Bearer {server.token}"}

        def ask(sql: str, as_of: str) -> Any:
            return httpx.post(f"{server.url}/api/query", headers=token, json={"sql": sql, "as_of": as_of}).json()

        for as_of in (first.isoformat(), str(position)):
            assert ask("SELECT count(*) FROM people", as_of)["rows"] == [[len(before)]]
            assert "keeps its latest rows" in ask("SELECT * FROM now", as_of)["error"]["message"]
        assert ask("SELECT * FROM people", "yesterday")["error"]["facts"]["argument"] == "as_of"
