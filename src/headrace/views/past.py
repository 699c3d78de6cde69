"""A table's rows as they were: which rows of its history a question asks for. Owns the SQL, for one table, and for all
names in a query that is asked as of a time; and what a position is as a time: when the last of its records arrived. The
log knows that, and no store of views does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.durations import duration_us, from_us, instant_us
from headrace.errors import InvalidArgument, TopicReplaced, UnknownView
from headrace.log.contract import Log, Topic
from headrace.position import Position
from headrace.rows.texts import field_value
from headrace.views.contract import HISTORY, FlowSpec, FlowState
from headrace.views.reading import Views, quoted, schema_of

__all__ = ["Asked", "NamesAt", "arrival_of", "history_of", "parse_as_of", "rows_at", "table_of"]

SPANS = (("valid_from", "valid_to"), ("known_from", "known_to"))
KEEP = re.compile(r"keep='([^']+)'")
"""In the text of a table."""
CONSTANT = {"_status": "'open'", "_corrections": "0"}
"""What these columns have in every table, and in every join of tables."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, and the values of its parameters."""

    sql: str
    values: tuple[Any, ...]


def table_of(views: Views, name: str) -> FlowSpec:
    """UnknownView if it is no table, and no view with a history."""
    spec = views.flow(name)
    if not spec.is_table and spec.history == "latest":
        known = [each.name for each in views.specs() if each.is_table]
        have = f" Tables are: {', '.join(sorted(known)[:10])}." if known else " There are no tables."
        raise UnknownView(view=name, known=known, why=f"{name!r} is a view, not a table.{have}")
    return spec


def rows_at(table: FlowSpec, as_of: datetime | str | None, as_known: datetime | str | None = None) -> Asked:
    """The rows that were valid at `as_of`, by what was known at `as_known`. Without `as_of`, the latest ones; without
    `as_known`, by what is known now."""
    _refuse_without_history(table)
    if as_known is not None and table.history != "bitemporal":
        why = f"table {table.name!r} does not keep what was known before: make it with history='bitemporal'"
        raise InvalidArgument("as_known", as_known, why)
    values: list[datetime] = []
    conditions = []
    if as_of is None:
        conditions.append("valid_to IS NULL")
    else:
        values.append(from_us(instant_us(as_of, argument="as_of")))
        conditions.append(f"valid_from <= ?{len(values)} AND (valid_to IS NULL OR valid_to > ?{len(values)})")
    if as_known is not None:
        values.append(from_us(instant_us(as_known, argument="as_known")))
        conditions.append(f"known_from <= ?{len(values)} AND (known_to IS NULL OR known_to > ?{len(values)})")
    elif table.history == "bitemporal":
        conditions.append("known_to IS NULL")
    return Asked(f"{_select(table)} WHERE {' AND '.join(conditions)} ORDER BY {_key(table)}", tuple(values))


def history_of(table: FlowSpec, key: Sequence[str]) -> Asked:
    """All that the history has of one key: a text for each of its columns."""
    _refuse_without_history(table)
    assert table.view is not None
    names = [column.name for column in table.view.groups]
    if len(key) != len(names):
        raise InvalidArgument("key", ", ".join(key), f"a row of table {table.name!r} is known by {', '.join(names)}")
    fields = schema_of(table.view.groups)
    values = tuple(field_value(fields.field(name), text, argument=name) for name, text in zip(names, key, strict=True))
    where = " AND ".join(f"{quoted(name)} = ?" for name in names)
    order = "valid_from, known_from" if table.history == "bitemporal" else "valid_from"
    return Asked(f"{_select(table)} WHERE {where} ORDER BY {order}", values)


