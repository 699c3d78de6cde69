"""From messages of the stream to records of the log, without a database: the messages are Postgres' own bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.cdc.journal import Journal
from headrace.cdc.postgres import messages as m
from headrace.cdc.postgres.applying import Applying
from headrace.cdc.postgres.slot import Health
from headrace.cdc.postgres.types import column_of
from headrace.cdc.rows import Shape
from headrace.cdc.tables import Chunk, Column, Known, Seen
from headrace.log.contract import Log
from headrace.log.open import open_log
from tests.cdc.test_messages import encoded

COLUMNS = (Column("id", 23, -1, True), Column("name", 25, -1))
USERS = Known(7, "public", "users", "shop_users", ("id",), COLUMNS, state="live", loaded=True)
RELATION = m.Relation(7, "public", "users", "d", COLUMNS)


def shape(known: Known, columns: Sequence[Column]) -> Shape:
    types = tuple({23: pa.int32(), 25: pa.string()}[column.type] for column in columns)
    readers = tuple(partial(column_of, wanted=kind) for kind in types)
    names = tuple(column.name for column in columns)
    return Shape(names, types, readers, tuple(names.index(name) for name in known.key))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "home") as log:
        log.create_topic("shop_users", shape(USERS, COLUMNS).schema, key="id")
        yield log


def applying(log: Log, known: Known = USERS) -> Applying:
    """As after a restart: from what the log has."""
    found = Applying(
        Journal(log, "shop"),
        Path("."),
        shape=shape,
        is_behind=lambda _, key, bound: int(key[0]) > int(bound[0]),
        grow=lambda *_: False,
    )
    found.track(known)
    return found


def transaction(commit: int, end: int, *changes: m.Message, xid: int = 5) -> list[bytes]:
    return [encoded(each) for each in (m.Begin(commit, 0, xid), *changes, m.Commit(commit, end, 0))]


def insert(number: int, name: str = "x") -> m.Insert:
    return m.Insert(7, (str(number).encode(), name.encode()))


def ids(log: Log) -> list[int]:
    return [record.value["id"] for record in log.topic("shop_users").records()]


def test_a_commit_may_end_where_the_next_transaction_begins(log: Log) -> None:
    """Since Postgres 17 both have one LSN, here 120. The first is known after a restart, the second is not."""
    first = transaction(100, 120, RELATION, insert(1))
    second = transaction(120, 140, insert(2), insert(3))
    before = applying(log)
    for data in first:
        before.read(data)
    before.write()
    after = applying(log)
    for data in [*first, *second]:  # the database sends both again
        after.read(data)
    after.write()
    assert ids(log) == [1, 2, 3]
    assert after.end == 140


def test_a_transaction_that_is_cut_off_leaves_nothing(log: Log) -> None:
    found = applying(log)
    for data in transaction(100, 120, RELATION, insert(1))[:-1]:
        found.read(data)
    found.write()
    found = applying(log)
    for data in transaction(100, 120, RELATION, insert(1)):
        found.read(data)
    found.write()
    assert ids(log) == [1]


def test_changes_beside_a_message_of_ours_are_changes(log: Log) -> None:
    found = applying(log)
    for data in transaction(100, 120, m.Logical(True, 90, "headrace", b"{}"), RELATION, insert(1)):
        found.read(data)
    found.write()
    assert ids(log) == [1]


def test_a_chunk_has_what_its_snapshot_has_seen(log: Log) -> None:
    """Rows up to 10 are of the slot's snapshot, the rest of one in which 5 and 6 were committed, and 7 was running."""
    chunks = (Chunk(("10",), None), Chunk(None, Seen("7:9:7", 200)))
    known = Known(7, "public", "users", "shop_users", ("id",), COLUMNS, state="live", chunks=chunks)
    found = applying(log, known)
    sent = [
        *transaction(100, 110, RELATION, insert(1), insert(11), xid=5),  # 11 is in the chunk
        *transaction(120, 130, insert(2), insert(12), xid=7),
        *transaction(150, 160, insert(3), insert(13), xid=9),
    ]
    for data in sent:
        found.read(data)
    found.write()
    assert ids(log) == [1, 2, 12, 3, 13]
    for data in transaction(210, 220, insert(14), xid=6):  # behind the snapshot's end: a number that came again
        found.read(data)
    found.write()
    assert [*ids(log)[5:]] == [14, None]  # and the mark that it is loaded
    assert found.tables[7].known.chunks == ()


@pytest.mark.parametrize(
    ("xid", "end", "seen"),
    [(4, 10, True), (5, 10, False), (6, 10, True), (8, 10, False), (2**32 - 3, 10, True), (4, 101, False)],
)
def test_what_a_snapshot_has_seen(xid: int, end: int, seen: bool) -> None:
    """Numbers have 32 bits in the stream, and 64 in the snapshot: they go round."""
    snapshot = f"{(1 << 32) + 5}:{(1 << 32) + 8}:{(1 << 32) + 5},{(1 << 32) + 7}"
    assert Seen(snapshot, 100).has(xid, end) is seen


def test_a_slot_that_is_about_to_be_lost_is_an_alarm() -> None:
    def health(status: str, left: float | None) -> Health:
        return Health(1, status, 10, 100, 0, left)

    assert health("reserved", None).alarm is None
    assert health("extended", 7200).alarm is None
    assert "lost in 0:01:00" in (health("extended", 60).alarm or "")
    assert "removes" in (health("unreserved", None).alarm or "")
