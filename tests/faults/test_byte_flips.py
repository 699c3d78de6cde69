"""One flipped bit anywhere in the files of a small log: whoever opens it and reads everything gets the same data, or a
typed error, or a problem from `verify` that says where. Never other data, a bare exception, a hang, a huge allocation.

A child does many flips, each in a fresh copy; it has little memory and an alarm that kills it."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage.index import PRODUCERS, SEQUENCES, VERSIONS
from headrace.log.embedded.write.append import Stamp
from headrace.log.open import open_log
from tests.faults.children import Children, ack, hear

MEMORY_BYTES = 1 << 30
SECONDS_PER_FLIP = 20
KEYS = ("a", "b")


# -- a small log of everything -----------------------------------------------------------------------


def fill(log: EmbeddedLog) -> None:
    now = datetime.now(UTC)
    plain = log.create_topic("plain", "n int, s string, at timestamp", event_time="at", partitions=2)
    plain.append([{"n": n, "s": "x" * n, "at": now - timedelta(hours=n)} for n in range(6)])
    plain.append({"n": 9, "s": "far ahead", "at": now + timedelta(days=3)})  # becomes a dead letter
    keyed = log.create_topic("keyed", "k string, v double", key="k", versioned=True, durability="os")
    keyed.append([{"k": "a", "v": 1.5}, {"k": "b", "v": None}])
    keyed.append({"k": "a", "v": 2.5}, expect={"a": 1})
    with keyed.producer("p") as producer:
        epoch = producer._epoch
    keyed.append([{"k": "b", "v": 3.5}], stamp=Stamp("p", epoch, 0))
    keyed.alter(schema="k string, v double, later int")
    member = plain.group("g").join(lease="1 minute")
    member.poll(max_records=4)
    member.commit()
    member.poll(max_records=1)
    member.commit()


def fill_and_wait(home: str) -> None:
    """Not closed: its commits are still in the write-ahead log when it is killed."""
    log = open_log(home)
    fill(log)
    ack("filled")
    hear()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("flips") / "closed"
    with open_log(home) as log:
        fill(log)
    with open_log(home) as log:  # a second data file
        log.topic("plain").append({"n": 10, "s": "second file", "at": datetime.now(UTC)})
    return home


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("flips") / "killed"
    children = Children()
    child = children.start(fill_and_wait, str(home))
    child.next()
    child.kill()
    children.close()
    assert (home / "log.db-wal").stat().st_size > 50_000
    return home


def everything(log: EmbeddedLog) -> str:
    """All that can be read."""
    out: list[Any] = [log.log_id]
    for topic in log.topics():
        out += [topic.describe(), topic.offsets(), str(topic.schema)]
        out += [(r.partition, r.offset, r.arrived_at, r.progress, r.key, r.value) for r in topic.records()]
        out += [(group.name, group.committed()) for group in topic.groups()]
        if topic.settings.versioned:
            out += [topic.version(key) for key in KEYS]
    out += [dataclasses.replace(letter, _owner=None) for letter in log.dead_letters()]  # type: ignore[arg-type]
    with log._engine.index.reading() as db:
        out += [table.select(db) for table in (PRODUCERS, SEQUENCES, VERSIONS)]
    return repr(out)


# -- the child that flips ----------------------------------------------------------------------------


def flip_many(template: str, copy: str, flips: list[list[Any]]) -> None:
    with open_log(shutil.copytree(template, copy, dirs_exist_ok=True)) as log:  # imports everything, too
        same = everything(log)
        assert log.verify().ok
    flip_each(template, copy, flips, lambda: look(copy, same))


def flip_each(template: str, copy: str, flips: list[list[Any]], looked: Callable[[], str]) -> None:
    ack("ready")
    hear()
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    content = {p.relative_to(template): p.read_bytes() for p in Path(template).rglob("*") if p.is_file()}
    for name, position, bit in flips:
        signal.alarm(SECONDS_PER_FLIP)
        restore(Path(copy), content)
        with open(f"{copy}/{name}", "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << bit]))
        outcome = looked()
        if outcome.startswith("WRONG"):
            ack([name, position, bit, outcome[:3000]])
        else:
            ack([name, position, bit, outcome])
    signal.alarm(0)


def restore(copy: Path, content: dict[Path, bytes]) -> None:
    for path in copy.rglob("*"):
        if path.is_file() and path.relative_to(copy) not in content:
            path.unlink()
    for name, data in content.items():
        (copy / name).write_bytes(data)


def look(home: str, same: str) -> str:
    """ "same", "told: …" or "WRONG: …"."""
    threads = threading.active_count()
    failed: list[Any] = []
    threading.excepthook = lambda args: failed.append(args.exc_value)
    told = ""
    found = None
    try:
        log = open_log(home, create=False)
    except HeadraceError as error:
        return f"told: {type(error).__name__}"
    except BaseException as error:
        return f"WRONG: open raised {error!r}"
    try:
        try:
            found = everything(log)
        except HeadraceError as error:
            told = type(error).__name__
        verified = log.verify()
        if not verified.ok:
            told = told or f"verify: {verified.problems[0].what[:40]}"
        if verified.lost:
            told = told or "lost"
    except BaseException as error:
        return f"WRONG: reading raised {error!r}"
    finally:
        try:
            log.close()
        except HeadraceError as error:
            told = told or type(error).__name__
        except BaseException as error:
            return f"WRONG: closing raised {error!r}"
    if failed:
        return f"WRONG: a thread raised {failed[0]!r}"
    if threading.active_count() > threads + 2:
        return "WRONG: threads are left behind"
    if told:
        return f"told: {told}"
    return "same" if found == same else f"WRONG: other data, and nobody says so: {found}"


# -- which bits --------------------------------------------------------------------------------------


def all_positions(home: Path, glob: str) -> list[tuple[str, int]]:
    paths = sorted(path for path in home.glob(glob) if path.is_file())
    assert paths, f"no {glob}"
    return [(str(path.relative_to(home)), at) for path in paths for at in range(path.stat().st_size)]


def flips_of(home: Path, glob: str, rng: random.Random, most: int | None) -> list[list[Any]]:
    """Every byte once, at a random bit; of more than `most` bytes, a sample that favours bytes in use."""
    places = all_positions(home, glob)
    if most is not None and len(places) > most:
        content = {name: (home / name).read_bytes() for name in {name for name, _ in places}}
        used = [(name, at) for name, at in places if content[name][at]]
        chosen = rng.sample(used, min(len(used), most * 4 // 5))
        places = sorted(chosen + rng.sample(places, most - len(chosen)))
    return [[name, at, rng.randrange(8)] for name, at in places]


def run(
    home: Path,
    flips: list[list[Any]],
    folder: Path,
    workers: int = 2,
    timeout: float = 100,
    job: Callable[[str, str, str], None] | None = None,
) -> Counter[str]:
    """The outcomes; fails on a wrong one, and on a child that was killed by its alarm."""
    children = Children()
    try:
        started = []
        for worker in range(workers):
            share = flips[worker::workers]
            copy = folder / f"copy{worker}"
            child = children.start(job or flip_job, str(home), str(copy), str(write_job(folder, worker, share)))
            started.append((child, share))
        for child, _ in started:
            assert child.next() == "ready"
            child.tell("go")
        outcomes: Counter[str] = Counter()
        wrong: list[Any] = []
        with ThreadPoolExecutor(workers) as pool:  # all at once: a child whose pipe is full would seem to hang
            everything_told = list(pool.map(lambda each: each[0].rest(timeout)[1:], started))
        for (child, share), facts in zip(started, everything_told, strict=True):
            if len(facts) < len(share):
                wrong.append([*share[len(facts)], f"the child ended with {child.wait()}", child.stderr[-2000:]])
            for fact in facts:
                outcomes[fact[3].split(":")[0]] += 1
                if fact[3].startswith("WRONG"):
                    wrong.append(fact)
        assert not wrong, f"{len(wrong)} of {len(flips)} flips: {wrong[:5]}"
        return outcomes
    finally:
        children.close()


def write_job(folder: Path, worker: int, share: list[list[Any]]) -> Path:
    path = folder / f"job{worker}"
    path.write_text("\n".join(f"{name} {at} {bit}" for name, at, bit in share))
    return path


def flip_job(template: str, copy: str, job: str) -> None:
    flip_many(template, copy, read_job(job))


def read_job(job: str) -> list[list[Any]]:
    lines = [line.split(" ") for line in Path(job).read_text().splitlines()]
    return [[name, int(at), int(bit)] for name, at, bit in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    folder = memory / f"headrace-flips-{os.getpid()}-{time.monotonic_ns()}" if memory.is_dir() else tmp_path / "flips"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# -- the tests ---------------------------------------------------------------------------------------


def test_data_files(closed: Path, folder: Path, seed: int) -> None:
    """Most are reported; what is the same is padding, and bytes whose frame the index does not need."""
    flips = flips_of(closed, "data/*", random.Random(seed), 240)
    outcomes = run(closed, flips, folder)
    assert outcomes["told"] > 0.8 * len(flips)


def test_the_index(closed: Path, folder: Path, seed: int) -> None:
    outcomes = run(closed, flips_of(closed, "log.db", random.Random(seed), 200), folder)
    assert outcomes["told"] > 60


def test_the_write_ahead_log(killed: Path, folder: Path, seed: int) -> None:
    """A flipped frame ends SQLite's write-ahead log without a word: the commit mark knows that there was more."""
    outcomes = run(killed, flips_of(killed, "log.db-wal", random.Random(seed), 150), folder)
    assert outcomes["told"] > 60


