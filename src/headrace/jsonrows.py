"""Rows as lines of JSON, without loss.

Owns the text form of every value: instants in UTC with 'Z', dates and zoneless times as ISO text, decimals as
text, binary as base64, NaN and the infinities as 'NaN', 'Infinity', '-Infinity', maps with other keys than text
as lists of [key, value]. `decode_row` turns back what JSON has no type for, by the schema's types; what
`rows.to_batch` reads by itself (ISO text, decimal text) it leaves alone. Knows no files and no topics.

Stricter than orjson alone: a repeated key, an integer beyond 64 bits that would become a float, and nesting
deeper than DEPTH_MAX are found, not swallowed. A byte order mark before the object is skipped (editors on
Windows write one); after it, everything but one object is refused."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson

from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["decode_row", "decoder", "encode_row", "encode_value", "encoder", "parse_object", "split_objects"]

DEPTH_MAX: Final = 200
_INT64_BEYOND: Final = 2.0**63
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_AS_IT_IS: Final = frozenset({str, int, bool, type(None)})
_WHITE: Final = re.compile(r"[ \t\n\r]*")
_BOM: Final = b"\xef\xbb\xbf"


# -- out -------------------------------------------------------------------------------------------


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One row as one line of JSON, without the newline. InvalidArgument for a value JSON cannot hold."""
    plain: dict[str, Any] = row if type(row) is dict else dict(row)
    for name, value in row.items():
        kind = type(value)
        if kind in _AS_IT_IS or (kind is datetime and value.tzinfo is UTC):
            continue
        if plain is row:
            plain = dict(row)
        plain[name] = _plain(value, name, 0)
    try:
        return orjson.dumps(plain, option=orjson.OPT_UTC_Z)
    except (TypeError, ValueError):
        return _dumps_slowly(plain)


def encode_value(value: Any) -> str:
    """One value as JSON, as a row would have it."""
    return encode_row({"": value})[4:-1].decode()


def encoder(arrow: pa.DataType) -> Callable[[Any], str]:
    """`encode_value` for values of that type, four times as fast where JSON, or orjson, has all that is in them."""

    def plainly(value: Any) -> str:
        return orjson.dumps(value, option=orjson.OPT_UTC_Z).decode()

    return plainly if _is_plain(arrow) else encode_value


def _is_plain(arrow: pa.DataType) -> bool:
    import pyarrow as pa

    t = pa.types
    if t.is_list(arrow) or t.is_struct(arrow):
        return all(_is_plain(arrow.field(i).type) for i in range(arrow.num_fields))
    zoned = t.is_timestamp(arrow) and arrow.tz == "UTC"
    return bool(zoned or t.is_integer(arrow) or t.is_string(arrow) or t.is_boolean(arrow) or t.is_date32(arrow))


