"""A disk that fails at the n-th call, for every n of a small workload. Each append succeeds or raises a typed error,
and what succeeded is there afterwards. A full disk is passing: the same process appends again when there is space. A
failed sync is final for the process: it writes nothing more, reads on, and what was acknowledged is there after it."""

from __future__ import annotations

import errno
import itertools
import resource
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DamagedData, HeadraceError, TooManyFiles
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import index as index_module
from headrace.log.open import open_log
from tests.faults.checking import SCHEMA, check_acked, check_sound, json_ranges, opened
from tests.faults.children import Children, ack
from tests.faults.disk import Disk, Fail, Shim, fail, fired

CASES: list[tuple[str, str, Any]] = [
    ("write", "data/*.frames", errno.ENOSPC),
    ("write", "data/*.frames", errno.EIO),
    ("write", "data/*.frames", errno.EROFS),
    ("write", "data/*.frames", "short"),
    ("sync", "data/*.frames", errno.EIO),
    ("sync", "data/*.frames", errno.ENOSPC),
    ("sync", "data", errno.EIO),
    ("open", "data/*.frames", errno.EMFILE),
    ("open", "data/*.frames", errno.ENOSPC),
    ("open", "data", errno.EMFILE),
    ("write", "log.db-wal", errno.ENOSPC),
    ("write", "log.db-wal", errno.EIO),
    ("write", "log.db-wal", "short"),
    ("sync", "log.db-wal", errno.EIO),
    ("open", "log.db", errno.EMFILE),
    ("open", "log.db-wal", errno.EMFILE),
    ("write", "log.db", errno.ENOSPC),
    ("write", "log.db", errno.EIO),
    ("sync", "log.db", errno.EIO),
    ("truncate", "log.db-wal", errno.EIO),
    ("truncate", "log.db", errno.ENOSPC),
    ("write", "lock", errno.ENOSPC),
    ("write", "lock", errno.EIO),
    ("open", "wake/*", errno.ENOSPC),
    ("open", "wake/*", errno.EMFILE),
]


def prepare(home: Path) -> None:
    with open_log(home) as log:
        log.create_topic("safe", SCHEMA, partitions=2)
        log.create_topic("quick", SCHEMA, durability="os")
        log.create_topic("stamped", SCHEMA)
        log.topic("safe").append([row("before", n) for n in range(10)])


def row(who: str, n: int) -> dict[str, Any]:
    return {"who": who, "n": n, "pad": "y" * (13 * n % 50)}


# -- the child ---------------------------------------------------------------------------------------


def walk(home: str, kind: Any, glob: str, error: Any, stride: int) -> None:
    """The workload once for every n, each n in the log it finds, until the rule no longer fires."""
    index_module.CHECKPOINT_BYTES = 40_000
    for nth in itertools.count(1, stride):
        rule = Fail(kind, glob, error, nth=nth)
        if kind == "open" and glob.startswith("log.db"):  # opened once only
            fail(Fail(kind, glob, error, nth=nth, times=2))  # SQLite tries again, for reading only
            outcome = attempt(lambda: open_log(home, create=False).close())
            ack(["round", nth, fired(), outcome])
            fail()
        log = open_log(home, create=False)
        log._engine.files.file_bytes_max = 3_000
        fail(rule)
        outcomes = [step(log, nth, number) for number in range(STEPS)]
        in_time = nth % 2 == 1
        closing = attempt(log.close) if in_time else "ok"  # while the rule stands, or after it
        count = fired()
        fail()
        ack(["round", nth, count, outcomes])
        assert count or (closing == "ok" and set(outcomes) == {"ok"}), (closing, outcomes)
        if not in_time:
            after = step(log, nth, STEPS)
            if log._engine.committer.failed is None:
                assert after == "ok", f"n={nth}: {after} though the fault is over"
            else:
                assert after == "SyncFailed", f"n={nth}: {after} after a failed sync"
                assert sum(1 for _ in log.topic("safe").records()) >= 10, "reading goes on"
            assert attempt(log.close) == "ok"
        if not count:
            return
        assert nth < 400, "the rule fires for ever"


STEPS = 7


