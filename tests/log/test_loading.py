"""Years of Parquet files into a topic: in order, in batches, gone on with after an interruption; and not late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import headrace as hr

SCHEMA = "user string, n int, at timestamp"
START = datetime(2015, 1, 1, tzinfo=UTC)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Three years, a file each, of ten records."""
    folder = tmp_path / "history"
    folder.mkdir()
    for year in range(3):
        ats = [START + timedelta(days=365 * year + 30 * number) for number in range(10)]
        columns: dict[str, Any] = {"user": [f"u{number % 4}" for number in range(10)]}
        table = pa.table({**columns, "n": pa.array(range(year * 10, year * 10 + 10), pa.int32()), "at": ats})
        pq.write_table(table, folder / f"{2015 + year}.parquet")
    return folder


@pytest.fixture
def topic(tmp_path: Path) -> Any:
    with hr.open_log(tmp_path / "home") as log:
        yield log.create_topic("clicks", SCHEMA, event_time="at", durability="os")


def numbers(topic: Any) -> list[int]:
    return [record.value["n"] for record in topic.records()]


def test_a_dataset_is_loaded_in_order(topic: Any, history: Path) -> None:
    seen: list[int] = []
    assert topic.load(ds.dataset(history), batch_rows=4, progress=seen.append) == 30
    assert numbers(topic) == list(range(30)) and seen[-1] == 30 and max(b - a for a, b in pairwise(seen)) <= 4


def test_a_load_that_was_interrupted_goes_on(topic: Any, history: Path) -> None:
    class Enough(Exception):
        pass

    def stop(rows: int) -> None:
        if rows >= 12:
            raise Enough

    with pytest.raises(Enough):
        topic.load(ds.dataset(history), id="history", batch_rows=4, progress=stop)
    before = numbers(topic)
    assert before == list(range(len(before))) and 12 <= len(before) < 30
    assert topic.load(ds.dataset(history), id="history", batch_rows=7) == 30 - len(before)  # cut otherwise
    assert numbers(topic) == list(range(30))
    assert topic.load(ds.dataset(history), id="history") == 0
    assert topic.load(ds.dataset(history)) == 30  # without an id it is more of the same


def test_streams_and_tables(topic: Any, history: Path) -> None:
    table = ds.dataset(history).to_table()
    assert topic.load(table, batch_rows=7) == 30
    assert topic.load(pa.RecordBatchReader.from_batches(table.schema, table.to_batches())) == 30
    assert topic.load(ds.dataset(history).scanner(filter=ds.field("n") < 5)) == 5
    for wrong in ([{"n": 1}], "history", 5):
        with pytest.raises(hr.InvalidArgument, match="use append for rows"):
            topic.load(wrong)
    with pytest.raises(hr.InvalidArgument, match="batch_rows"):
        topic.load(table, batch_rows=0)


def test_what_is_old_is_not_late(topic: Any, history: Path) -> None:
    """Progress is the largest event time before a record, years back though it be."""
    topic.load(ds.dataset(history), batch_rows=4)
    topic.append({"user": "now", "n": 99, "at": datetime.now(UTC)})
    progress: datetime | None = None
    for batch in topic.batches(0, 0, 31, ["at", "_progress"]):
        for row in batch.to_pylist():
            assert row["_progress"] == progress
            progress = row["at"] if progress is None else max(progress, row["at"])
