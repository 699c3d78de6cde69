"""Objects of Python classes as typed columns: the Arrow type of an annotation, the value that is stored, and the object
that comes back. Owns which annotations have a column. Knows no log, no events and no entities.

Classes are dataclasses, named tuples, msgspec structs and pydantic models; of a class, its fields make a struct."""

from __future__ import annotations

import copy
import dataclasses
import decimal
import enum
import functools
import types
import typing
import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NoReturn, Union, cast

import orjson
import pyarrow as pa

from headrace.errors import InvalidArgument
from headrace.schema import TIMESTAMP

__all__ = ["Column", "column_of", "fields_of", "is_fixed", "own"]

DECIMAL = pa.decimal128(38, 18)


@dataclass(frozen=True, slots=True)
class Column:
    """How values of one annotation are stored. `type` is None for a class without fields: there is nothing to store."""

    type: pa.DataType | None
    store: Callable[[Any], Any]
    load: Callable[[Any], Any]


def fields_of(cls: type) -> list[str] | None:
    """The names of a class's fields; None if the class has none that are declared."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    for declared in ("model_fields", "__struct_fields__", "_fields"):  # pydantic, msgspec, named tuples
        found = getattr(cls, declared, None)
        if found is not None:
            return list(found)
    return None


def column_of(hint: Any, where: str) -> Column:
    """The column of an annotation. `where` names it in errors: `Reserved.by`."""
    if (known := _PLAIN.get(hint)) is not None:
        return known
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        return column_of(hint.__supertype__, where)
    if origin is typing.Annotated:
        return column_of(arguments[0], where)
    if origin in (Union, types.UnionType):
        return _optional(arguments, hint, where)
    if origin is Literal:
        return _literal(arguments, hint, where)
    if origin is dict:
        return _mapping(arguments, hint, where)
    if origin in _SEQUENCES and arguments:
        return _sequence(origin, arguments, hint, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        inner = _of_one_type({type(member.value) for member in hint}, hint, where)
        return Column(
            inner.type, lambda each: inner.store(_checked(hint, each).value), lambda value: hint(inner.load(value))
        )
    if isinstance(hint, type) and (names := fields_of(hint)) is not None:
        try:
            return _struct(hint, names, where)
        except RecursionError:
            _refuse(hint, where, "has itself in it, and a column has an end: annotate that field with Any")
    _refuse(hint, where, f"has no column. Use {_KNOWN}, or a class with such fields")


_FIXED = (str, bytes, int, float, complex, type(None), decimal.Decimal, date, timedelta, uuid.UUID, enum.Enum)


def own(value: Any) -> Any:
    """For somebody's function, which may change it: a copy, unless nobody can."""
    return value if is_fixed(value) else copy.deepcopy(value)


def is_fixed(value: Any) -> bool:
    """Whether nobody can change it. Of a class whose annotations say so they are believed: states are large."""
    if isinstance(value, _FIXED):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(is_fixed, value))
    try:
        return _is_fixed_hint(cast(Hashable, type(value)))
    except RecursionError:  # a class that has itself in it
        return False


