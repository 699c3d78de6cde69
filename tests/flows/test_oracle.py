"""Batch = stream: whatever the cuts, a view is its query over the whole log, and every record is accounted for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.flows.shop import app_of, check, some_rows

SEED = 20261116


SOAK = pytest.mark.soak  # `test_cuts` asks as much of one and four partitions, at the end of each way


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=SOAK), 2, pytest.param(4, marks=SOAK)])
def test_views_are_their_queries_over_the_whole_log(spark: Any, tmp_path: Path, partitions: int) -> None:
    rng = random.Random(SEED + partitions)
    with app_of(tmp_path, spark, partitions) as app:
        topic = app.log.topic("events")
        now = 0.0
        for _ in range(3):
            for _ in range(rng.randrange(1, 4)):
                topic.append(some_rows(rng, rng.randrange(1, 20), now))
            now += 20
            app.drain(batch_rows=rng.choice([7, 20, 1000]))
            check(app)


def test_where_no_record_is_let_through_there_is_no_row(spark: Any, tmp_path: Path) -> None:
    with hr.App("none", home=tmp_path, spark=spark) as app:
        topic = app.topic("t", "n int", durability="os")
        app.stream(topic).transform(lambda df: df.where("n > 5")).agg(records=hr.count()).to_view("v")
        topic.append([{"n": 1}, {"n": 2}])
        app.drain()
        assert app.view("v").to_arrow().num_rows == 0
        topic.append({"n": 6})
        app.drain()
        assert app.view("v").to_arrow()["records"].to_pylist() == [1]
