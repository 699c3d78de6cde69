"""Row patterns by brute force: every way through a pattern's tree, in order of preference, over rows that are all
known; and patterns at random. Shares the tree with headrace, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.cep.shape import Absent, Choice, Repeat, Row, Shape
from headrace.cep.shape import Sequence as Items

Taken = tuple[tuple[str, int], ...]
Holds = Callable[[str, Taken, int], bool]
"""Whether a row has a symbol, behind what was taken."""


@dataclass
class Window:
    """The rows that one attempt may look at, from its first on. `waits`: what the first way had taken that stood at the
    end and needed one more row. `over`: no row will come behind the end."""

    end: int
    holds: Holds
    waits: Taken | None = field(default=None)
    over: bool = True


class Open(Exception):
    """A row that may still come decides."""


def ways(shape: Shape, window: Window, row: int, taken: Taken, last: bool) -> Iterator[tuple[int, Taken]]:
    match shape:
        case Row(symbol):
            if row == window.end:
                if not window.over:
                    raise Open
                if window.waits is None:
                    window.waits = taken
            elif window.holds(symbol, taken, row):
                yield row + 1, (*taken, (symbol, row))
        case Absent(symbol) if last:
            if not any(window.holds(symbol, taken, each) for each in range(row, window.end)):
                if not window.over:
                    raise Open
                yield window.end, taken
        case Absent(symbol):
            yield row, taken
            while row < window.end and not window.holds(symbol, taken, row):
                row += 1
                yield row, taken
        case Choice(options):
            for each in options:
                yield from ways(each, window, row, taken, False)
        case Items(items):
            yield from _one_by_one(items, window, row, taken, last)
        case Repeat():
            yield from _repeated(shape, window, row, taken, 0)


def _one_by_one(
    items: Sequence[Shape], window: Window, row: int, taken: Taken, last: bool
) -> Iterator[tuple[int, Taken]]:
    if not items:
        yield row, taken
        return
    for at, so_far in ways(items[0], window, row, taken, last and len(items) == 1):
        yield from _one_by_one(items[1:], window, at, so_far, last)


def _repeated(shape: Repeat, window: Window, row: int, taken: Taken, count: int) -> Iterator[tuple[int, Taken]]:
    if count >= shape.least and not shape.greedy:
        yield row, taken
    if shape.most is None or count < shape.most:
        for at, so_far in ways(shape.item, window, row, taken, False):
            yield from _repeated(shape, window, at, so_far, count + 1)
    if count >= shape.least and shape.greedy:
        yield row, taken


def matches(
    shape: Shape,
    times: Sequence[int],
    holds: Holds,
    within: int,
    skip: str,
    *,
    timed_out: bool,
    over: Callable[[int, bool], bool] = lambda _, __: True,
) -> list[tuple[str, Taken]]:
    """Of all rows, which are in order, with nothing to come; or, where time stands still, as far as it is `over`: of
    the time of an attempt's first row, and of whether there are rows behind `within`."""
    found: list[tuple[str, Taken]] = []
    start = 0
    while start < len(times):
        end = start
        while end < len(times) and times[end] <= times[start] + within:
            end += 1
        window = Window(end, holds, over=over(times[start], end < len(times)))
        try:
            _, best = next(ways(shape, window, start, (), True), (0, None))
        except Open:
            break
        if best is not None:
            found.append(("match", best))
            how, _, symbol = skip.partition(":")
            of = [row for each, row in best if each == symbol]
            after = {"past_last": best[-1][1] + 1, "to_next": start + 1}.get(how)
            after = after if after is not None else of[0] if how == "to_first" else of[-1]
            start = max(start + 1, after)
            continue
        if timed_out and window.waits:
            found.append(("timed_out", window.waits))
        start += 1
    return found


# -- at random ---------------------------------------------------------------------------------------------


def random_text(dice: random.Random, symbols: str = "abc", depth: int = 0) -> str:
    """Of a pattern, or of what is refused as one."""

    def item() -> str:
        roll = dice.random()
        if depth < 2 and roll < 0.25:
            return f"({random_text(dice, symbols, depth + 1)})"
        return f"!{dice.choice(symbols)}" if roll > 0.85 else dice.choice(symbols)

    def repeated(text: str) -> str:
        if text.startswith("!") or dice.random() < 0.5:
            return text
        return text + dice.choice(("+", "*", "?", "{2}", "{1,2}", "{2,}", "{,2}")) + dice.choice(("", "", "?"))

    options = [" ".join(repeated(item()) for _ in range(dice.randint(1, 3))) for _ in range(dice.choice((1, 1, 1, 2)))]
    return " | ".join(options)
