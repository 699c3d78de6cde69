"""Late data: a straggler corrects its window, a record that is too late is kept in a topic, and the ledger says so.

Prints:
    09:00  2 views  open  0 corrections
    then 09:00 closes, and a click of 09:00:59 comes
    - 09:00  2 views  final
    + 09:00  3 views  final
    two hours on, a click of 09:00:30 is too late: in the topic too_late
    ledger of 09:00: 2 on time, 1 corrected, 1 dropped"""

import headrace as hr


def click(at: str) -> dict:
    return {"page": "/", "at": f"2026-01-01T{at}Z"}


with hr.App("late", home=":temp:") as app:
    clicks = app.topic("clicks", "page string, at timestamp", event_time="at")
    views = (
        app.stream(clicks)
        .window(
            hr.tumbling("1 minute"),
            grace="10 seconds",
            late=hr.correct(within="1 hour", dropped_to="too_late"),
        )
        .group_by("page")
        .agg(views=hr.count())
        .to_view("views_per_minute")
    )
    clicks.append([click("09:00:05"), click("09:00:40")])
    app.drain()
    for row in views.to_arrow().to_pylist():
        print(f"{row['window_start']:%H:%M}  {row['views']} views  {row['_status']}  {row['_corrections']} corrections")

    print("then 09:00 closes, and a click of 09:00:59 comes")
    clicks.append(click("09:01:30"))  # past 09:01:00 and 10 seconds of grace
    app.drain()
    with views.changes(start="latest", timeout="0 seconds") as changes:
        clicks.append(click("09:00:59"))
        app.drain()
        for change in changes:
            print(f"{change['op']} {change['window_start']:%H:%M}  {change['views']} views  {change['_status']}")

    clicks.append([click("11:01:30"), click("09:00:30")])
    app.drain()
    for record in app.log.topic("too_late").records():
        print(f"two hours on, a click of {record.value['at']:%H:%M:%S} is too late: in the topic too_late")
    first = views.ledger().to_pylist()[0]
    print("ledger of 09:00: {on_time} on time, {corrected} corrected, {dropped} dropped".format(**first))
