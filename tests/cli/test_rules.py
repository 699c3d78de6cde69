"""`headrace rules`: other processes put, remove, list and explain what a program's flows match with."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from tests.cli.conftest import Shell
from tests.operators.sparkless_joins import without_spark


def bank(home: Path) -> hr.App:
    app = hr.App("bank", home=home)
    payments = app.topic("payments", "card string, amount double, at timestamp", event_time="at")
    rules = app.rules("limits", "amount double", within="10 minutes", most=2)
    app.stream(payments).match(rules, by="card").to_view("alarms")
    return app


def test_rules_are_put_listed_explained_and_removed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)
    with bank(shell.home) as app:
        app.drain()
        assert "No rules in limits yet" in shell.ok("rules", "list", "limits").err
        assert "version 0:0" in shell.ok("rules", "put", "limits", "large", "amount > 500").err
        twice = "MEASURES sum(amount) AS total PATTERN (a{2}) WITHIN '5 minutes' DEFINE a AS amount > 100"
        shell.ok("rules", "put", "limits", "twice", twice)
        pay = [{"card": "4711", "amount": 300.0 * n, "at": f"2026-01-01T09:0{n}:00Z"} for n in (1, 2)]
        app.log.topic("payments").append(pay)
        app.drain()
        found = app.query("SELECT rule, version, measures FROM alarms ORDER BY rule").to_pylist()
        assert [tuple(row.values()) for row in found] == [
            ("large", "0:0", '{"amount":600.0}'),
            ("twice", "0:1", '{"total":900.0}'),
        ]
        listed = shell.ok("rules", "list", "limits", "--format", "json").rows
        assert [(row["rule"], row["version"], row["text"]) for row in listed] == [
            ("large", "0:0", "amount > 500"),
            ("twice", "0:1", twice),
        ]
        (told,) = shell.ok("rules", "explain", "limits", "twice", "--format", "json").rows
        assert (told["pattern"], told["within"], told["measures"]) == ("a{2}", "5 minutes", {"total": "sum(amount)"})
        shell.ok("rules", "remove", "limits", "large", "--yes")
        assert "no rule 'large'" in shell.refused("rules", "remove", "limits", "large", "--yes")
        assert [row["rule"] for row in shell.ok("rules", "list", "limits", "--format", "json").rows] == ["twice"]


def test_what_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)
    with bank(shell.home) as app:
        app.rules("others", "amount double").table.topic.offsets()  # nobody matches with these
        app.drain()
    assert "rule 'r', 'cost > 5': there is no column 'cost'" in shell.refused("rules", "put", "limits", "r", "cost > 5")
    longest = "PATTERN (a b) WITHIN '1 hour' DEFINE a AS amount > 5"
    assert "at most '10 minutes'" in shell.refused("rules", "put", "limits", "r", longest)
    assert "needs Spark" in shell.refused("rules", "put", "others", "r", "reflect('java.lang.Runtime', 'exit') = 1")
    shell.ok("rules", "put", "others", "r", "cost > 5")
    assert "has no rules" in shell.refused("rules", "list", "payments")
    for name in "ab":
        shell.ok("rules", "put", "limits", name, "amount > 5")
    assert "there are 2 rules" in shell.refused("rules", "put", "limits", "c", "amount > 5")
    shell.ok("rules", "put", "limits", "b", "amount > 6")
