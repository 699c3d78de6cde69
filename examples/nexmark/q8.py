"""q8, monitor new users: who came, and opened an auction, in the same 10 seconds.

Both records have the window's start as a column, which has to be equal; then they are less than 10 seconds apart. So
the join with that bound gives all pairs of the SQL's join. The windows behind it count them: a row for each person."""

import headrace as hr


def flow(app: hr.App):
    start = "window(dateTime, '10 seconds').start as starttime"
    people = app.stream("person").transform(lambda df: df.selectExpr("id", "name", start, "dateTime", *hr.META))
    auctions = app.stream("auction").transform(lambda df: df.selectExpr("seller", start, "dateTime", *hr.META))
    on = {"id": "seller", "starttime": "starttime"}
    return (
        people.join(auctions, on=on, before="10 seconds", after="10 seconds", grace="0 seconds")
        .window(hr.tumbling("10 seconds"))
        .group_by("id", "name")
        .agg(auctions=hr.count())
        .to_view("q8")
    )


if __name__ == "__main__":
    from running import run

    run(flow)
