"""A table's history: the versions of each key, and from when to when each is valid; if it is bitemporal, also from when
to when that was known. Owns the tables `history` and `deletes`, and how rows are read as of a time. Pure.

A version is known by its key, its valid time and its position. Of several with the same valid time the last by position
counts. It is valid until the next valid time of its key, be it a version's or a delete's. A valid time never goes
again, so a change touches its neighbours and nothing else: the version before it ends where it begins, and it ends
where the one behind it begins.

Rows of a bitemporal history are rectangles: valid from and to, known from and to. A change that is known from `k` on
closes at `k` the rectangles that it touches, and opens others. So the rows that were known at a time say which versions
were valid when, as far as was known then: `valid_at(known_at(rows, known_us), valid_us)`. Where changes of a key are
read in another order than they arrived in, rectangles that are closed would change: then those of the key are made
anew, of all its versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import INSTANT_MIN_US
from headrace.operators.joins.changelog import CHANGE, POSITION, Keys
from headrace.operators.result_rows import Pieces, aligned, column, keys_of
from headrace.schema import VERSION_COLUMN
from headrace.views.keyed import Column, State, TableSpec
from headrace.views.values import INSTANT, arrow_type, cast_to, time_column, us_column

__all__ = [
    "DELETES",
    "HISTORY",
    "OTHER_VERSION",
    "OWN",
    "VALID",
    "VERSION",
    "History",
    "known_at",
    "valid_at",
    "valid_times",
    "version_column",
]

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
HISTORY, DELETES = "history", "deletes"
VALID = Column("/valid_from", "timestamp")
"""Of a change, and of a table's row: from when on it is valid."""
VERSION, OTHER_VERSION = Column("version", "string"), Column(VERSION_COLUMN, "string")
"""Which record made a row: its partition and offset. The second where the table has a column `version` of its own."""
VALID_FROM, VALID_TO, KNOWN_FROM, KNOWN_TO = (
    Column(name, "timestamp") for name in ("valid_from", "valid_to", "known_from", "known_to")
)
OWN = tuple(each.name for each in (VALID_FROM, VALID_TO, KNOWN_FROM, KNOWN_TO))
NEVER, FOREVER = -(2**63), 2**63 - 1
UPSERT, DELETE, MARK = 0, 1, 2
"""Kinds of entries. A mark stands for a valid time of which only the time is known."""


def version_column(names: Iterable[str]) -> Column:
    """The column that says which record made a row, in a table with these columns."""
    return OTHER_VERSION if VERSION.name in (name.lower() for name in names) else VERSION


def valid_times(changes: pa.Table, valid_from: str | None) -> pa.Array:
    """Since when the row of each change is valid. `valid_from`: the column that says so; without one, and where it is
    null, arrival is."""
    arrived = column(changes, POSITION[0].name)
    return arrived if valid_from is None else pc.coalesce(cast_to(column(changes, valid_from), INSTANT), arrived)


# -- reading -------------------------------------------------------------------------------------------------


def valid_at(history: pa.Table, us: int | None) -> pa.Table:
    """The rows that are valid at that time; None: those whose validity has no end. Of a bitemporal history choose what
    was known first."""
    return _within(history, VALID_FROM.name, VALID_TO.name, us)


def known_at(history: pa.Table, us: int | None) -> pa.Table:
    """The rows of a bitemporal history that were known at that time; None: that are known now."""
    return _within(history, KNOWN_FROM.name, KNOWN_TO.name, us)


def _within(history: pa.Table, begin: str, end: str, us: int | None) -> pa.Table:
    endless = pc.is_null(history[end])
    if us is None:
        return history.filter(endless)
    at = pa.scalar(us, pa.int64()).cast(INSTANT)
    ends_later = pc.or_kleene(endless, pc.greater(history[end], at))
    return history.filter(pc.and_(pc.less_equal(history[begin], at), ends_later))


# -- folding -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entries:
    """Changes of some keys that have been, or are new. `start`: since when each is known, as far as that matters."""

    rows: pa.Table
    kind: npt.NDArray[np.int8]
    start: I64
    new: Flags


