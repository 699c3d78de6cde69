"""Schemas: Spark's DDL text, Arrow's types, and how one may grow into the next.

Owns the canonical Arrow type of every column (one per Spark type, listed in `TYPES`), the parser and writer of DDL
text, the rules of evolution and the reading of old batches through the newest schema. Knows no pyspark (a `StructType`
comes in through its JSON), no rows and no files. Column comments and metadata are not kept; `NOT NULL` is, for columns
and struct fields. Elements of arrays and values of maps are always nullable, because DDL text cannot say otherwise.
`varchar(n)` and `char(n)` are refused, because headrace does not check lengths."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Final, NoReturn

import pyarrow as pa

from headrace.errors import IncompatibleSchema, InvalidSchema, nearest

__all__ = [
    "EXTRA_COLUMN",
    "RESERVED_COLUMNS",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "evolve",
    "parse_ddl",
    "read_as",
    "schema_bytes",
    "schema_from",
    "schema_from_bytes",
    "storage_schema",
    "to_ddl",
    "type_ddl",
]

EXTRA_COLUMN: Final = "_extra"
RESERVED_COLUMNS: Final = frozenset({"_partition", "_offset", "_arrived_at", "_progress", EXTRA_COLUMN})

DDL_MAX_CHARS: Final = 200_000
FIELDS_MAX: Final = 5_000
DEPTH_MAX: Final = 32
NAME_MAX_CHARS: Final = 255
SCHEMA_MAX_BYTES: Final = 4_000_000

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

# The first spelling of each type is the one to_ddl writes.
TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_SYNONYMS: Final = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NESTED: Final = ("array", "map", "struct")
_REFUSED: Final = {
    "varchar": "lengths are not enforced here; use string",
    "char": "lengths are not enforced here, nothing is padded; use string",
    "character": "lengths are not enforced here, nothing is padded; use string",
    "text": "use string",
    "void": "a column needs a type; use the one it will have",
    "null": "a column needs a type; use the one it will have",
    "interval": "use bigint (and name the unit, as in took_ms)",
    "time": "use string ('12:30:00') or bigint (microseconds of the day)",
    "variant": "use string (JSON text) or a struct",
    "object": "use a struct",
    "geometry": "use binary (WKB)",
    "geography": "use binary (WKB)",
    "datetime": "use timestamp",
    "uuid": "use string",
    "uint64": "use decimal(20, 0)",
}
_DDL_OF: Final = {arrow: name for name, arrow in TYPES.items()}


# -- DDL text to Arrow -----------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")
      | (?P<word>\w+)
      | (?P<mark>[<>(),:])
      | (?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)


class _Parser:
    """Recursive descent over the tokens of one text; every error knows its place."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or "bad"
            if kind == "bad":
                what = "an unclosed quote" if match.group() in "`'\"" else f"unexpected {match.group()!r}"
                self.fail(
                    f"{what}; names with other characters than letters, digits and _ go in `backticks`", match.start()
                )
            if kind != "space":
                self.tokens.append((kind, match.group(), match.start()))
        self.tokens.append(("end", "", len(text)))
        self.at = 0
        self.fields = 0

    def fail(self, why: str, position: int | None = None) -> NoReturn:
        raise InvalidSchema(_short(self.text), why, self.tokens[self.at][2] if position is None else position)

    def take(self, mark: str) -> bool:
        kind, value, _ = self.tokens[self.at]
        if kind == "mark" and value == mark:
            self.at += 1
            return True
        return False

    def word(self, *words: str) -> bool:
        """Takes the words, if they are what comes next."""
        ahead = self.tokens[self.at : self.at + len(words)]
        if len(ahead) == len(words) and all(
            t[0] == "word" and t[1].lower() == w for t, w in zip(ahead, words, strict=True)
        ):
            self.at += len(words)
            return True
        return False

    def need(self, mark: str, after: str) -> None:
        if not self.take(mark):
            self.fail(f"expected {mark!r} {after}, found {self.found()}")

    def found(self) -> str:
        kind, value, _ = self.tokens[self.at]
        return "the end" if kind == "end" else repr(value)

    def schema(self) -> pa.Schema:
        if self.tokens[0][0] == "end":
            self.fail("a schema needs at least one column, as in 'user string, at timestamp'", 0)
        if self.word("struct") and self.tokens[self.at][1] == "<":  # df.schema.simpleString()
            self.need("<", "after struct")
            fields = self.columns(">", depth=0)
            self.need(">", "at the end of the struct")
        else:
            self.at = 0
            fields = self.columns("", depth=0)
        if self.tokens[self.at][0] != "end":
            self.fail(f"expected ',' or the end, found {self.found()}")
        return pa.schema(fields)

    def columns(self, end: str, depth: int) -> list[pa.Field]:
        fields: list[pa.Field] = []
        seen: dict[str, str] = {}
        if end and self.tokens[self.at][1] == end:
            self.fail("a struct needs at least one field")
        while True:
            place = self.tokens[self.at][2]
            name = self.name()
            self.check_name(name, place, top=depth == 0, seen=seen)
            self.take(":")
            fields.append(self.column(name, depth))
            if not self.take(","):
                return fields

    def name(self) -> str:
        kind, value, _ = self.tokens[self.at]
        if kind == "quoted":
            self.at += 1
            return value[1:-1].replace("``", "`")
        if kind == "word":
            self.at += 1
            return value
        self.fail(f"expected a column name, found {self.found()}")

    def check_name(self, name: str, place: int, *, top: bool, seen: dict[str, str]) -> None:
        self.fields += 1
        if self.fields > FIELDS_MAX:
            self.fail(f"more than {FIELDS_MAX} fields", place)
        why = _bad_name(name, top=top, seen=seen)
        if why:
            self.fail(why, place)

    def column(self, name: str, depth: int) -> pa.Field:
        arrow = self.type(depth)
        nullable = True
        if self.word("not", "null"):
            nullable = False
        elif self.word("null"):
            pass
        if self.word("comment"):
            if self.tokens[self.at][0] != "text":
                self.fail(f"expected a quoted comment, found {self.found()}")
            self.at += 1
        kind, value, place = self.tokens[self.at]
        if kind == "word":
            if value.lower() in ("default", "generated", "collate", "options", "primary", "as"):
                self.fail(f"{value.upper()} is not supported in a topic's schema; leave it out", place)
            self.fail(f"expected ',' after column {name!r}, found {value!r}", place)
        return pa.field(name, arrow, nullable)

    def type(self, depth: int) -> pa.DataType:
        if depth >= DEPTH_MAX:
            self.fail(f"nested deeper than {DEPTH_MAX} levels")
        kind, value, place = self.tokens[self.at]
        if kind != "word":
            self.fail(f"expected a type, found {self.found()}")
        self.at += 1
        name = value.lower()
        if name in _NESTED:
            return self.nested(name, depth)
        if name in _DECIMALS:
            return self.decimal()
        if name == "double" and self.word("precision"):
            return pa.float64()
        arrow = TYPES.get(_SYNONYMS.get(name, name))
        if arrow is None:
            if name in _REFUSED:
                self.fail(f"type {value!r} is not supported: {_REFUSED[name]}", place)
            known = [*TYPES, *_SYNONYMS, *_DECIMALS, *_NESTED]
            hint = nearest(name, known) or f" Types are {', '.join(TYPES)}, decimal(p, s), array<>, map<,>, struct<>."
            self.fail(f"unknown type {value!r}.{hint}", place)
        if self.tokens[self.at][1] == "(":
            self.fail(f"type {value!r} takes no length")
        return arrow

    def nested(self, name: str, depth: int) -> pa.DataType:
        self.need("<", f"after {name}")
        if name == "struct":
            fields = self.columns(">", depth + 1)
            self.need(">", "at the end of the struct")
            return pa.struct(fields)
        if name == "array":
            element = self.type(depth + 1)
            self.need(">", "at the end of the array")
            return pa.list_(element)
        place = self.tokens[self.at][2]
        key = self.type(depth + 1)
        why = _bad_map_key(key)
        if why:
            self.fail(why, place)
        self.need(",", "between key and value of the map")
        item = self.type(depth + 1)
        self.need(">", "at the end of the map")
        return pa.map_(key, item)

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0  # as in Spark
        place = self.tokens[self.at][2]
        if self.take("("):
            precision = self.number()
            if self.take(","):
                scale = self.number()
            self.need(")", "after the decimal's digits")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            self.fail("a decimal has 1 to 38 digits, and not more of them behind the point than in all", place)
        return pa.decimal128(precision, scale)

    def number(self) -> int:
        kind, value, _ = self.tokens[self.at]
        if kind != "word" or not (value.isascii() and value.isdigit()) or len(value) > 4:
            self.fail(f"expected a number, found {self.found()}")
        self.at += 1
        return int(value)


