"""Cut invariance: for one log, any cuts, paths and crashes give the same rows and ledger: the oracle's. In `make test`
each of seven flows once, over one partition or over four, with some twenty random cuts; in `make soak` all seven over
one, two and four partitions, as often as there is time for."""

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
from tests.flows.shop import QUERIES, app_of, check, some_rows

SEED = 20261116
SHARES = {
    1: ("tumbling_correct", "all_time", "arrow_hopping"),
    4: ("tumbling_drop", "hopping_correct", "arrow_drop", "arrow_all_time"),
}
"""Partitions -> flows, in `make test`: some that Spark computes and some that Arrow does."""


@pytest.fixture(params=[1, 2, 4], ids=lambda count: f"{count} partitions")
def app(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[hr.App]:
    with app_of(tmp_path, spark, partitions=request.param) as app:
        yield app


def compare(app: hr.App, seed: int) -> None:
    rng = random.Random(seed)
    rows = [add("events", some_rows(rng, 30, now)) for now in range(0, 100, 20)]
    assert_cut_invariant(app, *rows, cuts=1, seed=seed, check=check)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("partitions", SHARES, ids=lambda count: f"{count} partitions")
def test_any_cuts_paths_and_crashes_give_the_same(spark: Any, tmp_path: Path, partitions: int) -> None:
    assert {name for share in SHARES.values() for name in share} == set(QUERIES)
    with app_of(tmp_path, spark, partitions, names=SHARES[partitions]) as app:
        compare(app, SEED)


@pytest.mark.soak
def test_cuts_for_as_long_as_there_is_time(app: hr.App) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    until = time.monotonic() + float(os.environ.get("HEADRACE_SOAK_SECONDS", "600")) / 30
    while time.monotonic() < until:
        compare(app, rng.randrange(2**32))
