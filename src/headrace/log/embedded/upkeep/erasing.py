"""Erasure: the records of some keys leave the log, and every file of its directory. Owns what has to be rewritten and
wiped. All keys are one pass over the topic, and one wiping of the files.

Batches that hold a key are swapped for others without it: its offsets stay covered, with nothing at them. Then all
bytes of the data files that no batch needs are overwritten with zeros (old frames, and what refused or crashed appends
left), and the index's write-ahead log is emptied. From the start until that is done, the index has a note that it is
due: after a crash the next erasure or `maintain` continues. Bytes that could not be wiped yet are reported as
incomplete, with the reason.

On a disk that is nearly full a replacement is compressed, and the old bytes are given back as soon as it is committed:
all of it takes no more space than the largest replacement.

The index holds no keys and no values, so there is nothing to erase in it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import jsonrows, keys
from headrace.errors import DiskFull, HeadraceError, InvalidArgument, SyncFailed, UnknownTopic
from headrace.failpoints import reach
from headrace.log.contract import DEAD_LETTERS, Erased
from headrace.log.embedded.read.archived import path_of
from headrace.log.embedded.read.following import partitions_of_key
from headrace.log.embedded.storage import recovery
from headrace.log.embedded.storage.catalog import Catalog, TopicState
from headrace.log.embedded.storage.committer import Tx
from headrace.log.embedded.storage.engine import Engine
from headrace.log.embedded.storage.frames import ARCHIVED
from headrace.log.embedded.storage.index import BATCHES, DEAD, FILES, META, PARTITIONS, BatchRow, FileRow, MetaRow
from headrace.log.embedded.upkeep import reclaiming, swapping
from headrace.log.embedded.upkeep.usage import WIPE
from headrace.storage import disk

WIPE_BYTES = 1 << 20
ESCAPED = re.compile(rb"((?:\\u[0-9a-fA-F]{4})+)|\\([\"\\/bfnrt])")
SIGNS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
INDEX_BYTES = 256 << 10
"""What the index may need of a full disk, beside a replacement."""
LEAVING = "leaving/"
"""In `meta`, by topic, partition and id: the path of an archive's file that has records of an erased key. It goes when
no batch needs it any more, whoever interrupts the erasure."""


def erase(engine: Engine, catalog: Catalog, topic: TopicState, found_by: Sequence[Any], column: str | None) -> Erased:
    """Records of these keys, or with these values in `column`. The caller holds the upkeep lock. Wipes even when there
    is no such record: bytes of one that was compacted, replaced or deleted by retention may still lie in the files.
    DiskFull when a batch could not be replaced; all others are, and what they were is wiped."""
    if not found_by:
        raise InvalidArgument("keys", found_by, "names no key: erase('ann'), or erase('ann', 'bob')")
    columns = topic.settings.key if column is None else (column,)
    if not columns:
        why = f"topic {topic.name!r} has no key, so no record can be found by a key. Name a column: erase(…, column=…)"
        raise InvalidArgument("key", found_by[0], why)
    schema = catalog.schema(topic)
    keys.check_key_columns(schema, columns)
    wanted = _Wanted.of(found_by, schema, columns, is_key=column is None)
    done = Erased(topic.name)

    def rewrite() -> list[DiskFull]:
        now = catalog.current(topic.id, topic.name, topic.uid)
        failed = []
        for partition in wanted.partitions(now):
            failed += _rewrite(engine, catalog, now, partition, wanted.among, done)
        return failed + _letters(engine, catalog, functools.partial(_has, now, wanted), done)

    _erase(engine, catalog, rewrite, done)
    engine.key_filters.forget(topic.uid)  # bits of the key's hash, too
    return done


def erase_letters(engine: Engine, catalog: Catalog, topics: Collection[str]) -> Erased:
    """Dead letters of these topics. The same, of letters alone."""
    done = Erased(DEAD_LETTERS)
    of_these = lambda name, *_: name in topics  # noqa: E731
    _erase(engine, catalog, lambda: _letters(engine, catalog, of_these, done), done)
    return done


def _erase(engine: Engine, catalog: Catalog, rewrite: Callable[[], list[DiskFull]], done: Erased) -> None:
    """`rewrite` returns what there was no space for, and is called again if a topic was altered, or retention passed
    by, before all was seen."""
    engine.committer.run(lambda tx: META.put(tx.db, MetaRow(WIPE, "due")), synced=True)
    catalog.delete_copy()  # else its records would stay there
    if disk.is_low(engine.data):
        reclaiming.punch_gaps(engine)
    failed: list[DiskFull] | None = None
    while failed is None:
        done.incomplete = []
        with contextlib.suppress(swapping.Changed):
            failed = rewrite()
    done.incomplete += wipe(engine)
    if failed:
        raise max(failed, key=lambda error: error.needed_bytes or 0)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The keys, and how they are recognised."""

    schema: pa.Schema
    columns: tuple[str, ...]
    is_key: bool
    """Whether the columns are the topic's key, which says where its records are."""
    wholes: frozenset[bytes]
    parts: list[list[bytes]]
    null: bool
    """Of one column: null and the empty text have the same bytes."""
    empty: bool

    @classmethod
    def of(cls, found_by: Sequence[Any], schema: pa.Schema, columns: tuple[str, ...], *, is_key: bool) -> _Wanted:
        wholes = frozenset(keys.key_bytes(key, schema, columns) for key in found_by)
        null = len(columns) == 1 and any(key is None for key in found_by)
        empty = any(key is not None and not keys.key_bytes(key, schema, columns) for key in found_by)
        parts = [
            [keys.key_bytes(value, schema, [name]) for value, name in zip(values, columns, strict=True)]
            for values in ([key] if len(columns) == 1 else key for key in found_by)
        ]
        binary = [pa.types.is_binary(schema.field(name).type) for name in columns]
        if any(binary):  # as JSON has them
            parts += [
                [b64encode(part) if is_ else part for part, is_ in zip(each, binary, strict=True)] for each in parts
            ]
        parts = [some for each in parts if (some := [part for part in each if part])]
        return cls(schema, columns, is_key, wholes, parts, null, empty)

    def partitions(self, topic: TopicState) -> list[int]:
        each = [partitions_of_key(topic, whole if self.is_key else None) for whole in self.wholes]
        return sorted(set().union(*each))

    def among(self, batch: pa.RecordBatch) -> list[bool]:
        found = keys.all_key_bytes(batch, self.columns)
        if b"" not in self.wholes:
            return [key in self.wholes for key in found]
        nulls = batch.column(self.columns[0]).is_null().to_pylist()
        return [self._is_wanted(key, null=null) for key, null in zip(found, nulls, strict=True)]

    def _is_wanted(self, key: bytes, *, null: bool) -> bool:
        return key in self.wholes and (key != b"" or (self.null if null else self.empty))

    def in_text(self, text: str) -> bool:
        """Of a row as JSON; of a text that is none, as of bytes."""
        try:
            row = jsonrows.decode_row(text, self.schema)
            key = row.get(self.columns[0]) if len(self.columns) == 1 else tuple(map(row.get, self.columns))
            return self._is_wanted(keys.key_bytes(key, self.schema, self.columns), null=key is None)
        except (HeadraceError, ValueError):
            return self.in_bytes(text.encode())

    def in_bytes(self, raw: bytes) -> bool:
        """As they are, or as JSON writes them."""
        plain = _unescaped(raw)
        return any(all(part in raw or part in plain for part in parts) for parts in self.parts)


