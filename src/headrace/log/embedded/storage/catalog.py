"""The topics of a log: their names, ids, settings and schemas. Owns what may be created and altered. Does not
know records. A topic's id is never given twice, so a topic created again is never mistaken for the old one;
its revision goes up with every change, so a writer that prepared records by older settings notices.

Imports Arrow only where a schema is needed as Arrow: listing topics does not."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.durations import Duration, duration_us
from headrace.errors import Closed, InvalidArgument, TopicExists, TopicReplaced, UnknownTopic
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import (
    BATCHES,
    CURSORS,
    DELIVERIES,
    GROUPS,
    MEMBERS,
    PARTITIONS,
    PRODUCERS,
    QUEUES,
    SCHEMAS,
    SEQUENCES,
    SHARES,
    TOPICS,
    VERSIONS,
    PartitionRow,
    SchemaRow,
    TopicRow,
)
from headrace.log.settings import TopicSettings
from headrace.names import OWN_PREFIX, check_name

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS_MAX = 4096
COPY = "__mending"
"""The hidden topic that a mend copies to."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as of one revision."""

    id: int
    uid: str
    name: str
    revision: int
    schema_version: int
    settings: TopicSettings

    @property
    def synced(self) -> bool:
        return self.settings.durability == "fsync"

    def was(self, uid: str | None) -> bool:
        """Whether that is the id of this topic, or of one that it was mended from."""
        return uid == self.uid or uid in self.settings.mended_from


