"""Avro values in the wire format of schema registries: a zero, four bytes with the id of the writer's schema, then the
value. Owns how they become rows of a topic. A value whose schema is not known, or that is not exactly one value of it,
is no row: nothing is guessed. Knows no client; who calls says what schema has an id.

Values of plain fields are read column by column (`avro_columns`), all others one by one, by fastavro."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace import rows
from headrace.errors import AvroMissing, HeadraceError, InvalidArgument, RegistryFailed
from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.forms.avro_columns import READ_ON_BYTES, Columns, Malformed, columns_of
from headrace.log.kafka.forms.registry import Registry, SchemaUnknown
from headrace.log.kafka.values import tombstone, with_time

__all__ = ["AvroForm", "Schemas"]

HEADER_BYTES = 5
KEPT_TYPES = {
    *("decimal", "date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"),
}
"""Logical types that headrace has, too. A value of any other is what is written: a text, a number, bytes."""
PARTS_MAX = 10_000


@dataclass
class Writer:
    """A schema by which values were written. `parsed`: as fastavro takes it."""

    schema: Any
    parsed: Any
    _columns: dict[int, tuple[Entry, Columns | None]] = field(default_factory=dict)

    def columns_for(self, entry: Entry) -> Columns | None:
        """How its values become rows of a topic column by column; None if they cannot."""
        known = self._columns.get(id(entry))
        if known is None or known[0] is not entry:
            if len(self._columns) > 64:
                self._columns.clear()
            known = self._columns[id(entry)] = entry, columns_of(self.schema, entry)
        return known[1]


class Schemas:
    """The writers' schemas by their ids: those that the topic was declared with, else the registry's."""

    def __init__(self, given: Mapping[int, str] | None, registry: Registry | None) -> None:
        self._given, self._registry = dict(given or {}), registry
        self._writers: dict[int, Writer] = {}
        self._lock = threading.Lock()

    def writer(self, id: int) -> Writer:
        """SchemaUnknown if nobody knows it, RegistryFailed if the registry does not answer."""
        found = self._writers.get(id)
        if found is None:
            found = _writer(id, self._texts(id))
            with self._lock:
                self._writers[id] = found
        return found

    def _texts(self, id: int) -> tuple[str, ...]:
        if id in self._given:
            return (self._given[id],)
        if self._registry is None:
            known = ", ".join(map(str, sorted(self._given))) or "none"
            raise SchemaUnknown(f"schema {id} is not given (given: {known}), and the log has no registry")
        return self._registry.schema(id)


def _writer(id: int, texts: Sequence[str]) -> Writer:
    fastavro = _fastavro()
    names: dict[str, Any] = {}
    schema = parsed = None
    try:
        for text in texts:
            schema = _plain(orjson.loads(text))
            parsed = fastavro.parse_schema(schema, named_schemas=names)
        _check(parsed, names, (), {})
    except (ValueError, TypeError, KeyError, RecursionError, fastavro.schema.SchemaParseException) as error:
        why = "is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise SchemaUnknown(f"schema {id} cannot be used: {why}") from None
    return Writer(schema, parsed)


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise AvroMissing(why=str(error)) from None
    return fastavro


def _plain(schema: Any) -> Any:
    """Without logical types that headrace does not have."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = schema.get("logicalType", "date") not in KEPT_TYPES
    return {
        name: _plain(value)
        for name, value in schema.items()
        if name != "default" and not (dropped and name == "logicalType")
    }


def _check(
    schema: Any, names: Mapping[str, Any], inside: tuple[str, ...], known: dict[str, tuple[bool, int]]
) -> tuple[bool, int]:
    """Whether a value takes a byte at least, and how many parts it has. Refuses what a few bytes could make endless: a
    type that has itself in it, lists whose items take no bytes, and types that unfold into very many parts."""
    if isinstance(schema, list):
        return True, 1 + sum(_check(each, names, inside, known)[1] for each in schema)  # which branch: a byte
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _check(kind, names, inside, known)
    if isinstance(schema, str) and schema in names:
        return known[schema] if schema in known else _check(names[schema], names, inside, known)
    parts, takes = 1, kind != "null" and not (kind == "fixed" and schema["size"] == 0)
    if kind in ("array", "map"):
        some, count = _check(schema["items" if kind == "array" else "values"], names, inside, known)
        if kind == "array" and not some:
            raise ValueError("it has a list of items that take no bytes")
        parts += count
    elif kind in ("record", "error"):
        name = str(schema["name"])
        if name in inside:
            raise ValueError(f"{name} has itself in it, which no column can")
        found = [_check(each["type"], names, (*inside, name), known) for each in schema["fields"]]
        takes, parts = any(some for some, _ in found), parts + sum(count for _, count in found)
        known[name] = takes, parts
    if parts > PARTS_MAX:
        raise ValueError(f"it has more than {PARTS_MAX} parts")
    return takes, parts


# -- values --------------------------------------------------------------------------------------------