def _unescaped(raw: bytes) -> bytes:
    """Without the escapes of JSON, in a text that need not be JSON."""

    def written_out(found: re.Match[bytes]) -> bytes:
        units, sign = found.groups()
        if units is None:
            return SIGNS.get(sign, sign)
        return bytes.fromhex(units.replace(rb"\u", b"").decode()).decode("utf-16-be", "replace").encode()

    return ESCAPED.sub(written_out, raw)


def _rewrite(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    partition: int,
    among: Callable[[pa.RecordBatch], list[bool]],
    done: Erased,
    also: Callable[[list[int], Tx], Any] | None = None,
) -> list[DiskFull]:
    failed: list[DiskFull] = []
    with_key = _archives_with(engine, catalog, topic, partition, among, done)
    for row in _rows(engine, topic, partition):
        if row.file is None or (row.flags & ARCHIVED and row.file not in with_key):
            continue
        try:
            for batch in swapping.contents(engine, catalog, topic, [row]):
                found = np.array(among(batch), np.bool_)
                if not found.any() and not row.flags & ARCHIVED:
                    continue
                gone: list[int] = batch.column("_offset").filter(pa.array(found)).to_pylist()
                kept = batch.filter(pa.array(~found))
                _replace(engine, topic, row, kept, None if also is None else functools.partial(also, gone))
                done.records += len(gone)
                done.batches += 1
        except swapping.Changed:
            raise
        except DiskFull as error:
            failed.append(error)
        except HeadraceError as error:
            with engine.index.reading() as db:
                there = BATCHES.get(db, row.topic, row.partition, row.base) == row
            if there:  # else retention has deleted it meanwhile, or the topic was: only its bytes are left to wipe
                where = f"offsets {row.base}..{row.next} of {topic.name}/{partition}"
                done.incomplete.append(f"{where} could not be read: {error}")
    return failed


