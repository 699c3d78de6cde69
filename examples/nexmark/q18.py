"""q18, last bid: of each person the last bid on each auction; among those of one time, the last to come."""

import headrace as hr


def flow(app: hr.App):
    columns = ("price", "channel", "url", "dateTime", "extra")
    last = {column: hr.last(column) for column in columns}
    return app.stream("bid").group_by("bidder", "auction").agg(**last).to_view("q18")


if __name__ == "__main__":
    from running import run

    run(flow)