def parse_ddl(text: str) -> pa.Schema:
    """The schema of DDL text: `parse_ddl("user string, ms int, at timestamp NOT NULL")`."""
    if not isinstance(text, str):
        raise InvalidSchema(_short(repr(text)), f"DDL is text, not {type(text).__name__}")
    if len(text) > DDL_MAX_CHARS:
        raise InvalidSchema(_short(text), f"is longer than {DDL_MAX_CHARS} characters", DDL_MAX_CHARS)
    return _Parser(text).schema()


OP_COLUMN, ID_COLUMN, VERSION_COLUMN, TIMESTAMP_COLUMN = "_op", "_id", "_version", "_timestamp"
"""Of a table's topic: what a record does to its key, "upsert" or "delete". Of joined rows: which one it is. Of a table
with a column `version` of its own: which record made a row. Of a topic of others on Kafka: Kafka's own timestamp."""


def _bad_name(name: str, *, top: bool, seen: dict[str, str]) -> str | None:
    """Why this cannot be a field's name beside those already seen (and notes it as seen)."""
    if not name:
        return "a column name cannot be empty"
    if len(name) > NAME_MAX_CHARS:
        return f"column name {name[:20]!r}… is longer than {NAME_MAX_CHARS} characters"
    if not name.isprintable():
        return f"column name {name!r} has characters that cannot be printed"
    if top and name.startswith("_") and name not in (OP_COLUMN, ID_COLUMN, VERSION_COLUMN, TIMESTAMP_COLUMN):
        own = ", ".join(sorted(RESERVED_COLUMNS))
        return f"column {name!r}: names that begin with '_' are reserved for metadata ({own})"
    other = seen.get(name.lower())
    if other is not None:
        same = "is there twice" if other == name else f"and {other!r} are the same name to Spark"
        return f"column {name!r} {same}"
    seen[name.lower()] = name
    return None


