"""q21, channel ids: every bid with the number of its channel, which the largest have by name and others in their
address; bids without one are left out."""

from pyspark.sql import functions as F

import headrace as hr

NUMBERS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}


def numbered(df):
    name = F.lower("channel")
    known = F.coalesce(*(F.when(name == each, number) for each, number in NUMBERS.items()))
    told = F.nullif(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2), F.lit(""))
    channel_id = F.coalesce(known, told).alias("channel_id")
    return df.select("auction", "bidder", "price", "channel", channel_id, *hr.META).where("channel_id is not null")


def flow(app: hr.App):
    return app.stream("bid").transform(numbered).to_topic("q21")


if __name__ == "__main__":
    from running import run

    run(flow)
