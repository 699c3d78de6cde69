"""Records as Kafka holds them: a value is one JSON object, a key is plain text. Owns both, and what becomes of a value
that is no row of the topic. Any other client can read and write them. A topic of others may have values of another
form (`avro`). Knows no client and no offsets.

A key of one column is its text (as in `keys`), a null key is no key; a key of several columns is a JSON array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace import jsonrows, keys, rows
from headrace.durations import from_us, instant_us
from headrace.errors import AvroMissing, HeadraceError, InvalidArgument, RegistryFailed
from headrace.log.incoming import bounds
from headrace.log.kafka.catalog import Entry
from headrace.rows.texts import field_value
from headrace.schema import EXTRA_COLUMN
from headrace.time import UNSET

__all__ = [
    "FIRST_US",
    "TIMESTAMP",
    "Form",
    "JsonForm",
    "TextForm",
    "Unreadable",
    "decode",
    "encode",
    "tombstone",
    "with_time",
]

TIMESTAMP = "_timestamp"
"""The column of Kafka's own timestamp, in a topic that has it as its event time."""
UNITS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
INSTANT = pa.timestamp("us", tz="UTC")
FIRST_US, LAST_US = (instant_us(at, argument="at") for at in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"))


@dataclass(frozen=True)
class Unreadable:
    """A record that is no row of its topic: its number among those that were given, and why."""

    number: int
    raw: bytes
    why: str
    reason: str = "unreadable"


def encode(batch: pa.RecordBatch, entry: Entry) -> tuple[Sequence[bytes | None], list[bytes | None]]:
    """Values and keys of rows."""
    if entry.texts:
        value, key = (batch.column(name).cast(pa.binary()).to_pylist() for name in ("value", "key"))
        return value, key
    if entry.foreign and entry.settings.event_time is not None and (entry.unit or TIMESTAMP in entry.columns.names):
        why = "others write this topic, with a time that headrace only reads: append with their client"
        raise InvalidArgument("topic", entry.name, why)
    if entry.avro is not None:
        raise InvalidArgument(
            "topic", entry.name, "has values in Avro, which headrace only reads: append with their client"
        )
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


class Form(Protocol):
    """How values are written."""

    def is_quick(self, entry: Entry) -> bool:
        """Whether there is a quick way to read the topic's values."""

    def read_quickly(self, values: Sequence[bytes | None], times_us: Any, entry: Entry) -> pa.RecordBatch | None:
        """The rows of values; None if they have to be read one by one."""

    def read_row(self, value: bytes | None, key: bytes | None, time_us: int, entry: Entry) -> pa.RecordBatch:
        """One row. HeadraceError, ValueError or OverflowError if it is none; RegistryFailed if nobody can tell now."""


def decode(
    values: Sequence[bytes | None], raw_keys: Sequence[bytes | None], times_us: Any, entry: Entry, form: Form
) -> tuple[pa.RecordBatch, list[Unreadable]]:
    """The rows, without those that are none, or whose event time is too far ahead. `times_us`: Kafka's timestamps."""
    found: list[pa.RecordBatch] = []
    bad: list[Unreadable] = []
    quick = form.is_quick(entry)
    parts = [(0, len(values))]
    while parts:  # a value that must be judged by itself costs those beside it nothing: halves are read without it
        start, stop = parts.pop()
        batch = form.read_quickly(values[start:stop], times_us[start:stop], entry) if quick else None
        if batch is not None:
            found.append(batch)
        elif quick and stop - start > SINGLY_ROWS:
            middle = (start + stop) // 2
            parts += [(middle, stop), (start, middle)]
        else:
            found += _decode_singly(values, raw_keys, times_us, entry, range(start, stop), bad, form)
    if not found:
        extra = "keep" if entry.settings.extra_kept else "ignore"
        return rows.to_batch([], entry.columns, extra=extra, topic=entry.name), bad
    whole = found[0] if len(found) == 1 else pa.Table.from_batches(found).combine_chunks().to_batches()[0]
    return _without_ahead(whole, values, times_us, entry, bad)


SINGLY_ROWS = 64


def _without_ahead(
    batch: pa.RecordBatch, values: Sequence[bytes | None], times_us: Any, entry: Entry, bad: list[Unreadable]
) -> tuple[pa.RecordBatch, list[Unreadable]]:
    """One wrong clock cannot move a topic's time: by the rule of an append, and the broker counts in milliseconds."""
    column = entry.settings.event_time
    if column is None or not batch.num_rows:
        return batch, bad
    numbers = np.delete(np.arange(len(values)), [each.number for each in bad])
    events = np.asarray(batch.column(column).view(pa.int64()).fill_null(UNSET))
    ahead = events > np.asarray(times_us)[numbers] + 999 + entry.settings.max_ahead_us
    if not ahead.any():
        return batch, bad
    limit = entry.settings.max_ahead_us / 1e6
    for number, us in zip(numbers[ahead].tolist(), events[ahead].tolist(), strict=True):
        why = f"event time {from_us(us).isoformat()} is more than {limit:g} s ahead of arrival"
        bad.append(Unreadable(number, values[number] or b"", why, "max_ahead"))
    return batch.filter(pa.array(~ahead)), bad


# -- all at once ---------------------------------------------------------------------------------------

_schemas: dict[int, tuple[pa.Schema, Any]] = {}


def _decode_quickly(values: Sequence[bytes | None], times_us: Any, entry: Entry) -> pa.RecordBatch | None:
    """By Arrow's JSON reader; None where it must not judge: it reads `null` and ends the process, takes two objects for
    two records, and texts that are not UTF-8. What it takes, and how, `_decode_singly` takes as well."""
    if not values or None in values:
        return None
    wanted = _json_schema(entry)
    text = b"\n".join(values)  # type: ignore[arg-type]  # no None is in them
    between = len(values) - 1
    if text[:1] != b"{" or text[-1:] != b"}" or text.count(b"\n") != between or text.count(b"}\n{") != between:
        return None
    if any(pa.types.is_floating(field.type) for field in entry.columns) and (b"NaN" in text or b"Inf" in text):
        return None
    try:
        text.decode()
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 16, len(text) + 1)),
            parse_options=pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(values):
            return None
        columns = [_read_column(table, field, times_us, entry) for field in entry.columns]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowCapacityError, OverflowError, UnicodeDecodeError):
        return None
    if any(column.null_count for field, column in zip(entry.columns, columns, strict=True) if not field.nullable):
        return None
    return pa.RecordBatch.from_arrays(columns, schema=entry.columns)


