"""How a log judges the clock, and a user's confirmation. Owns the report and the confirmation; `clock` owns the rule,
`mending` what becomes of partitions that are ahead. Needs no Arrow."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import timedelta

from headrace.durations import from_us
from headrace.log.contract import ClockStanding, PartitionAhead
from headrace.log.embedded.storage.clock import AHEAD_US, ahead_us, is_synchronised, judge
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.index import PARTITIONS, TOPICS, PartitionRow, last_commit


def standing(engine: Engine) -> ClockStanding:
    reading = engine.clock()
    with engine.index.snapshot() as db:
        newest = last_commit(db, engine.index.path).newest
        partitions = partitions_ahead(db, reading.now_us)
    return ClockStanding(
        from_us(reading.now_us),
        None if newest is None else from_us(newest.arrived_us),
        timedelta(microseconds=0 if newest is None else ahead_us(newest, reading)),
        judge(newest, reading, is_synchronised).value,
        is_synchronised(reading.now_us),
        partitions,
    )


def is_ahead(state: PartitionRow, now_us: int) -> bool:
    return max(state.arrived, state.progress or 0) > now_us + AHEAD_US


def partitions_ahead(db: sqlite3.Connection, now_us: int) -> list[PartitionAhead]:
    names = {row.id: row.name for row in TOPICS.select(db, "WHERE name IS NOT NULL")}
    return [
        PartitionAhead(
            names[state.topic] or "",
            state.partition,
            from_us(state.arrived),
            None if state.progress is None else from_us(state.progress),
        )
        for state in _all_partitions(db)
        if state.topic in names and is_ahead(state, now_us)
    ]


def _all_partitions(db: sqlite3.Connection) -> Iterable[PartitionRow]:
    return PARTITIONS.each(db, "ORDER BY topic, partition")


def confirm(engine: Engine) -> None:
    engine.committer.run(Tx.confirm_clock, synced=True)
