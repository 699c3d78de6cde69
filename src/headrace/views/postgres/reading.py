"""Reading views in Postgres, from any process, without Spark: rows, pages, SQL. Owns the statements; connections are
the process's (`connections`).

A reader sees whole commits only, never waits for a writer and never makes one wait. SQL of others is Postgres' own, and
runs in a transaction that cannot write."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.adapt import Buffer
from psycopg.types.datetime import TimestamptzLoader

from headrace.durations import Duration
from headrace.errors import CannotRebuild, HeadraceError, InvalidArgument, InvalidQuery, QueryTimeout, nearest
from headrace.position import Position
from headrace.views.contract import FlowSpec, ViewSpec, version_name
from headrace.views.naming import NUMBER
from headrace.views.postgres import keyed, schema
from headrace.views.postgres.address import Address
from headrace.views.postgres.compared import Compared
from headrace.views.postgres.connections import Connection, Pool, pool_of, quoted, translate
from headrace.views.postgres.moments import moment_of
from headrace.views.postgres.querying import Past, column_of, explained, plain_value, with_parameters
from headrace.views.postgres.tables import tables_of
from headrace.views.postgres.values import array_text, declared, table_of
from headrace.views.postgres.watching import WatchedPostgres
from headrace.views.reading import AsOf, Bounds, Diff, Moment, Page, Server, schema_of
from headrace.views.sql.database import text_of_us, us_of
from headrace.views.sql.flow_rows import state_of
from headrace.views.sql.reading import SqlReading, value_column
from headrace.views.sql.versions import found_beside

__all__ = ["PostgresReading"]

CHUNK_ROWS = 10_000
BOUNDED_CHUNK_ROWS = 100
"""Of a query that is given bounds: so many rows are fetched before their bytes are counted."""
ESTIMATED_ROWS = 100_000
"""Of tables with more rows than that, Postgres' own estimate of their number is told."""
AHEAD_CHUNKS = 10
"""A result of fewer chunks is read at once; the transaction of a larger one stays open while it is handed out."""


EXAMINED = (
    "SELECT current_setting('server_version'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, "
    "pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean, "
    "current_setting('fsync')::boolean, current_user, has_database_privilege(current_database(), 'CREATE'), "
    "(SELECT bool_or(pg_has_role(oid, 'USAGE')) FROM pg_roles WHERE rolname IN "
    "('pg_read_server_files', 'pg_execute_server_program')), "
    "(SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') FROM pg_namespace "
    "WHERE nspname = $1)"
)


