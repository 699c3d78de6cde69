"""Which records break a program: found by reading them in parts, all parts of a round in one Spark job. Owns the
search; knows neither Spark nor a log."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.flows.reading.ranges import Range

PARTS_FIRST, PARTS = 64, 8
"""Into so many parts a range is divided at first, and each that fails after that, where nothing says at which record it
failed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Of one part. `offset`: of the record that was read when it failed, as far as it is known."""

    error: str
    offset: int | None = None


Failing = Callable[[Sequence[Range]], Mapping[int, Failure]]
"""Parts -> number of each that fails -> how."""


def culprits(chosen: Sequence[Range], failing: Failing, enough: float = math.inf) -> dict[tuple[int, int], str]:
    """(partition, offset) -> error, of the records that fail when they are read alone; no more rounds when there are
    `enough`, as where it is the program that fails on everything. Where a part failed is only a
    guess: the record that was read then may come after the one that is to blame. One that turns out to be wrong ends
    the guessing."""
    found: dict[tuple[int, int], str] = {}
    guessed: set[tuple[int, int]] = set()
    guessing = True
    parts = [part for each in chosen for part in _divided(each, PARTS_FIRST)]
    while parts and len(found) < enough:
        failures = failing(parts)
        failed = [(parts[number], failure) for number, failure in sorted(failures.items())]
        found |= {(part.partition, part.start): failure.error for part, failure in failed if part.rows == 1}
        guessing = guessing and guessed <= found.keys()
        parts = []
        for part, failure in failed:
            if part.rows > 1 and guessing and failure.offset is not None and part.start <= failure.offset < part.stop:
                guessed.add((part.partition, failure.offset))
                parts += _around(part, failure.offset)
            elif part.rows > 1:
                parts += _divided(part, PARTS)
    return dict(sorted(found.items()))


def _around(whole: Range, offset: int) -> Iterator[Range]:
    """What is before the record, the record alone, and what is behind it."""
    cuts = [whole.start, offset, offset + 1, whole.stop]
    for start, stop in itertools.pairwise(cuts):
        if start < stop:
            yield replace(whole, start=start, stop=stop)


def _divided(whole: Range, count: int) -> Iterator[Range]:
    size = -(-whole.rows // count)
    for start in range(whole.start, whole.stop, size):
        yield replace(whole, start=start, stop=min(start + size, whole.stop))
