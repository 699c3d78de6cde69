"""q20, bids with their auctions: those of category 10.

An auction is opened before the bids on it, and those are for one of the last hundred auctions: at one event a second
and more that is within a day. So a join that looks back a day gives what the SQL's join without bounds gives. Of both
streams it keeps only the auctions."""

import headrace as hr


def flow(app: hr.App):
    auctions = app.stream("auction").transform(lambda df: df.where("category = 10"))
    bids = app.stream("bid")
    joined = bids.join(auctions, on={"auction": "id"}, before="1 day", suffix="_auction", grace="0 seconds")
    return joined.to_topic("q20")


if __name__ == "__main__":
    from running import run

    run(flow)
