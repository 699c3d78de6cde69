"""The fault kit itself: what it must find, it finds; what is right, it leaves alone.

Small programs, right and deliberately wrong, run under the shim. A kit that cannot fail is worthless,
so each promise has a program beside it that breaks it."""

from __future__ import annotations

import errno
import mmap
import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.children import ChildEnded, Children, ack, hear
from tests.faults.disk import Disk, Fail, Image, Kind, Op, Shim, Trace, Tree, fail, fired, mark

RECORD_BYTES = 700  # more than a sector, so that it can be torn


@pytest.fixture
def disk(shim: Shim, tmp_path: Path) -> Disk:
    return Disk(shim, tmp_path / "disk")


def record(i: int) -> bytes:
    return bytes([i + 1]) * RECORD_BYTES


# -- the model, by hand ------------------------------------------------------------------------------


def ops(*steps: tuple[Any, ...]) -> Trace:
    """("create", name), ("write", name, offset, data), ("begin" | "end" | "failed", name), ("dirsync",) ..."""
    inodes: dict[str, int] = {}
    made = [Op(Kind.OPEN, 1, 1, "", 0, 0, b"")]
    for step in steps:
        name = step[1] if len(step) > 1 else ""
        inode = inodes.setdefault(name, len(inodes) + 2) if name else 1
        match step[0]:
            case "create":
                made.append(Op(Kind.CREATE, 1, inode, name, 0, 0, b""))
            case "write":
                made.append(Op(Kind.WRITE, 1, inode, "", step[2], len(step[3]), step[3]))
            case "truncate":
                made.append(Op(Kind.TRUNCATE, 1, inode, "", step[2], 0, b""))
            case "begin":
                made.append(Op(Kind.SYNC_BEGIN, 1, inode, "", inode, 0, b""))
            case "end":
                made.append(Op(Kind.SYNC_END, 1, inode, "", inode, 0, b""))
            case "failed":
                made.append(Op(Kind.SYNC_END, 1, inode, "", inode, errno.EIO, b""))
            case "sync" | "dirsync":
                made.append(Op(Kind.SYNC_BEGIN, 1, inode, "", inode, 0, b""))
                made.append(Op(Kind.SYNC_END, 1, inode, "", inode, 0, b""))
            case "unlink":
                made.append(Op(Kind.UNLINK, 1, 0, name, 0, 0, b""))
            case "rename":
                made.append(Op(Kind.RENAME, 1, 0, name, 0, 0, step[2].encode()))
    return Trace(made, Tree({}))


def outcomes(trace: Trace, names: Any = "posix", modes: Any = ("random", "reordered"), seeds: int = 200) -> list[Tree]:
    """Every state the disk may be in after the whole trace."""
    end = [len(trace.ops)]
    return [i.tree for s in range(seeds) for i in trace.images(s, points=end, modes=modes, names=[names])]


def contents(trees: list[Tree], name: str) -> set[bytes | None]:
    return {tree.files.get(name) for tree in trees}


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    a, b = b"a" * 512, b"b" * 512
    trace = ops(
        ("create", "f"), ("dirsync",), ("write", "f", 0, a), ("begin", "f"), ("write", "f", 512, b), ("end", "f")
    )
    assert contents(outcomes(trace), "f") == {a, a + b, a + bytes(512)}
    assert contents(outcomes(trace, modes=["nothing"]), "f") == {a}
    assert contents(outcomes(trace, modes=["everything"]), "f") == {a + b}


def test_unsynced_writes_are_lost_torn_or_overtaken() -> None:
    a, b = b"a" * 1024, b"b" * 512
    trace = ops(("create", "f"), ("dirsync",), ("write", "f", 0, a), ("write", "f", 1024, b))
    seen = contents(outcomes(trace), "f")
    assert {b"", a, a + b, bytes(1024) + b, b"a" * 512} <= seen
    assert bytes(512) + b"a" * 512 in seen  # the first sector is lost, the second is not


