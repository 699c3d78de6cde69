"""Captures and full-text indexes over HTTP, in the overview and in the metrics."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

from headrace.sink import Sink
from headrace.views.owner import is_held
from tests.serve.beside import WHY, make_capture, make_index
from tests.serve.conftest import Served

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def found(served: Served) -> Served:
    people = served.log.create_topic(
        "people_rows", "_op string, id bigint, name string, about string, n bigint", key="id"
    )
    rows: list[dict[str, Any]] = [
        {"_op": "upsert", "id": 1, "name": "Zoë", "about": f"sells heat {NASTY}", "n": 2**60},
        {"_op": "upsert", "id": 2, "name": "Bob", "about": "oil", "n": None},
    ]
    people.append(rows)
    make_index(served.log, served.home, "people_rows", "name", "about")
    make_capture(served.log)
    return served


def search(found: Served, q: str, **more: Any) -> Any:
    return found.get("/api/indexes/people/search", params={"q": q, **more})


def test_a_search(found: Served) -> None:
    answer = search(found, "zoe heat")
    assert (answer["count"], answer["more"], answer["why"]) == (1, False, None)
    (hit,) = answer["hits"]
    assert hit["key"] == [1] and hit["row"] == {"id": 1, "n": 2**60}
    pieces = [
        {"text": "sells ", "marked": False},
        {"text": "heat", "marked": True},
        {"text": f" {NASTY}", "marked": False},
    ]
    assert hit["marks"]["about"] == pieces
    assert search(found, "")["why"] == "type a word"
    assert search(found, "-oil")["why"].startswith("every word has a '-'")
    assert len(search(found, "zoe OR bob", limit=1)["hits"]) == 1


@pytest.mark.parametrize(
    "q", ['"', "(", "a AND (b", "c0:x", "NEAR(a b)", "*", "\x00", "^a + b", "ÿ" * 400, "'; DROP TABLE"]
)
def test_no_text_is_an_error(found: Served, q: str) -> None:
    assert search(found, q)["hits"] == []


def test_what_is_too_much_or_not_there(found: Served) -> None:
    for q, status in (("x" * 501, 400), ("a " * 40, 400), ("x" * 10_001, 422)):
        assert found.get("/api/indexes/people/search", status, params={"q": q})["error"]["type"] == "InvalidArgument"
    for index in ("peple", "shop"):
        answer = found.get(f"/api/indexes/{index}/search", 404, params={"q": "a"})
        assert answer["error"]["type"] == "UnknownSink"
    assert found.anonymous.get("/api/indexes/people/search", params={"q": "a"}).status_code == 401
    (found.home / "indexes" / "people.db").write_bytes(b"nothing of SQLite's" * 500)
    for name in ("people.db-wal", "people.db-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(found.home / "indexes" / name)
    assert found.get("/api/indexes/people/search", 503, params={"q": "a"})["error"]["type"] == "SearchIndexDamaged"
    (index,) = found.get("/api/indexes")
    assert (index["state"], index["rows"]) == ("waiting", 0) and "SQLite" in index["problem"]


def test_indexes_and_captures(found: Served) -> None:
    (index,) = found.get("/api/indexes")
    wanted = {"topic": "people_rows", "state": "serving", "runs": "stopped", "rows": 2, "lag_records": 0, "key": ["id"]}
    assert {name: index[name] for name in wanted} == wanted
    with Sink.locked(found.home, "people"):
        (index,) = found.get("/api/indexes")
        assert index["runs"] == "running"
    (capture,) = found.get("/api/captures")
    assert (capture["state"], capture["lag_bytes"], capture["time_to_loss_seconds"]) == ("stopped", 4_000, 7_200)
    assert capture["lag_ms"] > 0
    stopped = {"why": WHY, "command": "headrace capture snapshot shop billing.invoices", "state": "stopped"}
    assert {name: capture["tables"][1][name] for name in stopped} == stopped
    assert capture["tables"][0]["command"] is None


def test_what_needs_attention(found: Served) -> None:
    facts = found.get("/api/overview")
    assert f"Table billing.invoices of capture shop is stopped: {WHY}." in str(facts["problems"])
    assert "Capture shop loses its slot in 2.0 hours if nothing is read." in facts["problems"]
    assert [each["name"] for each in facts["captures"]] == ["shop"]
    assert [each["name"] for each in facts["indexes"]] == ["people"]


def test_metrics(found: Served) -> None:
    lines = found.client.get("/metrics").text.splitlines()
    for line in (
        'headrace_capture_up{name="shop"} 0',
        'headrace_capture_lag_bytes{name="shop"} 4000',
        'headrace_capture_slot_bytes{name="shop"} 9000',
        'headrace_capture_time_to_loss_seconds{name="shop"} 7200',
        'headrace_capture_tables_stopped{name="shop"} 1',
        'headrace_index_rows{name="people"} 2',
        'headrace_index_lag_records{name="people"} 0',
    ):
        assert line in lines


def test_who_holds_a_lock_is_seen_without_taking_it(found: Served) -> None:
    name = Sink.lock_name("nobody")
    assert is_held(found.home, name) is False
    with Sink.locked(found.home, "nobody"):
        assert is_held(found.home, name) is True
    assert is_held(found.home, name) is False


def test_the_process_that_runs_them_says_how_they_do(found: Served) -> None:
    found.stop()
    beside = {"capture/shop": ("reconnecting", "the server is down"), "sink/people": ("failed", "no room")}
    from headrace.serve.server import Server

    found.server = Server(found.home, port=0, beside=lambda: beside)
    found.server.start()
    found._clients()
    (capture,), (index,) = found.get("/api/captures"), found.get("/api/indexes")
    assert (capture["state"], capture["error"]) == ("reconnecting", "the server is down")
    assert (index["runs"], index["problem"]) == ("failed", "no room")
    assert "Capture shop is reconnecting: the server is down" in found.get("/api/overview")["problems"]
