"""q4, average price of a category: over the highest bids on its auctions while they were open.

The join is that of q9: it looks ahead a day, which is longer than an auction is open at one event a second and more."""

import headrace as hr


def flow(app: hr.App):
    auctions = app.stream("auction").transform(lambda df: df.select("id", "category", "expires", "dateTime", *hr.META))
    bids = app.stream("bid").transform(lambda df: df.select("auction", "price", "dateTime", *hr.META))
    sold = (
        auctions.join(bids, on={"id": "auction"}, after="1 day", suffix="_bid", grace="0 seconds")
        .transform(lambda df: df.where("dateTime_bid <= expires"))
        .group_by("id", "category")
        .agg(final=hr.max("price"))
        .to_view("q4_sold")
    )
    return app.stream(sold).group_by("category").agg(price=hr.avg("final")).to_view("q4")


if __name__ == "__main__":
    from running import run

    run(flow)
