"""q1, currency: every bid, its price in euros in place of dollars."""

import headrace as hr


def in_euros(df):
    price = "cast(0.908 * price as decimal(23, 3)) as price"
    return df.selectExpr("auction", "bidder", price, "dateTime", "extra", *hr.META)


def flow(app: hr.App):
    return app.stream("bid").transform(in_euros).to_topic("q1")


if __name__ == "__main__":
    from running import run

    run(flow)
