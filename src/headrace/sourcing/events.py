"""Events as rows of a topic, and back. Owns versions of events, with their upcasts, and the columns of their fields.
Knows no state and no log.

A row has the event's name and version, and its fields as one struct: in a column named like the class, `Reserved`; from
its version 2 on `Reserved_v2`.
So a row is never rewritten, and an older version keeps the columns that it was written with. An event of an older
version is read through its upcasts: functions of its stored fields, a dict, which give those of the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidArgument, UnknownEvent
from headrace.names import check_name
from headrace.sourcing.columns import Column, column_of, fields_of

__all__ = ["EventTypes", "Upcast"]

Upcast = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    version: int
    column: Column
    upcasts: Mapping[int, Upcast]

    def field(self, version: int) -> str:
        """The column of an event's version."""
        return self.name if version == 1 else f"{self.name}_v{version}"


class EventTypes:
    """The event classes of one topic. `header`: its columns beside theirs, `event` and `event_version` among them."""

    def __init__(
        self,
        classes: Sequence[type],
        upcasts: Mapping[type, Mapping[int, Upcast]] | None = None,
        *,
        header: pa.Schema,
    ) -> None:
        if not classes:
            raise InvalidArgument("events", classes, "must be the event classes, one at least")
        given = dict(upcasts or {})
        self._by_class = {cls: _kind(cls, given.pop(cls, {})) for cls in classes}
        self._by_name = {kind.name: kind for kind in self._by_class.values()}
        if given:
            raise InvalidArgument("upcasts", next(iter(given)), "is none of the event classes: name it in events=")
        _check_names([kind.name for kind in self._by_class.values()], header.names)
        fields = [
            pa.field(kind.field(kind.version), kind.column.type)
            for kind in self._by_class.values()
            if kind.column.type is not None
        ]
        self.schema = pa.schema([*header, *fields])

    def row(self, event: Any) -> dict[str, Any]:
        """The columns of an event: its name, its version, its fields."""
        fields = self.fields(event)
        kind = self._by_class[type(event)]
        row: dict[str, Any] = {"event": kind.name, "event_version": kind.version}
        if kind.column.type is not None:
            row[kind.field(kind.version)] = fields
        return row

    def fields(self, event: Any) -> dict[str, Any]:
        """The event's fields, as they are stored."""
        kind = self._by_class.get(type(event))
        if kind is None:
            known = ", ".join(sorted(self._by_name))
            raise InvalidArgument("event", type(event).__name__, f"is none of the event classes: {known}")
        try:
            stored: dict[str, Any] = kind.column.store(event)
        except TypeError as error:
            raise InvalidArgument("event", event, str(error)) from None
        return stored

    def event(self, row: Mapping[str, Any], topic: str) -> Any:
        """The event of a row, as its class is now."""
        name, version = row["event"], row["event_version"]
        kind = self._by_name.get(name)
        if kind is None:
            raise UnknownEvent(
                topic, name, version, "no class of that name is in events= or commands=: keep the class of an old one"
            )
        if version > kind.version:
            raise UnknownEvent(topic, name, version, f"this program knows versions up to {kind.version}: update it")
        fields = row.get(kind.field(version)) or {}
        if version == kind.version:
            return kind.column.load(fields)
        try:
            for before in range(version, kind.version):
                fields = kind.upcasts[before](fields)
            return kind.column.load(fields)
        except Exception as error:
            why = f"its upcasts to version {kind.version} fail: {type(error).__name__}: {error}"
            raise UnknownEvent(topic, name, version, why) from error


def _kind(cls: type, upcasts: Mapping[int, Upcast]) -> _Kind:
    if not isinstance(cls, type) or fields_of(cls) is None:
        why = "must be a dataclass, a named tuple, a msgspec struct or a pydantic model"
        raise InvalidArgument("events", getattr(cls, "__name__", cls), why)
    if sorted(upcasts) != list(range(1, len(upcasts) + 1)):
        why = f"of {cls.__name__} must be for each version from 1 on: {{1: to version 2, 2: to version 3, …}}"
        raise InvalidArgument("upcasts", sorted(upcasts), why)
    check_name(cls.__name__, argument="events")
    return _Kind(cls.__name__, 1 + len(upcasts), column_of(cls, cls.__name__), dict(upcasts))


def _check_names(names: list[str], taken: list[str]) -> None:
    """Spark's names do not differ by case alone."""
    seen = {name.casefold(): name for name in taken}
    for name in names:
        if (other := seen.get(name.casefold())) is not None:
            raise InvalidArgument("events", name, f"would be a column beside {other!r}: rename the class")
        seen[name.casefold()] = name
