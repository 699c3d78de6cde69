"""The routes of the HTTP API. Owns their names and parameters, and the texts of the OpenAPI document. Slow work runs in
threads of `Home`; waiting for records or for views needs no thread."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

import headrace
from headrace.durations import duration_us, instant_us
from headrace.errors import HeadraceError, InvalidArgument, WaitTimeout, nearest
from headrace.jsonrows import decode_row, encode_row, split_objects
from headrace.log.contract import Appended, Offsets, Topic
from headrace.log.standing import counted_queues, duration, group_facts, groups_in, queue_facts, topic_facts
from headrace.log.starting import start_of
from headrace.names import check_name
from headrace.position import Position
from headrace.rows.texts import field_value
from headrace.serve.answers import ERRORS, Json, error_response, failure, refusal, table_json
from headrace.serve.exposition import exposition
from headrace.serve.feeds import Feeds, Place
from headrace.serve.home import Busy, Home
from headrace.serve.overview import Overview, letter_facts
from headrace.serve.routes.beside import BesideRoutes
from headrace.serve.routes.calls import CallRoutes
from headrace.serve.routes.patterns import PatternRoutes
from headrace.serve.routes.stored import StoredRoutes
from headrace.serve.shapes import ANSWERS, Refusal
from headrace.serve.streams import EventStream
from headrace.views import past
from headrace.views.contract import FlowSpec, LedgerRow
from headrace.views.past import arrival_of, history_of, parse_as_of, rows_at, table_of
from headrace.views.reading import Bounds, schema_of
from headrace.views.standing import lag_of, sources_of, table_facts
from headrace.why import why

__all__ = ["make_app"]

PAGE = Path(__file__).parent / "page"
WAIT_SECONDS_MAX = 60.0
WAITING_MAX = 100
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.005, 0.1
RECORDS_MAX = 100_000
"""So many are appended by one request: as rows, small records take a hundred times the bytes that are sent."""
RECORDS_BYTES_MAX = 8 << 20
"""More than that is not answered at once: of a topic, the rest comes with `next`."""
POSITION = "Headrace-Position"

Limit = Annotated[int, Query(ge=1, le=10_000)]
Key = Annotated[list[str] | None, Query(max_length=100)]
PositionHeader = Annotated[str | None, Header(alias=POSITION)]


class Asked(BaseModel):
    """A query: SQL that only reads. Parameters are bound to `?` (a list) or `:name` (an object)."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(max_length=100_000, examples=["select page, sum(views) from views_per_minute group by page"])
    params: list[Any] | dict[str, Any] = Field(default_factory=list)
    wait_for: str | None = Field(None, description="First wait until the views have read up to this position.")
    timeout: str = Field("5 seconds", description="How long to wait for it.")
    as_of: str | None = Field(None, description="A time with its zone, or a position: tables and views as they were.")


def make_app(home: Home) -> FastAPI:
    app = FastAPI(
        title="headrace",
        version=headrace.__version__,
        description="The log and the views of one home, over HTTP. docs/http.md teaches it.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        dependencies=[
            Depends(HTTPBearer(auto_error=False, description="The token that headrace printed.")),
            Depends(_all_known),
        ],
        responses={status: {"description": text, "model": Refusal} for status, text in ERRORS.items()},
    )
    routes = Routes(home)
    app.state.routes = routes
    routes.add(app)
    app.add_exception_handler(HeadraceError, _typed)
    app.add_exception_handler(RequestValidationError, _wrong_kind)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(Exception, _untyped)
    app.mount("/page", _Files(directory=PAGE), name="page")
    return app


async def _typed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return error_response(error)


async def _untyped(_request: Request, _error: Exception) -> Response:
    return failure()


async def _all_known(request: Request) -> None:
    """Refuses a parameter that the route does not have: it would be left out in silence. A route that takes the request
    reads parameters of any name."""
    needs = request.scope["route"].dependant
    if needs.request_param_name is None and request.url.path.startswith("/api/"):
        known = [each.alias for each in needs.query_params]
        for name in request.query_params:
            if name not in known:
                why = f"there is no such parameter.{nearest(name, known)} There are: {', '.join(known) or 'none'}"
                raise InvalidArgument(name, request.query_params[name], why)


