"""The embedded log as a directory: what may be there, who may touch it, what happens when it changes under us; and
several processes on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    DamagedData,
    ForkedProcess,
    HeadraceError,
    IndexBehindLog,
    IndexDamaged,
    LogMissing,
    NotALog,
    UnsupportedFormat,
)
from headrace.log.embedded import opening as engines
from headrace.log.embedded.storage import committer
from headrace.log.embedded.storage.index import META, MetaRow
from headrace.log.open import open_log
from tests.stopping import stop_between_commits


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "log"


def numbers(home: Path, topic: str = "t") -> list[int]:
    with open_log(home, create=False) as log:
        return [record.value["n"] for record in log.topic(topic).records()]


# -- what is there ---------------------------------------------------------------------------------


def test_a_log_is_made_where_there_is_none(home: Path) -> None:
    with open_log(home / "deep" / "er") as log:
        assert log.topics() == []


def test_text_will_do_for_a_path(home: Path) -> None:
    with open_log(str(home)) as log:
        assert log.home == home


def test_without_create_nothing_is_made(home: Path) -> None:
    with pytest.raises(LogMissing):
        open_log(home, create=False)
    assert not home.exists()


def test_without_create_an_empty_directory_stays_empty(home: Path) -> None:
    home.mkdir()
    with pytest.raises(LogMissing):
        open_log(home, create=False)
    assert os.listdir(home) == []


def test_a_file_is_not_a_log(home: Path) -> None:
    home.write_text("hello")
    with pytest.raises(NotALog, match="file"):
        open_log(home)
    assert home.read_text() == "hello"


def test_a_directory_of_other_things_is_not_a_log(home: Path) -> None:
    home.mkdir()
    (home / "thesis.tex").write_text("hello")
    with pytest.raises(NotALog):
        open_log(home)
    assert os.listdir(home) == ["thesis.tex"]


def test_a_file_on_the_way_is_said(home: Path) -> None:
    home.write_text("hello")
    with pytest.raises(HeadraceError):
        open_log(home / "below")


def test_a_database_of_somebody_else_is_not_a_log(home: Path) -> None:
    import sqlite3

    home.mkdir()
    (home / "data").mkdir()
    db = sqlite3.connect(home / "log.db")
    db.execute("CREATE TABLE t (x)")
    db.commit()
    db.close()
    with pytest.raises((IndexDamaged, UnsupportedFormat, NotALog)):
        open_log(home)


@pytest.mark.parametrize(("written", "do"), [("99", "upgrade headrace"), ("1", "with the older headrace, copy it")])
def test_another_format_is_refused(home: Path, written: str, do: str) -> None:
    import sqlite3

    open_log(home).close()
    db = sqlite3.connect(home / "log.db", isolation_level=None)
    META.change(db, MetaRow("format", written))
    db.close()
    with pytest.raises(UnsupportedFormat, match=f"format {written}, .*: {do}"):
        open_log(home)


def test_a_reserve_that_was_not_allocated_is(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append({"n": 1})
        (home / "reserve").write_bytes(b"")  # its process was killed after making the file
    with open_log(home) as log:
        log.topic("t").append({"n": 2})
        found = (home / "reserve").stat()
        assert 512 * found.st_blocks >= found.st_size > 0


def test_data_without_its_index_is_never_taken_for_an_empty_log(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append({"n": 1})
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (home / name).unlink(missing_ok=True)
    with pytest.raises(IndexDamaged, match="missing"):
        open_log(home)
    assert not (home / "log.db").exists()


def test_an_index_without_its_data_says_what_is_missing(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append({"n": 1})
    shutil.rmtree(home / "data")
    with pytest.raises(LogMissing, match="data"):
        open_log(home)


def test_a_data_file_that_is_gone_is_damage_with_its_range(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append([{"n": 1}, {"n": 2}])
    for path in (home / "data").iterdir():
        path.unlink()
    with open_log(home) as log:
        with pytest.raises(DamagedData) as error:
            list(log.topic("t").records())
        assert (error.value.start, error.value.stop) == (0, 2)
        assert not log.verify().ok
        log.topic("t").append({"n": 3})
        assert [r.offset for r in log.topic("t").records({0: 2})] == [2]


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform == "darwin", reason="modes mean nothing to root there")
def test_only_the_owner_may_look(home: Path) -> None:
    old = os.umask(0)
    try:
        with open_log(home) as log:
            topic = log.create_topic("t", "n int")
            topic.append({"n": 1})
            list(topic.records(follow=True, timeout="1 millisecond"))
            modes = {path: path.stat().st_mode & 0o777 for path in [home, *home.rglob("*")]}
    finally:
        os.umask(old)
    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o700"}
    assert {oct(mode) for path, mode in modes.items() if path.is_file()} == {"0o600"}


def test_an_older_index_beside_newer_data_is_refused_and_nothing_touched(home: Path, tmp_path: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append({"n": 1})
    shutil.copy(home / "log.db", tmp_path / "older.db")
    with open_log(home) as log:
        log.topic("t").append({"n": 2})
    for name in ("log.db-wal", "log.db-shm"):
        (home / name).unlink(missing_ok=True)
    shutil.copy(home / "log.db", tmp_path / "newer.db")
    shutil.copy(tmp_path / "older.db", home / "log.db")
    with pytest.raises(IndexBehindLog):
        open_log(home)
    shutil.copy(tmp_path / "newer.db", home / "log.db")
    assert numbers(home) == [1, 2]


def test_a_whole_older_copy_is_a_log(home: Path, tmp_path: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append({"n": 1})
    shutil.copytree(home, tmp_path / "copy")
    with open_log(home) as log:
        log.topic("t").append({"n": 2})
        with open_log(tmp_path / "copy") as copy:
            assert copy.log_id == log.log_id
            copy.topic("t").append({"n": 3})
    assert (numbers(home), numbers(tmp_path / "copy")) == ([1, 2], [1, 3])


# -- what changes under us -------------------------------------------------------------------------


def test_a_directory_removed_while_open_takes_no_records(home: Path) -> None:
    log = open_log(home)
    topic = log.create_topic("t", "n int")
    topic.append({"n": 1})
    shutil.rmtree(home)
    for _ in range(2):
        with pytest.raises(LogMissing):
            topic.append({"n": 2})
    assert not home.exists()
    log.close()
    assert not home.exists()


def test_an_index_replaced_while_open_takes_no_records(home: Path, tmp_path: Path) -> None:
    with open_log(home) as log:
        topic = log.create_topic("t", "n int")
        shutil.copy(home / "log.db", tmp_path / "other.db")
        os.replace(tmp_path / "other.db", home / "log.db")
        with pytest.raises(LogMissing):
            topic.append({"n": 1})


def test_a_directory_removed_and_made_again_is_another_log(home: Path) -> None:
    """Its inode number may be the old one's: the handle still open must not be taken for it."""
    old = open_log(home)
    old.create_topic("t", "n int").append({"n": 1})
    shutil.rmtree(home)
    home.mkdir()
    now = os.stat(home)
    engines._engines[now.st_dev, now.st_ino] = old._engine  # as file systems do now and then
    with open_log(home) as new:
        assert new.log_id != old.log_id
        new.create_topic("t", "n int").append({"n": 2})
        with pytest.raises(LogMissing):
            old.topic("t").append({"n": 3})
        old.close()
        new.topic("t").append({"n": 4})
        with open_log(home) as again:
            assert again._engine is new._engine
    assert numbers(home) == [2, 4]


