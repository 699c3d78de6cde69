"""Reading views, from any process, without Spark: SQL, positions, ledger. Owns read-only connections to `views.db`.

A reader sees whole commits only, never waits for a writer and never makes one wait. SQL is run on a connection that
cannot write, attach files or load code."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.durations import Duration
from headrace.errors import (
    CannotRebuild,
    HeadraceError,
    InvalidArgument,
    InvalidQuery,
    QueryTimeout,
    UnknownView,
    nearest,
)
from headrace.jsonrows import encode_value
from headrace.log.open import open_address
from headrace.position import Position
from headrace.views.contract import HISTORY, RESULTS, WIDE, FlowSpec, ViewSpec, version_name
from headrace.views.naming import NUMBER
from headrace.views.past import NamesAt, arrival_of
from headrace.views.reading import (
    AsOf,
    Bounds,
    Diff,
    Moment,
    Page,
    quoted,
    schema_of,
)
from headrace.views.sql.database import text_of_us, us_of
from headrace.views.sql.flow_rows import state_of
from headrace.views.sql.reading import SqlReading, value_column
from headrace.views.sql.versions import found_beside
from headrace.views.sqlite import filling
from headrace.views.sqlite.compared import Compared
from headrace.views.sqlite.file import FILE, connected, refuse_other_format, translate
from headrace.views.sqlite.kept import kept_in
from headrace.views.sqlite.keyed import nulls_in
from headrace.views.sqlite.tables import tables_of
from headrace.views.sqlite.values import (
    NAN,
    as_whole,
    batch_of,
    bound,
    declared_type,
    encode,
    nested,
)
from headrace.views.sqlite.watching import WatchedFile
from headrace.views.values import arrow_type

CHUNK_ROWS = 10_000
AHEAD_CHUNKS = 10
"""A result of fewer chunks is read at once; the transaction of a larger one stays open while it is handed out, and the
store's write-ahead log cannot be emptied meanwhile."""
BREATHE_STEPS = 1_000_000
"""Steps of SQLite's machine between two looks for Ctrl-C; some milliseconds."""

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}


BREATHE_OFTEN_STEPS = 100
"""A step may be a function call that takes a second."""
PATTERN_BYTES_MAX = 1_000
"""LIKE and GLOB take time by the length of their pattern, and cannot be stopped within a row."""
REFUSED = frozenset({"printf", "format", "load_extension", "fts3_tokenizer"})
"""`printf('%.*c', 2000000000, 'x')` takes many seconds, and cannot be stopped either; the last one tells where in
memory the program is."""


