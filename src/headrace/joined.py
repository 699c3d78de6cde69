"""Tables and views, joined: `table.join(other, …)`, `view.join(other, …)`. Owns what each can be joined by. Opens
nothing: the step becomes a part of the program's graph when it ends in a view or a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import InvalidArgument
from headrace.flows import graph
from headrace.joining import pairs_of
from headrace.names import check_name
from headrace.operators.joins.meetings import History, How, TableJoining
from headrace.operators.joins.view_changes import ROW
from headrace.views.contract import WINDOW

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.flows.flow import Flow
    from headrace.log.declared import DeclaredTopic
    from headrace.view import View

__all__ = ["Joinable", "JoinedTables", "join_tables", "joinable_view"]


@dataclass(frozen=True)
class Joinable:
    """One side of a join of tables. `columns`: None if only Spark can tell them."""

    called: str
    records: graph.Source | graph.Changes
    key: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    valid_from: str | None = None
    """Of a table with a history: the column with the time by which its latest row is known."""


class _HasRows(Protocol):
    """A table or a view."""

    @property
    def app(self) -> App: ...

    def _joinable(self) -> Joinable: ...


def joinable_view(flow: Flow, changes: graph.Changes) -> Joinable:
    """A view as a side: its window and groups tell its rows apart, or their `_id`."""
    called = f"view {flow.name!r}"
    if flow.meets is not None:
        return Joinable(called, changes, (ROW,))
    if flow.after:
        why = "has a transform behind agg, which may make several rows of one result, so its rows have no key. Join a"
        raise InvalidArgument("other", flow.name, f"{why} view without the transform")
    window = () if flow.window is None else WINDOW if flow.window.kind == "cumulative" else WINDOW[:1]
    shown = (*(() if flow.window is None else WINDOW), *flow.groups, *(flow.aggregates or ()))
    if not window and not flow.groups:
        raise InvalidArgument("other", flow.name, "has one row, and no key to join it by")
    return Joinable(called, changes, (*window, *flow.groups), shown)


def join_tables(
    left: _HasRows, right: object, on: str | Iterable[str] | Mapping[str, str], how: How, suffix: str
) -> JoinedTables:
    if not hasattr(right, "_joinable"):
        raise InvalidArgument("other", right, "must be a table, app.table(…), or a view")
    if how not in ("inner", "left", "right", "full"):
        raise InvalidArgument("how", how, "must be 'inner', 'left', 'right' or 'full'")
    one, other = left._joinable(), right._joinable()
    pairs = pairs_of(on, one.columns, other.columns, of=(one.called, other.called))
    sides = {"left": one, "right": other}
    views = tuple(role for role, side in sides.items() if isinstance(side.records, graph.Changes))
    valid_from = one.valid_from, other.valid_from
    step = TableJoining(one.key, other.key, pairs, how, suffix, views, valid_from)
    return JoinedTables(left.app, tuple((role, side.records) for role, side in sides.items()), step)


class JoinedTables:
    """Two tables, joined; it ends in a view or a topic."""

    def __init__(self, app: App, sides: tuple[tuple[str, graph.Records], ...], step: TableJoining) -> None:
        self.app, self._sides, self._step = app, sides, step

    def to_view(self, name: str, *, history: History = "latest") -> View:
        """Keeps the joined rows in a view of that name. `history`: "latest" keeps the rows as they are now, "versions"
        also those before, from when to when each was there, by arrival: `view.as_of(time)`, and `NAME_history`."""
        if history not in ("latest", "versions"):
            raise InvalidArgument("history", history, "must be 'latest' or 'versions'")
        if history == "versions" and self._step.views:
            why = "the rows of a join are there by the arrival of its tables' changes, and those of a view have none."
            raise InvalidArgument("history", history, f"{why} Leave it out, or join tables")
        check_name(name, argument="name")
        self.app._add(graph.Sink(name, graph.Meet(self._sides, replace(self._step, history=history))))
        return self.app.view(name)

    def to_topic(self, name: str, **settings: Any) -> DeclaredTopic:
        """Writes the changes of the joined rows to a topic: `op` says whether a row came, '+', or went, '-'."""
        check_name(name, argument="name")
        return self.app._add_to_topic(
            graph.Sink(name, graph.Meet(self._sides, self._step), target=name, settings=settings)
        )
