"""Compression of what upkeep rewrites: which batches, by which codec, and that decompressing is bounded."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import frames
from headrace.log.embedded.storage.catalog import Catalog
from headrace.log.embedded.storage.frames import (
    CODECS,
    COMPRESSED,
    HEADER_BYTES,
    PLAIN_BYTES_MAX,
    BadFrame,
    Body,
    Header,
    plain_body,
)
from headrace.log.embedded.storage.index import BATCHES, BatchRow
from headrace.log.embedded.upkeep import rounds, sealing
from headrace.log.embedded.write import append
from headrace.log.open import open_log

SCHEMA = "k string, n bigint"
CODEC_NAMES = sorted(CODECS)
ROWS = 12_000
"""More than sealing calls small."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "log") as log:
        yield log


def batches(log: EmbeddedLog, topic: Any) -> list[BatchRow]:
    with log._engine.index.reading() as db:
        return BATCHES.select(db, "WHERE topic = ? ORDER BY partition, base", topic._id)


def codecs(log: EmbeddedLog, topic: Any) -> list[int]:
    return [row.flags & COMPRESSED for row in batches(log, topic) if row.file is not None]


def rows(count: int, first: int = 0) -> pa.Table:
    return pa.table({"k": [f"key-{n % 50}" for n in range(first, first + count)], "n": range(first, first + count)})


def held(topic: Any) -> pa.Table:
    """Every record of the first partition, with all that is known of it."""
    return pa.Table.from_batches(topic.batches(0, columns=[*topic.schema.names, *hr.META])).combine_chunks()


def column(topic: Any, name: str) -> list[Any]:
    return held(topic)[name].to_pylist()


# -- which batches, and how --------------------------------------------------------------------------


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_what_is_sealed_is_compressed_as_the_topic_says(log: EmbeddedLog, compression: str) -> None:
    topic = log.create_topic("t", SCHEMA, key="k", durability="os", compression=compression)
    for first in range(0, 2_000, 100):
        topic.append(rows(100, first))
    before = held(topic)
    assert codecs(log, topic) == [0] * 20  # what was just appended is plain
    log.maintain()
    (sealed,) = batches(log, topic)
    assert sealed.flags & COMPRESSED == CODECS[compression]
    assert (sealed.length < HEADER_BYTES + sealed.plain_bytes) == (compression != "none")
    assert topic.describe().bytes == sealed.length
    assert topic.settings.compression == topic.describe().settings.compression == compression
    assert held(topic) == before
    assert log.verify().ok


def test_zstandard_unless_said(log: EmbeddedLog) -> None:
    assert log.create_topic("t", SCHEMA).settings.compression == "zstd"


