"""Which records break a program: found by reading them in parts, all parts of a round in one Spark job. Owns the
search; knows neither Spark nor a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.flows.ranges import Range

PARTS_FIRST, PARTS = 64, 8
"""Into so many parts a range is divided at first, and each that fails after that: a round costs a job, a part a task, a
part that fails another task and two processes. For one record in 500 that is 24 tasks, three of which fail."""

Failing = Callable[[Sequence[Range]], Mapping[int, str]]
"""Parts -> number of each that fails -> its error."""


def culprits(chosen: Sequence[Range], failing: Failing) -> dict[tuple[int, int], str]:
    """(partition, offset) -> error, of the records that fail when they are read alone."""
    found: dict[tuple[int, int], str] = {}
    parts = [part for each in chosen for part in _divided(each, PARTS_FIRST)]
    while parts:
        errors = failing(parts)
        failed = [(parts[number], error) for number, error in sorted(errors.items())]
        found |= {(part.partition, part.start): error for part, error in failed if part.rows == 1}
        parts = [piece for part, _ in failed if part.rows > 1 for piece in _divided(part, PARTS)]
    return dict(sorted(found.items()))


def _divided(whole: Range, count: int) -> Iterator[Range]:
    size = -(-whole.rows // count)
    for start in range(whole.start, whole.stop, size):
        yield replace(whole, start=start, stop=min(start + size, whole.stop))
