"""What records and results take on disk, and what compression costs: flights in a log, sealed by each codec, and a home
with six flows over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import process_time

import headrace as hr
from bench.flights import COUNT, DDL, flights
from bench.settings import Run
from bench.table import Measured, Row, of_rates
from headrace.log.embedded.upkeep import sealing

SMALL_ROWS, APPEND_ROWS = 1_000, 10_000
UNIT = "rows/s of processor time"


def disk(run: Run) -> Iterator[Row]:
    """Speeds are by processor time, all threads together: what a codec costs, however busy the machine is."""
    count = run.size(COUNT, 30_000)
    data = flights(count)
    for compression in ("none", "lz4", "zstd"):
        sealed, scanned = [], []
        for _ in range(min(run.repeat, 3)):
            with run.log() as log:
                log._engine.background.stop()  # what it would do is what is measured
                settings = {"event_time": "scheduled", "durability": "os", "compression": compression}
                topic = log.create_topic("flights", DDL, **settings)
                for first in range(0, count, SMALL_ROWS):
                    topic.append(data.slice(first, SMALL_ROWS))
                appended = topic.describe().bytes / count
                began = process_time()
                sealing.seal(log._engine, log._catalog, topic._state(), 0)
                sealed.append(count / (process_time() - began))
                size = topic.describe().bytes / count
                for _ in range(run.repeat):
                    began = process_time()
                    assert sum(batch.num_rows for batch in topic.batches()) == count
                    scanned.append(count / (process_time() - began))
        if compression == "none":
            yield Row("disk", "a flight as appended", "bytes", Measured(appended, appended), smaller_is_better=True)
        what = f"a flight, sealed, {compression}"
        yield Row("disk", what, "bytes", Measured(size, size), smaller_is_better=True)
        yield Row("disk", f"seal batches of {SMALL_ROWS:,} flights, {compression}", UNIT, of_rates(sealed))
        yield Row("disk", f"scan all columns of sealed flights, {compression}", UNIT, of_rates(scanned))


def home(run: Run) -> Iterator[Row]:
    """All that six flows leave behind, when all is read, closed and maintained."""
    count = run.size(COUNT, 10_000)
    path = run.fresh("home")
    data = flights(count)
    with hr.App("flights", home=path, spark="local[2]") as app:
        topic = app.topic("flights", DDL, key="origin", event_time="scheduled", partitions=3)
        six_flows(app.stream(topic))
        for first in range(0, count, APPEND_ROWS):
            topic.append(data.slice(first, APPEND_ROWS))
        app.drain()
    with hr.open_log(path) as log:
        log.maintain()
    found = {"all": path, "the log": path / "data", "the views": path / "views.db"}
    for what, part in found.items():
        mb = _bytes(part) / 1e6
        yield Row("home", f"six flows over {count:,} flights: {what}", "MB", Measured(mb, mb), smaller_is_better=True)


def six_flows(flights: hr.Stream) -> None:
    by_hour = flights.window(hr.tumbling("1 hour"), grace="1 hour").group_by("carrier")
    by_hour.agg(n=hr.count(), delay=hr.avg("dep_delay"), worst=hr.max("dep_delay"), late=hr.sum("arr_delay")).to_view(
        "delay_by_carrier"
    )
    trips = flights.window(hr.session("3 hours"), grace="1 hour").group_by("tail")
    trips.agg(flights=hr.count(), first=hr.first("origin"), last=hr.last("dest"), miles=hr.sum("distance")).to_view(
        "trips_of_aircraft"
    )
    by_day = flights.window(hr.tumbling("1 day"))
    by_day.group_by("origin").agg(top=hr.top_k("dest", 10), n=hr.count()).to_view("busiest_routes")
    by_day.group_by("origin", "dest").agg(
        n=hr.count(), delay=hr.avg("arr_delay"), tails=hr.count_distinct("tail")
    ).to_view("routes_by_day")
    by_month = flights.window(hr.calendar("month", timezone="UTC")).group_by("carrier")
    by_month.agg(p95=hr.approx_quantile("dep_delay", 0.95), n=hr.count()).to_view("delay_quantiles")
    once = flights.dedup("flight_id", within="1 hour").window(hr.tumbling("1 hour")).group_by("origin")
    once.agg(n=hr.count(), miles=hr.sum("distance")).to_view("departures")


def _bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