def _read_column(table: pa.Table, field: pa.Field, times_us: Any, entry: Entry) -> pa.Array:
    if field.name == TIMESTAMP:
        return pa.array(times_us, pa.int64()).cast(INSTANT)
    array = table.column(field.name).combine_chunks()
    if field.name == entry.settings.event_time and entry.unit:
        array = pc.multiply_checked(array, UNITS_US[entry.unit]).cast(INSTANT)
    elif pa.types.is_timestamp(field.type):
        array = array.cast(field.type)  # which refuses a time without a zone, as the reader would not
    else:
        return array
    least, largest = bounds(array)
    if least is not None and largest is not None and not FIRST_US <= least <= largest <= LAST_US:
        raise OverflowError
    return array


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
        elif pa.types.is_timestamp(field.type) and field.type.tz == "UTC":
            fields.append(pa.field(field.name, pa.string()))
        elif _reads_plainly(field.type):
            fields.append(field.with_nullable(True))
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
        inner = [arrow.field(i) for i in range(arrow.num_fields)]
        return all(each.nullable and not t.is_floating(each.type) and _reads_plainly(each.type) for each in inner)
    return bool(t.is_integer(arrow) or t.is_string(arrow) or t.is_boolean(arrow) or t.is_float64(arrow))


# -- one by one ----------------------------------------------------------------------------------------