def _bad_map_key(key: pa.DataType) -> str | None:
    if pa.types.is_nested(key) or pa.types.is_floating(key):
        return f"a map's key cannot be {type_ddl(key)}: keys must be plain values that are equal or not; use string"
    return None


# -- Arrow to DDL text -----------------------------------------------------------------------------

_PLAIN_NAME: Final = re.compile(r"(?![0-9]+$)[A-Za-z0-9_]+")
"""What Spark reads as a name without backticks; digits alone are a number to it."""


def quoted_name(name: str) -> str:
    """The name as Spark's SQL and DDL take any name."""
    return "`" + name.replace("`", "``") + "`"


def to_ddl(schema: pa.Schema) -> str:
    """DDL text of a canonical schema; `parse_ddl` reads it back."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def type_ddl(arrow: pa.DataType) -> str:
    """The Spark name of an Arrow type, as in `array<struct<a: int>>`; Arrow's own for what Spark has not."""
    name: str | None = _DDL_OF.get(arrow)
    if name is not None:
        return name
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision}, {arrow.scale})"
    if pa.types.is_struct(arrow):
        return f"struct<{', '.join(_field_ddl(arrow.field(i), ': ') for i in range(arrow.num_fields))}>"
    if pa.types.is_list(arrow):
        return f"array<{type_ddl(arrow.value_type)}>"
    if pa.types.is_map(arrow):
        return f"map<{type_ddl(arrow.key_type)}, {type_ddl(arrow.item_type)}>"
    return str(arrow)


