"""`headrace queries`: other processes put, remove, list and explain what a program's flows search with."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from tests.cli.conftest import Shell
from tests.operators.sparkless_joins import without_spark


def media(home: Path) -> hr.App:
    app = hr.App("media", home=home)
    articles = app.topic("articles", "customer string, title string")
    app.stream(articles).search(app.queries("alerts"), text=["title"]).to_topic("hits")
    app.stream(articles).search(app.queries("routes", tenant="customer"), text=["title"]).to_topic("routed")
    return app


def test_queries_are_put_listed_explained_and_removed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)
    with media(shell.home) as app:
        app.drain()
        assert "No queries in alerts yet" in shell.ok("queries", "list", "alerts").err
        assert "version 0:0" in shell.ok("queries", "put", "alerts", "heating", '"heat pump" OR boiler').err
        shell.ok("queries", "put", "alerts", "odd", "nowhere:1")
        shell.ok("queries", "put", "routes", "heating", "pump", "--tenant", "acme")
        app.log.topic("articles").append([{"customer": name, "title": "heat pump"} for name in ("acme", "umbrella")])
        app.drain()
        assert [each.value["query"] for each in app.log.topic("hits").records()] == ["heating", "heating"]
        assert [each.value["customer"] for each in app.log.topic("routed").records()] == ["acme"]
        listed = shell.ok("queries", "list", "alerts", "--format", "json").rows
        assert [(row["query"], row["version"]) for row in listed] == [("heating", "0:0"), ("odd", "0:1")]
        (told,) = shell.ok("queries", "explain", "alerts", "heating", "--format", "json").rows
        assert (told["meaning"], told["records"], told["hits"]) == ('"heat pump" OR boiler', 2, 2)
        (told,) = shell.ok("queries", "explain", "routes", "heating", "--tenant", "acme", "--format", "json").rows
        assert (told["records"], told["hits"]) == (1, 1)
        (told,) = shell.ok("queries", "explain", "alerts", "odd", "--format", "json").rows
        assert "no column 'nowhere'" in told["error"]
        (row,) = shell.ok("dead", "list", "--format", "json").rows
        assert (row["reason"], row["topic"]) == ("invalid", "alerts")
        shell.ok("queries", "remove", "alerts", "heating", "--yes")
        assert "no query 'heating'" in shell.refused("queries", "remove", "alerts", "heating", "--yes")
        listed = shell.ok("queries", "list", "alerts", "--format", "json").rows
        assert [row["query"] for row in listed] == ["odd"]


def test_what_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)
    with media(shell.home) as app:
        app.drain()
    assert "query 'q', character 7" in shell.refused("queries", "put", "alerts", "q", "heat (")
    assert "has no stored queries" in shell.refused("queries", "list", "articles")
    assert "not stored by tenant" in shell("queries", "put", "alerts", "q", "heat", "--tenant", "acme").err
    assert "--tenant CUSTOMER" in shell("queries", "put", "routes", "q", "heat").err
