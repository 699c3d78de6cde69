"""A pattern and stored queries: whole programs without a JVM, whose views and topics a server shows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import headrace as hr
from headrace.views.contract import PARTIALS
from tests.operators.sparkless_joins import without_spark

__all__ = ["NASTY", "make_alerts", "make_frauds"]

NASTY = """<img src=x onerror="fetch('/stolen');alert(1)">"""


def make_frauds(home: Path, views: str | None = None) -> None:
    """Two matches of a card, one of them open; `0815` and a nasty card wait; sensors that tell nothing yet."""
    with pytest.MonkeyPatch.context() as patch, closing(hr.App("bank", home=home, views=views)) as app:
        without_spark(patch.setattr)
        events = "card string, amount double, at timestamp"
        charges = app.topic("charges", events, key="card", event_time="at")
        testing = hr.pattern(
            "small+ big",
            define={"small": "amount < 10", "big": "amount > 500"},
            within="10 minutes",
            measures={"payments": "count(*)", "note": "last(card)"},
        )
        for name in "frauds", "nobody":
            topic = charges if name == "frauds" else app.topic("quiet", events, key="card", event_time="at")
            app.stream(topic).match(testing, by="card", grace="10 seconds").to_view(name)
        rows = [("4711", 1.0, "09:00:00"), ("4711", 2.0, "09:02:00"), ("4711", 900.0, "09:03:00")]
        rows += [("4711", 3.0, "09:20:00"), ("4711", 901.0, "09:21:30"), (NASTY, 4.0, "09:22:00")]
        rows += [("0815", 3.0, "09:23:00"), ("0815", 5.0, "09:24:00")]
        charges.append([{"card": card, "amount": amount, "at": f"2026-01-01T{at}Z"} for card, amount, at in rows])
        app.drain()
        assert PARTIALS in {table.name for table in app.views.flow("frauds").tables}


def make_alerts(home: Path, views: str | None = None) -> None:
    """Queries, articles and hits, in a topic and a view."""
    with pytest.MonkeyPatch.context() as patch, closing(hr.App("media", home=home, views=views)) as app:
        without_spark(patch.setattr)
        articles = app.topic("articles", "title string, body string, price double")
        alerts = app.queries("alerts")
        routes = app.queries("routes", tenant="customer")
        tickets = app.topic("tickets", "customer string, message string")
        found = app.stream(articles).search(alerts, text=["title", "body"])
        found.to_topic("hits")
        found.to_view("found")
        app.stream(tickets).search(routes, text="message").to_view("routed")
        alerts.put_all({"heating": 'title:"heat pump" AND price < 500', "boilers": "boiler OR 100%", NASTY: "img src"})
        routes.put("urgent", "down OR outage", tenant="acme")
        articles.append(
            [
                {"title": "🔥 A heat pump for all", "body": "It hums.", "price": 480.0},
                {"title": "Nothing", "body": NASTY, "price": 1.0},
            ]
        )
        app.drain()
        odd = {"query": "heating", "title": "Odd marks", "highlights": '{"title": 5, "body": [5, null]}', "body": "x"}
        app.log.topic("hits").append(odd)  # as others may
        alerts.put("boilers", "boiler")
        app.drain()
