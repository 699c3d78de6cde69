"""Large folds are staged in Postgres by Spark's workers: the same rows and ledger as when all comes to the driver, and
whatever goes wrong between staging and commit, nothing is lost or doubled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows.folding import staging
from headrace.flows.folding.staging import Staging
from tests.databases import PostgresServer

psycopg = pytest.importorskip("psycopg")

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "word string, n int, x double, at timestamp"
VIEWS = ("plain", "computed", "hops", "kept", "all_time")


def program(home: Path, spark: Any, **how: Any) -> hr.App:
    app = hr.App("staged", home=home, spark=spark, driver_rows=0, **how)
    events = app.topic("events", SCHEMA, event_time="at", partitions=2, durability="os")
    late = {"late": hr.correct(within="20 seconds", dropped_to="too_late"), "idle": "1 day"}
    values = {"n": hr.count(), "total": hr.sum("n"), "least": hr.min("n"), "mean": hr.avg("n"), "x": hr.sum("x")}
    some = {name: values[name] for name in ("n", "total", "least")}
    stream = app.stream(events)
    stream.window(hr.tumbling("10 seconds"), **late).group_by("word").agg(**values).to_view("plain")
    odd = stream.transform(lambda df: df.where("n is null or n % 7 <> 3"))
    odd.window(hr.tumbling("10 seconds"), late=hr.drop()).group_by("word").agg(**some).to_view("computed")
    hops = stream.window(hr.hopping("10 seconds", every="4 seconds"), late=hr.correct(within="15 seconds"))
    hops.group_by("word").agg(**some).to_view("hops")
    kept = stream.window(hr.tumbling("5 seconds"), late=hr.correct(within="1 hour")).group_by("word")
    kept.agg(n=hr.count()).to_view("kept", keep="30 seconds")
    stream.group_by("word").agg(**some).to_view("all_time")
    return app


def rows(dice: random.Random, count: int, begin: float = 0.0) -> list[dict[str, Any]]:
    return [
        {
            "word": dice.choice(["a", "b", "ü", None]),
            "n": dice.choice([None, dice.randrange(100)]),
            "x": dice.choice([None, 0.5, -2.0, 1e10]),
            "at": T0 + timedelta(seconds=begin + number / 3 - dice.choice([0, 0, 0, 3, 20, 45])),
        }
        for number in range(count)
    ]


def found(app: hr.App, *views: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in views or VIEWS:
        table = app.view(name).to_arrow().drop_columns(["_updated_at"])
        out[name] = sorted(map(str, table.to_pylist()))
        out[f"ledger of {name}"] = sorted(map(str, app.view(name).ledger().to_pylist()))
    return out


@pytest.fixture
def apps(
    postgres: PostgresServer, headrace_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[hr.App, hr.App]]:
    """The program with its views in SQLite and, over the same log, in Postgres, where every batch is staged."""
    monkeypatch.setattr(staging, "ROWS_MIN", 0)
    monkeypatch.setattr("headrace.views.owner.FlowLock.take", lambda *_, **__: None)  # one home, two stores
    with (
        program(tmp_path, headrace_spark) as here,
        program(tmp_path, headrace_spark, views=postgres.schema(tmp_path)) as there,
    ):
        yield here, there


def staging_tables(postgres: PostgresServer, of: Path) -> int:
    with psycopg.connect(postgres.url) as plain:
        schema = postgres.schema(of).rpartition("=")[2]
        named = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, '~staged/')"
        return int(plain.execute(named, (schema,)).fetchone()[0])


def the_same(
    apps: tuple[hr.App, hr.App], names: tuple[str, ...], dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = apps
    ran, run = list[str](), Staging.run
    monkeypatch.setattr(Staging, "run", lambda self, planned: ran.append(self._flow.name) or run(self, planned))
    for begin, batch_rows in ((0.0, 1_000), (30.0, 70)):
        here.log.topic("events").append(rows(dice, 120, begin))
        for name in names:
            there.running.query(there.flows[name]).one_task_rows = 0  # tasks of their own for few records
            for app in apps:
                loop = app.running.loop(app.flows[name])
                while loop.step(batch_rows):
                    pass
        assert found(there, *names) == found(here, *names)
    assert {*ran} == {*names}


def test_what_workers_stage_is_what_the_driver_would_have_written(
    apps: tuple[hr.App, hr.App], postgres: PostgresServer, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_same(apps, ("plain", "computed"), random.Random(seed), monkeypatch)
    assert staging_tables(postgres, tmp_path) == 0


@pytest.mark.soak
@pytest.mark.parametrize("round", range(4))
def test_whatever_the_flow(apps: tuple[hr.App, hr.App], seed: int, monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    the_same(apps, VIEWS, random.Random(f"{round} {seed}"), monkeypatch)
    assert apps[1].audit().ok


def test_somebody_watches_meanwhile(apps: tuple[hr.App, hr.App], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who began to watch between staging and commit is told what the commit changes."""
    here, there = apps
    here.log.topic("events").append(rows(random.Random(seed), 60))
    loop = there.running.loop(there.flows["plain"])
    loop.step(15)
    watch = there.view("plain").changes(timeout="20 seconds")
    batch = loop.prepare(15)
    assert batch is not None and batch.staged is None  # somebody watches
    loop.commit(batch)
    watch.close()
    for watched in (False, True):  # as the commit sees it: before its transaction, or only inside
        batch = loop.prepare(10)
        assert batch is not None and batch.staged is not None
        with there.view("plain").changes(timeout="20 seconds") as watch:
            with monkeypatch.context() as patch:
                if not watched:
                    patch.setattr(type(loop._store), "is_watched", lambda *_: False)
                loop.commit(batch)
            assert {change["op"] for change in watch.next_commit(20).to_pylist()} >= {"+"}
    here.drain()
    there.drain()
    assert found(there, "plain") == found(here, "plain")


