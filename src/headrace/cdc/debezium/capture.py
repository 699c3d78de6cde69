"""Captures a database through Debezium: its events become the topics of tables, as if the database were captured
itself. Owns one life, from finding out how far the log is to the end; where the events are read is recorded in the
transaction of the rows, so none is applied twice or left out. Knows no form of an event and no type.

What Debezium repeats after a crash of its own is an event like any other: the rows go through their last states again,
and are right at the end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.cdc.applying import Applying, Stop
from headrace.cdc.change import UNCHANGED, Change, Place, Row, Transaction
from headrace.cdc.choice import Choice
from headrace.cdc.debezium.address import Events
from headrace.cdc.debezium.connect import column_of_ddl, columns_of, is_placeholder, key_type, reader_of, type_of
from headrace.cdc.debezium.events import Event, Unreadable, read_event
from headrace.cdc.debezium.feed import Feed, Item, feed_of
from headrace.cdc.journal import Journal, Value
from headrace.cdc.rows import Key, Read, Shape, newest_rows
from headrace.cdc.secret import stored_secret
from headrace.cdc.tables import Column, Difference, Known, State, Tracked, difference_of, shape_of
from headrace.errors import CaptureFailed, CaptureGap, HeadraceError, OffsetOutOfRange
from headrace.log.contract import Log
from headrace.names import check_name
from headrace.schema import OP_COLUMN

__all__ = ["DebeziumCapture"]

logger = logging.getLogger("headrace.cdc")
BATCH_ROWS: Final = 20_000
WAIT_SECONDS: Final = 0.1
PLACES_SECONDS: Final = 2.0
"""So often one looks whether there are topics or partitions more."""
LAST: Final = ("last", "last_in_data_collection")
READING, PLACES, GONE = ("reading", ""), ("places", ""), ("gone", "")
"""What the journal calls the offsets from which tables are read again, those from which all are read, and keys that
went and may come again as others."""


class DebeziumCapture:
    """One capture of events. `folder`: in the home, for large batches and the secret of masks."""

    def __init__(self, log: Log, name: str, events: Events, choice: Choice, folder: Path) -> None:
        self.log, self.name, self.events, self.choice, self.folder = log, name, events, choice, folder

    def failed(self, why: str) -> CaptureFailed:
        return CaptureFailed(capture=self.name, database=self.events.shown, why=why, passing=False)

    def ask_again(self, tables: Sequence[str]) -> None:
        why = f"events of {', '.join(tables)} can be read again when the process that captures is stopped. "
        raise self.failed(f"{why}To have the database read again, send Debezium the signal execute-snapshot")

    def uninstall(self) -> list[str]:
        """Nothing of it is in the database."""
        return []

    def describe(self, schema: str, table: str) -> tuple[pa.Schema, tuple[str, ...]]:
        """The columns that a table's topic will have, and its key: by the first of its events that has a row."""
        with contextlib.closing(feed_of(self.events, self.log)) as feed:
            ends = feed.ends()
            at = {place: earliest for place, (earliest, _) in ends.items()}
            while any(at[place] < end for place, (_, end) in ends.items()):
                items, at = feed.read(at, WAIT_SECONDS)
                for item in items:
                    event = self.read(item)
                    if event is not None and (event.schema, event.table) == (schema, table) and event.row is not None:
                        columns, key = self.layout(event)
                        shape = self.shape(schema, table, key, columns, b"")
                        return pa.schema([each for each in shape.schema if each.name != OP_COLUMN]), shape.key_names
        raise self.failed(f"there is no event of {schema}.{table} yet that says what its columns are")

    @contextlib.contextmanager
    def living(self) -> Iterator[Life]:
        with contextlib.closing(feed_of(self.events, self.log)) as feed:
            try:
                yield Life(self, feed)
            except OffsetOutOfRange as error:
                raise CaptureGap(
                    capture=self.name, database=self.events.shown, why=f"events are gone: {error}", passing=False
                ) from None

    def run(self, stopping: Callable[[], bool]) -> None:
        with self.living() as life:
            life.begin(None)
            while not stopping():
                life.step(WAIT_SECONDS)

    def drain(self, *, again: Sequence[str] | None = None) -> int:
        """All events that there are now; how many changes."""
        with self.living() as life:
            life.begin(again)
            ends = life.feed.ends()
            while life.reading is not None or any(life.at.get(place, 0) < end for place, (_, end) in ends.items()):
                life.step(WAIT_SECONDS)
            life.step(0)
            return life.applying.changes

    # -- what events say ---------------------------------------------------------------------------

    def read(self, item: Item) -> Event | None:
        try:
            return read_event(item.destination, item.key, item.value)
        except Unreadable as error:
            raise self.failed(f"{item.place} offset {item.offset}: {error}") from None

    def layout(self, event: Event) -> tuple[tuple[Column, ...], tuple[str, ...]]:
        """The columns of an event's row, and the key; Stop if nobody can tell."""
        given = self.events.columns.get(f"{event.schema}.{event.table}")
        if not event.key:
            raise Stop("its events have no key: give the table a primary key, or Debezium message.key.columns")
        if given is not None:
            counts, decimals = self.events.timestamps, self.events.decimals
            columns = tuple(column_of_ddl(each.name, each.type, counts, decimals) for each in given)
        elif event.fields is not None:
            columns = columns_of(event.fields)
        else:
            named = ", ".join(event.row or ())
            raise Stop(f"its events have no schema: say what the columns are, columns={{'{event.table}': '…'}}, or set "
                       f"value.converter.schemas.enable=true in Debezium. A row has {named}")  # fmt: skip
        missing = [name for name in event.key if name not in {column.name for column in columns}]
        if missing:
            raise Stop(f"the key has {', '.join(missing)}, which is none of the columns")
        return columns, tuple(event.key)

    def shape(self, schema: str, table: str, key: Sequence[str], columns: Sequence[Column], secret: bytes) -> Shape:
        def plain(column: Column, in_key: bool) -> tuple[pa.DataType, Read]:
            kind = type_of(column)
            kind = key_type(kind) if in_key else kind
            return kind, reader_of(column, kind)

        return shape_of(columns, key, self.choice.masks(schema, table), secret, plain=plain)


