"""q11, user sessions: how many bids a person made in each session, which ends when 10 seconds pass without one."""

import headrace as hr


def flow(app: hr.App):
    sessions = app.stream("bid").window(hr.session("10 seconds"))
    return sessions.group_by("bidder").agg(bids=hr.count()).to_view("q11")


if __name__ == "__main__":
    from running import run

    run(flow)