class History:
    """`values`: the table's columns besides its key, without one that is called `valid_from`. `keep_us`: a version goes
    when it has not been valid for so long, by the newest arrival; None: none goes. What is left is what it would be if
    all had stayed, since the one that was valid then stays, be it a version or a delete."""

    def __init__(
        self, key: Sequence[Column], values: Sequence[Column], *, bitemporal: bool, keep_us: int | None = None
    ) -> None:
        self.keep_us = keep_us
        known, until = ((KNOWN_FROM,), (KNOWN_TO,)) if bitemporal else ((), ())
        self.bitemporal, version = bitemporal, version_column(each.name for each in (*key, *values))
        self._key = [each.name for each in key]
        columns, ends = (*values, VALID_TO, *until, version, *POSITION), None if keep_us is None else VALID_TO.name
        self.spec = TableSpec(HISTORY, (*key, VALID_FROM, *known), columns, ends)
        gone = POSITION if keep_us is None else (VALID_TO, *POSITION)
        self.deletes = TableSpec(DELETES, (*key, VALID_FROM, *known), gone, ends)
        kept = (*key, VALID_FROM, *values, version, *POSITION)
        self._schema = pa.schema([(each.name, arrow_type(each.type)) for each in kept])

    def last_deletes(self, keys: pa.Table, state: State) -> pa.Table:
        """Of keys that have no row now: the last delete of each, as far as there is one."""
        found = state.scan(DELETES, keys, limit=1, descending=True)
        return found.append_column(VALID.name, found[VALID_FROM.name])

    def drop(self, reach_us: int | None, pieces: Pieces) -> int:
        """Versions that ended by the time that comes back go. `reach_us`: the newest arrival."""
        if self.keep_us is None or reach_us is None or reach_us - self.keep_us < INSTANT_MIN_US:
            return NEVER
        pieces.drops[HISTORY] = pieces.drops[DELETES] = reach_us - self.keep_us
        return reach_us - self.keep_us

    def fold(
        self,
        changes: pa.Table,
        keys: Keys,
        rows: pa.Table,
        deletes: pa.Table,
        state: State,
        pieces: Pieces,
        dropped_us: int = NEVER,
    ) -> None:
        """`changes`: with `VALID` and their version. `rows`, `deletes`: what is the last of each of the keys now."""
        valid_us, last_us = us_column(changes[VALID.name]), np.full(keys.rows.num_rows, NEVER)
        for last in (rows, deletes):
            last_us[aligned(last, keys.rows, self._key)] = us_column(last[VALID.name])
        known = [self._entries(rows, UPSERT), self._entries(deletes, DELETE)]
        inside = valid_us < last_us[keys.number]
        if inside.any():
            known += self._neighbours(keys, keys.number[inside], valid_us[inside], state)
        kinds = np.where(np.asarray(pc.equal(column(changes, CHANGE), "upsert")), UPSERT, DELETE)
        fresh = self._entries(changes, kinds, new=True)
        entries = _joined([*known, fresh])
        number = aligned(entries.rows, keys.rows, self._key)
        again = self._disordered(entries, number, keys.rows.num_rows)
        if again.any():
            mine = keys_of(keys.rows, self._key, np.flatnonzero(again))
            old, gone = state.scan(HISTORY, mine), state.scan(DELETES, mine)
            pieces.delete(HISTORY, old.select(self.spec.key_names))
            kept = np.flatnonzero(entries.new | ~again[number])
            whole = [self._entries(rows, kind, arrived=True) for rows, kind in ((old, UPSERT), (gone, DELETE))]
            entries = _joined([_taken(entries, kept), *whole])
            number = aligned(entries.rows, keys.rows, self._key)
        self._write(entries, number, again, pieces, dropped_us)

    def _neighbours(self, keys: Keys, number: I64, valid_us: I64, state: State) -> list[_Entries]:
        """What lies before, at and behind these valid times of keys."""
        number, valid_us = np.unique(np.stack((number, valid_us)), axis=1)
        prefixes = keys_of(keys.rows, self._key, number)
        places = prefixes.append_column(VALID_FROM.name, time_column(valid_us))
        before, behind = (valid_us - 1).tolist(), (valid_us + 1).tolist()
        found = []
        for table, kind in ((HISTORY, UPSERT), (DELETES, DELETE)):
            below = state.scan(table, prefixes, high=before, limit=1, descending=True)
            at = state.scan(table, places, limit=1, descending=True)
            above = state.scan(table, prefixes, low=behind, limit=1)
            found += [self._entries(_open(rows), kind) for rows in (below, at)] + [self._entries(above, MARK)]
        return found

    def _entries(
        self, rows: pa.Table, kind: int | npt.NDArray[np.int64], *, new: bool = False, arrived: bool = False
    ) -> _Entries:
        """`arrived`: what counts is when each arrived, and not since when its rectangle is known."""
        count, names = rows.num_rows, set(rows.column_names)
        columns = []
        for each in self._schema:
            name = VALID.name if each.name == VALID_FROM.name and VALID.name in names else each.name
            columns.append(rows[name] if name in names else pa.nulls(count, each.type))
        since = KNOWN_FROM.name if KNOWN_FROM.name in names and not arrived else POSITION[0].name
        start = us_column(rows[since]) if self.bitemporal else np.zeros(count, np.int64)
        kinds = np.broadcast_to(np.asarray(kind, np.int8), count)
        return _Entries(pa.table(columns, schema=self._schema), kinds, start, np.full(count, new))

    def _disordered(self, entries: _Entries, number: I64, keys: int) -> Flags:
        """Keys with a change that was known before something that is there already: of what lies beside it."""
        known, first = np.full(keys, NEVER), np.full(keys, FOREVER)
        np.maximum.at(known, number[~entries.new], entries.start[~entries.new])
        np.minimum.at(first, number[entries.new], entries.start[entries.new])
        return first < known

    def _write(self, entries: _Entries, number: I64, again: Flags, pieces: Pieces, dropped_us: int) -> None:
        position = [us_column(entries.rows[each.name]) for each in (VALID_FROM, *POSITION)]
        is_mark = entries.kind == MARK
        start = np.where(is_mark, FOREVER, entries.start)
        position[1] = np.where(is_mark, FOREVER, position[1])  # behind what is there at its time
        order = np.lexsort((*position[::-1], number))
        entries, number, start = _taken(entries, order), number[order], start[order]
        at, kind, new, again = position[0][order], entries.kind, entries.new, again[number]
        found = _intervals(number, at, start, ~new & ~again)
        written = found.touched(new) | again
        self._write_intervals(self.spec, UPSERT, entries, found, written, pieces, dropped_us)
        counts = found.counts
        is_delete = kind == DELETE
        if self.keep_us is None:
            made = np.flatnonzero(new & is_delete & (counts == np.arange(len(at))))
            pieces.put(DELETES, self._deletes(entries, made))
        else:
            self._write_intervals(self.deletes, DELETE, entries, found, written, pieces, dropped_us)
        replaced = ~new & (kind != MARK) & (kind[counts] != kind)
        pieces.delete(DELETES, self._keys_at(entries, start, np.flatnonzero(replaced & is_delete), self.deletes))
        pieces.delete(HISTORY, self._keys_at(entries, start, np.flatnonzero(replaced & ~is_delete & ~again), self.spec))

    def _write_intervals(
        self,
        spec: TableSpec,
        kind: int,
        entries: _Entries,
        found: _Intervals,
        written: Flags,
        pieces: Pieces,
        dropped_us: int,
    ) -> None:
        mine = written[found.entry] & (entries.kind[found.entry] == kind)
        if self.keep_us is not None:
            over = mine & (found.valid_to <= dropped_us)
            pieces.delete(spec.name, self._keys_at(entries, entries.start, found.entry[over], spec))
            mine &= ~over
        entry, made = found.entry[mine], {}
        for name, us in (
            (VALID_TO.name, found.valid_to[mine]),
            (KNOWN_FROM.name, found.known_from[mine]),
            (KNOWN_TO.name, found.known_to[mine]),
        ):
            made[name] = _times(us)
        rows = entries.rows.take(pa.array(entry))
        pieces.put(spec.name, pa.table({name: made[name] if name in made else rows[name] for name in spec.names}))

    def _deletes(self, entries: _Entries, numbers: I64) -> pa.Table:
        return self._placed(entries, entries.start, numbers, self.deletes.names)

    def _keys_at(self, entries: _Entries, start: I64, numbers: I64, spec: TableSpec) -> pa.Table:
        return self._placed(entries, start, numbers, spec.key_names)

    def _placed(self, entries: _Entries, start: I64, numbers: I64, names: Sequence[str]) -> pa.Table:
        rows = entries.rows.take(pa.array(numbers))
        since = time_column(start[numbers])
        return pa.table({name: since if name == KNOWN_FROM.name else rows[name] for name in names})


