"""Arrow data to columns (pyarrow, polars, pandas): the same layout as it is, lossless casts, everything else refused
with its row. Halving finds the first bad row, so the good case costs one cast."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidArgument, RecordRejected
from headrace.jsonrows import parse_object
from headrace.rows.mappings import Plan, column_of, extra_of, list_array, struct_array
from headrace.rows.out import python_values
from headrace.rows.values import (
    ARROW_ERRORS,
    EXPECTED,
    Bad,
    Node,
    Suspect,
    cast_text,
    check_range,
    checked,
    cut,
    unknown_field,
)
from headrace.schema import EXTRA_COLUMN, is_list_like, type_ddl


def without_stream(data: Any) -> Any:
    """A Spark DataFrame as a table: its own stream (Spark 4.3) fails on columns with times."""
    return data.toArrow() if hasattr(data, "toArrow") else data


def one_batch(data: Any) -> pa.RecordBatch:
    data = without_stream(data)
    try:
        if isinstance(data, pa.Table):
            table = data
        elif hasattr(data, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(data).read_all()
        else:
            return pa.record_batch(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        why = f"is {type(data).__name__}, which is no table ({error}); {EXPECTED}"
        raise InvalidArgument("data", cut(data), why) from None
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in table.schema], schema=table.schema)
    if len(batches) > 1:
        raise InvalidArgument("data", f"<{table.num_rows} rows>", "a column exceeds 2 GB; append in smaller pieces")
    return batches[0]


def from_pandas(frame: Any, plan: Plan, topic: str) -> pa.RecordBatch:
    """The index counts as columns where it has names; an unnamed one is only a row number. NaN is pandas' null."""
    named = [name for name in frame.index.names if name is not None]
    try:
        frame = frame.reset_index(level=named) if named else frame
    except ValueError as error:
        raise InvalidArgument("data", f"<{len(frame)} rows>", f"its index cannot become a column: {error}") from None
    arrays, names = [], []
    faults: dict[str, _Fault] = {}
    for name, series in frame.items():
        if not isinstance(name, str):
            raise InvalidArgument("data", name, "a column's name is text; rename the frame's columns")
        if name in plan.names and series.dtype == object:
            # pyarrow would guess one type for all the objects; they are Python values, so are their rules.
            values = series.where(series.notna(), None).tolist()
            node = next(node for node in plan.nodes if node.name == name)
            try:
                array = column_of(values, node)
            except (Suspect, Bad):
                faults[name] = _first_bad_value(values, node)
                continue
        else:
            try:
                array = pa.Array.from_pandas(series)
            except ARROW_ERRORS as error:
                raise InvalidArgument("data", f"<column {name}>", f"cannot be read as Arrow: {error}") from None
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
        names.append(name)
    if not names and not faults:
        return from_arrow(pa.RecordBatch.from_arrays([pa.nulls(len(frame))], names=[plan.nodes[0].name]), plan, topic)
    return from_arrow(pa.RecordBatch.from_arrays(arrays, names=names), plan, topic, faults)


def _first_bad_value(values: list[Any], node: Node) -> _Fault:
    for row, value in enumerate(values):
        try:
            checked(value, node, node.name)
        except Bad as bad:
            return row, bad.path, bad.why
    raise AssertionError(f"column {node.name!r} was refused, in which no value is bad")


_Fault = tuple[int, str, str]  # row, column, why


