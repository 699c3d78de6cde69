"""What a topic is: its settings, how users write them, and its description. Touches no file. Apart from the rest of the
contract because listing topics needs no more, and should cost no more: Arrow is imported where columns are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.durations import Duration, duration_us
from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS_MAX = 4096


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a topic is, apart from its schema. Durations in microseconds."""

    key: tuple[str, ...] = ()
    event_time: str | None = None
    partitions: int = 1
    retention_us: int | None = None
    retention_bytes: int | None = None
    cleanup: str = "delete"
    unread: str = "delete"
    """What retention does with records that a registered group or queue has not read: "delete" or "keep" them."""
    archive: str | None = None
    """The directory into which retention moves records as Parquet files, in place of deleting them."""
    tombstone_grace_us: int = 86_400_000_000
    """How long compaction keeps a tombstone at least."""
    durability: str = "fsync"
    compression: str = "zstd"
    """Of batches that upkeep has rewritten; what was just appended is plain."""
    versioned: bool = False
    max_ahead_us: int = 3_600_000_000
    forget_us: int = 604_800_000_000
    extra: str = "forbid"
    extra_kept: bool = False
    """Whether unknown fields ever were kept: then old records have some, whatever `extra` is now."""
    partitions_added: bool = False
    """Whether there once were fewer: then a key's records may lie in several partitions."""
    changes: bool = False
    """Whether its records are changes of rows: `op` says of each whether the row came, '+', or went, '-'."""
    made_by: str = ""
    """The flow that made the topic, and gives it the columns that its records get."""
    mended_from: tuple[str, ...] = ()
    """The ids of the topics in whose place a mend has put this one: dead letters know theirs by them."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An event time that is a number since 1970, in a topic that others write: `hr.epoch("ts", "ms")`."""

    column: str
    unit: str = "ms"

    def __post_init__(self) -> None:
        if self.unit not in ("s", "ms", "us"):
            raise InvalidArgument("unit", self.unit, "must be one of s, ms, us")

    def with_instant(self, schema: pa.Schema) -> pa.Schema:
        """The schema in which the column is what flows read: a timestamp."""
        import pyarrow as pa

        at = schema.get_field_index(self.column)
        if at < 0 or not pa.types.is_integer(schema.field(at).type):
            raise InvalidArgument("event_time", self.column, "must be a column of whole numbers, such as bigint")
        return schema.set(at, pa.field(self.column, pa.timestamp("us", tz="UTC")))