def test_a_truncation_is_a_change_like_any_other() -> None:
    trace = ops(("create", "f"), ("dirsync",), ("write", "f", 0, b"x" * 512), ("sync", "f"), ("truncate", "f", 3))
    assert contents(outcomes(trace), "f") == {b"x" * 512, b"xxx"}


def test_after_a_failed_sync_no_later_sync_covers_the_same_writes() -> None:
    a, b = b"a" * 512, b"b" * 512
    trace = ops(
        *[("create", "f"), ("dirsync",), ("write", "f", 0, a), ("begin", "f"), ("failed", "f")],
        *[("write", "f", 512, b), ("sync", "f")],
    )
    assert contents(outcomes(trace), "f") == {a + b, bytes(512) + b}
    assert contents(outcomes(trace, modes=["nothing"]), "f") == {bytes(512) + b}


def test_a_new_name_needs_its_directory_synced_except_on_ext4() -> None:
    trace = ops(("create", "f"), ("write", "f", 0, b"x"), ("sync", "f"))
    assert contents(outcomes(trace), "f") == {None, b"x"}
    assert contents(outcomes(trace, "ext4"), "f") == {b"x"}
    assert contents(outcomes(ops(*[("create", "f"), ("dirsync",)])), "f") == {b""}


def test_a_rename_is_old_or_new_and_an_unlinked_file_may_return() -> None:
    made = [("create", "old"), ("write", "old", 0, b"1"), ("sync", "old"), ("dirsync",)]
    both = {frozenset(tree.files.items()) for tree in outcomes(ops(*made, ("rename", "old", "new")))}
    assert both == {frozenset({("old", b"1")}), frozenset({("new", b"1")})}
    assert contents(outcomes(ops(*made, ("unlink", "old"))), "old") == {None, b"1"}
    assert contents(outcomes(ops(*made, ("unlink", "old"), ("dirsync",))), "old") == {None}


def test_an_image_can_be_had_again() -> None:
    trace = ops(("create", "f"), ("dirsync",), *[("write", "f", 512 * i, bytes([i]) * 512) for i in range(20)])
    for image in trace.images(7):
        (again,) = eval(f"trace.{image}")
        assert again == image


# -- a plain file ------------------------------------------------------------------------------------


def append(root: str, order: list[str]) -> None:
    """Append records to a file made durable first, doing `order` for each of them."""
    fd = os.open(f"{root}/data", os.O_CREAT | os.O_WRONLY)
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    steps: dict[str, Callable[[int], object]] = {
        "write": lambda i: os.pwrite(fd, record(i), i * RECORD_BYTES),
        "sync": lambda _: os.fdatasync(fd),
        "ack": mark,
    }
    for i in range(12):
        for step in order:
            steps[step](i)


def lost(image: Image) -> list[int]:
    """Acknowledged records the image does not hold."""
    data = image.tree.files.get("data", b"")
    return [i for i in image.markers if data[i * RECORD_BYTES : (i + 1) * RECORD_BYTES] != record(i)]


