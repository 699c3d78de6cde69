"""A V in the price of a stock: it falls, and then rises. Conditions look at the event before; the first one has none.

Prints:
    ACME fell from 17 to 11 and rose to 18, 09:01 to 09:05
    of 09:01 top 17
    of 09:02 down 13
    of 09:03 down 11
    of 09:04 up 14
    of 09:05 up 18"""

import headrace as hr

FALLS, RISES = "price < prev(price)", "price > prev(price)"

with hr.App("market", home=":temp:") as app:
    prices = app.topic("prices", "stock string, price int, at timestamp", key="stock", event_time="at")
    shape = {"define": {"down": FALLS, "up": RISES}, "within": "1 hour"}
    ends = {"high": "first(price)", "low": "last(down.price)", "now": "last(up.price)"}
    each = app.stream(prices)
    each.match(hr.pattern("top down+ up+", measures=ends, **shape), by="stock").to_view("shapes")
    each.match(hr.pattern("top down+ up+", rows="all", **shape), by="stock").to_view("events_of_shapes")

    minutes = enumerate([12, 17, 13, 11, 14, 18, 18])
    prices.append([{"stock": "ACME", "price": p, "at": f"2026-01-01T09:{minute:02}:00Z"} for minute, p in minutes])
    app.drain()
    for row in app.view("shapes").to_arrow().to_pylist():
        times = f"{row['match_start']:%H:%M} to {row['match_end']:%H:%M}"
        print(f"{row['stock']} fell from {row['high']} to {row['low']} and rose to {row['now']}, {times}")
    for row in app.query("SELECT at, symbol, price FROM events_of_shapes ORDER BY at").to_pylist():
        print(f"of {row['at']:%H:%M} {row['symbol']} {row['price']}")
