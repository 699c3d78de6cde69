"""q5, hot items: the auctions with the most bids of the last 10 seconds, every 2 seconds; all of them, if several have
as many (up to a hundred: a list has to end somewhere)."""

import headrace as hr


def with_the_most(df):
    most = "inline(filter(auctions, each -> each.count = auctions[0].count)) as (auction, num)"
    return df.selectExpr("window_start", "window_end", most)


def flow(app: hr.App):
    return (
        app.stream("bid")
        .window(hr.hopping("10 seconds", every="2 seconds"))
        .agg(auctions=hr.top_k("auction", 100))
        .transform(with_the_most)
        .to_view("q5")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
