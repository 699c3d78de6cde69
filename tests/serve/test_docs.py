"""docs/http.md is complete: every route, and every metric but those of flows, which are in docs/operations.md. Its
examples are run by tests/docs."""

from __future__ import annotations

from pathlib import Path

from headrace.serve.exposition import METRICS
from tests.serve.conftest import Served

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")


def test_every_route(shared: Served) -> None:
    paths = [*shared.get("/api/openapi.json")["paths"], "/api/openapi.json"]
    assert [path for path in paths if path not in PAGE] == []


def test_every_metric(shared: Served) -> None:
    assert [name for name in METRICS if f"`{name}`" not in PAGE] == []
    said = {line.split()[2] for line in shared.client.get("/metrics").text.splitlines() if line.startswith("# TYPE")}
    assert said == METRICS.keys()
