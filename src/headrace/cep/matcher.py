"""The matcher: which rows of one key match, found from left to right. Pure: a function of the rows, their times, and of
whether `within` is over for a row; the order of the rows is given.

An attempt begins at a row and tries the ways through the program in their order of preference, so the first that
comes to MATCH is the match. While a more preferred way is still alive at the last known row, and more rows may come,
the attempt is open: nothing behind it is decided either. Rows are looked at within `within` of the first one only.

Where conditions look at one row, a way that failed at an instruction and a row fails there for ever: it is tried once,
so an attempt takes at most instructions x rows steps, whatever the pattern. Where they look at earlier rows of the
match, that is not so; there, and by the number of rows, an attempt is bounded by `Limits`, and given up beyond. Both
count what the attempt does, so whether it is given up is a function of the rows, too.

`extent_us` says how far an attempt has looked: a row that comes later in time than that cannot change it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from headrace.cep.program import FORK, JUMP, MATCH, QUIET, ROW, SKIP, Program

__all__ = ["LIMITS", "PASSED", "Attempt", "Limits", "Outcome", "Rows", "Scan", "Settings", "labels", "scan"]

Outcome = Literal["match", "none", "timed_out", "open", "given_up"]
Trail = tuple[Any, int, int, Any] | None
"""The rows that a way has taken, the last one first: (those before, symbol, row, what is summed up)."""
PASSED = -1
"""In place of a symbol: the row was passed over."""
Test = Callable[[int, Any], bool]
"""A condition over earlier rows: of a row, and what is summed up with it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one attempt. `steps`: only where conditions look at earlier rows."""

    rows: int = 10_000
    steps: int = 200_000


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one key or of many, one key's behind each other, in order. `marks`: for each row the bits of the symbols
    whose conditions over the row alone hold. `tests`: by symbol, its condition over earlier rows; `add`: what is summed
    up, with one row more: `add(summed up, symbol, row)`."""

    times_us: Sequence[int]
    marks: Sequence[int]
    tests: Sequence[Test | None] = ()
    add: Callable[[Any, int, int], Any] | None = None
    nothing: Any = ()


class Attempt(NamedTuple):
    """What came of an attempt at row `start`. `symbols`: what the rows from there to the last one that was taken were
    taken as, or PASSED. `stands`: the instructions at which an open one waits for a row."""

    start: int
    outcome: Outcome
    extent_us: int
    symbols: tuple[int, ...] = ()
    stands: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """The last row that was taken; `start` if none was."""
        return self.start + max(0, len(self.symbols) - 1)


@dataclass(slots=True)
class Scan:
    """`found`: matches, and partial ones that timed out, as far as asked for. `open`: the attempt at which the scan
    stopped. `needed_us`: of each row of the scan, the time of a row that still needs it: the largest extent of the
    attempts up to it."""

    found: list[Attempt] = field(default_factory=list)
    given_up: list[Attempt] = field(default_factory=list)
    open: Attempt | None = None
    needed_us: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Settings:
    """`skip`: where the scan goes on behind a match: ("past_last", -1), ("to_next", -1), ("to_first", symbol) or
    ("to_last", symbol). `wait_us`: how long behind `within` the frontier must be until the time is over."""

    within_us: int
    wait_us: int = 0
    skip: tuple[str, int] = ("past_last", -1)
    timed_out: bool = False


def labels(attempt: Attempt) -> list[tuple[int, int]]:
    """The (symbol, row) of each row that was taken, in order."""
    return [(symbol, row) for row, symbol in enumerate(attempt.symbols, attempt.start) if symbol != PASSED]