class PostgresReading(SqlReading[Connection]):
    """`PostgresReading(address)`: what can be read of the store there; there may be none."""

    NO_WINDOW = "-infinity"
    POLL_SECONDS = 0.02

    def __init__(self, address: str) -> None:
        self._text, self._address = address, Address.parse(address)

    @property
    def address(self) -> str:
        return self._address.shown

    @property
    def _pool(self) -> Pool:
        return pool_of(self._address)

    def identity(self) -> object:
        with self._pool.reading() as db:
            if not schema.exists(db, self._address.schema):
                return None
            return db.run("SELECT value FROM _meta WHERE name = 'id'").fetchone()

    def examine(self) -> Server:
        """What the database says of itself."""
        name = self._address.schema
        with self._pool.reading() as db:
            version, clock_us, read_only, synced, user, in_database, files, in_schema = db.run(
                EXAMINED, [name]
            ).fetchone()
            made = schema.exists(db, name)
        may_create = in_database if in_schema is None else in_schema
        facts = bool(read_only), bool(synced), user, name, made, bool(may_create), bool(files)
        return Server(version, clock_us, *facts)

    @contextlib.contextmanager
    def _reading(self, view: str = "") -> Iterator[Connection]:
        with self._pool.reading() as db:
            schema.refuse_other_format(db, self._address, view)
            yield db

    def _counted(self, spec: FlowSpec) -> str:
        return tables_of(spec).counted

    def counts(self, flow: str) -> dict[str, tuple[int, int]]:
        with self._reading(flow) as db:
            spec = self._flow(db, flow, topics=True)
            return {name: self._size(db, table.name) for name, table in keyed.tables_of(spec).items()}

    def _size(self, db: Connection, table: str) -> tuple[int, int]:
        """Rows and bytes. Postgres estimates the rows where it has analyzed the table; else they are counted."""
        sql = "SELECT reltuples::bigint, pg_table_size(oid) FROM pg_class WHERE oid = $1::regclass"
        rows, size = db.run(sql, [table]).fetchone()
        if rows < ESTIMATED_ROWS:
            (rows,) = db.run(f"SELECT count(*) FROM {table}").fetchone()
        return rows, size

    def _first(self, db: Connection, spec: FlowSpec, column: str, after_us: int | None) -> int | None:
        by = quoted(column)
        after = "-infinity" if after_us is None else text_of_us(after_us)
        first = f"SELECT min({by}) FROM {tables_of(spec).rows.name} WHERE {by} > $1::timestamptz"
        return us_of(db.run(first, [after]).fetchone()[0])

    def _watched(self, view: str) -> WatchedPostgres:
        return WatchedPostgres(self._text, view)

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
        stored: bool = False,  # noqa: ARG002 (no row is made that is not)
    ) -> Page:
        with moment_of(self._pool, view, _limit(bounds.seconds)) as db:
            flow = self._flow(db, view)
            spec, tables = flow.view, tables_of(flow)
            assert spec is not None, "_flow() has looked"
            windowed, groups = spec.window_us is not None, [column.name for column in spec.groups]
            for name in where or {}:
                if name not in groups:
                    why = f"view {view!r} is not grouped by it.{nearest(name, groups)} It is by: "
                    raise InvalidArgument(name, (where or {})[name], why + (", ".join(groups) or "-"))
            conditions = self._conditions(db, spec, where or {}, "s.")
            for sign, bound_us in ((">=", start_us), ("<", stop_us)):
                if bound_us is not None:
                    if not windowed:
                        raise InvalidArgument("from" if sign == ">=" else "to", view, "the view has no windows")
                    conditions.append(f"s.window_start {sign} '{text_of_us(bound_us)}'")
            keys = [(f"s.{quoted(name)}", tables.rows.types[name]) for name in spec.key]
            keys += [] if tables.shaped is None else [(f"f.{quoted(NUMBER)}", tables.shaped.types[NUMBER])]
            if after is not None:
                conditions.append(_behind(db, keys, _place_of(after, len(keys)), descending=windowed))
            way = "DESC NULLS LAST" if windowed else "NULLS FIRST"
            order = ", ".join(f"{key} {way}" for key, _ in keys) or "1"
            places = "".join(f"{key}::text, " for key, _ in keys)
            sql = (
                f"SELECT {places}{tables.seen()} FROM {tables.seen_from} "
                f"WHERE {' AND '.join(conditions) or 'true'} ORDER BY {order} LIMIT {bounds.rows + 1}"
            )
            state = state_of(db, view)
            found = [pa.field(f"/{number}", pa.string()) for number in range(len(keys))]
            with _stopping(sql, bounds):
                try:
                    body, more = _up_to(db, sql, bounds)
                except psycopg.DataError as error:
                    if after is None:
                        raise
                    raise _no_place(after) from error
            table = table_of(body, pa.schema([*found, *schema_of(spec.columns)]))
        last = [table[number][-1].as_py() for number in range(len(keys))] if more and table.num_rows else None
        rows = table.select(range(len(keys), table.num_columns))
        return Page(rows, None if last is None else _place_text(last), state.sequence, state.line)

    def batches(self, view: str, where: Mapping[str, Any] | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        with contextlib.ExitStack() as opened:
            db = opened.enter_context(moment_of(self._pool, view))
            spec, select = self._all(db, view, where)
            found = schema_of(spec.columns)
            pieces = _pieces(opened, db, select)
            ahead = [piece for piece, _ in zip(pieces, range(AHEAD_CHUNKS), strict=False)]
            if len(ahead) < AHEAD_CHUNKS:
                return found, iter([batch for body in ahead for batch in table_of(body, found).to_batches()])
            held = opened.pop_all()

            def rest() -> Iterator[pa.RecordBatch]:
                with held:
                    yield pa.RecordBatch.from_pylist([], found)
                    for body in (*ahead, *pieces):
                        yield from table_of(body, found).to_batches()

            begun = rest()
            next(begun)  # inside `with`: who drops it without reading on ends COPY, and then the transaction
            return found, begun

    def moment(self, view: str) -> Moment:
        with moment_of(self._pool, view) as db:
            spec, select = self._all(db, view)
            rows = table_of(db.copy_out(select), schema_of(spec.columns))
            return Moment(spec, state_of(db, view), rows, self._ledger(db, view))

    def _all(self, db: Connection, view: str, where: Mapping[str, Any] | None = None) -> tuple[ViewSpec, str]:
        flow = self._flow(db, view)
        spec = flow.view
        assert spec is not None, "_flow() has looked"
        condition = " AND ".join(self._conditions(db, spec, where or {}, "v.")) or "true"
        names = ", ".join(f"v.{quoted(column.name)}" for column in spec.columns)
        by = (*spec.key, *(each.name for each in spec.shaped or ()))
        order = ", ".join(f"v.{quoted(name)} NULLS FIRST" for name in by) or "1"
        return spec, f"SELECT {names} FROM {tables_of(flow).stored()} AS v WHERE {condition} ORDER BY {order}"

    def _conditions(self, db: Connection, spec: ViewSpec, where: Mapping[str, Any], alias: str) -> list[str]:
        """That columns have these values."""
        found, conditions = schema_of(spec.columns), []
        for name, value in where.items():
            if name not in found.names:
                raise InvalidArgument(
                    name, value, f"view {spec.name!r} has no such column.{nearest(name, found.names)}"
                )
            arrow = found.field(name).type
            text = _text(value_column(name, value, arrow))
            same = "IS NULL" if text is None else f"= {db.literal(text)}::{declared(arrow)}"
            conditions.append(f"{alias}{quoted(name)} {same}")
        return conditions

    def diff(self, view: str, limit: int | None = None) -> Diff:
        with moment_of(self._pool, view) as db:
            served = self._flow(db, view)
            found = found_beside(db, view)
            if not found:
                raise CannotRebuild(flow=view, why="has no other version to compare with: app.rebuild(…) makes one")
            old, new = served, self._flow(db, found[0])
            if found[0] == version_name(view, "previous"):
                old, new = new, old
            compared = Compared(old, new)
            return Diff(compared.rows(db, limit), compared.counts(db), compared.added, compared.removed)

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
        with self._asked(sql, params, as_of=time) as cursor:
            return _table(cursor, cursor.fetchall())

    def bounded(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        bounds: Bounds,
        as_of: datetime | str | None = None,
    ) -> tuple[pa.Table, bool]:
        with self._asked(sql, params, bounds, as_of) as cursor:
            rows: list[tuple[Any, ...]] = []
            size_bytes, more = 0, False
            for row in _in_time(cursor, bounds):
                size_bytes += sum(8 + (len(value) if isinstance(value, str | bytes) else 0) for value in row)
                more = len(rows) == bounds.rows or (bool(rows) and size_bytes > bounds.result_bytes)
                if more:
                    break
                if bounds.stop():
                    raise QueryTimeout(sql=sql, seconds=bounds.seconds)
                rows.append(row)
            return _table(cursor, rows), more

    def rows(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] = (),
        *,
        read: set[tuple[str, str]] | None = None,  # noqa: ARG002 (Postgres says nothing of it)
        as_of: datetime | str | None = None,
    ) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
        opened = contextlib.ExitStack()
        cursor = opened.enter_context(self._asked(sql, params, as_of=as_of))

        def chunks() -> Iterator[list[tuple[Any, ...]]]:
            with opened:
                while some := cursor.fetchmany(CHUNK_ROWS):
                    yield [tuple(map(plain_value, row)) for row in some]

        return _names(cursor), chunks()

    @contextlib.contextmanager
    def _asked(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any],
        bounds: Bounds | None = None,
        as_of: datetime | str | None = None,
    ) -> Iterator[psycopg.RawServerCursor[Any]]:
        """A cursor over the query's rows. One that is declared takes one statement, and only one that reads."""
        statement, values = with_parameters(sql, params)
        seconds = None if bounds is None else bounds.seconds
        with self._pool.asking(_limit(seconds)) as db:
            schema.refuse_other_format(db, self._address)
            db.run(f"SET LOCAL search_path TO {quoted(self._address.schema)}, public")
            past = None
            if as_of is not None:
                past = Past(self._names_at(db, as_of), self._address.schema)
                statement = past.over(statement)
            cursor = psycopg.RawServerCursor(db.raw, "headrace_query")
            cursor.adapters.register_loader("timestamptz", _Instant)
            try:
                cursor.execute(statement, values)
                if past is not None:
                    past.check(db, statement, values)
                yield cursor
            except HeadraceError:
                raise
            except psycopg.Error as error:
                if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
                    raise translate(error, self._address) from error
                raise explained(error, sql, seconds) from error
            except (ValueError, ArithmeticError) as error:
                raise InvalidQuery(sql=sql, why=str(error)) from error
            finally:
                with contextlib.suppress(psycopg.Error):
                    cursor.close()


