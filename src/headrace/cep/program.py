"""Patterns as programs: a list of instructions that says, for each row, what may come. Owns how a tree becomes one, and
how long it may get. Pure.

    ROW bit symbol     takes a row whose conditions hold
    FORK first then    goes on at the one; if that comes to nothing, at the other
    SKIP bit symbol    goes on; if that comes to nothing, passes over a row that is not the symbol
    QUIET bit symbol   passes over rows that are not the symbol, until `within` is over
    JUMP to            goes on there
    MATCH              is one"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from headrace.cep.shape import Absent, Choice, Repeat, Row, Sequence, Shape, first_of
from headrace.errors import InvalidArgument

__all__ = ["FORK", "INSTRUCTIONS_MAX", "JUMP", "MATCH", "QUIET", "ROW", "SKIP", "Program", "compiled"]

ROW, FORK, SKIP, QUIET, JUMP, MATCH = range(6)
INSTRUCTIONS_MAX = 2_000
Code = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Program:
    """`first`: the bits of the symbols that a first row can have."""

    code: tuple[tuple[int, int, int], ...]
    symbols: tuple[str, ...]
    first: int

    @property
    def quiet(self) -> bool:
        """Whether it ends with an absence."""
        return len(self.code) > 1 and self.code[-2][0] == QUIET

    def waits_for(self, stands: Seq[int]) -> str:
        """What could come where a partial match stands, for a person: "big", or "small | big"."""
        names: list[str] = []
        seen, ways = set[int](), list(reversed(stands))
        while ways:
            here = ways.pop()
            if here in seen:
                continue
            seen.add(here)
            op, one, other = self.code[here]
            if op == ROW:
                names.append(self.symbols[other])
            elif op == FORK:
                ways += [other, one]
            elif op == JUMP:
                ways.append(one)
            elif op == QUIET:
                names.append(f"no {self.symbols[other]}")
            elif op == SKIP:
                ways.append(here + 1)
        return " | ".join(dict.fromkeys(names))


def compiled(shape: Shape, symbols: Seq[str], text: str) -> Program:
    """The program of a tree; InvalidArgument if it would be longer than allowed. `text`: as the user wrote it."""
    number = {name: at for at, name in enumerate(symbols)}
    code: Code = []
    _emit(shape, code, number, text, last=True)
    code.append((MATCH, 0, 0))
    return Program(tuple(code), tuple(symbols), sum(1 << number[each] for each in first_of(shape)))


def _emit(shape: Shape, code: Code, number: dict[str, int], text: str, *, last: bool = False) -> None:
    if len(code) >= INSTRUCTIONS_MAX:
        why = (
            f"is too large: written out it has more than {INSTRUCTIONS_MAX:,} steps. Repeat less often, or choose less"
        )
        raise InvalidArgument("pattern", text if len(text) < 200 else f"{text[:200]}…", why)
    match shape:
        case Row(symbol):
            code.append((ROW, 1 << number[symbol], number[symbol]))
        case Absent(symbol):
            code.append((QUIET if last else SKIP, 1 << number[symbol], number[symbol]))
        case Sequence(items):
            for at, each in enumerate(items):
                _emit(each, code, number, text, last=last and at == len(items) - 1)
        case Choice(options):
            ends = []
            for each in options[:-1]:
                fork = len(code)
                code.append((FORK, fork + 1, 0))
                _emit(each, code, number, text)
                ends.append(len(code))
                code.append((JUMP, 0, 0))
                code[fork] = (FORK, fork + 1, len(code))
            _emit(options[-1], code, number, text)
            for end in ends:
                code[end] = (JUMP, len(code), 0)
        case Repeat():
            _emit_repeat(shape, code, number, text)


def _emit_repeat(shape: Repeat, code: Code, number: dict[str, int], text: str) -> None:
    begin = len(code)
    for _ in range(shape.least):
        begin = len(code)
        _emit(shape.item, code, number, text)
    if shape.most is None and shape.least:  # back to the last of those that must be
        code.append(_fork(begin, len(code) + 1, greedy=shape.greedy))
    elif shape.most is None:
        fork = len(code)
        code.append((FORK, 0, 0))
        _emit(shape.item, code, number, text)
        code.append((JUMP, fork, 0))
        code[fork] = _fork(fork + 1, len(code), greedy=shape.greedy)
    else:
        forks = []
        for _ in range(shape.most - shape.least):
            forks.append(len(code))
            code.append((FORK, 0, 0))
            _emit(shape.item, code, number, text)
        for fork in forks:
            code[fork] = _fork(fork + 1, len(code), greedy=shape.greedy)


def _fork(again: int, on: int, *, greedy: bool) -> tuple[int, int, int]:
    return (FORK, again, on) if greedy else (FORK, on, again)
