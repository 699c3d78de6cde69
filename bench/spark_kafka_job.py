"""Spark's own Kafka source, `from_json` and stateful window, in a process of its own: a request as JSON on standard
input, the seconds that each run took as the last line of the output."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench import spark_peer


def main() -> None:
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="headrace-spark-kafka-") as folder:
        spark = _session(asked["jars"])
        try:
            took = {
                str(per_batch): [
                    spark_peer.timed(_query(spark, asked, per_batch), Path(folder, f"{per_batch}-{number}"))
                    for number in range(1 + asked["times"])
                ][1:]
                for per_batch in asked["per_batch"]
            }
            read = [_read_seconds(spark, asked, Path(folder, f"read-{number}")) for number in range(1 + asked["times"])]
        finally:
            spark.stop()
    print(json.dumps({"seconds": took, "read_seconds": read[1:]}))


def _session(jars: list[str]) -> SparkSession:
    builder: Any = SparkSession.builder
    conf = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        **spark_peer.CONF,
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    found: SparkSession = builder.master("local[2]").appName("peer").getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def _parsed(spark: SparkSession, asked: dict[str, Any], per_batch: int) -> Any:
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", asked["address"])
        .option("subscribe", asked["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    return stream.select(F.from_json(F.col("value").cast("string"), asked["schema"]).alias("e")).select("e.*")


def _query(spark: SparkSession, asked: dict[str, Any], per_batch: int) -> Any:
    df = _parsed(spark, asked, per_batch).withWatermark("at", "2 seconds")
    window = F.window("at", f"{asked['window_seconds']} seconds")
    return df.groupBy(window, "user").agg(F.count("*").alias("n"), F.max("ms").alias("m"))


def _read_seconds(spark: SparkSession, asked: dict[str, Any], checkpoint: Path) -> float:
    return spark_peer.timed(_parsed(spark, asked, 10**9), checkpoint, mode="append")


if __name__ == "__main__":
    main()
