"""q19, the top ten: of each auction the ten bids with the highest prices, in their order; of equally high ones the
later comes first, and then the one of the greater bidder."""

import headrace as hr

bid = "struct(price, dateTime, bidder, channel, url, extra)"
highest = hr.Aggregate(
    partial=f"slice(sort_array(collect_list({bid}), false), 1, 10)",
    merge=lambda a, b: sorted(a + b, key=lambda bid: tuple(bid.values()), reverse=True)[:10],
)


def ranked(df):
    named = df.selectExpr("auction", "posexplode(bids) as (place, bid)")
    return named.selectExpr("auction", "place + 1 as rank_number", "bid.*")


def flow(app: hr.App):
    return app.stream("bid").group_by("auction").agg(bids=highest).transform(ranked).to_view("q19")


if __name__ == "__main__":
    from running import run

    run(flow)
