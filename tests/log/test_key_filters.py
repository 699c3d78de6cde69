"""The records of one key cost what they cost, not what the partition does; and the filters that do it are a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import key_filters
from headrace.log.embedded.storage.datafiles import DataFiles
from headrace.log.embedded.storage.key_filters import RECORDS_MIN
from headrace.log.embedded.topic import EmbeddedTopic

BATCHES, ROWS = 40, 1_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with hr.open_log(tmp_path / "home") as log:
        log._engine.background.stop()
        yield log


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read of a data file."""
    seen: list[int] = []
    read = DataFiles.read_into

    def counted(self: DataFiles, file: int, view: memoryview, position: int) -> int:
        seen.append(len(view))
        return read(self, file, view, position)

    monkeypatch.setattr(DataFiles, "read_into", counted)
    return seen


def filled(log: EmbeddedLog, **settings: object) -> EmbeddedTopic:
    """Batches of 1,000 keys each; "rare" is in two of them."""
    topic = log.create_topic("t", "user string, n int", key="user", **settings)
    for batch in range(BATCHES):
        users = [f"user-{batch}-{n}" for n in range(ROWS)]
        if batch in (7, 31):
            users[batch] = "rare"
        topic.append(pa.table({"user": users, "n": pa.array(range(ROWS), pa.int32())}))
    return topic


def places(topic: EmbeddedTopic, key: object) -> list[tuple[int, int]]:
    return [(record.offset, record.value["n"]) for record in topic.records(key=key)]


RARE = [(7 * ROWS + 7, 7), (31 * ROWS + 31, 31)]


def test_only_batches_that_hold_the_key_are_read(log: EmbeddedLog, reads: list[int]) -> None:
    topic = filled(log)
    assert places(topic, "rare") == RARE
    assert len(reads) >= BATCHES  # nobody had asked before
    reads.clear()
    assert places(topic, "rare") == RARE
    assert len(reads) == 2
    reads.clear()
    assert places(topic, "user-12-345") == [(12 * ROWS + 345, 345)]
    assert len(reads) <= 3, "its batch, and those that the filters take for it: one in fifty"


def test_what_came_since_is_read_and_then_known(log: EmbeddedLog, reads: list[int]) -> None:
    topic = filled(log)
    places(topic, "rare")
    topic.append([{"user": "rare", "n": 1}])  # small: read each time
    topic.append(pa.table({"user": ["x"] * ROWS, "n": pa.array(range(ROWS), pa.int32())}))
    for expected in (4, 3):
        reads.clear()
        assert places(topic, "rare") == [*RARE, (BATCHES * ROWS, 1)]
        assert len(reads) == expected


def test_keys_are_found_after_sealing_compaction_erasure_and_retention(log: EmbeddedLog, reads: list[int]) -> None:
    topic = filled(log, cleanup="compact")
    assert places(topic, "rare") == RARE
    held = keys_file(log).read_bytes()
    topic.erase("user-31-3")
    assert keys_file(log).read_bytes().count(0) > held.count(0) + 40_000, "its hash is gone with it"
    assert places(topic, "user-31-3") == [] and places(topic, "rare") == RARE
    log.maintain()  # compacts, and seals batches into larger ones
    assert places(topic, "rare") == RARE[1:]
    reads.clear()
    assert places(topic, "rare") == RARE[1:]
    assert len(reads) == 1
    topic.alter(cleanup="delete", retention_bytes=1)
    log.maintain()
    assert places(topic, "rare") == [] == places(topic, "user-3-3")


def test_another_process_uses_what_one_has_found(log: EmbeddedLog, reads: list[int], tmp_path: Path) -> None:
    filled(log)
    places(log.topic("t"), "rare")
    log.close()
    reads.clear()
    with hr.open_log(tmp_path / "home") as again:
        again._engine.background.stop()
        assert places(again.topic("t"), "rare") == RARE
        assert len(reads) == 2


def keys_file(log: EmbeddedLog) -> Path:
    return log.home / "keys.db"


def test_it_is_a_cache(log: EmbeddedLog, reads: list[int]) -> None:
    topic = filled(log)
    places(topic, "rare")
    assert keys_file(log).stat().st_mode & 0o777 == 0o600
    assert b"user-1-" not in keys_file(log).read_bytes(), "no keys, only bits of their hashes"
    keys_file(log).unlink()
    assert places(topic, "rare") == RARE
    keys_file(log).write_bytes(b"not a database at all" * 1000)
    for _ in range(3):
        assert places(topic, "rare") == RARE
    reads.clear()
    assert places(topic, "rare") == RARE
    assert len(reads) == 2
    keys_file(log).unlink()
    keys_file(log).mkdir()
    assert places(topic, "rare") == RARE
    keys_file(log).rmdir()


def test_flipped_bits_hide_no_record(log: EmbeddedLog) -> None:
    topic = filled(log)
    places(topic, "rare")
    whole = keys_file(log).read_bytes()
    random = np.random.default_rng(1)
    for _ in range(60):
        data = bytearray(whole)
        for at in random.integers(0, len(data), 40):
            data[at] ^= 1 << int(random.integers(8))
        keys_file(log).write_bytes(data)
        assert places(topic, "rare") == RARE


def test_a_filter_of_another_log_s_batch_does_not_count(log: EmbeddedLog) -> None:
    topic = filled(log)
    places(topic, "rare")
    filters = keys_file(log).read_bytes()
    log.delete_topic("t")
    topic = log.create_topic("t", "user string, n int", key="user")
    for _ in range(BATCHES):
        topic.append(pa.table({"user": ["rare"] * ROWS, "n": pa.array(range(ROWS), pa.int32())}))
    keys_file(log).write_bytes(filters)
    assert len(places(topic, "rare")) == BATCHES * ROWS


def test_null_empty_and_composite_keys(log: EmbeddedLog) -> None:
    topic = log.create_topic("c", "a string, b int, n int", key=("a", "b"))
    keys = [("x", 1), (None, 1), ("", 1), ("x", None), ("x", 2)] * RECORDS_MIN
    topic.append([{"a": a, "b": b, "n": n} for n, (a, b) in enumerate(keys)])
    for _ in range(2):
        for at, key in enumerate(keys[:5]):
            assert [n for _, n in places(topic, key)] == list(range(at, len(keys), 5))
    assert places(topic, ("y", 1)) == []


@pytest.mark.parametrize("count", [1, 256, 65_536])
def test_a_filter_knows_its_keys_and_few_others(count: int) -> None:
    crcs = np.random.default_rng(count).integers(0, 2**32, count + 10_000, np.uint32)
    own, others = crcs[:count], crcs[count:]
    made = key_filters._filter(own, 7)
    blocks = len(made) // key_filters.BLOCK_BYTES

    def held(crc: int) -> bool:
        place, bits = key_filters._hash(crc)
        block = made[place % blocks * key_filters.BLOCK_BYTES :][: key_filters.BLOCK_BYTES]
        assert key_filters._is_whole(block, place % blocks, 7)
        return all(block[bit >> 3] >> (bit & 7) & 1 for bit in bits)

    assert all(held(int(crc)) for crc in own[:5_000])
    assert sum(held(int(crc)) for crc in others) / len(others) < 0.03
    assert len(made) <= max(key_filters.BLOCK_BYTES, 1.4 * count + key_filters.BLOCK_BYTES)


def test_a_home_that_holds_only_the_cache_is_a_home(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "home")
    (tmp_path / "home" / "keys.db").write_bytes(b"")
    with hr.open_log(tmp_path / "home") as log:
        assert log.topics() == []
