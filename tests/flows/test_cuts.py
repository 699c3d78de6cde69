"""Cut invariance: for one log, any cuts, paths and crashes give the same rows and ledger: the oracle's. In `make test`
two runs of seven flows, each with some twenty random cuts; in `make soak` as many as there is time for, and over two
partitions as well."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import add, assert_cut_invariant
from tests.flows.shop import app_of, check, some_rows

SEED = 20261116
RUNS = 1
"""Of the flows over each log, beside the one at once."""


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.soak), 4], ids=lambda count: f"{count} partitions")
def app(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with app_of(tmp_path, spark, partitions=request.param) as app:
        yield app


def compare(app: hr.App, seed: int, runs: int) -> None:
    rng = random.Random(seed)
    rows = [add("events", some_rows(rng, 30, now)) for now in range(0, 100, 20)]
    assert_cut_invariant(app, *rows, cuts=runs, seed=seed, check=check)


@pytest.mark.timeout(600)
def test_any_cuts_paths_and_crashes_give_the_same(app: hr.App) -> None:
    compare(app, SEED, RUNS)


@pytest.mark.soak
def test_cuts_for_as_long_as_there_is_time(app: hr.App) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    until = time.monotonic() + float(os.environ.get("HEADRACE_SOAK_SECONDS", "600")) / 30
    while time.monotonic() < until:
        compare(app, rng.randrange(2**32), runs=1)