class Catalog:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.closed = False  # with the log handle this belongs to; others on the same directory go on
        self._states: dict[int, TopicState] = {}
        self._schemas: dict[tuple[int, int], pa.Schema] = {}

    def check(self) -> None:
        """Before anything is done through a handle of this log."""
        if self.closed:
            raise Closed(what=f"the log {self._engine.home}")
        self._engine.check()

    # -- looking up --------------------------------------------------------------------------------

    def named(self, name: str) -> TopicState:
        with self._engine.index.reading() as db:
            rows = TOPICS.select(db, "WHERE name = ?", name)
            if not rows:
                raise UnknownTopic(topic=name, known=[row.name or "" for row in _visible(db)])
            return self._state(rows[0])

    def all(self, *, system: bool = False) -> list[TopicState]:
        with self._engine.index.reading() as db:
            return [self._state(row) for row in _visible(db, system=system)]

    def current(self, topic: int, name: str, uid: str) -> TopicState:
        """The topic's state now; TopicReplaced when it is no more."""
        with self._engine.index.reading() as db:
            row = TOPICS.get(db, topic)
        if row is None or row.name is None:
            raise TopicReplaced(topic=name, topic_id=uid)
        return self._state(row)

    def known(self, topic: int) -> TopicState | None:
        """The topic's state as last seen, which may be old."""
        return self._states.get(topic)

    def _state(self, row: TopicRow) -> TopicState:
        assert row.id is not None and row.name is not None
        known = self._states.get(row.id)
        if known is None or known.revision != row.revision:
            known = TopicState(row.id, row.uid, row.name, row.revision, row.schema, settings_from(row.settings))
            self._states[row.id] = known
        return known

    def ddl(self, state: TopicState) -> str:
        with self._engine.index.reading() as db:
            row = SCHEMAS.get(db, state.id, state.schema_version)
        return row.ddl if row else ""

    def schema(self, state: TopicState, version: int | None = None) -> pa.Schema:
        """The columns as users know them, at a version or now."""
        from headrace.schema import schema_from_bytes

        wanted = (state.id, version or state.schema_version)
        found = self._schemas.get(wanted)
        if found is None:
            with self._engine.index.reading() as db:
                row = SCHEMAS.get(db, *wanted)
            if row is None:
                raise TopicReplaced(topic=state.name, topic_id=state.uid)
            found = self._schemas[wanted] = schema_from_bytes(row.arrow)
        return found

    # -- changing ----------------------------------------------------------------------------------

    def create(
        self, name: str, schema: object, settings: TopicSettings, *, exist_ok: bool, system: bool = False
    ) -> TopicState:
        from headrace.schema import schema_bytes, schema_from, to_ddl

        check_name(name, argument="name", system=system)
        arrow = schema_from(schema)
        _check_columns(arrow, settings)
        ddl, raw = to_ddl(arrow), schema_bytes(arrow)
        uid = uuid.uuid4().hex

        def apply(tx: Tx) -> TopicRow:
            clash = TOPICS.select(tx.db, "WHERE name = ? COLLATE NOCASE", name)
            if clash:
                if clash[0].name == name and exist_ok:
                    return clash[0]
                raise TopicExists(topic=clash[0].name or name)
            row = TopicRow(None, uid, name, 1, 1, settings_text(settings))
            row = row._replace(id=TOPICS.add(tx.db, row))
            assert row.id is not None
            SCHEMAS.add(tx.db, SchemaRow(row.id, 1, ddl, raw))
            for partition in range(settings.partitions):
                PARTITIONS.add(tx.db, _empty(row.id, partition, tx.arrival_us()))
            return row

        row: TopicRow = self._engine.committer.run(apply, synced=True)
        return self._state(row)

    def alter(self, state: TopicState, changes: Mapping[str, Any]) -> TopicState:
        """Changes settings or the schema, or neither: everything is checked first."""
        from headrace.schema import evolve, schema_bytes, schema_from, to_ddl

        given = dict(changes)
        schema = given.pop("schema", None)
        wanted = None if schema is None else schema_from(schema)
        if "partitions" in given:
            given["partitions"] = _whole_number(given["partitions"], "partitions", 1, PARTITIONS_MAX)
        fresh = settings_of(given, base=state.settings, fixed=("key", "event_time", "versioned"))

        def apply(tx: Tx) -> TopicRow:
            row = TOPICS.get(tx.db, state.id)
            if row is None or row.name is None:
                raise TopicReplaced(topic=state.name, topic_id=state.uid)
            old = settings_from(row.settings)
            settings = replace(old, **{name: getattr(fresh, name) for name in (*_fields_of(given), "extra_kept")})
            if settings.partitions < old.partitions:
                raise InvalidArgument("partitions", settings.partitions, f"there are {old.partitions}; none can go")
            if settings.partitions > old.partitions:
                if old.cleanup == "compact" or old.versioned:
                    raise InvalidArgument(
                        "partitions",
                        settings.partitions,
                        "on a compacted or versioned topic keys must stay where they are: create a new topic and copy",
                    )
                settings = replace(settings, partitions_added=True)
                for partition in range(old.partitions, settings.partitions):
                    PARTITIONS.add(tx.db, _empty(state.id, partition, tx.arrival_us()))
            if settings.cleanup == "compact" and old.cleanup != "compact" and settings.partitions_added:
                raise InvalidArgument(
                    "cleanup",
                    settings.cleanup,
                    "partitions were added, so a key's records lie in several: create a new topic and copy",
                )
            from headrace.schema import schema_from_bytes

            version = row.schema
            newest = SCHEMAS.get(tx.db, state.id, version)
            assert newest is not None
            if settings.changes and not old.changes:
                _check_columns(schema_from_bytes(newest.arrow), settings)
            if wanted is not None:
                frozen = [*old.key, *([old.event_time] if old.event_time else [])]
                evolved = evolve(schema_from_bytes(newest.arrow), wanted, frozen=frozen)
                if schema_bytes(evolved) != newest.arrow:
                    version += 1
                    SCHEMAS.add(tx.db, SchemaRow(state.id, version, to_ddl(evolved), schema_bytes(evolved)))
            changed = row._replace(revision=row.revision + 1, schema=version, settings=settings_text(settings))
            TOPICS.put(tx.db, changed)
            tx.touched.add(row.uid)
            return changed

        row: TopicRow = self._engine.committer.run(apply, synced=True)
        return self._state(row)

    def delete(self, state: TopicState) -> None:
        def apply(tx: Tx) -> None:
            row = TOPICS.get(tx.db, state.id)
            if row is None or row.name is None:
                raise TopicReplaced(topic=state.name, topic_id=state.uid)
            delete_rows(tx, state.id)
            TOPICS.put(tx.db, row._replace(name=None, revision=row.revision + 1))
            tx.touched.add(row.uid)

        self._engine.committer.run(apply, synced=True)
        self._engine.key_filters.forget(state.uid)
        self._states.pop(state.id, None)

    def delete_copy(self) -> None:
        """What a mend that was interrupted has left. The caller holds the upkeep lock, so that none is at it."""
        with contextlib.suppress(UnknownTopic):
            self.delete(self.named(COPY))