def test_records_acknowledged_after_the_sync_are_always_there(disk: Disk, children: Children) -> None:
    trace = disk.trace(children, append, str(disk.root), ["write", "sync", "ack"])
    assert trace.markers() == list(range(12))
    images = [image for seed in range(5) for image in trace.images(seed)]
    assert [str(image) for image in images if lost(image)] == []
    whole = [len(image.tree.files.get("data", b"")) // RECORD_BYTES for image in images]
    assert set(range(13)) <= set(whole)


@pytest.mark.parametrize("order", [["write", "ack"], ["write", "ack", "sync"], ["sync", "write", "ack"]])
def test_records_acknowledged_before_the_sync_are_found_missing(
    disk: Disk, children: Children, order: list[str]
) -> None:
    trace = disk.trace(children, append, str(disk.root), order)
    for mode in ("nothing", "random", "reordered"):
        assert any(lost(image) for image in trace.images(1, modes=[mode])), mode
    # A killed process loses nothing: the kernel still has it all.
    assert not any(lost(image) for image in trace.images(1, modes=["everything"]))


def append_through_failed_sync(root: str) -> None:
    fd = os.open(f"{root}/data", os.O_CREAT | os.O_WRONLY)
    os.fsync(os.open(root, os.O_RDONLY))
    fail(Fail("sync", "data", errno.EIO))
    os.pwrite(fd, record(0), 0)
    with pytest.raises(OSError, match="Input/output error"):
        os.fsync(fd)
    os.fsync(fd)  # wrong: returns 0, but the pages were dropped when the first one failed
    mark(0)


def test_a_retried_sync_is_found(disk: Disk, children: Children) -> None:
    trace = disk.trace(children, append_through_failed_sync, str(disk.root))
    assert any(lost(image) for image in trace.images(1))


def replace(root: str, sync_file: bool, sync_directory: bool) -> None:
    """Replace the content of `current` by rename, several times."""
    os.mkdir(f"{root}/sub")
    directory = os.open(f"{root}/sub", os.O_RDONLY)
    os.fsync(os.open(root, os.O_RDONLY))
    for i in range(5):
        with open(f"{root}/sub/new", "wb") as file:
            file.write(record(i))
            file.flush()
            if sync_file:
                os.fsync(file.fileno())
        os.replace("new", "current", src_dir_fd=directory, dst_dir_fd=directory)
        if sync_directory:
            os.fsync(directory)
        mark(i)


def stale(image: Image) -> bool:
    """`current` is not the last acknowledged one, nor the one in the making."""
    done = len(image.markers)
    current = image.tree.files.get("sub/current")
    return current not in [record(done), record(done - 1) if done else None]


def test_replacing_a_file_needs_both_syncs(disk: Disk, children: Children) -> None:
    def any_stale(sync_file: bool, sync_directory: bool, names: Any) -> bool:
        trace = disk.trace(children, replace, str(disk.root), sync_file, sync_directory)
        found = any(stale(image) for seed in range(3) for image in trace.images(seed, names=[names]))
        for file in disk.root.rglob("*"):
            assert file.is_dir() or file.name == "current"
        (disk.root / "sub/current").unlink()
        (disk.root / "sub").rmdir()
        return found

    assert not any_stale(True, True, "posix")
    assert not any_stale(True, True, "ext4")
    assert any_stale(False, True, "posix")
    assert any_stale(True, False, "posix")
    assert any_stale(True, False, "ext4")  # the rename comes after the sync of the file


# -- SQLite ------------------------------------------------------------------------------------------

TRANSACTIONS = 18


def transact(root: str, synchronous: str) -> None:
    """One transaction after the other in WAL mode, a checkpoint now and then, as the log does it."""
    db = sqlite3.connect(f"{root}/index.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={synchronous}")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, pad BLOB)")
    for i in range(TRANSACTIONS):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (?, ?)", (i, bytes([i]) * 1500))
        db.execute("UPDATE t SET pad = ? WHERE i = ?", (bytes([i]) * 1400, i // 2))
        db.execute("COMMIT")
        mark(i)
        if i % 5 == 4:
            db.execute(f"PRAGMA wal_checkpoint({['PASSIVE', 'TRUNCATE', 'RESTART'][i // 5]})")
    os._exit(0)  # closing would checkpoint and delete the WAL


def rows_in(directory: Path) -> list[int]:
    """The rows of a database that must be sound; DatabaseError when it is not."""
    db = sqlite3.connect(directory / "index.db")
    try:
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        if not db.execute("SELECT 1 FROM sqlite_master").fetchall():
            return []
        return [i for (i,) in db.execute("SELECT i FROM t ORDER BY i")]
    finally:
        db.close()


def test_sqlite_full_keeps_every_acknowledged_transaction(disk: Disk, children: Children, tmp_path: Path) -> None:
    trace = disk.trace(children, transact, str(disk.root), "FULL")
    assert any(op.path == "index.db-wal" for op in trace.ops), "SQLite's own operations are traced"
    for image in trace.images(1):
        rows = rows_in(image.write(tmp_path / "copy"))
        assert rows == list(range(len(rows))), image
        assert len(rows) >= len(image.markers), image


def test_sqlite_normal_may_lose_the_end_but_stays_sound(disk: Disk, children: Children, tmp_path: Path) -> None:
    trace = disk.trace(children, transact, str(disk.root), "NORMAL")
    shortest = TRANSACTIONS
    for image in trace.images(2):
        rows = rows_in(image.write(tmp_path / "copy"))
        assert rows == list(range(len(rows))), image
        shortest = min(shortest, len(rows) - len(image.markers))
    assert shortest < 0, "the kit loses unsynced transactions"


def test_sqlite_without_syncs_is_found_damaged(disk: Disk, children: Children, tmp_path: Path) -> None:
    trace = disk.trace(children, transact, str(disk.root), "OFF")
    damaged = 0
    for image in trace.images(3, points=60, modes=["random", "reordered"]):
        try:
            rows_in(image.write(tmp_path / "copy"))
        except sqlite3.DatabaseError:
            damaged += 1
    assert damaged > 0


@pytest.mark.parametrize("shm", [None, b"", bytes(32768), random.Random(5).randbytes(32768)])
def test_sqlite_does_not_need_the_shm_file(disk: Disk, children: Children, tmp_path: Path, shm: bytes | None) -> None:
    """Its writes through mmap are the one thing the trace leaves out: the first to open rebuilds the file."""
    trace = disk.trace(children, transact, str(disk.root), "FULL")
    (image,) = trace.images(1, points=[len(trace.ops)], modes=["nothing"], names=["posix"])
    copy = image.write(tmp_path / "copy")
    (copy / "index.db-shm").unlink(missing_ok=True)
    if shm is not None:
        (copy / "index.db-shm").write_bytes(shm)
    assert rows_in(copy) == list(range(TRANSACTIONS))


# -- failing calls -----------------------------------------------------------------------------------


def failing_files(root: str) -> None:
    def attempt(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    fd = os.open(f"{root}/a.data", os.O_CREAT | os.O_RDWR)
    other = os.open(f"{root}/b.other", os.O_CREAT | os.O_RDWR)
    fail(Fail("write", "*.data", errno.ENOSPC, nth=2, times=2))
    ack([attempt(lambda: os.pwrite(fd, b"1234", 0)) for _ in range(4)] + [os.write(other, b"1234"), fired()])
    fail(Fail("write", "*.data", "short"), Fail("write", "*.data", errno.ENOSPC, nth=3, times=0))
    ack([attempt(lambda: os.pwritev(fd, [b"123456", b"7890"], 0)) for _ in range(4)])
    fail(Fail("sync", "*.data", errno.EIO))
    ack([attempt(lambda: os.fdatasync(fd)), attempt(lambda: os.fsync(fd))])
    fail(Fail("read", "*.data", errno.EIO, times=0), Fail("read", "*.other", "short"))
    ack([attempt(lambda: os.pread(fd, 4, 0)), len(os.pread(other, 4, 0)), len(os.pread(other, 4, 0))])
    fail(Fail("open", "*.data", errno.EMFILE))
    ack([attempt(lambda: os.close(os.open(f"{root}/a.data", os.O_RDONLY))) for _ in range(2)])
    fail(Fail("truncate", "*", errno.EROFS), Fail("entry", "sub", errno.ENOSPC))
    ack([attempt(lambda: os.ftruncate(fd, 0)), attempt(lambda: os.mkdir(f"{root}/sub"))])
    fail()
    ack([attempt(lambda: os.posix_fallocate(fd, 0, 100)), os.fstat(fd).st_size])


def test_python_sees_the_failures_asked_for(disk: Disk, children: Children) -> None:
    child = disk.start(children, failing_files, str(disk.root))
    assert child.finish() == [
        [4, "ENOSPC", "ENOSPC", 4, 4, 2],
        [5, 10, "ENOSPC", "ENOSPC"],
        ["EIO", None],
        ["EIO", 2, 4],
        ["EMFILE", None],
        ["EROFS", "ENOSPC"],
        [None, 100],
    ]


def failing_sqlite(root: str) -> None:
    db = sqlite3.connect(f"{root}/index.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")

    def insert(i: int) -> str:
        try:
            db.execute("INSERT INTO t VALUES (?)", (i,))
        except sqlite3.Error as error:
            return f"{type(error).__name__}: {error}"
        return "ok"

    for i, rule in enumerate(
        [
            Fail("write", "index.db-wal", errno.ENOSPC, nth=2),
            Fail("sync", "index.db-wal", errno.EIO),
            Fail("write", "index.db-wal", "short"),
        ]
    ):
        fail(rule)
        ack([insert(i), fired()])
    fail()
    ack([insert(3), [i for (i,) in db.execute("SELECT i FROM t")]])


def test_sqlite_sees_the_failures_asked_for(disk: Disk, children: Children) -> None:
    child = disk.start(children, failing_sqlite, str(disk.root))
    assert child.finish() == [
        ["OperationalError: database or disk is full", 1],
        ["OperationalError: disk I/O error", 1],
        ["ok", 1],  # SQLite writes the other half
        ["ok", [2, 3]],
    ]


def fails_from_the_start(root: str) -> None:
    open(f"{root}/a", "wb").close()


def test_rules_may_be_set_before_the_program_starts(disk: Disk, children: Children) -> None:
    child = disk.start(children, fails_from_the_start, str(disk.root), rules=[Fail("open", "a", errno.EROFS)])
    assert child.wait() == 1
    assert "OSError: [Errno 30] Read-only file system" in child.stderr


# -- several threads and processes in one trace ------------------------------------------------------


def append_in_threads(root: str) -> None:
    def work(n: int) -> None:
        fd = os.open(f"{root}/{n}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for i in range(50):
            os.write(fd, bytes([i]))
            mark([n, i])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_trace_keeps_the_order_of_threads(disk: Disk, children: Children) -> None:
    trace = disk.trace(children, append_in_threads, str(disk.root))
    for image in trace.images(1, modes=["everything"], names=["posix"]):
        for n, i in image.markers:
            assert image.tree.files[str(n)][i] == i, image


def leaving(path: str) -> None:
    """Ends at once while another thread is writing."""
    writing = threading.Event()

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            for n in range(10**9):
                file.write(record(n % 200))
                if n == 3:
                    writing.set()

    threading.Thread(target=write, daemon=True).start()
    writing.wait()
    os._exit(0)


def test_a_process_that_ends_at_once_has_told_all_it_did(disk: Disk, children: Children) -> None:
    for turn in range(20):
        disk.trace(children, leaving, str(disk.root / f"file{turn}"))  # which verifies the trace


def append_in_turn(root: str, name: str) -> None:
    fd = os.open(f"{root}/shared", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    ack("ready")
    while True:
        hear()
        os.write(fd, name.encode())
        mark(name)
        ack("written")


def test_one_trace_for_several_processes_one_of_them_killed(disk: Disk, children: Children, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    writers = [disk.start(children, append_in_turn, str(disk.root), name, trace=path) for name in "ab"]
    assert [writer.next() for writer in writers] == ["ready", "ready"]
    for turn in (0, 1, 1, 0):
        writers[turn].tell("go")
        assert writers[turn].next() == "written"
    writers[0].kill()
    writers[1].tell("go")
    writers[1].next()
    trace = Trace.load(path)
    assert trace.markers() == ["a", "b", "b", "a", "b"]
    (image,) = trace.images(1, points=[len(trace.ops)], modes=["everything"], names=["ext4"])
    assert image.tree.files == {"shared": b"abbab"}


def fork_and_write(root: str) -> None:
    fd = os.open(f"{root}/f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for i in range(3):
        pid = os.fork()
        if pid == 0:
            os.write(fd, b"child")
            mark(i)
            os._exit(0)
        os.waitpid(pid, 0)


def test_forked_processes_are_traced(disk: Disk, children: Children) -> None:
    trace = disk.trace(children, fork_and_write, str(disk.root))
    assert trace.markers() == [0, 1, 2]
    assert len({op.pid for op in trace.ops}) == 4


def write_by_mmap(root: str) -> None:
    with open(f"{root}/f", "w+b") as file:
        file.truncate(4096)
        mmap.mmap(file.fileno(), 4096)[:1] = b"x"


def test_what_the_model_does_not_know_is_refused(disk: Disk, children: Children) -> None:
    with pytest.raises(ValueError, match="knows nothing of mmap for writing on 'f'"):
        disk.trace(children, write_by_mmap, str(disk.root))


def write_around_the_shim(root: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(["/bin/sh", "-c", "echo unseen > f"], cwd=root, env=env, check=True)


def test_a_trace_that_misses_something_is_refused(disk: Disk, children: Children) -> None:
    with pytest.raises(AssertionError, match=r"something changed \['f'\] around the shim"):
        disk.trace(children, write_around_the_shim, str(disk.root))


def many_ways(root: str) -> None:
    """Every way of changing files that Python offers; the trace must end where the directory ends."""
    os.makedirs(f"{root}/a/b")
    with open(f"{root}/a/text", "w") as text:
        text.write("x" * 10_000)
        text.seek(5)
        text.write("y")
        text.truncate(6)
    with open(f"{root}/a/text", "a") as text:
        text.write("appended")
    os.truncate(f"{root}/a/text", 9)
    fd = os.open(f"{root}/a/b/data", os.O_CREAT | os.O_RDWR, 0o600)
    os.writev(fd, [b"12", b"", b"345"])
    os.pwritev(fd, [b"67", b"8"], 10)
    duplicate = os.dup(fd)
    os.write(duplicate, b"dup")
    os.posix_fallocate(fd, 0, 5000)
    os.ftruncate(fd, 4097)
    os.link(f"{root}/a/b/data", f"{root}/linked")
    os.rename(f"{root}/a/b", f"{root}/moved")
    os.pwrite(fd, b"after the move", 100)
    os.chdir(root)
    Path("relative").write_bytes(b"r")
    Path("relative").write_bytes(b"truncated first")
    os.symlink(root, f"{root}.link")
    Path(f"{root}.link/by link").write_bytes(b"l")
    os.mkdir("gone")
    Path("gone/file").touch()
    shutil.rmtree("gone")
    os.unlink("moved/data")
    os.write(fd, b"unlinked in one place")


def test_every_way_python_changes_files_is_traced(disk: Disk, children: Children) -> None:
    trace = disk.trace(children, many_ways, str(disk.root))  # verifies
    assert {"a/text", "linked", "relative", "by link"} == Tree.read(disk.root).files.keys()
    images = list(trace.images(1))
    assert len({frozenset(image.tree.files) for image in images}) > 10
    again = disk.trace(children, append, str(disk.root), ["write", "sync", "ack"])  # over what was there before
    for image in again.images(1, modes=["nothing"]):
        assert image.tree.files["relative"] == b"truncated first"


# -- children ----------------------------------------------------------------------------------------


def count(limit: int) -> None:
    for i in range(limit):
        ack(i)
    hear()


def test_a_killed_child_leaves_what_it_acknowledged(children: Children) -> None:
    child = children.start(count, 1000)
    assert [child.next(), child.next()] == [0, 1]
    child.kill()
    facts = child.rest()
    assert facts == list(range(len(facts)))
    assert child.wait() == -signal.SIGKILL


def test_a_stopped_child_stands_still_until_resumed(children: Children) -> None:
    child = children.start(count, 1)
    child.next()
    child.stop()
    child.tell("end")
    with pytest.raises(TimeoutError, match="said nothing in time, after 1 facts"):
        child.next(timeout=0.05)
    child.resume()
    assert child.wait() == 0


def raise_at_once() -> None:
    raise RuntimeError("the reason")


def test_a_child_that_ends_says_why(children: Children) -> None:
    child = children.start(raise_at_once)
    with pytest.raises(ChildEnded, match=r"ended with 1 after 0 facts(.|\n)*RuntimeError: the reason"):
        child.next()


def start_grandchild() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    ack(pid)
    signal.pause()


def test_no_process_is_left_behind() -> None:
    children = Children()
    child = children.start(start_grandchild)
    grandchild = child.next()
    watched = os.pidfd_open(grandchild)
    children.close()
    assert select.select([watched], [], [], 10)[0], "the grandchild is gone too"
    os.close(watched)
