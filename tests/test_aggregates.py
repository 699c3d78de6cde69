"""Aggregates as they are written: what makes no sense is refused, and they say what they are."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

import headrace as hr
from headrace.aggregates import TABLE, over_changes


@pytest.mark.parametrize(
    ("make", "argument", "said"),
    [
        (lambda: hr.approx_quantile("x", 1.5), "q", "from 0 to 1"),
        (lambda: hr.approx_quantile("x", -0.1), "q", "from 0 to 1"),
        (lambda: hr.approx_quantile("x", float("nan")), "q", "from 0 to 1"),
        (lambda: hr.approx_quantile("x", True), "q", "from 0 to 1"),
        (lambda: hr.approx_quantile("x", "0.5"), "q", "from 0 to 1"),  # type: ignore[arg-type]
        (lambda: hr.approx_quantile(None, 0.5), "column", "approx_quantile"),
        (lambda: hr.approx_count_distinct(""), "column", "approx_count_distinct"),
        (lambda: hr.percentile("x", 2), "q", "from 0 to 1"),
        (lambda: hr.max_by("x", None), "by", "max_by"),
        (lambda: hr.min_by("", "y"), "column", "min_by"),
        (lambda: hr.top_k("x", 1, by=""), "by", "top_k"),
        (lambda: hr.stddev(3), "column", "stddev"),
        (lambda: hr.count("x"), "count", r"hr\.count\(where='x is not null'\)"),
        (lambda: hr.count("*"), "count", r"hr\.count\(\)"),
        (lambda: hr.count("ms > 10"), "count", r"hr\.count\(where='ms > 10'\)"),
        (lambda: hr.top_k("x", 0), "k", "1 or more"),
        (lambda: hr.top_k("x", 2.0), "k", "whole number"),  # type: ignore[arg-type]
        (lambda: hr.collect("x", limit=-1), "limit", "1 or more"),
        (lambda: hr.histogram("x", []), "bounds", "each greater"),
        (lambda: hr.histogram("x", [1, 1]), "bounds", "each greater"),
        (lambda: hr.histogram("x", [2, 1]), "bounds", "each greater"),
        (lambda: hr.histogram("x", [1, float("inf")]), "bounds", "each greater"),
        (lambda: hr.histogram("x", "12"), "bounds", "each greater"),  # type: ignore[arg-type]
        (lambda: hr.histogram("x", list(range(1_001))), "bounds", "1000 or fewer"),
        (lambda: hr.Aggregate("sum(x)"), "merge", "of two partial values"),
        (lambda: hr.Aggregate(None, merge=max), "partial", "an aggregate"),
        (lambda: hr.Aggregate(hr.sum("x"), merge=max), "partial", "an aggregate"),
        (lambda: hr.Aggregate("sum(x)", merge=max, finish="x"), "finish", "a function"),  # type: ignore[arg-type]
        (lambda: hr.Aggregate("sum(x)", merge=max, type="int"), "type", "without finish="),
    ],
)
def test_nonsense_is_refused_when_it_is_made(make: Any, argument: str, said: str) -> None:
    with pytest.raises(hr.InvalidArgument, match=said) as refused:
        make()
    assert refused.value.argument == argument


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize(
    ("aggregate", "text"),
    [
        (hr.count(), "count()"),
        (hr.count(where="n > 1"), "count(where=n > 1)"),
        (hr.sum("x", exact=True), "sum(x, exact=True)"),
        (hr.sum("x", where="y"), "sum(x, where=y)"),
        (hr.max_by("page", "ms", where="y"), "max_by(page, ms, where=y)"),
        (hr.top_k("page", 3, by="ms"), "top_k(page, 3, by=ms)"),
        (hr.percentile("ms", 0.5), "percentile(ms, 0.5)"),
        (hr.approx_count_distinct("user"), "approx_count_distinct(user)"),
        (hr.approx_quantile("ms", 0.95), "approx_quantile(ms, 0.95)"),
        (hr.top_k("page", 3), "top_k(page, 3)"),
        (hr.histogram("ms", [1, 10.5]), "histogram(ms, [1, 10.5])"),
        (hr.collect("page", limit=5), "collect(page, limit=5)"),
        (hr.Aggregate("sum(x)", merge=add), "Aggregate(partial=sum(x), merge=add)"),
        (
            hr.Aggregate("sum(x)", merge=add, finish=str, type="string"),
            "Aggregate(partial=sum(x), merge=add, finish=str, type=string)",
        ),
    ],
)
def test_what_is_kept_of_it_for_comparing(aggregate: Any, text: str) -> None:
    assert str(aggregate) == text


EXAMPLES: dict[str, Any] = {"column": "x", "by": "z", "q": 0.5, "k": 2, "limit": 2, "bounds": [1, 2]}


def examples() -> dict[str, Any]:
    """All that there are."""
    out = {}
    for name, (make, _) in TABLE.items():
        given = inspect.signature(make).parameters.items()
        wanted = [each for each, one in given if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
        out[name] = make(**{each: EXAMPLES[each] for each in wanted}, where="y")
    return out


@pytest.mark.parametrize("name", TABLE)
def test_over_changes_it_is_called_and_rolled_up_as_it_is_over_records(name: str) -> None:
    """A view may be made of a view's changes, and be rolled up again."""
    aggregate = examples()[name]
    assert str(aggregate).startswith(f"{name}(") and "where=y" in str(aggregate)
    assert pickle.loads(pickle.dumps(aggregate)) == aggregate
    assert getattr(hr, name) is TABLE[name][0]
    if aggregate.algebra.of_changes() is None:
        with pytest.raises(hr.InvalidArgument, match="cannot be taken back"):
            over_changes(name, aggregate, {"x": aggregate})
        return
    shrinking = over_changes(name, aggregate, {"x": hr.count()})
    assert str(shrinking) == str(aggregate) and shrinking.algebra.ordered == aggregate.algebra.ordered
    again = [one.algebra.rolled_up("x", one) for one in (aggregate, shrinking)]
    assert again[1] == again[0] or again[1] is None, "of values that are kept there may be no state to merge"
    for found, algebra in zip(again, (aggregate.algebra, shrinking.algebra), strict=True):
        assert (found is None) == bool(algebra.instead)


@pytest.mark.parametrize("name", TABLE)
def test_rolled_up_twice_it_is_the_same(name: str) -> None:
    aggregate = examples()[name]
    if not aggregate.algebra.instead:
        once = over_changes("y", hr.merge("x", where="z"), {"x": aggregate})
        assert once.algebra.where == "z"
        assert over_changes("y", hr.merge("x", where="z"), {"x": once}) == once or name == "count"


def test_equal_ones_are_equal() -> None:
    assert hr.approx_quantile("ms", 0.95) == hr.approx_quantile("ms", 0.95) != hr.approx_quantile("ms", 0.5)
    assert hr.collect("x", limit=2) != hr.collect("x", limit=3)
