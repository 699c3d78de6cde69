"""One event of Debezium's: two texts of JSON, as its connectors write them to Kafka and its engine hands them out. Owns
which forms there are, and what each says that happened. Pure; knows no topic and no types of columns.

Forms: the envelope, with a schema block and without; the row by itself (`ExtractNewRecordState`), where a delete is a
record without a value, or has `__deleted`; tombstones. Heartbeats, the boundaries of transactions, logical messages and
changes of the schema are no changes of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

__all__ = ["Event", "Unreadable", "read_event"]

Fields = Sequence[Mapping[str, Any]]


class Unreadable(ValueError):
    """Bytes that are no event. The message quotes none of them."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a row. `key`: of the row, as JSON has it. `row`: as it is, of a delete as it was. `fields`: the
    row's schema, if the event has one. `place`: where the change is in the database's log, equal only for the two parts
    of one change. `phase`: of the snapshot, "" behind it."""

    what: Literal["upsert", "delete", "truncate"]
    schema: str
    table: str
    key: Mapping[str, Any] | None
    row: Mapping[str, Any] | None = None
    fields: Fields | None = None
    place: tuple[Any, ...] = ()
    at_us: int = 0
    transaction: int = 0
    phase: str = ""
    connector: str = ""


def read_event(destination: str, key: bytes | str | None, value: bytes | str | None) -> Event | None:
    """None if the event is about no row. `destination`: the name of its topic, "" if nobody knows."""
    said, block = _parsed(value)
    row_key = _parsed(key)[0] if key is not None else None
    if isinstance(said, dict) and isinstance(said.get("source"), dict) and "op" in said:
        return _enveloped(said, block, row_key if isinstance(row_key, dict) else None)
    schema, table = _named(destination, said)
    if not table or not isinstance(row_key, dict):
        return None
    if said is None:
        return Event("delete", schema, table, row_key)
    if not isinstance(said, dict):
        raise Unreadable("a value is no object")
    return _row(said, block, schema, table, row_key)


def _parsed(text: bytes | str | None) -> tuple[Any, Mapping[str, Any] | None]:
    """The payload, and its schema block."""
    if not text:
        return None, None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:  # numbers of more than 64 bits
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise Unreadable("it is no JSON: Debezium's JsonConverter writes what headrace reads") from None
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        return found["payload"], found["schema"]
    return found, None


def _enveloped(said: Mapping[str, Any], block: Mapping[str, Any] | None, key: Mapping[str, Any] | None) -> Event | None:
    op, source = said["op"], said["source"]
    if op not in ("c", "u", "d", "r", "t"):
        return None
    schema, table = source.get("schema") or source.get("db") or "", source.get("table") or ""
    if not table:
        return None
    phase = source.get("snapshot") or ""
    facts: dict[str, Any] = {
        "fields": _fields_of(block, "before" if op == "d" else "after"),
        "place": _place(source),
        "at_us": source.get("ts_us") or 1000 * (source.get("ts_ms") or 0),
        "transaction": source.get("txId") or 0,
        "phase": "" if phase in ("false", False) else str(phase),
        "connector": source.get("connector") or "",
    }
    if op == "t":
        return Event("truncate", schema, table, None, **facts)
    row = said.get("before") if op == "d" else said.get("after")
    if row is None and (key is None or op != "d"):
        raise Unreadable(f"an event {op!r} has no row")
    return Event("delete" if op == "d" else "upsert", schema, table, key, row, **facts)


def _place(source: Mapping[str, Any]) -> tuple[Any, ...]:
    if source.get("lsn") is not None:
        return ("lsn", source["lsn"], source.get("txId"))
    if source.get("pos") is not None:
        return (source.get("file"), source["pos"], source.get("row"))
    return ()


def _fields_of(block: Mapping[str, Any] | None, name: str) -> Fields | None:
    """The schema of the row inside an envelope."""
    if block is None:
        return None
    for each in block.get("fields", ()):
        if each.get("field") == name:
            found: Fields = each.get("fields")
            return found
    return None


def _named(destination: str, said: Any) -> tuple[str, str]:
    """Schema and table: the last parts of PREFIX.SCHEMA.TABLE, or what the row says of itself."""
    parts = destination.split(".")
    if destination.startswith("__debezium"):
        return "", ""
    if len(parts) >= 3:
        return parts[-2], parts[-1]
    if isinstance(said, dict) and said.get("__table"):
        return said.get("__schema") or said.get("__db") or "", said["__table"]
    return "", ""


def _row(
    said: Mapping[str, Any], block: Mapping[str, Any] | None, schema: str, table: str, key: Mapping[str, Any]
) -> Event:
    """A row by itself; what the transformation adds begins with two underscores."""
    at_us = 1000 * (said.get("__source_ts_ms") or said.get("__ts_ms") or 0)
    if str(said.get("__deleted", "")).lower() == "true" or said.get("__op") == "d":
        return Event("delete", schema, table, key, at_us=at_us)
    fields = None if block is None else [each for each in block["fields"] if not each["field"].startswith("__")]
    row = {name: value for name, value in said.items() if not name.startswith("__")}
    return Event("upsert", schema, table, key, row, fields, at_us=at_us)
