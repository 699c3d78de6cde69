"""Commands about tables and joins, without Spark: the flows' own steps make the commits (`tests.serve.joined`)."""

from __future__ import annotations

from contextlib import closing

import headrace as hr
from tests.cli.conftest import Shell
from tests.serve.joined import shop


def test_tables_joins_and_where_rows_come_from(shell: Shell) -> None:
    with closing(shop(shell.home)):
        pass
    listed = shell.ok("tables", "list", "--format", "json").rows
    assert [(row["table"], row["key"], row["history"], row["rows"], row["versions"]) for row in listed] == [
        ("countries", "code", "latest", 2, None),
        ("prices", "sku", "versions", 1, 4),
        ("rates", "country", "bitemporal", 1, 4),
    ]
    (row,) = shell.ok("tables", "as-of", "rates", "2026-04-01T00:00:00Z", "--format", "json").rows
    assert row["percent"] == 10
    with hr.open_log(shell.home) as log:
        known = next(iter(log.topic("rates").records())).arrived_at.isoformat()
    (row,) = shell.ok("tables", "as-of", "rates", "2026-04-01T00:00:00Z", "--known", known, "--format", "json").rows
    assert row["percent"] == 8
    assert len(shell.ok("query", "prices_history").rows) == 4  # by its name, as a view
    assert "there is no view 'countries_history'" in shell.refused("query", "countries_history")
    assert "keeps its latest rows only" in shell.refused("tables", "as-of", "countries", known)
    assert "history='bitemporal'" in shell.refused("tables", "as-of", "prices", known, "--known", known)
    refused = shell.refused("tables", "show", "taxed")
    assert "'taxed' is a view, not a table. Tables are: countries, prices, rates." in refused
    assert "has no such row: its rows are known by sku" in shell.refused("why", "prices", "9")
    (found,) = shell.ok("why", "prices", "8", "--format", "json").rows
    assert [(each["topic"], each["offset"]) for each in found["origins"]] == [("prices", 4)]
    (shown,) = shell.ok("views", "show", "paid", "--format", "json").rows
    assert [(each["side"], each["rows"], each["held_by"]) for each in shown["kept"]] == [
        ("left", 2, "payments/0"),
        ("right", 1, "sales/0"),
    ]