def _field_ddl(field: pa.Field, between: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else quoted_name(field.name)
    return f"{name}{between}{type_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}"


# -- anything to the canonical schema --------------------------------------------------------------


def schema_from(value: object) -> pa.Schema:
    """The canonical schema of DDL text, a `pa.Schema`, or a pyspark `StructType` (by its `.json()`)."""
    if isinstance(value, str):
        return parse_ddl(value)
    if isinstance(value, pa.Schema):
        return _canonical_schema(value, system=False)
    to_json = getattr(value, "json", None)
    if callable(to_json):
        return _from_spark_json(to_json())
    raise InvalidSchema(
        _short(repr(value)),
        f"a schema is DDL text ('user string, at timestamp'), a pyarrow.Schema or a pyspark StructType, "
        f"not {type(value).__name__}",
    )


def _canonical_schema(schema: pa.Schema, *, system: bool) -> pa.Schema:
    text = _short(str(schema).replace("\n", ", "))
    if not len(schema):
        raise InvalidSchema(text, "a schema needs at least one column")
    return pa.schema(_canonical_fields(schema, "", text, 0, [0], system=system))


def _canonical_fields(
    fields: Iterable[pa.Field], path: str, text: str, depth: int, count: list[int], *, system: bool = False
) -> list[pa.Field]:
    seen: dict[str, str] = {}
    out = []
    for field in fields:
        count[0] += 1
        own = system and field.name in RESERVED_COLUMNS
        why = _bad_name(field.name, top=depth == 0 and not own, seen=seen)
        if count[0] > FIELDS_MAX:
            why = f"more than {FIELDS_MAX} fields"
        if why:
            raise InvalidSchema(text, why)
        arrow = _canonical_type(field.type, path + field.name, text, depth, count)
        out.append(pa.field(field.name, arrow, field.nullable))
    return out


_UINTS: Final = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_RENAMED: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    **_UINTS,
}


def _canonical_type(arrow: pa.DataType, path: str, text: str, depth: int, count: list[int]) -> pa.DataType:
    """The one Arrow type headrace stores for this; refuses, by name, what has none."""
    t = pa.types

    def refuse(instead: str) -> NoReturn:
        raise InvalidSchema(text, f"column {path!r} has type {arrow}, which is not supported; {instead}")

    if isinstance(arrow, pa.BaseExtensionType):
        refuse(f"use its storage type, {arrow.storage_type}")
    if arrow in _DDL_OF:
        return arrow
    renamed = _RENAMED.get(arrow)
    if renamed is not None:
        return renamed
    if depth >= DEPTH_MAX:
        refuse(f"nested deeper than {DEPTH_MAX} levels")
    if t.is_dictionary(arrow):
        return _canonical_type(arrow.value_type, path, text, depth + 1, count)
    if t.is_run_end_encoded(arrow):
        return _canonical_type(arrow.value_type, path, text, depth + 1, count)
    if t.is_timestamp(arrow):
        return TIMESTAMP_NTZ if arrow.tz is None else TIMESTAMP
    if t.is_fixed_size_binary(arrow):
        return pa.binary()
    if t.is_decimal(arrow):
        if arrow.precision > 38:
            refuse("a decimal has at most 38 digits: use decimal128 with precision 38, or string")
        if not 0 <= arrow.scale <= arrow.precision:
            refuse("use a scale between 0 and the precision")
        return pa.decimal128(arrow.precision, arrow.scale)
    if t.is_map(arrow):
        key = _canonical_type(arrow.key_type, f"{path}.key", text, depth + 1, count)
        why = _bad_map_key(key)
        if why:
            raise InvalidSchema(text, f"column {path!r}: {why}")
        return pa.map_(key, _canonical_type(arrow.item_type, f"{path}.value", text, depth + 1, count))
    if t.is_struct(arrow):
        if arrow.num_fields == 0:
            refuse("a struct needs at least one field")
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return pa.struct(_canonical_fields(fields, f"{path}.", text, depth + 1, count))
    if is_list_like(arrow):
        return pa.list_(_canonical_type(arrow.value_type, f"{path}[]", text, depth + 1, count))
    if t.is_uint64(arrow):
        refuse("its upper half does not fit a bigint: use int64, or decimal128(20, 0)")
    if t.is_time(arrow):
        refuse("use string ('12:30:00') or int64 (microseconds of the day)")
    if t.is_duration(arrow) or t.is_interval(arrow):
        refuse("use int64 (and name the unit, as in took_ms)")
    if t.is_null(arrow):
        refuse("a column needs a type: use the one it will have")
    if t.is_union(arrow):
        refuse("use a struct with one nullable field for each case")
    refuse(f"types are {', '.join(TYPES)}, decimal, list, map and struct")


