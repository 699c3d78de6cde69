"""Random changelogs for tests of tables: records as a log has them, and the orders in which they may be read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.testing.view_contract import INSTANT, SECOND, T0
from headrace.views.keyed import State

NOTHING = pa.table({"x": [1]}).select([])
"""The prefix of every row."""


@dataclass(frozen=True)
class Change:
    """One record. `arrived` in seconds; `values`: the table's columns, of which a delete has the key and its time."""

    partition: int
    offset: int
    arrived: int
    op: str
    values: dict[str, Any]

    @property
    def position(self) -> tuple[int, int, int]:
        return self.arrived, self.partition, self.offset

    @property
    def version(self) -> str:
        return f"{self.partition}:{self.offset}"


def log_of(
    dice: random.Random, count: int, values: Callable[[], dict[str, Any]], kept: Sequence[str], *, moves: bool = True
) -> list[Change]:
    """Changes in the order of arrival, which never goes back. `kept`: what a delete says. A key's changes are in one
    partition; or, if it `moves`, in any of three: partitions were added."""
    now, offsets, changes = 0, [0, 0, 0], list[Change]()
    for _ in range(count):
        now += dice.choice([0, 0, 1, 2])
        row = values()
        key = repr(row[kept[0]])
        partition = dice.randrange(3) if moves and dice.random() < 0.7 else sum(map(ord, key)) % 3
        op = "delete" if dice.random() < 0.25 else "upsert"
        if op == "delete":
            row = {name: value if name in kept else None for name, value in row.items()}
        changes.append(Change(partition, offsets[partition], now, op, row))
        offsets[partition] += 1
    return changes


def readings(dice: random.Random, log: Sequence[Change], *, again: bool) -> Iterator[list[Change]]:
    """The log in batches: each partition in its order, and these mixed at random. `again`: some are read twice."""
    waiting = [[each for each in log if each.partition == partition] for partition in range(3)]
    read = list[Change]()
    while any(waiting):
        batch = []
        for _ in range(dice.choice([1, 1, 2, 5, 20])):
            if some := [each for each in waiting if each]:
                batch.append(dice.choice(some).pop(0))
        if again and read and dice.random() < 0.5:
            batch += dice.choices(read, k=3)
        read += batch
        dice.shuffle(batch)
        yield batch


def arrow(batch: Sequence[Change], schema: pa.Schema) -> pa.Table:
    columns = {each.name: pa.array([one.values[each.name] for one in batch], each.type) for each in schema}
    return pa.table(
        {
            **columns,
            "_op": pa.array([each.op for each in batch], pa.string()),
            "_partition": pa.array([each.partition for each in batch], pa.int32()),
            "_offset": pa.array([each.offset for each in batch], pa.int64()),
            "_arrived_at": times([each.arrived for each in batch]),
            "_progress": pa.nulls(len(batch), INSTANT),
            "/id": pa.array([f"t/{each.partition}/{each.offset:016}" for each in batch], pa.string()),
        }
    )


def latest(changes: Sequence[Change], key: Sequence[str], valid: str | None = None) -> dict[tuple[Any, ...], Change]:
    """The last change of each key that is no delete, by brute force. `valid`: the column with a time that decides
    before the position does; null is the arrival."""

    def order(one: Change) -> tuple[Any, ...]:
        if valid is None:
            return one.position
        since = one.values[valid]
        return (one.arrived if since is None else (since - times([0])[0].as_py()).total_seconds(), *one.position)

    last = {tuple(each.values[name] for name in key): each for each in sorted(changes, key=order)}
    return {at: each for at, each in last.items() if each.op == "upsert"}


def reach_us(log: Sequence[Change], read: Sequence[Change]) -> int:
    """Every record that is still to be read arrived then or later."""
    known = {(each.partition, each.offset) for each in read}
    waiting = [each.arrived for each in log if (each.partition, each.offset) not in known]
    return T0 + min(waiting, default=log[-1].arrived + 1) * SECOND


def add_up(told: Counter[str], changes: pa.Table | None) -> None:
    """What was told before, and these changes. What goes was there, and nothing comes twice."""
    assert changes is not None
    for op, text in zip(changes["op"].to_pylist(), texts_of(changes, changes.column_names[1:]), strict=True):
        told[text] += 1 if op == "+" else -1
        assert told[text] in (0, 1)


def texts_of(rows: pa.Table, names: Sequence[str]) -> list[str]:
    return [repr(list(row.values())) for row in rows.select(names).to_pylist()]


def us_of(second: int | None) -> int | None:
    return None if second is None else T0 + second * SECOND


def times(seconds: Sequence[int | None]) -> pa.Array:
    return pa.array([None if each is None else T0 + each * SECOND for each in seconds], pa.int64()).cast(INSTANT)


def seconds(column: Any) -> list[int | None]:
    return [None if us is None else (us - T0) // SECOND for us in column.cast(pa.int64()).to_pylist()]


class Asked:
    """A state that counts the rows it gives."""

    def __init__(self, state: State) -> None:
        self.state, self.rows = state, 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            found = getattr(self.state, name)(*args, **more)
            self.rows += found.num_rows if isinstance(found, pa.Table) else 0
            return found

        return call
