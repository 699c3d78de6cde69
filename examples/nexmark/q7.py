"""q7, highest bid: of every 10 seconds the bid with the highest price; of equally high ones the latest, and of those
the one with the greatest auction and bidder."""

import headrace as hr

higher = hr.Aggregate(
    partial="max(named_struct('price', price, 'dateTime', dateTime, 'auction', auction, 'bidder', bidder))",
    merge=lambda a, b: max(a, b, key=lambda bid: tuple(bid.values())),
    finish=lambda bid: [bid],  # a column of a view is a plain value or a list
    type="array<struct<price: bigint, dateTime: timestamp, auction: bigint, bidder: bigint>>",
)


def flow(app: hr.App):
    return (
        app.stream("bid")
        .window(hr.tumbling("10 seconds"))
        .agg(bid=higher)
        .transform(lambda df: df.selectExpr("window_start", "window_end", "inline(bid)"))
        .to_view("q7")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
