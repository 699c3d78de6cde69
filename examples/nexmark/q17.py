"""q17, auction statistics: for each auction and day how many bids there were, of low, middle and high prices, and the
least, highest, average and total price."""

import headrace as hr


def flow(app: hr.App):
    return (
        app.stream("bid")
        .window(hr.tumbling("1 day"))
        .group_by("auction")
        .agg(
            total_bids=hr.count(),
            rank1_bids=hr.count(where="price < 10000"),
            rank2_bids=hr.count(where="price >= 10000 and price < 1000000"),
            rank3_bids=hr.count(where="price >= 1000000"),
            min_price=hr.min("price"),
            max_price=hr.max("price"),
            avg_price=hr.avg("price"),
            sum_price=hr.sum("price"),
        )
        .to_view("q17")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
