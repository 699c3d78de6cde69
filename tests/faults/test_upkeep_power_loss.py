"""Power loss at any moment of sealing, compacting, erasing and reclaiming, beside appends of both durabilities from two
processes: what was acknowledged on an `fsync` topic is there unless upkeep may take it; nothing live lies in a file
that went or in bytes that were wiped; transactions are whole or absent, though one part was sealed and the other not;
what was reported as erased is in no file; and the work, done again, is completed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import index as index_module
from headrace.log.embedded.storage import recovery
from headrace.log.open import open_log
from tests.faults import keeping
from tests.faults.checking import json_ranges, opened, together
from tests.faults.children import Children, ack, hear
from tests.faults.disk import Disk, Image, Shim, Trace, Tree, mark
from tests.faults.keeping import DURABILITIES, Kept, clean

PAIRS = (("left", "right"), ("left_os", "right_os"), ("left", "right_os"))
TURNS = 5


# -- the traced programs -----------------------------------------------------------------------------


def first(home: str) -> None:
    """Appends, then works while it appends on."""
    log = begun(home)
    for turn in range(2):
        append(log, f"first{turn}")
        together(lambda: keeping.work(log, told), lambda t=turn: append(log, f"beside{t}"))  # type: ignore[misc]
    append(log, "last")
    ack("end")
    hear()
    os._exit(0)  # as if killed: nothing is closed


def second(home: str) -> None:
    log = begun(home)
    for turn in range(4):
        append(log, f"second{turn}")
    ack("end")
    hear()
    os._exit(0)


def begun(home: str) -> EmbeddedLog:
    index_module.CHECKPOINT_BYTES = 60_000
    log = open_log(home, create=False)
    log._engine.files.file_bytes_max = keeping.FILE_BYTES
    ack("ready")
    hear()
    return log


def told(what: str, step: Any) -> None:
    result = step()
    mark([what, clean(result)])


def append(log: EmbeddedLog, who: str) -> None:
    """To what is sealed, compacted and bounded; and transactions, of both durabilities and mixed."""
    for n in range(TURNS):
        for name in ("many", "many_os", "latest", "latest_os", "short_os"):
            rows = [keeping.row(name, who, n), keeping.row(name, f"{who}+", n)]
            mark(["acked", name, rows[0]["who"], n, json_ranges(log.topic(name).append(rows).ranges)])
        for pair in PAIRS:
            with log.transaction() as tx:
                for name in pair:
                    tx.append(name, [keeping.row("".join(pair), who, n)] * 2)


@pytest.fixture(scope="module")
def traced(shim: Shim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trace, Kept]]:
    folder = tmp_path_factory.mktemp("upkeep")
    keeping.fill(folder / "log")
    with opened(folder / "log") as log:
        for name in sorted({name for pair in PAIRS for name in pair}):
            log.create_topic(name, keeping.SCHEMA, durability="os" if name.endswith("_os") else "fsync", partitions=2)
        before = Kept.of(log)
    children = Children()
    try:
        yield trace_of(Disk(shim, folder / "log"), folder / "trace", children), before
    finally:
        children.close()


def trace_of(disk: Disk, path: Path, children: Children) -> Trace:
    start = Tree.read(disk.root)
    both = [disk.start(children, program, str(disk.root), trace=path) for program in (first, second)]
    for child in both:
        assert child.next() == "ready"
    for child in both:
        child.tell("go")
    for child in both:
        assert child.next(100) == "end"
    for child in both:
        child.tell("bye")
        child.finish()
    trace = Trace.load(path, start)
    trace.verify(disk.root)
    return trace


# -- what must be true -------------------------------------------------------------------------------


def check_image(image: Image, before: Kept, copy: Path, *, rebooted: bool) -> int:
    """Returns how many records were lost and reported."""
    done = [fact[0] for fact in image.markers if fact[0] != "acked" and fact[1]]
    erased = tuple(name for name in done if name != "maintain")
    if len(set(erased)) == len(DURABILITIES):
        held = [name for name, content in image.tree.files.items() if keeping.SECRET.encode() in content]
        assert not held, f"said to be erased, and in {held}"
    with opened(image.write(copy), boot="after the power loss" if rebooted else None) as log:
        found = log.verify()
        assert found.ok, found.problems
        assert rebooted or not found.lost, "killed processes lose nothing"
        assert all(problem.topic.endswith("_os") for problem in found.lost), found.lost
        now = before.check_half(log, erased=erased, lost=found.lost)
        gone = {(p.topic, p.partition, offset) for p in found.lost for offset in range(p.start, p.stop)}
        check_appended(image, now, gone, rebooted=rebooted)
        check_transactions(now)
        if image.point % 3 == 0:
            keeping.work(log, completed)
            assert len((again := log.verify()).lost) == len(found.lost) and again.ok, again
            before.check_done(log, lost=found.lost)
            check_transactions(Kept.of(log))
    return len(gone)


def check_appended(image: Image, now: Kept, gone: set[keeping.Place], *, rebooted: bool) -> None:
    newest = {(r.topic, r.value["who"]): place for place, r in sorted(now.records.items())}
    for fact in image.markers:
        if fact[0] != "acked":
            continue
        _, name, who, n, ranges = fact
        for key in (who, f"{who}+"):
            places = [(name, int(p), offset) for p, (start, stop) in ranges.items() for offset in range(start, stop)]
            there = [now.records[p] for p in places if p in now.records and now.records[p].value["who"] == key]
            for record in there:
                assert record.value == {**keeping.row(name, key, n), "at": None}, "another record"
            if there or name.startswith("short") or (rebooted and name.endswith("_os")):
                continue
            assert name.startswith("latest"), f"{name}: {key} {n} is gone"
            assert now.records[newest[name, key]].value["n"] > n, f"{name}: the newest of {key} is gone"
    assert not gone & now.records.keys()


def check_transactions(now: Kept) -> None:
    """Whole or absent."""
    counts: dict[str, dict[tuple[str, int], int]] = {}
    for record in now.records.values():
        if record.topic.startswith(("left", "right")):
            of_pair = counts.setdefault(record.value["pad"].split(":")[1], {})
            place = (record.topic, record.value["who"], record.value["n"])
            of_pair[place] = of_pair.get(place, 0) + 1  # type: ignore[index,arg-type]
    for pair in PAIRS:
        found = counts.get("".join(pair), {})
        for (topic, who, n), count in found.items():  # type: ignore[misc]
            other = pair[1 - pair.index(topic)]
            assert count == found.get((other, who, n)) == 2, f"half a transaction: {pair} {who} {n}"  # type: ignore[call-overload]


def completed(what: str, step: Any) -> None:
    result = step()
    assert clean(result), (what, result)


def walk(
    traced: tuple[Trace, Kept], memory: Path, seed: int, monkeypatch: pytest.MonkeyPatch, **which: Any
) -> tuple[int, int]:
    monkeypatch.setattr(recovery, "LEFTOVER_SECONDS", 0)
    trace, before = traced
    images = lost = 0
    rebooted = which.get("modes") != ["everything"]
    for image in trace.images(seed, **which):
        try:
            lost += check_image(image, before, memory / "copy", rebooted=rebooted)
        except BaseException as error:
            error.add_note(f"the disk as in trace.{image}, another boot: {rebooted}")
            raise
        images += 1
        shutil.rmtree(memory / "copy")
    return images, lost


@pytest.mark.timeout(500)
def test_after_a_power_loss(
    traced: tuple[Trace, Kept], memory: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for points in (
        6,
        12,
        24,
        48,
    ):  # where a trace has unsynced bytes depends on the machine's pace: look until one shows
        images, lost = walk(traced, memory, seed, monkeypatch, points=points)
        assert images > 20
        if lost:
            return
    raise AssertionError("no image lost anything: the test sees nothing")


def test_around_what_upkeep_takes_away(
    traced: tuple[Trace, Kept], memory: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after files went and after bytes were wiped, with nothing kept that was not synced."""
    trace, _ = traced
    points = takings(trace)
    assert len(points) > 6
    walk(traced, memory, seed, monkeypatch, points=points, modes=["nothing", "reordered"], names=["posix"])


def takings(trace: Trace) -> list[int]:
    """After some unlinks, and after some of the syncs that made zeros durable."""
    kinds = [op.kind.name for op in trace.ops]
    unlinks = [i + 1 for i, op in enumerate(trace.ops) if op.kind.name == "UNLINK" and op.path.startswith("data/")]
    zeros = [
        i + 1 + kinds[i:].index("SYNC_END")
        for i, op in enumerate(trace.ops)
        if op.kind.name == "WRITE" and len(op.data) > 64 and not op.data.strip(b"\0")
    ]
    return sorted({*unlinks[::16], *zeros[::16]})


def test_after_killing_every_process(
    traced: tuple[Trace, Kept], memory: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, lost = walk(traced, memory, seed, monkeypatch, points=12, modes=["everything"], names=["posix"])
    assert (images > 8, lost) == (True, 0)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_power_losses(
    traced: tuple[Trace, Kept], memory: Path, seed: int, monkeypatch: pytest.MonkeyPatch, soak_seconds: float
) -> None:
    until = time.monotonic() + soak_seconds
    for turn in range(10**9):
        if time.monotonic() > until:
            return
        walk(traced, memory, seed + turn, monkeypatch, points=20)
