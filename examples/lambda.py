"""Lambda and kappa side by side: orders and revenue of each shop and day, once with the three layers of the lambda
architecture, once with one headrace program. Orders of earlier days that come late are in both.

Prints:
    day         shop   orders  revenue  largest  lambda has it from
    2026-03-01  north       3       65       30  batch + speed
    2026-03-01  south       1       15       15  batch
    2026-03-02  north       1       40       40  batch
    2026-03-02  south       3       23       12  batch + speed
    2026-03-03  north       2       55       50  speed
    during the day headrace has the same rows: True
    after the nightly batch, too: True
    headrace's ledger: 8 on time, 2 corrected, 0 dropped"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

Rows = dict[tuple, dict]  # (day, shop) -> results


def order(day: int, hour: int, shop: str, amount: int) -> dict:
    return {"shop": shop, "amount": amount, "at": datetime(2026, 3, day, hour, tzinfo=UTC)}


HISTORY = {
    "2026-03-01": [order(1, 9, "north", 30), order(1, 11, "south", 15), order(1, 16, "north", 10)],
    "2026-03-02": [order(2, 10, "north", 40), order(2, 12, "south", 5), order(2, 18, "south", 12)],
}
TODAY = [
    order(3, 8, "north", 50),
    order(2, 23, "south", 6),  # a straggler: it happened yesterday, and the batch over yesterday is done
    order(3, 9, "north", 5),
    order(1, 14, "north", 25),  # and one of the day before
]


def write_master_data(folder: Path, day: str, orders: list[dict]) -> None:
    pq.write_table(pa.Table.from_pylist(orders), folder / f"{day}.parquet")


# -- lambda: two programs, a boundary and a merge ------------------------------------------------------------


def batch_layer(spark: SparkSession, folder: Path) -> Rows:
    """The first program, in plain Spark: every night over all files. What comes while it runs is not in it."""
    orders: DataFrame = spark.read.parquet(str(folder))
    sales = orders.groupBy(F.to_date("at").alias("day"), "shop").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("revenue"), F.max("amount").alias("largest")
    )
    return {(row.pop("day"), row.pop("shop")): row for row in sales.toArrow().to_pylist()}


def speed_layer(view: Rows, order: dict) -> None:
    """The second program: the same question, answered once more, one order at a time."""
    row = view.setdefault((order["at"].date(), order["shop"]), {"orders": 0, "revenue": 0, "largest": 0})
    row["orders"] += 1
    row["revenue"] += order["amount"]
    row["largest"] = max(row["largest"], order["amount"])


def serving_layer(batch: Rows, speed: Rows) -> Rows:
    """Merges both for each question. Each column has its own rule: an average or a count of distinct customers could
    not be merged from results at all."""
    rows = {key: dict(row) for key, row in batch.items()}
    for key, row in speed.items():
        found = rows.setdefault(key, {"orders": 0, "revenue": 0, "largest": 0})
        found["orders"] += row["orders"]
        found["revenue"] += row["revenue"]
        found["largest"] = max(found["largest"], row["largest"])
    return rows


# -- kappa: one program ----------------------------------------------------------------------------------------


def define(app: hr.App) -> tuple:
    orders = app.topic("orders", "shop string, amount long, at timestamp", event_time="at")
    sales = (
        app.stream(orders)
        .window(hr.tumbling("1 day"), late=hr.correct(within="7 days"))
        .group_by("shop")
        .agg(orders=hr.count(), revenue=hr.sum("amount"), largest=hr.max("amount"))
        .to_view("sales")
    )
    return orders, sales


def rows_of(sales: hr.View) -> Rows:
    names = ("orders", "revenue", "largest")
    return {
        (row["window_start"].date(), row["shop"]): {name: row[name] for name in names}
        for row in sales.to_arrow().to_pylist()
    }


with tempfile.TemporaryDirectory() as made, hr.App("shops", home=":temp:") as app:
    folder = Path(made)
    for day, found in HISTORY.items():
        write_master_data(folder, day, found)

    orders, sales = define(app)
    orders.load(ds.dataset(folder, format="parquet"), id="history")
    app.drain()  # the history

    batch, speed = batch_layer(SparkSession.active(), folder), Rows()

    for each in TODAY:
        orders.append(each)
        speed_layer(speed, each)
    app.drain()  # and live: the same program

    merged = serving_layer(batch, speed)
    print("day         shop   orders  revenue  largest  lambda has it from")
    for (day, shop), row in sorted(merged.items()):
        layers = " + ".join(name for name, rows in (("batch", batch), ("speed", speed)) if (day, shop) in rows)
        print(f"{day}  {shop}  {row['orders']:6}  {row['revenue']:7}  {row['largest']:7}  {layers}")
    print(f"during the day headrace has the same rows: {rows_of(sales) == merged}")

    write_master_data(folder, "2026-03-03", TODAY)
    batch, speed = batch_layer(SparkSession.active(), folder), Rows()  # the boundary moves: both, or rows count twice
    print(f"after the nightly batch, too: {rows_of(sales) == serving_layer(batch, speed)}")

    ledger = sales.ledger().to_pylist()
    counts = {name: sum(row[name] for row in ledger) for name in ("on_time", "corrected", "dropped")}
    print("headrace's ledger: {on_time} on time, {corrected} corrected, {dropped} dropped".format(**counts))
