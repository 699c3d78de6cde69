"""q2, selection: auction and price of the bids on every 123rd auction."""

import headrace as hr


def flow(app: hr.App):
    chosen = app.stream("bid").transform(lambda df: df.where("auction % 123 = 0").select("auction", "price", *hr.META))
    return chosen.to_topic("q2")


if __name__ == "__main__":
    from running import run

    run(flow)
