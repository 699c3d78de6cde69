"""What is asked over HTTP is what the log and the views say."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from headrace.serve.api import RECORDS_MAX
from headrace.serve.server import Server
from headrace.testing.view_contract import all_rules, commit, partial_rows
from headrace.views.contract import Column, FlowSpec, LedgerRow, Place, Result, SlotColumn, ViewSpec
from tests.serve.conftest import VIEW, Served
from tests.views.committing import SPEC, START, Committing
from tests.views.folded import SqliteViews

CLICK = {"user": "ann", "page": "/", "ms": 5, "at": "2026-01-01T09:00:05Z"}


# -- topics --------------------------------------------------------------------------------------------


def test_produce_and_consume(served: Served) -> None:
    one = served.post("/api/topics/clicks/records", json=CLICK)
    many = served.client.post("/api/topics/clicks/records", json=[{**CLICK, "user": user} for user in ("bob", "cat")])
    lines = b'{"user": "dan", "ms": 9007199254740993}\n\n{"user": "eve"}\n'
    refused = served.post(
        "/api/topics/clicks/records", 422, content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert (refused["error"]["type"], refused["error"]["facts"]["column"]) == ("RecordRejected", "ms")
    assert many.headers["Headrace-Position"] == many.json()["position"]
    assert sum(stop - start for start, stop in many.json()["ranges"].values()) == 2
    assert one["position"] != many.json()["position"] and one["quarantined"] == 0

    first = served.get("/api/topics/clicks/records", params={"limit": 1})
    start = ",".join(f"{number}:{offset}" for number, offset in first["next"].items())
    rest = served.get("/api/topics/clicks/records", params={"start": start})
    values = [record["value"] for record in first["records"] + rest["records"]]
    assert sorted(value["user"] for value in values) == ["ann", "bob", "cat"]
    assert values[0]["at"] == "2026-01-01T09:00:05Z"
    assert {int(number): offset for number, offset in rest["next"].items()} == {
        number: at.next for number, at in served.clicks.offsets().items()
    }


def test_a_list_is_as_exact_as_lines(served: Served) -> None:
    served.log.create_topic("exact", "n bigint, d decimal(20, 2)")
    body = b'[{"n": 9007199254740993, "d": 0.10},\n {"n": 1, "d": "2.50"}]'
    headers = {"Content-Type": "application/json"}
    served.post("/api/topics/exact/records", content=body, headers=headers)
    found = served.client.get("/api/topics/exact/records").text
    assert '{"n":9007199254740993,"d":"0.10"}' in found
    twice = served.post("/api/topics/exact/records", 400, content=b'[{"n": 1, "n": 2}]', headers=headers)
    assert "twice" in twice["error"]["message"] or "repeat" in twice["error"]["message"]
    for wrong in (b"[", b"[1]", b"[{}", b"[{},]", b"[{}] x", b"\xff", b"", b"[" * 100_000):
        served.post("/api/topics/exact/records", 400, content=wrong, headers=headers)
    assert served.post("/api/topics/exact/records", content=b"[]", headers=headers)["ranges"] == {}
    assert served.log.topic("exact").describe().records == 2


@pytest.mark.parametrize(
    ("kind", "begin", "between", "end"),
    [("application/json", b"[", b",", b"]"), ("application/x-ndjson", b"", b"\n", b"\n")],
)
def test_records_are_bounded_by_count(shared: Served, kind: str, begin: bytes, between: bytes, end: bytes) -> None:
    """Millions of them fit 8 MiB, and cost gigabytes as rows."""
    kind_header = {"Content-Type": kind}
    for count in (RECORDS_MAX + 1, 2_000_000):
        began = time.monotonic()
        body = begin + between.join([b"{}"] * count) + end
        refused = shared.post("/api/topics/clicks/records", 413, content=body, headers=kind_header)["error"]
        assert (refused["type"], f"{RECORDS_MAX} records" in refused["message"]) == ("TooManyRecords", True)
        assert refused["facts"] == {"limit": RECORDS_MAX} and "pieces" in refused["message"]
        assert time.monotonic() - began < 5
    assert shared.clicks.describe().records == 0


def test_consume_waits_for_a_record(served: Served) -> None:
    start = {"start": "latest", "wait": "10 seconds"}
    threading.Timer(0.2, served.clicks.append, ([CLICK],)).start()
    began = time.monotonic()
    found = served.get("/api/topics/clicks/records", params=start)
    assert [record["value"]["user"] for record in found["records"]] == ["ann"]
    assert 0.1 < time.monotonic() - began < 5
    nothing = served.get("/api/topics/clicks/records", params={"start": "latest", "wait": "50 milliseconds"})
    assert nothing["records"] == []


def test_consume_by_offset_and_time(served: Served) -> None:
    served.clicks.append([{**CLICK, "ms": ms} for ms in range(5)])
    ((number, at),) = [(number, at) for number, at in served.clicks.offsets().items() if at.next]
    one = served.get("/api/topics/clicks/records", params={"partition": number, "offset": 3})
    assert [record["offset"] for record in one["records"]] == [3, 4]
    later = served.get("/api/topics/clicks/records", params={"start": "2200-01-01T00:00:00Z"})
    assert later["records"] == []
    gone = served.get("/api/topics/clicks/records", 400, params={"partition": number, "offset": 99})
    assert gone["error"]["type"] == "OffsetOutOfRange" and gone["error"]["facts"]["next"] == at.next
    for wrong in ({"start": "soon"}, {"partition": 7}, {"offset": 3}, {"start": "7:1"}, {"wait": "1 year"}):
        served.get("/api/topics/clicks/records", 400, params=wrong)


@pytest.mark.parametrize("start", ["0:" + "9" * 5000, "9" * 5000 + ":0", "0:" + "9" * 25, "0:1,0:2", "²:1"])
def test_a_start_that_is_none(shared: Served, start: str) -> None:
    assert shared.get("/api/topics/clicks/records", 400, params={"start": start})["error"]["facts"]


def test_values_that_are_large_are_rows_all_the_same(served: Served) -> None:
    served.committing.commit([(0, "/" * 300_000, 5), (0, "/b", 3)])
    assert {len(row[2]) for row in served.get(f"/api/views/{VIEW}/rows")["rows"]} == {2, 300_000}


def test_topics_groups_and_queues(served: Served) -> None:
    served.clicks.append([{**CLICK, "user": str(user)} for user in range(10)])
    with served.clicks.group("billing").join() as member:
        member.poll()
        member.commit()
        groups = served.get("/api/groups")
    served.clicks.append(CLICK)
    messages = served.clicks.queue("mailer").receive(2)
    listed = {topic["name"]: topic for topic in served.get("/api/topics")}
    assert (listed["clicks"]["records"], listed["clicks"]["schema"]) == (11, served.clicks.describe().schema)
    shown = served.get("/api/topics/clicks")
    assert sum(part["next"] - part["earliest"] for part in shown["partitions"]) == 11
    assert [(group["group"], group["members"]) for group in groups] == [("billing", 1)]
    assert shown["groups"][0]["lag_records"] >= 1
    (queue,) = served.get("/api/queues")
    assert (queue["queue"], queue["in_flight"], queue["topic"]) == ("mailer", len(messages), "clicks")
    assert served.get("/api/topics/clcks", 404)["error"]["facts"]["known"] == ["clicks"]
    assert served.get("/api/topics/no%2Fname", 404)["error"]["type"] == "NotFound"
    assert served.get("/api/topics/no name", 400)["error"]["type"] == "InvalidName"


def test_dead_letters_are_replayed_and_dropped(served: Served) -> None:
    served.log.create_topic("timed", "at timestamp", event_time="at")
    ahead = [{"at": (START + timedelta(days=days)).isoformat()} for days in (300_000, 300_001)]
    done = served.post("/api/topics/timed/records", json=ahead)
    assert done["quarantined"] == 2
    found = served.get("/api/dead-letters", params={"limit": 1})
    (newest,) = found["dead_letters"]
    assert (found["count"], newest["reason"], newest["topic"], newest["kind"]) == (2, "max_ahead", "timed", "row")
    again = served.post(f"/api/dead-letters/{newest['id']}/replay", 400)
    assert "quarantined again" in again["error"]["message"]
    served.post(f"/api/dead-letters/{newest['id']}/drop")
    assert served.post(f"/api/dead-letters/{newest['id']}/drop", 400)["error"]["type"] == "InvalidArgument"
    served.log.topic("timed").alter(max_ahead="1000000 days")
    (other,) = served.get("/api/dead-letters")["dead_letters"]
    assert served.get("/api/overview")["dead_letters"]["latest"][0]["id"] == other["id"]
    served.post(f"/api/dead-letters/{other['id']}/replay")
    assert served.log.topic("timed").describe().records == 1
    assert served.get("/api/dead-letters") == {"count": 0, "dead_letters": []}


# -- views ---------------------------------------------------------------------------------------------


def test_dead_letters_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.api.RECORDS_BYTES_MAX", 3_000)
    for number in range(4):
        served.clicks.append({**CLICK, "page": "x" * 1_000, "ms": number, "at": "2200-01-01T00:00:00Z"})
    found = served.get("/api/dead-letters")
    assert found["count"] == 4 and [letter["value"]["ms"] for letter in found["dead_letters"]] == [3, 2]
    served.clicks.append({**CLICK, "page": "x" * 5_000, "ms": 4, "at": "2200-01-01T00:00:00Z"})
    assert [letter["value"]["ms"] for letter in served.get("/api/dead-letters")["dead_letters"]] == [4]


def test_views(shared: Served) -> None:
    (view,) = shared.get("/api/views")
    assert view == shared.get(f"/api/views/{VIEW}")
    assert (view["rows"], view["commits"], view["groups"], view["running"]) == (3, 1, ["page"], True)
    assert view["frontier"] == "2026-01-01T09:01:00Z"
    assert shared.get("/api/views/clicks_per_pag", 404)["error"]["facts"]["known"] == [VIEW]


def rows_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def test_rows_in_pages(served: Served) -> None:
    pages = [None, "", "/", "/a", "é", "'\"<img onerror>"]
    served.committing.commit([(minute, page, 1) for minute in range(4) for page in pages], closed=2)
    for limit in (1, 5, 24, 100):
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            more = {} if after is None else {"after": after}
            answer = served.get(f"/api/views/{VIEW}/rows", params={"limit": limit, **more})
            found += rows_of(answer)
            after = answer["after"]
            if after is None:
                break
        places = [(row["window_start"], row["page"]) for row in found]
        assert len(set(places)) == len(places) == 24, limit
        assert [start for start, _ in places] == sorted((start for start, _ in places), reverse=True)
    served.get(f"/api/views/{VIEW}/rows", 400, params={"after": "bm9uc2Vuc2U"})


def test_all_who_look_at_a_view_get_its_rows(shared: Served) -> None:
    """Each commit makes all of them ask at the same time."""
    paths = [f"/api/views/{VIEW}/rows", f"/api/views/{VIEW}/ledger"] * 20
    with ThreadPoolExecutor(len(paths)) as viewers:
        assert {answer.status_code for answer in viewers.map(shared.client.get, paths)} == {200}


def test_rows_of_a_group_and_a_time(shared: Served) -> None:
    path = f"/api/views/{VIEW}/rows"
    assert [row["ms"] for row in rows_of(shared.get(path, params={"page": "/"}))] == [5.0]
    late = shared.get(path, params={"from": "2026-01-01T09:01:00Z"})
    assert [row["page"] for row in rows_of(late)] == ["/b"]
    early = shared.get(path, params={"to": "2026-01-01T09:01:00Z"})
    assert {row["page"] for row in rows_of(early)} == {"/", None}
    assert "grouped by" in shared.get(path, 400, params={"pge": "/"})["error"]["message"]
    shared.get(path, 400, params={"from": "yesterday"})
    shared.get(path, 422, params={"limit": "many"})


def test_the_ledger(served: Served) -> None:
    minute = int(START.timestamp() * 1e6)
    served.committing.commit(
        [(0, "/", 1)],
        ledger=[LedgerRow(minute, minute + 60_000_000, on_time=3, dropped=1), LedgerRow(None, None, untimed=2)],
    )
    answer = served.get(f"/api/views/{VIEW}/ledger")
    assert answer["totals"] == {"rows_in": 6, "on_time": 3, "corrected": 0, "dropped": 1, "untimed": 2}
    assert [(row["window_start"], row["untimed"]) for row in rows_of(answer)] == [
        ("2026-01-01T09:00:00Z", 0),
        (None, 2),
    ]


def test_a_query(shared: Served) -> None:
    found = shared.query(f"select page, sum(clicks) n from {VIEW} where page is ? group by page", params=["/"])
    assert found == {
        "columns": [{"name": "page", "type": "string"}, {"name": "n", "type": "bigint"}],
        "rows": [["/", 1]],
        "truncated": False,
    }
    assert shared.query("select :n + 0 as n", params={"n": 4})["rows"] == [[4]]
    assert shared.query("select 9007199254740993 as n")["rows"] == [["9007199254740993"]]
    assert shared.query(f"select window_start from {VIEW} limit 1")["columns"][0]["type"] == "timestamp"
    many = "with recursive n(i) as (select 1 union all select i + 1 from n limit 20000) select i from n"
    cut = shared.query(many)
    assert (len(cut["rows"]), cut["truncated"]) == (10_000, True)
    assert shared.query("select nothing from nowhere", 400)["error"]["type"] == "InvalidQuery"
    assert shared.query("select ?", 400, params=[[1]])["error"]["type"] == "InvalidQuery"


def test_requests_that_are_none(shared: Served) -> None:
    said = shared.get("/api/topics/clicks/records", 400, params={"limt": 3})["error"]["message"]
    assert "limt='3': there is no such parameter. Did you mean 'limit'? There are: start, " in said
    assert "There are: none" in shared.get("/api/topics", 400, params={"limit": 3})["error"]["message"]
    said = shared.post("/api/query", 400, content=b'{"sql":', headers={"Content-Type": "application/json"})
    assert said["error"]["message"] == "body: is not JSON at character 7: Expecting value"
    assert shared.post("/api/query", 422)["error"]["message"] == "body: Field required"
    assert "there is no /api/topic: /api/openapi.json" in shared.get("/api/topic", 404)["error"]["message"]
    assert "/api/query takes no GET" in shared.get("/api/query", 405)["error"]["message"]


def test_lists_are_lists(served: Served) -> None:
    with SqliteViews(served.home) as store:
        spec = all_rules("listed", "string")
        state = store.begin(spec)
        store.commit(state, commit(state, partial_rows(spec, [[("g", "a", 0, 0, 0), ("g", "a", 1, 0, 1)]])))
    (row,) = rows_of(served.get("/api/views/listed/rows"))
    assert (row["top"], row["some"]) == ([{"value": "a", "count": 2}], ["a", "a"])
    found = served.query("select top, e.value as one from listed, json_each(some) e limit 1")
    assert found["rows"] == [[[{"value": "a", "count": 2}], "a"]]
    assert found["columns"][0]["type"] == "array<struct<value: string, count: bigint>>"


def test_large_numbers_in_lists_are_texts_too(served: Served) -> None:
    slots = (SlotColumn("most", "array<bigint>", "greatest"),)
    view = ViewSpec("lists", (Column("page", "string"),), slots, (Result("most", "array<bigint>", ("most",)),), None)
    with Committing(served.home, FlowSpec("lists", "shop", ("clicks",), view)):
        found = served.query("select most from lists union all select '[1, 9007199254740993]'")
    assert found["rows"] == [[[1, "9007199254740993"]]]


def test_a_query_reads_what_was_written(served: Served) -> None:
    """The position of a produce is waited for; the app, here, is this test."""
    done = served.post("/api/topics/clicks/records", json=CLICK)
    ask = {"sql": f"select sum(clicks) from {VIEW}", "wait_for": done["position"], "timeout": "100 milliseconds"}
    late = served.post("/api/query", 504, json=ask)
    assert late["error"]["type"] == "WaitTimeout"
    ((number, given),) = done["ranges"].items()
    places = {"clicks": {int(number): Place(given[1], None)}}
    threading.Timer(0.2, lambda: served.committing.commit([(0, "/", 5)], places=places)).start()
    assert served.post("/api/query", json={**ask, "timeout": "10 seconds"})["rows"] == [[1]]
    header = {"Headrace-Position": done["position"]}
    assert len(served.get(f"/api/views/{VIEW}/rows", headers=header)["rows"]) == 1
    served.post("/api/query", 400, json={**ask, "wait_for": "not a position"})
    before = replace(SPEC, name="behind.dedup", view=None, target="__records.behind.dedup", parent="behind")
    with SqliteViews(served.home) as store:
        store.begin(before)  # a flow that has read nothing, and a view behind it
        assert SPEC.view is not None
        view = replace(SPEC.view, name="behind")
        store.begin(replace(SPEC, name="behind", sources=(str(before.target),), view=view))
    assert served.post("/api/query", 504, json=ask)["error"]["type"] == "WaitTimeout"
    assert served.get("/api/views/behind")["lag_records"] == 1
    assert {flow["name"]: flow["lag"] for flow in served.get("/api/overview")["flows"]} == {
        VIEW: 0,
        "behind": 1,
        "behind.dedup": 1,
    }


# -- everything ----------------------------------------------------------------------------------------


def test_the_overview(served: Served) -> None:
    served.committing.commit([(0, "/", 5), (1, "/", 5)], closed=1, ledger=[LedgerRow(None, None, untimed=2)])
    first = served.get("/api/overview")
    (flow,) = first["flows"]
    assert (flow["state"], flow["commits"], flow["ledger"]["untimed"]) == ("running", 1, 2)
    assert flow["closes_at"] == "2026-01-01T09:02:10Z"  # the minute that is open ends at 09:02, and 10 s of grace
    assert first["views"][0]["rows"] == 2
    assert (first["topics"][0]["rate"], first["problems"]) == (None, [])
    served.clicks.append([CLICK] * 10)
    time.sleep(1.1)  # gathered once a second
    second = served.get("/api/overview")
    assert 2 < second["topics"][0]["rate"] < 10
    assert second["runner"]["app"] == "shop"


def test_a_window_at_the_end_of_time(served: Served) -> None:
    view = SPEC.view
    assert view is not None
    last = int((datetime(9999, 12, 31, 23, 58, tzinfo=UTC) - START).total_seconds()) // 60
    with Committing(served.home, replace(SPEC, name="far", view=replace(view, name="far"), grace_us=10**12)) as far:
        far.commit([(last, "/", 5)])
    (flow,) = [flow for flow in served.get("/api/overview")["flows"] if flow["name"] == "far"]
    assert flow["closes_at"] is None and served.get("/api/views/far/rows")["rows"]


def test_the_overview_of_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Server(tmp_path_factory.mktemp("empty") / "home", port=0) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers) as client:
            overview = client.get("/api/overview").json()
            assert (overview["topics"], overview["views"], overview["runner"]["state"]) == ([], [], "stopped")
            assert client.get("/api/topics").json() == client.get("/api/views").json() == []
            assert client.get("/api/topics/clicks").json()["error"]["type"] == "LogMissing"
            assert client.get("/api/views/v/changes").json()["error"]["type"] == "UnknownView"
            assert client.post("/api/query", json={"sql": "select 1"}).status_code == 404


def test_metrics(served: Served) -> None:
    served.clicks.append([CLICK] * 3)
    served.committing.commit([(0, "/", 5)], closed=1)
    lines = served.client.get("/metrics").text.splitlines()
    assert 'headrace_topic_appended_total{name="clicks"} 3' in lines
    assert f'headrace_view_rows{{name="{VIEW}"}} 1' in lines
    assert f'headrace_view_frontier_seconds{{name="{VIEW}"}} 1767258060' in lines
    assert "headrace_dead_letters 0" in lines
    assert all(line.startswith(("#", "headrace_")) for line in lines)
