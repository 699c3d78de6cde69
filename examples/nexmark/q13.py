"""q13, a side input: bids with a value that a table of 10,000 rows has for the auction's number.

The table is loaded before the events come (`load`). A bid gets the row that had arrived before it, as in the SQL, which
looks up by the time of processing."""

import headrace as hr


def side_input(app: hr.App):
    return app.table("side_input", "key bigint, value string", key="key")


def load(app: hr.App) -> None:
    with hr.App("loading", home=app.home) as loading:
        side_input(loading).upsert([{"key": key, "value": f"value-{key}"} for key in range(10_000)])


def flow(app: hr.App):
    bids = app.stream("bid").transform(
        lambda df: df.selectExpr("auction", "bidder", "price", "dateTime", "auction % 10000 as key", *hr.META)
    )
    return bids.enrich(side_input(app), on="key", missing="drop").to_topic("q13")


if __name__ == "__main__":
    from running import run

    run(flow, load=load)