@functools.cache
def _is_fixed_hint(hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        return _is_fixed_hint(hint.__supertype__)
    if origin is Literal:
        return True
    if origin in (tuple, frozenset, Union, types.UnionType, typing.Annotated):
        used = arguments[:1] if origin is typing.Annotated else [each for each in arguments if each is not ...]
        return all(map(_is_fixed_hint, used))
    if not isinstance(hint, type):
        return False
    if issubclass(hint, _FIXED):
        return True
    params = getattr(hint, "__dataclass_params__", None)
    if params is None or not params.frozen:
        return False
    try:
        hints = typing.get_type_hints(hint)
    except (NameError, TypeError):
        return False
    return all(_is_fixed_hint(hints.get(field.name, Any)) for field in dataclasses.fields(cast(Any, hint)))


def _struct(cls: type, names: list[str], where: str) -> Column:
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        _refuse(cls, where, f"has an annotation that cannot be resolved: {error}. Define its types in the module")
    columns = {name: column_of(hints.get(name, Any), f"{cls.__name__}.{name}") for name in names}
    for name, column in columns.items():
        if column.type is None:
            _refuse(hints[name], f"{cls.__name__}.{name}", "has no fields, so there is nothing to store: use bool")
    kept = [pa.field(name, column.type) for name, column in columns.items() if column.type is not None]
    required = {name for name in names if not _may_be_none(hints.get(name, Any))}

    def store(value: Any) -> dict[str, Any]:
        if not isinstance(value, cls):
            raise TypeError(f"{where} is of type {type(value).__name__}, not {cls.__name__}")
        return {name: stored_field(name, column, getattr(value, name)) for name, column in columns.items()}

    def stored_field(name: str, column: Column, value: Any) -> Any:
        if value is None and name in required:
            raise TypeError(f"{cls.__name__}.{name} is None, and its annotation has no None")
        try:
            return None if value is None else column.store(value)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{name}: {error}") from None

    def load(value: Any) -> Any:
        given = {
            name: None if (found := value.get(name)) is None else column.load(found) for name, column in columns.items()
        }
        for name in required:
            if given[name] is None:
                raise TypeError(f"{cls.__name__}.{name} is missing, and its annotation has no None")
        return cls(**given)

    return Column(pa.struct(kept) if kept else None, store, load)


def _may_be_none(hint: Any) -> bool:
    return hint in (Any, object, type(None)) or type(None) in typing.get_args(hint)


def _optional(arguments: tuple[Any, ...], hint: Any, where: str) -> Column:
    given = [each for each in arguments if each is not type(None)]
    if len(given) != 1:
        _refuse(hint, where, "is of several types. A column has one: use a class for each, or a field for each")
    inner = column_of(given[0], where)
    return Column(
        inner.type,
        lambda value: None if value is None else inner.store(value),
        lambda value: None if value is None else inner.load(value),
    )


def _sequence(origin: Any, arguments: tuple[Any, ...], hint: Any, where: str) -> Column:
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
        _refuse(hint, where, "has no column: use tuple[X, ...], or a class with a field for each")
    inner, make = _inside(arguments[0], where), _SEQUENCES[origin]

    def store(values: Any) -> list[Any]:
        stored = [inner.store(value) for value in _checked((list, tuple, set, frozenset), values)]
        return sorted(stored, key=repr) if make in (set, frozenset) else stored

    return Column(pa.list_(inner.type), store, lambda values: make(inner.load(value) for value in values))


def _mapping(arguments: tuple[Any, ...], hint: Any, where: str) -> Column:
    if not arguments or arguments[0] is not str:
        _refuse(hint, where, "has no column: keys of a dict are text, dict[str, X]")
    inner = _inside(arguments[1], where)
    return Column(
        pa.map_(pa.string(), inner.type),
        lambda values: [(name, inner.store(value)) for name, value in _checked(dict, values).items()],
        lambda values: {name: inner.load(value) for name, value in values},
    )


def _inside(hint: Any, where: str) -> Column:
    column = column_of(hint, where)
    if column.type is None:
        _refuse(hint, where, "has no fields, so a list or dict of it has no column")
    return column


def _literal(arguments: tuple[Any, ...], hint: Any, where: str) -> Column:
    inner = _of_one_type({type(value) for value in arguments}, hint, where)

    def store(value: Any) -> Any:
        if (stored := inner.store(value)) not in arguments:
            raise TypeError(f"{value!r} is none of {', '.join(map(repr, arguments))}")
        return stored

    return Column(inner.type, store, inner.load)


def _of_one_type(found: set[type], hint: Any, where: str) -> Column:
    if len(found) != 1 or (column := _PLAIN.get(next(iter(found)))) is None:
        _refuse(hint, where, "has values of several types, or none. A column has one")
    return column


def _checked(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
        raise TypeError(f"{value!r} is of type {type(value).__name__}, not {names}")
    return value


def _plain(type_: pa.DataType, kind: type | tuple[type, ...]) -> Column:
    return Column(type_, functools.partial(_checked, kind), lambda value: value)


def _day(value: Any) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError(f"{value!r} is of type {type(value).__name__}, not date")
    return value


def _instant(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError(f"{value!r} is no time with a zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise TypeError(f"{value!r} is before the year 1 or after 9999 in UTC") from None


def _json(value: Any) -> str:
    """Text that gives the same value back: what JSON changes (a tuple, a key that is no text) is refused."""
    try:
        text = orjson.dumps(value)
    except TypeError as error:
        raise TypeError(f"{value!r} cannot be kept as JSON: {error}") from None
    if orjson.loads(text) != value:
        raise TypeError(f"{value!r} is another value after JSON: annotate its type")
    return text.decode()


def _refuse(hint: Any, where: str, why: str) -> NoReturn:
    raise InvalidArgument(where, getattr(hint, "__name__", hint), why)


_JSON = Column(pa.string(), _json, lambda text: orjson.loads(text))
_MICROSECOND = timedelta(microseconds=1)
_PLAIN: dict[Any, Column] = {
    str: _plain(pa.string(), str),
    bool: _plain(pa.bool_(), bool),
    int: _plain(pa.int64(), int),
    float: Column(pa.float64(), lambda value: float(_checked((float, int), value)), lambda value: value),
    bytes: _plain(pa.binary(), bytes),
    decimal.Decimal: _plain(DECIMAL, decimal.Decimal),
    datetime: Column(TIMESTAMP, _instant, lambda value: value),
    date: Column(pa.date32(), _day, lambda value: value),
    timedelta: Column(
        pa.int64(), lambda value: _checked(timedelta, value) // _MICROSECOND, lambda value: value * _MICROSECOND
    ),
    uuid.UUID: Column(pa.string(), lambda value: str(_checked(uuid.UUID, value)), uuid.UUID),
    **dict.fromkeys((Any, object, dict, list), _JSON),
}
_SEQUENCES: dict[Any, Any] = {list: list, tuple: tuple, set: set, frozenset: frozenset}
_KNOWN = (
    "str, int, float, bool, bytes, Decimal, datetime, date, timedelta, UUID, an Enum, X | None, list[X], dict[str, X]"
)
