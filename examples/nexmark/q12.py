"""q12, windows by arrival: how many bids a person made in each 10 seconds of when they came, whatever they say of their
time. The log has stamped them, so that the answer is the same tomorrow."""

import headrace as hr


def flow(app: hr.App):
    arrived = app.stream("bid").window(hr.tumbling("10 seconds"), time="_arrived_at")
    return arrived.group_by("bidder").agg(bids=hr.count()).to_view("q12")


if __name__ == "__main__":
    from running import run

    run(flow)
