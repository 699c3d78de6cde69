"""Records as Kafka holds them: a value is one JSON object, a key is plain text. Owns both forms, and what becomes of a
value that is no row of the topic. Any other client can read and write them. Knows no client and no offsets.

A key of one column is its text (as in `keys`), a null key is no key; a key of several columns is a JSON array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace import jsonrows, keys, rows
from headrace.errors import HeadraceError, InvalidArgument
from headrace.log.kafka.catalog import Entry
from headrace.rows.texts import field_value
from headrace.schema import EXTRA_COLUMN

__all__ = ["TIMESTAMP", "Unreadable", "decode", "encode"]

TIMESTAMP = "_timestamp"
"""The column of Kafka's own timestamp, in a topic that has it as its event time."""
UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Unreadable:
    """A record that is no row of its topic: its number among those that were given, and why."""

    number: int
    raw: bytes
    why: str


def encode(batch: pa.RecordBatch, entry: Entry) -> tuple[list[bytes], list[bytes | None]]:
    """Values and keys of rows."""
    if entry.foreign and entry.settings.event_time is not None and (entry.unit or TIMESTAMP in entry.columns.names):
        why = "others write this topic, with a time that headrace only reads: append with their client"
        raise InvalidArgument("topic", entry.name, why)
    key_columns = entry.settings.key
    if not key_columns:
        made: list[bytes | None] = [None] * batch.num_rows
    elif len(key_columns) == 1:
        made = list(keys.all_key_bytes(batch, key_columns))
        if entry.settings.cleanup != "compact":  # where compaction needs one
            column = batch.column(key_columns[0])
            made = [None if null else key for null, key in zip(column.is_null().to_pylist(), made, strict=True)]
    else:
        parts = zip(*(rows.python_values(batch.column(name)) for name in key_columns), strict=True)
        made = [jsonrows.encode_row({"": list(part)})[4:-1] for part in parts]
    return _json_values(batch), made


def _json_values(batch: pa.RecordBatch) -> list[bytes]:
    if batch.num_rows >= BY_COLUMN_ROWS and (made := _json_by_column(batch)) is not None:
        return made
    found = rows.to_rows(batch)
    plain = all(jsonrows._is_plain(field.type) for field in batch.schema) and EXTRA_COLUMN not in batch.schema.names
    if plain:
        dumps, option = orjson.dumps, orjson.OPT_UTC_Z
        return [dumps(row, option=option) for row in found]
    return [jsonrows.encode_row(row) for row in found]


BY_COLUMN_ROWS = 64


def _json_by_column(batch: pa.RecordBatch) -> list[bytes] | None:
    """The rows as JSON, column by column, three times as fast; None where a value has to be looked at by itself."""
    pieces: list[Any] = []
    for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        text = _json_texts(column)
        if text is None or field.name == EXTRA_COLUMN:
            return None
        pieces += [f"{',' if number else '{'}{orjson.dumps(field.name).decode()}:", pc.fill_null(text, "null")]
    if not pieces:
        return None
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    values: list[bytes] = joined.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return values


def _json_texts(column: pa.Array) -> pa.Array | None:
    t, arrow = pa.types, column.type
    if t.is_string(arrow):
        if _is_escaped(column):
            return None
        return pc.binary_join_element_wise('"', column, '"', "")
    if t.is_integer(arrow) or t.is_boolean(arrow):
        return column.cast(pa.string())
    if t.is_timestamp(arrow) and arrow.tz == "UTC":
        text = (
            column.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
        )  # with a zone, Arrow looks it up each time
        text = pc.replace_substring(pc.replace_substring(text, " ", "T"), ".000000", "")
        return pc.binary_join_element_wise('"', text, 'Z"', "")
    return None


def _is_escaped(column: pa.Array) -> bool:
    """Whether a text has what JSON does not have as it is: quotes, backslashes, control characters."""
    text = column.buffers()[2]
    if text is None:
        return False
    found = np.frombuffer(text, np.uint8)
    return bool(((found == 0x22) | (found == 0x5C) | (found < 0x20)).any())


def decode(
    values: Sequence[bytes | None], raw_keys: Sequence[bytes | None], times_us: Any, entry: Entry
) -> tuple[pa.RecordBatch, list[Unreadable]]:
    """The rows, without those that are none. `times_us`: Kafka's timestamps."""
    bad: list[Unreadable] = []
    batch = _decode_quickly(values, times_us, entry)
    if batch is None:
        batch, bad = _decode_singly(values, raw_keys, times_us, entry)
    return batch, bad


# -- all at once ---------------------------------------------------------------------------------------

_schemas: dict[int, tuple[pa.Schema, Any]] = {}


