"""Arrow columns as Postgres has them, and back, by way of COPY's CSV. Owns which type stands for which, and the few
values that Postgres cannot hold as they are.

A text has no NUL in Postgres: it is written as two characters, U+0001 U+0001, and U+0001 as U+0001 U+0002. The order
stays. Texts are compared by bytes (`COLLATE "C"`), as everywhere in headrace. Lists and structs are jsonb."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from headrace.errors import InvalidArgument
from headrace.jsonrows import decoder, encoder
from headrace.rows import python_values
from headrace.views.values import as_column

__all__ = ["array_text", "bound", "csv_of", "declared", "plain_text", "table_of", "text_of"]

NUL, ONE = "\0", "\x01"


def declared(arrow: pa.DataType, *, column: str = "") -> str:
    """The type in CREATE TABLE."""
    for holds, name in _TYPES:
        if holds(arrow):
            return name
    if pa.types.is_timestamp(arrow):
        return "timestamptz" if arrow.tz else "timestamp"
    if pa.types.is_decimal(arrow):
        return f"numeric({arrow.precision},{arrow.scale})"
    raise InvalidArgument("column", column, f"is of type {arrow}, which a view cannot hold")


_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (lambda arrow: pa.types.is_int8(arrow) or pa.types.is_int16(arrow), "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, 'text COLLATE "C"'),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_date, "date"),
    (pa.types.is_nested, "jsonb"),
)


# -- out ---------------------------------------------------------------------------------------------


def csv_of(rows: pa.Table, types: Mapping[str, pa.DataType]) -> bytes:
    """The columns, in this order, for COPY. A null is nothing, an empty text is quoted."""
    columns = [_written(_whole(rows[name], arrow)) for name, arrow in types.items()]
    sink = io.BytesIO()
    table = pa.Table.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False))
    return sink.getvalue()


def array_text(column: pa.ChunkedArray | pa.Array, arrow: pa.DataType) -> str:
    """The column as the text of an array of texts; each is what the column's type reads."""
    texts = _written(_whole(column, arrow))
    texts = texts if pa.types.is_string(texts.type) else texts.cast(pa.string())
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    written = pc.binary_join_element_wise('"', texts, '"', "").fill_null("NULL")
    return "{" + ",".join(written.to_pylist()) + "}"


def _whole(column: pa.ChunkedArray | pa.Array, arrow: pa.DataType) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole if whole.type == arrow else whole.cast(arrow)


def _written(column: pa.Array) -> pa.Array:
    """What of the column needs another text than Arrow writes."""
    if pa.types.is_string(column.type):
        return _escaped(column)
    if pa.types.is_binary(column.type):
        return pa.array([None if each is None else f"\\x{each.hex()}" for each in column.to_pylist()], pa.string())
    if pa.types.is_nested(column.type):
        write = encoder(column.type)
        texts = [None if value is None else write(value) for value in python_values(column)]
        return pa.array([text if text is None else _escaped_json(text) for text in texts], pa.string())
    return column


def _escaped(column: pa.Array) -> pa.Array:
    if not pc.any(pc.or_(pc.match_substring(column, NUL), pc.match_substring(column, ONE))).as_py():
        return column
    return pc.replace_substring(pc.replace_substring(column, ONE, ONE + "\x02"), NUL, ONE + ONE)


def text_of(text: str) -> str:
    """A text as Postgres has it."""
    return text.replace(ONE, ONE + "\x02").replace(NUL, ONE + ONE)


def plain_text(text: str) -> str:
    """What `text_of` made of it, back."""
    return text.replace(ONE + ONE, NUL).replace(ONE + "\x02", ONE) if ONE in text else text


def _escaped_json(text: str) -> str:
    """jsonb refuses \\u0000 in a text."""
    if "\\u000" not in text:
        return text
    return orjson.dumps(_in_texts(orjson.loads(text), text_of)).decode()


def _in_texts(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_in_texts(each, change) for each in value]
    if isinstance(value, dict):
        return {change(name): _in_texts(each, change) for name, each in value.items()}
    return value


def bound(value: Any) -> Any:
    """A query's parameter, as the tables have it."""
    return text_of(value) if isinstance(value, str) else value


# -- in ----------------------------------------------------------------------------------------------


def table_of(body: bytes, schema: pa.Schema) -> pa.Table:
    """What COPY wrote, as a table."""
    if not body:
        return schema.empty_table()
    names = [f"c{number}" for number in range(len(schema))]
    read = [pa.string() if _is_text(field.type) else field.type for field in schema]
    found = csv.read_csv(
        pa.BufferReader(body),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=_block_bytes(body)),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict(zip(names, read, strict=True)),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    columns = [_read(found[name], field.type) for name, field in zip(names, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _block_bytes(body: bytes) -> int:
    """Arrow reads no row that is longer than two of its blocks, and a row may be as long as the whole."""
    return min(max(len(body), 1 << 20), 2**31 - 1)


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow) or pa.types.is_nested(arrow))


def _read(column: pa.ChunkedArray, arrow: pa.DataType) -> pa.Array:
    whole = column.combine_chunks()
    if pa.types.is_string(arrow):
        return _unescaped(whole)
    if pa.types.is_binary(arrow):
        return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in whole.to_pylist()], arrow)
    if pa.types.is_nested(arrow):
        return nested([None if text is None else orjson.loads(text) for text in whole.to_pylist()], arrow)
    return whole


def _unescaped(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring(column, ONE)).as_py():
        return column
    return pc.replace_substring(pc.replace_substring(column, ONE + ONE, NUL), ONE + "\x02", ONE)


def nested(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    """A column of lists or structs, of JSON that was parsed."""
    typed = decoder(arrow)
    plain = [_of_type(_in_texts(value, plain_text), arrow) for value in values]
    return as_column([value if value is None or typed is None else typed(value) for value in plain], arrow)


def _of_type(value: Any, arrow: pa.DataType) -> Any:
    """jsonb writes 1e16 as a whole number."""
    if isinstance(value, int) and pa.types.is_floating(arrow):
        return float(value)
    if isinstance(value, list) and pa.types.is_list(arrow):
        return [_of_type(each, arrow.value_type) for each in value]
    if isinstance(value, dict) and pa.types.is_struct(arrow):
        return {name: _of_type(each, arrow.field(name).type) for name, each in value.items()}
    if isinstance(value, dict) and pa.types.is_map(arrow):
        return {name: _of_type(each, arrow.item_type) for name, each in value.items()}
    return value
