"""Cut invariance: for one log, any cuts, paths and kills give the same rows and ledger. 36 runs of several
hundred random cuts in `make test`, as many as there is time for in `make soak`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.failpoints import InjectedFault
from headrace.flows import ranges
from headrace.flows.loop import FlowLoop
from headrace.views.reading import open_views
from headrace.views.sqlite import SqliteViews
from tests.flows.oracle import expected, records_of
from tests.flows.shop import QUERIES, app_of, ledger_in, rows_in, some_rows

SEED = 20261116
POINTS = ("flow.planned", "flow.computed", "view.begun", "view.merged", "view.applied", "view.committed")
RUNS = 3
"""Of each flow over each log; a run is cut some eight times."""


@pytest.fixture(params=[1, 2, 4], ids=lambda count: f"{count} partitions")
def app(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    rng = random.Random(SEED + request.param)
    with app_of(tmp_path / "home", spark, partitions=request.param) as app:
        for now in range(0, 100, 20):
            app.log.topic("events").append(some_rows(rng, 30, now))
        yield app
    failpoints.disarm()


def run_once(app: hr.App, flow: str, home: Path, rng: random.Random, patch: Callable[[int], None]) -> None:
    """The flow over the whole log into a store of its own: cut, read and killed as chance has it."""
    query = app.running.query(app.flows[flow])
    while True:
        failpoints.disarm()
        with SqliteViews(home) as store:
            loop = FlowLoop(query, log=app.log, store=store)
            try:
                if rng.random() < 0.7:
                    failpoints.arm(rng.choice(POINTS), "raise", skip=rng.randrange(6))
                loop.begin()
                while True:
                    patch(rng.choice([0, *[5_000] * 6, 20]))
                    if rng.random() < 0.2:
                        loop.drain(rng.choice([11, 40]))  # commits beside the next batch
                    if not loop.step(rng.choice([1, 10, 25, 60, 1_000])):
                        return
            except InjectedFault:  # as after a crash: what was in memory is gone
                continue


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flow", list(QUERIES))
def test_any_cuts_paths_and_kills_give_the_same(
    app: hr.App, flow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(app, flow, tmp_path, monkeypatch, random.Random(SEED), runs=RUNS)


def compare(
    app: hr.App, flow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, runs: int
) -> None:
    rows, ledger = expected(records_of(app.log.topic("events")), QUERIES[flow])
    for number in range(runs):
        seed = rng.randrange(2**32)
        home = tmp_path / f"{flow}-{number}-{seed}"
        run_once(app, flow, home, random.Random(seed), lambda limit: monkeypatch.setattr(ranges, "TINY_ROWS", limit))
        views = open_views(home)
        assert rows_in(views, flow) == rows, f"seed {seed}"
        assert ledger_in(views, flow) == ledger, f"seed {seed}"


@pytest.mark.soak
def test_cuts_for_as_long_as_there_is_time(app: hr.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    until = time.monotonic() + float(os.environ.get("HEADRACE_SOAK_SECONDS", "600")) / 30
    while time.monotonic() < until:
        compare(app, rng.choice(list(QUERIES)), tmp_path / str(rng.random()), monkeypatch, rng, runs=1)
