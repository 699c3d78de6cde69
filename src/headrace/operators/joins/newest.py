"""The newest version of each key that was asked for, remembered between steps: most questions are answered by it, and
then the state need not be read. Owns that memory. Which version answers a question is `versions`.

What is remembered is true of the state as long as only this operator's steps write versions, and each of them says of
which keys (`changed`): these are read again. A look-up costs as much as there is remembered, so only a step that asks
for many keys looks up. A copy of an operator, for a worker or another flow, remembers nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.operators.result_rows import key_numbers

__all__ = ["Newest"]

I64 = npt.NDArray[np.int64]
NONE = -1
BYTES_MAX = 256 << 20
"""Beyond that, what a step did not ask for is forgotten."""
SHARE = 16
"""A step looks up if it asks for at least one of so many keys that are remembered."""


class Newest:
    def __init__(self) -> None:
        self._rows: pa.Table | None = None
        """One for each key. Of a key without versions, all but the key is null."""
        self._changed: list[pa.Table] = []

    def __reduce__(self) -> tuple[type[Newest], tuple[()]]:
        return Newest, ()

    def __len__(self) -> int:
        return 0 if self._rows is None else self._rows.num_rows

    def forget(self) -> None:
        self._rows, self._changed = None, []

    def changed(self, keys: pa.Table) -> None:
        """The step that ends now writes versions of these keys."""
        if len(self) and keys.num_rows:
            self._changed.append(keys)
            if sum(each.num_rows for each in self._changed) > len(self):
                self.forget()

    def of(self, keys: pa.Table, read: Callable[[pa.Table], pa.Table]) -> tuple[pa.Table, I64] | None:
        """A row for each different key, and for each key the number of its row. `read`: the newest versions of such
        keys, from the state. None where the keys are too few to look up."""
        if not keys.num_rows or keys.num_rows * SHARE < len(self):
            return None
        self._forget_changed(keys.column_names)
        kept = [] if self._rows is None else [self._rows]
        *_, number = key_numbers(*(each.select(keys.column_names) for each in kept), keys)
        count = len(self)  # remembered rows have the first numbers, in their order
        first = np.full(max(int(number.max()) + 1, count), NONE, np.int64)
        first[number[::-1]] = np.arange(len(number))[::-1]
        if len(first) > count:
            unread = keys.take(pa.array(first[count:]))
            self._rows = pa.concat_tables([*kept, _beside(unread, read(unread))]).combine_chunks()
        assert self._rows is not None
        asked = np.flatnonzero(first != NONE)
        found = self._rows.take(pa.array(asked))
        if self._rows.nbytes > BYTES_MAX:
            self._rows = found if found.nbytes <= BYTES_MAX else None
        first[asked] = np.arange(len(asked))
        return found, first[number]

    def _forget_changed(self, key: list[str]) -> None:
        if self._rows is not None and self._changed:
            _, *changed = key_numbers(*(each.select(key) for each in (self._rows, *self._changed)))
            stays = np.ones(len(self), np.bool_)
            for number in changed:
                stays[number[number < len(self)]] = False
            self._rows = self._rows.filter(pa.array(stays))
        self._changed = []


def _beside(keys: pa.Table, rows: pa.Table) -> pa.Table:
    """The row of each key, all of which are different; null but for the key where there is none."""
    number = np.full(keys.num_rows, NONE, np.int64)
    number[key_numbers(keys, rows)[1]] = np.arange(rows.num_rows)
    made = rows.combine_chunks().take(pa.array(np.maximum(number, 0), mask=number == NONE))
    columns = [keys[name] if name in keys.column_names else made[name] for name in made.column_names]
    return pa.table(columns, schema=made.schema)
