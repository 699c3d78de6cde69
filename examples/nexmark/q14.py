"""q14, calculation: bids of a middle price in euros, whether by day or by night, and how many letters c a text of
theirs has, by a function of one's own."""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import headrace as hr


@F.arrow_udf(LongType())
def count_c(texts: pa.Array) -> pa.Array:
    return pc.count_substring(texts, "c").cast(pa.int64())


def calculated(df):
    hour = F.hour("dateTime")
    kind = F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")
    price = F.expr("cast(0.908 * price as decimal(23, 3))")
    bids = df.withColumn("price", price).where("price > 1000000 and price < 50000000")
    columns = (kind.alias("bidTimeType"), "dateTime", "extra", count_c("extra").alias("c_counts"))
    return bids.select("auction", "bidder", "price", *columns, *hr.META)


def flow(app: hr.App):
    return app.stream("bid").transform(calculated).to_topic("q14")


if __name__ == "__main__":
    from running import run

    run(flow)