def _open(rows: pa.Table) -> pa.Table:
    """Without rectangles that are closed: nothing changes them any more, and a delete is the last of their time."""
    return known_at(rows, None) if KNOWN_TO.name in rows.column_names else rows


def _joined(some: Sequence[_Entries]) -> _Entries:
    return _Entries(
        pa.concat_tables([each.rows for each in some]),
        np.concatenate([each.kind for each in some]),
        np.concatenate([each.start for each in some]),
        np.concatenate([each.new for each in some]),
    )


def _taken(entries: _Entries, numbers: I64) -> _Entries:
    rows = entries.rows.take(pa.array(numbers))
    return _Entries(rows, entries.kind[numbers], entries.start[numbers], entries.new[numbers])


def _times(us: I64) -> pa.Array:
    """`FOREVER` is null."""
    return pa.array(us, pa.int64(), mask=us == FOREVER).cast(INSTANT)


# -- intervals -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Intervals:
    """Rectangles: an entry, until when it is valid, and from when to when that was known."""

    entry: I64
    valid_to: I64
    known_from: I64
    known_to: I64
    point: I64
    """Of each entry: the number of its key and valid time."""
    next_point: I64
    """Of each point: the next one of the same key, or one more than there are."""
    counts: I64
    """Of each entry: which one counts of those with its key and valid time that are known since the same time."""

    def touched(self, new: Flags) -> Flags:
        """Entries that a new one has the valid time of, or is the next behind."""
        has_new = np.zeros(len(self.next_point) + 1, np.bool_)
        has_new[self.point[new]] = True
        has_new[:-1] |= has_new[self.next_point]
        flags: Flags = has_new[self.point]
        return flags


