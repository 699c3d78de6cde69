"""A join whose answer depends on what was read first. Sales are taxed by a rate that changes at midnight. With a plain
Spark stream and a table beside it, a sale gets the rate that is in the table when its batch happens to run: a replay
gives other taxes. With headrace a sale gets the rate that was valid at its time, and a receipt says which it was.

Prints:
    plain Spark, run as the sales came in:  23:50 8 %, 00:10 9 %
    plain Spark, all of it run again later: 23:50 9 %, 00:10 9 %
    headrace, run as the sales came in:     23:50 8 % (rates 0:0), 00:10 9 % (rates 0:1)
    headrace, all of it run again later:    23:50 8 % (rates 0:0), 00:10 9 % (rates 0:1)"""

import tempfile
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import headrace as hr

SALES = [{"country": "ch", "at": "2026-01-31T23:50:00+00:00"}, {"country": "ch", "at": "2026-02-01T00:10:00+00:00"}]
RATES = [
    {"country": "ch", "percent": 8, "since": "2026-01-01T00:00:00+00:00"},
    {"country": "ch", "percent": 9, "since": "2026-02-01T00:00:00+00:00"},
]


# -- plain Spark: the table is what it is when a batch runs --------------------------------------------------------


def plain_spark(spark: SparkSession, *, replayed: bool) -> str:
    taxed: list[str] = []

    def tax(batch: DataFrame, _: int) -> None:
        rates = spark.createDataFrame(
            [(rate["country"], rate["percent"]) for rate in table], "country string, percent int"
        )
        taxed.extend(f"{row.at[11:16]} {row.percent} %" for row in batch.join(rates, "country").orderBy("at").collect())

    with tempfile.TemporaryDirectory() as folder:
        sales, checkpoint = Path(folder) / "sales", Path(folder) / "checkpoint"
        sales.mkdir()

        def run() -> None:
            stream = spark.readStream.schema("country string, at string").parquet(str(sales))
            query = stream.writeStream.foreachBatch(tax).option("checkpointLocation", str(checkpoint))
            query.trigger(availableNow=True).start().awaitTermination()

        for number, (sale, rate) in enumerate(zip(SALES, RATES, strict=True)):
            table = [rate]  # the new rate takes the place of the old one
            pq.write_table(pa.Table.from_pylist([sale]), sales / f"{number}.parquet")
            if not replayed:
                run()
        if replayed:
            run()
    return ", ".join(taxed)


# -- headrace: the rate that was valid at the sale's time, whenever it is run ----------------------------------------


def headrace(*, replayed: bool) -> str:
    with hr.App("shop", home=":temp:") as app:
        rates = app.table(
            "rates",
            "country string, percent int, since timestamp",
            key="country",
            event_time="since",
            history="versions",
        )
        sales = app.topic("sales", "country string, at timestamp", key="country", event_time="at")
        taxed = app.stream(sales).enrich(rates, on="country", as_of="at", columns=["percent"]).to_view("taxed")
        for sale, rate in zip(SALES, RATES, strict=True):
            rates.upsert(rate)
            sales.append(sale)
            if not replayed:
                app.drain()
        app.drain()
        rows = sorted(taxed.to_arrow().to_pylist(), key=lambda row: row["at"])
    return ", ".join(f"{_clock(row['at'])} {row['percent']} % (rates {row['rates_version']})" for row in rows)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"


if __name__ == "__main__":
    with hr.App("session", home=":temp:") as app:
        spark = app.running.spark
        print("plain Spark, run as the sales came in: ", plain_spark(spark, replayed=False))
        print("plain Spark, all of it run again later:", plain_spark(spark, replayed=True))
        print("headrace, run as the sales came in:    ", headrace(replayed=False))
        print("headrace, all of it run again later:   ", headrace(replayed=True))
