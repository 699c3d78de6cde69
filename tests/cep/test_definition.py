"""What can be written as a pattern, what is refused, and what SQL's MATCH_RECOGNIZE comes to."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cep.definition import Pattern, parts_of, pattern
from headrace.cep.evaluate import Compiler
from headrace.cep.recognize import match_recognize
from headrace.errors import InvalidArgument


def refused(make: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a text"),
        ("a*", "may match no row at all"),
        ("a? b*", "may match no row at all"),
        ("!a b", "an absence is told after a row"),
        ("!a", "may match no row at all"),
        ("a (!b)+ c", "repeats what may be empty without a bound"),
        ("a (b | !c) d", "stands alone"),
        ("a (b !c) d", "!c ends a group"),
        ("a !b c? d", "behind !b comes what may be empty"),
        ("a !b !c d", "behind !b comes what may be empty"),
        ("(a? b?)+ c", "repeats what may be empty without a bound"),
        ("a++ b", "repeats twice"),
        ("a{2}{3}", "repeats twice"),
        ("a{3,2}", "not below the first"),
        ("a{}", "write {3}, {2,5}"),
        ("a{2000}", "at most 1,000"),
        ("a{99999999999}", "at most 1,000"),
        ("(a b", "a '(' without its ')'"),
        ("a b)", "')' at character 3 is not expected"),
        ("a | ", "without a symbol"),
        ("a & b", "'&' is no part of a pattern"),
        ("a ! b+ !", "no symbol follows"),
        ("a A", "differ in upper and lower case only"),
        ("((a{100}){100}){100}", "more than 2,000 steps"),
        ("(" * 60 + "a" + ")" * 60, "more than 50 groups"),
        (" | ".join(f"s{n}" for n in range(61)), "has 61 symbols; 60 are allowed"),
        ("a " * 6_000, "longer than 10,000 characters"),
    ],
)
def test_patterns_that_say_nothing_or_have_no_bound_are_refused(text: str, said: str) -> None:
    assert said in refused(lambda: pattern(text, within="1 minute"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"define": {"smal": "x > 1"}},
            "define='smal': is no symbol of the pattern 'small+ big'. Did you mean 'small'?",
        ),
        ({"define": {"small": ""}}, "define['small']='': must be a text of SQL"),
        ({"define": "x > 1"}, "must be a mapping"),
        ({"define": {"big": "classifier() = 'big'"}}, "classifier() is for measures"),
        ({"define": {"big": "upper(sum(x)) > 1"}}, "beside what only Spark can compute"),
        ({"define": {"big": "upper(small.x) = 'A'"}}, "Write last(…) around it"),
        ({"define": {"big": "x > sum(sum(x))"}}, "both look at several rows"),
        ({"define": {"big": "x > first(x, 5000)"}}, "at most 1,000"),
        ({"define": {"big": "(" * 99 + "x > 1" + ")" * 99}}, "more than 50 parts one in the other"),
        ({"define": {"big": f"1 < {'x + ' * 1000}x"}}, "more than 250 operators, one over the other"),
        ({"define": {"big": f"x < {'9' * 5000}"}}, "a number of more than 50 characters"),
        ({"define": {"big": f"x < first(x, {'9' * 5000})"}}, "at most 1,000"),
        ({"within": "0 minutes"}, "within='0 minutes'"),
        ({"measures": {"match_start": "first(x)"}}, "is a column of every match"),
        ({"measures": {"_n": "count(*)"}}, "not begin with '_'"),
        ({"measures": {"n": "sum()"}}, "says of no column"),
        ({"skip": "somewhere"}, "must be 'past_last', 'to_next'"),
        ({"skip": "to_first:small"}, "would be found again and again"),
        ({"skip": "to_last:nobody"}, "of a symbol x of the pattern"),
        ({"text": "small+ big?", "skip": "to_last:big"}, "may have no row that is big"),
        ({"rows": "some"}, "must be 'one' or 'all'"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings: dict[str, Any], said: str) -> None:
    text = settings.pop("text", "small+ big")
    assert said in refused(lambda: pattern(text, **{"within": "1 minute", **settings}))


def test_a_pattern_is_a_value() -> None:
    one = hr.pattern("small+ big", define={"small": "amount < 10"}, within="10 minutes", measures={"n": "count(*)"})
    assert one == pickle.loads(pickle.dumps(one)) and isinstance(one, hr.Pattern)
    assert str(one) == (
        "pattern('small+ big', define={'small': 'amount < 10'}, within='10 minutes', measures={'n': 'count(*)'})"
    )


def test_what_compares_columns_needs_no_spark() -> None:
    conditions = {
        "small": "amount < 10 AND (kind IN ('a', 'b') OR kind IS NULL) AND NOT flag AND at BETWEEN x AND y",
        "big": "amount > 2 * avg(small.amount) AND big.amount <> small.amount AND prev(kind) = 'a'",
    }
    assert parts_of(pattern("small+ big", define=conditions, within="1 minute")).computed == {}
    made = pattern("small+ big", define={"small": "amount * 2 < 10 AND kind = 'a'"}, within="1 minute")
    assert list(parts_of(made).computed.values()) == ["((`amount` * 2) < 10)"]


@pytest.mark.parametrize(
    "text",
    [
        'note = "salt and pepper"',
        'note = "small.amount"',
        "note RLIKE '\\\\d+ and \\\\w' OR note = 'it\\'s small.amount'",
        "note RLIKE r'a\\' OR note RLIKE R\"small.x or y\"",
    ],
)
def test_what_is_quoted_is_left_to_spark_as_it_is(text: str) -> None:
    """Words and symbols in it are none."""
    made = parts_of(pattern("small+ big", define={"small": text}, within="1 minute"))
    (told,) = made.computed.values()
    quoted = re.findall(r"""r'[^']*'|R"[^"]*"|'(?:[^'\\]|\\.)*'|"[^"]*\"""", text)
    assert quoted and all(each in told for each in quoted)


def test_a_long_list_is_no_deep_tree() -> None:
    listed = ", ".join(map(str, range(1500)))
    (made,) = parts_of(pattern("a b", define={"b": f"prev(x) in ({listed})"}, within="1 minute")).conditions
    assert made.history is not None
    cells = {"x": [7, 1499, 1500, None]}
    value = Compiler(("a", "b"), {"x": pa.int64()}).value(made.history, cells)
    assert [value(row, ((row, row),)) for row in range(4)] == [True, True, False, None]


def test_blanks_are_not_tried_one_by_one() -> None:
    """Some forms of a text would be tried again from each of them: half a minute for the longest text."""
    pattern("a b" + " " * 9_900, define={"b": "x = 1" + " " * 9_900}, within="1 minute")
    for text in ("MEASURES a{}b PATTERN (a b) WITHIN '1 minute'", "PATTERN (a b) WITHIN '1'{}1", "ORDER BY at{}x"):
        with pytest.raises(InvalidArgument, match="1,000 blanks"):
            match_recognize(text.format(" " * 40_000))


def test_sql_and_python_make_the_same() -> None:
    said = match_recognize(
        """MATCH_RECOGNIZE (
             PARTITION BY card, shop
             ORDER BY at
             MEASURES FINAL SUM(small.amount) AS total, LAST(big.at) AS `until`, count(small.*) as n
             ONE ROW PER MATCH
             AFTER MATCH SKIP TO LAST small
             PATTERN (small+ big) WITHIN INTERVAL '10' MINUTE
             DEFINE small AS amount < 10, big AS big.amount > 500 AND note <> 'PATTERN (x), MEASURES'
           )"""
    )
    assert said == Pattern(
        "small+ big",
        (("small", "amount < 10"), ("big", "big.amount > 500 AND note <> 'PATTERN (x), MEASURES'")),
        600_000_000,
        (("total", "SUM(small.amount)"), ("until", "LAST(big.at)"), ("n", "count(small.*)")),
        skip="to_last:small",
        by=("card", "shop"),
        order_by="at",
    )
    assert match_recognize("PATTERN (a b) WITHIN '90 seconds'") == pattern("a b", within="90 seconds")
    assert match_recognize("ALL ROWS PER MATCH PATTERN (a b) WITHIN '1 s'").rows == "all"
    skips = {"PAST LAST ROW": "past_last", "TO NEXT ROW": "to_next", "TO FIRST b": "to_first:b", "TO b": "to_last:b"}
    for text, skip in skips.items():
        assert match_recognize(f"AFTER MATCH SKIP {text} PATTERN (a b) WITHIN '1 s'").skip == skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PATTERN (a b)", "has no WITHIN"),
        ("DEFINE a AS true", "has no PATTERN"),
        ("SELECT 1", "must begin with a clause"),
        ("PATTERN a b WITHIN '1 s'", "followed by '(' and ')'"),
        ("PATTERN (a b) WITHIN 10 MINUTES", "must be INTERVAL '10' MINUTE"),
        ("ORDER BY at, x PATTERN (a) WITHIN '1 s'", "names the event time, and nothing else"),
        ("ORDER BY at DESC PATTERN (a) WITHIN '1 s'", "ascending"),
        ("PATTERN (a) WITHIN '1 s' PATTERN (b) WITHIN '1 s'", "PATTERN twice"),
        ("MEASURES sum(x) PATTERN (a) WITHIN '1 s'", "write MEASURES … AS name"),
        ("PATTERN (a) WITHIN '1 s' DEFINE a = 1", "write DEFINE x AS …"),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (a) WITHIN '1 s'", "is not known here"),
        ("ALL ROWS PER MATCH MEASURES FINAL last(x) AS y PATTERN (a) WITHIN '1 s'", "FINAL is not known here"),
        ("AFTER MATCH SKIP TO THE MOON PATTERN (a) WITHIN '1 s'", "is not known behind AFTER MATCH SKIP"),
        ("ONE ROW PER MATCH ALL ROWS PER MATCH PATTERN (a) WITHIN '1 s'", "twice"),
        ("PATTERN (" + "a " * 30_000 + ") WITHIN '1 s'", "longer than 50,000"),
    ],
)
def test_sql_that_is_not_known_is_refused(text: str, said: str) -> None:
    assert said in refused(lambda: match_recognize(text))


def test_a_stream_says_what_is_missing() -> None:
    app = hr.App("shop", home=":temp:")
    stream = app.stream(app.topic("events", "k string, at timestamp", event_time="at"))
    made = pattern("a b", within="1 minute")
    assert "must be a pattern" in refused(lambda: stream.match("a b", by="k"))  # type: ignore[arg-type]
    assert "must be a column, or columns, of the key" in refused(lambda: stream.match(made))
    said = match_recognize("PARTITION BY k PATTERN (a b) WITHIN '1 s'")
    assert "PARTITION BY k: leave it out" in refused(lambda: stream.match(said, by="at"))
    assert stream.match(said) is not None
