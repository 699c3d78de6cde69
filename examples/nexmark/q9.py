"""q9, winning bids: of each auction the highest bid while it was open; of equally high ones the first, and of those the
one with the greatest bidder.

An auction is open for less than a day, at one event a second and more. So the join looks ahead a day, and bids that
came after the auction's end are left out behind it. Of both streams it keeps only the auctions. What an inner join
without corrections gives is never taken back, so it is a topic of records: then the highest bid alone is kept, and not
all of them."""

import headrace as hr

auction = "itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra"
bid = "price, -unix_micros(dateTime_bid) as early, bidder, extra_bid, dateTime_bid"
highest = hr.Aggregate(
    partial=f"array(max(struct({bid}, {auction})))",  # a column of a view is a plain value or a list
    merge=lambda a, b: max(a, b, key=lambda bids: tuple(bids[0].values())),
)


def flow(app: hr.App):
    bids = app.stream("bid").transform(lambda df: df.drop("channel", "url"))
    pairs = (
        app.stream("auction")
        .join(bids, on={"id": "auction"}, after="1 day", suffix="_bid", grace="0 seconds")
        .to_topic("q9_pairs", changes=False)
    )
    return (
        app.stream(pairs)
        .transform(lambda df: df.where("dateTime_bid <= expires"))
        .group_by("id")
        .agg(winner=highest)
        .transform(lambda df: df.selectExpr("id", "inline(winner)").drop("early"))
        .to_view("q9")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
