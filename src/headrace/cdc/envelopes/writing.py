"""Changes as events in Debezium's envelope, a topic for each table: PREFIX.SCHEMA.TABLE. Owns the envelope, the events
that a change makes, and what waits to be written in the transaction of the rows. Knows no database: `describe` says how
a table's columns are encoded, and `SourceFacts` what a source says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.cdc.change import UNCHANGED, Change, Row, Transaction
from headrace.cdc.rows import DELETE
from headrace.cdc.tables import Column, Known
from headrace.log.capabilities import TextTopics
from headrace.log.contract import Log
from headrace.schema import OP_COLUMN

__all__ = ["PLACEHOLDER", "TEXTS", "Encoded", "Envelopes", "SourceFacts", "event_topic"]

PLACEHOLDER: Final = "__debezium_unavailable_value"
TEXTS: Final = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.string())])
OPS: Final = {"insert": "c", "update": "u", "delete": "d"}
Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Encoded:
    """How a column is encoded. `said`: its schema in Kafka Connect's terms, without name and place; `unavailable`: what
    stands for a large value that the database did not send. `again`: a value of the topic, as the database has it."""

    name: str
    said: Mapping[str, Any]
    convert: Convert
    again: Convert
    unavailable: Any = PLACEHOLDER

    def field(self, key: bool) -> dict[str, Any]:
        named = {name: value for name, value in self.said.items() if name != "type"}
        return {"type": self.said["type"], "optional": not key, **named, "field": self.name}

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        return self.unavailable if value is UNCHANGED else self.convert(value)


@dataclass(frozen=True)
class SourceFacts:
    """What events say of where they come from. `table`: database and table. `place`: of a change, its transaction (None
    of a snapshot), its place and the end of the transaction before, as far as there are any. `transaction`: the id of
    one, of a change at a place. `fields`: the schema of all of it."""

    connector: str
    version: str
    table: Callable[[Known], dict[str, Any]]
    place: Callable[[Transaction | None, int | None, int | None], dict[str, Any]]
    transaction: Callable[[Transaction, int], str]
    fields: Sequence[Mapping[str, Any]]


def event_topic(prefix: str, known: Known) -> str:
    return f"{prefix}.{known.schema}.{known.name}"


class _Table:
    """A table's columns, encoded; its events that wait."""

    def __init__(self, prefix: str, known: Known, columns: Sequence[Encoded], facts: SourceFacts, blocks: bool):
        self.topic, self.key = event_topic(prefix, known), known.key
        self.columns = columns
        self.keys = [(at, each) for at, each in enumerate(columns) if each.name in known.key]
        self.keys.sort(key=lambda found: known.key.index(found[1].name))
        self.waiting: list[tuple[bytes | None, bytes | None]] = []
        self._source = {"version": facts.version, "connector": facts.connector, "name": prefix}
        self._source |= facts.table(known)
        self._blocks = self._made_blocks(facts) if blocks else None

    def _made_blocks(self, facts: SourceFacts) -> tuple[bytes, bytes]:
        row = [each.field(each.name in self.key) for each in self.columns]
        fields: list[dict[str, Any]] = [
            {"type": "struct", "fields": row, "optional": True, "name": f"{self.topic}.Value", "field": each}
            for each in ("before", "after")
        ]
        name = f"io.debezium.connector.{facts.connector}.Source"
        source = {"type": "struct", "fields": [*facts.fields], "optional": False, "name": name, "version": 1}
        transaction = {"type": "struct", "fields": _TRANSACTION, "optional": True, "name": "event.block", "version": 1}
        fields += [
            {**source, "field": "source"},
            {**transaction, "field": "transaction"},
            _plain("string", "op", False),
        ]
        fields += [_plain("int64", each) for each in ("ts_ms", "ts_us", "ts_ns")]
        value = {"type": "struct", "fields": fields, "optional": False, "name": f"{self.topic}.Envelope", "version": 2}
        key = [each.field(True) for _, each in self.keys]
        found = {"type": "struct", "fields": key, "optional": False, "name": f"{self.topic}.Key"}
        return orjson.dumps(found), orjson.dumps(value)

    def add(
        self,
        op: str,
        key: Row | None,
        before: Row | None,
        after: Row | None,
        source: Mapping[str, Any],
        transaction: Mapping[str, Any] | None,
        now_ns: int,
    ) -> None:
        """`key`: a whole row, in which the key is."""
        value = {
            "before": None if before is None else self._row(before),
            "after": None if after is None else self._row(after),
            "source": {**self._source, **source},
            "transaction": transaction,
            "op": op,
            "ts_ms": now_ns // 1_000_000,
            "ts_us": now_ns // 1_000,
            "ts_ns": now_ns,
        }
        said = None if key is None else self._block(0, {each.name: each(key[at]) for at, each in self.keys})
        self.waiting.append((said, self._block(1, value)))
        if op == "d":
            self.waiting.append((said, None))  # the tombstone, so that compaction forgets the key

    def _row(self, row: Row) -> dict[str, Any]:
        return {column.name: column(value) for column, value in zip(self.columns, row, strict=True)}

    def _block(self, which: int, payload: Mapping[str, Any]) -> bytes:
        said = orjson.dumps(payload)
        return said if self._blocks is None else b'{"schema":%b,"payload":%b}' % (self._blocks[which], said)

    def take(self) -> pa.Table:
        found, self.waiting = self.waiting, []
        columns = [pa.array([each[at] for each in found], pa.binary()).cast(pa.string()) for at in (0, 1)]
        return pa.Table.from_arrays(columns, schema=TEXTS)