def _intervals(key: I64, at: I64, start: I64, since_ever: Flags) -> _Intervals:
    """Of entries sorted by key, valid time and position. `since_ever`: its valid time was known before all others are.

    An entry counts from its start until that of the next with the same valid time. Meanwhile it is valid until the
    least later valid time that is known. That is at last the next one; before that was known, the next one behind it
    that was known sooner; and so on: so each entry follows a chain of points, which is as long as it has rectangles."""
    count = len(key)
    first = np.ones(count, np.bool_)
    first[1:] = (key[1:] != key[:-1]) | (at[1:] != at[:-1])
    begins, point = np.flatnonzero(first), np.cumsum(first) - 1
    points = len(begins)
    end = np.append(np.where(first[1:], FOREVER, start[1:]), FOREVER)
    since = np.append(np.minimum.reduceat(np.where(since_ever, NEVER, start), begins), NEVER)
    same_key = key[begins[1:]] == key[begins[:-1]]
    next_point = np.append(np.where(same_key, np.arange(1, points), points), points)
    sooner, valid_to = _next_sooner(since, next_point), np.append(at[begins], FOREVER)
    entry = np.flatnonzero(start < end)
    behind, until, found = next_point[point[entry]], end[entry], []
    while len(entry):
        begin = np.maximum(start[entry], since[behind])
        some = begin < until
        found.append((entry[some], valid_to[behind[some]], begin[some], until[some]))
        until, more = np.minimum(until, begin), begin > start[entry]
        entry, behind, until = entry[more], sooner[behind[more]], until[more]
    made = [np.concatenate(each) for each in zip(*found, strict=True)]
    runs = first.copy()
    runs[1:] |= start[1:] != start[:-1]
    last = np.append(np.flatnonzero(runs)[1:], count) - 1
    return _Intervals(made[0], made[1], made[2], made[3], point, next_point, last[np.cumsum(runs) - 1])


def _next_sooner(since: I64, next_point: I64) -> I64:
    """For each point the next one of its key that was known before it. The last of `since` is that of no point, which
    is known since ever. Between a point and the one it leads to all were known later: so what leads to another such
    may lead to where that leads."""
    leads = np.append(next_point, len(next_point))
    todo = np.flatnonzero(since > NEVER)
    while len(todo := todo[since[leads[todo]] >= since[todo]]):
        leads[todo] = leads[leads[todo]]
    return leads
