"""A stolen card: small payments that try it, and then a big one. A straggler belongs to the match, and corrects it.

Prints:
    4711: 3 payments, 903.0 in all, 09:00 to 09:03
    0815 waits for small | big until 09:12
    a payment of 09:01 comes late
    - 4711: 3 payments, 903.0 in all, 09:00 to 09:03
    + 4711: 4 payments, 904.5 in all, 09:00 to 09:03"""

import headrace as hr


def payment(card: str, amount: float, minute: int) -> dict:
    return {"card": card, "amount": amount, "at": f"2026-01-01T09:{minute:02}:00Z"}


def told(row: dict) -> str:
    times = f"{row['match_start']:%H:%M} to {row['match_end']:%H:%M}"
    return f"{row['card']}: {row['payments']} payments, {row['total']} in all, {times}"


with hr.App("bank", home=":temp:") as app:
    payments = app.topic("payments", "card string, amount double, at timestamp", key="card", event_time="at")
    stolen = hr.pattern(
        "small+ big",
        define={"small": "amount < 10", "big": "amount > 500"},
        within="10 minutes",
        measures={"payments": "count(*)", "total": "sum(amount)"},
    )
    frauds = (
        app.stream(payments)
        .match(stolen, by="card", grace="10 seconds", late=hr.correct(within="1 hour"))
        .to_view("frauds")
    )
    payments.append([payment("4711", 1.0, 0), payment("4711", 2.0, 2), payment("0815", 3.0, 2)])
    payments.append(payment("4711", 900.0, 3))
    app.drain()
    for row in frauds.to_arrow().to_pylist():
        print(told(row))
    for row in app.query("SELECT card, waits_for, until FROM frauds_partials").to_pylist():
        print(f"{row['card']} waits for {row['waits_for']} until {row['until']:%H:%M}")

    print("a payment of 09:01 comes late")
    with frauds.changes(start="latest", timeout="0 seconds") as changes:
        payments.append(payment("4711", 1.5, 1))
        app.drain()
        for change in changes:
            print(change["op"], told(change))