class Envelopes:
    """The events of a capture. `prefix`: Debezium's topic.prefix; `blocks`: with a schema block in each event."""

    def __init__(
        self,
        log: Log,
        prefix: str,
        facts: SourceFacts,
        describe: Callable[[Known, Sequence[Column]], Sequence[Encoded]],
        *,
        blocks: bool,
    ) -> None:
        self._log, self._prefix, self._facts, self._describe, self._blocks = log, prefix, facts, describe, blocks
        self._tables: dict[int | str, _Table] = {}
        self._behind: int | None = None
        self._order = 0
        self._orders: dict[str, int] = {}

    def lay_out(self, known: Known, columns: Sequence[Column]) -> None:
        """From now on the table's rows have these columns."""
        before = self._tables.get(known.id)
        made = _Table(self._prefix, known, self._describe(known, columns), self._facts, self._blocks)
        if before is None:
            if isinstance(self._log, TextTopics):
                self._log.text_topic(made.topic)
            else:
                self._log.create_topic(made.topic, TEXTS, key="key", exist_ok=True)
        else:
            made.waiting = before.waiting
        self._tables[known.id] = made

    def _table(self, known: Known) -> _Table:
        if known.id not in self._tables:
            self.lay_out(known, known.columns)
        return self._tables[known.id]

    def topic_of(self, known: Known) -> str:
        return event_topic(self._prefix, known)

    # -- what happened -----------------------------------------------------------------------------

    def changed(self, known: Known, change: Change, behind: int) -> None:
        """`behind`: the end of the transaction before."""
        table, now_ns = self._table(known), time.time_ns()
        before = change.before if change.op != "insert" else None
        row = change.after if change.after is not None else change.before
        source = self._of(change.transaction, change.at, behind)
        transaction = self._ordered(known, change.transaction, change.at, behind)
        table.add(OPS[change.op], row, before, change.after, source, transaction, now_ns)

    def truncated(self, known: Known, transaction: Transaction, at: int, behind: int) -> None:
        source = self._of(transaction, at, behind)
        ordered = self._ordered(known, transaction, at, behind)
        self._table(known).add("t", None, None, None, source, ordered, time.time_ns())

    def copied(self, known: Known, columns: Sequence[Column], texts: pa.Table, place: int) -> tuple[str, pa.Table]:
        """Rows of a snapshot, as the database has them."""
        if known.id not in self._tables:
            self.lay_out(known, columns)
        table, now_ns = self._tables[known.id], time.time_ns()
        source = self._at(now_ns, "true", None, place, place)
        for row in zip(*(texts[each.name].to_pylist() for each in table.columns), strict=True):
            table.add("r", row, None, row, source, None, now_ns)
        return table.topic, table.take()

    def read_again(self, known: Known, columns: Sequence[Column], rows: pa.Table) -> tuple[str, pa.Table]:
        """Records of the topic that say what differs from a table that was read again."""
        self.lay_out(known, columns)
        table, now_ns = self._tables[known.id], time.time_ns()
        source = self._at(now_ns, "incremental", None, None, None)
        values = [map(each.again, rows[each.name].to_pylist()) for each in table.columns]
        for op, *row in zip(rows[OP_COLUMN].to_pylist(), *values, strict=True):
            found = tuple(row)
            if op == DELETE:
                table.add("d", found, found, None, source, None, now_ns)
            else:
                table.add("r", found, None, found, source, None, now_ns)
        return table.topic, table.take()

    def take(self) -> list[tuple[str, pa.Table]]:
        return [(table.topic, table.take()) for table in self._tables.values() if table.waiting]

    # -- what is said of it ------------------------------------------------------------------------

    def _of(self, transaction: Transaction, at: int, behind: int) -> dict[str, Any]:
        return self._at(1000 * transaction.at_us, "false", transaction, at, behind)

    def _at(
        self, ns: int, snapshot: str, transaction: Transaction | None, at: int | None, behind: int | None
    ) -> dict[str, Any]:
        times = {"ts_ms": ns // 1_000_000, "ts_us": ns // 1_000, "ts_ns": ns}
        return {**times, "snapshot": snapshot, **self._facts.place(transaction, at, behind)}

    def _ordered(self, known: Known, transaction: Transaction, at: int, behind: int) -> dict[str, Any]:
        if behind != self._behind:
            self._behind, self._order, self._orders = behind, 0, {}
        self._order += 1
        of_table = self._orders[known.full_name] = self._orders.get(known.full_name, 0) + 1
        id_ = self._facts.transaction(transaction, at)
        return {"id": id_, "total_order": self._order, "data_collection_order": of_table}


def _plain(kind: str, name: str, optional: bool = True) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


_TRANSACTION: Final = [
    _plain("string", "id", False),
    _plain("int64", "total_order", False),
    _plain("int64", "data_collection_order", False),
]