def from_arrow(
    batch: pa.RecordBatch, plan: Plan, topic: str, found: Mapping[str, _Fault] = MappingProxyType({})
) -> pa.RecordBatch:
    """`found`: faults in columns that are therefore missing in the batch; the first of all rows is raised."""
    names = batch.schema.names
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidArgument("data", f"<{batch.num_rows} rows>", f"has the column {twice!r} twice; rename one")
    rows = batch.num_rows
    faults = list(found.values())
    unknown = [name for name in names if name not in plan.names]
    if rows and unknown and plan.extra == "forbid":
        bad = unknown_field(unknown[0], list(plan.schema.names), nested=False)
        raise RecordRejected(topic, 0, bad.path, bad.why)
    columns = []
    for node in plan.nodes:
        at = batch.schema.get_field_index(node.name)
        if node.name in found:
            continue
        array = batch.column(at) if at >= 0 else pa.nulls(rows)
        try:
            columns.append(_cast(array, node, deep=True))
        except Bad:
            faults.append(_first_fault(array, node))
    if faults:
        row, column, why = min(faults, key=itemgetter(0))
        raise RecordRejected(topic, row, column, why)
    if plan.extra == "keep":
        columns.append(_arrow_extras(batch, unknown, plan, topic) if unknown else pa.nulls(rows, pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=plan.stored)


def _first_fault(array: pa.Array, node: Node) -> _Fault:
    """(row, column, why) of the first value that cannot be cast, by halving."""

    def fault(start: int, stop: int) -> Bad | None:
        try:
            _cast(array.slice(start, stop - start), node, deep=True)
        except Bad as bad:
            return bad
        return None

    low, high = 0, len(array)  # [0, low) is good; the first bad row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fault(low, middle) else (middle, high)
    bad = fault(low, high)
    assert bad is not None, "a column was refused in which no row is bad"
    return low, node.name + bad.path, bad.why


def _cast(array: pa.Array, node: Node, *, deep: bool = False) -> pa.Array:
    """The array as the node's type if no value changes by that, and its own buffers if the type is the same
    already; Bad otherwise. `deep`: the buffers come from outside, so what is in them is checked, too."""
    t = pa.types
    if deep:
        try:
            array.validate(full=True)
        except (pa.ArrowException, UnicodeError) as error:
            raise Bad(f"holds damaged Arrow data: {error}") from None
    if isinstance(array.type, pa.BaseExtensionType):
        raise _refused(array, node, f"Cast it to its storage type, {array.type.storage_type}, first.")
    if t.is_dictionary(array.type):
        array = array.dictionary.cast(_plain_layout(array.dictionary.type)).take(array.indices)
    elif t.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if array.null_count:
        if not node.nullable:
            raise Bad("is null or missing, but the column is NOT NULL. Give it a value.")
        if array.null_count == len(array):
            return pa.nulls(len(array), node.arrow)
    if array.type.equals(node.arrow):
        if node.inspect:
            _inspect(array, node)
        return array
    if not len(array):
        return pa.nulls(0, node.arrow)
    try:
        return _cast_nested(array, node) if node.children else _cast_plain(array, node)
    except pa.ArrowNotImplementedError:  # an odd layout deep inside (a list of dictionaries of views, …)
        return pa.array([checked(value, node, "") for value in array.to_pylist()], node.arrow)
    except pa.ArrowException as error:
        raise _refused(array, node, f"{_ALIKE} ({str(error)[:120]})") from None


_ALIKE: Final = "The types are alike, but this value does not fit without changing."


def _refused(array: pa.Array, node: Node, do: str) -> Bad:
    value = ""
    with suppress(Exception):  # what cannot be shown (another library's extension type, …) is not shown
        first = next(scalar for scalar in array if scalar.is_valid).as_py()
        value = f" {str(first)[:60]!r}"
    return Bad(f"got {array.type}{value}, expected {type_ddl(node.arrow)}. {do}")


def _cast_plain(array: pa.Array, node: Node) -> pa.Array:
    t, source, target = pa.types, array.type, node.arrow
    text = t.is_string(source) or t.is_large_string(source) or t.is_string_view(source)
    raw = t.is_binary(source) or t.is_large_binary(source) or t.is_binary_view(source) or t.is_fixed_size_binary(source)
    if t.is_string(target):
        if text:
            return array.cast(target)
        raise _refused(array, node, "Cast the column to string first, if text is meant.")
    if t.is_binary(target):
        if raw:
            return array.cast(target)
        raise _refused(array, node, "Cast the column to binary first, if its bytes are meant.")
    if t.is_integer(target):
        if t.is_integer(source):
            return array.cast(target)
        do = (
            "pandas makes floats of integers when some are missing: use .astype('Int64')."
            if t.is_floating(source)
            else ""
        )
        raise _refused(array, node, do or "Cast the column to an integer first.")
    if t.is_floating(target):
        if t.is_integer(source):
            return array.cast(target)
        if t.is_floating(source):
            return _cast_float(array, node)
        raise _refused(array, node, "Cast the column to a float first.")
    if t.is_decimal(target):
        if t.is_decimal(source):
            return array.cast(target)
        if t.is_integer(source):
            return array.cast(pa.decimal128(20, 0)).cast(target)
        if text:
            return pa.array([None if v is None else node.plain(v) for v in array.to_pylist()], target)
        raise _refused(array, node, "A float is not exact: round it and cast it to a decimal first.")
    if t.is_date(target):
        if t.is_date(source):
            out = array.cast(target)
            check_range(out, node)
            return out
        if text:
            return cast_text(array, node)
        raise _refused(array, node, "Cast the column to a date first, saying which day is meant.")
    if t.is_timestamp(target):
        if text:
            return cast_text(array, node)
        if t.is_timestamp(source) and (source.tz is None) == (target.tz is None):
            out = array.cast(target)
            check_range(out, node)
            return out
        if t.is_timestamp(source) and source.tz is None:
            do = (
                "It has no time zone: say which (polars: .dt.replace_time_zone('UTC'); pandas: .dt.tz_localize('UTC'))."
            )
        elif t.is_timestamp(source):
            do = "The column has no time zone (timestamp_ntz): make it a timestamp, or drop the zone first."
        else:
            do = "Cast the column to a timestamp first, saying its unit and time zone."
        raise _refused(array, node, do)
    raise _refused(array, node, "Cast the column first.")


def _cast_float(array: pa.Array, node: Node) -> pa.Array:
    out = array.cast(node.arrow)
    if node.arrow.bit_width < array.type.bit_width:
        same = pc.or_(pc.equal(out.cast(array.type), array), pc.is_nan(array))
        if not pc.all(same).as_py() and pc.any(pc.invert(same)).as_py():
            raise _refused(array, node, "It is not exact as float: make the column a double, or cast to float32 first.")
    return out


def _inspect(array: pa.Array, node: Node) -> None:
    """An array of the right type: are its times in range, its NOT NULL fields set, its maps' keys unique?"""
    if node.temporal:
        check_range(array, node)
        return
    dense = array.drop_null() if array.null_count else array
    for child, part in zip(node.children, _parts(dense, node), strict=True):
        if part.null_count and not child.nullable:
            raise Bad("is null, but the field is NOT NULL. Give it a value.", _step(child, node))
        if child.inspect:
            try:
                _inspect(part, child)
            except Bad as bad:
                bad.path = _step(child, node) + bad.path
                raise
    if pa.types.is_map(node.arrow):
        _check_unique(dense, _parts(dense, node)[0])


def _step(child: Node, node: Node) -> str:
    if pa.types.is_struct(node.arrow):
        return f".{child.name}"
    return "[]" if pa.types.is_list(node.arrow) else f".{child.name}"


def _parts(dense: pa.Array, node: Node) -> list[pa.Array]:
    """The children's values of an array without nulls, whatever it was sliced from."""
    if pa.types.is_struct(node.arrow):
        return [dense.field(i) for i in range(dense.type.num_fields)]
    if pa.types.is_list(node.arrow):
        return [dense.flatten()]
    first, last = (dense.offsets[0].as_py(), dense.offsets[-1].as_py()) if len(dense) else (0, 0)
    return [part.slice(first, last - first) for part in (dense.keys, dense.items)]


def _check_unique(dense: pa.Array, keys: pa.Array) -> None:
    if len(keys) < 2:
        return
    offsets = dense.offsets.to_numpy()
    owners = np.repeat(np.arange(len(dense)), np.diff(offsets))
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = owners * (int(codes.max()) + 1) + codes
    if len(np.unique(pairs)) != len(pairs):
        raise Bad("got a map which has a key twice.")


def _cast_nested(array: pa.Array, node: Node) -> pa.Array:
    t = pa.types
    array = array.cast(_plain_layout(array.type))
    source = array.type
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    dense = array.drop_null() if array.null_count else array

    def child_of(part: pa.Array, child: Node) -> pa.Array:
        try:
            return _cast(part, child)
        except Bad as bad:
            bad.path = _step(child, node) + bad.path
            raise

    if t.is_struct(node.arrow) and t.is_struct(source):
        have = [source.field(i).name for i in range(source.num_fields)]
        unknown = [name for name in have if name not in node.names]
        if unknown and node.unknown != "ignore":
            raise unknown_field(unknown[0], sorted(node.names), nested=True)
        if len(set(have)) != len(have):
            raise _refused(array, node, "It has a field twice.")
        parts = [
            child_of(dense.field(have.index(child.name)) if child.name in have else pa.nulls(len(dense)), child)
            for child in node.children
        ]
        return struct_array(parts, node, missing)
    if t.is_map(node.arrow) and t.is_map(source):
        keys, items = _parts(dense, node)
        parts = [child_of(keys, node.children[0]), child_of(items, node.children[1])]
        _check_unique(dense, parts[0])
        return list_array(np.diff(dense.offsets.to_numpy()), missing, parts, node)
    if t.is_list(node.arrow) and t.is_list(source):
        return list_array(
            np.diff(dense.offsets.to_numpy()), missing, [child_of(dense.flatten(), node.children[0])], node
        )
    raise _refused(array, node, "Cast the column first.")


def _plain_layout(arrow: pa.DataType) -> pa.DataType:
    """The type without views, large offsets and dictionaries: other layouts of the same values, for which Arrow
    lacks kernels."""
    t = pa.types
    if t.is_dictionary(arrow):
        return _plain_layout(arrow.value_type)
    if t.is_string_view(arrow) or t.is_large_string(arrow):
        return pa.string()
    if t.is_binary_view(arrow) or t.is_large_binary(arrow):
        return pa.binary()
    if t.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return pa.struct([field.with_type(_plain_layout(field.type)) for field in fields])
    if t.is_map(arrow):
        return pa.map_(_plain_layout(arrow.key_type), _plain_layout(arrow.item_type))
    if is_list_like(arrow):
        return pa.list_(_plain_layout(arrow.value_type))
    return arrow


def _arrow_extras(batch: pa.RecordBatch, unknown: list[str], plan: Plan, topic: str) -> pa.Array:
    """Unknown columns, row by row, as JSON text; a null there is an absent field. An `_extra` column, as another
    topic's batches have it, is taken apart again."""
    columns = {name: batch.column(name) for name in unknown}
    kept = columns.pop(EXTRA_COLUMN, None)
    values = {name: python_values(array) for name, array in columns.items()}
    texts = [None] * batch.num_rows if kept is None else python_values(kept)
    out: list[str | None] = []
    for i, text in enumerate(texts):
        try:
            row = {name: column[i] for name, column in values.items() if column[i] is not None}
            if text is not None:
                if not isinstance(text, str):
                    raise Bad("is not the JSON text of an object.", EXTRA_COLUMN)
                row |= {name: value for name, value in parse_object(text).items() if name not in row}
                for name in row:
                    if name in plan.names:
                        raise Bad(f"has the field {name!r}, which is a column of the topic.", EXTRA_COLUMN)
            out.append(extra_of(row, plan))
        except Bad as bad:
            raise RecordRejected(topic, i, bad.path, bad.why) from None
        except InvalidArgument as error:
            raise RecordRejected(topic, i, EXTRA_COLUMN, f"is not the JSON text of an object: {error.why}") from None
    return pa.array(out, pa.string())