class _Applying(Applying):
    """With rows that were deleted: what comes from another key has its large values from there, and Debezium's delete
    of that may be in the log already."""

    def _filled(
        self, topic: str, shape: Shape, keys: set[Key], columns: Sequence[str]
    ) -> Mapping[Key, Mapping[str, Any]]:
        try:
            return super()._filled(topic, shape, keys, columns)
        except Stop:
            found = newest_rows(self.journal.log.topic(topic), keys, shape.key_names, columns, deleted=True)
            if len(found) < len(keys):
                raise
            return found


class Life:
    """From opening the feed to the end. `at`: the next offsets to apply; `reading`: those of events that are read
    again, for the tables that are behind, until they are where the others are."""

    def __init__(self, capture: DebeziumCapture, feed: Feed) -> None:
        self._capture, self.feed = capture, feed
        self.journal = Journal(capture.log, capture.name)
        self._secret = stored_secret(capture.folder) if capture.choice.mask else b""
        self.applying = _Applying(
            self.journal, capture.folder, shape=self._shape, is_behind=lambda *_: False, grow=self._grow
        )
        self.at: dict[str, int] = dict(self.journal.states.get(PLACES, {}))
        self.reading: dict[str, int] | None = self.journal.states.get(READING, {}).get("at")
        self._layouts: dict[str, object] = {}
        self._gone: dict[str, tuple[list[Any], Row]] = {
            name: (place, tuple(row)) for name, (place, row) in self.journal.states.get(GONE, {}).items()
        }
        """By table whose last event was a delete: its place, and the key that went."""
        self._looked_at = -PLACES_SECONDS
        self._is_snapshot = True

    # -- beginning ---------------------------------------------------------------------------------

    def begin(self, again: Sequence[str] | None) -> None:
        choice = self._capture.choice
        facts: Value = {
            "database": self._capture.events.shown,
            "tables": choice.tables,
            "mask": dict(choice.mask),
            "source": "debezium",
        }
        known = {name: Known.of(value) for name, value in self.journal.of("table").items()}
        changed: dict[tuple[str, str], Value] = {("capture", ""): facts}
        if again is not None:
            changed |= self._again(known, again)
        self.journal.write([], changed)
        for each in self.journal.of("table").values():
            found = Known.of(each)
            if found.state == "stopped":
                self.applying.tables[found.id] = self._stopped(found)
            elif found.columns:  # else its next event says what it is
                self.applying.track(found)
        self._look_for_places()

    def _again(self, known: Mapping[str, Known], names: Sequence[str]) -> dict[tuple[str, str], Value]:
        """These tables' events, () for all, are read again from the first that is there."""
        full = [".".join(self._capture.choice.full(name)) for name in names] or [*known]
        changed: dict[tuple[str, str], Value] = {}
        for name in full:
            if name not in known:
                there = ", ".join(known) or "none"
                raise self._capture.failed(f"table {name!r} is not captured. There are: {there}")
            marked = replace(known[name], state="reading again", why="", epoch=known[name].epoch + 1)
            changed["table", name] = marked.value()
        ends = self.feed.ends()
        self.at = {place: min(max(self.at.get(place, low), low), high) for place, (low, high) in ends.items()}
        self.reading = {place: low for place, (low, _) in ends.items()}
        return changed | {PLACES: {**self.at}, READING: {"at": self.reading}}

    def _stopped(self, known: Known) -> Tracked:
        shape = Shape(known.key, (pa.string(),) * len(known.key), (pa.array,) * len(known.key), (0,))
        return Tracked(known, self.applying._rows(known, shape))

    def _look_for_places(self) -> None:
        """Topics and partitions that are new are read from their beginning."""
        if time.monotonic() - self._looked_at < PLACES_SECONDS:
            return
        for place, (earliest, _) in self.feed.ends().items():
            self.at.setdefault(place, earliest)
        self._looked_at = time.monotonic()

    # -- what tables are ---------------------------------------------------------------------------

    def _shape(self, known: Known, columns: Sequence[Column]) -> Shape:
        return self._capture.shape(known.schema, known.name, known.key, columns, self._secret)

    def _grow(self, known: Known, _: Difference, shape: Shape) -> bool:
        self._topic(known, shape)
        return False

    def _topic(self, known: Known, shape: Shape) -> None:
        """The table's topic has these columns."""
        log = self._capture.log
        topic = log.create_topic(known.topic, shape.schema, key=shape.key_names, exist_ok=True)
        if topic.settings.key != shape.key_names:
            raise Stop(f"topic {known.topic!r} has the key {topic.settings.key}, the table {shape.key_names}")
        have = {field.name: field for field in topic.schema}
        wanted = {field.name: field for field in shape.schema}
        if any(have.get(name) is None or have[name].type != field.type for name, field in wanted.items()):
            topic.alter(schema=pa.schema([*(wanted.get(each.name, each) for each in topic.schema),
                                          *(each for name, each in wanted.items() if name not in have)]))  # fmt: skip

    def _table(self, event: Event) -> Tracked | None:
        """The event's table, if its changes are applied, with the columns that the event has."""
        name = f"{event.schema}.{event.table}"
        table = self.applying.tables.get(name)
        if table is None:
            if event.row is None or not self._capture.choice.takes(event.schema, event.table):
                return None
            table = self._new(event, name)
        if self._is_stopped(table):
            return None
        said = self._capture.events.columns.get(name) or event.fields
        if said is not None and event.what == "upsert" and self._layouts.get(name) != said:
            self._lay_out(table, event)
            self._layouts[name] = said
        return None if self._is_stopped(table) else table

    @staticmethod
    def _is_stopped(table: Tracked) -> bool:
        return table.known.state == "stopped"

    def _new(self, event: Event, name: str) -> Tracked:
        """A table of which nothing was known."""
        topic = self._capture.choice.topic(self._capture.name, event.schema, event.table)
        earlier = self.journal.states.get(("table", name), {}).get("epoch", 0)
        state: State = "copying" if self.reading is None else "reading again"
        known = Known(name, event.schema, event.table, topic, tuple(event.key or ()), (), state, epoch=earlier)
        try:
            columns, key = self._capture.layout(event)
            known = replace(known, columns=columns, key=key)
            check_name(topic, argument="table")
            self._topic(known, self._shape(known, columns))
        except (Stop, HeadraceError, ValueError) as error:
            logger.warning("capture %s: table %s is stopped: %s", self._capture.name, name, error)
            table = self.applying.tables[name] = self._stopped(known)
            self.applying.note(table, replace(known, state="stopped", why=str(error)))
            return table
        table = self.applying.track(known)
        self.applying.note(table, known)
        return table

    def _lay_out(self, table: Tracked, event: Event) -> None:
        known = table.known
        try:
            columns, key = self._capture.layout(event)
        except Stop as error:
            self.applying.stop(table, str(error))
            return
        found = difference_of(known, columns, None if set(key) == set(known.key) else key)
        if found and known.state == "reading again":  # columns that are gone were there once
            try:
                self._topic(known, self._shape(known, columns))
            except (Stop, HeadraceError) as error:
                self.applying.stop(table, str(error))
                return
            self.applying.note(table, replace(known, columns=columns))
            found = Difference((), (), (), found.key)
        self.applying.lay_out(table, found, columns, Transaction(0, 0, 0))

    # -- events ------------------------------------------------------------------------------------

    def step(self, seconds: float) -> None:
        """Takes events, at most a batch, or waits so long for some, and writes what they say."""
        self._look_for_places()
        again = self.reading is not None
        items, behind = self.feed.read(self.at if self.reading is None else self.reading, seconds)
        for item in items:
            event = self._capture.read(item)
            if event is not None:
                self._apply(event, item, again)
        if again:
            self._read_again_to(behind)
        else:
            self.at = behind
        if not items:
            self._at_end()
        if items or self.applying._changed:
            self.applying.record("places", {**self.at})
            self.applying.record("gone", {name: gone for name, gone in self._gone.items() if self._may_tell_key(name)})
            self.applying.write()

    def _may_tell_key(self, name: str) -> bool:
        known = self.applying.tables[name].known
        return not {*known.key} & {*self._capture.choice.masks(known.schema, known.name)}

    def _read_again_to(self, behind: dict[str, int]) -> None:
        """Where the others are, tables that were read again are live."""
        self.reading = {place: offset for place, offset in behind.items() if place in self.at}
        if any(offset < self.at[place] for place, offset in self.reading.items()):
            if self.applying.rows:  # else it is read once more after a crash
                self.applying.record("reading", {"at": self.reading})
            return
        self.reading = None
        self.applying.record("reading", {"at": None})
        for table in self.applying.tables.values():
            if table.known.state == "reading again":
                self.applying.note(table, replace(table.known, state="copying" if not table.known.loaded else "live"))

    def _at_end(self) -> None:
        """Nothing waits. Behind the snapshot, all tables are loaded that have not said so themselves."""
        if self._is_snapshot:
            return
        for table in self.applying.tables.values():
            if table.known.state == "copying":
                self.applying.note(table, replace(table.known, state="live"))

    def _apply(self, event: Event, item: Item, again: bool) -> None:
        if event.phase in ("", *LAST[:1]):
            self._is_snapshot = False
        table = self._table(event)
        if table is None or (again and table.known.state != "reading again"):
            return
        if again and self.reading is not None and item.offset >= self.at.get(item.place, 0):
            return  # it comes with the others'
        end = self.applying.end + 1
        transaction = Transaction(event.transaction, end, event.at_us)
        if event.what == "truncate":
            self.applying.truncate(table, transaction)
        else:
            change = self._change(table, event, transaction)
            if change is not None:
                self.applying.apply(table, change)
        self.applying.committed(transaction)
        known = table.known
        if known.state == "copying":
            copied = known.copied + (1 if event.phase and event.what == "upsert" else 0)
            state: State = "live" if event.phase in ("", *LAST) else "copying"
            self.applying.note(table, replace(known, copied=copied, state=state))

    def _change(self, table: Tracked, event: Event, transaction: Transaction) -> Change | None:
        name, shape = table.known.full_name, table.rows.shape
        key = event.key or {}
        if event.what == "delete":
            given = {**(event.row or {}), **key}
            if any(each not in given for each in shape.key_names):
                return None
            row = tuple([given.get(column) if column in shape.key_names else None for column in shape.names])
            if event.place:
                self._gone[name] = [*event.place], row
            elif name in self._gone and table.key_of(self._gone[name][1]) == table.key_of(row):
                return None  # the tombstone behind a delete
            return Change("delete", name, table.key_of(row), row, None, Place(transaction.end), transaction)
        assert event.row is not None
        row = tuple([self._value(event.row, column) for column in shape.names])
        came = self._gone.pop(name, None)
        before = came[1] if came is not None and came[0] == [*event.place] and UNCHANGED in row else None
        return Change("insert", name, table.key_of(row), before, row, Place(transaction.end), transaction)

    @staticmethod
    def _value(row: Mapping[str, Any], column: str) -> Any:
        value = row.get(column)
        return UNCHANGED if value.__class__ in (str, list, dict) and is_placeholder(value) else value