def is_list_like(arrow: pa.DataType) -> bool:
    """Any of Arrow's five kinds of list."""
    t = pa.types
    return bool(
        t.is_list(arrow)
        or t.is_large_list(arrow)
        or t.is_fixed_size_list(arrow)
        or t.is_list_view(arrow)
        or t.is_large_list_view(arrow)
    )


def _from_spark_json(text: object) -> pa.Schema:
    shown = _short(str(text))
    if not isinstance(text, str) or len(text) > SCHEMA_MAX_BYTES:
        raise InvalidSchema(shown, "its .json() gives no StructType's JSON")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidSchema(shown, "its .json() gives no StructType's JSON") from None
    if not isinstance(tree, dict) or tree.get("type") != "struct":
        raise InvalidSchema(shown, "its .json() is not that of a StructType")
    arrow = _from_spark_type(tree, "", shown, 0)
    return _canonical_schema(pa.schema([arrow.field(i) for i in range(arrow.num_fields)]), system=False)


def _from_spark_type(tree: object, path: str, shown: str, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise InvalidSchema(shown, f"nested deeper than {DEPTH_MAX} levels")
    try:
        match tree:
            case str():
                parser = _Parser(tree)
                arrow = parser.type(depth)
                if parser.tokens[parser.at][0] != "end" or pa.types.is_nested(arrow):
                    raise InvalidSchema(shown, f"field {path!r} has type {tree!r}, which is not a Spark type")
                return arrow
            case {"type": "struct", "fields": list(fields)}:
                return pa.struct(
                    [
                        pa.field(
                            str(f["name"]),
                            _from_spark_type(f["type"], f"{path}.{f['name']}".lstrip("."), shown, depth + 1),
                            bool(f["nullable"]),
                        )
                        for f in fields
                    ]
                )
            case {"type": "array", "elementType": element}:
                return pa.list_(_from_spark_type(element, f"{path}[]", shown, depth + 1))
            case {"type": "map", "keyType": key, "valueType": item}:
                return pa.map_(
                    _from_spark_type(key, f"{path}.key", shown, depth + 1),
                    _from_spark_type(item, f"{path}.value", shown, depth + 1),
                )
    except InvalidSchema as error:
        if error.position is None:
            raise
        raise InvalidSchema(shown, f"field {path!r}: {error.why}") from None
    except (KeyError, TypeError):
        pass
    raise InvalidSchema(shown, f"field {path!r} has a type headrace does not know: {_short(json.dumps(tree))}")


# -- bytes -----------------------------------------------------------------------------------------


def schema_bytes(schema: pa.Schema) -> bytes:
    """The schema as an Arrow IPC schema message, without metadata."""
    data: bytes = schema.remove_metadata().serialize().to_pybytes()
    return data


def schema_from_bytes(data: bytes) -> pa.Schema:
    """The inverse of `schema_bytes`; InvalidSchema for anything else, never a guess."""
    shown = f"<{len(data)} bytes>"
    if len(data) > SCHEMA_MAX_BYTES:
        raise InvalidSchema(shown, f"is longer than {SCHEMA_MAX_BYTES} bytes")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        canonical = _canonical_schema(schema, system=True)
    except InvalidSchema:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, NotImplementedError, UnicodeError) as error:
        raise InvalidSchema(shown, f"is not a stored schema: {_short(str(error))}") from None
    if not canonical.equals(schema, check_metadata=True):
        raise InvalidSchema(shown, "is not a schema headrace stored: it has types headrace does not write")
    return canonical


def storage_schema(schema: pa.Schema, extra: str) -> pa.Schema:
    """What is stored: the user's columns, and `_extra` (JSON text) behind them when unknown fields are kept."""
    if extra == "keep":
        return schema.append(pa.field(EXTRA_COLUMN, pa.string()))
    return schema


# -- evolution -------------------------------------------------------------------------------------


def evolve(old: pa.Schema, new: pa.Schema, *, frozen: Collection[str] = ()) -> pa.Schema:
    """The schema through which both old and new records are read: the old columns in their order, then the
    added ones. `frozen` columns (keys, event time) keep their type; IncompatibleSchema names what cannot be."""
    return pa.schema(_evolve_fields(list(old), list(new), "", to_ddl(new), frozen))


