"""A checkout that is abandoned: it began, and within ten minutes nobody paid, whatever else the visitor did.

Prints:
    bob paid; ann has begun at 09:00, and may still pay
    - waits for no paid until 09:10
    eve comes at 09:20
    ann has left at 09:00"""

import headrace as hr


def step(visitor: str, name: str, minute: int) -> dict:
    return {"visitor": visitor, "step": name, "at": f"2026-01-01T09:{minute:02}:00Z"}


with hr.App("shop", home=":temp:") as app:
    steps = app.topic("steps", "visitor string, step string, at timestamp", key="visitor", event_time="at")
    abandoned = hr.match_recognize("""
        PARTITION BY visitor ORDER BY at
        PATTERN (checkout !paid) WITHIN INTERVAL '10' MINUTE
        DEFINE checkout AS step = 'checkout', paid AS step = 'paid'""")
    left = app.stream(steps).match(abandoned).to_view("abandoned")

    steps.append(
        [step("ann", "checkout", 0), step("bob", "checkout", 1), step("bob", "help", 2), step("bob", "paid", 4)]
    )
    app.drain()
    assert left.to_arrow().num_rows == 0
    print("bob paid; ann has begun at 09:00, and may still pay")
    for row in app.query("SELECT waits_for, until FROM abandoned_partials").to_pylist():
        print(f"- waits for {row['waits_for']} until {row['until']:%H:%M}")

    print("eve comes at 09:20")
    steps.append(step("eve", "home", 20))
    app.drain()
    for row in left.to_arrow().to_pylist():
        print(f"{row['visitor']} has left at {row['match_start']:%H:%M}")