def _archives_with(
    engine: Engine,
    catalog: Catalog,
    topic: TopicState,
    partition: int,
    among: Callable[[pa.RecordBatch], list[bool]],
    done: Erased,
) -> set[int]:
    """The archive's files that have such records, and those that an erasure before has not come to the end of. The rest
    of their records comes back into the log, until it is archived once more."""
    noted = f"{LEAVING}{topic.uid}/{partition}/"
    found: dict[int, Path] = {}
    for row in _rows(engine, topic, partition):
        if not row.flags & ARCHIVED or row.file is None or row.file in found:
            continue
        try:
            if any(any(among(batch)) for batch in swapping.contents(engine, catalog, topic, [row])):
                found[row.file] = path_of(engine, topic, row)
        except swapping.Changed:
            raise
        except HeadraceError as error:
            where = f"offsets {row.base}..{row.next} of {topic.name}/{partition}"
            done.incomplete.append(f"{where} could not be read: {error}")

    def note(tx: Tx) -> None:
        for file, path in found.items():
            META.put(tx.db, MetaRow(f"{noted}{file}", str(path)))

    if found:
        engine.committer.run(note, synced=True)
    with engine.index.reading() as db:
        left = META.select(db, "WHERE substr(name, 1, ?) = ?", len(noted), noted)
    return {int(each.name.removeprefix(noted)) for each in left}


def _replace(
    engine: Engine, topic: TopicState, row: BatchRow, kept: pa.RecordBatch, also: Callable[[Tx], Any] | None
) -> None:
    low = disk.is_low(engine.data)
    new = swapping.replacements(topic, [row], [kept], "zstd" if low else topic.settings.compression)
    try:
        swapping.submit(engine, swapping.Swap(topic, [row], new, also=also, frees=True))
    except DiskFull as full:
        needed = INDEX_BYTES + sum(each.draft.length for each in new if each.draft)
        where = f"offsets {row.base}..{row.next} of {topic.name}/{row.partition}"
        why = f"{full.why}: to write {where} again without the key takes {needed} bytes"
        raise DiskFull(full.path, why, needed_bytes=needed) from full
    if low:
        reclaiming.punch_replaced(engine, row)


def _rows(engine: Engine, topic: TopicState, partition: int) -> Iterator[BatchRow]:
    """Every batch there is now; nobody replaces any while the upkeep lock is held, and new records come after."""
    with engine.index.reading() as db:
        state = PARTITIONS.get(db, topic.id, partition)
        offset, stop = (state.earliest, state.next) if state else (0, 0)
    while offset < stop:
        with engine.index.reading() as db:
            page = BATCHES.select(
                db,
                "WHERE topic = ? AND partition = ? AND base >= ? AND base < ? ORDER BY base LIMIT 1000",
                *(topic.id, partition, offset, stop),
            )
        if not page:
            return
        yield from page
        offset = page[-1].next


def _has(topic: TopicState, wanted: _Wanted, _: str, uid: str, text: str | None, raw: bytes | None) -> bool:
    """Whether a letter is the topic's, and holds the key. One whose bytes were never a row: if they contain the
    key's."""
    return topic.was(uid) and (wanted.in_bytes(raw or b"") if text is None else wanted.in_text(text))


def _letters(engine: Engine, catalog: Catalog, is_wanted: Callable[..., bool], done: Erased) -> list[DiskFull]:
    """Dead letters of which it says so, by topic, its id, row and bytes."""
    try:
        home = catalog.named(DEAD_LETTERS)
    except UnknownTopic:
        return []

    def among(batch: pa.RecordBatch) -> list[bool]:
        columns = (batch.column(name).to_pylist() for name in ("topic", "topic_id", "row", "raw"))
        return [is_wanted(*row) for row in zip(*columns, strict=True)]

    def end(gone: list[int], tx: Tx) -> None:
        for offset in gone:
            DEAD.delete(tx.db, "WHERE offset = ?", offset)

    of_letters = Erased(DEAD_LETTERS)
    failed = _rewrite(engine, catalog, home, 0, among, of_letters, end)
    done.dead_letters += of_letters.records
    done.incomplete += of_letters.incomplete
    return failed


