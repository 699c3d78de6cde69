"""Why a view has a row: the records that it was made of, where they are in the log, and what a row that is open waits
for. Reads views and log; starts no Spark.

    why(views, log, "enriched", "clicks/0/0000000000000017")"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.rows import to_rows
from headrace.rows.texts import field_value
from headrace.schema import ID_COLUMN, VERSION_COLUMN
from headrace.views.contract import FINAL_AT, RESULTS, WINDOW, feed_topic
from headrace.views.reading import Bounds, quoted, schema_of
from headrace.views.sources import named_source, named_sources
from headrace.views.standing import holds_up
from headrace.views.writers import with_helpers

if TYPE_CHECKING:
    from headrace.log.contract import Log
    from headrace.views.contract import FlowSpec
    from headrace.views.reading import SqlViews

__all__ = ["Origin", "Why", "why"]

FEED = feed_topic("", "updates")


@dataclass(frozen=True, slots=True)
class Origin:
    """A record that a row was made of. `source`: what the program calls the topic, which may be one of headrace's own,
    as behind `dedup`. `record`: None if the log does not have it any more."""

    source: str
    topic: str
    partition: int
    offset: int
    arrived_at: datetime | None
    record: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Why:
    """A row of a view and where it comes from. `waits_for`: what makes it final, in words; None if it is. `note`: why
    its records are not named; None if they are."""

    view: str
    row: dict[str, Any]
    origins: list[Origin]
    waits_for: str | None
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def why(views: SqlViews, log: Log, view: str, *key: Any) -> Why:
    """`key`: the values that tell the row apart, in order: of joined rows their `_id`, of a table its key, of a view of
    windows the window's start and the groups. Text is read by the column's type. Costs a few lookups."""
    flow = views.flow(view)
    spec = flow.view
    assert spec is not None
    names = [name for name in spec.key if name != WINDOW[1]]
    if len(key) != len(names):
        known = f"{', '.join(names)}: give all of them, in this order" if names else "nothing: it has one"
        raise InvalidArgument("key", ", ".join(map(str, key)), f"a row of view {view!r} is known by {known}")
    schema = schema_of([column for column in spec.columns if column.name in names])
    typed = {
        name: field_value(schema.field(name), value, argument=name) if isinstance(value, str) else value
        for name, value in zip(names, key, strict=True)
    }
    start = typed.pop(WINDOW[0], None)
    start_us = None if start is None else instant_us(start, argument=WINDOW[0])
    stop_us = None if start_us is None else start_us + 1
    found = views.page(view, where=typed, start_us=start_us, stop_us=stop_us, bounds=Bounds(rows=1), stored=True).rows
    if not found.num_rows:
        known = f": its rows are known by {', '.join(names)}" if names else ""
        raise InvalidArgument("key", ", ".join(map(str, key)), f"view {view!r} has no such row{known}")
    row = to_rows(found.combine_chunks().to_batches()[0])[0]
    specs = views.specs()
    origins = [_origin(log, *place) for place in _places(with_helpers(flow, specs), row)]
    if flow.operator.startswith("table_join("):
        origins = _origins_of_tables(views, log, flow, row)
    origins = [replace(each, source=named_source(each.topic, flow, specs)) for each in origins]
    waits_for = _waits_for(views, flow, row)
    if waits_for is not None:
        topics = [topic for each in with_helpers(flow, specs) for topic in each.sources]
        waits_for = ". ".join([waits_for, *map(str, holds_up(log, topics))])
    return Why(view, row, origins, waits_for, None if origins else _unnamed(flow, specs))


def _unnamed(flow: FlowSpec, specs: Sequence[FlowSpec]) -> str:
    """Why the records of a row are not named."""
    topics = ", ".join(sorted({str(each["name"]) for each in named_sources(flow, specs)}))
    what = "its window and groups" if flow.view and flow.view.window_us else "its groups"
    return f"it is made of all records of {what}: which these are is not kept. They come from {topics}"


def _origins_of_tables(views: SqlViews, log: Log, flow: FlowSpec, row: Mapping[str, Any]) -> list[Origin]:
    """Of two joined tables: the row's id has both keys, and the join keeps where the record of each row is. A side that
    is a view has records of its own."""
    found, rest = list[Origin](), str(row[ID_COLUMN])
    for side, topic in flow.sides:
        if not rest.startswith("["):  # of an outer join: there is no row on this side
            rest = rest.removeprefix("|")
            continue
        key, end = json.JSONDecoder().raw_decode(rest)
        rest = rest[end:].removeprefix("|")
        if topic.startswith(FEED):
            with contextlib.suppress(InvalidArgument):  # the view is further than the join: its row has gone
                found += why(views, log, topic.removeprefix(FEED), *key).origins
        else:
            found += [_origin(log, topic, *place) for place in _place_in(views, flow, side, topic, key)]
    return found


def _place_in(views: SqlViews, flow: FlowSpec, side: str, table: str, key: Sequence[Any]) -> list[tuple[int, int]]:
    """Partition and offset of the record that the join has of a key."""
    fields = schema_of(views.spec(table).groups)
    values = {
        field.name: field_value(field, value) if isinstance(value, str) else value
        for field, value in zip(fields, key, strict=True)
    }
    places = 'SELECT "/partition" AS p, "/offset" AS o'
    return [(place["p"], place["o"]) for place in _looked_up(views, places, f"{flow.name}/{side}", values)]


def _looked_up(views: SqlViews, select: str, table: str, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row of a flow's own table by its key, in SQL of any store: an index finds it."""
    where = " AND ".join(f"{quoted(name)} {'IS NULL' if key[name] is None else '= ?'}" for name in key) or "1 = 1"
    values = [value for value in key.values() if value is not None]
    found: list[dict[str, Any]] = views.query(f"{select} FROM {quoted(table)} WHERE {where}", values).to_pylist()
    return found


