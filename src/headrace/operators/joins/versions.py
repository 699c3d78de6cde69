"""The versions of a table's rows, and which of them answers a question. Owns the table in which versions are kept: by
key, then by the time from which a version is valid, then by its position in the log.

A question is (key, at, upto): of the versions of that key that are valid from `at` or before, and arrived by `upto`,
which is the last in the order of valid time, arrival, partition and offset? A delete is a version, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.groups import Groups
from headrace.durations import INSTANT_MAX_US
from headrace.operators.joins.changelog import without_marks
from headrace.operators.joins.newest import Newest
from headrace.operators.result_rows import aligned, column, key_numbers
from headrace.views.keyed import Column, State, TableSpec
from headrace.views.values import arrow_type, cast_to, numbered, us_column

__all__ = ["DELETED", "LATEST_US", "NONE", "ORDER", "Questions", "Versions", "answers", "is_later"]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NONE = -1
"""The number of the version that answers a question to which there is no answer."""
LATEST_US = 2**63 - 1
PLACE = (
    Column("/valid_from", "timestamp"),
    Column("/arrived_at", "timestamp"),
    Column("/partition", "int"),
    Column("/offset", "bigint"),
)
"""What the key of a version has behind the key of its row."""
ORDER = tuple(each.name for each in PLACE)
DELETED = "/deleted"
PASSES = "/passes"
"""When it has been valid for as long as versions are kept, and has arrived; null: it did, and is the last of its key
that did. Of several that did, no question asks for any but the last."""
MORE = 8
"""If the versions that were read do not answer a question, so many times as many are read next."""


@dataclass(frozen=True)
class Questions:
    """`keys`: the row that each asks for, none of them null; times in microseconds."""

    keys: pa.Table
    at: I64
    upto: I64

    def take(self, numbers: I64) -> Questions:
        return Questions(self.keys.take(pa.array(numbers)), self.at[numbers], self.upto[numbers])


@dataclass(frozen=True)
class Versions:
    """`key`, `columns`: of the table's rows, as far as they are kept. `valid_from`: the column that says from when a
    version is valid; None: from its arrival on. `keep_us`: a question asks for no time that is further than this before
    the arrival of who asks; None: for any."""

    name: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    valid_from: str | None
    keep_us: int | None = None

    @property
    def key_names(self) -> list[str]:
        return [each.name for each in self.key]

    @property
    def spec(self) -> TableSpec:
        columns = (Column(DELETED, "boolean"), *self.columns)
        if self.keep_us is None:
            return TableSpec(self.name, (*self.key, *PLACE), columns)
        return TableSpec(self.name, (*self.key, *PLACE), (*columns, Column(PASSES, "timestamp")), PASSES)

    @property
    def none(self) -> pa.Table:
        """No versions, with their columns."""
        columns = (*self.spec.key, *self.spec.columns)
        return pa.schema([(each.name, arrow_type(each.type)) for each in columns]).empty_table()

    def rows_of(self, changes: pa.Table) -> pa.Table:
        """The versions that a changelog says, each once, in their order. A change with a null in its key, or without
        the time from which it is valid, is none."""
        changes = without_marks(changes)
        place = dict(
            zip(ORDER, (self.valid_from or "_arrived_at", "_arrived_at", "_partition", "_offset"), strict=True)
        )
        made = {DELETED: pc.equal(changes["_op"], "delete")}
        if self.keep_us is not None:
            valid, arrived = (column(changes, place[name]).cast(pa.int64()) for name in ORDER[:2])
            passes = pc.max_element_wise(pc.add(valid, self.keep_us), arrived)
            made[PASSES] = pc.min_element_wise(passes, INSTANT_MAX_US).cast(arrow_type("timestamp"))
        rows = pa.table(
            {
                each.name: made[each.name]
                if each.name in made
                else cast_to(column(changes, place.get(each.name, each.name)), arrow_type(each.type))
                for each in (*self.spec.key, *self.spec.columns)
            }
        )
        for name in self.spec.key_names:
            rows = rows.filter(rows[name].is_valid()) if rows[name].null_count else rows
        rows = rows.take(pa.array(np.lexsort(_place_of(rows)[::-1])))
        if not np.all([each[1:] == each[:-1] for each in _place_of(rows)], axis=0).any():
            return rows
        one_of = np.unique(numbered(rows, self.spec.key_names), return_index=True)[1]
        return rows.take(pa.array(np.sort(one_of)))

    def stored(self, state: State, questions: Questions, newest: Newest) -> tuple[pa.Table, I64]:
        """Versions from the state, and which of them answers each question. Most questions are answered by the newest
        version of their key, or the one that is last by then; for the others, more and more are read: of keys with many
        questions for all of these together, of the rest for each question alone."""
        tables, answer = [self.none], np.full(len(questions.at), NONE, np.int64)
        waiting, read = np.arange(len(questions.at)), 0
        known = newest.of(questions.keys, lambda keys: state.scan(self.name, keys, limit=1, descending=True))
        if known is not None:
            rows, number = known
            valid, arrived, _, _ = _place_of(rows)
            there = np.asarray(column(rows, ORDER[0]).is_valid())[number]
            fits = there & (valid[number] <= questions.at) & (arrived[number] <= questions.upto)
            answer[fits], waiting = number[fits], np.flatnonzero(there & ~fits)
            tables, read = [rows], rows.num_rows
        key = key_numbers(questions.keys)[0] if len(waiting) else waiting
        for alone in (False, True):
            count = 1
            while len(waiting):
                groups = Groups(_dense(key[waiting], questions.at[waiting] if alone else None))
                asked = np.full(groups.count, True) if alone else groups.sizes >= count
                if not asked.any():
                    break
                high = groups.greatest(questions.at[waiting])
                prefixes = questions.keys.take(pa.array(waiting[groups.first[asked]]))
                rows = state.scan(self.name, prefixes, high=high[asked].tolist(), limit=count, descending=True)
                mine = asked[groups.number]
                some = waiting[mine]
                search = _Search(rows, questions.keys.take(pa.array(some)))
                place = search.places(questions.at[some])
                found = search.arrived_by(place, questions.upto[some])
                # What lies further back may not be all that there is: it was read for another question.
                answered = (found != NONE) & (place - found < count)
                answer[some[answered]] = read + search.order[found[answered]]
                all_read = search.places(high[groups.number[mine]]) + 1 - search.begin < count
                waiting = np.setdiff1d(waiting, some[answered | all_read], assume_unique=True)
                tables.append(rows)
                read, count = read + rows.num_rows, count * MORE
        return pa.concat_tables(tables), answer

    def settled(self, state: State, fresh: pa.Table, upto_us: int | None) -> tuple[pa.Table, pa.Table]:
        """The keys of versions that answer no question any more, and those that are the last before them. `upto_us`:
        who asks from now on arrives then or later. `fresh`: what is written anyway."""
        passed = self.none if self.keep_us is None or upto_us is None else state.due(self.name, upto_us)
        if not passed.num_rows:
            return self.none.select(self.spec.key_names), self.none
        groups = Groups(_dense(key_numbers(passed.select(self.key_names))[0], None))
        high = groups.greatest(us_column(passed[ORDER[0]]))
        rows = state.scan(self.name, passed.select(self.key_names).take(pa.array(groups.first)), high=high.tolist())
        passes = column(rows, PASSES).cast(pa.int64()).fill_null(-(2**63)).to_numpy()
        rows = rows.filter(pa.array(passes <= upto_us)).select(self.spec.names)
        groups = Groups(_dense(key_numbers(rows.select(self.key_names))[0], None))
        last = np.zeros(rows.num_rows, np.bool_)
        last[groups.greatest(np.arange(rows.num_rows))] = True  # a state answers in the order of keys
        stays = rows.filter(pa.array(last & (aligned(rows, fresh, self.spec.key_names) < 0)))
        none = pa.nulls(stays.num_rows, arrow_type("timestamp"))
        stays = stays.set_column(stays.column_names.index(PASSES), PASSES, none)
        return rows.filter(pa.array(~last)).select(self.spec.key_names), stays

    def next_valid_us(self, state: State, rows: pa.Table) -> I64:
        """For each of these versions, a time for which it is no answer, nor for later ones: from then on another in the
        state is valid, which had arrived before, or counts whenever it arrived."""
        keys, valid, arrived = rows.select(self.key_names), *_place_of(rows)[:2]
        found = state.scan(self.name, keys, (valid + 1).tolist(), [LATEST_US] * len(valid), limit=1)
        out = np.full(len(valid), LATEST_US, np.int64)
        if found.num_rows:
            search = _Search(found, keys)
            place = search.places(valid) + 1
            row = search.order[np.minimum(place, found.num_rows - 1)]
            known = place < search.end
            if self.valid_from is not None:
                known &= us_column(found[ORDER[1]])[row] <= arrived
            out[known] = us_column(found[ORDER[0]])[row[known]]
        return out


def answers(rows: pa.Table, questions: Questions) -> I64:
    """Which of these versions answers each question. The versions of a key are in their order, and all there are."""
    if not rows.num_rows or not len(questions.at):
        return np.full(len(questions.at), NONE, np.int64)
    search = _Search(rows, questions.keys)
    found = search.arrived_by(search.places(questions.at), questions.upto)
    return np.where(found == NONE, NONE, search.order[found])


def is_later(rows: pa.Table, others: pa.Table) -> Flags:
    """Whether each version is later than the other beside it, by their `ORDER` columns. Null is the earliest."""
    later, same = np.zeros(rows.num_rows, np.bool_), np.ones(rows.num_rows, np.bool_)
    for mine, theirs in zip(_place_of(rows), _place_of(others), strict=True):
        later |= same & (mine > theirs)
        same &= mine == theirs
    return later


class _Search:
    """Versions, by key and valid time; places are numbers in that order. `order`: the row at each place; `begin`,
    `end`: between which the versions of each question's key are."""

    def __init__(self, rows: pa.Table, keys: pa.Table) -> None:
        self._mine, theirs = key_numbers(keys, rows)
        self.order = np.argsort(theirs, kind="stable")  # versions of a key are in their order
        valid, arrived, _, _ = _place_of(rows)
        self._times, self._arrived = np.unique(valid), arrived[self.order]
        self._width = len(self._times) + 1
        self._codes = (theirs * self._width + np.searchsorted(self._times, valid))[self.order]
        self.begin = np.searchsorted(self._codes, self._mine * self._width)
        self.end = np.searchsorted(self._codes, (self._mine + 1) * self._width)

    def places(self, at: I64) -> I64:
        """For each question, the place of the last version of its key that is valid by then; before `begin`: none."""
        code = self._mine * self._width + np.searchsorted(self._times, at, side="right")
        return np.searchsorted(self._codes, code) - 1

    def arrived_by(self, place: I64, upto: I64) -> I64:
        """For each question, the last place, at that one or before it, of a version that had arrived by then."""
        found, there = place.copy(), np.flatnonzero(place >= self.begin)
        late = there[self._arrived[place[there]] > upto[there]]
        if len(late):
            found[late] = _last_at_most(self._arrived, place[late], upto[late])
        return np.where(found < self.begin, NONE, found)


def _last_at_most(values: I64, place: I64, most: I64) -> I64:
    """For each place, the last one, at it or before it, whose value is at most that; below 0: none. The least values of
    1, 2, 4, … neighbours say how far to go back."""
    least, width = [values], 1
    while 2 * width <= len(values):
        wide = least[-1].copy()
        wide[width:] = np.minimum(wide[width:], least[-1][:-width])
        least.append(wide)
        width *= 2
    for level in reversed(least):
        place = np.where((place >= 0) & (level[place] > most), place - width, place)
        width //= 2
    return place


def _place_of(rows: pa.Table) -> list[I64]:
    """The `ORDER` columns as numbers."""
    return [column(rows, name).cast(pa.int64()).fill_null(-(2**63)).to_numpy() for name in ORDER]


def _dense(number: I64, at: I64 | None) -> I64:
    """The same for rows with the same number, and the same time; without gaps."""
    if at is not None:
        times, rank = np.unique(at, return_inverse=True)
        number = number * len(times) + rank.reshape(-1)
    return np.unique(number, return_inverse=True)[1].reshape(-1)
