"""What somebody else does, or what fails, in just the wrong moment of upkeep: each moment is made, not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import failpoints
from headrace.errors import DamagedData, SyncFailed
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import recovery
from headrace.log.embedded.storage.datafiles import DataFiles
from headrace.log.embedded.storage.index import FILES, Index
from headrace.log.embedded.upkeep import erasing, swapping
from headrace.log.open import open_log
from headrace.storage import disk
from tests.faults.checking import opened
from tests.faults.children import Children, ack, hear
from tests.faults.disk import Disk, Shim, mark
from tests.faults.keeping import ERASED, SECRET, row, tombstone
from tests.searching import files_with

SCHEMA = "who string, n int, pad string, at timestamp"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "log") as log:
        yield log
    failpoints.disarm()


def files_of(log: EmbeddedLog) -> dict[str, str]:
    with log._engine.index.reading() as db:
        return {row.name: row.state for row in FILES.select(db)}


@contextmanager
def before(owner: Any, name: str, act: Callable[[], None]) -> Iterator[None]:
    """`act` once, right before the next call of a function."""
    real = getattr(owner, name)

    def acting(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, real)
        act()
        return real(*args, **kwargs)

    setattr(owner, name, acting)
    try:
        yield
    finally:
        assert getattr(owner, name) is real, f"{name} was never called"


# -- erasing -----------------------------------------------------------------------------------------


def test_erasing_wipes_what_is_no_record_any_more(log: EmbeddedLog) -> None:
    """Of the key there is nothing left but bytes: compacted away, or deleted by retention."""
    topic = log.create_topic(
        "latest", SCHEMA, key="who", cleanup="compact", tombstone_grace="1 microsecond", durability="os"
    )
    topic.append([row("latest", ERASED, 1), row("latest", "a", 1)])
    topic.append(tombstone(ERASED))
    log.maintain()
    assert [record.key for record in topic.records()] == ["a"]
    assert files_with(log.home, SECRET)
    erased = topic.erase(ERASED)
    assert (erased.records, erased.incomplete, files_with(log.home, SECRET)) == (0, [], [])


def test_the_frames_of_neighbours_hold_nothing_of_the_key(log: EmbeddedLog) -> None:
    """Arrow pads a slice with what lies behind it: of another partition's rows, and of a user's next slice."""
    topic = log.create_topic("people", SCHEMA, key="who", partitions=2)
    data = [row("people", who, n) for n in range(8) for who in ("a", ERASED, "b", "c")]
    topic.append(data)
    table = pa.Table.from_pylist(data, schema=topic.schema)
    for n in range(table.num_rows):
        topic.append(table.slice(n, 1))
    erased = topic.erase(ERASED)
    assert (erased.records, erased.incomplete, files_with(log.home, SECRET)) == (16, [], [])


def test_retention_deletes_what_is_being_erased(log: EmbeddedLog) -> None:
    topic = log.create_topic("short", SCHEMA, key="who", retention_bytes=3_000)
    topic.append([row("short", ERASED, 1), row("short", "a", 1)])
    failpoints.arm("swap.prepared", lambda: topic.append([row("short", f"k{n}", n) for n in range(60)]) and None)
    erased = topic.erase(ERASED)
    assert topic.offsets()[0].earliest == 2
    assert (erased.incomplete, files_with(log.home, SECRET)) == ([], [])


def test_a_checkpoint_that_fails_keeps_no_erasure_waiting(log: EmbeddedLog) -> None:
    topic = log.create_topic("people", SCHEMA, key="who")
    topic.append([row("people", ERASED, 1), row("people", "a", 1)])
    failpoints.arm("erase.wiped", lambda: failpoints.arm("checkpoint.due", "raise"))
    assert topic.erase(ERASED).incomplete
    assert log.maintain().incomplete == []
    assert files_with(log.home, SECRET) == []


def test_a_sync_that_fails_while_wiping_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has dropped what it could not write, of others' frames too, and tells nobody again."""

    def fail(_: int, path: Path) -> None:
        raise SyncFailed(path=str(path), why="sync failed")

    with open_log(tmp_path / "log") as log:
        topic = log.create_topic("people", SCHEMA, key="who")
        topic.append([row("people", ERASED, 1), row("people", "a", 1)])
        began = before(erasing, "_wipe_file", lambda: monkeypatch.setattr(disk, "sync", fail))
        with began, pytest.raises(SyncFailed):
            topic.erase(ERASED)
        monkeypatch.undo()
        with pytest.raises(SyncFailed):
            topic.append(row("people", "b", 2))
        assert list(files_of(log).values()) == ["suspect"]
    with opened(tmp_path / "log") as log:
        assert log.maintain().incomplete == []
        assert files_with(log.home, SECRET) == []
        assert [record.key for record in log.topic("people").records()] == ["a"]


def reclaim_then_erase(home: str) -> None:
    log = open_log(home, create=False)
    assert log.maintain().files_removed == 1
    assert log.topic("people").erase(ERASED).incomplete == []
    mark("erased")
    os._exit(0)


