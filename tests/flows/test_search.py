"""What stands behind a search: windows, transforms, a topic; and what stands before it."""

from __future__ import annotations

from typing import Any

import headrace as hr


def test_windows_and_transforms_behind_a_search(headrace_spark: Any) -> None:
    with hr.App("media", home=":temp:", spark=headrace_spark) as app:
        articles = app.topic("articles", "title string, price double, at timestamp", event_time="at")
        alerts = app.queries("alerts")
        cheap = app.stream(articles).transform(lambda df: df.where("price < 10").withColumn("words", df.title))
        found = cheap.search(alerts, text=["words"])
        found.window(hr.tumbling("1 minute")).group_by("query").agg(n=hr.count(), top=hr.max("price")).to_view("counts")
        found.transform(lambda df: df.selectExpr("query", "upper(title) as title", "_id", "op")).to_view("loud")
        found.to_topic("hits")
        other = app.stream(articles).dedup("title", within="1 hour").search(alerts, text=["title"])
        other.to_topic("once")
        alerts.put_all({"a": "heat", "b": "pump* AND price < 5"})
        rows = [("heat", 1), ("heat pumps", 2), ("pump", 7), ("heat", 20), ("heat", 3), ("heat", 1)]
        articles.append(
            [{"title": t, "price": float(p), "at": f"2026-01-01T09:0{n}:00Z"} for n, (t, p) in enumerate(rows)]
        )
        app.drain(close=True)
        counts = app.query("select query, sum(n) as n, max(top) as top from counts group by query order by query")
        assert counts.to_pylist() == [{"query": "a", "n": 4, "top": 3.0}, {"query": "b", "n": 1, "top": 2.0}]
        loud = app.query("select query, title from loud order by title, query").to_pylist()
        assert [(row["query"], row["title"]) for row in loud] == [("a", "HEAT")] * 3 + [
            ("a", "HEAT PUMPS"),
            ("b", "HEAT PUMPS"),
        ]
        assert len([*app.log.topic("hits").records()]) == 5
        assert sum(1 if each.value["op"] == "+" else -1 for each in app.log.topic("once").records()) == 3
        assert app.audit().ok
        alerts.put("bad", "nowhere:1")
        app.drain()
        assert {each.reason for each in app.log.dead_letters()} == {"invalid"}
