"""Limits that change while the program runs: rules are data, each counts from its commit on, and a match says which
version of which rule it was.

Prints:
        large 0:0: {"amount":600.0}
        thrice 0:1: {"total":810.0}
    the limit is raised
        large 0:0: {"amount":600.0}
        thrice 0:1: {"total":810.0}
        large 0:2: {"amount":2500.0}
    refused: there is no column 'cost'. There are: amount"""

import headrace as hr


def payment(amount: float, minute: int) -> dict:
    return {"card": "4711", "amount": amount, "at": f"2026-01-01T09:{minute:02}:00Z"}


def told(app: hr.App) -> None:
    for row in app.query("SELECT rule, version, measures FROM alarms ORDER BY match_end").to_pylist():
        print(f"    {row['rule']} {row['version']}: {row['measures']}")


with hr.App("bank", home=":temp:") as app:
    payments = app.topic("payments", "card string, amount double, at timestamp", key="card", event_time="at")
    limits = app.rules("limits", "amount double")
    alarms = app.stream(payments).match(limits, by="card").to_view("alarms")

    limits.put("large", "amount > 500")
    limits.put("thrice", "MEASURES sum(amount) AS total PATTERN (a{3}) WITHIN '10 minutes' DEFINE a AS amount > 100")
    payments.append([payment(600.0, 0), payment(105.0, 1), payment(105.0, 2)])
    app.drain()
    told(app)

    print("the limit is raised")
    limits.put("large", "amount > 1000")
    payments.append([payment(600.0, 20), payment(2500.0, 40)])
    app.drain()
    told(app)

    try:
        limits.put("cheap", "cost < 5")
    except hr.InvalidRule as error:
        print(f"refused: {error.why}")