def _decode_quickly(values: Sequence[bytes | None], times_us: Any, entry: Entry) -> pa.RecordBatch | None:
    """By Arrow's JSON reader; None where it must not judge: types it reads otherwise, or a value it does not like."""
    if entry.settings.extra_kept or not values or None in values:
        return None
    wanted = _json_schema(entry)
    if wanted is None or any(not field.nullable for field in entry.columns):
        return None
    text = b"\n".join(values)  # type: ignore[arg-type]  # no None is in them
    if text.count(b"\n") != len(values) - 1:
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 16, len(text) + 1)),
            parse_options=pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowCapacityError, OverflowError):
        return None
    if table.num_rows != len(values):
        return None
    columns = []
    for field in entry.columns:
        if field.name == TIMESTAMP:
            columns.append(pa.array(times_us, pa.int64()).cast(INSTANT))
            continue
        array = table.column(field.name).combine_chunks()
        if field.name == entry.settings.event_time and entry.unit:
            array = _from_number(array, entry.unit)
        columns.append(array)
    return pa.RecordBatch.from_arrays(columns, schema=entry.columns)


def _from_number(array: pa.Array, unit: str) -> pa.Array:
    return pc.multiply_checked(array, UNITS_US[unit]).cast(INSTANT)


def _json_schema(entry: Entry) -> pa.Schema | None:
    """What Arrow's reader is told; None if it cannot read a column as headrace writes it."""
    known = _schemas.get(id(entry.columns))
    if known is not None and known[0] is entry.columns:
        return known[1]
    fields: list[pa.Field] | None = []
    for field in entry.columns:
        if field.name == TIMESTAMP or fields is None:
            continue
        if field.name == entry.settings.event_time and entry.unit:
            fields.append(pa.field(field.name, pa.int64()))
        elif _reads_plainly(field.type):
            fields.append(field)
        else:
            fields = None
    schema = None if fields is None else pa.schema(fields)
    if len(_schemas) > 256:
        _schemas.clear()
    _schemas[id(entry.columns)] = entry.columns, schema
    return schema


def _reads_plainly(arrow: pa.DataType) -> bool:
    t = pa.types
    if t.is_list(arrow) or t.is_struct(arrow):
        return all(_reads_plainly(arrow.field(i).type) for i in range(arrow.num_fields))
    zoned = t.is_timestamp(arrow) and arrow.tz == "UTC"
    plain = t.is_integer(arrow) or t.is_string(arrow) or t.is_boolean(arrow) or t.is_float64(arrow)
    return bool(zoned or plain)


# -- one by one ----------------------------------------------------------------------------------------


def _decode_singly(
    values: Sequence[bytes | None], raw_keys: Sequence[bytes | None], times_us: Any, entry: Entry
) -> tuple[pa.RecordBatch, list[Unreadable]]:
    """By the rules that an append goes by, so what one of them refuses is known with its reason."""
    found, bad = [], []
    for number, (value, key) in enumerate(zip(values, raw_keys, strict=True)):
        try:
            found.append(_row(value, key, int(times_us[number]), entry))
        except (HeadraceError, ValueError, OverflowError) as error:
            bad.append(Unreadable(number, value or b"", str(error)))
    extra = "keep" if entry.settings.extra_kept else "ignore"
    if not found:
        return rows.to_batch([], entry.columns, extra=extra, topic=entry.name), bad
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0], bad


def _row(value: bytes | None, key: bytes | None, time_us: int, entry: Entry) -> pa.RecordBatch:
    row = _tombstone(key, entry) if value is None else jsonrows.decode_row(value, entry.columns)
    column = entry.settings.event_time
    if column == TIMESTAMP:
        row[TIMESTAMP] = _instant(time_us)
    elif column is not None and entry.unit and row.get(column) is not None:
        number = row[column]
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise InvalidArgument(column, number, f"must be a number of {entry.unit} since 1970")
        row[column] = _instant(int(number * UNITS_US[entry.unit]))
    extra = "keep" if entry.settings.extra_kept else "ignore"
    return rows.to_batch(row, entry.columns, extra=extra, topic=entry.name)


def _instant(us: int) -> Any:
    from headrace.durations import from_us

    return from_us(us)


def _tombstone(key: bytes | None, entry: Entry) -> dict[str, Any]:
    """A record without a value is a row that has only its key."""
    columns = entry.settings.key
    if len(columns) == 1 and key is not None:
        return {columns[0]: field_value(entry.columns.field(columns[0]), key.decode())}
    if len(columns) > 1 and key is not None:
        parts = orjson.loads(key)
        if isinstance(parts, list) and len(parts) == len(columns):
            return dict(zip(columns, parts, strict=True))
    raise InvalidArgument("value", None, "the record has no value")


def progress_of(carry_us: int, events_us: Any, arrived_us: Any, given_us: Any, is_given: Any) -> tuple[Any, int]:
    """Each record's progress, and the partition's behind them. A record with progress of its own (a flow wrote it)
    moves the partition by that, any other by min(event time, arrival)."""
    unset = np.iinfo(np.int64).min
    made = np.where(is_given, unset, np.minimum(events_us, arrived_us))
    reached = np.maximum.accumulate(np.maximum(np.maximum(made, given_us), carry_us))
    before = np.concatenate([[carry_us], reached[:-1]]) if len(reached) else reached
    return np.maximum(before, given_us), int(reached[-1]) if len(reached) else carry_us