def delete_rows(tx: Tx, topic: int) -> None:
    """All rows of a topic but its own, in one go: a topic half deleted must never be seen. Its frames are reclaimed by
    maintenance."""
    for of_queue in (CURSORS, DELIVERIES):
        of_queue.delete(tx.db, "WHERE queue IN (SELECT id FROM queues WHERE topic = ?)", topic)
    of_topic = (BATCHES, PARTITIONS, SCHEMAS, PRODUCERS, SEQUENCES, VERSIONS, GROUPS, SHARES, MEMBERS, QUEUES)
    for table in of_topic:
        table.delete(tx.db, "WHERE topic = ?", topic)


def _empty(topic: int, partition: int, arrived_us: int) -> PartitionRow:
    return PartitionRow(topic, partition, 0, 0, 0, 0, None, arrived_us, 0, 0, None, 0)


def _visible(db: sqlite3.Connection, *, system: bool = False) -> list[TopicRow]:
    rows = TOPICS.select(db, "WHERE name IS NOT NULL ORDER BY name")
    return [row for row in rows if system or not (row.name or "").startswith(OWN_PREFIX)]


# -- settings ----------------------------------------------------------------------------------------


def settings_text(settings: TopicSettings) -> str:
    return json.dumps(asdict(settings), sort_keys=True)


def settings_from(text: str) -> TopicSettings:
    raw = json.loads(text)
    raw["key"], raw["mended_from"] = tuple(raw["key"]), tuple(raw["mended_from"])
    return TopicSettings(**raw)


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


def _fields_of(given: Mapping[str, Any]) -> list[str]:
    return [_DURATIONS.get(name, name) for name in given]


def settings_of(
    given: Mapping[str, Any],
    *,
    base: TopicSettings = DEFAULTS,
    fixed: tuple[str, ...] = (),
) -> TopicSettings:
    """Settings as users write them, checked one by one: `retention="30 days"`, `key="user"`."""
    known = {*_DURATIONS, *_CHOICES, "key", "event_time", "partitions", "retention_bytes", "versioned", "changes"}
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
            out[name] = _whole_number(value, name, 1, PARTITIONS_MAX)
        elif name == "retention_bytes":
            out[name] = None if value is None else _whole_number(value, name, 1, 2**62)
        elif name in ("versioned", "changes"):
            out[name] = bool(value)
        else:
            out[name] = value
    settings = replace(base, **out)
    settings = replace(settings, extra_kept=settings.extra_kept or settings.extra == "keep")
    if (settings.cleanup == "compact" or settings.versioned) and not settings.key:
        what = "versioned" if settings.versioned else "cleanup"
        raise InvalidArgument(what, getattr(settings, what), "needs a key: pass key='column'")
    return settings


def _duration(name: str, value: Duration | None) -> int | None:
    if value is None:
        if name != "retention":
            raise InvalidArgument(name, value, "must be a duration such as '1 hour'")
        return None
    return duration_us(value, argument=name)


def _whole_number(value: Any, name: str, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgument(name, value, f"must be a whole number from {lowest} to {highest}")
    return value


def _check_columns(schema: pa.Schema, settings: TopicSettings) -> None:
    import pyarrow as pa

    from headrace.errors import nearest
    from headrace.keys import check_key_columns
    from headrace.schema import type_ddl

    if settings.key:
        check_key_columns(schema, settings.key)
    if settings.changes and ("op" not in schema.names or schema.field("op").type != pa.string()):
        raise InvalidArgument("changes", True, "needs a column 'op string', which says whether a row came or went")
    column = settings.event_time
    if column is not None:
        if not isinstance(column, str):
            raise InvalidArgument("event_time", column, "must be a column's name")
        if column not in schema.names:
            raise InvalidArgument("event_time", column, f"there is no such column.{nearest(column, schema.names)}")
        if schema.field(column).type != pa.timestamp("us", tz="UTC"):
            why = f"is {type_ddl(schema.field(column).type)}; it must be a timestamp. Append it as one, or leave "
            why += "event_time out and window by one that a transform makes of it: window(…, time=…)"
            raise InvalidArgument("event_time", column, why)
