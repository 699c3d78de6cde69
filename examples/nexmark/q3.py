"""q3, local item suggestion: who in three states opens auctions of category 10, and which.

A seller is known before the auction is opened, and is one of the last thousand people: at one event a second and more
that is within a day. So a join that looks back a day gives what the SQL's join without bounds gives. Of both streams
it keeps only the people."""

import headrace as hr


def flow(app: hr.App):
    auctions = app.stream("auction").transform(
        lambda df: df.where("category = 10").select("id", "seller", "dateTime", *hr.META)
    )
    people = app.stream("person").transform(
        lambda df: df.where("state in ('OR', 'ID', 'CA')").selectExpr(
            "id as person", "name", "city", "state", "dateTime", *hr.META
        )
    )
    return auctions.join(people, on={"seller": "person"}, before="1 day", grace="0 seconds").to_topic("q3")


if __name__ == "__main__":
    from running import run

    run(flow)