def test_two_paths_to_one_directory_are_one_log(home: Path, tmp_path: Path) -> None:
    before = set(engines._engines)  # logs that other tests of this process have open
    with open_log(home) as log:
        (tmp_path / "alias").symlink_to(home)
        with open_log(tmp_path / "alias") as other:
            assert other._engine is log._engine
            log.create_topic("t", "n int").append({"n": 1})
            assert [record.value["n"] for record in other.topic("t").records()] == [1]
    assert set(engines._engines) <= before


def test_a_poll_that_meets_damage_loses_nothing(home: Path) -> None:
    """Partition 1 is damaged: what partition 0 has is handed out, once; the damage is told; nothing is skipped."""
    with open_log(home) as log:
        topic = log.create_topic("t", "n int", partitions=2)
        topic.append([{"n": 0}, {"n": 1}])  # one record each
        with topic.group("g").join() as member:
            with _damaged(home, log, partition=1):
                found, told = [], 0
                for _ in range(3):
                    try:
                        found += member.poll(timeout="0 seconds")
                    except DamagedData:
                        told += 1
                member.commit()
                assert [record.partition for record in found] == [0]
                assert told == 2
                assert topic.group("g").committed().get(1, 0) == 0
            found += member.poll(timeout="0 seconds")
            assert sorted(record.value["n"] for record in found) == [0, 1]


