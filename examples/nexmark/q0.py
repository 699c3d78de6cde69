"""q0, pass through: every bid as it is. What the machinery costs by itself."""

import headrace as hr


def flow(app: hr.App):
    columns = ("auction", "bidder", "price", "dateTime", "extra")
    return app.stream("bid").transform(lambda df: df.select(*columns, *hr.META)).to_topic("q0")


if __name__ == "__main__":
    from running import run

    run(flow)
