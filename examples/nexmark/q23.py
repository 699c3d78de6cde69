"""q23, bids with who made them and what these people sell: a row for each bid and each auction of its bidder.

Sellers join their auctions as in q3, in a topic of records: what an inner join without corrections gives is never taken
back. Bids join those. A person bids and sells while one of the last thousand: at one event a second and more that is
within a day, so a join that looks back and ahead a day gives what the SQL's join without bounds gives."""

import headrace as hr

person = "id as person_id, name, emailAddress, creditCard, city, state, extra as person_extra, dateTime"
auction = "itemName, description, initialBid, reserve, expires, seller, category, extra as auction_extra, dateTime"
bid = "bidder, price, channel, url, extra as bid_extra, dateTime"


def chosen(app: hr.App, topic: str, columns: str):
    return app.stream(topic).transform(lambda df: df.selectExpr(*columns.split(", "), *hr.META))


def flow(app: hr.App):
    offers = (
        chosen(app, "auction", auction)
        .join(chosen(app, "person", person), on={"seller": "person_id"}, before="1 day", grace="0 seconds")
        .to_topic("q23_offers", event_time="dateTime", changes=False)
    )
    offered = app.stream(offers).transform(lambda df: df.drop("dateTime_right", "joined_at"))
    bids = chosen(app, "bid", bid)
    day = {"before": "1 day", "after": "1 day", "grace": "0 seconds"}
    return bids.join(offered, on={"bidder": "seller"}, suffix="_auction", **day).to_topic("q23")


if __name__ == "__main__":
    from running import run

    run(flow)