def _places(flows: Sequence[FlowSpec], row: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of the records that the row names. `flows`: the view's, and its helpers."""
    found, sources = [], {topic for flow in flows for topic in flow.sources}
    for part in str(row.get(ID_COLUMN) or "").split("|"):
        topic, *place = part.strip("()").split("/")
        topic = topic.partition("#")[0]
        if topic in sources and len(place) >= 2:
            found.append((topic, int(place[0]), int(place[1])))
    receipts: dict[str, Any] = {}
    for flow in flows:
        if flow.operator.startswith("enrich("):
            receipts |= {topic: row.get(f"{topic}_version") for side, topic in flow.sides if side == "table"}
        elif flow.is_table:
            version = VERSION_COLUMN if VERSION_COLUMN in row else "version"  # that may be the table's own
            receipts |= {topic: row.get(version) for topic in flow.sources}
    for topic, version in receipts.items():
        if version is not None:
            partition, offset = str(version).split(":")
            found.append((topic, int(partition), int(offset)))
    return found


def _origin(log: Log, topic: str, partition: int, offset: int) -> Origin:
    try:
        read = log.topic(topic)
    except UnknownTopic:
        return Origin(topic, topic, partition, offset, None, None)
    if not read.ends()[partition].earliest <= offset:
        return Origin(topic, topic, partition, offset, None, None)
    columns = [*read.schema.names, "_arrived_at"]
    for batch in read.batches(partition, offset, offset + 1, columns):
        for record in to_rows(batch):
            arrived = record.pop("_arrived_at")
            return Origin(topic, topic, partition, offset, arrived, record)
    return Origin(topic, topic, partition, offset, None, None)


def _waits_for(views: SqlViews, flow: FlowSpec, row: Mapping[str, Any]) -> str | None:
    if row["_status"] == "final":
        return None
    spec = flow.view
    assert spec is not None
    if spec.final_by_row:
        key = {name: row[name] for name in spec.key}
        (found,) = _looked_up(views, f"SELECT {quoted(FINAL_AT)} AS at", f"{flow.name}/{RESULTS}", key)
        at = found["at"]
        if flow.operator.startswith("enrich(view "):
            return f"its view to be final past {_text(at)}"
        if flow.operator.startswith("enrich("):
            if _is_loading(views, flow):
                return "its table to be loaded, which table.loaded() says"
            feeds = [
                topic.removeprefix(FEED) for side, topic in flow.sides if side == "table" and topic.startswith(FEED)
            ]
            if feeds:
                return f"the windows of view {feeds[0]} that end by {_text(at)} to be final"
            return f"its table to be read at a time after {_text(at)}"
        whose = "its events" if flow.operator.startswith("match(") else "both streams"
        return f"{whose} to be past {_text(at)}"
    if spec.window_us is None:
        return "nothing: without a window it can always change"
    closed = views.state(flow.name).closed_us
    reached = "nowhere yet" if closed is None else f"at {from_us(closed).isoformat()}"
    return f"the end of its window, {_text(row[WINDOW[1]])}, and the grace behind it; the view is {reached}"


def _is_loading(views: SqlViews, flow: FlowSpec) -> bool:
    """Whether the table that it looks up in is loaded, and that has not ended: see `operators.joins.enrich`."""
    loads = any(table.name == "loaded" for table in flow.tables)
    return loads and not views.counts(flow.name).get("loaded", (0, 0))[0]


def _text(time: Any) -> str:
    return time.isoformat() if isinstance(time, datetime) else str(time)