def step(log: EmbeddedLog, nth: int, number: int) -> str:
    who, n = f"n{nth}", number

    def body() -> None:
        if number % 3 == 0:
            done = log.topic("safe").append([row(who, n), row(who, n)])
            ack(["safe", [row(who, n)] * 2, json_ranges(done.ranges)])
        elif number % 3 == 1:
            done = log.topic("quick").append(row(who, n))
            ack(["quick", [row(who, n)], json_ranges(done.ranges)])
        else:
            with log.transaction() as tx:
                tx.append("safe", row(who, n))
                tx.append("quick", row(who, n))
            for topic, part in zip(("safe", "quick"), tx.results, strict=True):
                ack([topic, [row(who, n)], json_ranges(part.ranges)])

    ack(["try", who, n])
    outcome = attempt(body)
    if outcome not in ("ok", "SyncFailed"):
        ack(["refused", who, n, outcome])
    return outcome


def attempt(body: Any) -> str:
    """ "ok" or the name of the typed error; any other exception ends the child, and the test."""
    try:
        body()
    except HeadraceError as error:
        return type(error).__name__
    return "ok"


@pytest.mark.parametrize(
    ("kind", "glob", "error"), CASES, ids=[f"{k}-{g}-{errno.errorcode.get(e, e)}" for k, g, e in CASES]
)
def test_every_nth_call(kind: str, glob: str, error: Any, shim: Shim, tmp_path: Path, children: Children) -> None:
    home = tmp_path / "log"
    prepare(home)
    disk = Disk(shim, home)
    stride = 7 if kind == "write" and glob == "log.db-wal" else 1  # dozens of pages: every one in the soak
    walked(disk, children, home, kind, glob, error, stride)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, "short"])
def test_every_page_of_the_index(error: Any, shim: Shim, tmp_path: Path, children: Children) -> None:
    home = tmp_path / "log"
    prepare(home)
    walked(Disk(shim, home), children, home, "write", "log.db-wal", error, 1)


def walked(disk: Disk, children: Children, home: Path, kind: str, glob: str, error: Any, stride: int) -> None:
    child = disk.start(children, walk, str(home), kind, glob, error, stride)
    facts = child.finish(100)
    assert sum(fact[2] for fact in facts if fact[0] == "round") > 0, "the rule never fired"
    with opened(home) as log:
        state, found = check_sound(log)
    assert not found.lost
    refused = {(f[1], f[2]) for f in facts if f[0] == "refused"}
    for fact in facts:
        if fact[0] in ("safe", "quick"):
            check_acked(state, *fact)
    there: dict[tuple[str, int], dict[str, int]] = {}
    for topic in ("safe", "quick"):
        for value in state.values(topic):
            counts = there.setdefault((value["who"], value["n"]), {})
            counts[topic] = counts.get(topic, 0) + 1
    for (who, n), counts in there.items():
        whole = [{"safe": 2}, {"quick": 1}, {"safe": 1, "quick": 1}][n % 3]
        assert who == "before" or counts == whole, f"{who} {n}: {counts}"
        assert (who, n) not in refused, f"{who} {n} was refused as not written, and is there"


# -- an idempotent producer, whose batches fail and are sent again ----------------------------------------


def produce_on_a_full_disk(home: str) -> None:
    index_module.CHECKPOINT_BYTES = 40_000
    log = open_log(home, create=False)
    log._engine.files.file_bytes_max = 3_000
    producer = log.topic("stamped").producer("p", linger="0 seconds")
    rules = itertools.cycle([("write", "data/*"), ("write", "log.db-wal"), ("write", "log.db"), ("write", "lock")])
    n = 0
    while n < 60:
        kind, glob = next(rules)
        fail(Fail(kind, glob, errno.ENOSPC, nth=1 + n % 3))  # type: ignore[arg-type]
        try:
            producer.send(row("p", n)).result(10)
        except HeadraceError:
            continue  # refused: send it again
        ack(n)
        n += 1
    fail()
    producer.close()
    log.close()


def test_a_producer_on_a_full_disk_loses_and_doubles_nothing(shim: Shim, tmp_path: Path, children: Children) -> None:
    home = tmp_path / "log"
    prepare(home)
    facts = Disk(shim, home).start(children, produce_on_a_full_disk, str(home)).finish(60)
    with opened(home) as log:
        state, _ = check_sound(log)
    assert facts == list(range(60)) == state.numbers("stamped", "p")


# -- reading -----------------------------------------------------------------------------------------


