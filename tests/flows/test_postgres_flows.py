"""Flows with their views in Postgres: the same rows as in SQLite, whatever ends a step, and the README's program."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.failpoints import InjectedFault
from headrace.flows.loop import FlowLoop
from headrace.views.open import open_store, open_views
from tests.databases import PostgresServer
from tests.flows.sparkless import Sparkless
from tests.flows.test_twin_store import FIXED, plain
from tests.flows.test_windows_sparkless import WINDOWS, put

POINTS = [name for name in failpoints.KNOWN if name.startswith("view.")]


def the_same(postgres: PostgresServer, folder: Path, window: Any, emit: Any, dice: random.Random) -> None:
    found = [
        (dice.randrange(2), dice.choice(["a", "b", None]), dice.randrange(31), dice.random() < 0.3, dice.random() < 0.7)
        for _ in range(40)
    ]
    address = postgres.schema(folder)
    with Sparkless(folder, window, partitions=2, within=10, emit=emit) as real, open_store(address) as store:
        put(real, found)
        twin = FlowLoop(real.loop._query, log=real.log, store=store)
        twin.begin()
        while True:
            failpoints.arm(dice.choice(POINTS), "raise", skip=dice.randrange(3))
            try:
                if not twin.step(7):
                    break
            except InjectedFault:
                twin.begin()  # as whoever is started after a crash
            finally:
                failpoints.disarm()
        assert store.state("view").places == real.store.state("view").places
        if emit is None:
            views = open_views(address)
            assert plain(views.to_arrow("view")) == plain(real.views.to_arrow("view"))
            assert views.ledger("view").to_pylist() == real.views.ledger("view").to_pylist()


def test_a_flow_makes_the_same_in_postgres(postgres: PostgresServer, tmp_path: Path, seed: int) -> None:
    the_same(postgres, tmp_path / "real", WINDOWS["session"], None, random.Random(seed))


@pytest.mark.soak
@pytest.mark.parametrize("emit", [None, "updates", "final"])
@pytest.mark.parametrize("window", [*WINDOWS.values(), *FIXED], ids=str)
def test_every_flow_does(postgres: PostgresServer, tmp_path: Path, window: Any, emit: Any, seed: int) -> None:
    the_same(postgres, tmp_path / "real", window, emit, random.Random(f"{window} {emit} {seed}"))


def test_the_program_of_the_readme(postgres: PostgresServer, tmp_path: Path, headrace_spark: Any) -> None:
    with hr.App("shop", home=tmp_path / "home", views=postgres.schema(tmp_path), spark=headrace_spark) as app:
        clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
        views = (
            app.stream(clicks)
            .transform(lambda df: df.where("page <> '/health'"))
            .window(hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 hour"))
            .group_by("page")
            .agg(views=hr.count())
            .to_view("views_per_minute")
        )
        for at in "09:00:05", "09:00:40", "09:01:30", "09:00:59":
            clicks.append({"user": "ann", "page": "/", "at": f"2026-01-01T{at}Z"})
        app.drain()
        found = views.to_arrow().select(["views", "_status", "_corrections"]).to_pylist()
        assert found == [
            {"views": 3, "_status": "final", "_corrections": 1},
            {"views": 1, "_status": "open", "_corrections": 0},
        ]
        assert app.query("SELECT sum(views) AS n FROM views_per_minute").to_pylist() == [{"n": 4}]
        assert views.get(page="/", window_start="2026-01-01T09:01:00Z")["views"] == 1
        assert app.audit().ok
    assert not (tmp_path / "home" / "views.db").exists()
