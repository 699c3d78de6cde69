"""Another service reads the views: no App and no Spark there, only the directory. Whoever has written hands the
position on (it is short text, and fits an HTTP header), and the reader waits until the views have come that far.

Prints:
    the shop appends an order and answers with its position
    the other service sees it: ann has spent 12
    while the app is stopped, waiting is bounded: WaitTimeout"""

import subprocess
import sys

import headrace as hr

SERVICE = """
import sys, headrace as hr
home, position = sys.argv[1], hr.Position.parse(sys.argv[2])
sql = "select sum(euros) as euros from spent where customer = ?"
found = hr.open_views(home).query(sql, ("ann",), wait_for=position, timeout="30 seconds")
print("the other service sees it: ann has spent", found.to_pylist()[0]["euros"])
"""

with hr.App("shop", home=":temp:") as app:
    orders = app.topic("orders", "customer string, euros int", key="customer")
    app.stream(orders).group_by("customer").agg(euros=hr.sum("euros")).to_view("spent")
    app.start()  # in the background, as `headrace run` does
    position = orders.append({"customer": "ann", "euros": 12}).position
    print("the shop appends an order and answers with its position", flush=True)
    other = subprocess.run(
        [sys.executable, "-c", SERVICE, str(app.home), str(position)], check=True, capture_output=True, text=True
    )
    print(other.stdout, end="")
    app.stop()

    position = orders.append({"customer": "ann", "euros": 1}).position
    try:
        app.query("select * from spent", wait_for=position, timeout="100 milliseconds")
    except hr.WaitTimeout as error:
        print(f"while the app is stopped, waiting is bounded: {type(error).__name__}")