def read_through_errors(home: str) -> None:
    log = open_log(home, create=False)
    topic = log.topic("safe")
    for nth in range(1, 6):
        fail(Fail("read", "data/*", errno.EIO, nth=nth, times=3))
        seen: list[int] = []
        try:
            seen += [record.offset for record in topic.records(partition=0)]
        except DamagedData as error:
            ack(["damaged", error.topic, error.partition, error.start, error.stop, len(seen)])
        fail()
    fail(Fail("read", "data/*", errno.EIO, times=0))
    found = log.verify()
    ack(["problems", len(found.problems), all(p.start >= 0 and p.file for p in found.problems)])
    fail(Fail("read", "data/*", "short", times=5))
    ack(["short", len(list(topic.records()))])
    fail()
    ack(["after", len(list(topic.records())), log.verify().ok])
    log.close()


def test_a_reader_that_meets_an_error_says_which_offsets(shim: Shim, tmp_path: Path, children: Children) -> None:
    home = tmp_path / "log"
    prepare(home)
    with open_log(home) as log:
        for n in range(20):
            log.topic("safe").append({"who": "r", "n": n, "pad": "z" * 300})
    facts = Disk(shim, home).start(children, read_through_errors, str(home)).finish()
    damaged = [fact for fact in facts if fact[0] == "damaged"]
    assert damaged
    for _, topic, partition, start, stop, _ in damaged:
        assert (topic, partition) == ("safe", 0) and 0 <= start < stop <= 30
    assert facts[-3][1] > 0 and facts[-3][2]
    assert facts[-2:] == [["short", 30], ["after", 30, True]]


def read_one_bad_file(home: str, bad: str) -> None:
    """One data file of several cannot be read."""
    log = open_log(home, create=False)
    fail(Fail("read", f"data/{bad}", errno.EIO, times=0))
    topic = log.topic("safe")
    for partition in (0, 1):
        offset, end = 0, topic.offsets()[partition].next
        got, lost = 0, 0
        while offset < end:
            try:
                for record in topic.records({partition: offset}, partition=partition):
                    got += 1
                    offset = record.offset + 1
            except DamagedData as error:
                exact = error.start <= offset < error.stop and error.partition == partition
                ack(["exact", exact])
                lost += error.stop - offset
                offset = error.stop
        ack([partition, got, lost, end])
    log.topic("safe").append(row("still", 1))
    ack("appended")


def test_what_lies_around_unreadable_data_is_readable(shim: Shim, tmp_path: Path, children: Children) -> None:
    home = tmp_path / "log"
    prepare(home)
    for turn in range(3):  # a file each
        with open_log(home) as log:
            log.topic("safe").append([row(f"t{turn}", n) for n in range(100)])
    sizes = {path.name: path.stat().st_size for path in (home / "data").iterdir()}
    bad = sorted(sizes, key=lambda name: sizes[name])[1]
    *facts, last = Disk(shim, home).start(children, read_one_bad_file, str(home), bad).finish()
    assert last == "appended"
    assert all(fact[1] for fact in facts if fact[0] == "exact")
    for _, got, lost, end in (fact for fact in facts if fact[0] != "exact"):
        assert got + lost == end and 0 < lost <= 60 < got


# -- descriptors -------------------------------------------------------------------------------------


def run_out_of_descriptors(home: str) -> None:
    log = open_log(home, create=False)
    log.topic("safe").append(row("fd", 0))
    list(log.topic("quick").records())  # what is imported when it is first used
    log.verify()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, soft[1]))
    outcomes = set()
    for body in (
        lambda: list(log.topic("safe").records()),
        lambda: log.topic("safe").append(row("fd", 1)),
        lambda: open_log(f"{home}-other"),
        lambda: log.verify(),
    ):
        try:
            body()
            outcomes.add("ok")
        except HeadraceError as error:
            outcomes.add(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_NOFILE, soft)
    ack(sorted(outcomes))
    log.topic("safe").append(row("fd", 2))
    ack([record.value["n"] for record in log.topic("safe").records() if record.value["who"] == "fd"][-1])
    ack(log.verify().ok)
    log.close()


def test_without_descriptors_everything_is_typed_and_nothing_is_called_damaged(
    tmp_path: Path, children: Children
) -> None:
    home = tmp_path / "log"
    prepare(home)
    outcomes, last, ok = children.start(run_out_of_descriptors, str(home)).finish()
    assert TooManyFiles.__name__ in outcomes and DamagedData.__name__ not in outcomes
    assert (last, ok) == (2, True)
