"""One flipped bit in a log that upkeep has been at and has still something to do in: it says so, or works as if nothing
were wrong; in any case it makes nothing worse. What could be read before can be read after it, and what could not is
still somewhere in the data files, for whoever repairs the index. Never other data, a hang, a huge allocation."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DamagedData, HeadraceError
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.storage import recovery
from headrace.log.open import open_log
from tests.faults.keeping import row
from tests.faults.test_byte_flips import flip_each, flips_of, read_job, run

SCHEMA = "who string, n int, pad string, at timestamp"
PAGE_BYTES = 4096
Found = dict[tuple[str, int, int], str]
STAY = ("people", "once", "many")


def fill(home: Path) -> None:
    with open_log(home) as log:  # `latest` is compressed; the texts of the others are looked for in the files
        log.create_topic("people", SCHEMA, key="who", partitions=2, compression="none")
        log.create_topic("once", SCHEMA, compression="none")
        log.create_topic("many", SCHEMA, durability="os", compression="none")
        log.create_topic("latest", SCHEMA, key="who", cleanup="compact")
    for part in range(3):
        with open_log(home) as log:
            for n in range(2 * part, 2 * part + 2):
                log.topic("people").append([row("people", who, n) for who in ("a", "erased", "later")])
                log.topic("many").append(row("many", "m", n))
                log.topic("latest").append([row("latest", "k", n), row("latest", f"k{n % 2}", n)])
            if part == 0:
                log.topic("once").append(row("once", "o", 0))
            if part == 1:
                log.maintain()
                log.topic("people").erase("erased")


# -- the child ---------------------------------------------------------------------------------------


def flip_and_keep(template: str, copy: str, job: str) -> None:
    recovery.LEFTOVER_SECONDS = 0
    with open_log(shutil.copytree(template, copy, dirs_exist_ok=True)) as log:
        same = readable(log)
        assert log.verify().ok
        assert (outcome := keep(log)) == "", outcome
    flip_each(template, copy, read_job(job), lambda: look(Path(copy), same))


def readable(log: EmbeddedLog) -> Found:
    """Every record that can be read, around what cannot."""
    out: Found = {}
    for topic in log.topics():
        for partition, offsets in topic.offsets().items():
            offset = offsets.earliest
            while offset < offsets.next:
                try:
                    for record in topic.records({partition: offset}, partition=partition):
                        out[topic.name, partition, record.offset] = repr((record.arrived_at, record.value))
                        offset = record.offset + 1
                    break
                except DamagedData as error:
                    offset = error.stop
                except HeadraceError:
                    break
    return out


def keep(log: EmbeddedLog) -> str:
    """All upkeep there is; what it says is wrong."""
    said = []
    for step in (log.maintain, lambda: log.topic("people").erase("later"), log.maintain):
        try:
            done = step()
            said += [*done.incomplete, *getattr(done, "problems", [])]
        except HeadraceError as error:
            said.append(str(error))
    return said[0] if said else ""


def look(home: Path, same: Found) -> str:
    failed: list[Any] = []
    threading.excepthook = lambda args: failed.append(args.exc_value)
    try:
        log = open_log(home, create=False)
    except HeadraceError as error:
        return f"told: {type(error).__name__}"
    told = ""
    before: Found = {}
    try:
        before = readable(log)
        if before.items() - same.items():
            return "told: before" if not log.verify().ok else f"WRONG: other data {before}"
        told = keep(log)
    except HeadraceError as error:
        told = str(error)
    except BaseException as error:
        return f"WRONG: {error!r} {''.join(traceback.format_tb(error.__traceback__)[-3:])}"
    finally:
        try:
            log.close()
        except HeadraceError as error:
            told = told or str(error)
    if failed:
        return f"WRONG: a thread raised {failed[0]!r}"
    try:
        with open_log(home, create=False) as log:
            after = readable(log)
            told = told or "".join(str(problem) for problem in log.verify().problems)
    except HeadraceError as error:
        after, told = {}, str(error)
    return worse(home, same, before, after, told)


def worse(home: Path, same: Found, before: Found, after: Found, told: str) -> str:
    if after.items() - same.items():
        return f"WRONG: other data afterwards {sorted(after.items() - same.items())}"
    stay = {place for place, text in same.items() if place[0] in STAY and "'later'" not in text}
    files = b"".join(path.read_bytes() for path in (home / "data").iterdir())
    for place in sorted(stay - after.keys()):
        if place in before and not told:
            return f"WRONG: {place} was readable, and nobody says why it is not"
        text = same[place].split("'pad': '")[1].split("'")[0]
        if text.encode() not in files and place in before:
            return f"WRONG: {place} was readable, and is in no file any more. Told: {told}"
        if text.encode() not in files and not damaged_in(files, text):
            return f"WRONG: {place} is in no file any more. Told: {told}"
    return f"told: {told}" if told else "same"


def damaged_in(files: bytes, text: str) -> bool:
    """Whether the text is there with the flipped bit in it."""
    raw = text.encode()
    half = len(raw) // 2
    return any(part in files for part in (raw[:half], raw[half:]))


# -- the tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("flips") / "kept"
    fill(home)
    return home


def pages_of(home: Path, table: str) -> range:
    """The bytes of a small table's only page."""
    db = sqlite3.connect(f"file:{home / 'log.db'}?mode=ro&immutable=1", uri=True)
    try:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    finally:
        db.close()
    return range((page - 1) * PAGE_BYTES, page * PAGE_BYTES)


def flips_in(home: Path, table: str, rng: random.Random, most: int) -> list[list[Any]]:
    page = pages_of(home, table)
    content = (home / "log.db").read_bytes()
    used = [at for at in page if content[at]]
    return [["log.db", at, rng.randrange(8)] for at in sorted(rng.sample(used, min(most, len(used))))]


def test_data_files(kept: Path, memory: Path, seed: int) -> None:
    outcomes = run(kept, flips_of(kept, "data/*", random.Random(seed), 90), memory, job=flip_and_keep)
    assert outcomes["told"] > 60 and outcomes["same"] > 2, outcomes


@pytest.mark.parametrize("table", ["batches", "files", "partitions"])
def test_the_index(table: str, kept: Path, memory: Path, seed: int) -> None:
    outcomes = run(kept, flips_in(kept, table, random.Random(seed), 70), memory, job=flip_and_keep)
    assert outcomes["told"] > 30, outcomes


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_byte(kept: Path, memory: Path, seed: int) -> None:
    rng = random.Random(seed)
    flips = flips_of(kept, "data/*", rng, None) + flips_of(kept, "log.db", rng, 4000)
    rng.shuffle(flips)
    run(kept, flips, memory, timeout=3600, job=flip_and_keep)
