"""Patterns over HTTP: what each key waits for, and the matches by event time. Owns their routes. Reads what the flow
left beside its view; each answer costs one scan of it at most, and is bounded in time and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument
from headrace.names import check_name
from headrace.rows.texts import field_value
from headrace.serve.answers import Json, table_json
from headrace.views.contract import BESIDE, PARTIALS
from headrace.views.reading import quoted, schema_of

if TYPE_CHECKING:
    from headrace.serve.home import Home
    from headrace.views.contract import FlowSpec
    from headrace.views.keyed import Column

__all__ = ["PatternRoutes"]

Facts = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=1_000)]
ROWS = 200
SECONDS_MAX = 2.0


class PatternRoutes:
    def __init__(self, home: Home) -> None:
        self._home = home

    def routes(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        yield "/api/views/{view}/partials", self.partials
        yield "/api/views/{view}/matches", self.matches

    async def partials(self, view: str, request: Request, limit: Limit = ROWS) -> Json:
        """What each key of a pattern waits for, the newest first: since when, how many events it has taken, for which
        symbols it waits, and until when. A column of the key, as in `card=4711`: that key. After two seconds it is
        QueryTimeout."""
        asked = {name: text for name, text in request.query_params.multi_items() if name != "limit"}

        def look() -> Facts:
            spec, key = self._pattern(view)
            fields = schema_of(key)
            for name in asked.keys() - set(fields.names):
                why = f"a key of view {view!r} is known by {', '.join(fields.names)}"
                raise InvalidArgument(name, asked[name], why)
            where = " AND ".join(f"{quoted(name)} = ?" for name in asked)
            values = [field_value(fields.field(name), text, argument=name) for name, text in asked.items()]
            names = [*fields.names, "match_start", "last_at", "rows", "waits_for", "until"]
            sql = f"SELECT {', '.join(map(quoted, names))} FROM {quoted(f'{spec.name}_{BESIDE[PARTIALS]}')}"
            sql += f" WHERE {where}" if where else ""
            return self._found(f"{sql} ORDER BY match_start DESC, last_at DESC", values, limit, fields.names)

        return Json(await self._home.rows(look))

    async def matches(
        self,
        view: str,
        start: Annotated[str | None, Query(alias="from")] = None,
        stop: Annotated[str | None, Query(alias="to")] = None,
        limit: Limit = ROWS,
    ) -> Json:
        """The matches of a pattern, the newest first. `from` and `to`: those that begin before `to`, and do not end
        before `from`. After two seconds it is QueryTimeout."""

        def look() -> Facts:
            spec, key = self._pattern(view)
            assert spec.view is not None
            shown = [each.name for each in spec.view.columns]
            if not {"match_start", "match_end"} <= {*shown}:
                why = "has no match_start and match_end: a transform behind .match(…) left them out"
                raise InvalidArgument("view", view, why)
            asked = [("match_end >= ?", "from", start), ("match_start < ?", "to", stop)]
            where = [condition for condition, _, text in asked if text is not None]
            values = [from_us(instant_us(text, argument=name)) for _, name, text in asked if text is not None]
            sql = f"SELECT {', '.join(map(quoted, shown))} FROM {quoted(spec.name)}"
            sql += f" WHERE {' AND '.join(where)}" if where else ""
            names = [each.name for each in key if each.name in shown]
            return self._found(f"{sql} ORDER BY match_start DESC, match_end DESC", values, limit, names)

        return Json(await self._home.rows(look))

    def _pattern(self, view: str) -> tuple[FlowSpec, tuple[Column, ...]]:
        """The view's flow, and the columns that its pattern tells keys apart by."""
        spec = self._home.views.flow(check_name(view, argument="view"))
        for table in spec.tables:
            if table.name == PARTIALS:
                return spec, table.key
        raise InvalidArgument("view", view, "is not made by .match(…): nothing waits in it")

    def _found(self, sql: str, values: list[Any], limit: int, key: list[str]) -> Facts:
        bounds = self._home.bounds(rows=limit, seconds=SECONDS_MAX)
        table, more = self._home.views.bounded(sql, values, bounds=bounds)
        return {**table_json(table), "truncated": more, "key": key}