async def _wrong_kind(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()[0]
    if found["type"] == "json_invalid":
        why = f"is not JSON at character {found['loc'][-1]}: {found['ctx']['error']}"
        return refusal(400, "InvalidArgument", f"body: {why}", {"argument": "body", "why": why})
    where = ".".join(str(part) for part in found["loc"][1:] or found["loc"])
    return refusal(422, "InvalidArgument", f"{where}: {found['msg']}", {"argument": where, "why": found["msg"]})


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    kind, message = {
        404: ("NotFound", f"there is no {path}: /api/openapi.json lists what there is"),
        405: ("MethodNotAllowed", f"{path} takes no {request.method}: /api/openapi.json says what it takes"),
    }.get(error.status_code, ("Refused", str(error.detail)))
    answer = refusal(error.status_code, kind, message)
    answer.headers.update(error.headers or {})
    return answer


class _Files(StaticFiles):
    """The page's files: asked for again each time, and sent when they are others."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        answer = super().file_response(*args, **options)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


class Routes:
    def __init__(self, home: Home) -> None:
        self.home, self.overview, self.feeds = home, Overview(home), Feeds(home)
        self._waiting = 0

    def wake(self) -> None:
        """Called when the server ends: closes all event streams."""
        self.overview.wake()
        self.feeds.wake()
        self.home.queries.close()

    def add(self, app: FastAPI) -> None:
        kind = {self.metrics: PlainTextResponse, self.overview_events: EventStream, self.changes: EventStream}
        parts: dict[str, Any] = {
            "beside flows": BesideRoutes(self.home),
            "patterns": PatternRoutes(self.home),
            "stored queries": StoredRoutes(self.home),
        }
        beside = [(path, "GET", answer, tag) for tag, part in parts.items() for path, answer in part.routes()]
        calls = [(*route, "requests") for route in CallRoutes(self.home).routes()]
        routes: list[tuple[str, str, Callable[..., Any], str]] = [
            *beside,
            *calls,
            ("/api/health", "GET", self.health, "server"),
            ("/metrics", "GET", self.metrics, "server"),
            ("/api/overview", "GET", self.get_overview, "server"),
            ("/api/overview/events", "GET", self.overview_events, "server"),
            ("/api/topics", "GET", self.topics, "topics"),
            ("/api/topics/{topic}", "GET", self.topic, "topics"),
            ("/api/topics/{topic}/records", "GET", self.consume, "topics"),
            ("/api/topics/{topic}/records", "POST", self.produce, "topics"),
            ("/api/groups", "GET", self.groups, "consumers"),
            ("/api/queues", "GET", self.queues, "consumers"),
            ("/api/dead-letters", "GET", self.dead_letters, "dead letters"),
            ("/api/dead-letters/{id}/replay", "POST", self.replay, "dead letters"),
            ("/api/dead-letters/{id}/drop", "POST", self.drop, "dead letters"),
            ("/api/views", "GET", self.views, "views"),
            ("/api/views/{view}", "GET", self.view, "views"),
            ("/api/views/{view}/rows", "GET", self.rows, "views"),
            ("/api/views/{view}/ledger", "GET", self.ledger, "views"),
            ("/api/views/{view}/changes", "GET", self.changes, "views"),
            ("/api/views/{view}/why", "GET", self.why, "views"),
            ("/api/tables", "GET", self.tables, "tables"),
            ("/api/tables/{table}", "GET", self.table, "tables"),
            ("/api/tables/{table}/rows", "GET", self.table_rows, "tables"),
            ("/api/tables/{table}/history", "GET", self.table_history, "tables"),
            ("/api/query", "POST", self.query, "views"),
        ]
        for path, method, answer, tag in routes:
            app.add_api_route(
                path,
                answer,
                methods=[method],
                tags=[tag],
                status_code=200,
                response_class=kind.get(answer, Json),
                response_model=ANSWERS.get((method, path)),
                openapi_extra=PRODUCE_BODY if answer == self.produce else None,
            )
        app.add_api_route("/", self.page, include_in_schema=False, response_class=Response)

    # -- the server ----------------------------------------------------------------------------------

    async def page(self) -> Response:
        """The page."""
        return await _Files(directory=PAGE).get_response("index.html", {"type": "http", "method": "GET", "headers": []})

    async def health(self) -> Response:
        """Whether the server answers. Needs no token."""
        return Json({"status": "ok"})

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        facts = await self.overview.now()
        statuses = None if self.home.flows is None else await self.home.read(self.home.flows)
        return PlainTextResponse(exposition(facts, statuses), media_type="text/plain; version=0.0.4")

    async def get_overview(self) -> Response:
        """Everything at a glance; at most a second old."""
        return Json(await self.overview.now())

    async def overview_events(self) -> Response:
        """Server-sent events `overview`: the same, whenever it is another, at most once a second."""
        return EventStream(self.overview.events())

    # -- topics --------------------------------------------------------------------------------------

    async def topics(self) -> Response:
        """All topics."""

        def look() -> list[Mapping[str, Any]]:
            log = self.home.log_if_any()
            return [] if log is None else [_named(topic) for topic in log.topics()]

        return Json(await self.home.read(look))

    async def topic(self, topic: str) -> Response:
        """A topic: settings, schema, partitions, groups and queues."""

        def look() -> dict[str, Any]:
            found = self._topic(topic)
            settings, ends = found.settings, found.ends()
            return {
                **_named(found),
                "topic_id": found.topic_id,
                "retention_bytes": settings.retention_bytes,
                "unread": settings.unread,
                "versioned": settings.versioned,
                "max_ahead": duration(settings.max_ahead_us),
                "extra": settings.extra,
                "position": str(_position(found, ends)),
                "partitions": [{"partition": number, **asdict(at)} for number, at in ends.items()],
                "groups": [group_facts(found, group) for group in found.groups()],
                "queues": [queue_facts(found.name, queue) for queue in counted_queues(found)],
            }

        return Json(await self.home.read(look))

    async def produce(self, topic: str, request: Request) -> Response:
        """Appends records, all or none: a JSON object, a list of them, or one in each line (application/x-ndjson).
        Answers with the position behind them, for `wait_for`."""
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "application/x-ndjson"):
            raise InvalidArgument("content-type", kind[:80], "must be application/json or application/x-ndjson")
        body = await request.body()
        lines = await self.home.read(lambda: list(islice(_objects(body, kind), RECORDS_MAX + 1)))
        if len(lines) > RECORDS_MAX:
            why = f"more than {RECORDS_MAX} records in one request: send them in pieces."
            return refusal(413, "TooManyRecords", why, {"limit": RECORDS_MAX})

        def append() -> Appended:
            found = self._topic(check_name(topic, argument="topic"))
            schema = found.schema
            return found.append([decode_row(line, schema) for line in lines])

        done = await self.home.read(append)
        position = str(done.position)
        answer = {
            "position": position,
            "ranges": {str(number): [given.start, given.stop] for number, given in done.ranges.items()},
            "quarantined": done.quarantined,
        }
        return Json(answer, headers={POSITION: position} if len(position) < 8_000 else None)

    async def consume(
        self,
        topic: str,
        start: str = "earliest",
        partition: Annotated[int | None, Query(ge=0)] = None,
        offset: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
        limit: Limit = 100,
        wait: str = "0 seconds",
    ) -> Response:
        """Records in order of arrival. `start`: earliest, latest, a time with its zone, or P:OFFSET,P:OFFSET, as `next`
        of the last answer says; or `partition` and `offset`. `wait`: how long to wait while there is none."""
        if offset is not None and partition is None:
            raise InvalidArgument("offset", offset, "is of one partition: say which")
        seconds = _seconds(wait, "wait")
        begin = await self.home.read(lambda: self._begin(topic, start, partition, offset))

        async def there() -> bool:
            ends = await self.home.read(lambda: self._topic(topic).ends())
            return any(at.next > begin.get(number, 0) for number, at in ends.items() if partition in (None, number))

        if seconds and not await there():
            await self._until(there, seconds)
        return Json(await self.home.read(lambda: self._records(topic, begin, partition, limit)))

    def _begin(self, topic: str, start: str, partition: int | None, offset: int | None) -> dict[int, int]:
        """Where to begin in each partition."""
        found = self._topic(topic)
        ends = found.ends()
        for number in {} if partition is None else {partition} - ends.keys():
            raise InvalidArgument("partition", number, f"topic {topic!r} has 0..{len(ends) - 1}")
        chosen = {partition: ends[partition]} if partition is not None else ends
        if partition is not None and offset is not None:
            return {partition: offset}
        at = start_of(start)
        if at == "earliest":
            return {number: end.earliest for number, end in chosen.items()}
        if at == "latest":
            return {number: end.next for number, end in chosen.items()}
        if isinstance(at, Mapping):
            for number in at.keys() - ends.keys():
                raise InvalidArgument("start", start, f"topic {topic!r} has no partition {number}")
            return {number: at.get(number, end.earliest) for number, end in chosen.items()}
        return {number: end.next for number, end in found.offsets(at=at).items() if number in chosen}

    def _records(self, topic: str, begin: dict[int, int], partition: int | None, limit: int) -> dict[str, Any]:
        found = self._topic(topic)
        ends = {number: at.next for number, at in found.ends().items() if partition in (None, number)}
        following, size_bytes = dict(begin), 0
        records: list[dict[str, Any]] = []
        for record in islice(found.records(begin, partition=partition), limit):
            facts = {
                "partition": record.partition,
                "offset": record.offset,
                "arrived_at": record.arrived_at,
                "key": record.key,
                "value": record.value,
            }
            size_bytes += len(encode_row(facts))
            if records and size_bytes > RECORDS_BYTES_MAX:
                break
            records.append(facts)
            following[record.partition] = record.offset + 1
        else:
            if len(records) < limit:  # all there was: what compaction or an erasure took is passed
                following = {number: max(following.get(number, 0), end) for number, end in ends.items()}
        return {"records": records, "next": {str(number): offset for number, offset in sorted(following.items())}}

    def _topic(self, name: str) -> Topic:
        return self.home.log().topic(check_name(name, argument="topic", system=True))

    # -- groups, queues, dead letters ------------------------------------------------------------------

    async def groups(self) -> Response:
        """All groups: how far they are behind, and how long until retention overtakes them."""

        def look() -> list[Mapping[str, Any]]:
            log = self.home.log_if_any()
            found = [] if log is None else groups_in(log, log.topics())
            return [group_facts(topic, group) for topic, group in found]

        return Json(await self.home.read(look))

    async def queues(self) -> Response:
        """All queues: where their messages are."""

        def look() -> list[Mapping[str, Any]]:
            log = self.home.log_if_any()
            topics = [] if log is None else log.topics()
            return [queue_facts(topic.name, queue) for topic in topics for queue in counted_queues(topic)]

        return Json(await self.home.read(look))

    async def dead_letters(self, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> Response:
        """Records that could not go where they should, the newest first; fewer where they are large."""

        def look() -> dict[str, Any]:
            log = self.home.log_if_any()
            if log is None:
                return {"count": 0, "dead_letters": []}
            letters, size_bytes = collections.deque[tuple[dict[str, Any], int]](), 0
            for letter in log.dead_letters(newest=limit):
                facts = letter_facts(letter)
                letters.append((facts, len(encode_row(facts))))
                size_bytes += letters[-1][1]
                while size_bytes > RECORDS_BYTES_MAX and len(letters) > 1:
                    size_bytes -= letters.popleft()[1]
            return {"count": log.dead_letters_count(), "dead_letters": [facts for facts, _ in reversed(letters)]}

        return Json(await self.home.read(look))

    async def replay(self, id: Annotated[int, Field(ge=0, lt=2**63)]) -> Response:
        """Appends a dead letter to the topic it was meant for, or puts it back into its queue, and ends it: at once, or
        neither."""
        done = await self.home.read(lambda: self.home.log().dead_letter(id).replay())
        return Json({"id": str(id), "position": str(done.position)})

    async def drop(self, id: Annotated[int, Field(ge=0, lt=2**63)]) -> Response:
        """Drops a dead letter."""
        await self.home.read(lambda: self.home.log().dead_letter(id).drop())
        return Json({"id": str(id)})

    # -- views -----------------------------------------------------------------------------------------

    async def views(self) -> Response:
        """All views: columns, and where they are."""
        views = self.home.views
        return Json(await self.home.read(lambda: [self._view(name) for name in views.names()]))

    async def view(self, view: str) -> Response:
        """A view: columns, window, aggregates, sources, and where it is."""
        return Json(await self.home.read(lambda: self._view(view)))

    def _view(self, name: str) -> dict[str, Any]:
        views = self.home.views
        flow = views.flow(check_name(name, argument="view"))
        status, sources = (
            views.status(name),
            sources_of(self.home.log_if_any(), views.branches(name), views.state(name)),
        )
        assert flow.view is not None
        return {
            "view": name,
            "app": flow.app,
            "columns": [asdict(column) for column in flow.view.columns],
            "groups": [column.name for column in flow.view.groups],
            "window": flow.window or None,
            "grace": duration(flow.grace_us),
            "within": duration(flow.within_us),
            "aggregates": dict(flow.aggregates),
            "keep": duration(flow.view.keep_us),
            "rows": status.rows,
            "commits": status.commits,
            "frontier": status.frontier,
            "position": str(status.position),
            "running": status.running,
            "started_at": status.started_at,
            "committed_at": status.committed_at,
            "lag_records": lag_of(sources),
            "sources": sources,
            "kept": [asdict(each) for each in status.kept],
        }

    async def rows(
        self,
        view: str,
        request: Request,
        limit: Limit = 100,
        after: str | None = None,
        start: Annotated[str | None, Query(alias="from")] = None,
        stop: Annotated[str | None, Query(alias="to")] = None,
        wait_for: str | None = None,
        timeout: str = "5 seconds",
        position: PositionHeader = None,
    ) -> Response:
        """Rows, the latest windows first. `from` and `to`: windows that start in there; a column the view is grouped
        by, as in `page=/`: those with this value. `after`: what the page before ended with."""
        await self._wait_for(wait_for or position, timeout)
        own = ("limit", "after", "from", "to", "wait_for", "timeout")
        asked = {name: text for name, text in request.query_params.multi_items() if name not in own}

        def look() -> dict[str, Any]:
            spec = self.home.views.spec(check_name(view, argument="view"))
            schema = schema_of(spec.groups)
            page = self.home.views.page(
                view,
                where={
                    name: field_value(schema.field(name), text, argument=name) if name in schema.names else text
                    for name, text in asked.items()
                },
                start_us=None if start is None else instant_us(start, argument="from"),
                stop_us=None if stop is None else instant_us(stop, argument="to"),
                after=after,
                bounds=self.home.bounds(rows=limit),
            )
            place = str(Place(page.sequence, None, page.born))
            return {**table_json(page.rows), "after": page.after, "position": place}

        return Json(await self.home.rows(look))

    async def ledger(self, view: str) -> Response:
        """What became of every record, window by window, the latest first; the row without a window counts what belongs
        to none."""
        columns = "window_start, window_end, on_time, corrected, dropped, untimed"
        sql = f"SELECT {columns} FROM _ledger WHERE flow = ? ORDER BY window_start DESC, window_end DESC"

        def look() -> dict[str, Any]:
            self.home.views.spec(check_name(view, argument="view"))
            table, more = self.home.views.bounded(sql, (view,), bounds=self.home.bounds())
            return {**table_json(table), "truncated": more, "totals": _totals(self.home.views.totals(view))}

        return Json(await self.home.rows(look))

    async def changes(
        self,
        view: str,
        emit: Literal["updates", "final"] = "updates",
        snapshot: bool = True,
        start: Annotated[str | None, Query(alias="from")] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Server-sent events: `change` with op, row and _position, `ping` now and then. First the rows as they are,
        unless `snapshot=false`; or what follows a position, by `from` or Last-Event-ID. `reset`: what follows it is not
        kept any more; the rows as they are come next."""
        check_name(view, argument="view")
        text = last_event_id or start
        place = Place.parse(text) if text else None
        return await self.feeds.changes(view, emit, place, snapshot=snapshot)

    async def why(self, view: str, key: Key = None) -> Response:
        """Where a row comes from: the records that it was made of, and what it waits for if it is open. `key`: of
        joined rows their `_id`; of a table its key, a parameter for each column; of windows the window's start, then
        the groups."""

        def look() -> dict[str, Any]:
            name = check_name(view, argument="view")
            return why(self.home.views, self.home.log(), name, *(key or ())).as_json()

        return Json(await self.home.rows(look))

    # -- tables ----------------------------------------------------------------------------------------

    async def tables(self) -> Response:
        """All tables: key, history, rows, kept versions."""

        def look() -> list[Mapping[str, Any]]:
            return [self._table(spec) for spec in self.home.views.specs() if spec.is_table]

        return Json(await self.home.read(look))

    async def table(self, table: str) -> Response:
        """A table: key, history, rows, kept versions, columns."""
        return Json(await self.home.read(lambda: self._table(self._table_spec(table))))

    def _table_spec(self, name: str) -> FlowSpec:
        return table_of(self.home.views, check_name(name, argument="table"))

    def _table(self, spec: FlowSpec) -> dict[str, Any]:
        assert spec.view is not None
        facts = table_facts(self.home.log_if_any(), self.home.views, spec)
        return {**facts, "columns": [asdict(column) for column in spec.view.columns]}

    async def table_rows(
        self, table: str, as_of: str | None = None, as_known: str | None = None, limit: Limit = 100
    ) -> Response:
        """Rows, by key: the latest; or of a table with a history those that were valid at `as_of`; of a bitemporal one
        as they were known at `as_known`. Both are times with a zone."""

        def look() -> dict[str, Any]:
            spec, bounds = self._table_spec(table), self.home.bounds(rows=limit)
            if as_of is None and as_known is None:
                page = self.home.views.page(spec.name, bounds=bounds)
                return {**table_json(page.rows), "truncated": page.after is not None}
            return self._past(rows_at(spec, as_of, as_known), bounds)

        return Json(await self.home.rows(look))

    async def table_history(self, table: str, key: Key = None, limit: Limit = 100) -> Response:
        """All versions of one row, by the time from which they are valid. `key`: a parameter for each column of the
        table's key."""

        def look() -> dict[str, Any]:
            return self._past(history_of(self._table_spec(table), key or ()), self.home.bounds(rows=limit))

        return Json(await self.home.rows(look))

    def _past(self, asked: past.Asked, bounds: Bounds) -> dict[str, Any]:
        found, more = self.home.views.bounded(asked.sql, asked.values, bounds=bounds)
        return {**table_json(found), "truncated": more}

    async def query(self, asked: Asked, position: PositionHeader = None) -> Response:
        """SQL that only reads: at most ten seconds and 10,000 rows; `truncated` says whether there were more."""
        await self._wait_for(asked.wait_for or position, asked.timeout)
        time = None if asked.as_of is None else parse_as_of(asked.as_of)
        if isinstance(time, Position):
            read = time
            await self._wait_for(str(read), asked.timeout)
            time = await self.home.read(lambda: arrival_of(self.home.log(), read))
        bounds = self.home.bounds()

        def look() -> dict[str, Any]:
            table, more = self.home.queries.bounded(asked.sql, asked.params, bounds=bounds, as_of=time)
            return {**table_json(table), "truncated": more}

        return Json(await self.home.query(look))

    # -- waiting ---------------------------------------------------------------------------------------

    async def _wait_for(self, text: str | None, timeout: str) -> None:
        if not text:
            return
        position, seconds = Position.parse(text), _seconds(timeout, "timeout")

        async def there() -> bool:
            return await self.home.read(lambda: self.home.views.are_at(position))

        if not await self._until(there, seconds):
            raise WaitTimeout(await self.home.read(lambda: self.home.views.awaited(position)), seconds)

    async def _until(self, there: Callable[[], Any], seconds: float) -> bool:
        """Polls often at first, then less: a commit in another process wakes nobody here."""
        if self._waiting >= WAITING_MAX:
            raise Busy("requests that wait", WAITING_MAX)
        self._waiting += 1
        try:
            limit, pause = time.monotonic() + seconds, LOOK_SECONDS
            while not await there():
                left = limit - time.monotonic()
                if left <= 0 or self.home.closing.is_set():
                    return False
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 1.5, LOOK_SECONDS_MAX)
            return True
        finally:
            self._waiting -= 1


def _objects(body: bytes, kind: str) -> Iterator[bytes]:
    """The text of each record that was sent, while it is asked for."""
    if kind == "application/x-ndjson":
        return (line for line in BytesIO(body) if line.strip())
    return split_objects(body)


def _named(topic: Topic) -> dict[str, Any]:
    facts = topic_facts(topic.describe())
    return {"name": facts.pop("topic"), **facts}


def _position(topic: Topic, offsets: dict[int, Offsets]) -> Position:
    return Position.of(topic.name, topic.topic_id, {number: at.next for number, at in offsets.items()})


def _totals(found: LedgerRow) -> dict[str, int]:
    names = ("on_time", "corrected", "dropped", "untimed")
    return {"rows_in": sum(getattr(found, name) for name in names), **{name: getattr(found, name) for name in names}}


def _seconds(text: str, argument: str) -> float:
    seconds = duration_us(text, argument=argument, positive=False) / 1e6
    if seconds > WAIT_SECONDS_MAX:
        raise InvalidArgument(argument, text, f"is longer than {WAIT_SECONDS_MAX:g} seconds: ask again instead")
    return seconds


_RECORD = {"type": "object", "additionalProperties": True}
PRODUCE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [_RECORD, {"type": "array", "items": _RECORD}]}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}