def scan(
    program: Program,
    rows: Rows,
    settings: Settings,
    low: int,
    high: int,
    frontier_us: float,
    *,
    needed_us: int,
    stop: int = -1,
    limits: Limits = LIMITS,
) -> Scan:
    """The matches of the rows low..high, all of one key; `low` is where an attempt begins. `frontier_us`: no row is
    expected whose time is before that. `needed_us`: of the row before the first. `stop`: a row at which no attempt is
    made any more."""
    times, marks, first = rows.times_us, rows.marks, program.first
    within_us, wait_us = settings.within_us, settings.wait_us
    out = Scan()
    found, needs = out.found, out.needed_us
    attempt = _by_history if any(test is not None for test in rows.tests) else _by_row
    dead: set[int] = set()
    precise = program.quiet or settings.timed_out
    at = low
    while at < high:
        start_us = times[at]
        if at == stop:
            break
        if not marks[at] & first:
            needed_us = max(needed_us, start_us)
            needs.append(needed_us)
            at += 1
            continue
        until_us = start_us + within_us
        end = high if times[high - 1] <= until_us else bisect_right(times, until_us, at, high)
        over = frontier_us > until_us + wait_us
        if not over and not precise:
            over = end < high
        made = attempt(program, rows, at, end, until_us, over, settings.timed_out, limits, dead)
        if made.outcome == "open":
            out.open = made
            needed_us = max(needed_us, until_us)
            break
        needed_us = max(needed_us, made.extent_us)
        after = at + 1
        if made.outcome == "match":
            found.append(made)
            after = _after(settings.skip, made)
        elif made.outcome == "timed_out":
            found.append(made)
        elif made.outcome == "given_up":
            out.given_up.append(made)
        if after == at + 1:
            needs.append(needed_us)
        else:  # rows of a match where no attempt is made are needed as long as it
            needs.extend([needed_us] * (after - at))
        at = after
    if len(needs) < high - low:
        needs.extend([needed_us] * (high - low - len(needs)))
    return out


def _after(skip: tuple[str, int], match: Attempt) -> int:
    """The row at which the next attempt is made: behind the first row of the match, whatever was asked for."""
    how, symbol = skip
    if how == "to_next":
        return match.start + 1
    if how == "past_last":
        return match.last + 1
    of = [row for each, row in labels(match) if each == symbol]
    return max(match.start + 1, of[0] if how == "to_first" else of[-1])


def _taken(symbols: list[int]) -> tuple[int, ...]:
    """Up to the last row that was taken."""
    size = len(symbols)
    while size and symbols[size - 1] == PASSED:
        size -= 1
    return tuple(symbols[:size])


def _of_trail(trail: Trail, start: int) -> tuple[int, ...]:
    symbols = [] if trail is None else [PASSED] * (trail[2] + 1 - start)
    while trail is not None:
        trail, symbol, row, _ = trail
        symbols[row - start] = symbol
    return tuple(symbols)


def _standing(at: int, end: int, ways: list[tuple[int, int, Any]]) -> tuple[int, ...]:
    """Where ways stand at the last known row, the most preferred one first."""
    return at, *(other for other, row, _ in reversed(ways) if row == end)