class _Instant(TimestamptzLoader):
    """The ledger has '-infinity' where there is no window: Python has no such time, and readers none."""

    def load(self, data: Buffer) -> Any:
        return None if bytes(data) == b"-infinity" else super().load(data)


def _limit(seconds: float | None) -> str:
    return "" if seconds is None else f"; SET LOCAL statement_timeout TO {max(1, round(seconds * 1000))}"


def _in_time(cursor: psycopg.RawServerCursor[Any], bounds: Bounds) -> Iterator[tuple[Any, ...]]:
    """The rows, some at a time. Each time the limit is set to what is left of it: the query may have changed it."""
    until = time.monotonic() + bounds.seconds
    while True:
        cursor.connection.execute(_limit(until - time.monotonic()).removeprefix("; "))
        some = cursor.fetchmany(BOUNDED_CHUNK_ROWS)
        if not some:
            return
        yield from some


def _names(cursor: psycopg.RawServerCursor[Any]) -> list[str]:
    """`select a, a` is legal: the second becomes a_2."""
    seen: dict[str, int] = {}
    out = []
    for column in cursor.description or ():
        seen[column.name] = seen.get(column.name, 0) + 1
        out.append(column.name if seen[column.name] == 1 else f"{column.name}_{seen[column.name]}")
    return out