def test_a_file_that_went_before_the_erasure_does_not_come_back(
    shim: Shim, tmp_path: Path, children: Children, seed: int
) -> None:
    """Sealed and unlinked, with the record still in it: a power loss after the erasure must not undo that."""
    home = tmp_path / "log"
    with open_log(home) as log:
        people = log.create_topic("people", SCHEMA, key="who")
        for who in (ERASED, "a"):
            people.append(row("people", who, 1))
    trace = Disk(shim, home).trace(children, reclaim_then_erase, str(home))
    for image in trace.images(seed, points=[len(trace.ops)]):
        assert image.markers == ("erased",)
        assert not [name for name, content in image.tree.files.items() if SECRET.encode() in content], str(image)


def test_a_file_in_doubt_is_not_called_wiped(tmp_path: Path) -> None:
    """After a failed sync of another process's, whose zeros the page cache shows and the platter may not have."""
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("people", SCHEMA, key="who").append([row("people", ERASED, 1), row("people", "a", 1)])
    with open_log(home) as log:

        def doubt(tx: Any) -> None:
            for file in FILES.select(tx.db):
                FILES.put(tx.db, file._replace(state="suspect"))

        log._engine.committer.run(doubt, synced=True)
        assert "a sync of it failed" in log.topic("people").erase(ERASED).incomplete[0]
        assert log.maintain().incomplete
    with open_log(home) as log:
        assert log.maintain().incomplete == []
        assert files_with(home, SECRET) == []


def erase_beside_an_append(home: str) -> None:
    """Between the first commit of the wiping and its look at the index, an unsynced append makes room."""
    log = open_log(home, create=False)
    quick, people = log.topic("quick"), log.topic("people")
    looks = []

    def room() -> None:
        quick.append([row("quick", f"r{n}", n) for n in range(8)])
        looks.append(quick.offsets()[0].earliest)

    def armed() -> None:
        real = Index.snapshot

        def snapshot(self: Index) -> Any:
            Index.snapshot = real  # type: ignore[method-assign]
            room()
            return real(self)

        Index.snapshot = snapshot  # type: ignore[method-assign,assignment]

    with before(erasing, "wipe", armed):
        assert people.erase(ERASED).incomplete == []
    assert looks == [8], looks
    mark("erased")
    os._exit(0)


