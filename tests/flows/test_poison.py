"""The search for records that break a program, without a program: how many are found, in how few rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flows.poison import culprits
from headrace.flows.ranges import Range
from headrace.flows.supervise import COMMIT_SECONDS, PACE_MIN, paced, said


@given(bad=st.sets(st.integers(0, 999), max_size=30), middle=st.integers(1, 999))
def test_all_records_that_fail_alone_are_found(bad: set[int], middle: int) -> None:
    rounds = 0

    def failing(parts: Sequence[Range]) -> Mapping[int, str]:
        nonlocal rounds
        rounds += 1
        hits = [[n for n in bad if part.start <= n < part.stop and n % 2 == part.partition] for part in parts]
        return {number: f"error {some[0]}" for number, some in enumerate(hits) if some}

    found = culprits([Range(0, 0, 1_000), Range(1, 0, middle), Range(1, middle, 1_000)], failing)
    assert found == {(n % 2, n): f"error {n}" for n in bad}
    assert rounds <= 3  # parts of 16, 2 and 1


def test_parts_that_fail_only_together_are_nobodys_fault() -> None:
    assert culprits([Range(0, 0, 100)], lambda parts: {n: "" for n, part in enumerate(parts) if part.rows > 1}) == {}


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
    assert paced(pace, 500, COMMIT_SECONDS / 10) == 10_000, "a small batch tells nothing of large ones"
    assert paced(pace, 10_000, 1e6) == PACE_MIN
