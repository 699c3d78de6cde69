"""Flows in a chain: clean records into a topic, and from that final results into another. Topics in between are topics
like any other: kept, readable, and read again from the start whenever something behind them changes.

Prints:
    clean: 5 records
    + 09:00  /      2
    + 09:01  /cart  1
    + 09:02  /      1
    after a straggler:
    - 09:00  /      2
    + 09:00  /      3"""

import headrace as hr


def click(at: str, page: str = "/") -> dict:
    return {"page": page, "at": f"2026-01-01T{at}Z"}


with hr.App("chain", home=":temp:") as app:
    raw = app.topic("raw", "page string, at timestamp", event_time="at")
    clean = app.stream(raw).transform(lambda df: df.where("page <> '/health'")).to_topic("clean", event_time="at")
    per_minute = (
        app.stream(clean)
        .window(hr.tumbling("1 minute"), late=hr.correct(within="1 hour"))
        .group_by("page")
        .agg(views=hr.count())
        .to_topic("per_minute", emit="final")  # each result once, when its window is closed; then corrections only
    )

    def told(start: int) -> int:
        """Prints what came to the topic of results since then, and returns where it is now."""
        for record in per_minute.records(start={0: start}):
            row = record.value
            print(f"{row['op']} {row['window_start']:%H:%M}  {row['page']:6} {row['views']}")
        return per_minute.offsets()[0].next

    raw.append([click("09:00:05"), click("09:00:40"), click("09:00:41", "/health"), click("09:01:10", "/cart")])
    raw.append([click("09:02:00"), click("09:03:00")])
    app.drain()
    print(f"clean: {len(list(clean.records()))} records")
    place = told(0)
    print("after a straggler:")
    raw.append(click("09:00:59"))
    app.drain()
    told(place)
