"""Rows into a view's tables, inside a transaction of the store: merging partial rows, shaping what readers see of
them, dropping what can no longer change or is not kept, and saying what changed. Owns no transaction and no connection.

Cost grows with the rows that are merged, not with the view. Rows are sorted by key first, so that neighbours in the
file are written together, and go in a hundred to a statement: that is twice as fast as one by one."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates import Aggregate, Kept
from headrace.aggregates.families.lists import TopK
from headrace.errors import AggregateFailed, HeadraceError, TransformRefused
from headrace.rows import python_values
from headrace.schema import type_ddl
from headrace.views.contract import WINDOW, Column, Emit, SlotColumn, ViewSpec, change_columns
from headrace.views.reading import quoted
from headrace.views.sqlite.tables import NUMBER, ViewTables, value_type
from headrace.views.sqlite.values import NAN, decode, encode, encode_whole, text_of_us, us_of
from headrace.views.values import arrow_type, as_column, sort_by_key, us_column

__all__ = [
    "Changes",
    "Functions",
    "count_values",
    "ending",
    "ending_after",
    "expire",
    "forget",
    "group_columns",
    "in_order",
    "lists_of",
    "merge",
    "order_of",
    "read_out",
    "reshape",
    "same_groups",
    "stage",
    "staged",
    "staged_rows",
    "take_out",
    "with_whole",
]

Row = tuple[Any, ...]
Shape = Callable[[pa.Table], pa.Table]
ROWS_PER_STATEMENT = 100
TOGETHER = 2_000
"""Rows whose functions are asked at once: what is kept of each may be large."""


def in_order(spec: ViewSpec, partials: pa.Table) -> pa.Table:
    """The rows, sorted by key."""
    return sort_by_key(partials, spec.order)


def with_whole(spec: ViewSpec, partials: pa.Table) -> pa.Table:
    """The rows with sums of whole numbers in a type that holds all of them: Arrow may add them, too."""
    for slot in spec.slots:
        if slot.rule == "whole":
            at = partials.column_names.index(slot.name)
            partials = partials.set_column(at, slot.name, partials[slot.name].cast(arrow_type(slot.type)))
    return partials


def merge(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table, aggregates: Mapping[str, Aggregate]) -> None:
    """Merges rows of key columns and slots; a `distinct` slot comes as a list of values, a `counted` one as a list of
    values with their counts. Not `kept` ones: see `retracting`."""
    if tables.merged:
        for at in range(0, partials.num_rows, TOGETHER):
            _upsert(db, tables, _with_merged(db, tables, partials.slice(at, TOGETHER), aggregates))
    else:
        _upsert(db, tables, partials)
    if tables.distinct or tables.counted:
        _merge_values(db, tables, partials, aggregates)


def _upsert(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table) -> None:
    whole = pa.array(np.ones(partials.num_rows, np.bool_)) if tables.key else pa.array(np.zeros(partials.num_rows) > 0)
    for name in tables.spec.key:
        if partials[name].null_count:
            whole = pc.and_(whole, partials[name].is_valid().combine_chunks())
    keyed = partials if whole.true_count == len(whole) else partials.filter(whole)
    _many(db, tables.upsert, _columns(db, tables, keyed))
    if keyed is not partials:
        for row in zip(*_columns(db, tables, partials.filter(pc.invert(whole))), strict=True):
            _put(db, tables, row)


def _columns(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table) -> list[list[Any]]:
    begin, rows = tables.begins, partials.num_rows
    out = []
    for name in tables.names:
        if name in begin:
            out.append([begin[name]] * rows)
        elif name in tables.whole:
            out.append(encode_whole(partials[name]))
            if str in set(map(type, out[-1])):
                db.execute("SELECT hr_add_whole(?, 0, ?)", (str(2**63), name))  # which notes that there is one
        else:
            out.append(encode(partials[name]))
    return out


def _many(db: sqlite3.Connection, statement: Any, columns: list[list[Any]]) -> None:
    """Runs `statement(count)`, which takes `count` rows, over all rows of the columns."""
    width, rows = len(columns), len(columns[0])
    together = min(ROWS_PER_STATEMENT, db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width)
    flat: list[Any] = [None] * (width * rows)
    for number, column in enumerate(columns):
        flat[number::width] = column
    rest = rows // together * together * width
    if rest:
        step = width * together
        db.executemany(statement(together), (flat[at : at + step] for at in range(0, rest, step)))
    if rest < len(flat):
        db.executemany(statement(1), (flat[at : at + width] for at in range(rest, len(flat), width)))


def _put(db: sqlite3.Connection, tables: ViewTables, row: Row) -> None:
    """One row, nulls in its key and all."""
    if not db.execute(tables.update(), row).rowcount:
        db.execute(tables.insert(), row)


def _with_merged(
    db: sqlite3.Connection, tables: ViewTables, partials: pa.Table, aggregates: Mapping[str, Aggregate]
) -> pa.Table:
    """The rows with what their aggregates' functions make of them, of others of the same key and of what is stored: to
    be put in the place of that. All rows of a key bring the same."""
    stage(db, tables, partials)
    names = ", ".join(f"s.{quoted(slot.name)}" for slot in tables.merged)
    found = {row[0]: row[1:] for row in db.execute(f"SELECT t.number, {names} FROM {staged_rows(tables)}")}
    key_columns = [encode(partials[name]) for name in tables.spec.key]
    groups: dict[Row, list[int]] = {}
    for number, key in enumerate(zip(*key_columns, strict=True) if key_columns else [()] * partials.num_rows):
        groups.setdefault(key, []).append(number)
    place = np.empty(partials.num_rows, np.int64)
    for number, numbers in enumerate(groups.values()):
        place[numbers] = number
    finished = {slot.of: slot for slot in tables.spec.slots if slot.rule == "finished"}
    made: dict[str, pa.Array] = {}
    for at, slot in enumerate(tables.merged):
        result = finished.get(slot.name, slot)
        own = Functions(tables.spec.name, result.name, aggregates[result.name])
        arrow = arrow_type(slot.type)
        olds = [found[numbers[0]][at] if numbers[0] in found else None for numbers in groups.values()]
        news = python_values(partials[slot.name].combine_chunks())
        kept = [
            own.merged([old, *(news[number] for number in numbers)])
            for old, numbers in zip(python_values(decode(olds, arrow)), groups.values(), strict=True)
        ]
        made[slot.name] = own.typed(kept, arrow, "merge")
        if result is not slot:
            made[result.name] = own.typed([own.finished(one) for one in kept], arrow_type(result.type), "finish")
    partials = partials.drop_columns([slot.name for slot in tables.merged])
    for name, values in made.items():
        partials = partials.append_column(name, values.take(pa.array(place)))
    return partials


class Functions:
    """An aggregate's own functions; what they raise says whose they are."""

    def __init__(self, flow: str, name: str, aggregate: Aggregate) -> None:
        self._flow, self._name, self._aggregate = flow, name, aggregate

    def merged(self, values: Iterable[Any]) -> Any:
        some = [value for value in values if value is not None]
        assert self._aggregate.merge is not None
        try:
            return reduce(self._aggregate.merge, some) if some else None
        except Exception as error:
            raise self._failed("merge", f"{type(error).__name__}: {error}") from error

    def finished(self, value: Any) -> Any:
        assert self._aggregate.finish is not None
        try:
            return None if value is None else self._aggregate.finish(value)
        except Exception as error:
            raise self._failed("finish", f"{type(error).__name__}: {error}") from error

    def made_of(self, held: Sequence[tuple[Any, int]]) -> Any:
        """Of values, each with how often it is there."""
        assert isinstance(self._aggregate.algebra, Kept)
        try:
            return self._aggregate.algebra.made_of(held)
        except Exception as error:
            raise self._failed("merge", f"{type(error).__name__}: {error}") from error

    def typed(self, values: list[Any], arrow: pa.DataType, step: str) -> pa.Array:
        try:
            return as_column(values, arrow)
        except (HeadraceError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._failed(step, f"it returned something else than {type_ddl(arrow)}: {error}") from error

    def _failed(self, step: str, why: str) -> AggregateFailed:
        return AggregateFailed(flow=self._flow, aggregate=self._name, step=step, why=why)


def _merge_values(
    db: sqlite3.Connection, tables: ViewTables, partials: pa.Table, aggregates: Mapping[str, Aggregate]
) -> None:
    """Values are kept under their row's number."""
    stage(db, tables, partials)
    wanted = ", ".join(f"s.{name}" for name in (tables.row, *(quoted(slot.name) for slot in tables.counted)))
    found = db.execute(f"SELECT {wanted} FROM {staged_rows(tables)} ORDER BY t.number").fetchall()
    numbers = np.array([row[0] for row in found], np.int64)
    assert len(numbers) == partials.num_rows, "each partial row has its row"
    for slot in (*tables.distinct, *tables.counted):
        lists = partials[slot.name].combine_chunks()
        rows = np.repeat(numbers, lists.value_lengths().fill_null(0).to_numpy()).tolist()
        if slot.rule == "distinct":
            _merge_distinct(db, tables, slot, rows, encode(lists.flatten()))
        else:
            at = tables.counted.index(slot) + 1
            tops = {row[0]: row[at] for row in found}
            _merge_counted(db, tables, slot, rows, lists.flatten(), tops, _limit(aggregates[slot.name]))


def _merge_distinct(
    db: sqlite3.Connection, tables: ViewTables, slot: SlotColumn, rows: list[int], values: list[Any]
) -> None:
    """What was new of the values is added to the row's count."""
    fresh: Counter[int] = Counter()
    pairs = list(zip(rows, values, strict=True))
    for at in range(0, len(pairs), ROWS_PER_STATEMENT):
        some = pairs[at : at + ROWS_PER_STATEMENT]
        add = f"INSERT OR IGNORE INTO {tables.values_of(slot)} VALUES {', '.join(['(?, ?)'] * len(some))}"
        fresh.update(row for (row,) in db.execute(f"{add} RETURNING row", [each for pair in some for each in pair]))
    name = quoted(slot.name)
    counts = [(count, row) for row, count in fresh.items()]
    db.executemany(f"UPDATE {tables.state} SET {name} = {name} + ? WHERE {tables.row} = ?", counts)


def _merge_counted(
    db: sqlite3.Connection,
    tables: ViewTables,
    slot: SlotColumn,
    rows: list[int],
    counts: pa.Array,
    tops: dict[int, str],
    limit: int,
) -> None:
    """Counts only grow: so the most frequent values are among those that were, `tops`, and those that just came."""
    value, arrow, name = value_type(slot), arrow_type(slot.type), quoted(slot.name)
    now: dict[int, dict[Any, int]] = {row: {} for row in tops}
    for row, each, count in count_values(db, tables, slot, rows, counts):
        now[row][each] = max(count, now[row].get(each, 0))
    before = decode(list(tops.values()), arrow)
    of = np.repeat(list(tops), before.value_lengths().to_numpy()).tolist()
    were = before.flatten()
    for row, each, count in zip(of, encode(were.field("value")), encode(were.field("count")), strict=True):
        now[row].setdefault(each, count)
    order = order_of(value)
    best = [sorted(each.items(), key=lambda one: (-one[1], order(one[0])))[:limit] for each in now.values()]
    made = lists_of(best, value, arrow)
    db.executemany(f"UPDATE {tables.state} SET {name} = ? WHERE {tables.row} = ?", zip(made, now, strict=True))


def _limit(aggregate: Aggregate) -> int:
    assert isinstance(aggregate.algebra, TopK)
    return aggregate.algebra.limit


def count_values(
    db: sqlite3.Connection, tables: ViewTables, slot: SlotColumn, rows: list[int], counts: pa.Array
) -> Iterator[tuple[int, Any, int]]:
    """Adds to how often values are there; (row, value, how often now) of each."""
    given = list(zip(rows, encode(counts.field("value")), encode(counts.field("count")), strict=True))
    for at in range(0, len(given), ROWS_PER_STATEMENT):
        some = given[at : at + ROWS_PER_STATEMENT]
        yield from db.execute(
            f"INSERT INTO {tables.values_of(slot)} VALUES {', '.join(['(?, ?, ?)'] * len(some))} "
            f"ON CONFLICT (row, value) DO UPDATE SET count = count + excluded.count RETURNING row, value, count",
            [each for one in some for each in one],
        ).fetchall()


def lists_of(best: Sequence[Sequence[tuple[Any, int]]], value: pa.DataType, arrow: pa.DataType) -> list[Any]:
    """Values with their counts, a list of them for each row, as a column has them."""
    flat = [one for top in best for one in top]
    structs = pa.StructArray.from_arrays(
        [decode([each for each, _ in flat], value), pa.array([count for _, count in flat], pa.int64())],
        fields=list(arrow.value_type),
    )
    ends = pa.array(np.cumsum([0, *map(len, best)]), pa.int32())
    return encode(pa.ListArray.from_arrays(ends, structs, type=arrow))


def order_of(arrow: pa.DataType) -> Callable[[Any], Any]:
    """What orders values as they are in the tables."""
    if pa.types.is_decimal(arrow):
        return Decimal
    if pa.types.is_floating(arrow):
        return lambda value: (value == NAN, 0.0 if value == NAN else value)
    return lambda value: value


def stage(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table) -> None:
    """The rows' keys into a table of this connection, numbered."""
    keys = {f"k{number}": encode(partials[name]) for number, name in enumerate(tables.spec.key)}
    staged(db, "touched", range(partials.num_rows), keys)


def staged(db: sqlite3.Connection, table: str, numbers: Iterable[int], columns: Mapping[str, list[Any]]) -> None:
    """Rows, numbered, into a table of this connection."""
    db.execute(f"DROP TABLE IF EXISTS temp.{table}")
    db.execute(f"CREATE TEMP TABLE {table} (number INTEGER PRIMARY KEY{''.join(f', {name}' for name in columns)})")
    row = f"({', '.join('?' * (1 + len(columns)))})"
    _many(
        db,
        lambda count: f"INSERT INTO temp.{table} VALUES {', '.join([row] * count)}",
        [list(numbers), *columns.values()],
    )


def staged_rows(tables: ViewTables) -> str:
    """The rows of the staged keys, in their order."""
    on = " AND ".join(f"s.{name} IS t.k{number}" for number, name in enumerate(tables.key)) or "1"
    return f"temp.touched t CROSS JOIN {tables.state} s ON {on}"


def take_out(db: sqlite3.Connection, tables: ViewTables, numbers: Iterable[int]) -> pa.Table:
    """Deletes rows, and returns them by their numbers as partial rows: merged again, they are what they were."""
    taken = read_out(db, tables, numbers)
    for table, number in tables.numbered():
        db.execute(f"DELETE FROM {table} WHERE {number} IN (SELECT number FROM temp.taken)")
    return taken


def read_out(db: sqlite3.Connection, tables: ViewTables, numbers: Iterable[int]) -> pa.Table:
    """Rows by their numbers, as partial rows: the other way round than `merge`."""
    staged(db, "taken", sorted(numbers), {})
    apart = {slot.name for slot in tables.with_values} | {
        slot.name for slot in tables.spec.slots if slot.rule == "finished"
    }
    columns = [*tables.spec.places, *(Column(slot.name, slot.type) for slot in tables.spec.slots)]
    columns = [column for column in columns if column.name not in apart]
    columns += [Column("_corrections", "bigint"), Column("_updated_at", "timestamp")]
    names = ", ".join(f"s.{quoted(column.name)}" for column in columns)
    ours = f"temp.taken t CROSS JOIN {tables.state} s ON s.{tables.row} = t.number"
    taken = _table(db.execute(f"SELECT {names} FROM {ours} ORDER BY t.number").fetchall(), columns)
    for slot in tables.with_values:
        taken = taken.append_column(slot.name, _values_of_taken(db, tables, slot))
    return taken


def _values_of_taken(db: sqlite3.Connection, tables: ViewTables, slot: SlotColumn) -> pa.Array:
    """A list for each row, as it comes in partial rows: of values, or of values with their counts."""
    count = "1" if slot.rule == "distinct" else "v.count"
    kept = f"temp.taken t LEFT JOIN {tables.values_of(slot)} v ON v.row = t.number"
    found = db.execute(f"SELECT t.number, v.value, {count} FROM {kept} ORDER BY t.number").fetchall()
    sizes = Counter(number for number, value, _ in found if value is not None)
    ends = pa.array(np.cumsum([0, *(sizes[number] for number in dict.fromkeys(row[0] for row in found))]), pa.int32())
    values = decode([value for _, value, _ in found if value is not None], value_type(slot))
    if slot.rule != "distinct":
        counts = pa.array([count for _, value, count in found if value is not None], pa.int64())
        values = pa.StructArray.from_arrays([values, counts], names=["value", "count"])
    return pa.ListArray.from_arrays(ends, values)


def same_groups(tables: ViewTables, row: str) -> str:
    """For SQL: that the row is of the group of `t`, a staged one, which has it as `k0`, `k1`, …"""
    groups = enumerate(tables.spec.groups)
    return "".join(f" AND {row}.{quoted(column.name)} IS t.k{number}" for number, column in groups)


def group_columns(tables: ViewTables, rows: pa.Table) -> dict[str, list[Any]]:
    """The groups of rows, to be staged."""
    return {f"k{number}": encode(rows[column.name]) for number, column in enumerate(tables.spec.groups)}


# -- what a transform makes of it ------------------------------------------------------------------------


def reshape(db: sqlite3.Connection, tables: ViewTables, partials: pa.Table, shape: Shape) -> None:
    """After the merge: what readers see of the rows that were touched is made anew."""
    spec = tables.spec
    assert spec.shaped is not None
    stage(db, tables, partials)
    found = db.execute(f"SELECT s.{tables.row}, {tables.results()} FROM {staged_rows(tables)} ORDER BY t.number")
    touched = {row[0]: row[1:] for row in found}
    places = [column.name for column in spec.places]
    numbers = {row[: len(places)]: number for number, row in touched.items()}
    shaped = shape(_table(list(touched.values()), spec.result_columns))
    keys = zip(*(encode(shaped[name]) for name in places), strict=True) if places else [()] * shaped.num_rows
    try:
        rows = [numbers[key] for key in keys]
    except KeyError as error:
        said = ", ".join(f"{name} {value!r}" for name, value in zip(places, error.args[0], strict=True))
        raise TransformRefused(
            flow=spec.name,
            step="the transform behind agg",
            operator="its result",
            why=f"has a row of {said}, and no result that it was given is of these: it changes them",
            instead="Window and groups say which result a row is of: give what you make of them another name",
        ) from None
    seen: Counter[int] = Counter()
    order = []
    for row in rows:
        order.append(seen[row])
        seen[row] += 1
    db.executemany(f"DELETE FROM {tables.shaped} WHERE {tables.row} = ?", ((number,) for number in touched))
    _many(db, tables.insert_shaped, [rows, order, *(encode(shaped[column.name]) for column in spec.shaped)])


# -- what goes -----------------------------------------------------------------------------------------


def forget(db: sqlite3.Connection, tables: ViewTables, before: str | None, now_us: int | None) -> None:
    """Drops the values kept for windows that can no longer change: that end by `now_us`, and did not by `before`; and
    what sliding windows are made of, as far as none of them can come any more."""
    if now_us is None or not tables.spec.window_us:
        return
    if tables.parts is not None:
        where, values = ending(tables.parts, None, now_us - tables.spec.window_us[0])
        _drop(db, tables.parts, where, values)
    where, values = ending(tables, before, now_us)
    for slot in tables.with_values:
        rows = f"SELECT {tables.row} FROM {tables.state} WHERE {where}"
        db.execute(f"DELETE FROM {tables.values_of(slot)} WHERE row IN ({rows})", values)


def expire(db: sqlite3.Connection, tables: ViewTables, dropped_us: int) -> None:
    """Drops rows whose window ends by then. They can no longer change: a straggler would begin a row anew, with nothing
    but itself in it."""
    if tables.spec.window_us is not None:
        where, values = ending(tables, None, dropped_us)
        _drop(db, tables, where, values)


def _drop(db: sqlite3.Connection, tables: ViewTables, where: str, values: Sequence[str]) -> None:
    *beside, (state, _) = tables.numbered()
    for table, number in beside:
        rows = f"SELECT {tables.row} FROM {tables.state} WHERE {where}"
        db.execute(f"DELETE FROM {table} WHERE {number} IN ({rows})", values)
    db.execute(f"DELETE FROM {state} WHERE {where}", values)


def ending_after(rows: pa.Table, us: int) -> pa.Table:
    return rows.filter(pa.array(us_column(rows[WINDOW[1]]) > us))


def ending(tables: ViewTables, after: str | None, upto_us: int) -> tuple[str, tuple[str, ...]]:
    """The windows that end in (after, upto], as a condition by which rows are found."""
    by, more_us = tables.ending
    after_us, upto = us_of(after), text_of_us(upto_us - more_us)
    if after_us is None:
        return f"{by} <= ?", (upto,)
    return f"{by} <= ? AND {by} > ?", (upto, text_of_us(after_us - more_us))


# -- what changed --------------------------------------------------------------------------------------


class Changes:
    """What a commit changes in a view, as rows with `op` '-' and '+'. Made before the merge, asked after it.

    "updates": every row that is touched. "final": touched rows of windows that were closed before, and all rows of the
    windows that the commit closes."""

    def __init__(
        self,
        db: sqlite3.Connection,
        tables: ViewTables,
        emit: Emit,
        partials: pa.Table | None,
        closed: str | None,
        became: Mapping[int, int] | None = None,
        wanted: tuple[str, Sequence[Column]] | None = None,
    ) -> None:
        """`became`: for rows that may become part of others, which rows are touched, and which they will be then.
        `wanted`: what is told of a row, as SQL, and as the columns of a change; results if nothing else is said."""
        self._db, self._tables, self._emit, self._closed, self._became = db, tables, emit, closed, became or {}
        self._wanted, self._columns = wanted or (tables.results(), change_columns(tables.spec))
        shaped = wanted is not None and tables.shaped is not None
        self._joined, self._made = (tables.joined, f"f.{quoted(NUMBER)}, ") if shaped else ("", "")
        self._any = partials is not None and partials.num_rows > 0
        if partials is not None and self._any:
            stage(db, tables, partials)
        self._old = self._touched() if became is None else self._joining()

    def _touched(self) -> dict[int, list[Row]]:
        return self._final(staged_rows(self._tables), "t.number") if self._any else {}

    def _joining(self) -> dict[int, list[Row]]:
        staged(self._db, "joining", sorted(self._became), {})
        ours = f"temp.joining t CROSS JOIN {self._tables.state} s ON s.{self._tables.row} = t.number"
        return self._final(ours, ", ".join(f"s.{quoted(name)}" for name in self._tables.spec.order))

    def _final(self, source: str, order: str) -> dict[int, list[Row]]:
        """Rows; with emit="final" those that are, or were before this commit."""
        if self._emit == "updates":
            return self._found(source, "1", order, ())
        if self._closed is None:
            return {}
        return self._found(source, "s.window_end <= ?", order, [self._closed])

    def _found(self, source: str, where: str, order: str, values: Iterable[Any]) -> dict[int, list[Row]]:
        """By the result's number what is told of it: one row, or as many as a transform made of it."""
        wanted = f"SELECT s.{self._tables.row}, {self._made}{self._wanted} FROM {source}{self._joined}"
        rows = self._db.execute(f"{wanted} WHERE {where} ORDER BY {order}", tuple(values))
        if not self._joined:
            return {row[0]: [row[1:]] for row in rows}  # a key may be staged twice
        found: dict[int, dict[int, Row]] = {}
        for number, made, *row in rows:
            found.setdefault(number, {})[made] = tuple(row)
        return {number: [made[at] for at in sorted(made)] for number, made in found.items()}

    def rows(self, closed_us: int | None) -> pa.Table:
        """After the merge: what was, and what is. By window and group, '-' before '+'."""
        new = self._touched()
        old: dict[int, list[Row]] = {}
        for number, rows in self._old.items():
            old.setdefault(self._became.get(number, number), []).extend(rows)
        changed: list[Row] = []
        for number in dict.fromkeys((*new, *old)):
            before, after = old.get(number, []), new.get(number, [])
            if before != after:
                changed += [*(("-", *row) for row in before), *(("+", *row) for row in after)]
        if self._emit == "final" and closed_us is not None:
            where, values = ending(self._tables, self._closed, closed_us)
            order = ", ".join(f"s.{name}" for name in self._tables.key)
            closing = self._found(f"{self._tables.state} s", where, order, values)
            changed += [("+", *row) for rows in closing.values() for row in rows]
        return _table(changed, self._columns)

    def all(self, op: str) -> pa.Table:
        """Every row the view has, as if each came, or went, just now."""
        order = ", ".join(f"s.{name}" for name in self._tables.key) or "1"
        found = self._final(f"{self._tables.state} s", order)
        return _table([(op, *row) for rows in found.values() for row in rows], self._columns)


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> pa.Table:
    values_by_column = zip(*rows, strict=True) if rows else [[]] * len(columns)
    arrays = [
        decode(list(values), arrow_type(column.type)) for column, values in zip(columns, values_by_column, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])
