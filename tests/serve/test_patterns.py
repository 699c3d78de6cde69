"""What keys of a pattern wait for, its matches, and stored queries, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from tests.serve.conftest import VIEW, Served
from tests.serve.matched import NASTY, make_alerts, make_frauds

SMALL = {"columns", "rows", "truncated", "key"}


@pytest.fixture(scope="module")
def found(shared: Served) -> Served:
    make_frauds(shared.home)
    make_alerts(shared.home)
    return shared


def rows(answer: Any) -> list[dict[str, Any]]:
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


# -- patterns ----------------------------------------------------------------------------------------------


def test_what_keys_wait_for(found: Served) -> None:
    answer = found.get("/api/views/frauds/partials")
    assert answer.keys() == SMALL and answer["key"] == ["card"]
    assert [(row["card"], row["rows"], row["waits_for"]) for row in rows(answer)] == [
        ("0815", 2, "small | big"),  # the newest first
        (NASTY, 1, "small | big"),
    ]
    assert rows(answer)[0]["match_start"] == "2026-01-01T09:23:00Z"
    assert rows(answer)[0]["last_at"] == "2026-01-01T09:24:00Z"
    assert rows(answer)[0]["until"] == "2026-01-01T09:33:00Z"


def test_of_one_key_and_bounded(found: Served) -> None:
    answer = found.get("/api/views/frauds/partials", params={"card": NASTY})
    assert [row["card"] for row in rows(answer)] == [NASTY]
    assert rows(found.get("/api/views/frauds/partials", params={"card": "4711"})) == []
    assert rows(found.get("/api/views/nobody/partials")) == []
    one = found.get("/api/views/frauds/partials", params={"limit": 1})
    assert (len(one["rows"]), one["truncated"]) == (1, True)
    error = found.get("/api/views/frauds/partials", 400, params={"kard": "1"})["error"]
    assert "known by card" in error["message"]
    assert "not made by .match" in found.get(f"/api/views/{VIEW}/partials", 400)["error"]["message"]
    assert found.get("/api/views/nothing/partials", 404)["error"]["type"] == "UnknownView"
    assert found.anonymous.get("/api/views/frauds/partials").status_code == 401


def test_matches_by_event_time(found: Served) -> None:
    answer = found.get("/api/views/frauds/matches")
    assert answer.keys() == SMALL and answer["key"] == ["card"]
    wanted = [("2026-01-01T09:20:00Z", "2026-01-01T09:21:30Z", 2), ("2026-01-01T09:00:00Z", "2026-01-01T09:03:00Z", 3)]
    assert [(row["match_start"], row["match_end"], row["payments"]) for row in rows(answer)] == wanted

    def starts(**asked: str) -> list[str]:
        return [row["match_start"][11:16] for row in rows(found.get("/api/views/frauds/matches", params=asked))]

    assert starts(to="2026-01-01T09:20:00Z") == ["09:00"]
    assert starts(**{"from": "2026-01-01T09:03:00Z"}) == ["09:20", "09:00"]  # it ends there
    assert starts(**{"from": "2026-01-01T09:03:01Z"}) == ["09:20"]
    assert found.get("/api/views/frauds/matches", 400, params={"to": "soon"})["error"]["facts"]["argument"] == "to"


def test_a_view_says_what_its_pattern_keeps(found: Served) -> None:
    kept = {each["side"]: each["rows"] for each in found.get("/api/views/frauds")["kept"]}
    assert kept["partials"] == 2 and kept["events"] > 0


# -- stored queries ----------------------------------------------------------------------------------------


def test_which_stored_queries_there_are(found: Served) -> None:
    alerts, routes = found.get("/api/queries")
    assert (alerts["queries"], alerts["tenant"], alerts["count"]) == ("alerts", None, 3)
    searches = {each["flow"]: each for each in alerts["searches"]}
    assert searches["hits"] == {"flow": "hits", "topic": "articles", "text": ["title", "body"], "into": "hits"}
    assert searches["found"]["into"] == "found"
    assert (routes["queries"], routes["tenant"], routes["count"]) == ("routes", "customer", 1)


def test_a_list_of_queries(found: Served) -> None:
    answer = found.get("/api/queries/alerts")
    assert [each["query"] for each in answer["queries"]] == [NASTY, "boilers", "heating"] and not answer["more"]
    boilers = answer["queries"][1]
    assert (boilers["text"], boilers["version"], boilers["tenant"]) == ("boiler", "0:3", None)
    (urgent,) = found.get("/api/queries/routes")["queries"]
    assert (urgent["query"], urgent["tenant"], urgent["text"]) == ("urgent", "acme", "down OR outage")


def test_queries_are_looked_for(found: Served) -> None:
    def named(text: str, of: str = "alerts") -> list[str]:
        found_ = found.get(f"/api/queries/{of}", params={"contains": text})["queries"]
        return [each["query"] for each in found_]

    assert named("HEAT pump") == ["heating"]
    assert named("heating") == ["heating"]
    assert named("ACME", "routes") == ["urgent"]
    assert named("%") == named("_") == named("\\") == []  # nothing stands for anything else
    one = found.get("/api/queries/alerts", params={"limit": 1})
    assert (len(one["queries"]), one["more"]) == (1, True)
    error = found.get("/api/queries/articles", 404)["error"]
    assert error["type"] == "UnknownView" and "no stored queries" in error["message"]


def test_how_a_query_is_understood(found: Served) -> None:
    def explain(query: str, of: str = "alerts", **more: str) -> Any:
        return found.get(f"/api/queries/{of}/explain", params={"query": query, **more})

    heating = explain("heating")
    assert heating["meaning"] == 'title:"heat pump" AND price < 500.0'
    assert (heating["records"], heating["hits"]) == (2, 1) and heating["candidates"] >= 1
    assert len(heating["terms"]) == len(heating["seen"]) == 1
    assert explain("urgent", "routes", tenant="acme")["version"] == "0:0"
    with hr.open_log(found.home) as log:
        stored = log.topic("alerts").records()
        assert {record.value["query"]: record.arrived_at.isoformat() for record in stored}["heating"] == heating[
            "effective"
        ].replace("Z", "+00:00")
    assert found.get("/api/queries/alerts/explain", 404, params={"query": "nobody"})["error"]["type"] == "UnknownQuery"
    assert found.get("/api/queries/routes/explain", 404, params={"query": "urgent"})["error"]["type"] == "UnknownQuery"
