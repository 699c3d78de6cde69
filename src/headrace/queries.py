"""Stored queries, as programs use them: put, removed and explained. Owns no rows: they are a table, whose topic the
flows read that search with them.

    alerts = app.queries("alerts")
    app.stream(articles).search(alerts, text=["title", "body"]).to_topic("hits")
    alerts.put("heating", 'title:"heat pump" AND price < 500')"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.durations import instant_us
from headrace.errors import COLUMNS_NAMED_MAX, InvalidArgument, InvalidSearch, UnknownQuery
from headrace.flows import graph
from headrace.names import check_name
from headrace.search.explain import Explained, explained
from headrace.search.parse import parse

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App
    from headrace.log.contract import Appended, Topic
    from headrace.table import Table
    from headrace.views.contract import FlowSpec

__all__ = [
    "Explanation",
    "Queries",
    "Searched",
    "checked",
    "explain_stored",
    "queries_table",
    "searches",
    "stored_query",
]

QUERY_MAX = 1_000
"""Characters of a query's name."""
SAMPLE = 1_000


@dataclass(frozen=True)
class Explanation:
    """A stored query. `meaning`: as it was understood. `terms`: it is looked at when a record has one of these, which
    occurred `seen` times in the newest `records` of the stream. In these it was looked at `candidates` times, and found
    `hits`. `error`: why it finds nothing, if it is wrong; then the others are empty."""

    query: str
    version: str
    effective: datetime
    text: str
    meaning: str | None = None
    terms: tuple[str, ...] = ()
    seen: tuple[int, ...] = ()
    records: int = 0
    candidates: int = 0
    hits: int = 0
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Its facts by name."""
        return asdict(self)


class Queries:
    """Stored queries: put, removed, explained."""

    def __init__(self, table: Table, tenant: str | None) -> None:
        self.table, self.tenant = table, tenant
        self._searched: list[tuple[graph.Records, tuple[str, ...]]] = []
        """The streams that they are asked of, with the columns that are searched for words."""

    @property
    def name(self) -> str:
        """What they are called: a table and its topic."""
        return self.table.name

    def __repr__(self) -> str:
        return f"<queries {self.name!r} of {self.table.app!r}>"

    # -- writing ---------------------------------------------------------------------------------------

    def put(self, query: str, text: str, *, tenant: str | None = None) -> Appended:
        """Stores a query by its name, in place of the one of that name. It finds the records that arrive from then on.
        InvalidSearch says where a query is wrong: nothing is stored then."""
        return self.put_all({query: text}, tenant=tenant)

    def put_all(self, queries: Mapping[str, str], *, tenant: str | None = None) -> Appended:
        """Stores many queries, by name, at once: all, or none if one is wrong."""
        rows = [self._row(query, tenant) for query in queries]
        for query, text in queries.items():
            try:
                self._check(text)
            except InvalidSearch as error:
                error.query = query
                raise
        return self.table.upsert([{**row, "text": text} for row, text in zip(rows, queries.values(), strict=True)])

    def remove(self, query: str, *, tenant: str | None = None) -> Appended:
        """From then on it finds nothing. UnknownQuery if there is none."""
        stored_query(self.table.topic, self._row(query, tenant))
        key = self._row(query, tenant)
        return self.table.delete([tuple(key.values())])

    def _row(self, query: str, tenant: str | None) -> dict[str, str]:
        if not isinstance(query, str) or not 0 < len(query) <= QUERY_MAX:
            raise InvalidArgument("query", query, f"must be a name of 1 to {QUERY_MAX:,} characters")
        if (tenant is None) != (self.tenant is None):
            has = (
                f"queries {self.name!r} are stored by tenant" if tenant is None else f"queries {self.name!r} have none"
            )
            how = "say whose it is, as put('q1', '…', tenant='acme')" if tenant is None else "leave it out"
            raise InvalidArgument("tenant", tenant, f"{has}: {how}")
        if self.tenant is None:
            return {"query": query}
        if not isinstance(tenant, str) or not tenant:
            raise InvalidArgument("tenant", tenant, "must be a text: the value of the records' column")
        return {self.tenant: tenant, "query": query}

    def _check(self, text: str) -> None:
        """By the columns of all streams that are known without Spark; the rest is found when the flow reads it."""
        known = [(columns, names) for node, names in self._searched if (columns := _columns_of(node)) is not None]
        if not known:
            parse(text)
        for columns, names in known:
            checked(text, columns, names)

    def _checked_as_of_us(self, as_of: datetime | str) -> int:
        us = instant_us(as_of, argument="as_of")
        if us > time.time_ns() // 1000:
            why = "is in the future: queries that are still to come cannot find records that were read before"
            raise InvalidArgument("as_of", str(as_of), why)
        return us

    # -- reading ---------------------------------------------------------------------------------------

    def explain(self, query: str, *, tenant: str | None = None) -> Explanation:
        """How a stored query is understood, under which terms it lies, and what it would find in the newest thousand
        records of a stream that it is asked of. UnknownQuery if there is none."""
        record = stored_query(self.table.topic, self._row(query, tenant))
        for node, names in self._searched:
            columns = _columns_of(node)
            if columns is not None and isinstance(node, graph.Source):
                return explain_stored(record, node.topic, columns, names)
        return explain_stored(record, None, None, ())


def queries_table(app: App, name: str, tenant: str | None, settings: Mapping[str, Any]) -> Table:
    check_name(name, argument="name")
    for given in ("key", "event_time", "history", "keep", "loads"):
        if given in settings:
            raise InvalidArgument(given, settings[given], "stored queries have no such setting: leave it out")
    if tenant is None:
        return app.table(name, "query string, text string", key="query", **settings)
    if not isinstance(tenant, str) or not tenant or tenant in ("query", "text"):
        raise InvalidArgument(
            "tenant", tenant, "must be the name of a column of the records, other than query and text"
        )
    from headrace.schema import quoted_name

    columns = f"{quoted_name(tenant)} string, query string, text string"
    return app.table(name, columns, key=(tenant, "query"), **settings)


def checked(text: str, columns: pa.Schema, names: tuple[str, ...]) -> None:
    """InvalidSearch if it is no query over these columns. `names`: those that are searched for words."""
    from headrace.search.fields import fields_of
    from headrace.search.index import QueryIndex

    QueryIndex(fields_of(columns, names)).add(text, 0)


def _columns_of(node: graph.Records) -> pa.Schema | None:
    """The columns of a stream's records, where no transform makes others and its topic is known."""
    if not isinstance(node, graph.Source):
        return None
    known: pa.Schema | None = getattr(node.topic, "known_columns", None)
    return known