class SqliteReading(SqlReading[sqlite3.Connection]):
    """`SqliteReading(home)`: what can be read of the file there; there may be none."""

    NO_WINDOW = ""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    @property
    def address(self) -> str:
        return str(self.path.parent)

    def identity(self) -> object:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def _reading(self, view: str = "") -> Iterator[sqlite3.Connection]:
        with self._connected(view) as db:
            db.execute("BEGIN")
            yield db

    @contextlib.contextmanager
    def _connected(self, view: str = "", *, typed: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each read: cheap, and safe in any thread."""
        if not self.path.exists():
            raise UnknownView(view=view, known=[])
        db = connected(self.path, typed=typed)
        try:
            if not db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").fetchone()[0]:  # it is being made
                raise UnknownView(view=view, known=[])
            refuse_other_format(db, self.path)
            yield db
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if why := filling.refusal():
                raise InvalidArgument("fill", view, why) from error
            raise translate(error, self.path) from error
        finally:
            db.close()

    def _counted(self, spec: FlowSpec) -> str:
        return tables_of(spec).counted

    def _count(self, db: sqlite3.Connection, spec: FlowSpec) -> int:
        known = kept_in(db, spec.name).get(RESULTS)
        return super()._count(db, spec) if known is None else known[0]

    def counts(self, flow: str) -> dict[str, tuple[int, int]]:
        with self._reading(flow) as db:
            return kept_in(db, flow)

    def _first(self, db: sqlite3.Connection, spec: FlowSpec, column: str, after_us: int | None) -> int | None:
        by, rows = quoted(column), tables_of(spec).rows.select_from()
        after = "" if after_us is None else text_of_us(after_us)
        return us_of(db.execute(f"SELECT min({by}) FROM {rows} WHERE {by} > ?", (after,)).fetchone()[0])

    def _watched(self, view: str) -> WatchedFile:  # noqa: ARG002 (any commit is news)
        return WatchedFile(self.path.parent)

    # -- SQL ---------------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        wait_for: Position | None = None,
        timeout: Duration = "5 seconds",
        as_of: AsOf | None = None,
    ) -> pa.Table:
        time = self._waited(wait_for, as_of, timeout)
        read: set[tuple[str, str]] = set()
        names, chunks = self.rows(sql, params, read=read, as_of=time)
        return self._table(sql, names, [row for chunk in chunks for row in chunk], read, time)

    def _arrival(self, position: Position) -> datetime:
        with open_address(self.path.parent, create=False) as log:
            return arrival_of(log, position)

    def bounded(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        bounds: Bounds,
        as_of: datetime | str | None = None,
    ) -> tuple[pa.Table, bool]:
        read: set[tuple[str, str]] = set()
        with contextlib.ExitStack() as opened:
            names, cursor = self._begun(opened, sql, params, read, bounds, as_of)
            rows, more = _up_to(cursor, bounds)
        return self._table(sql, names, rows, read, as_of), more

    def _table(
        self,
        sql: str,
        names: list[str],
        rows: list[tuple[Any, ...]],
        read: set[tuple[str, str]],
        as_of: datetime | str | None,
    ) -> pa.Table:
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        arrays = [_column(list(values), lambda: self._doubles(read)) for values in columns]
        if any(pa.types.is_null(array.type) for array in arrays) or any(list in map(type, each) for each in columns):
            kinds = self._kinds(sql, names, as_of)
            arrays = [_typed(*each) for each in zip(arrays, columns, kinds, strict=True)]
        return pa.Table.from_arrays(arrays, names=names)

    def _kinds(self, sql: str, names: list[str], as_of: datetime | str | None) -> list[str]:
        """What the columns of a query are declared as, '' for what is computed: SQLite tells it of a view alone, and a
        view has no parameters."""
        with self._connected() as db, contextlib.suppress(sqlite3.Error):
            self._past(db, as_of)
            db.execute(f"CREATE TEMP VIEW asked AS {_PARAMETERS.sub(_as_null, sql)}")
            found = [kind for _, _, kind, *_ in db.execute("PRAGMA temp.table_info(asked)")]
            if len(found) == len(names):
                return found
        return [""] * len(names)

    def _doubles(self, read: set[tuple[str, str]]) -> bool:
        """Whether any of the columns that were read, as (view, column), holds doubles."""
        return any(
            pa.types.is_floating(arrow_type(column.type)) and (spec.name, column.name) in read
            for spec in self.specs()
            if spec.view is not None
            for column in spec.view.columns
        )

    def rows(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        read: set[tuple[str, str]] | None = None,
        as_of: datetime | str | None = None,
    ) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
        with contextlib.ExitStack() as opened:
            names, cursor = self._begun(opened, sql, params, read, None, as_of)
            return names, _handed_out(opened, cursor)

    def _past(self, db: sqlite3.Connection, as_of: datetime | str | None) -> _Past | None:
        if as_of is None:
            return None
        with self._connected() as plain:  # in which times are texts
            return _Past(db, self._names_at(plain, as_of))

    def _begun(
        self,
        opened: contextlib.ExitStack,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any],
        read: set[tuple[str, str]] | None,
        bounds: Bounds | None,
        as_of: datetime | str | None,
    ) -> tuple[list[str], sqlite3.Cursor]:
        """The query's columns and rows, as long as what is `opened` is."""
        if not isinstance(sql, str):
            raise InvalidArgument("sql", sql, "must be text")

        def allowed(action: int, table: str | None, column: str | None, schema: str | None, _: str | None) -> int:
            if action == sqlite3.SQLITE_READ and past is not None and past.refuses(table, schema):
                return sqlite3.SQLITE_DENY
            if action == sqlite3.SQLITE_READ and read is not None:
                read.add((table or "", column or ""))
            if action == sqlite3.SQLITE_FUNCTION and bounds is not None and column in REFUSED:
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY

        if isinstance(params, str | bytes) or not isinstance(params, Mapping | Iterable):
            raise InvalidArgument("params", params, "must be a tuple of values, one for each ?, or a mapping of names")
        values = (
            {name: bound(value) for name, value in params.items()}
            if isinstance(params, Mapping)
            else tuple(bound(value) for value in params)
        )
        db = opened.enter_context(self._connected(typed=True))
        db.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")  # SQLite makes these when they are first used
        past = self._past(db, as_of)
        db.set_authorizer(allowed)
        opened.enter_context(self._explaining(sql, bounds))
        if past is not None:
            opened.enter_context(past.explaining())
        _limit(db, bounds)
        if bounds is not None:
            _limit_values(db, sql, values, bounds)
        cursor = db.execute(sql, values)
        names = _unique([column[0] for column in cursor.description or ()])
        if not names:
            raise InvalidQuery(sql=sql, why="it returns no columns; only reading is possible")
        return names, cursor

    @contextlib.contextmanager
    def _explaining(self, sql: str, bounds: Bounds | None = None) -> Iterator[None]:
        try:
            yield
        except HeadraceError:
            raise
        except (sqlite3.DatabaseError, sqlite3.InterfaceError, sqlite3.Warning, ValueError, ArithmeticError) as error:
            code = getattr(error, "sqlite_errorname", None) or ""
            if code == "SQLITE_INTERRUPT" and bounds is not None:
                raise QueryTimeout(sql=sql, seconds=bounds.seconds) from None
            if code == "SQLITE_INTERRUPT":
                raise KeyboardInterrupt from None  # raised inside SQLite, which only knows that it was asked to stop
            if isinstance(error, sqlite3.Error) and code.startswith(_OF_THE_DISK):
                raise translate(error, self.path) from error
            raise InvalidQuery(sql=sql, why=self._explained(error)) from error

    def _explained(self, error: Exception) -> str:
        said = str(error)
        if why := filling.refusal():
            return why
        if "too big" in said:
            return f"a value in it is too large ({said}): ask for other columns, or read the view's rows"
        if "no such table: " in said:
            return str(UnknownView(view=said.split("no such table: ")[1], known=self.names()))
        if column := re.fullmatch(r"no such column: (?:\w+\.)?(\w+)", said):
            views = [spec.view for spec in self.specs() if spec.view is not None and spec.view.public]
            known = [each.name for view in views for each in view.columns]
            hint = "" if column[1] in known else nearest(column[1], known)  # of another view, or of now alone
            return f"there is no column {column[1]!r}.{hint}"
        if "number of bindings" in said:
            return f"{said} Give each ? in it a value, with params=, or --param on the command line"
        if any(word in said for word in ("not authorized", "prohibited", "readonly", "cannot modify")):
            return f"only reading is possible ({said})"
        return said

    # -- rows --------------------------------------------------------------------------------------

    def page(
        self,
        view: str,
        *,
        where: Mapping[str, Any] | None = None,
        start_us: int | None = None,
        stop_us: int | None = None,
        after: str | None = None,
        bounds: Bounds,
        stored: bool = False,
    ) -> Page:
        flow = self.flow(view)
        spec, tables = self.spec(view), tables_of(flow)
        schema, windowed = schema_of(spec.columns), spec.window_us is not None
        groups = [column.name for column in spec.groups]
        cells: dict[str, Any] = {}
        for name, value in (where or {}).items():
            if name not in groups:
                why = f"view {view!r} is not grouped by it.{nearest(name, groups)} It is by: {', '.join(groups) or '-'}"
                raise InvalidArgument(name, value, why)
            cells[name] = _cell(name, value, schema.field(name).type)
        of_groups = [f"s.{quoted(name)} = ?" for name in cells]
        in_key = [tables.rows.key_cell(name, cell) for name, cell in cells.items()]
        with self._reading(view) as db:
            if self._flow(db, view) != flow:  # switched to another version since
                again = {"where": where, "start_us": start_us, "stop_us": stop_us, "after": after, "stored": stored}
                return self.page(view, bounds=bounds, **again)  # type: ignore[arg-type]
            nulls = nulls_in(db, view).get(RESULTS, frozenset())
            keys = [tables.rows.seen(name, nulls) for name in spec.key]
            keys += [] if tables.shaped is None else [f"f.{quoted(NUMBER)}"]
            seen, seen_from, conditions, values = tables.seen(nulls), tables.seen_from, of_groups, in_key
            if spec.fill is not None and not stored:
                keys = [f"s.{quoted(name)}" for name in spec.key]
                seen, seen_from = "s.*", f"({tables.shown(nulls, of_groups)}) s"
                conditions, values = [f"s.{quoted(name)} IS ?" for name in cells], [*in_key, *cells.values()]
            for sign, bound_us in ((">=", start_us), ("<", stop_us)):
                if bound_us is not None:
                    if not windowed:
                        raise InvalidArgument("from" if sign == ">=" else "to", view, "the view has no windows")
                    conditions.append(f"s.window_start {sign} ?")
                    values.append(text_of_us(bound_us))
            if after is not None:
                condition, more = _behind(keys, _place_of(after, len(keys)), descending=windowed)
                conditions.append(condition)
                values += more
            order = ", ".join(f"{key} {'DESC' if windowed else 'ASC'}" for key in keys) or "1"
            sql = (
                f"SELECT {', '.join([*keys, seen])} FROM {seen_from} "
                f"WHERE {' AND '.join(conditions) or '1'} ORDER BY {order} LIMIT {bounds.rows + 1}"
            )
            state = state_of(db, view)
            with self._explaining(sql, bounds):
                _limit(db, bounds)
                found, more_rows = _up_to(db.execute(sql, values), bounds)
        rows = pa.Table.from_batches([batch_of([row[len(keys) :] for row in found], schema)], schema)
        last = _place_text(found[-1][: len(keys)]) if more_rows and found else None
        return Page(rows, last, state.sequence, state.line)

    def batches(self, view: str, where: Mapping[str, Any] | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        with contextlib.ExitStack() as opened:
            db = opened.enter_context(self._reading(view))
            spec, cursor = self._all(db, view, where)
            schema = schema_of(spec.columns)
            return schema, (batch_of(chunk, schema) for chunk in _handed_out(opened, cursor))

    def moment(self, view: str) -> Moment:
        with self._reading(view) as db:
            spec, cursor = self._all(db, view, stored=True)
            rows = pa.Table.from_batches([batch_of(cursor.fetchall(), schema_of(spec.columns))])
            return Moment(spec, state_of(db, view), rows, self._ledger(db, view))

    def _all(
        self, db: sqlite3.Connection, view: str, where: Mapping[str, Any] | None = None, *, stored: bool = False
    ) -> tuple[ViewSpec, sqlite3.Cursor]:
        flow = self._flow(db, view)
        spec, tables = flow.view, tables_of(flow)
        assert spec is not None, "_flow() has looked"
        schema, nulls = schema_of(spec.columns), nulls_in(db, view).get(RESULTS, frozenset())
        for name in where or ():
            if name not in schema.names:
                why = f"view {view!r} has no such column.{nearest(name, schema.names)}"
                raise InvalidArgument(name, (where or {})[name], why)
        cells = {name: _cell(name, value, schema.field(name).type) for name, value in (where or {}).items()}
        condition = " AND ".join(f"{quoted(name)} IS ?" for name in cells) or "1"
        order = ", ".join(quoted(name) for name in (*spec.key, *(each.name for each in spec.shaped or ()))) or "1"
        if stored or spec.fill is None:
            return spec, db.execute(
                f"SELECT * FROM {tables.stored(nulls)} WHERE {condition} ORDER BY {order}", [*cells.values()]
            )
        groups = [group.name for group in spec.groups if group.name in cells]
        rows = tables.shown(nulls, [f"s.{quoted(name)} = ?" for name in groups])
        values = [*(tables.rows.key_cell(name, cells[name]) for name in groups), *cells.values()]
        return spec, db.execute(f"SELECT * FROM ({rows}) WHERE {condition} ORDER BY {order}", values)

    def diff(self, view: str, limit: int | None = None) -> Diff:
        with self._reading(view) as db:
            served = self._flow(db, view)
            found = found_beside(db, view)
            if not found:
                raise CannotRebuild(flow=view, why="has no other version to compare with: app.rebuild(…) makes one")
            old, new = served, self._flow(db, found[0])
            if found[0] == version_name(view, "previous"):
                old, new = new, old
            compared = Compared(old, new)
            rows = batch_of(list(compared.rows(db, limit)), schema_of(compared.columns))
            counts = compared.counts(db)
            return Diff(pa.Table.from_batches([rows]), counts, compared.added, compared.removed)


# -- as of a time --------------------------------------------------------------------------------------


class _Past:
    """A connection to a time that was. Temporary views stand before the file's own: the names of tables and views with
    a history show the rows that they had then. All else is refused, but the histories, which have all times."""

    def __init__(self, db: sqlite3.Connection, names: NamesAt) -> None:
        self._names = names
        for name, select in names.selects(text_of_us(names.us), "main").items():
            db.execute(f"CREATE TEMP VIEW {quoted(name)} AS {select}")
        histories = {f"{spec.name}{sep}{HISTORY}" for spec in names.histories for sep in "_/"}
        found = {name for (name,) in db.execute("SELECT name FROM main.sqlite_schema")}
        self._present = {*found, "sqlite_master", "sqlite_schema"} - histories - {"_types"}
        self._refused: str | None = None

    def refuses(self, table: str | None, schema: str | None) -> bool:
        """Whether what is read is as it is now."""
        refused = schema == "main" and table in self._present
        if refused and self._refused is None:
            self._refused = table
        return refused

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError:
            if self._refused is None:
                raise
            raise self._names.refusal(self._refused) from None


# -- pages -----------------------------------------------------------------------------------------------


def _cell(name: str, value: Any, arrow: pa.DataType) -> Any:
    """A value as a column of that type has it."""
    return encode(value_column(name, value, arrow))[0]


def _behind(keys: Sequence[str], place: Sequence[Any], *, descending: bool) -> tuple[str, list[Any]]:
    """A condition: what comes after the place in the order of the keys. Nulls are the least, as SQLite sorts them."""
    condition: str = "0"
    values: list[Any] = []
    for key, value in zip(reversed(keys), reversed(place), strict=True):
        if value is None:
            beyond, mine = ("0" if descending else f"{key} IS NOT NULL"), [None]
        else:
            beyond, mine = (f"{key} < ? OR {key} IS NULL" if descending else f"{key} > ?"), [value, value]
        condition, values = f"({beyond} OR ({key} IS ? AND {condition}))", [*mine, *values]
    if place and place[0] is not None:  # so that the index is used
        return f"{keys[0]} {'<=' if descending else '>='} ? AND {condition}", [place[0], *values]
    return condition, values


def _place_text(values: Sequence[Any]) -> str:
    plain = [{"blob": base64.b64encode(value).decode()} if isinstance(value, bytes) else value for value in values]
    return base64.urlsafe_b64encode(json.dumps(plain).encode()).decode().rstrip("=")


def _place_of(text: str, count: int) -> list[Any]:
    """What `_place_text` wrote; it may be anything all the same."""
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        if not isinstance(found, list) or len(found) != count:
            raise ValueError("of another view")
        values = [base64.b64decode(value["blob"]) if isinstance(value, dict) else value for value in found]
        if not all(isinstance(value, str | int | float | bytes | None) for value in values):
            raise ValueError("of something else")
        return values
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidArgument("after", text[:80], "is not what a page of this view ended with") from None


_PARAMETERS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)|(\?\d*|[:@$]\w+)""", re.DOTALL
)
"""Texts, names and comments, which stay as they are, and parameters. A comment need not end: whoever looked for its end
from each of its characters would be at it for minutes."""


def _as_null(found: re.Match[str]) -> str:
    return "NULL" if found.group(1) else found.group()


def _typed(array: pa.Array, values: Sequence[Any], kind: str) -> pa.Array:
    """A column without values, or of lists, as what it is declared as."""
    arrow = declared_type(kind)
    if arrow is not None and pa.types.is_nested(arrow):
        return nested(list(values), arrow)
    return array if arrow is None or not pa.types.is_null(array.type) else array.cast(arrow)


_OF_THE_DISK = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_BUSY")


# -- connections and rows ------------------------------------------------------------------------------


def _limit(db: sqlite3.Connection, bounds: Bounds | None) -> None:
    """Without bounds, a look for Ctrl-C now and then."""
    if bounds is None:
        db.set_progress_handler(lambda: 0, BREATHE_STEPS)
        return
    limit, stop = time.monotonic() + bounds.seconds, bounds.stop
    db.set_progress_handler(lambda: time.monotonic() > limit or stop(), BREATHE_OFTEN_STEPS)


def _limit_values(db: sqlite3.Connection, sql: str, values: Any, bounds: Bounds) -> None:
    """So that one row, of however many columns, is no larger than a result may be. What SQLite would do says how many
    there are before any value is made."""
    db.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES_MAX)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, bounds.value_bytes)
    with contextlib.suppress(sqlite3.Error):  # what is wrong is said when it is run; an EXPLAIN cannot be explained
        steps = db.execute(f"EXPLAIN {sql}", values)
        columns = max((p2 for _, step, _, p2, *_ in steps if step == "ResultRow"), default=1)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(bounds.value_bytes, bounds.result_bytes // columns))


def _up_to(cursor: sqlite3.Cursor, bounds: Bounds) -> tuple[list[tuple[Any, ...]], bool]:
    """The first rows, and whether there are more. One by one: ten thousand values of a megabyte are too many."""
    rows: list[tuple[Any, ...]] = []
    size_bytes = 0
    for row in cursor:
        size_bytes += 8 * len(row)
        size_bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
        size_bytes += sum(len(encode_value(value)) for value in row if isinstance(value, list | dict))
        if len(rows) == bounds.rows or (rows and size_bytes > bounds.result_bytes):
            return rows, True
        rows.append(row)
    return rows, False


def _handed_out(opened: contextlib.ExitStack, cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    """A cursor's rows. A small result is read here and now; a larger one takes over what is `opened`, and closes it."""
    chunks = iter(lambda: cursor.fetchmany(CHUNK_ROWS), [])
    ahead = list(islice(chunks, AHEAD_CHUNKS))
    if len(ahead) < AHEAD_CHUNKS:
        return iter(ahead)
    held = opened.pop_all()

    def rest() -> Iterator[list[tuple[Any, ...]]]:
        with held:
            yield from ahead
            yield from chunks

    return rest()


def _column(values: list[Any], doubles: Callable[[], bool]) -> pa.Array:
    """A result's column; whole and broken numbers in one are doubles, anything else mixed is text. 'NaN' is a text, or
    a double that is none: among numbers, or where nothing else is and `doubles` were read."""
    kinds = {type(value) for value in values if value is not None}
    texts = {value for value in values if isinstance(value, str)} if str in kinds else set()
    if texts == {NAN} and kinds <= {int, float, str} and (len(kinds) > 1 or doubles()):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds and kinds <= {list, dict}:
        with contextlib.suppress(pa.ArrowException):
            return pa.array(values)  # what it is declared as says more, where that is known: `_typed`
        return pa.array([None if value is None else encode_value(value) for value in values])
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if kinds == {int} and any(value is not None and isinstance(as_whole(value), str) for value in values):
        return pa.array(values, arrow_type(WIDE))
    if kinds == {datetime}:
        zone = next(value for value in values if value is not None).tzinfo
        return pa.array(values, pa.timestamp("us", tz="UTC" if zone else None))
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, TypeError):  # decimals of somebody's own that are too long, or infinite
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _unique(names: list[str]) -> list[str]:
    """`select a, a` is legal: the second becomes a_2."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return out