def _decode_singly(
    values: Sequence[bytes | None],
    raw_keys: Sequence[bytes | None],
    times_us: Any,
    entry: Entry,
    numbers: range,
    bad: list[Unreadable],
    form: Form,
) -> list[pa.RecordBatch]:
    """By the rules that an append goes by, so what one of them refuses is known with its reason. What is read quickly
    (Arrow overlooks keys that occur twice where nobody reads them) is a row whatever it lies beside."""
    found = []
    for number in numbers:
        value = values[number]
        try:
            found.append(form.read_row(value, raw_keys[number], int(times_us[number]), entry))
        except (AvroMissing, RegistryFailed):
            raise
        except (HeadraceError, ValueError, OverflowError) as error:
            alone = form.read_quickly([value], times_us[number : number + 1], entry) if form.is_quick(entry) else None
            if alone is None:
                bad.append(Unreadable(number, value or b"", str(error)))
            else:
                found.append(alone)
    return found


class JsonForm:
    """One JSON object for each value."""

    def is_quick(self, entry: Entry) -> bool:
        return not entry.settings.extra_kept and _json_schema(entry) is not None

    def read_quickly(self, values: Sequence[bytes | None], times_us: Any, entry: Entry) -> pa.RecordBatch | None:
        return _decode_quickly(values, times_us, entry)

    def read_row(self, value: bytes | None, key: bytes | None, time_us: int, entry: Entry) -> pa.RecordBatch:
        row = tombstone(key, entry) if value is None else jsonrows.decode_row(value, entry.columns)
        extra = "keep" if entry.settings.extra_kept else "ignore"
        return rows.to_batch(with_time(row, time_us, entry), entry.columns, extra=extra, topic=entry.name)


class TextForm:
    """Texts of any kind, as they are."""

    def is_quick(self, _entry: Entry) -> bool:
        return False

    def read_quickly(self, _values: Sequence[bytes | None], _times_us: Any, _entry: Entry) -> pa.RecordBatch | None:
        return None

    def read_row(self, value: bytes | None, key: bytes | None, _time_us: int, entry: Entry) -> pa.RecordBatch:
        row = {"key": None if key is None else key.decode(), "value": None if value is None else value.decode()}
        return rows.to_batch(row, entry.columns, extra="ignore", topic=entry.name)


def with_time(row: dict[str, Any], time_us: int, entry: Entry) -> dict[str, Any]:
    """A row with its event time, where that is Kafka's timestamp or a number."""
    column = entry.settings.event_time
    if column == TIMESTAMP:
        row[TIMESTAMP] = from_us(time_us)
    elif column is not None and entry.unit and row.get(column) is not None:
        number = row[column]
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise InvalidArgument(column, number, f"must be a number of {entry.unit} since 1970")
        row[column] = from_us(int(number * UNITS_US[entry.unit]))
    return row


def tombstone(key: bytes | None, entry: Entry) -> dict[str, Any]:
    """A record without a value is a row that has only its key."""
    columns = entry.settings.key
    if len(columns) == 1 and key is not None:
        return {columns[0]: field_value(entry.columns.field(columns[0]), key.decode())}
    if len(columns) > 1 and key is not None:
        parts = orjson.loads(key)
        if isinstance(parts, list) and len(parts) == len(columns):
            return dict(zip(columns, parts, strict=True))
    raise InvalidArgument("value", None, "the record has no value")


def progress_of(carry_us: int, events_us: Any, arrived_us: Any, given_us: Any, is_given: Any) -> tuple[Any, Any, int]:
    """Each record's progress, the partition's before it, and the partition's behind them all. A record with progress of
    its own (a flow wrote it, perhaps of several partitions) is judged by that, wherever it lies, and moves the
    partition by that; any other by min(event time, arrival)."""
    made = np.where(is_given, given_us, np.minimum(events_us, arrived_us))
    reached = np.maximum(np.maximum.accumulate(made), carry_us) if len(made) else made
    before = np.concatenate([[carry_us], reached[:-1]]) if len(reached) else reached
    return np.where(is_given, given_us, before), before, int(reached[-1]) if len(reached) else carry_us
