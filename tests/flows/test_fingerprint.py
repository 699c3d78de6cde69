"""Two programs that differ in what a function does have different fingerprints. No Spark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import headrace as hr
from headrace.fingerprint import fingerprint

LIMIT = 5


def helper(x: int) -> int:
    return x + 1


def made(source: str, **names: Any) -> Callable[..., Any]:
    space: dict[str, Any] = dict(names)
    exec(source, space)
    found: Callable[..., Any] = space["f"]
    return found


def test_the_same_program_has_the_same_one() -> None:
    for source in ("f = lambda df: df.where('n > 1')", "def f(df, k=3):\n    return [x for x in df if x in {1, 2}]"):
        assert fingerprint(made(source)) == fingerprint(made(source))
    assert fingerprint(made("f = lambda df: helper(df)", helper=helper)) != fingerprint(
        made("f = lambda df: helper(df)")
    )


def test_what_a_function_does_is_part_of_it() -> None:
    sources = [
        "f = lambda df: df.where('n > 1')",
        "f = lambda df: df.where('n > 2')",
        "f = lambda df: df.filter('n > 1')",
        "def f(df, k=3): return df",
        "def f(df, k=4): return df",
        "def f(df, *, k=3): return df",
        "def f(df):\n    def g(x): return x + 1\n    return g(df)",
        "def f(df):\n    def g(x): return x + 2\n    return g(df)",
        "def g(x): return x + 1\nf = lambda df: g(df)",
        "def g(x): return x + 2\nf = lambda df: g(df)",
        "limit = 1\nf = lambda df: df.limit(limit)",
        "limit = 2\nf = lambda df: df.limit(limit)",
    ]
    assert len({fingerprint(made(source)) for source in sources}) == len(sources)


def test_what_it_closes_over_and_is_given_is_part_of_it() -> None:
    def over(n: Any) -> Callable[[int], Any]:
        return lambda x: (x, n)

    assert fingerprint(over(1)) == fingerprint(over(1)) != fingerprint(over(2))
    assert fingerprint(over({"a": [1]})) != fingerprint(over({"a": [2]}))
    assert fingerprint(over(helper)) != fingerprint(over(over))
    assert fingerprint(functools.partial(helper, 1)) != fingerprint(functools.partial(helper, 2))
    assert fingerprint(hr.sum("a")) == fingerprint(hr.sum("a")) != fingerprint(hr.sum("b"))
    assert fingerprint(over(1), "earliest") != fingerprint(over(1), "latest")


def test_functions_that_call_each_other_end() -> None:
    source = "def f(x): return g(x)\ndef g(x): return f(x)"
    assert fingerprint(made(source)) == fingerprint(made(source))


def test_what_has_itself_in_it_has_one() -> None:
    endless: dict[str, Any] = {"limit": 5}
    endless["all"] = [endless]
    source = "f = lambda df: df.limit(known['limit'])"
    assert fingerprint(made(source, known=endless)) == fingerprint(made(source, known=endless))
    other = {"limit": 6, "all": endless["all"]}
    assert fingerprint(made(source, known=endless)) != fingerprint(made(source, known=other))
