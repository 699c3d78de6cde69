"""q6, average selling price of a seller: over the last ten of the seller's auctions that had a bid while
they were open. The last are those that ended last; of several that ended at the same time, those with the higher price.

The join is that of q9: it looks ahead a day, which is longer than an auction is open at one event a second and more."""

import headrace as hr


def averaged(df):
    total = "aggregate(last, 0L, (sum, each) -> sum + each.value)"
    return df.selectExpr("seller", f"{total} / size(last) as price")


def flow(app: hr.App):
    auctions = app.stream("auction").transform(lambda df: df.select("id", "seller", "expires", "dateTime", *hr.META))
    bids = app.stream("bid").transform(lambda df: df.select("auction", "price", "dateTime", *hr.META))
    sold = (
        auctions.join(bids, on={"id": "auction"}, after="1 day", suffix="_bid", grace="0 seconds")
        .transform(lambda df: df.where("dateTime_bid <= expires"))
        .group_by("id", "seller", "expires")
        .agg(final=hr.max("price"))
        .to_view("q6_sold")
    )
    last = hr.top_k("final", 10, by="expires")
    return app.stream(sold).group_by("seller").agg(last=last).transform(averaged).to_view("q6")


if __name__ == "__main__":
    from running import run

    run(flow)