def test_what_an_unsynced_append_has_deleted_is_not_wiped(
    shim: Shim, tmp_path: Path, memory: Path, children: Children, seed: int
) -> None:
    """The append may be lost with the power, and with it the deletion: what it deleted must be readable then."""
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("people", SCHEMA, key="who").append([row("people", ERASED, 1), row("people", "a", 1)])
        quick = log.create_topic("quick", SCHEMA, durability="os")
        quick.append([row("quick", f"r{n}", n) for n in range(8)])
        quick.alter(retention_bytes=quick.describe().bytes * 3 // 2)
    trace = Disk(shim, home).trace(children, erase_beside_an_append, str(home))
    for image in trace.images(seed, modes=["nothing"], names=["posix"]):
        with opened(image.write(memory / "image"), boot="after") as log:
            assert log.verify().ok, (str(image), log.verify().problems)
        if "erased" in image.markers:
            assert not [name for name, content in image.tree.files.items() if SECRET.encode() in content]


# -- sealing -----------------------------------------------------------------------------------------


def test_retention_deletes_what_is_being_sealed(log: EmbeddedLog) -> None:
    """That is no damage."""
    topic = log.create_topic("short", SCHEMA, retention_bytes=10_000)
    for n in range(4):
        topic.append(row("short", "a", n))
    with before(swapping, "contents", lambda: topic.append([row("short", "b", n) for n in range(250)]) and None):
        assert log.maintain().problems == []
    assert topic.offsets()[0].earliest > 0
    assert log.maintain().problems == []


# -- reclaiming --------------------------------------------------------------------------------------


def append_while_files_go(home: str) -> None:
    log = open_log(home, create=False)
    log._engine.files.file_bytes_max = 1
    for n in range(4):
        log.topic("quick").append(row("quick", "a", n))  # a file each, unsynced

    def look() -> None:
        ack("looking")
        hear()

    with before(disk, "open_to_read", look):
        log.topic("safe").append(row("safe", "a", 1))
    ack("appended")


def test_a_commit_that_syncs_others_files_does_not_need_those_that_went(tmp_path: Path, children: Children) -> None:
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("safe", SCHEMA)
        log.create_topic("quick", SCHEMA, durability="os")
        child = children.start(append_while_files_go, str(home))
        assert child.next() == "looking"
        assert log.maintain().files_removed > 1
        child.tell("go on")
        assert child.next() == "appended"
        child.finish()
        assert log.verify().ok


def roll_and_reclaim(home: str) -> None:
    log = open_log(home, create=False)
    log.topic("quick").append(row("quick", "a", 1))
    ack("appended")
    hear()
    log._engine.files.file_bytes_max = 1
    log.topic("quick").append(row("quick", "a", 2))
    ack(log.maintain().files_removed)
    hear()


def test_a_file_that_went_while_a_log_is_opened_stays_gone(tmp_path: Path, children: Children) -> None:
    """The opening process has seen that the file is somebody's; then it is closed, reclaimed and unlinked."""
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("quick", SCHEMA, durability="os")
    child = children.start(roll_and_reclaim, str(home))
    assert child.next() == "appended"

    def act() -> None:
        child.tell("roll")
        assert child.next() == 2

    with before(recovery, "_lock_of_dead", act), opened(home) as log:
        assert log.verify().ok, log.verify().problems
        assert sorted(files_of(log)) == sorted(os.listdir(home / "data"))
        assert len(list(log.topic("quick").records())) == 2
    child.tell("end")


def append_slowly(home: str) -> None:
    log = open_log(home, create=False)

    def wait() -> None:
        ack("created")
        hear()

    failpoints.arm("roll.created", wait)
    log.topic("safe").append(row("safe", "a", 1))
    ack("appended")
    hear()


def test_a_file_that_is_not_known_yet_is_no_leftover(
    tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its process takes between creating and registering it."""
    monkeypatch.setattr(recovery, "LEFTOVER_SECONDS", -1)
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("safe", SCHEMA, key="who")
    child = children.start(append_slowly, str(home))
    assert child.next() == "created"
    with open_log(home) as log:
        assert "not known" in log.topic("safe").erase("b").incomplete[0]
        child.tell("go on")
        assert child.next() == "appended"
        assert len(list(log.topic("safe").records())) == 1
        child.tell("end")
        child.finish()


def test_damage_in_one_file_does_not_keep_the_others(tmp_path: Path) -> None:
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("once", SCHEMA).append(row("once", "precious", 1))
        many = log.create_topic("many", SCHEMA)
        for n in range(8):
            many.append(row("many", "a", n))
    with open_log(home) as log:  # a second file
        for n in range(8):
            log.topic("many").append(row("many", "a", n))
    (bad,) = files_with(home, "plain:once:precious")
    raw = (home / bad).read_bytes()
    (home / bad).write_bytes(raw.replace(b"precious", b"previous"))
    with open_log(home) as log:
        done = log.maintain()
        assert done.files_removed == 1, done
        assert len(done.problems) == 1 and "once" in done.problems[0]
        assert os.listdir(home / "data").count(Path(bad).name) == 1
        with pytest.raises(DamagedData):
            list(log.topic("once").records())
        assert len(list(log.topic("many").records())) == 16


# -- reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sealed and unlinked", "wiped in place", "compacted", "moved"])
def test_what_a_reader_was_about_to_read_is_elsewhere_now(how: str, tmp_path: Path) -> None:
    """It has read the index; before it comes to the data file, that has changed or gone."""
    home = tmp_path / "log"
    with open_log(home) as log:
        topic = log.create_topic("people", SCHEMA, key="who", cleanup="compact" if how == "compacted" else "delete")
        others = log.create_topic("others", SCHEMA)
        for n in range(2 if how == "compacted" else 1):
            topic.append([row("people", "a", n), row("people", ERASED, n), row("people", "b", n)])
        for n in range(4):
            others.append(row("others", "o", n))
        if how == "sealed and unlinked":
            topic.append(row("people", "a", 1))
    expected = {
        "sealed and unlinked": [0, 1, 2, 3],
        "wiped in place": [0, 2],
        "compacted": [3, 4, 5],
        "moved": [0, 1, 2],
    }
    with open_log(home) as log:
        topic = log.topic("people")

        def act() -> None:
            if how == "wiped in place":
                assert topic.erase(ERASED).incomplete == []
            else:
                assert log.maintain().files_removed == 1

        with before(DataFiles, "read_into", act):
            assert [record.offset for record in topic.records()] == expected[how]


# -- recovery ----------------------------------------------------------------------------------------


def make_room_unsynced(home: str) -> None:
    log = open_log(home, create=False)
    log.topic("safe").append(row("safe", "a", 1))
    ingest = log._engine.files._ingest
    assert ingest is not None
    quick = log.topic("quick")
    for n in range(2):  # one to each partition, in one append; then the first of them is deleted
        quick.append([row("quick", "r", 2 * n + i) for i in range(2 - n)])
    assert [offsets.earliest for offsets in quick.offsets().values()] == [1, 0]
    ack([ingest.name, ingest.synced])
    hear()


def test_a_cut_never_takes_what_was_synced(tmp_path: Path, children: Children) -> None:
    """Of what was appended together, retention has deleted the first: the second follows a stranger in the file."""
    home = tmp_path / "log"
    with open_log(home) as log:
        log.create_topic("safe", SCHEMA)
        quick = log.create_topic("quick", SCHEMA, partitions=2, durability="os")
        probe = log.create_topic("probe", SCHEMA)
        probe.append(row("quick", "r", 1))
        quick.alter(retention_bytes=probe.describe().bytes * 5 // 2)
    child = children.start(make_room_unsynced, str(home))
    name, synced = child.next()
    child.kill()
    os.truncate(home / "data" / name, synced)
    with opened(home, boot="after the power loss") as log:
        found = log.verify()
        assert found.ok and {problem.topic for problem in found.lost} == {"quick"}
        assert len(list(log.topic("safe").records())) == 1
