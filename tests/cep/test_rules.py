"""Rules as texts: how they are read and written, and what is refused."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import pytest

import headrace as hr
from headrace.cep.definition import Pattern, parts_of, pattern
from headrace.cep.recognize import match_recognize
from headrace.cep.rules import check_rule, parse_rule, rule_text
from headrace.durations import duration_us
from headrace.errors import InvalidArgument, InvalidRule
from headrace.schema import parse_ddl
from tests.cep.brute_force import random_text

COLUMNS = parse_ddl(
    "card string, amount double, usual double, n bigint, at timestamp, ok boolean, `odd name` int, "
    "tags array<string>, parts struct<x:int>, local timestamp_ntz"
)
HOUR = duration_us("1 hour", argument="hour")


def check(text: Any) -> Pattern:
    return check_rule(text, COLUMNS, HOUR)


@pytest.mark.parametrize(
    ("text", "measures"),
    [
        ("amount > 500", {"amount": "`amount`"}),
        ("amount > 2 * usual AND (ok OR card IN ('a', 'b'))", dict.fromkeys(["amount", "usual", "ok", "card"])),
        ("`odd name` % 2 = 1", {"odd name": "`odd name`"}),
        ("at IS NOT NULL", {"at": "`at`"}),
        ("pattern_ = 1", None),
        ("measures > 3", None),
    ],
)
def test_a_condition_is_a_pattern_of_one_record_that_shows_what_it_names(
    text: str, measures: dict[str, str] | None
) -> None:
    found = parse_rule(text)
    assert (found.text, found.within_us, parts_of(found).is_one_row) == ("record", 0, True)
    if measures is not None:
        check(text)
        assert [*dict(found.measures)] == [*measures]


REFUSED = {
    "": "must be a condition",
    "  ": "must be a condition",
    "upper(card) = 'X'": "needs Spark",
    "reflect('java.lang.Runtime', 'exit') = 1": "no code of a rule runs",
    "(SELECT max(x) FROM t) > 1": "looks at several",
    "card LIKE 'a%'": "needs Spark",
    "amount": "must be a condition",
    "nowhere > 1": "no column 'nowhere'",
    "card > 1": "compares string with int64",
    "tags < tags": "has no order",
    "parts BETWEEN parts AND NULL": "has no order",
    "at > local": "compares timestamp[us, tz=UTC] with timestamp[us]",
    "PATTERN (a b) WITHIN '1 hour' DEFINE b AS local < last(a.at)": "compares timestamp",
    "MEASURES max(tags) AS t PATTERN (a b) WITHIN '1 hour'": "max() is of what has an order",
    "MEASURES 1 AS m, n AS M PATTERN (a)": "is there twice",
    "PATTERN (a b) WITHIN '1 hour' DEFINE a AS ok, A AS NOT ok": "is there twice",
    f"MEASURES first(amount, {'0' * 5_000}1) AS m PATTERN (a)": "a whole number, at most 1,000",
    f"MEASURES first(amount, {'0' * 60}99999) AS m PATTERN (a)": "a whole number, at most 1,000",
    "amount > 1 AND": "ends where something is expected",
    "amount > prev(amount)": "looks at several records",
    "amount > 1; DROP TABLE x": "needs Spark",
    "amount > 1 -- AND more": "needs Spark",
    f"amount IN ({', '.join(map(str, range(4_000)))})": "longer than 8,192",
    " + ".join(["n"] * 400) + " > 1": "operators, one over the other",
    "(" * 60 + "ok" + ")" * 60: "one in the other",
    "n = " + "9" * 60: "more than 50 characters",
    "PATTERN (a b) DEFINE a AS ok": "has no WITHIN",
    "PATTERN (a b) WITHIN '2 hours'": "at most '1 hour'",
    "PATTERN (a*) WITHIN '1 hour'": "no row at all",
    "PATTERN (a{1000}) WITHIN '1 hour'": "steps",
    "PATTERN (a b) WITHIN '1 hour' DEFINE a AS length(card) = 1": "needs Spark",
    "MEASURES upper(card) AS c PATTERN (a b) WITHIN '1 hour'": "needs Spark",
    "PARTITION BY card PATTERN (a b) WITHIN '1 hour'": "PARTITION BY",
    "ORDER BY at PATTERN (a b) WITHIN '1 hour'": "ORDER BY",
    "ALL ROWS PER MATCH PATTERN (a b) WITHIN '1 hour'": "one row for each match",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_why(text: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        check(text)
    assert REFUSED[text] in str(refused.value), str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("text", [None, 7, b"amount > 1"])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidRule):
        check(text)


def test_patterns_are_written_as_texts_that_mean_the_same(seed: int) -> None:
    dice, some = random.Random(seed), 0
    for _ in range(300):
        try:
            made = pattern(
                random_text(dice),
                define={"a": "amount > prev(amount) + 1.5", "b": "card IN ('it''s', 'x, y') OR NOT ok"},
                within=f"{dice.randint(1, 10_000)} us",
                skip=dice.choice(["past_last", "to_next", "to_last:a"]),
            )
            text = rule_text(made)
        except InvalidArgument:
            continue
        some += 1
        read = check(text)
        assert (read.text, read.within_us, read.skip) == (made.text, made.within_us, made.skip)
        assert dict(read.define) == dict(made.define)
    assert some > 20


def test_measures_are_written_too() -> None:
    measures = {"total": "sum(a.amount)", "the last": "last(b.n, 2)", "kind": "classifier()"}
    made = pattern("a+ b", define={"b": "ok"}, within="5 minutes", measures=measures)
    text = rule_text(made)
    assert dict(check(text).measures) == measures
    assert check(text).define == (("b", "ok"),)


@pytest.mark.parametrize(
    "settings",
    [
        {"timed_out": True},
        {"rows": "all"},
        {"define": {"a": "upper(card) = 'X'"}},
        {"measures": {"x` AS y, count(*) AS `z": "count(*)"}},
    ],
)
def test_patterns_that_are_no_rules(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule):
        rule_text(hr.pattern("a b", within="1 minute", **settings))


def test_one_event_needs_no_within() -> None:
    assert match_recognize("PATTERN (a) DEFINE a AS ok").within_us == 0
    with pytest.raises(InvalidArgument, match="WITHIN"):
        match_recognize("PATTERN (a+) DEFINE a AS ok")


def test_no_text_ends_with_another_error_or_takes_long(seed: int) -> None:
    """Pieces of rules in any order, deep and long ones too: each is accepted, or an InvalidRule, within a second."""
    dice = random.Random(seed)
    pieces = [
        "PATTERN (",
        "(",
        ")",
        "a",
        "{1000}",
        "+",
        "*?",
        "!b",
        "|",
        " WITHIN '1 minute' ",
        "DEFINE a AS ",
        "amount",
    ]
    pieces += [
        " > ",
        " AND ",
        "NOT ",
        "sum(",
        "last(b.n, 9)",
        "'",
        "`",
        "9" * 30,
        "MEASURES ",
        " AS ",
        ",",
        "\0",
        "é",
        "1e999",
    ]
    pieces += ["AFTER MATCH SKIP TO LAST a ", "IN (", "BETWEEN ", "IS NULL", "- ", "--", "\n", "%", " / 0"]
    for _ in range(400):
        text = "".join(dice.choice(pieces) * dice.choice([1, 1, 1, 1, 300]) for _ in range(dice.randint(1, 12)))
        begun = time.process_time()
        with contextlib.suppress(InvalidRule):
            check(text)
        assert time.process_time() - begun < 1, text