def _table(cursor: psycopg.RawServerCursor[Any], rows: list[tuple[Any, ...]]) -> pa.Table:
    arrays = []
    for number, column in enumerate(cursor.description or ()):
        known = psycopg.adapters.types.get(column.type_code)
        kind = "" if known is None else known.name
        arrays.append(column_of([row[number] for row in rows], kind, column.precision, column.scale))
    return pa.Table.from_arrays(arrays, names=_names(cursor))


def _text(column: pa.Array) -> str | None:
    """The one value of the column, as its type in Postgres reads it."""
    found = array_text(column, column.type)[1:-1]
    return None if found == "NULL" else found[1:-1].replace('\\"', '"').replace("\\\\", "\\")


@contextlib.contextmanager
def _stopping(sql: str, bounds: Bounds) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise QueryTimeout(sql=sql, seconds=bounds.seconds) from error


def _up_to(db: Connection, select: str, bounds: Bounds) -> tuple[bytes, bool]:
    """The first rows, and whether there are more."""
    rows: list[bytes] = []
    size_bytes, more = 0, False
    with db.raw.cursor() as cursor, cursor.copy(f"COPY ({select}) TO STDOUT (FORMAT csv)") as copy:
        for piece in copy:
            size_bytes += len(piece)
            if not more and (len(rows) == bounds.rows or (rows and size_bytes > bounds.result_bytes)):
                more = True
            if not more:
                rows.append(bytes(piece))
    return b"".join(rows), more


def _pieces(opened: contextlib.ExitStack, db: Connection, select: str) -> Iterator[bytes]:
    """COPY sends a row at a time; some thousand of them together."""
    cursor = opened.enter_context(db.raw.cursor())
    copy = opened.enter_context(cursor.copy(f"COPY ({select}) TO STDOUT (FORMAT csv)"))
    rows: list[bytes] = []
    for piece in copy:
        rows.append(bytes(piece))
        if len(rows) == CHUNK_ROWS:
            yield b"".join(rows)
            rows = []
    if rows:
        yield b"".join(rows)


def _behind(
    db: Connection, keys: Sequence[tuple[str, pa.DataType]], place: Sequence[str | None], *, descending: bool
) -> str:
    """A condition: what comes after the place in the order of the keys. Nulls are the least."""
    condition = "false"
    for (key, arrow), text in zip(reversed(keys), reversed(place), strict=True):
        if text is None:
            beyond, same = "false" if descending else f"{key} IS NOT NULL", f"{key} IS NULL"
        else:
            value = f"{db.literal(text)}::{declared(arrow)}"
            beyond = f"({key} < {value} OR {key} IS NULL)" if descending else f"{key} > {value}"
            same = f"{key} = {value}"
        condition = f"({beyond} OR ({same} AND {condition}))"
    return condition


def _place_text(values: Sequence[str | None]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _place_of(text: str, count: int) -> list[str | None]:
    """What `_place_text` wrote; it may be anything all the same."""
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        if not isinstance(found, list) or len(found) != count:
            raise ValueError("of another view")
        if not all(isinstance(value, str | None) for value in found):
            raise ValueError("of something else")
        "".join(value or "" for value in found).encode()  # half a character is none
        return found
    except (ValueError, TypeError, RecursionError):
        raise _no_place(text) from None


def _no_place(text: str) -> InvalidArgument:
    return InvalidArgument("after", text[:80], "is not what a page of this view ended with")
