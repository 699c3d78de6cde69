"""The HTTP API over views in Postgres answers as it does over those in the home. No Spark (`tests.serve.joined`)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace.serve.server import Server
from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import commit, counted, counting
from headrace.views.contract import LedgerRow
from headrace.views.open import open_store
from headrace.why import why
from tests.databases import PostgresServer
from tests.serve.joined import Joined, shop
from tests.serve.matched import make_alerts, make_frauds

pytest.importorskip("psycopg")

ASKED = (
    "/api/views",
    "/api/views/paid",
    "/api/views/taxed/why?key=sales/0/0000000000000000",
    "/api/views/paid/why?key=sales/0/0000000000000000|payments/1/0000000000000000",
    '/api/views/priced/why?key=["ch"]|[8]',
    '/api/views/priced/why?key=["de"]|',
    "/api/views/priced/rows",
    "/api/views/seen/ledger",
    "/api/views/seen/rows?limit=1",
    "/api/views/seen/rows?page=b",
    "/api/views/nope/rows",
    "/api/tables",
    "/api/tables/prices/rows",
    "/api/tables/prices/rows?as_of=2026-02-15T00:00:00Z",
    "/api/tables/prices/history?key=7",
    "/api/tables/rates/history?key=ch",
    "/api/overview",
)
MATCHED = (
    "/api/views/frauds/partials",
    "/api/views/frauds/partials?card=0815",
    "/api/views/frauds/matches?from=2026-01-01T09:03:01Z",
    "/api/views/frauds/matches?to=2026-01-01T09:20:00Z",
    "/api/queries",
    "/api/queries/alerts?contains=HEAT%20pump",
    "/api/queries/alerts?contains=%25",
    "/api/queries/alerts?contains=%5C",
    "/api/queries/routes?contains=acme",
    "/api/queries/alerts/explain?query=heating",
    "/api/queries/routes/explain?query=urgent&tenant=acme",
)
OF_A_RUN = {"_updated_at", "at", "committed_at", "started_at", "arrived_at", "home", "bytes", "topic_id", "position"}
OF_A_RUN |= {"effective", "after", "known_from", "known_to"}


def plain(answer: Any) -> Any:
    """Without what every run has of its own."""
    if isinstance(answer, dict):
        if {"columns", "rows"} <= answer.keys() and isinstance(answer["rows"], list):
            names = [column["name"] for column in answer["columns"]]
            answer = {**answer, "rows": [dict(zip(names, row, strict=True)) for row in answer["rows"]]}
        return {name: plain(value) for name, value in answer.items() if name not in OF_A_RUN}
    return [plain(each) for each in answer] if isinstance(answer, list) else answer


def answers(home: Path, views: str | None) -> dict[str, Any]:
    seen = counting("seen")
    with closing(shop(home, views=views)), FoldingStore(open_store(views or home)) as store:
        state = store.begin(seen)
        rows = counted(seen, [(0, "/", 1), (1, "b", 2)])
        store.commit(state, commit(state, rows, ledger=[LedgerRow(None, None, 0, 0, 1, 1)]))
        with Server(home, port=0, views=views) as server:
            token = {"Authorization": f"Bearer {server.token}"}
            with httpx.Client(base_url=server.url, headers=token, timeout=30) as client:
                got = {path: client.get(path) for path in ASKED}
                metrics = client.get("/metrics")
                got["query"] = client.post(
                    "/api/query", json={"sql": "SELECT n FROM seen WHERE page = ?", "params": ["b"]}
                )
    out = {path: (answer.status_code, plain(answer.json())) for path, answer in got.items()}
    return {**out, "/metrics": (metrics.status_code, sorted(line.split(" ")[0] for line in metrics.text.splitlines()))}


def test_the_same_answers(postgres: PostgresServer, tmp_path: Path) -> None:
    one, other = answers(tmp_path / "one", None), answers(tmp_path / "other", postgres.schema(tmp_path))
    for path in one:
        assert one[path] == other[path], path
    assert {status for status, _ in one.values()} == {200, 404}


def test_the_same_of_patterns_and_stored_queries(postgres: PostgresServer, tmp_path: Path) -> None:
    found = []
    for home, views in (tmp_path / "one", None), (tmp_path / "other", postgres.schema(tmp_path)):
        make_frauds(home, views)
        make_alerts(home, views)
        with Server(home, port=0, views=views) as server:
            token = {"Authorization": f"Bearer {server.token}"}
            with httpx.Client(base_url=server.url, headers=token, timeout=30) as client:
                got = {path: client.get(path) for path in MATCHED}
        found.append({path: (answer.status_code, plain(answer.json())) for path, answer in got.items()})
    for path, answer in found[0].items():
        assert answer == found[1][path] and answer[0] == 200, path


@pytest.fixture(params=["sqlite", "postgres"])
def views(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "sqlite" else request.getfixturevalue("postgres").schema(tmp_path)


def test_why_finds_rows_by_keys_of_any_type(views: str | None, tmp_path: Path) -> None:
    app = hr.App("shop", home=tmp_path, views=views)
    hours = app.table("hours", "day date, open boolean, name string, n int", key=["day", "open", "name"])
    prices = app.table("prices", "n int, euros int", key="n")
    hours.join(prices, on="n", how="left").to_view("priced")
    with closing(Joined(app)) as joined:
        hours.upsert([{"day": f"2026-01-0{n + 1}", "open": n > 1, "name": "a?'\\", "n": n} for n in range(3)])
        prices.upsert({"n": 2, "euros": 5})
        joined.run()
        for row in joined.app.views.query("SELECT _id, n FROM priced").to_pylist():
            places = [(each.topic, each.offset) for each in why(app.views, app.log, "priced", row["_id"]).origins]
            assert places == [("hours", row["n"])] + [("prices", 0)] * (row["n"] == 2)