def _dumps_slowly(plain: dict[str, Any]) -> bytes:
    """What orjson refuses although JSON can say it: integers beyond 64 bits."""

    def default(value: object) -> str:
        assert isinstance(value, datetime)
        return str(_plain_datetime(value))

    for name in plain:
        if not isinstance(name, str):
            raise InvalidArgument("row", name, f"a field's name is text, not {type(name).__name__}")
    try:
        text = json.dumps(plain, default=default, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except UnicodeEncodeError:
        path = next((name for name, value in plain.items() if _surrogates(name) or _surrogates(value)), "")
        raise InvalidArgument("row", ascii(path)[1:-1], "has text with lone surrogates, which is no Unicode") from None


def _surrogates(value: Any) -> bool:
    """Whether there are lone surrogates anywhere in a value; json writes them as they are."""
    return any("\ud800" <= c <= "\udfff" for c in json.dumps(value, default=str, ensure_ascii=False))


def _plain_datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        return value.replace(tzinfo=None).isoformat()
    # Not orjson's own: it cuts offsets to minutes, so that 1880's +00:53:28 would become another instant.
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: Any, path: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise InvalidArgument("row", path[:80], f"is nested deeper than {DEPTH_MAX} levels")
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _not_finite(value)
    if isinstance(value, datetime):
        return _plain_datetime(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else _not_finite(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        items = [(key, _plain(item, f"{path}.{key}", depth + 1)) for key, item in value.items()]
        if all(isinstance(key, str) for key, _ in items):
            return {str.__str__(key): item for key, item in items}
        return [[_plain(key, path, depth + 1), item] for key, item in items]
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, str):
        return str.__str__(value)  # not str(value): an Enum that is a str would say its name
    if isinstance(value, int):
        return int(value)
    item = getattr(value, "item", None)  # numpy scalars, but not its times: some of their units become plain integers
    if callable(item) and getattr(value, "shape", None) == () and value.dtype.kind not in "mM":
        inner = item()
        if type(inner) is not kind:
            return _plain(inner, path, depth + 1)
    raise InvalidArgument("row", path, f"{kind.__name__} has no JSON form here; convert it to text or a number first")


def _not_finite(value: float | Decimal) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


# -- in --------------------------------------------------------------------------------------------


def decode_row(line: bytes | str, schema: pa.Schema) -> dict[str, Any]:
    """The row of one line, ready for `rows.to_batch` with the same schema. Unknown fields stay as they are."""
    row = parse_object(line)
    exact: dict[str, Any] | None = None
    for name, decode, decimals in _decoders(schema):
        value = row.get(name)
        if value is None:
            continue
        if decimals and exact is None and _has_float(value):
            exact = _loads_slowly(_text_of(line), parse_float=Decimal)
        if exact is not None and decimals:
            value = exact[name]
        row[name] = decode(value)
    return row


def parse_object(line: bytes | str) -> dict[str, Any]:
    """One JSON object, strictly: no repeated keys, no integer turned into a float. InvalidArgument says where."""
    data = line if isinstance(line, bytes) else _utf8(line)
    if data[:3] == _BOM:
        data = data[3:]
    try:
        row = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument("line", _shown(data), _explain(error, data)) from None
    if type(row) is not dict:
        raise InvalidArgument(
            "line", _shown(data), f'is {_json_name(row)}; a row is one JSON object, as in {{"user": "u1"}}'
        )
    keys, suspicious = len(row), False
    for value in row.values():
        kind = type(value)
        if kind is dict or kind is list:
            inner, strange = _survey(value, 1, data)
            keys += inner
            suspicious |= strange
        elif kind is float and not -_INT64_BEYOND <= value < _INT64_BEYOND:
            suspicious = True
    # Every key's closing quote is followed by a colon, but for white space. What strings hold can only raise this
    # count, so equality proves that orjson dropped no repeated key; anything else is read again, slowly.
    colons = data.translate(None, b" \t\n\r").count(b'":')
    if suspicious or colons != keys:
        return _loads_slowly(data.decode())
    return row


def split_objects(data: bytes) -> Iterator[bytes]:
    """A JSON object, or the elements of a list, each as its own text, for `decode_row`."""
    try:
        text = _text_of(data).strip()
        yield from _elements(text) if text.startswith("[") else [data]
    except RecursionError:
        raise InvalidArgument("list", _shown(data), f"is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise InvalidArgument("list", _shown(data), f"is not a list of JSON objects: {error}") from None


def _elements(text: str) -> Iterator[bytes]:
    at, decoder = _skip(text, 1), json.JSONDecoder()
    if text[at : at + 2] == "]":
        return
    for number in itertools.count():
        begin = at
        _, at = decoder.raw_decode(text, begin)
        yield text[begin:at].encode()
        at = _skip(text, at)
        if text[at : at + 2] == "]":  # and nothing behind it
            return
        if text[at : at + 1] != ",":
            raise ValueError(f"neither ',' nor its end behind element {number}")
        at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """Behind white space."""
    found = _WHITE.match(text, at)
    assert found is not None, "it may be empty"
    return found.end()


def _survey(value: Any, depth: int, data: bytes) -> tuple[int, bool]:
    """The number of keys in a parsed value, and whether it holds a float that may have been an integer."""
    if depth > DEPTH_MAX:
        raise InvalidArgument("line", _shown(data), f"is nested deeper than {DEPTH_MAX} levels")
    keys, suspicious = 0, False
    if type(value) is dict:
        keys = len(value)
        value = value.values()
    for item in value:
        kind = type(item)
        if kind is dict or kind is list:
            inner, strange = _survey(item, depth + 1, data)
            keys += inner
            suspicious |= strange
        elif kind is float and not -_INT64_BEYOND <= item < _INT64_BEYOND:
            suspicious = True
    return keys, suspicious


def _loads_slowly(text: str, **options: Any) -> dict[str, Any]:
    """With the standard parser, which sees every key and keeps integers of any size."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise InvalidArgument("line", _shown(text), f"has the key {twice!r} twice; which of the values counts?")
        return out

    try:
        row: dict[str, Any] = json.loads(text, object_pairs_hook=unique, **options)
    except ValueError as error:  # more than sys.get_int_max_str_digits() digits
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument("line", _shown(text), f"cannot be read: {error}") from None
    return row


def _utf8(line: str) -> bytes:
    if not isinstance(line, str):
        raise InvalidArgument("line", line, f"a line is bytes or text, not {type(line).__name__}")
    try:
        return line.encode()
    except UnicodeEncodeError as error:
        why = f"has a lone surrogate at character {error.start}, which is no Unicode"
        raise InvalidArgument("line", _shown(line), why) from None


def _text_of(line: bytes | str) -> str:
    return (line if isinstance(line, str) else line.decode()).removeprefix("\ufeff")


def _explain(error: orjson.JSONDecodeError, data: bytes) -> str:
    if not data.strip():
        return "is empty; a row is one JSON object"
    try:
        data.decode()
    except UnicodeDecodeError as invalid:
        return f"is not UTF-8 at byte {invalid.start} ({data[invalid.start]:#04x})"
    if data.lstrip()[:1].isalpha():  # orjson takes the 'n' of 'name,age' for the beginning of a null
        return 'is not JSON; a row is one JSON object, as in {"user": "u1"}'
    return f"is not JSON at character {error.pos}: {error.msg}"


def _json_name(value: object) -> str:
    names: dict[type, str] = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(data: bytes | str) -> str:
    text = data if isinstance(data, str) else data[:400].decode(errors="backslashreplace")
    return text if len(text) <= 100 else text[:99] + "…"


# -- by the schema's types -------------------------------------------------------------------------

_Decoders = list[tuple[str, Any, bool]]
_cache: dict[int, tuple[Any, _Decoders]] = {}


def _decoders(schema: pa.Schema) -> _Decoders:
    """(name, function, has decimals) for the columns JSON has no type for; remembered per schema object."""
    found = _cache.get(id(schema))
    if found is not None and found[0] is schema:
        return found[1]
    decoders = []
    for field in schema:
        decode = decoder(field.type)
        if decode is not None:
            decoders.append((field.name, decode, _holds_decimal(field.type)))
    if len(_cache) > 256:
        _cache.clear()
    _cache[id(schema)] = (schema, decoders)
    return decoders


def _holds_decimal(arrow: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_decimal(arrow):
        return True
    return any(_holds_decimal(arrow.field(i).type) for i in range(arrow.num_fields))


def _has_float(value: Any) -> bool:
    if type(value) is float:
        return True
    if type(value) is dict:
        return any(map(_has_float, value.values()))
    return type(value) is list and any(map(_has_float, value))


def decoder(arrow: pa.DataType) -> Any:
    """The function that turns a parsed value into one `to_batch` takes; None if it takes it as it is. What does
    not look as encoded is left alone, for `to_batch` to refuse with its row and column."""
    import pyarrow as pa

    t = pa.types
    if t.is_binary(arrow):
        return _decode_binary
    if t.is_floating(arrow):
        return _decode_float
    if t.is_decimal(arrow):
        return _same
    if t.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        inner = [(f.name, d) for f in fields if (d := decoder(f.type)) is not None]
        return _struct_decoder(inner) if inner else None
    if t.is_map(arrow):
        return _map_decoder(decoder(arrow.key_type) or _same, decoder(arrow.item_type) or _same)
    if t.is_list(arrow):
        element = decoder(arrow.value_type)
        return None if element is None else _list_decoder(element)
    return None


def _same(value: Any) -> Any:
    return value


def _decode_binary(value: Any) -> Any:
    if type(value) is not str:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value


def _decode_float(value: Any) -> Any:
    if type(value) is str:
        return _NOT_FINITE.get(value, value)
    return float(value) if type(value) is Decimal else value


def _struct_decoder(inner: list[tuple[str, Any]]) -> Any:
    def decode(value: Any) -> Any:
        if type(value) is dict:
            for name, field in inner:
                if value.get(name) is not None:
                    value[name] = field(value[name])
        return value

    return decode


def _list_decoder(element: Any) -> Any:
    def decode(value: Any) -> Any:
        return [None if v is None else element(v) for v in value] if type(value) is list else value

    return decode


def _map_decoder(key: Any, item: Any) -> Any:
    def decode(value: Any) -> Any:
        if type(value) is dict:
            return {key(k): None if v is None else item(v) for k, v in value.items()}
        try:
            pairs = [(key(k), None if v is None else item(v)) for k, v in value]
            out = dict(pairs)
        except (TypeError, ValueError):
            return value
        return out if len(out) == len(pairs) else value

    return decode
