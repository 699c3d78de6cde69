"""The matcher finds what brute force finds: random patterns over random rows, all known, or known up to some row."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from headrace.cep import matcher
from headrace.cep.definition import Pattern, parts_of, pattern
from headrace.cep.matcher import Limits, Rows, Scan, Settings, labels, scan
from headrace.cep.program import compiled
from headrace.cep.shape import always, first_of, parse, symbols_of
from headrace.errors import InvalidArgument
from tests.cep.brute_force import Taken, matches, random_text

EVER = float("inf")
SYMBOLS = "abc"


def some_pattern(dice: random.Random) -> Pattern:
    while True:
        text = random_text(dice)
        try:
            return pattern(
                text,
                define=dict.fromkeys(symbols_of(parse(text)), "true"),
                within=f"{dice.randint(1, 12)} us",
                skip=some_skip(dice, text),
                timed_out=dice.random() < 0.4,
            )
        except InvalidArgument:
            continue


def some_skip(dice: random.Random, text: str) -> str:
    shape = parse(text)
    fit = sorted(always(shape))
    later = sorted(always(shape) - first_of(shape))
    some = ["past_last", "past_last", "to_next", *(f"to_last:{each}" for each in fit)]
    return dice.choice([*some, *(f"to_first:{each}" for each in later)])


def some_rows(dice: random.Random, symbols: int, count: int) -> tuple[list[int], list[int]]:
    times, now = [], 0
    for _ in range(count):
        now += dice.choice((0, 1, 1, 2, 5))
        times.append(now)
    return times, [dice.choice((0, 1, 2, 3, dice.randrange(1 << symbols))) for _ in range(count)]


def settings(of: Pattern, wait: int = 0) -> Settings:
    return Settings(of.within_us, wait, parts_of(of).skip_to, timed_out=of.timed_out)


def told(of: Pattern, made: Scan) -> list[tuple[str, Taken]]:
    return [(each.outcome, tuple((of.symbols[symbol], row) for symbol, row in labels(each))) for each in made.found]


def wanted(of: Pattern, times: list[int], marks: list[int]) -> list[tuple[str, Taken]]:
    def holds(symbol: str, _: Taken, row: int) -> bool:
        return bool(marks[row] >> of.symbols.index(symbol) & 1)

    return matches(parse(of.text), times, holds, of.within_us, of.skip, timed_out=of.timed_out)


def check(dice: random.Random) -> int:
    of = some_pattern(dice)
    count = dice.randint(0, 14)
    times, marks = some_rows(dice, len(of.symbols), count)
    whole = scan(parts_of(of).program, Rows(times, marks), settings(of), 0, count, EVER, needed_us=-1)
    assert whole.open is None and not whole.given_up
    found = told(of, whole)
    assert found == wanted(of, times, marks), (of.text, of.skip, of.within_us, times, marks)
    assert len(whole.needed_us) == count and whole.needed_us == sorted(whole.needed_us)
    cut = dice.randint(0, count)
    known = scan(
        parts_of(of).program, Rows(times, marks), settings(of), 0, cut, times[cut] if cut < count else -1, needed_us=-1
    )
    assert told(of, known) == found[: len(known.found)], (of.text, times, marks, cut)
    if known.open is None:
        return len(found)
    # the scan goes on where it stopped: nothing before that is looked at again
    begin = known.open.start
    rest = scan(
        parts_of(of).program,
        Rows(times, marks),
        settings(of),
        begin,
        count,
        EVER,
        needed_us=known.needed_us[begin - 1] if begin else -1,
    )
    assert told(of, known) + told(of, rest) == found
    return len(found)


def test_it_finds_what_brute_force_finds(seed: int) -> None:
    dice = random.Random(seed)
    assert sum(check(dice) for _ in range(1_500)) > 1_000


@pytest.mark.soak
def test_it_finds_what_brute_force_finds_for_long(seed: int, soak_seconds: float) -> None:
    dice, end = random.Random(seed), time.monotonic() + soak_seconds
    while time.monotonic() < end:
        check(dice)


def test_what_an_attempt_needs_says_what_can_change_it(seed: int) -> None:
    """A row that comes behind what is needed changes none of the matches before."""
    dice = random.Random(seed)
    for _ in range(400):
        of = some_pattern(dice)
        times, marks = some_rows(dice, len(of.symbols), 10)
        made = scan(
            parts_of(of).program, Rows(times, marks), settings(of), 0, 10, times[-1] + dice.randint(0, 9), needed_us=-1
        )
        last = made.open.start if made.open is not None else 10
        settled = max(made.needed_us[:last], default=-1)
        at = max(settled, dice.choice(times)) + 1
        place = sum(each <= at for each in times)
        more = [*times[:place], at, *times[place:]], [*marks[:place], dice.randrange(8), *marks[place:]]
        again = scan(parts_of(of).program, Rows(*more), settings(of), 0, 11, EVER, needed_us=-1)
        before = [each for each in told(of, made) if each[1][0][1] < last]
        assert told(of, again)[: len(before)] == before, (of.text, times, marks, at)


def one(text: str, rows: str, within: int = 100, frontier: float = EVER, **more: Any) -> Scan:
    """`rows`: of each the symbols, as in "a ab b"; at 0, 1, 2, …"""
    of = pattern(text, within=f"{within} us", **more)
    marks = [sum(1 << of.symbols.index(each) for each in row if each in of.symbols) for row in rows.split()]
    return scan(
        parts_of(of).program, Rows(range(len(marks)), marks), settings(of), 0, len(marks), frontier, needed_us=-1
    )


def rows_of(made: Scan) -> list[list[int]]:
    return [[row for _, row in labels(each)] for each in made.found]


@pytest.mark.parametrize(
    ("text", "rows", "found"),
    [
        ("a b", "a b a x b a b", [[0, 1], [5, 6]]),
        ("a+ b", "a a a b b", [[0, 1, 2, 3]]),
        ("a b+", "a b b b x", [[0, 1, 2, 3]]),
        ("a b+?", "a b b b x", [[0, 1]]),
        ("a b* c", "a b b c a c", [[0, 1, 2, 3], [4, 5]]),
        ("a (b | c) d", "a c d a b d", [[0, 1, 2], [3, 4, 5]]),
        ("a b? c", "a b c a c", [[0, 1, 2], [3, 4]]),
        ("a{2,3}", "a a a a a", [[0, 1, 2], [3, 4]]),
        ("a !b c", "a x x c a x b c", [[0, 3]]),
        ("a !b", "a x x x", [[0]]),
        ("a !b", "a x b x", []),
        ("(a b){2} c", "a b a b a b c", [[2, 3, 4, 5, 6]]),
    ],
)
def test_the_kinds_of_patterns(text: str, rows: str, found: list[list[int]]) -> None:
    assert rows_of(one(text, rows)) == found


@pytest.mark.parametrize(
    ("skip", "found"),
    [
        ("past_last", [[0, 1, 2]]),
        ("to_next", [[0, 1, 2], [1, 2]]),
        ("to_last:a", [[0, 1, 2], [1, 2]]),
        ("to_first:b", [[0, 1, 2]]),
    ],
)
def test_where_the_scan_goes_on(skip: str, found: list[list[int]]) -> None:
    assert rows_of(one("a+ b", "a a b x", skip=skip)) == found


def test_within_counts_from_the_first_row_to_the_last() -> None:
    assert rows_of(one("a b* c", "a b b c", within=3)) == [[0, 1, 2, 3]]
    assert rows_of(one("a b* c", "a b b c", within=2)) == []


def test_an_absence_waits_for_the_frontier_alone() -> None:
    """The row at 0 is followed by no b within 5: that is so when the frontier is past 5, whatever comes before."""
    for frontier, found in ((-1, []), (5, []), (6, [[0]])):
        made = one("a !b", "a x x x x x x x x x", within=5, frontier=frontier)
        assert rows_of(made) == found and (made.open is None) == bool(found)


def test_a_greedy_end_is_certain_when_a_row_ends_it() -> None:
    assert rows_of(one("a+", "a a x", frontier=-1)) == [[0, 1]]
    made = one("a+", "a a", frontier=-1)
    assert made.found == [] and made.open is not None and made.open.start == 0


def test_what_timed_out_is_told_and_takes_nothing() -> None:
    made = one("a b c", "a b", within=5, timed_out=True)
    assert [each.outcome for each in made.found] == ["timed_out"] and rows_of(made) == [[0, 1]]
    made = one("a b? b c", "a b a b c", within=1, timed_out=True)
    assert rows_of(made) == [[0, 1], [2, 3]]


# -- what has no bound is refused, or bounded --------------------------------------------------------------


@pytest.mark.parametrize("text", ["(a+)+ b", "(a | a)+ b", "(a* a+)+ b", "a{0,25} b"])
def test_patterns_that_are_exponential_elsewhere_take_steps_by_rows(text: str) -> None:
    """2,000 rows of a and no b: what failed once is not tried again."""
    count = 2_000
    of = pattern(text, within="1 day")
    steps = [0]

    class Counted(tuple[Any, ...]):
        def __getitem__(self, at: Any) -> Any:
            steps[0] += 1
            return super().__getitem__(at)

    program = compiled(parse(text), of.symbols, text)
    object.__setattr__(program, "code", Counted(program.code))
    made = scan(program, Rows(range(count), [1] * (count - 1) + [0]), settings(of), 0, count, EVER, needed_us=-1)
    assert made.found == [] and made.given_up == []
    assert steps[0] < 20 * count * len(program.code)


def test_an_attempt_over_earlier_rows_is_given_up_beyond_its_steps() -> None:
    """`(a | b)+ c`, where each row is both and the condition looks back: 2^30 ways."""
    of = pattern("(a | b)+ c", define={"a": "count(b.*) >= 0", "c": "false"}, within="1 day")
    count = 30
    rows = Rows(range(count), [3] * count, [lambda *_: True, None, None], lambda *_: (), ())
    limits = Limits(steps=1_000)
    made = scan(parts_of(of).program, rows, settings(of), 0, count, EVER, needed_us=-1, limits=limits)
    assert made.found == [] and [each.start for each in made.given_up][:3] == [0, 1, 2]


def test_an_attempt_is_given_up_beyond_its_rows() -> None:
    of = pattern("a+ b", within="1 day")
    count = 100
    rows = Rows(range(count), [1] * (count - 1) + [2])
    made = scan(parts_of(of).program, rows, settings(of), 0, count, EVER, needed_us=-1, limits=Limits(rows=10))
    assert [each.start for each in made.given_up] == list(range(count - 10))
    assert rows_of(made) == [list(range(count - 10, count))]
    assert matcher.LIMITS.rows == 10_000
