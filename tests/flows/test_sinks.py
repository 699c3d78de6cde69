"""Sinks behind flows: what comes out of a window, a view, a join or a transform, in an index and in a function."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connect.reading import Rows

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path, headrace_spark: Any) -> Any:
    with hr.App("site", home=tmp_path / "home", spark=headrace_spark) as app:
        yield app


def keys(sink: hr.Sink, query: str) -> list[Any]:
    return sorted(hit.key for hit in sink.search(query).hits)


def test_flows_into_sinks(app: Any) -> None:
    """A straggler corrects a window: its row in the index is another, and there is still one of each key."""
    clicks = app.topic("clicks", "page string, user string, at timestamp", event_time="at")
    users = app.table("users", "id string, name string", key="id")
    batches: list[tuple[str, list[dict[str, Any]]]] = []

    def deliver(rows: pa.Table, key: str) -> None:
        batches.append((key, rows.to_pylist()))

    stream = app.stream(clicks)
    counted = stream.window(hr.tumbling("1 minute"), late=hr.correct("1 hour")).group_by("page")
    minutes = counted.agg(n=hr.count(), who=hr.last("user"))
    view = minutes.to_view("minutes")
    index = hr.search_index("pages.db", text=["page", "who"])
    pages = minutes.to_sink("pages", index)
    of_view = app.stream(view).to_sink("of_view", hr.search_index("of_view.db", text="who"))
    loud = stream.transform(lambda df: df.selectExpr("upper(page) as page", "at", *hr.META)).to_sink("loud", deliver)
    joined = stream.enrich(users, on={"user": "id"})
    named = joined.to_sink("named", hr.search_index("named.db", text=["page", "name"], key=["page", "user", "at"]))
    of_table = app.stream(users).to_sink("people", hr.search_index("people.db", text="name"))

    users.upsert([{"id": "u1", "name": "Ann"}, {"id": "u2", "name": "Bob"}])
    clicks.append([{"page": "/heat", "user": "u1", "at": START}, {"page": "/oil", "user": "u2", "at": START}])
    app.drain()
    window = ["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"]
    assert keys(pages, "heat") == [[*window, "/heat"]]
    assert keys(of_view, "u1") == [[*window, "/heat"]]
    assert len(keys(named, "ann heat")) == 1
    assert keys(of_table, "ann") == [["u1"]]
    assert [[row["page"] for row in rows] for _, rows in batches] == [["/HEAT", "/OIL"]]

    clicks.append({"page": "/heat", "user": "u2", "at": START + timedelta(seconds=50)})
    clicks.append({"page": "/heat", "user": "u2", "at": START + timedelta(minutes=5)})
    clicks.append({"page": "/heat", "user": "u1", "at": START + timedelta(seconds=55)})  # late, and corrected
    app.drain()
    assert [hit.row["n"] for hit in pages.search("heat").hits if hit.key[0] == window[0]] == [3]
    assert len(keys(of_view, "u1")) == 1 and len(keys(named, "ann")) == 2
    for sink in (pages, of_view, named, of_table):
        assert sink.audit().ok, sink
        rows = sink.status().rows
        assert sink.rebuild() == rows and sink.audit().ok
    assert pages.status().rows == app.query("select count(*) as n from minutes").to_pylist()[0]["n"]
    assert Rows(loud.topic, None).key == ()
