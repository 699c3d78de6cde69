"""Which queries lie under which terms, as arrays: sorted by term, so that all terms of a batch are looked up at once.
What was added last lies apart, and is sorted in when it is an eighth of the rest: so to add a query costs little."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["NONE", "OTHERS", "Postings"]

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
TAIL_MIN = 4_096
OTHERS = 3
"""So many of the other terms that a query needs lie beside it."""
NONE = -1


class _Sorted:
    def __init__(self, keys: I64, slots: I64, others: I32) -> None:
        order = np.argsort(keys, kind="stable")
        keys, self.slots, self.others = keys[order], slots[order], others[order]
        begins = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
        self.keys, self.starts = keys[begins], begins
        self.lengths = np.diff(np.append(self.starts, len(keys)))

    def found(self, keys: I64) -> tuple[I64, I64, I64]:
        """Which of the keys are there, and where their slots begin, and how many there are."""
        if not len(self.keys):
            none = np.zeros(0, np.int64)
            return none, none, none
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        there = np.flatnonzero(self.keys[at] == keys)
        return there, self.starts[at[there]], self.lengths[at[there]]


class Postings:
    def __init__(self) -> None:
        self._main, self._tail = _nothing(), _nothing()
        self._keys: list[int] = []
        self._slots: list[int] = []
        self._others: list[tuple[int, ...]] = []
        self._sorted = 0

    def add(self, key: int, slot: int, others: tuple[int, ...]) -> None:
        """`others`: `OTHERS` terms that a record must have besides, or `NONE`."""
        self._keys.append(key)
        self._slots.append(slot)
        self._others.append(others)

    def _settle(self) -> None:
        """Sorts what was added since."""
        if len(self._keys) == self._sorted:
            return
        keys, slots = np.array(self._keys, np.int64), np.array(self._slots, np.int64)
        others = np.array(self._others, np.int32)
        main = self._main
        if len(keys) > max(TAIL_MIN, len(main.slots) // 8):
            keys = np.concatenate([np.repeat(main.keys, main.lengths), keys])
            slots, others = np.concatenate([main.slots, slots]), np.concatenate([main.others, others])
            self._main, self._tail = _Sorted(keys, slots, others), _nothing()
            self._keys, self._slots, self._others, self._sorted = [], [], [], 0
            return
        self._tail, self._sorted = _Sorted(keys, slots, others), len(keys)

    def candidates(self, keys: I64, rows: I64, most: int) -> Iterator[tuple[I64, I64, I32]]:
        """Rows with the slots that lie under their keys, and the others of each; about so many at a time, `most`."""
        self._settle()
        for part in (self._main, self._tail):
            there, starts, lengths = part.found(keys)
            ends = np.cumsum(lengths)
            begin = 0
            while begin < len(there):
                before = 0 if begin == 0 else ends[begin - 1]
                end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
                some, length = slice(begin, end), lengths[begin:end]
                total = int(length.sum())
                inside = np.arange(total) - np.repeat(np.cumsum(length) - length, length)
                at = np.repeat(starts[some], length) + inside
                yield np.repeat(rows[there[some]], length), part.slots[at], part.others[at]
                begin = end


def _nothing() -> _Sorted:
    return _Sorted(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, OTHERS), np.int32))
