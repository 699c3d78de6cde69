"""q7, highest bid: of every 10 seconds the bid with the highest price; of equally high ones the latest, and of those
the one with the greatest auction and bidder."""

import headrace as hr

highest = hr.Aggregate(
    partial="array(max(struct(price, dateTime, auction, bidder)))",  # a column of a view is a plain value or a list
    merge=lambda a, b: max(a, b, key=lambda bids: tuple(bids[0].values())),
)


def flow(app: hr.App):
    return (
        app.stream("bid")
        .window(hr.tumbling("10 seconds"))
        .agg(bids=highest)
        .transform(lambda df: df.selectExpr("window_start", "window_end", "inline(bids)"))
        .to_view("q7")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
