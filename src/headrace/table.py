"""A table, as programs use it: rows by key that are put and deleted, read as they are now, or as they were. Owns no
rows: a topic has its changes, and a view of the same name its rows.

    users = app.table("users", "id string, zip string, at timestamp", key="id", event_time="at", history="versions")
    users.upsert({"id": "u1", "zip": "8001", "at": now})
    app.drain()
    users.get("u1"), users.as_of("2026-01-01T00:00:00Z")"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.durations import format_duration, from_us, instant_us
from headrace.errors import InvalidArgument
from headrace.flows import graph
from headrace.joined import Joinable
from headrace.operators.joins.changelog import LOADED
from headrace.operators.joins.meetings import OP, History
from headrace.view import View
from headrace.views.reading import quoted

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App
    from headrace.log.contract import Appended, Rows
    from headrace.log.declared import DeclaredTopic

__all__ = ["Table"]


class Table(View):
    """A keyed table: its rows, put, deleted and read."""

    def __init__(
        self,
        app: App,
        name: str,
        topic: DeclaredTopic,
        columns: pa.Schema,
        key: tuple[str, ...],
        event_time: str | None,
        history: History,
        keep_us: int | None = None,
        loads: bool = False,
    ) -> None:
        super().__init__(app, name)
        self.topic, self.columns, self.key, self.event_time, self.history = topic, columns, key, event_time, history
        self.keep_us, self.loads = keep_us, loads

    def __repr__(self) -> str:
        return f"<table {self.name!r} of {self.app!r}>"

    # -- writing ---------------------------------------------------------------------------------------

    def upsert(self, rows: Rows) -> Appended:
        """Puts rows, each in place of the one with its key. Takes what `topic.append` takes."""
        return self.topic.append(self._changes(rows, "upsert"))

    def delete(self, keys: Any, *, at: datetime | str | None = None) -> Appended:
        """Deletes rows by key: a value, a tuple for a key of several columns, or a list of them. `at`: from when on, in
        a table with an event time."""
        if (at is None) != (self.event_time is None):
            says = f"the table has the event time {self.event_time!r}: say from when on" if at is None else "the table"
            why = f"{says}, as delete('u1', at=…)" if at is None else f"{says} has no event time: leave it out"
            raise InvalidArgument("at", at, why)
        when = {} if at is None else {self.event_time: from_us(instant_us(at, argument="at"))}
        some = list(keys) if isinstance(keys, list | set | frozenset) else [keys]
        return self.topic.append([{**self._key_of(each), **when, OP: "delete"} for each in some])

    def loaded(self) -> Appended:
        """Says that the table has been loaded: what it has now was there from the beginning, for records that look up
        in it. For a table that is made with `loads=True`. Only the first time counts."""
        if not self.loads:
            why = f"table {self.name!r} does not wait to be loaded: make it with loads=True"
            raise InvalidArgument("loads", self.loads, why)
        return self.topic.append({OP: LOADED})

    def _changes(self, rows: Rows, op: str) -> Any:
        import pyarrow as pa

        from headrace.rows import without_stream

        if isinstance(rows, Mapping):
            return {**rows, OP: op}
        if hasattr(rows, "__arrow_c_stream__"):
            table = pa.table(without_stream(rows))
            return table.append_column(OP, pa.repeat(op, table.num_rows))
        return [{**row, OP: op} for row in rows]

    def _key_of(self, key: Any) -> dict[str, Any]:
        if isinstance(key, Mapping):
            values: Sequence[Any] = [key[name] for name in self.key if name in key]
        else:
            values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.key):
            raise InvalidArgument("key", key, f"must have a value for each of {', '.join(self.key)}")
        return dict(zip(self.key, values, strict=True))

    # -- reading ---------------------------------------------------------------------------------------

    def get(self, *key: Any, **columns: Any) -> dict[str, Any] | None:
        """The row of that key, as it is now; None if there is none: `get("u1")`, `get("shop", 7)`."""
        given = self._key_of(key[0] if len(key) == 1 else key) if key else {}
        return super().get(**given, **columns)

    def as_of(self, time: datetime | str) -> pa.Table:
        """The rows that were valid at that time, by what is known now; for a table with a history."""
        self._refuse_without("versions", "bitemporal")
        self._refuse_dropped(time)
        known = " AND known_to IS NULL" if self.history == "bitemporal" else ""
        return self._history(f"valid_from <= ?1 AND (valid_to IS NULL OR valid_to > ?1){known}", time)

    def as_known(self, time: datetime | str) -> pa.Table:
        """The latest rows, as they were known at that time; for a bitemporal table. `users_history` has the rest."""
        self._refuse_without("bitemporal")
        known = "known_from <= ?1 AND (known_to IS NULL OR known_to > ?1)"
        return self._history(f"{known} AND valid_to IS NULL", time)

    def _refuse_without(self, *kinds: str) -> None:
        if self.history not in kinds:
            why = f"table {self.name!r} keeps no such history: make it with history={kinds[0]!r}"
            raise InvalidArgument("history", self.history, why)

    def _refuse_dropped(self, time: datetime | str) -> None:
        """What was valid before the time for which versions are kept is not known any more."""
        arrived = [end.arrived_at for end in self.topic.offsets().values() if end.arrived_at is not None]
        if self.keep_us is None or not arrived:
            return
        kept_us = instant_us(max(arrived), argument="arrived_at") - self.keep_us
        if instant_us(time, argument="time") < kept_us:
            since = from_us(kept_us).isoformat()
            why = f"table {self.name!r} keeps versions for {format_duration(self.keep_us)}: those since {since}"
            raise InvalidArgument("time", str(time), why)

    def _history(self, condition: str, time: datetime | str) -> pa.Table:
        at = from_us(instant_us(time, argument="time"))
        order = ", ".join(map(quoted, self.key))
        with self._known():
            return self.app.views.query(
                f"SELECT * FROM {quoted(f'{self.name}_history')} WHERE {condition} ORDER BY {order}", (at,)
            )

    # -- joining ---------------------------------------------------------------------------------------

    def _joinable(self) -> Joinable:
        columns = tuple(self.columns.names)
        valid_from = None if self.history == "latest" else self.event_time
        return Joinable(f"table {self.name!r}", graph.Source(self.topic), self.key, columns, valid_from)
