"""Rules: the contract, what single steps keep and forget, and what they take back."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidArgument, UnknownColumn
from headrace.operators.contract import InputTimes, Operator
from headrace.operators.joins.rows import ID
from headrace.operators.patterns.match import EVENTS
from headrace.operators.stored.rules import FACTS, RULES, MatchRules
from headrace.operators.stored.version_rows import EVERY, VERSIONS
from headrace.schema import parse_ddl
from headrace.testing import MemoryTables, OperatorContract
from headrace.testing.view_contract import INSTANT, SECOND, T0
from headrace.views.contract import PARTIALS

PAYMENTS = parse_ddl("card string, amount bigint, at timestamp")
STORED = parse_ddl("rule string, text string")
TEXTS = [
    "amount > 5",
    "MEASURES sum(a.amount) AS total PATTERN (a+ b) WITHIN '9 seconds' DEFINE a AS amount < 5, b AS amount >= 5",
    "PATTERN (a !b) WITHIN '5 seconds' DEFINE a AS amount = 1, b AS amount = 2",
    "PATTERN (a b+) WITHIN '9 seconds' DEFINE b AS amount > prev(amount)",
    "nowhere > 1",
]


def operator(**settings: Any) -> MatchRules:
    given = {"by": ("card",), "time": "at", "called": "rules", "longest_us": 60_000_000, "most": 4}
    given |= {"grace_us": 2_000_000, "late_us": 5_000_000}
    return MatchRules(PAYMENTS, STORED, parse_ddl("amount bigint"), **{**given, **settings})


def payment(offset: int, arrived: int, amount: int, card: str = "x", **more: Any) -> dict[str, Any]:
    cells = {"card": card, "amount": amount, "at": T0 + arrived * SECOND}
    return {**cells, **place(offset, arrived, "payments"), **more}


def change(rule: str, text: str | None, offset: int, arrived: int) -> dict[str, Any]:
    op = "delete" if text is None else "upsert"
    return {"rule": rule, "text": text, "_op": op, **place(offset, arrived, "rules")}


def place(offset: int, arrived: int, topic: str) -> dict[str, Any]:
    at = T0 + arrived * SECOND
    return {"_partition": 0, "_offset": offset, "_arrived_at": at, "_progress": at, ID: f"{topic}/0/{offset:016}"}


def batch(payments: list[dict[str, Any]], changes: list[dict[str, Any]]) -> Mapping[str, pa.Table]:
    own = [("_partition", pa.int32()), ("_offset", pa.int64()), ("_arrived_at", INSTANT), ("_progress", INSTANT)]
    own.append((ID, pa.string()))
    op = [("op", pa.string())] if any("op" in each for each in payments) else []
    facts = pa.Table.from_pylist(payments, pa.schema([*op, *PAYMENTS, *own]))
    rules = pa.Table.from_pylist(changes, pa.schema([*STORED, ("_op", pa.string()), *own]))
    return {name: rows for name, rows in ((FACTS, facts), (RULES, rules)) if rows.num_rows}


class TestRules(OperatorContract):
    """The rules of a batch have arrived with its records, or before."""

    def operator(self) -> Operator:
        return operator(most=2)

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        if number % 2 == 0:
            texts = [dice.choice([*TEXTS, None]) for _ in range(6)]
            return batch(
                [], [change(dice.choice("abc"), text, 100 * number + at, 10 * number) for at, text in enumerate(texts)]
            )
        some = [payment(100 * number + at, 10 * number + at, dice.randint(0, 9), dice.choice("xy")) for at in range(9)]
        return batch(some, [])

    def test_only_reach_lets_state_go(self, batches: list[Any]) -> None:
        """A frontier publishes: who waited waits no more. No event goes, and no version."""
        tables = self._run(batches)
        before = [tables.state().scan(table, EVERY).num_rows for table in (EVENTS, VERSIONS)]
        late = {FACTS: InputTimes(2**62, None), RULES: InputTimes(2**62, None)}
        tables.apply(self.operator().step({}, tables.state(), late, changes=True).writes)
        after = [tables.state().scan(table, EVERY).num_rows for table in (EVENTS, VERSIONS)]
        assert after == before
        assert not tables.state().scan(PARTIALS, EVERY).num_rows


def times(seconds: int | None, arrives: int | None = None) -> dict[str, InputTimes]:
    us, come = (None if at is None else T0 + at * SECOND for at in (seconds, arrives))
    return {FACTS: InputTimes(us, us, arrived_us=come), RULES: InputTimes(us, 10**18)}


class Run:
    def __init__(self, **settings: Any) -> None:
        self.operator = operator(**settings)
        self.tables = MemoryTables(*self.operator.tables)

    def step(
        self, payments: list[Any], changes: list[Any], now: Mapping[str, InputTimes]
    ) -> list[tuple[str, str, str]]:
        """What went and came: op, rule and measures."""
        made = self.operator.step(batch(payments, changes), self.tables.state(), now, changes=True)
        self.tables.apply(made.writes)
        rows = [] if made.changes is None else made.changes.to_pylist()
        return [(row["op"], row["rule"], row["measures"]) for row in rows]

    def kept(self, table: str) -> int:
        return int(self.tables.state().scan(table, EVERY).num_rows)


def test_versions_that_nothing_needs_go() -> None:
    """An ended version stays while an event of it is kept, and a removal until what it ended has gone."""
    run = Run()
    run.step([], [change("r", TEXTS[1], 0, 0), change("one", TEXTS[0], 1, 0)], times(None))
    run.step([payment(0, 1, 1)], [], times(1, 2))
    assert (run.kept(VERSIONS), run.kept(EVENTS), run.kept(PARTIALS)) == (2, 1, 1)
    run.step([], [change("r", None, 2, 3), change("one", TEXTS[1], 3, 3)], times(1, 2))
    assert (run.kept(VERSIONS), run.kept(EVENTS), run.kept(PARTIALS)) == (4, 1, 0)  # a record may come that one sees
    run.step([payment(1, 9, 7)], [], times(9, 10))
    assert (run.kept(VERSIONS), run.kept(EVENTS)) == (3, 2)  # the first of `one` needed no event
    run.step([payment(2, 60, 7)], [], times(60, 61))
    run.step([], [], times(60, 61))
    assert (run.kept(VERSIONS), run.kept(EVENTS), run.kept(PARTIALS)) == (1, 1, 0)


def test_what_was_told_too_early_is_taken_back_when_the_version_ends_before() -> None:
    """The frontier was ahead of arrival, as where a program is drained with close=True."""
    run = Run()
    run.step([], [change("quiet", TEXTS[2], 0, 0)], times(None))
    assert run.step([payment(0, 1, 1)], [], {**times(1, 2), FACTS: InputTimes(10**18, None)}) == [("+", "quiet", "{}")]
    assert run.step([], [change("quiet", None, 1, 4)], times(1, 2)) == [("-", "quiet", "{}")]
    assert run.step([], [], times(50, 51)) == []


def test_what_a_version_waits_for_at_its_end_is_neither_told_nor_taken_back() -> None:
    """It ends at 4; the absence would be certain at 1 + 5 + 2. Records that it sees may still be read."""
    run = Run()
    run.step([], [change("quiet", TEXTS[2], 0, 0), change("quiet", None, 1, 4)], times(None))
    assert run.step([payment(0, 1, 1)], [], times(1, 2)) == []
    assert run.step([payment(1, 3, 9)], [], times(3, 4)) == []
    assert run.step([payment(2, 60, 9)], [], times(60, 61)) == []
    assert (run.kept(EVENTS), run.kept(PARTIALS)) == (0, 0)


def test_a_match_is_completed_by_what_the_version_sees_when_its_end_is_known() -> None:
    run = Run()
    run.step([], [change("pair", TEXTS[1], 0, 0), change("pair", None, 1, 4)], times(None))
    assert run.step([payment(0, 1, 3)], [], times(1, 2)) == []
    assert run.step([payment(1, 3, 9)], [], times(3, 4)) == [("+", "pair", '{"total":3}')]
    assert run.step([payment(2, 5, 9)], [], times(5, 6)) == []


def test_a_record_that_is_taken_back_takes_its_matches() -> None:
    run = Run(retracts=True)
    run.step([], [change("large", TEXTS[0], 0, 0), change("pair", TEXTS[1], 1, 0)], times(None))
    first, second = payment(0, 1, 3, op="+"), payment(1, 2, 8, op="+")
    came = run.step([first, second], [], times(None))
    assert came == [("+", "large", '{"amount":8}'), ("+", "pair", '{"total":3}')]
    went = run.step([{**second, "op": "-"}], [], times(None))
    assert went == [("-", "large", '{"amount":8}'), ("-", "pair", '{"total":3}')]


def test_literals_that_stand_alone_and_columns_with_parts() -> None:
    """What a topic says must not end a flow: 0.5 is no double by itself, and Arrow compares no parts."""
    texts = {
        "literals": "MEASURES 0.5 AS half, 9223372036854775808 AS big, -0.5 AS less PATTERN (a)",
        "same": "tags = tags AND NOT tags <> tags",
        "several": "MEASURES last(a.tags) AS t PATTERN (a) DEFINE a AS tags = last(tags)",
    }
    facts = pa.schema([*PAYMENTS, ("tags", pa.list_(pa.string()))])
    rules = MatchRules(facts, STORED, facts, ("card",), "at", "rules", 60_000_000, 9, 0, 0)
    changes = [change(name, text, at, 0) for at, (name, text) in enumerate(texts.items())]
    records = batch([payment(0, 1, 3)], changes)
    tagged = records[FACTS].append_column("tags", pa.array([["a", None]], pa.list_(pa.string())))
    made = rules.step({**records, FACTS: tagged}, MemoryTables(*rules.tables).state(), times(1), changes=True)
    assert made.changes is not None and made.refused is None
    found = {row["rule"]: json.loads(row["measures"]) for row in made.changes.to_pylist()}
    assert found == {
        "literals": {"half": 0.5, "big": 9223372036854775808.0, "less": -0.5},
        "same": {"tags": ["a", None]},
        "several": {"t": ["a", None]},
    }


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnknownColumn, match="'user'"):
        operator(by=("user",))
    with pytest.raises(InvalidArgument, match="is int64 in the records, and double in the rules' schema"):
        MatchRules(PAYMENTS, STORED, parse_ddl("amount double"), ("card",), "at", "rules", 1, 1, 0, 0)
    with pytest.raises(InvalidArgument, match="also a column of matches"):
        facts = parse_ddl("rule string, at timestamp")
        MatchRules(facts, STORED, parse_ddl("at timestamp"), ("rule",), "at", "rules", 1, 1, 0, 0)
