"""q9, winning bids: of each auction the highest bid while it was open; of equally high ones the first.

An auction is open for less than a day, at one event a second and more. So the join looks ahead a day, and bids that
came after the auction's end are left out behind it. Of both streams it keeps only the auctions."""

import headrace as hr

auction = "itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra"
columns = f"{auction}, bidder, price, dateTime_bid, extra_bid"


def flow(app: hr.App):
    bids = app.stream("bid").transform(lambda df: df.drop("channel", "url"))
    return (
        app.stream("auction")
        .join(bids, on={"id": "auction"}, after="1 day", suffix="_bid", grace="0 seconds")
        .transform(lambda df: df.where("dateTime_bid <= expires"))
        .group_by("id")
        .agg(winner=hr.min_by(f"struct({columns})", "-price"))
        .transform(lambda df: df.select("id", "winner.*"))
        .to_view("q9")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