def test_small_files(closed: Path, killed: Path, folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    for home in (closed, killed):
        for glob in ("lock", "wake/*"):
            (folder / home.name / glob[:4]).mkdir(parents=True)
            outcomes = run(home, flips_of(home, glob, rng, 30), folder / home.name / glob[:4])
            assert outcomes["same"] == sum(outcomes.values()), "locks and hints say nothing about data"


def test_a_table_that_shows_the_rows_of_another(closed: Path, folder: Path) -> None:
    """SQLite's catalogue says on which page a table begins. A bit there, and `partitions` reads `shares`: as many
    columns, each row whole."""
    raw = (closed / "log.db").read_bytes()
    at = raw.index(b"CREATE TABLE partitions") - 1
    outcomes = run(closed, [["log.db", at, bit] for bit in range(8)], folder)
    assert outcomes["told"] == 8


@pytest.mark.soak
@pytest.mark.parametrize("which", ["closed", "killed"])
def test_bytes_for_long(which: str, closed: Path, killed: Path, folder: Path, seed: int, soak_seconds: float) -> None:
    """All bytes of all files in a random order, as far as the time goes."""
    home, rng = closed if which == "closed" else killed, random.Random(seed)
    flips = flips_of(home, "log.db*", rng, None) + flips_of(home, "data/*", rng, None)
    flips = [flip for flip in flips if not flip[0].endswith("-shm")]
    rng.shuffle(flips)
    until = time.monotonic() + soak_seconds
    for number, begin in enumerate(range(0, len(flips), 300)):
        if time.monotonic() > until:
            return
        (folder / str(number)).mkdir()
        run(home, flips[begin : begin + 300], folder / str(number))
        shutil.rmtree(folder / str(number))