class NamesAt:
    """What names in a query stand for as of a time: the rows of which every span that is kept has the time in it.
    `state`: how far a flow has read."""

    def __init__(self, specs: Sequence[FlowSpec], us: int, state: Callable[[str], FlowState]) -> None:
        self.us, self.specs = us, specs
        self.histories = [each for each in specs if each.view and each.view.public and each.history != "latest"]
        since_us = {each.name: _kept_since_us(each, state) for each in self.histories}
        self._gone = {name: since for name, since in since_us.items() if since is not None and us < since}

    def selects(self, time: str, schema: str) -> dict[str, str]:
        """By name, what has the rows. `time`: as the store writes it; `schema`: where the histories are."""
        return {each.name: _select_at(each, time, schema) for each in self.histories if each.name not in self._gone}

    def refusal(self, name: str) -> InvalidArgument:
        """For a name that the query reads as it is now; for a view's table, too."""
        name = name.partition("/")[0]
        found = next((spec for spec in self.specs if spec.name == name), None)
        if name in self._gone:
            why = f"table {name!r} bounds its history with keep=: it has versions since {from_us(self._gone[name])}"
        elif found is None:
            why = f"{name!r} has no history: only tables, and joins of tables, keep what they were"
        elif found in self.histories:
            why = f"{name!r} is read past its name, as it is now: name it without a schema"
        elif found.is_table:
            why = f"table {name!r} keeps its latest rows only: app.table({name!r}, …, history='versions') keeps more"
        else:
            why = (
                f"view {name!r} keeps its latest rows only: tables keep their history with history='versions', and so "
                f"do joins of tables, with .to_view({name!r}, history='versions')"
            )
        return InvalidArgument("as_of", str(from_us(self.us)), why)


def _select_at(spec: FlowSpec, time: str, schema: str) -> str:
    assert spec.view is not None
    kept = next({*each.names} for each in spec.tables if each.name == HISTORY)
    known = {name: quoted(name) for name in kept} | CONSTANT
    names = [column.name for column in spec.view.columns if column.name in known]
    within = [f"{begin} <= '{time}' AND ({end} IS NULL OR {end} > '{time}')" for begin, end in SPANS if begin in kept]
    columns = ", ".join(f"{known[name]} AS {quoted(name)}" for name in names)
    return f"SELECT {columns} FROM {schema}.{quoted(f'{spec.name}_history')} WHERE {' AND '.join(within)}"


def _kept_since_us(spec: FlowSpec, state: Callable[[str], FlowState]) -> int | None:
    """From when on a history with `keep=` has all that was valid; None: from the beginning."""
    keep = KEEP.search(spec.operator)
    if keep is None:
        return None
    places = (place for of_topic in state(spec.name).places.values() for place in of_topic.values())
    arrived = [place.arrived_us for place in places if place.arrived_us is not None]
    return max(arrived) - duration_us(keep[1], argument="keep") if arrived else None


# -- positions -------------------------------------------------------------------------------------------


def parse_as_of(text: str) -> Position | datetime:
    """What was typed, or came over HTTP."""
    return Position.parse(text) if "~" in text else from_us(instant_us(text, argument="as_of"))


def arrival_of(log: Log, position: Position) -> datetime:
    """When the last of the records before the position arrived. InvalidArgument if that cannot be known."""
    found = [
        _arrival_before(topic, partition, offset)
        for name, topic_id, nexts in position.topics
        for topic in [_same_topic(log, name, topic_id)]
        for partition, offset in nexts
    ]
    if not found:
        raise InvalidArgument("as_of", str(position), "is before all records: there was nothing yet")
    return max(found)


def _same_topic(log: Log, name: str, topic_id: str) -> Topic:
    topic = log.topic(name)
    if topic.topic_id != topic_id:
        raise TopicReplaced(topic=name, topic_id=topic_id)
    return topic


def _arrival_before(topic: Topic, partition: int, offset: int) -> datetime:
    """Offsets need not be dense: the record nearest below counts."""
    end, at = topic.ends().get(partition), f"{topic.name}/{partition} offset {offset}"
    if end is None or offset > end.next:
        raise InvalidArgument("as_of", at, "is behind the end of the log: nothing has been written there yet")
    stop, width = offset, 1
    while stop > end.earliest:  # further and further back: compaction may have left few of them
        start = max(end.earliest, stop - width)
        found = [each for each in topic.batches(partition, start, stop, ["_arrived_at"]) if each.num_rows]
        if found:
            arrived: datetime = found[-1]["_arrived_at"][-1].as_py()
            return arrived
        stop, width = start, 2 * width
    raise InvalidArgument("as_of", at, "the log does not have the records before it any more: give a time")


# -- one table -------------------------------------------------------------------------------------------


def _refuse_without_history(table: FlowSpec) -> None:
    if table.history == "latest":
        what = "table" if table.is_table else "view"
        why = f"{what} {table.name!r} keeps its latest rows only: make it with history='versions'"
        raise InvalidArgument("history", table.history, why)


def _select(table: FlowSpec) -> str:
    return f"SELECT * FROM {quoted(f'{table.name}_history')}"


def _key(table: FlowSpec) -> str:
    assert table.view is not None
    return ", ".join(quoted(column.name) for column in table.view.groups)
