"""Records as an index of queries reads them: the terms of each, and its document. Owns the way from columns to terms:
all of a batch at once, and each different word once, as long as queries ask for the same terms."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.search.fields import Fields
from headrace.search.terms import BEGINNING, CELL, TOP, VALUE, VALUE_BEGINNING, WORD, Scope
from headrace.search.words import folded

__all__ = ["Batch", "Vocabulary", "distinct"]

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
NONE = -1
BETWEEN = " \x00 "
"""Between the words of two texts: no phrase has it."""
WORDS_MAX = 1 << 17
"""So many words of a column are remembered with their terms."""


class Vocabulary:
    """The terms that queries need, each with a number."""

    def __init__(self) -> None:
        self.scopes: dict[Scope, dict[Any, int]] = {}
        self.count = 0
        self._cells: dict[Scope, tuple[int, npt.NDArray[np.uint64], I64]] = {}
        self._words: dict[tuple[str, tuple[str | None, ...]], _Words] = {}

    def number(self, term: tuple[Scope, Any]) -> int:
        scope, key = term
        known = self.scopes.get(scope)
        if known is None:
            known = self.scopes[scope] = {}
        found = known.get(key)
        if found is None:
            found = known[key] = self.count
            self.count += 1
        return found

    def only(self, numbers: I64) -> Vocabulary:
        """Some of the terms, numbered anew. `numbers`: by the number of now, the new one, or NONE."""
        out = Vocabulary()
        out.count = int((numbers != NONE).sum())
        for scope, known in self.scopes.items():
            if some := {key: int(numbers[each]) for key, each in known.items() if numbers[each] != NONE}:
                out.scopes[scope] = some
        return out

    def words(self, whole: str, beginning: str, fields: tuple[str | None, ...]) -> _Words:
        """Of whole words and of beginnings of these fields."""
        known = self._words.get((whole, fields))
        if known is None or known.of_terms != self.count or len(known) > WORDS_MAX:
            wholes, begins = (
                [self.scopes[scope] for field in fields if (scope := (kind, field, 0)) in self.scopes]
                for kind in (whole, beginning)
            )
            known = self._words[whole, fields] = _Words(wholes, begins, self.count)
        return known

    def cells(self, scope: Scope) -> tuple[npt.NDArray[np.uint64], I64]:
        """The cells of a scope in order, with the numbers of their terms."""
        known = self.scopes[scope]
        if scope not in self._cells or self._cells[scope][0] != len(known):
            cells = np.fromiter(known, np.uint64, len(known))
            order = np.argsort(cells)
            self._cells[scope] = len(known), cells[order], np.fromiter(known.values(), np.int64, len(known))[order]
        return self._cells[scope][1:]


class _Words:
    """Which terms words are. Each word is looked up once: so what a record costs does not grow with the terms, among
    which a look is slower the more there are. `of_terms`: it knows so many terms, and is made anew when there are more.
    """

    def __init__(self, wholes: list[dict[Any, int]], begins: list[dict[Any, int]], of_terms: int) -> None:
        self.of_terms = of_terms
        self._wholes = wholes
        self._begins = [(length, known) for known in begins for length in sorted({len(each) for each in known})]
        self._place: dict[str, int] = {}
        self._numbers = np.empty((len(self._wholes) + len(self._begins), 0), np.int32)

    def __len__(self) -> int:
        return len(self._place)

    def numbers(self, words: list[str]) -> I32:
        """For each term that a word may be, and each of these words, its number or NONE."""
        if not len(self._numbers):
            return np.empty((0, len(words)), np.int32)
        place = self._place
        at = [place.setdefault(word, len(place)) for word in words]
        fresh = [*islice(reversed(place), len(place) - self._numbers.shape[1])][::-1]
        if fresh:
            found = [[known.get(word, NONE) for word in fresh] for known in self._wholes]
            found += [[known.get(word[:length], NONE) for word in fresh] for length, known in self._begins]
            self._numbers = np.concatenate([self._numbers, np.array(found, np.int32)], axis=1)
        return self._numbers[:, at]


class Batch:
    """Records of columns that queries ask for."""

    def __init__(self, records: pa.Table, fields: Fields) -> None:
        self.rows = records.num_rows
        self._records, self._fields = records, fields
        self._folded = {name: folded(_whole(records[name])) for name in fields.text}
        self._values: dict[str, list[Any]] = {}

    # -- terms -----------------------------------------------------------------------------------------

    def terms(self, vocabulary: Vocabulary) -> tuple[I64, I64]:
        """Each term of each record once: the record's place, and the term's number."""
        found = [pair for name in self._fields.text for pair in self._of_text(name, vocabulary)]
        for name, kind in self._fields.kinds.items():
            if kind == "value":
                found += self._of_values(name, vocabulary)
            elif kind != "text":
                found += self._of_cells(name, vocabulary)
        if not found or not vocabulary.count:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        pairs = distinct(np.concatenate([row * vocabulary.count + term for row, term in found]))
        row = pairs // vocabulary.count
        return row, pairs - row * vocabulary.count

    def _of_text(self, name: str, vocabulary: Vocabulary) -> Iterable[tuple[I64, I64]]:
        split = pc.ascii_split_whitespace(self._folded[name])
        ends = split.offsets.to_numpy()
        code = split.values.slice(int(ends[0]), int(ends[-1] - ends[0])).dictionary_encode()
        row = np.repeat(np.arange(self.rows), np.diff(ends))
        return _terms(row, code, vocabulary.words(WORD, BEGINNING, (None, name)))

    def _of_values(self, name: str, vocabulary: Vocabulary) -> Iterable[tuple[I64, I64]]:
        column = _whole(self._records[name])
        row = np.flatnonzero(np.asarray(column.is_valid()))
        code = column.drop_null().dictionary_encode()
        return _terms(row, code, vocabulary.words(VALUE, VALUE_BEGINNING, (name,)))

    def _of_cells(self, name: str, vocabulary: Vocabulary) -> Iterable[tuple[I64, I64]]:
        scopes = [scope for scope in vocabulary.scopes if scope[0] == CELL and scope[1] == name]
        if not scopes:
            return
        row, value = self._ordered(name)
        for scope in scopes:
            cells, numbers = vocabulary.cells(scope)
            cell = value >> np.uint64(scope[2])
            at = np.minimum(np.searchsorted(cells, cell), len(cells) - 1)
            there = cells[at] == cell
            yield row[there], numbers[at[there]]

    def _ordered(self, name: str) -> tuple[I64, npt.NDArray[np.uint64]]:
        """The rows with a value in the column, and these values as numbers in their order: see `terms`."""
        column = _whole(self._records[name])
        row = np.flatnonzero(np.asarray(column.is_valid()))
        column = column.drop_null()
        kind = self._fields.kinds[name]
        if kind in ("timestamp", "date"):
            whole = column.cast(pa.timestamp("us", "UTC")) if kind == "timestamp" else column.cast(pa.date32())
            number = whole.cast(pa.int32() if kind == "date" else pa.int64()).to_numpy().astype(np.int64)
            return row, number.view(np.uint64) ^ np.uint64(TOP)
        if kind == "boolean":
            column = column.cast(pa.int8())
        value = column.cast(pa.float64(), safe=False).to_numpy() + 0.0
        row, value = row[~np.isnan(value)], np.ascontiguousarray(value[~np.isnan(value)])
        bits = value.view(np.int64)
        return row, np.where(bits >= 0, bits.view(np.uint64) + np.uint64(TOP), ~bits.view(np.uint64))

    # -- documents -------------------------------------------------------------------------------------

    def document(self, row: int) -> _Document:
        return _Document(self, row)

    def words_of(self, name: str, row: int) -> str:
        text = self._folded[name][row].as_py()
        return "" if text is None else " ".join(text.split())

    def value_of(self, name: str, row: int) -> Any:
        if name not in self._values:
            self._values[name] = self._records[name].to_pylist()
        return self._values[name][row]


class _Document:
    __slots__ = ("_anywhere", "_batch", "_row", "_texts")

    def __init__(self, batch: Batch, row: int) -> None:
        self._batch, self._row = batch, row
        self._anywhere: str | None = None
        self._texts: dict[str, str] = {}

    def anywhere(self) -> str:
        if self._anywhere is None:
            self._anywhere = (
                f" {BETWEEN.join(self._batch.words_of(name, self._row) for name in self._batch._fields.text)} "
            )
        return self._anywhere

    def text(self, field: str) -> str:
        found = self._texts.get(field)
        if found is None:
            found = self._texts[field] = f" {self._batch.words_of(field, self._row)} "
        return found

    def value(self, field: str) -> Any:
        return self._batch.value_of(field, self._row)


def distinct(numbers: I64) -> I64:
    """Each once, in order; sorted, which is quicker than numpy's way of hashing."""
    ordered: I64 = np.sort(numbers)
    once: I64 = ordered[np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)]]
    return once


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _terms(row: I64, words: pa.DictionaryArray, known: _Words) -> Iterable[tuple[I64, I64]]:
    """The terms of words, with the row of each."""
    numbers, at = known.numbers(words.dictionary.to_pylist()), words.indices.to_numpy()
    asked = (numbers != NONE).any(axis=0)[at]
    row, at = row[asked], at[asked]
    for each in numbers:
        number = each[at]
        yield row[number != NONE], number[number != NONE].astype(np.int64)