@dataclass(frozen=True)
class Searched:
    """A flow that asks stored queries of a stream. `topic`: where the records come from; None if another flow makes
    them, so that no user's topic has them. `text`: the columns that are searched for words. `into`: what has the hits,
    a topic or a view."""

    flow: str
    topic: str | None
    text: tuple[str, ...]
    into: str


def searches(specs: Iterable[FlowSpec], queries: str) -> Iterator[Searched]:
    """The flows of a home that ask these queries, by its specs alone."""
    for spec in specs:
        sides = dict(spec.sides)
        if spec.operator.startswith("search(") and sides.get("queries") == queries:
            names, _ = json.JSONDecoder().raw_decode(spec.operator.partition("text=")[2])
            facts = sides["facts"]
            yield Searched(spec.name, None if facts.startswith("__") else facts, tuple(names), spec.target or spec.name)


def stored_query(topic: Topic, key: Mapping[str, str]) -> Any:
    """The record of a query, as it is now."""
    found = None
    wanted = [*key.values()]
    for record in topic.records(start="earliest", key=wanted[0] if len(wanted) == 1 else tuple(wanted)):
        found = record
    if found is None or found.value.get("_op") == "delete":
        names = {
            record.value["query"]
            for record in topic.records(start="earliest")
            if all(record.value.get(name) == value for name, value in key.items() if name != "query")
        }
        raise UnknownQuery(topic.name, key["query"], sorted(map(str, names))[: 10 * COLUMNS_NAMED_MAX])
    return found


def explain_stored(record: Any, topic: Topic | None, columns: pa.Schema | None, names: tuple[str, ...]) -> Explanation:
    """`topic`: of the records that it is asked of, as far as that is known."""
    text = record.value["text"] or ""
    key = [name for name in record.value if name not in ("query", "text", "_op")]
    whose = (key[0], record.value[key[0]]) if key else None
    facts = (record.value["query"], f"{record.partition}:{record.offset}", record.arrived_at, text)
    try:
        if topic is None or columns is None:
            parse(text)
            return Explanation(*facts)
        found: Explained = explained(text, columns, names, _newest(topic, columns.names), whose)
    except InvalidSearch as error:
        return Explanation(*facts, error=f"{error.why} (character {error.at + 1})")
    laid = found.laid
    return Explanation(*facts, found.meaning, laid.terms, laid.seen, laid.records, found.candidates, found.hits)


def _newest(topic: Topic, names: list[str]) -> list[pa.RecordBatch]:
    ends = topic.offsets()
    each = max(1, SAMPLE // max(1, len(ends)))
    return [
        batch
        for partition, end in ends.items()
        for batch in topic.batches(partition, max(end.earliest, end.next - each), end.next, names)
    ]