def _evolve_fields(
    old: list[pa.Field], new: list[pa.Field], path: str, text: str, frozen: Collection[str] = ()
) -> list[pa.Field]:
    old_names = {field.name.lower(): field.name for field in old}
    by_name = {field.name: field for field in new}
    out = []
    for was in old:
        where = path + was.name
        now = by_name.pop(was.name, None)
        if now is None:
            other = next((f.name for f in new if f.name.lower() == was.name.lower()), None)
            why = "it is missing in the new schema" if other is None else f"it is called {other!r} in the new schema"
            raise IncompatibleSchema(text, why, column=where)
        if now.type != was.type and was.name in frozen:
            raise IncompatibleSchema(
                text, f"it is a key or the event time, whose type {type_ddl(was.type)} is fixed", column=where
            )
        if was.nullable and not now.nullable:
            raise IncompatibleSchema(
                text, "old records may hold null there, so it cannot become NOT NULL", column=where
            )
        out.append(pa.field(was.name, _evolve_type(was.type, now.type, where, text), now.nullable))
    for added in new:
        if added.name not in by_name:
            continue
        if added.name.lower() in old_names:  # beside the old spelling, not instead of it
            same = old_names[added.name.lower()]
            raise IncompatibleSchema(text, f"Spark takes it for the same name as {same!r}", column=path + added.name)
        if not added.nullable:
            raise IncompatibleSchema(
                text, "it is new, and old records have no value for it: leave NOT NULL out", column=path + added.name
            )
        out.append(added)
    return out


_INT_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_WIDER: Final = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),  # not float: 2**24 + 1 would change
    pa.int64(): (),  # not double: 2**53 + 1 would change
    pa.float32(): (pa.float64(),),
}


def _evolve_type(old: pa.DataType, new: pa.DataType, path: str, text: str) -> pa.DataType:
    t = pa.types
    if old == new:
        return old
    if t.is_struct(old) and t.is_struct(new):
        fields = _evolve_fields(
            [old.field(i) for i in range(old.num_fields)],
            [new.field(i) for i in range(new.num_fields)],
            f"{path}.",
            text,
        )
        return pa.struct(fields)
    if t.is_list(old) and t.is_list(new):
        return pa.list_(_evolve_type(old.value_type, new.value_type, f"{path}[]", text))
    if t.is_map(old) and t.is_map(new):
        if old.key_type != new.key_type:
            raise IncompatibleSchema(text, "the type of a map's key is fixed", column=f"{path}.key")
        return pa.map_(old.key_type, _evolve_type(old.item_type, new.item_type, f"{path}.value", text))
    if new in _WIDER.get(old, ()):
        return new
    if t.is_decimal(new):
        if t.is_decimal(old):
            if new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale:
                return new
            why = f"{type_ddl(new)} holds fewer digits before or behind the point than {type_ddl(old)}"
            raise IncompatibleSchema(text, why, column=path)
        if old in _INT_DIGITS and new.precision - new.scale >= _INT_DIGITS[old]:
            return new
    why = f"{type_ddl(old)} cannot become {type_ddl(new)} without changing or losing values"
    raise IncompatibleSchema(text, why, column=path)


def read_as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of an older version as the newest schema (or some columns of it): added columns are null, widened
    ones are cast. The arrays are the batch's own wherever the type is the same."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at >= 0:
            columns.append(_read_array(batch.column(at), field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    if not columns:  # no columns asked for: the number of rows is all there is
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_array(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    if array.type.equals(arrow):
        return array
    if pa.types.is_struct(arrow):
        old = array.type
        children = []
        for i in range(arrow.num_fields):
            at = old.get_field_index(arrow.field(i).name)
            if at >= 0:
                children.append(_read_array(array.field(at), arrow.field(i).type))
            else:
                children.append(pa.nulls(len(array), arrow.field(i).type))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=[arrow.field(i) for i in range(arrow.num_fields)], mask=mask)
    if pa.types.is_list(arrow) or pa.types.is_map(arrow):
        # The offsets stay as they are (null and sliced lists included); only the child is read anew.
        child = _read_array(array.values, _child_type(arrow))
        return pa.Array.from_buffers(arrow, len(array), array.buffers()[:2], offset=array.offset, children=[child])
    return array.cast(arrow)


def _child_type(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_map(arrow):
        return pa.struct([arrow.key_field, arrow.item_field])
    return arrow.value_type


def _short(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
