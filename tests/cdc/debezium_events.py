"""Events of Debezium for tests: those that its engine (3.6.3) has written, and more that are made like them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "debezium"
PLACEHOLDER = "__debezium_unavailable_value"
Event = dict[str, Any]


def golden(name: str) -> list[Event]:
    """`destination`, `key` and `value` of each, as the engine handed them out."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]


def field(name: str, kind: str, semantic: str = "", **parameters: object) -> dict[str, Any]:
    found: dict[str, Any] = {"field": name, "type": kind, "optional": True}
    if semantic:
        found["name"] = semantic
    if parameters:
        found["parameters"] = {each.replace("_", "."): str(value) for each, value in parameters.items()}
    return found


def number_bytes(unscaled: int) -> str:
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


class Table:
    """Makes events of one table, with a schema block unless `fields` is None."""

    def __init__(self, name: str, fields: list[dict[str, Any]] | None, key: Iterable[str] = ("id",)) -> None:
        self.name, self.fields, self.key, self.lsn = name, fields, tuple(key), 100

    def event(
        self,
        op: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        *,
        snapshot: str = "false",
        lsn: int | None = None,
    ) -> Event:
        self.lsn = self.lsn + 8 if lsn is None else lsn
        schema, _, table = self.name.partition(".")
        source = {"connector": "postgresql", "schema": schema, "table": table, "lsn": self.lsn, "txId": 7}
        source |= {"snapshot": snapshot, "ts_us": 1_700_000_000_000_000 + self.lsn}
        payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}
        row = after or before or {}
        return self._made({each: row[each] for each in self.key if each in row} or None, payload)

    def tombstone(self, key: Mapping[str, Any]) -> Event:
        return self._made(dict(key), None)

    def _made(self, key: Mapping[str, Any] | None, payload: Mapping[str, Any] | None) -> Event:
        value: Any = payload
        if payload is not None and self.fields is not None:
            rows = [{"type": "struct", "field": each, "fields": self.fields} for each in ("before", "after")]
            value = {"schema": {"type": "struct", "fields": rows}, "payload": payload}
        return {
            "destination": f"srv1.{self.name}",
            "key": None if key is None else json.dumps(key),
            "value": None if value is None else json.dumps(value),
        }
