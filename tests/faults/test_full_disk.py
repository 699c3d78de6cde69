"""A disk that is full, for real: what is asked to free space can, and what cannot be written says why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.checks import free_space
from headrace.errors import DiskFull
from headrace.log.embedded.log import EmbeddedLog, open_log
from headrace.views.sqlite import SqliteViews
from tests.faults import small_disk
from tests.faults.children import Children, ack

MIB = 1 << 20
DISK_BYTES = 12 * MIB
SMALL = 300


def run(programs: list[Callable[[Path], None]], folder: str, inodes: int = 1000) -> None:
    """Each on a disk of its own."""
    try:
        small_disk.become_alone()
    except small_disk.Unavailable as error:
        ack(["unavailable", str(error)])
        return
    for program in programs:
        disk = Path(folder) / program.__name__
        small_disk.mount(disk, size_bytes=DISK_BYTES, inodes=inodes)
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