def test_large_batches_are_compressed_too_and_only_once(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", SCHEMA, durability="os")
    topic.append(rows(ROWS))
    topic.append(rows(ROWS, ROWS))
    assert topic.usage().small_batches == 0
    before, plain = held(topic), topic.describe().bytes
    log.maintain()
    assert codecs(log, topic) == [CODECS["zstd"]]
    assert topic.describe().bytes < plain / 2
    assert held(topic) == before
    sealed = batches(log, topic)
    log.maintain()
    assert batches(log, topic) == sealed


def test_a_large_batch_that_has_no_neighbour_is_compressed_and_a_small_one_is_not(log: EmbeddedLog) -> None:
    large, small = (log.create_topic(name, SCHEMA, durability="os") for name in ("large", "small"))
    large.append(rows(ROWS))
    small.append(rows(10))
    log.maintain()
    assert (codecs(log, large), codecs(log, small)) == ([CODECS["zstd"]], [0])
    assert [held(topic).num_rows for topic in (large, small)] == [ROWS, 10]


def test_what_compresses_well_is_not_taken_for_small(log: EmbeddedLog) -> None:
    """Three records of a megabyte are a few hundred bytes: were they small, they would be rewritten again and again."""
    topic = log.create_topic("t", "s string", durability="os")
    for _ in range(3):
        topic.append({"s": "x" * (1 << 20)})
    log.maintain()
    assert topic.usage().small_batches == 0
    assert topic.describe().bytes < 100_000
    assert [span.bytes > 1 << 20 for span in topic.spans(0, 0)] == [True] * len(batches(log, topic))  # as readers need
    sealed = batches(log, topic)
    log.maintain()
    assert batches(log, topic) == sealed


def test_another_compression_is_for_what_is_sealed_from_then_on(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", SCHEMA, durability="os", compression="none")
    topic.append(rows(ROWS))
    log.maintain()
    assert codecs(log, topic) == [0]
    topic.alter(compression="lz4")
    log.maintain()
    assert codecs(log, topic) == [CODECS["lz4"]]  # it was plain
    topic.alter(compression="none")
    topic.append(rows(ROWS, ROWS))
    log.maintain()
    assert codecs(log, topic) == [CODECS["lz4"], 0]
    assert column(topic, "n") == list(range(2 * ROWS))


def test_compaction_and_erasure_compress_what_they_rewrite(log: EmbeddedLog) -> None:
    compacted = log.create_topic("compacted", SCHEMA, key="k", durability="os", cleanup="compact", compression="lz4")
    erased = log.create_topic("erased", SCHEMA, key="k", durability="os")
    for topic in (compacted, erased):
        topic.append(rows(500))
    erased.erase("key-7")
    log.maintain()
    assert codecs(log, compacted) == [CODECS["lz4"]]
    assert codecs(log, erased) == [CODECS["zstd"]]
    assert column(compacted, "n") == list(range(450, 500))
    assert column(erased, "_offset") == [n for n in range(500) if n % 50 != 7]


def test_a_compressed_batch_moves_as_it_is(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", SCHEMA, durability="os")
    other = log.create_topic("other", SCHEMA, durability="os", compression="none")
    other.append(rows(ROWS))
    topic.append(rows(ROWS))
    log.maintain()
    before, (row,) = held(topic), batches(log, topic)
    home = log.home
    log.delete_topic("other")
    log.close()
    with open_log(home) as again:  # the file is closed, and mostly dead
        again.maintain()
        (moved,) = batches(again, again.topic("t"))
        assert moved.file != row.file
        assert moved._replace(file=row.file, position=row.position) == row
        assert held(again.topic("t")) == before


def test_in_the_background_large_batches_wait_until_there_is_enough(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log._engine.background.stop()
    topic = log.create_topic("t", SCHEMA, durability="os")
    topic.append(rows(ROWS))
    (waiting,) = sealing.plain_bytes(log._engine, topic._state(), 0).values()
    assert waiting == topic.describe().bytes
    for enough, expected in ((waiting + 1, 0), (waiting, CODECS["zstd"])):
        monkeypatch.setattr(sealing, "COMPRESS_BYTES", enough)
        rounds.in_background(log._engine, Catalog(log._engine), lambda: False)
        assert codecs(log, topic) == [expected]
    assert sealing.plain_bytes(log._engine, topic._state(), 0) == {}


def test_compressed_batches_go_to_another_file_so_that_the_plain_ones_can_be_removed(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "COMPRESS_BYTES", 100_000)
    topic = log.create_topic("t", SCHEMA, durability="os", partitions=2)
    for partition in (0, 1):
        topic.append(rows(ROWS), partition=partition)
    plain = topic.describe().bytes
    done = log.maintain()
    assert (done.files_removed, done.bytes_freed >= plain) == (1, True)
    (path,) = (log.home / "data").iterdir()
    assert path.stat().st_size < plain / 2


def test_offsets_that_follow_each_other_are_not_stored(log: EmbeddedLog) -> None:
    dense = log.create_topic("dense", SCHEMA, key="k", durability="os", compression="none")
    sparse = log.create_topic("sparse", SCHEMA, key="k", durability="os", compression="none")
    for topic in (dense, sparse):
        topic.append(rows(60))
        topic.append(rows(60, 60))
    sparse.erase("key-30")
    log.maintain()
    stored = {}
    for topic in (dense, sparse):
        (row,) = batches(log, topic)
        body = plain_body(memoryview(_frame(log, row))[HEADER_BYTES:], row.flags, row.plain_bytes)
        schema = pa.schema([*topic.schema, ("_offset", pa.int64()), *((name, _TIME) for name in hr.META[2:])])
        stored[topic.name] = pa.ipc.read_record_batch(body, schema).column("_offset").null_count
    assert stored == {"dense": 120, "sparse": 0}
    assert column(dense, "_offset") == list(range(120))
    assert column(sparse, "_offset") == [n for n in range(120) if n % 50 != 30]


_TIME = pa.timestamp("us", tz="UTC")


def _frame(log: EmbeddedLog, row: BatchRow) -> bytes:
    assert row.file is not None
    return log._engine.files.path(row.file).read_bytes()[row.position : row.position + row.length]


# -- decompressing is bounded ------------------------------------------------------------------------


@given(st.binary(max_size=200), st.integers(0, 1 << 20), st.sampled_from(["lz4", "zstd"]))
def test_bytes_that_are_not_compressed_are_refused(raw: bytes, plain_bytes: int, compression: str) -> None:
    with pytest.raises(BadFrame, match="cannot be decompressed"):
        plain_body(memoryview(b"\0" + raw), CODECS[compression], plain_bytes)


@given(st.lists(st.integers(-5, 5), max_size=50), st.sampled_from(CODEC_NAMES))
def test_a_body_is_its_batch_however_it_is_compressed(values: list[int], compression: str) -> None:
    batch = pa.record_batch({"n": pa.array(values, pa.int64())})
    body = Body.of(batch, compression)
    assert body.crc == zlib.crc32(body.data)
    plain = plain_body(body.data, CODECS[compression], body.plain_bytes)
    assert len(plain) == body.plain_bytes
    assert pa.ipc.read_record_batch(plain, batch.schema).equals(batch)


def _with(header: Header, at: int, data: bytes) -> bytes:
    raw = bytearray(header.pack()[:60])
    raw[at : at + len(data)] = data
    return bytes(raw) + struct.pack("<I", zlib.crc32(raw))


HEADER = Header(bytes(16), 0, 1, 300, 0, 1, 0, CODECS["zstd"], 600)


@pytest.mark.parametrize("flags", [32, 1 << 15, COMPRESSED])
def test_a_codec_of_the_future_is_refused_not_guessed(flags: int) -> None:
    with pytest.raises(BadFrame, match=f"flags {flags:#x}"):
        Header.unpack(_with(HEADER, 6, struct.pack("<H", flags)))


def test_a_body_beyond_reason_is_refused_before_anybody_allocates_it() -> None:
    assert Header.unpack(HEADER.pack()) == HEADER
    for size in (PLAIN_BYTES_MAX + 1, 2**32 - 1):
        with pytest.raises(BadFrame, match=f"a body of {size} bytes before compression"):
            Header.unpack(_with(HEADER, 56, struct.pack("<I", size)))
        with pytest.raises(BadFrame, match=f"a body of {size} bytes before compression"):
            plain_body(memoryview(b""), CODECS["zstd"], size)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_is_damage_that_is_named_and_never_unpacked(log: EmbeddedLog, compression: str) -> None:
    """A frame of a few kilobytes that holds 256 megabytes, its checksums all right, behind records that are whole."""
    topic = log.create_topic("t", SCHEMA, durability="os", compression=compression)
    topic.append(rows(ROWS))
    log.maintain()
    topic.append({"k": "bomb", "n": 1})
    bomb = memoryview(pa.compress(bytes(1 << 28), codec=compression).slice(0))
    assert len(bomb) < 1 << 21
    good, row = batches(log, topic)
    fake = row._replace(length=HEADER_BYTES + len(bomb), body_crc=zlib.crc32(bomb), flags=CODECS[compression])
    header = Header(
        bytes.fromhex(topic.topic_id), 0, 1, len(bomb), fake.body_crc, fake.schema, 0, fake.flags, fake.plain_bytes
    )
    assert row.file is not None
    with open(log._engine.files.path(row.file), "r+b") as file:
        file.seek(row.position)
        file.write(header.pack() + bomb)
    log._engine.committer.run(lambda tx: BATCHES.put(tx.db, fake), synced=False)
    before = pa.total_allocated_bytes()
    with pytest.raises(hr.DamagedData, match=f"cannot be decompressed to {row.plain_bytes} bytes") as damaged:
        list(topic.batches(0))
    assert (damaged.value.start, damaged.value.stop) == (good.next, good.next + 1)
    assert pa.total_allocated_bytes() - before < 1 << 25
    assert sum(batch.num_rows for batch in topic.batches(0, 0, good.next)) == ROWS
    assert [problem.start for problem in log.verify().problems if problem.start >= 0] == [good.next]


def test_what_index_and_frame_say_differently_is_damage(log: EmbeddedLog) -> None:
    topic = log.create_topic("t", SCHEMA, durability="os")
    topic.append(rows(ROWS))
    log.maintain()
    (row,) = batches(log, topic)
    for other in (row._replace(plain_bytes=row.plain_bytes + 1), row._replace(flags=row.flags & ~COMPRESSED)):
        log._engine.committer.run(lambda tx, other=other: BATCHES.put(tx.db, other), synced=False)
        with pytest.raises(hr.DamagedData, match="the frame is of another batch"):
            list(topic.batches(0))


def test_small_appends_that_are_large_together_are_several_frames(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handful of large records, or of callers with one each, must not make a body that no reader takes."""
    monkeypatch.setattr(append, "FRAME_BYTES_MAX", 2_000)
    monkeypatch.setattr(frames, "PLAIN_BYTES_MAX", 6_000)
    topic = log.create_topic("t", SCHEMA, key="k", partitions=2)

    def appended(caller: int) -> None:
        sent = [{"k": f"{caller}-{n}" + "x" * 400, "n": 100 * caller + n} for n in range(40)]
        done = topic.append(sent)
        found = [
            record.value
            for partition, given in done.ranges.items()
            for record in topic.records({partition: given.start}, partition=partition)
            if record.offset < given.stop
        ]
        assert sorted(found, key=lambda row: row["n"]) == sent

    with ThreadPoolExecutor(4) as callers:
        list(callers.map(appended, range(4)))
    assert max(row.plain_bytes for row in batches(log, topic)) < 6_000
    assert log.verify().ok