# -- wiping ------------------------------------------------------------------------------------------


def wipe_if_due(engine: Engine) -> list[str]:
    """What an erasure that was interrupted, or hindered, has left to do."""
    with engine.index.reading() as db:
        due = META.get(db, WIPE) is not None
    return wipe(engine) if due else []


def wipe(engine: Engine) -> list[str]:
    """Overwrites what no batch needs. Returns what could not be wiped, and why; then it is still due."""
    try:
        return _wiped(engine)
    except SyncFailed as error:
        engine.committer.distrust(error)


def _remove_archives(engine: Engine) -> list[str]:
    """Archives' files with records of an erased key, if all that they had is in the log again."""
    incomplete: list[str] = []
    with engine.index.reading() as db:
        notes = META.select(db, "WHERE substr(name, 1, ?) = ?", len(LEAVING), LEAVING)
        needed = {row.file for row in BATCHES.select(db, "WHERE flags & ?", ARCHIVED)} if notes else set()
    for note in notes:
        path = Path(note.value)
        if int(note.name.rpartition("/")[2]) in needed:
            incomplete.append(f"{path}: not all of it could be read, or written into the log. Erase the key again")
            continue
        try:
            with disk.typed(path):
                path.unlink(missing_ok=True)
            if path.parent.is_dir():
                disk.sync_directory(path.parent)
        except HeadraceError as error:
            incomplete.append(f"{path}: {error}")
            continue
        engine.committer.run(functools.partial(_forget, note.name), synced=True)
    return incomplete


def _forget(name: str, tx: Tx) -> None:
    META.delete(tx.db, "WHERE name = ?", name)


def _wiped(engine: Engine) -> list[str]:
    incomplete = _remove_archives(engine)
    engine.committer.run(lambda _: None, synced=True)  # so that the index knows how far our own file reaches
    with engine.index.snapshot() as db:
        files = FILES.select(db)
        places = reclaiming.needed(db)
    engine.committer.run(lambda _: None, synced=True)  # or a power loss could bring back what we saw deleted
    for row in files:
        assert row.id is not None
        incomplete += _wipe_file(engine, row, sorted(places.get(row.id, [])))
    incomplete += recovery.remove_leftovers(engine.index, engine.data)
    for path in sorted((engine.home / "staging").rglob("*.arrow")):
        incomplete.append(
            f"{path}: a Spark job is writing it, or was killed. Try again when the job is done, or remove the file"
        )
    disk.sync_directory(engine.data)  # files that were unlinked, now or by reclaiming, must not come back
    reach("erase.wiped")
    if not engine.committer.checkpoint():
        incomplete.append("the index's write-ahead log: a process is reading the index. Try again in a moment")
    if not incomplete:
        engine.committer.run(lambda tx: META.delete(tx.db, "WHERE name = ?", WIPE), synced=True)
    return incomplete


def _wipe_file(engine: Engine, row: FileRow, live: list[tuple[int, int]]) -> list[str]:
    path = engine.data / row.name
    if row.state == "suspect":  # it may look wiped, and not be
        return [f"{path}: a sync of it failed. It is wiped after the log is opened again"]
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{path}: {os.strerror(error.errno or 0)}"]
    try:
        size = os.fstat(fd).st_size
        beyond = row.state == "ingest" and size > row.committed + 63  # frames are padded
        stop = size if row.state != "ingest" else min(size, row.committed)
        for begin, end in reclaiming.gaps(live, stop):
            _zero(fd, begin, end)
        disk.sync(fd, path)
    except OSError as error:
        return [f"{path}: {os.strerror(error.errno or 0)}"]
    finally:
        os.close(fd)
    return [f"{path}: its process is appending right now. Try again in a moment"] if beyond else []


def _zero(fd: int, begin: int, end: int) -> None:
    """Skips what is zero already: paddings, and what was wiped before."""
    while begin < end:
        length = min(end - begin, WIPE_BYTES)
        if os.pread(fd, length, begin).strip(b"\0"):
            disk.write_at(fd, [bytes(length)], begin)
        begin += length