@dataclass(frozen=True, slots=True)
class Avro:
    """The values of a topic that others write are Avro: `hr.avro()`. `schemas`: the writers' schemas that were given,
    as JSON texts by their ids."""

    schemas: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, given: Mapping[int, str | Mapping[str, Any]]) -> Avro:
        import json

        found = []
        for id, schema in given.items():
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < 1 << 32:
                raise InvalidArgument("schemas", id, "must have whole numbers as keys: the ids of the schemas")
            try:
                text = schema if isinstance(schema, str) else json.dumps(dict(schema))
                json.loads(text)
            except (TypeError, ValueError) as error:
                raise InvalidArgument("schemas", schema, f"is no Avro schema: {error}") from None
            found.append((id, text))
        return cls(tuple(sorted(found)))


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as `describe()` tells it; made without Arrow."""

    name: str
    topic_id: str
    schema: str
    schema_version: int
    settings: TopicSettings
    records: int
    bytes: int


DEFAULTS = TopicSettings()
_DURATIONS = {
    "retention": "retention_us",
    "max_ahead": "max_ahead_us",
    "forget": "forget_us",
    "tombstone_grace": "tombstone_grace_us",
}
_CHOICES = {
    "cleanup": ("delete", "compact"),
    "durability": ("fsync", "os"),
    "compression": ("zstd", "lz4", "none"),
    "extra": ("forbid", "ignore", "keep"),
    "unread": ("delete", "keep"),
}


def fields_of(given: Mapping[str, Any]) -> list[str]:
    """The fields of TopicSettings that settings as users write them are kept in."""
    return [_DURATIONS.get(name, name) for name in given]


def settings_of(
    given: Mapping[str, Any],
    *,
    base: TopicSettings = DEFAULTS,
    fixed: tuple[str, ...] = (),
) -> TopicSettings:
    """Settings as users write them, checked one by one: `retention="30 days"`, `key="user"`."""
    known = {*_DURATIONS, *_CHOICES, "key", "event_time", "partitions", "retention_bytes", "versioned"}
    known |= {"changes", "archive"}
    out: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            from headrace.errors import nearest

            raise InvalidArgument(name, value, f"there is no such setting.{nearest(name, sorted(known))}")
        if name in fixed:
            raise InvalidArgument(name, value, "cannot be altered: create a new topic and copy")
        if name in _DURATIONS:
            out[_DURATIONS[name]] = _duration(name, value)
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise InvalidArgument(name, value, f"must be one of {', '.join(_CHOICES[name])}")
            out[name] = value
        elif name == "key":
            if not (value is None or isinstance(value, (str, tuple, list))):
                raise InvalidArgument(name, value, "must be a column's name or a tuple of them")
            out[name] = (value,) if isinstance(value, str) else tuple(value or ())
        elif name == "partitions":
            out[name] = partition_count(value)
        elif name == "retention_bytes":
            out[name] = None if value is None else _whole_number(value, name, 1, 2**62)
        elif name == "archive":
            out[name] = None if value is None else _directory(value)
        elif name in ("versioned", "changes"):
            out[name] = bool(value)
        else:
            out[name] = value
    settings = replace(base, **out)
    settings = replace(settings, extra_kept=settings.extra_kept or settings.extra == "keep")
    if (settings.cleanup == "compact" or settings.versioned) and not settings.key:
        what = "versioned" if settings.versioned else "cleanup"
        raise InvalidArgument(what, getattr(settings, what), "needs a key: pass key='column'")
    if settings.cleanup == "compact" and settings.archive is not None:
        raise InvalidArgument("archive", settings.archive, "is for topics that are not compacted: cleanup='delete'")
    return settings


def _directory(value: Any) -> str:
    import os

    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise InvalidArgument("archive", value, "must be a directory")
    return os.path.abspath(os.fspath(value))


def _duration(name: str, value: Duration | None) -> int | None:
    if value is None:
        if name != "retention":
            raise InvalidArgument(name, value, "must be a duration such as '1 hour'")
        return None
    return duration_us(value, argument=name)


def partition_count(value: Any) -> int:
    """A number of partitions that a topic can have; InvalidArgument for any other."""
    return _whole_number(value, "partitions", 1, PARTITIONS_MAX)


def _whole_number(value: Any, name: str, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgument(name, value, f"must be a whole number from {lowest} to {highest}")
    return value


def check_columns(schema: pa.Schema, settings: TopicSettings) -> None:
    """InvalidArgument if a column that the settings name is missing, or of a type that does not serve."""
    import pyarrow as pa

    from headrace.errors import nearest
    from headrace.keys import check_key_columns
    from headrace.schema import type_ddl

    if settings.key:
        check_key_columns(schema, settings.key)
    if settings.changes and ("op" not in schema.names or schema.field("op").type != pa.string()):
        raise InvalidArgument(
            "changes", True, "needs a column 'op string', which says whether a row was added or removed"
        )
    column = settings.event_time
    if column is not None:
        if not isinstance(column, str):
            raise InvalidArgument("event_time", column, "must be a column's name")
        if column not in schema.names:
            why = f"there is no such column.{nearest(column, schema.names)} There are: {', '.join(schema.names)}"
            raise InvalidArgument("event_time", column, why)
        if schema.field(column).type != pa.timestamp("us", tz="UTC"):
            why = f"is {type_ddl(schema.field(column).type)}; it must be a timestamp. Append it as one, or leave "
            why += "event_time out and use a time column that a transform computes: window(…, time=…)"
            raise InvalidArgument("event_time", column, why)
