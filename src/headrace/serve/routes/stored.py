"""Stored queries over HTTP: which there are, and how one is understood. Owns their routes and facts. Reads the table
that they are, as its flow left it: a list costs one scan of the table at most, an explanation a few lookups and the
newest records of a stream. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from headrace.errors import UnknownQuery, UnknownView
from headrace.log.contract import Record
from headrace.names import check_name
from headrace.queries import Searched, explain_stored, searches
from headrace.rows import to_rows
from headrace.schema import VERSION_COLUMN
from headrace.serve.answers import Json
from headrace.views.reading import Bounds, quoted

if TYPE_CHECKING:
    from headrace.serve.home import Home
    from headrace.views.contract import FlowSpec

__all__ = ["StoredRoutes"]

Facts = dict[str, Any]
COLUMNS = ("query", "text")
LISTED_MAX = 1_000
SECONDS_MAX = 2.0


class StoredRoutes:
    def __init__(self, home: Home) -> None:
        self._home = home

    def routes(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        yield "/api/queries", self.all
        yield "/api/queries/{queries}", self.listed
        yield "/api/queries/{queries}/explain", self.explain

    async def all(self) -> Json:
        """All tables of stored queries, and the flows that ask them."""

        def look() -> list[Facts]:
            specs = self._home.views.specs()
            return [self._facts(spec, specs) for spec in specs if _has_queries(spec)]

        return Json(await self._home.read(look))

    async def listed(
        self,
        queries: str,
        contains: Annotated[str, Query(max_length=1_000)] = "",
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX)] = 100,
    ) -> Json:
        """Stored queries by name, as the flow that keeps their table left them. `contains`: those that have this text,
        whatever its case, in their name, their tenant or what they ask. After two seconds it is QueryTimeout."""

        def look() -> Facts:
            spec = self._spec(queries)
            tenant = _tenant(spec)
            names = [*([] if tenant is None else [tenant]), *COLUMNS]
            version = _version(spec)
            where = " OR ".join(rf"lower({quoted(name)}) LIKE ?1 ESCAPE '\'" for name in names)
            shown = ", ".join(map(quoted, [*names, version, "_updated_at"]))
            sql = f"SELECT {shown} FROM {quoted(spec.name)}"
            sql += f" WHERE {where}" if contains else ""
            sql += f" ORDER BY {', '.join(map(quoted, names[:-1]))}"
            bounds = self._home.bounds(rows=limit, seconds=SECONDS_MAX)
            found, more = self._home.views.bounded(sql, (_like(contains),) if contains else (), bounds=bounds)
            return {
                "queries": [
                    {
                        "query": row["query"],
                        "tenant": None if tenant is None else row[tenant],
                        "text": row["text"],
                        "version": row[version],
                        "effective": row["_updated_at"],
                    }
                    for row in found.to_pylist()
                ],
                "more": more,
            }

        return Json(await self._home.rows(look))

    async def explain(
        self,
        queries: str,
        query: Annotated[str, Query(max_length=1_000)],
        tenant: Annotated[str | None, Query(max_length=1_000)] = None,
    ) -> Json:
        """How a stored query is understood, under which terms it lies, and what it would find in the newest thousand
        records of a stream that it is asked of."""

        def look() -> Facts:
            spec = self._spec(queries)
            record = self._stored(spec, query, tenant)
            for each in searches(self._home.views.specs(), spec.name):
                if each.topic is not None:
                    topic = self._home.log().topic(each.topic)
                    return explain_stored(record, topic, topic.schema, each.text).as_json()
            return explain_stored(record, None, None, ()).as_json()

        return Json(await self._home.rows(look))

    # -- what they are ---------------------------------------------------------------------------------

    def _facts(self, spec: FlowSpec, specs: list[FlowSpec]) -> Facts:
        return {
            "queries": spec.name,
            "tenant": _tenant(spec),
            "count": self._home.views.count(spec.name, seconds=SECONDS_MAX),
            "searches": [_searched(each) for each in searches(specs, spec.name)],
        }

    def _spec(self, name: str) -> FlowSpec:
        specs = self._home.views.specs()
        known = {spec.name: spec for spec in specs if _has_queries(spec)}
        if check_name(name, argument="queries") not in known:
            raise UnknownView(view=name, known=sorted(known), why=f"{name!r} has no stored queries")
        return known[name]

    def _stored(self, spec: FlowSpec, query: str, tenant: str | None) -> Record:
        """The record of a query, as far as its row says it."""
        by = _tenant(spec)
        key = {**({} if by is None else {by: tenant}), "query": query}
        found = self._home.views.page(spec.name, where=key, bounds=Bounds(rows=1)).rows
        if not found.num_rows:
            raise UnknownQuery(spec.name, query, [])
        row = to_rows(found.combine_chunks().to_batches()[0])[0]
        partition, offset = map(int, row[_version(spec)].split(":"))
        value = {name: row[name] for name in (*key, "text")}
        return Record(spec.name, partition, offset, row["_updated_at"], None, tuple(key.values()), value)


def _has_queries(spec: FlowSpec) -> bool:
    """Whether it is a table as `app.queries` makes it."""
    if not spec.is_table or spec.view is None:
        return False
    *by, last = [column.name for column in spec.view.groups]
    values = {column.name for column in spec.view.columns if not column.name.startswith("_")}
    return len(by) <= 1 and last == "query" and values - {"version"} == {*by, *COLUMNS} - {"version"}


def _version(spec: FlowSpec) -> str:
    """The column that says which record a row is; `version` may be the tenant's."""
    assert spec.view is not None
    names = {column.name for column in spec.view.columns}
    return VERSION_COLUMN if VERSION_COLUMN in names else "version"


def _tenant(spec: FlowSpec) -> str | None:
    """The column of their table that says whose they are."""
    assert spec.view is not None
    first = spec.view.groups[0].name
    return None if first == "query" else first


def _searched(each: Searched) -> Facts:
    return {**asdict(each), "text": list(each.text)}


def _like(text: str) -> str:
    escaped = text.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
