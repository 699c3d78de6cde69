"""The search for records that break a program, without a program: how many are found, in how few rounds and tasks."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flows.reading.poison import Failure, culprits
from headrace.flows.reading.ranges import Range
from headrace.flows.supervise import COMMIT_SECONDS, PACE_MIN, paced, said


class Program:
    """Fails on some offsets: on even ones in partition 0, on odd ones in partition 1. `tells`: from a part and the
    record in it that is to blame to where it says that it failed."""

    def __init__(self, bad: Iterable[int], tells: Callable[[Range, int], int | None]) -> None:
        self._bad, self._tells = {n: sorted(each for each in bad if each % 2 == n) for n in (0, 1)}, tells
        self.tasks: list[int] = []
        self.failed = 0

    def failing(self, parts: Sequence[Range]) -> Mapping[int, Failure]:
        self.tasks.append(len(parts))
        out = {}
        for number, part in enumerate(parts):
            known = self._bad.get(part.partition, [])
            if (at := bisect_left(known, part.start)) < len(known) and known[at] < part.stop:
                out[number] = Failure(f"error {known[at]}", self._tells(part, known[at]))
        self.failed += len(out)
        return out


def tells_nothing(_part: Range, _at: int) -> None:
    return None


def tells_the_record(_part: Range, at: int) -> int:
    return at


def tells_a_later_one(part: Range, _at: int) -> int:
    return part.stop - 1


@given(
    bad=st.sets(st.integers(0, 999), max_size=30),
    middle=st.integers(1, 999),
    tells=st.sampled_from([tells_nothing, tells_the_record, tells_a_later_one]),
)
def test_all_records_that_fail_alone_are_found(
    bad: set[int], middle: int, tells: Callable[[Range, int], int | None]
) -> None:
    program = Program(bad, tells)
    found = culprits([Range(0, 0, 1_000), Range(1, 0, middle), Range(1, middle, 1_000)], program.failing)
    assert found == {(n % 2, n): f"error {n}" for n in bad}
    if tells is tells_nothing:
        assert len(program.tasks) <= 3  # parts of 16, 2 and 1
    if tells is tells_a_later_one:
        assert len(program.tasks) <= 6, "a wrong guess costs a round, and is the last"


def test_where_a_part_failed_saves_most_of_the_search() -> None:
    """200 among 100,000: each is passed once in a part and once alone; what is left is before and behind it."""
    bad = [2 * n for n in random.Random(7).sample(range(50_000), 200)]
    program = Program(bad, tells_the_record)
    assert len(culprits([Range(0, 0, 100_000)], program.failing)) == 200
    assert program.failed == 400
    assert sum(program.tasks) <= 64 + 3 * 200
    blind = Program(bad, tells_nothing)
    culprits([Range(0, 0, 100_000)], blind.failing)
    assert sum(blind.tasks) > 4_000 and blind.failed > 700


def test_a_program_that_fails_on_everything_is_soon_known() -> None:
    program = Program(range(0, 100_000, 2), tells_the_record)
    assert 100 <= len(culprits([Range(0, 0, 100_000)], program.failing, enough=100)) < 200
    assert sum(program.tasks) < 1_000


def test_parts_that_fail_only_together_are_nobodys_fault() -> None:
    def failing(parts: Sequence[Range]) -> Mapping[int, Failure]:
        return {n: Failure("", part.start) for n, part in enumerate(parts) if part.rows > 1}

    assert culprits([Range(0, 0, 100)], failing) == {}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "x.py", line 1\n'
            "ValueError: not a number\n\n\tat org.apache.spark.A.b(A.scala:1)\n\tat java.lang.C.d(C.java:2)",
            "ValueError: not a number",
        ),
        (
            "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n"
            '== DataFrame ==\n"divide" was called from\nx.py:3\n\n\tat org.apache.spark.A.b(A.scala:1)',
            "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        ),
        (
            "org.apache.spark.SparkException: Job aborted.\n\tat org.apache.spark.A.b(A.scala:1)\n"
            "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "x.py", line 1\n    n / 0\nZeroDivisionError: by zero\n\n\tat org.apache.spark.A.b(A.scala:1)',
            "ZeroDivisionError: by zero",
        ),
        ("", ""),
    ],
)
def test_what_a_person_reads_first(text: str, first: str) -> None:
    assert said(text) == first


def test_batches_shrink_when_commits_get_long_and_grow_again() -> None:
    pace = paced(100_000, 100_000, 10 * COMMIT_SECONDS)
    assert pace == 10_000
    assert paced(pace, 10_000, COMMIT_SECONDS) == 10_000
    assert paced(pace, 10_000, COMMIT_SECONDS / 10) == 40_000
    assert paced(pace, 10_000, COMMIT_SECONDS / 20) == 80_000
    assert paced(pace, 500, COMMIT_SECONDS / 10) == 10_000, "a small batch tells nothing of large ones"
    assert paced(pace, 10_000, 1e6) == PACE_MIN
