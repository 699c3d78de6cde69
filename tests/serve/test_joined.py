"""Tables and joins over HTTP: where a row comes from, rows as they were, and what a join keeps. No Spark: the flows'
own steps make the commits (`tests.serve.joined`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.why import why
from tests.serve.conftest import VIEW, Served
from tests.serve.joined import Joined, shop


@pytest.fixture(scope="module")
def joined(shared: Served) -> Iterator[Joined]:
    with closing(shop(shared.home)) as made:
        yield made


def rows(answer: Any) -> list[dict[str, Any]]:
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


# -- why -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("joined")
def test_an_enriched_row_names_its_records(shared: Served) -> None:
    found = shared.get("/api/views/taxed/why", params={"key": "sales/0/0000000000000000"})
    assert (found["row"]["percent"], found["row"]["rates_version"], found["note"]) == (9, "0:1", None)
    places = [(each["topic"], each["partition"], each["offset"]) for each in found["origins"]]
    assert places == [("sales", 0, 0), ("rates", 0, 1)]
    assert found["origins"][1]["record"]["percent"] == 9
    assert found["waits_for"] is None


@pytest.mark.usefixtures("joined")
def test_an_open_row_says_what_it_waits_for(shared: Served) -> None:
    found = shared.get("/api/views/paid/why", params={"key": "sales/0/0000000000000000|payments/1/0000000000000000"})
    assert [each["topic"] for each in found["origins"]] == ["sales", "payments"]
    assert found["waits_for"] == "both streams to be past 2026-01-01T12:30:10+00:00"


@pytest.mark.usefixtures("joined")
def test_a_row_of_two_tables_names_the_records_of_both(shared: Served) -> None:
    found = shared.get("/api/views/priced/why", params={"key": '["ch"]|[8]'})
    places = [(each["topic"], each["offset"], each["record"]["_op"]) for each in found["origins"]]
    assert places == [("countries", 0, "upsert"), ("prices", 4, "upsert")]
    alone = shared.get("/api/views/priced/why", params={"key": '["de"]|'})
    assert [(each["topic"], each["offset"]) for each in alone["origins"]] == [("countries", 1)]


def test_keys_are_read_by_their_types(shared: Served, joined: Joined) -> None:
    found = shared.get("/api/views/prices/why", params={"key": "8"})
    assert [(each["topic"], each["offset"]) for each in found["origins"]] == [("prices", 4)]
    log = joined.app.log
    assert why(joined.app.views, log, "prices", 8).origins == why(joined.app.views, log, "prices", "8").origins
    for key in ("eight", "9"):
        error = shared.get("/api/views/prices/why", 400, params={"key": key})["error"]
        assert error["type"] == "InvalidArgument"


def test_of_windows_it_says_that_records_are_not_kept(shared: Served) -> None:
    found = shared.get(f"/api/views/{VIEW}/why", params={"key": ["2026-01-01T09:01:00Z", "/b"]})
    assert (found["row"]["clicks"], found["origins"]) == (1, [])
    assert found["note"] == (
        "it is made of all records of its window and groups: which these are is not kept. They come from clicks"
    )
    assert found["waits_for"].startswith("the end of its window, 2026-01-01T09:02:00+00:00")


def test_a_row_waits_for_its_table_to_be_loaded(tmp_path: Path) -> None:
    app = hr.App("places", home=tmp_path)
    cities = app.table("cities", "zip string, city string", key="zip", loads=True)
    visits = app.topic("visits", "zip string, at timestamp", event_time="at")
    placed = app.stream(visits).enrich(cities, on="zip", as_of="at").to_view("placed")
    with closing(Joined(app)) as made:
        visits.append({"zip": "8001", "at": "2026-01-01T00:00:00Z"})
        cities.upsert({"zip": "8001", "city": "Bern"})
        made.run()
        found = placed.why("visits/0/0000000000000000")
        assert (found.row["city"], found.waits_for) == ("Bern", "its table to be loaded, which table.loaded() says")
        cities.loaded()
        made.run()
        assert placed.why("visits/0/0000000000000000").waits_for is None


def test_why_needs_the_token(shared: Served) -> None:
    assert shared.anonymous.get(f"/api/views/{VIEW}/why").status_code == 401
    assert shared.anonymous.get("/api/tables").status_code == 401


# -- tables ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("joined")
def test_tables_with_their_history(shared: Served) -> None:
    facts = {each["table"]: each for each in shared.get("/api/tables")}
    said = {name: (each["key"], each["history"], each["rows"], each["versions"]) for name, each in facts.items()}
    assert said == {
        "countries": (["code"], "latest", 2, None),
        "prices": (["sku"], "versions", 1, 4),
        "rates": (["country"], "bitemporal", 1, 4),
    }
    assert shared.get("/api/tables/rates") == facts["rates"]
    shared.get("/api/tables/taxed", 404)


@pytest.mark.usefixtures("joined")
def test_rows_as_they_were_valid(shared: Served) -> None:
    at = {"as_of": "2026-02-15T00:00:00Z"}
    assert [row["euros"] for row in rows(shared.get("/api/tables/prices/rows", params=at))] == [2, 5]
    assert [row["euros"] for row in rows(shared.get("/api/tables/prices/rows"))] == [5]
    assert shared.get("/api/tables/prices/rows", params={**at, "limit": 1})["truncated"] is True
    shared.get("/api/tables/countries/rows", 400, params=at)
    shared.get("/api/tables/prices/rows", 400, params={"as_known": "2026-02-15T00:00:00Z"})
    shared.get("/api/tables/prices/rows", 400, params={"as_of": "yesterday"})


def test_rows_as_they_were_known(shared: Served, joined: Joined) -> None:
    first = next(iter(joined.app.log.topic("rates").records()))
    known, valid = {"as_known": first.arrived_at.isoformat()}, {"as_of": "2026-04-01T00:00:00Z"}
    for asked, percent in ((known, 8), ({**known, **valid}, 8), (valid, 10)):
        (row,) = rows(shared.get("/api/tables/rates/rows", params=asked))
        assert row["percent"] == percent


def test_joined_tables_as_they_were(shared: Served, joined: Joined) -> None:
    """By arrival: before the first country was there, nothing was; now both are."""
    first = next(iter(joined.app.log.topic("countries").records())).arrived_at
    before = {"as_of": (first - timedelta(microseconds=1)).isoformat()}
    assert rows(shared.get("/api/tables/priced/rows", params=before)) == []
    now = rows(shared.get("/api/tables/priced/rows", params={"as_of": "2100-01-01T00:00:00Z"}))
    assert [(row["code"], row["euros"]) for row in now] == [("ch", 5), ("de", None)]


@pytest.mark.usefixtures("joined")
def test_the_history_of_one_row(shared: Served) -> None:
    found = rows(shared.get("/api/tables/prices/history", params={"key": "7"}))
    assert [(row["euros"], row["valid_from"][:7], row["valid_to"][:7]) for row in found] == [
        (1, "2026-01", "2026-02"),
        (2, "2026-02", "2026-03"),
        (3, "2026-03", "2026-06"),
    ]
    assert {"known_from", "known_to"} <= rows(shared.get("/api/tables/rates/history", params={"key": "ch"}))[0].keys()
    shared.get("/api/tables/prices/history", 400)
    shared.get("/api/tables/countries/history", 400, params={"key": "ch"})


# -- what is kept ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("joined")
def test_what_a_join_keeps_and_who_holds_it(shared: Served) -> None:
    kept = {each["side"]: each for each in shared.get("/api/views/paid")["kept"]}
    assert {side: (each["topics"], each["rows"]) for side, each in kept.items()} == {
        "left": (["sales"], 2),
        "right": (["payments"], 1),
    }
    assert kept["left"]["held_by"] == {"topic": "payments", "partition": 0, "progress": None}, "it has no record"
    assert kept["right"]["held_by"] == {"topic": "sales", "partition": 0, "progress": "2026-01-01T12:01:00Z"}
    flows = {flow["name"]: flow["kept"] for flow in shared.get("/api/overview")["flows"]}
    assert {each["side"]: each["rows"] for each in flows["taxed"]} == {"facts": 2, "versions": 3}
    assert [(each["side"], each["topics"], each["rows"]) for each in flows["priced"]] == [
        ("left", ["countries"], 2),
        ("right", ["prices"], 1),
        ("history", ["countries", "prices"], 2),
    ]
    said = shared.client.get("/metrics").text
    assert 'headrace_join_rows{name="paid",side="left"} 2' in said
    assert 'headrace_join_bytes{name="paid",side="right"}' in said