@contextmanager
def _damaged(home: Path, log: Any, partition: int) -> Iterator[None]:
    """The last byte of that partition's first frame is another one, as long as the block lasts."""
    from headrace.log.embedded.storage.index import BATCHES

    with log._engine.index.reading() as db:
        (row,) = BATCHES.select(db, "WHERE partition = ? AND base = 0", partition)
    path = log._engine.files.path(row.file)
    at = row.position + row.length - 1
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
        try:
            yield
        finally:
            file.seek(at)
            file.write(byte)
    assert path.is_relative_to(home)


# -- several processes -----------------------------------------------------------------------------


@contextmanager
def child(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said "ready"."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


FOLLOW = """
import sys, headrace
log = headrace.open_log(sys.argv[1])
records = log.topic("t").records(follow=True)
next(records)
print("ready", flush=True)
for record in records:
    print(record.value["n"], flush=True)
"""


def test_a_follower_in_another_process_is_woken(home: Path) -> None:
    with open_log(home) as log:
        topic = log.create_topic("t", "n int")
        topic.append({"n": 0})
        with child(FOLLOW, home) as process:
            assert process.stdout is not None
            waits = []
            for n in range(1, 6):
                topic.append({"n": n})
                began = time.monotonic()
                assert process.stdout.readline() == f"{n}\n"
                waits.append(time.monotonic() - began)
    assert max(waits) < 1  # whoever only looked now and then would take 5 s


APPEND = """
import sys, headrace
log = headrace.open_log(sys.argv[1])
topic = log.topic("t")
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[2])):
    topic.append({"n": n, "who": sys.argv[3]})
log.close()
print("done", flush=True)
"""


def test_several_processes_append_to_one_topic(home: Path) -> None:
    with open_log(home) as log:
        topic = log.create_topic("t", "n int, who string", durability="os")
        with child(APPEND, home, 100, "a") as a, child(APPEND, home, 100, "b") as b:
            for process in (a, b):
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for n in range(100):
                topic.append({"n": n, "who": "c"})
            for process in (a, b):
                assert process.stdout is not None
                assert process.stdout.readline() == "done\n"
        found = list(topic.records())
        assert [record.offset for record in found] == list(range(300))  # 3 * 100, dense
        for who in "abc":
            assert [r.value["n"] for r in found if r.value["who"] == who] == list(range(100))
        assert log.verify().problems == []


ALTER = """
import sys, headrace
log = headrace.open_log(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
log.topic("t").alter(schema="n int, s string", partitions=2)
print("done", flush=True)
"""


def test_an_alteration_by_another_process_is_noticed(home: Path) -> None:
    with open_log(home) as log, child(ALTER, home) as process:
        topic = log.create_topic("t", "n int")
        topic.append({"n": 1})
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        topic.append({"n": 2, "s": "x"})
        assert sorted(topic.offsets()) == [0, 1]
        assert sorted(r.value["s"] or "" for r in topic.records()) == ["", "x"]


TAKE_OVER = """
import sys, headrace
log = headrace.open_log(sys.argv[1])
member = log.topic("t").group("g").join(lease="200 milliseconds")
assert len(member.poll(timeout="10 seconds")) == 3
print("ready", flush=True)
sys.stdin.readline()
try:
    member.commit()
except headrace.MemberFenced:
    print("fenced", flush=True)
else:
    print("committed", flush=True)
"""


def test_a_stopped_process_loses_its_partitions_and_cannot_commit(home: Path) -> None:
    with open_log(home) as log:
        topic = log.create_topic("t", "n int")
        topic.append([{"n": n} for n in range(3)])
        with child(TAKE_OVER, home) as process:
            stop_between_commits(process.pid)
            with topic.group("g").join(lease="1 second") as heir:
                assert [r.value["n"] for r in heir.poll(timeout="20 seconds")] == [0, 1, 2]
                heir.commit()
                os.kill(process.pid, signal.SIGCONT)
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                assert process.stdout.readline() == "fenced\n"
        assert topic.group("g").committed() == {0: 3}


HOLD_UP = """
import signal, sys, threading, headrace
log = headrace.open_log(sys.argv[1])
print("ready", flush=True)
stop = lambda tx: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread: another may take its time
log._engine.committer.run(stop, synced=False)
"""


def test_one_that_is_held_up_by_a_stopped_process_is_told_which(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when Ctrl-Z comes in the middle of another's commit: it has to be waited for, but not in silence."""
    monkeypatch.setattr(committer, "PATIENCE_SECONDS", 0.05)
    with open_log(home) as log:
        topic = log.create_topic("t", "n int")
        with child(HOLD_UP, home) as process:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            with ThreadPoolExecutor() as pool:
                appending = pool.submit(topic.append, {"n": 1})
                deadline = time.monotonic() + 20
                while f"process {process.pid} to finish its commit; is it stopped?" not in caplog.text:
                    assert time.monotonic() < deadline and not appending.done()
                    time.sleep(0.01)
                os.kill(process.pid, signal.SIGCONT)
                assert appending.result(20).ranges == {0: range(1)}


def test_what_is_done_just_when_patience_ends_is_done(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(committer.Promise):
        def done(self) -> bool:
            self.set_result("done")
            return super().done()

    monkeypatch.setattr(committer, "PATIENCE_SECONDS", 0.0)
    with open_log(home) as log:
        assert Late(log._engine.committer._turnstile).result() == "done"


FORK = """
import os, sys, headrace
log = headrace.open_log(sys.argv[1])
topic = log.create_topic("t", "n int")
topic.append({"n": 1})
member, producer = topic.group("g").join(), topic.producer("p")
pid = os.fork()
if pid == 0:
    refused = 0
    uses = [lambda: topic.append({"n": 2}), lambda: list(topic.records()), log.topics, topic.offsets, member.poll,
            member.commit, lambda: producer.send({"n": 2}), producer.flush, log.verify, lambda: topic.group("h").join(),
            lambda: log.transaction().__enter__(), lambda: headrace.open_log(sys.argv[1])]  # its own would lose data
    for number, use in enumerate(uses):
        try:
            use()
        except headrace.ForkedProcess:
            refused += 1
        else:
            print("not refused:", number)
    member.close()
    producer.close()
    log.close()
    print("refused", refused, "of", len(uses), flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0
topic.append({"n": 3})
producer.send({"n": 4}).result(10)
print([r.value["n"] for r in topic.records()], [r.value["n"] for r in member.poll()])
member.commit()
print(topic.group("g").committed(), log.verify().problems)
log.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_refused_and_the_parent_unharmed(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(home)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "refused 12 of 12",
        "[1, 3, 4] [1, 3, 4]",
        "{0: 3} []",
    ]


def test_the_error_of_a_forked_child_says_what_to_do() -> None:
    assert "open it after the fork only" in str(ForkedProcess(what="the log"))


LOOK = """
import sys, headrace
with headrace.open_log(sys.argv[1], create=False) as log:
    found = [(topic.name, topic.describe().records) for topic in log.topics()]
names = ("pyarrow", "numpy", "pandas", "polars", "rich", "pyspark", "watchfiles")
heavy = [name for name in names if name in sys.modules]
print(found, heavy)
"""


def test_looking_at_topics_imports_nothing_heavy(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("t", "n int").append([{"n": 1}, {"n": 2}])
    done = subprocess.run([sys.executable, "-c", LOOK, str(home)], capture_output=True, text=True, check=True)
    assert done.stdout == "[('t', 2)] []\n"


def test_a_relative_path_means_the_same_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with open_log("log") as log:
        topic = log.create_topic("t", "n int")
        monkeypatch.chdir(tmp_path / "there")
        topic.append({"n": 1})
        list(topic.records(follow=True, timeout="1 millisecond"))
    assert os.listdir(tmp_path / "there") == []
    assert numbers(tmp_path / "here" / "log") == [1]