class AvroForm:
    """A topic whose values have these writers' schemas."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas

    def is_quick(self, _entry: Entry) -> bool:
        return True

    def read_quickly(self, values: Sequence[bytes | None], times_us: Any, entry: Entry) -> pa.RecordBatch | None:
        if not values or None in values:
            return None
        try:
            return self._read(list(values), times_us, entry)  # type: ignore[arg-type]  # no None is in them
        except (AvroMissing, RegistryFailed):
            raise
        except (HeadraceError, ValueError, OverflowError):
            return None

    def read_row(self, value: bytes | None, key: bytes | None, time_us: int, entry: Entry) -> pa.RecordBatch:
        if value is None:
            row = self._tombstone(key, entry)
        elif (columns := self._schemas.writer(_id_of(value)).columns_for(entry)) is not None:
            return _read_alone(columns, value, time_us)
        else:
            row = self._row(value)
        return self._batch([_with_time(row, time_us, entry)], entry)

    def _row(self, value: bytes) -> dict[str, Any]:
        found = self._value(value)
        if not isinstance(found, dict):
            raise InvalidArgument("value", found, "is a value by itself; a topic's rows are records")
        return found

    def _tombstone(self, key: bytes | None, entry: Entry) -> dict[str, Any]:
        """Its key is Avro, too, or a plain text."""
        columns = entry.settings.key
        if key is None or not key.startswith(b"\0"):
            return tombstone(key, entry)
        found = self._value(key)
        if isinstance(found, dict):
            return {name: found.get(name) for name in columns}
        if len(columns) != 1:
            raise InvalidArgument("key", found, f"is one value; the topic's key is {', '.join(columns) or 'nothing'}")
        return {columns[0]: found}

    def _value(self, value: bytes) -> Any:
        """One value; ValueError if it is none."""
        id = _id_of(value)
        writer, stream = self._schemas.writer(id), BytesIO(value)
        stream.seek(HEADER_BYTES)
        try:
            found = _fastavro().schemaless_reader(stream, writer.parsed, None)
        except Exception as error:  # fastavro's own, and whatever a value of another schema makes of its reader
            raise ValueError(f"is no value of schema {id}: {type(error).__name__} {error}"[:300]) from None
        if stream.tell() != len(value):
            raise ValueError(f"has {len(value) - stream.tell()} bytes more than a value of schema {id}")
        return found

    # -- many at once ------------------------------------------------------------------------------

    def _read(self, values: list[bytes], times_us: Any, entry: Entry) -> pa.RecordBatch:
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(lengths)
        starts = ends - lengths
        buffer = np.frombuffer(b"".join(values) + bytes(READ_ON_BYTES), np.uint8)
        if (lengths < HEADER_BYTES).any() or buffer[starts].any():
            raise ValueError("not in the wire format")
        ids = buffer[starts[:, None] + np.arange(1, HEADER_BYTES)].astype(np.int64) @ (1 << np.array([24, 16, 8, 0]))
        found, order = [], []
        for id in np.unique(ids).tolist():
            chosen = np.flatnonzero(ids == id)
            columns = self._schemas.writer(id).columns_for(entry)
            if columns is None:
                picked = [_with_time(self._row(values[n]), int(times_us[n]), entry) for n in chosen.tolist()]
                found.append(self._batch(picked, entry))
            else:
                found.append(columns.read(buffer, starts[chosen] + HEADER_BYTES, ends[chosen], times_us[chosen]))
            order.append(chosen)
        if len(found) == 1:
            return found[0]
        whole = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
        return whole.take(pa.array(np.argsort(np.concatenate(order), kind="stable")))

    def _batch(self, found: list[dict[str, Any]], entry: Entry) -> pa.RecordBatch:
        extra = "keep" if entry.settings.extra_kept else "ignore"
        return rows.to_batch(found, entry.columns, extra=extra, topic=entry.name)


def _read_alone(columns: Columns, value: bytes, time_us: int) -> pa.RecordBatch:
    buffer = np.frombuffer(value + bytes(READ_ON_BYTES), np.uint8)
    try:
        return columns.read(buffer, np.array([HEADER_BYTES]), np.array([len(value)]), np.array([time_us]))
    except Malformed as error:
        raise ValueError(f"is no value of schema {_id_of(value)}: {error}") from None


def _with_time(row: dict[str, Any], time_us: int, entry: Entry) -> dict[str, Any]:
    """A number that its writer calls a time is one already."""
    is_time = entry.unit and isinstance(row.get(entry.settings.event_time or ""), datetime)
    return row if is_time else with_time(row, time_us, entry)


def _id_of(value: bytes) -> int:
    if len(value) < HEADER_BYTES or value[0] != 0:
        said = f"has {len(value)} bytes" if len(value) < HEADER_BYTES else f"begins with byte {value[0]}"
        raise ValueError(f"{said}: in a registry's wire format, a zero and the id of a schema come first")
    return int.from_bytes(value[1:HEADER_BYTES], "big")
