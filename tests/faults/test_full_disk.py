"""A disk that is full, for real: what is asked to free space can, and what cannot be written says why."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.checks import free_space
from headrace.errors import DiskFull
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.write import append
from headrace.log.open import open_log
from headrace.views.sqlite.store import SqliteViews
from tests.faults import small_disk
from tests.faults.children import Children, ack
from tests.views.committing import VIEW, Committing

MIB = 1 << 20
DISK_BYTES = 12 * MIB
SMALL = 300


def run(programs: list[Callable[[Path], None]], folder: str, inodes: int = 1000, size_bytes: int = DISK_BYTES) -> None:
    """Each on a disk of its own."""
    try:
        small_disk.become_alone()
    except small_disk.Unavailable as error:
        ack(["unavailable", str(error)])
        return
    for program in programs:
        disk = Path(folder) / program.__name__
        small_disk.mount(disk, size_bytes=size_bytes, inodes=inodes)
        program(disk)
        small_disk.unmount(disk)
    ack(["done", ""])


@pytest.fixture
def on_small_disk(children: Children, tmp_path: Path) -> Callable[..., None]:
    def runner(program: Callable[..., None]) -> None:
        child = children.start(program, str(tmp_path))
        what, why = child.next()
        if what == "unavailable":
            pytest.skip(f"no small disk here: {why}")
        child.finish()

    return runner


def row(n: int) -> dict[str, Any]:
    return {"k": str(n % 7), "n": n, "text": os.urandom(200).hex()}


def full(home: Path) -> EmbeddedLog:
    """A log that has filled its disk, much of it by small commits in the write-ahead log."""
    log = open_log(home)
    for name in ("kept", "other"):
        log.create_topic(name, "k string, n int, text string", key="k", durability="os")
    n = 0
    for _ in range(SMALL):
        log.topic("kept").append(row(n := n + 1))
    with pytest.raises(DiskFull):
        while True:
            log.topic("other").append([row(n := n + 1) for _ in range(500)])
    small_disk.fill(home.parent)
    with pytest.raises(DiskFull):
        for _ in range(10_000):
            log.topic("kept").append([row(n := n + 1) for _ in range(10)])
    return log


def check(log: EmbeddedLog, *, without: str = "") -> None:
    """Nothing is damaged, and what was acknowledged first is there, in order."""
    assert log.verify().problems == []
    numbers = [record.value["n"] for record in log.topic("kept").records()]
    acknowledged = [n for n in range(1, SMALL + 1) if row(n)["k"] != without]
    assert [n for n in numbers if 0 < n <= SMALL] == acknowledged


def delete_a_topic(disk: Path) -> None:
    with full(disk / "log") as log:
        delete_and_append(log)


def delete_and_append(log: EmbeddedLog) -> None:
    log.delete_topic("other")
    done = log.maintain()
    assert (done.problems, done.postponed) == ([], [])
    assert done.bytes_freed > 0
    log.topic("kept").append(row(0))
    assert (log.home / "reserve").exists(), "made again, for the next time"
    check(log)


def retain(disk: Path) -> None:
    with full(disk / "log") as log:
        log.topic("other").alter(retention_bytes=MIB)
        done = log.maintain()
        assert done.problems == []
        assert done.records_deleted > 0
        log.topic("kept").append(row(0))
        check(log)


def erase(disk: Path) -> None:
    with full(disk / "log") as log:
        erased = log.topic("kept").erase("3")
        assert erased.records > 0
        assert erased.incomplete == []
        check(log, without="3")


def commit_offsets(disk: Path) -> None:
    with full(disk / "log") as log, log.topic("kept").group("g").join(start="earliest") as member:
        member.poll()
        member.commit()
        check(log)


def delete_after_opening(disk: Path) -> None:
    full(disk / "log").close()
    small_disk.fill(disk)
    with open_log(disk / "log", create=False) as log:
        check(log)
        delete_and_append(log)


def maintain(disk: Path) -> None:
    with full(disk / "log") as log:
        assert log.maintain().problems == [], "a full disk is no damage"
        check(log)
        os.unlink(disk / "filler")
        log.topic("kept").append(row(0))


def freeing(folder: str) -> None:
    run([delete_a_topic, retain, erase, commit_offsets, delete_after_opening, maintain], folder)


def test_a_full_disk_can_be_freed(on_small_disk: Callable[..., None]) -> None:
    on_small_disk(freeing)


def erase_from_many_batches(disk: Path) -> None:
    with full(disk / "log") as log:
        topic = log.topic("other")
        kept = [record.value["n"] for record in topic.records() if record.value["k"] != "3"]
        assert topic.usage().bytes > 4 * (log.home / "reserve").stat().st_size
        assert topic.erase("3").incomplete == []
        assert [record.value["n"] for record in topic.records()] == kept
        check(log)


def erase_what_needs_more(disk: Path) -> None:
    """A batch as large as they were once, of bytes that cannot be compressed."""
    append.FRAME_BYTES_MAX = 16 * MIB
    with open_log(disk / "log") as log:
        topic = log.create_topic("large", "k string, raw binary", key="k")
        topic.append([{"k": str(n % 7), "raw": os.urandom(500)} for n in range(5_000)])
        topic.append({"k": "3", "raw": b"alone"})
        filler = small_disk.fill(disk)
        with pytest.raises(
            DiskFull, match=r"offsets 0\.\.5000 of large/0 .* takes (\d+) bytes.* Free .* again"
        ) as caught:
            topic.erase("3")
        needed = caught.value.needed_bytes
        assert needed is not None and str(needed) in str(caught.value)
        assert log.verify().problems == []
        left = [record.offset for record in topic.records() if record.value["k"] == "3"]
        assert left == list(range(3, 5_000, 7)), "the batch that fits is written without the key"
        os.truncate(filler, filler.stat().st_size - needed)
        assert topic.erase("3").incomplete == []
        assert [record.offset for record in topic.records()] == [n for n in range(5_000) if n % 7 != 3]
        assert log.verify().problems == []


def erasing(folder: str) -> None:
    run([erase_from_many_batches, erase_what_needs_more], folder)


def test_a_key_is_erased_from_a_full_disk_or_the_error_says_what_that_takes(on_small_disk: Callable[..., None]) -> None:
    on_small_disk(erasing)


def erase_from_large_batches(disk: Path) -> None:
    with open_log(disk / "log") as log:
        topic = log.create_topic("large", "k string, n int, text string", key="k", compression="none")
        for first in range(0, 45_000, 15_000):
            topic.append([row(n) for n in range(first, first + 15_000)])
        small_disk.fill(disk)
        assert topic.erase("3").incomplete == []
        assert (log.home / "reserve").exists(), "made again, whoever writes next"
        assert [record.value["n"] for record in topic.records()] == [n for n in range(45_000) if n % 7 != 3]
        assert log.verify().problems == []


def erasing_large(folder: str) -> None:
    run([erase_from_large_batches], folder, size_bytes=64 * MIB)


def test_every_batch_can_be_written_again_without_a_key(on_small_disk: Callable[..., None]) -> None:
    on_small_disk(erasing_large)


def drop_a_view(disk: Path) -> None:
    """By the command, with the views' file closed before: SQLite makes two files when it is opened."""
    fill_a_view(disk)
    before = fill(disk)
    drop = subprocess.run(
        [sys.executable, "-m", "headrace", "--home", str(disk), "views", "drop", VIEW, "--yes", "--force"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert drop.returncode == 0, drop.stderr
    it_is_dropped(disk, before)


def drop_a_view_in_a_program(disk: Path) -> None:
    """Which has its files open, so nothing but the drop finds the disk full."""
    fill_a_view(disk)
    with contextlib.closing(hr.App("shop", home=str(disk))) as app:
        app.view(VIEW).status()
        assert app.running.store is not None and app.log.topics()
        before = fill(disk)
        app.view(VIEW).drop()
    it_is_dropped(disk, before)


def fill_a_view(disk: Path) -> None:
    with open_log(disk) as log:
        log.create_topic("clicks", "page string").append({"page": "/"})
    with Committing(disk) as flow:
        flow.commit([(0, f"/{n}", 1) for n in range(150_000)])


def fill(disk: Path) -> int:
    """How large the views' file is."""
    small_disk.fill(disk)
    return (disk / "views.db").stat().st_size


def it_is_dropped(disk: Path, before: int) -> None:
    assert (disk / "views.db").stat().st_size < before
    with open_log(disk) as log:
        log.topic("clicks").append({"page": "/"})
    assert (disk / "reserve").exists()


def dropping(folder: str) -> None:
    run([drop_a_view, drop_a_view_in_a_program], folder, size_bytes=32 * MIB)


def test_a_view_is_dropped_on_a_full_disk(on_small_disk: Callable[..., None]) -> None:
    on_small_disk(dropping)


def append_without_inodes(disk: Path) -> None:
    with open_log(disk / "log") as log:
        topic = log.create_topic("t", "k string, n int, text string", key="k")
        small_disk.fill_inodes(disk / "many")
        with pytest.raises(DiskFull, match="no inodes left") as caught:  # the first append makes a data file
            topic.append(row(1))
        assert "df -i" in str(caught.value)
        assert caught.value.path.startswith(str(disk / "log" / "data"))
        finding = free_space(disk)
        assert (finding.state, finding.found) == ("fail", "0.0 GiB, 0 inodes left (df -i)")


def open_views_without_inodes(disk: Path) -> None:
    SqliteViews(disk).close()
    small_disk.fill_inodes(disk / "many")
    with pytest.raises(DiskFull, match="no inodes left"):  # SQLite makes two files beside it
        SqliteViews(disk)


def without_inodes(folder: str) -> None:
    run([append_without_inodes, open_views_without_inodes], folder, inodes=60)


def test_no_inodes_left_is_named_as_that(on_small_disk: Callable[..., None]) -> None:
    on_small_disk(without_inodes)


def back_up_to(disk: Path) -> None:
    """What does not fit is the views, or the log: whichever it is, there is no copy then, and nothing is left of it."""
    for name, rows in (("log", 20_000), ("views", 0)):
        home = disk.parent / f"home of {name} {disk.name}"
        with open_log(home) as log:
            topic = log.create_topic("kept", "k string, n int, text string")
            topic.append([row(n) for n in range(rows)])
        if not rows:
            with SqliteViews(home) as store, store.transaction() as db:
                db.execute("CREATE TABLE large AS SELECT randomblob(8000000) AS much")
        with pytest.raises(DiskFull):
            hr.backup(home, disk / "copy")
        assert list(disk.iterdir()) == []


def back_up_programs(folder: str) -> None:
    run([back_up_to], folder, size_bytes=2 * MIB)


def test_a_backup_that_does_not_fit_is_not_there(on_small_disk: Callable[..., None]) -> None:
    on_small_disk(back_up_programs)