@pytest.mark.parametrize("what", ["lost", "null keys of Postgres 14"])
def test_a_server_that_crashes_after_the_rows_were_staged(
    apps: tuple[hr.App, hr.App],
    postgres: PostgresServer,
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """Staging tables are not logged: a crash empties them. The commit sees that, and the batch is made again."""
    here, there = apps
    here.log.topic("events").append(rows(random.Random(seed), 90))
    here.drain()
    if what == "lost":
        loop = there.running.loop(there.flows["plain"])
        batch = loop.prepare(50)
        assert batch is not None and batch.staged is not None
        assert staging_tables(postgres, tmp_path) > 0
        postgres.kill()
        with pytest.raises(hr.StorageError, match="staged rows 0 are left"):
            loop.commit(batch)
        assert there.view("plain").to_arrow().num_rows == 0
        loop.begin()
        assert staging_tables(postgres, tmp_path) == 0
    else:
        monkeypatch.setattr("headrace.views.postgres.keyed.NULLS_NOT_DISTINCT", 10**9)
    there.drain(batch_rows=40)
    assert found(there, "plain", "all_time") == found(here, "plain", "all_time")


def test_when_it_pays(postgres: PostgresServer, tmp_path: Path, headrace_spark: Any) -> None:
    """Not before a batch has made many rows; nor where old rows must be read."""
    with program(tmp_path, headrace_spark, views=postgres.schema(tmp_path)) as app:
        app.stream("events").group_by("word").agg(first=hr.first("n")).to_view("others")
        app.stream("plain").agg(n=hr.count()).to_view("of_views")
        loops = {name: app.running.loop(app.flows[name]) for name in ("all_time", "others", "plain")}
        assert loops["others"]._staging is None and loops["plain"]._staging is None
        pays = loops["all_time"]._staging
        assert pays is not None and not pays.pays(10**9)
        pays.learn(1_000, 100)
        assert pays.pays(300_000) and not pays.pays(100_000)


def test_the_store_is_gone_while_workers_stage(apps: tuple[hr.App, hr.App], seed: int) -> None:
    """No record is to blame: the flow is started again, and divides nothing."""
    here, there = apps
    here.log.topic("events").append(rows(random.Random(seed), 30))
    loop = there.running.loop(there.flows["all_time"])
    assert loop._staging is not None
    stager = loop._staging._stager
    object.__setattr__(stager, "address", "postgresql://nobody@127.0.0.1:1/db")
    loop._staging = Staging(loop._query, loop._fold, loop._store, stager)
    loop._staging.learn(1, 1)
    with pytest.raises(hr.StorageError, match="cannot be reached"):
        loop.prepare()