def _by_row(
    program: Program,
    rows: Rows,
    start: int,
    end: int,
    until_us: int,
    over: bool,
    timed_out: bool,
    limits: Limits,
    dead: set[int],
) -> Attempt:
    """Conditions look at one row. `dead`: the (instruction, row) from which no way leads on, of earlier attempts at
    rows of this key; what is found here is added if it does not depend on where this attempt ends. A way that is left
    for later: its instruction and row, and whether it passes over the row before."""
    code, marks, size = program.code, rows.marks, len(program.code)
    ways: list[tuple[int, int, bool]] = []
    seen: set[int] = set()
    late: tuple[int, ...] = ()
    at, row = 0, start
    symbols: list[int] = []  # of the rows from `start` on that this way has taken
    furthest, bound = start, start + limits.rows
    ended = False
    times = rows.times_us
    while True:
        op, one, other = code[at]
        failed = False
        if op == ROW:
            if row == end:
                ended = True
                if not over:
                    return Attempt(start, "open", until_us, _taken(symbols), _standing(at, end, ways))
                late = late or _taken(symbols)
                failed = True
            else:
                if row > furthest:
                    furthest = row
                    if row >= bound:
                        return Attempt(start, "given_up", until_us if ended else times[furthest])
                if marks[row] & one:
                    symbols.append(other)
                    at += 1
                    row += 1
                else:
                    failed = True
        elif op == FORK:
            place = row * size + at
            if place in seen or place in dead:
                failed = True
            else:
                seen.add(place)
                ways.append((other, row, False))
                at = one
        elif op == MATCH:
            return Attempt(start, "match", until_us if ended else times[furthest], _taken(symbols))
        elif op == JUMP:
            at = one
        elif op == SKIP:
            place = row * size + at
            if place in seen or place in dead:
                failed = True
            else:
                seen.add(place)
                if row < end:
                    if row > furthest:
                        furthest = row
                        if row >= bound:
                            return Attempt(start, "given_up", until_us if ended else times[furthest])
                    if not marks[row] & one:
                        ways.append((at, row + 1, True))
                at += 1
        else:  # QUIET
            if row == end:
                if not over:
                    return Attempt(start, "open", until_us, _taken(symbols), _standing(at, end, ways))
                return Attempt(start, "match", until_us, _taken(symbols))
            place = row * size + at
            if row > furthest:
                furthest = row
                if row >= bound:
                    return Attempt(start, "given_up", until_us if ended else times[furthest])
            if marks[row] & one or place in seen or place in dead:
                failed = True
            else:
                seen.add(place)
                symbols.append(PASSED)
                row += 1
        if failed:
            if not ways:
                break
            at, row, passes = ways.pop()
            del symbols[row - start - passes :]
            if passes:
                symbols.append(PASSED)
    if not ended:
        dead |= seen
        return Attempt(start, "none", times[furthest])
    if timed_out and late:
        return Attempt(start, "timed_out", until_us, late)
    return Attempt(start, "none", until_us)


def _by_history(
    program: Program,
    rows: Rows,
    start: int,
    end: int,
    until_us: int,
    over: bool,
    timed_out: bool,
    limits: Limits,
    dead: set[int],  # noqa: ARG001 (what failed with some rows before may not fail with others)
) -> Attempt:
    """Conditions look at earlier rows of the match, too: each way sums up what it needs of them."""
    code, marks, tests, add = program.code, rows.marks, rows.tests, rows.add
    assert add is not None
    ways: list[tuple[int, int, Trail]] = []
    late: Trail = None
    at, row = 0, start
    trail: Trail = None
    furthest, bound, steps = start, start + limits.rows, 0
    ended = False

    def extent_us() -> int:
        return until_us if ended else rows.times_us[furthest]

    while True:
        op, one, other = code[at]
        failed = False
        steps += 1
        if row < end and row > furthest:
            furthest = row
        if steps > limits.steps or row >= bound:
            return Attempt(start, "given_up", extent_us())
        if op == MATCH:
            return Attempt(start, "match", extent_us(), _of_trail(trail, start))
        if op == FORK:
            ways.append((other, row, trail))
            at = one
        elif op == JUMP:
            at = one
        elif row == end and op == SKIP:
            at += 1
        elif row == end:
            ended = True
            if not over:
                return Attempt(start, "open", until_us, _of_trail(trail, start), _standing(at, end, ways))
            if op == QUIET:
                return Attempt(start, "match", until_us, _of_trail(trail, start))
            late = late or trail
            failed = True
        else:
            summed = rows.nothing if trail is None else trail[3]
            is_it = marks[row] & one
            test = tests[other]
            if is_it:
                summed = add(summed, other, row)
                is_it = test is None or test(row, summed)
            if op == ROW:
                if is_it:
                    trail = (trail, other, row, summed)
                    at += 1
                    row += 1
                else:
                    failed = True
            elif op == SKIP:
                if not is_it:
                    ways.append((at, row + 1, trail))
                at += 1
            elif is_it:
                failed = True
            else:
                row += 1
        if failed:
            if not ways:
                break
            at, row, trail = ways.pop()
    if not ended:
        return Attempt(start, "none", rows.times_us[furthest])
    if timed_out and late is not None:
        return Attempt(start, "timed_out", until_us, _of_trail(late, start))
    return Attempt(start, "none", until_us)
