"""q16, channel statistics: for each channel and day how many bids there were, how many people bid, on how many
auctions, of all bids and of low, middle and high prices; and the last minute of the day in which there was one."""

import headrace as hr

LOW, MIDDLE, HIGH = "price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000"


def flow(app: hr.App):
    return (
        app.stream("bid")
        .window(hr.tumbling("1 day"))
        .group_by("channel")
        .agg(
            minute=hr.max("date_format(dateTime, 'HH:mm')"),
            total_bids=hr.count(),
            rank1_bids=hr.count(where=LOW),
            rank2_bids=hr.count(where=MIDDLE),
            rank3_bids=hr.count(where=HIGH),
            total_bidders=hr.count_distinct("bidder"),
            rank1_bidders=hr.count_distinct(f"if({LOW}, bidder, null)"),
            rank2_bidders=hr.count_distinct(f"if({MIDDLE}, bidder, null)"),
            rank3_bidders=hr.count_distinct(f"if({HIGH}, bidder, null)"),
            total_auctions=hr.count_distinct("auction"),
            rank1_auctions=hr.count_distinct(f"if({LOW}, auction, null)"),
            rank2_auctions=hr.count_distinct(f"if({MIDDLE}, auction, null)"),
            rank3_auctions=hr.count_distinct(f"if({HIGH}, auction, null)"),
        )
        .to_view("q16")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
