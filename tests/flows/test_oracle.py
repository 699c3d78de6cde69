"""Batch = stream: whatever the cuts, a view is its query over the whole log, and every record is accounted for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows.query import FlowQuery
from tests.flows.shop import app_of, check, ledger_of, rows_of, some_rows

SEED = 20261116


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_views_are_their_queries_over_the_whole_log(spark: Any, tmp_path: Path, partitions: int) -> None:
    rng = random.Random(SEED + partitions)
    with app_of(tmp_path, spark, partitions) as app:
        topic = app.log.topic("events")
        now = 0.0
        for _ in range(6):
            for _ in range(rng.randrange(1, 4)):
                topic.append(some_rows(rng, rng.randrange(1, 40), now))
            now += 15
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


def test_many_rows_are_read_by_the_workers(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny and the large path give the same views."""
    rng = random.Random(SEED)
    with app_of(tmp_path / "tiny", spark) as tiny, app_of(tmp_path / "large", spark) as large:
        for now in range(0, 60, 20):
            rows = some_rows(rng, 60, now)
            for app in (tiny, large):
                app.log.topic("events").append(rows)
        monkeypatch.setattr(FlowQuery, "one_task_rows", 10)
        large.drain()
        monkeypatch.undo()
        tiny.drain(batch_rows=50)
        check(large)
        check(tiny)
        for name in ("tumbling_drop", "hopping_correct"):
            assert rows_of(tiny, name).keys() == rows_of(large, name).keys()
            assert ledger_of(tiny, name) == ledger_of(large, name)
