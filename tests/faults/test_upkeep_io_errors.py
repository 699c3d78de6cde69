"""A disk that fails at the n-th call of upkeep, for many n. Each step says what it could not do, as a typed error or in
its report; nothing is lost; and when the disk is well again the same process completes the work. A failed sync is
final for the process: the next one completes it."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.log.embedded.storage import index as index_module
from headrace.log.embedded.storage import recovery
from tests.faults import keeping
from tests.faults.checking import opened
from tests.faults.children import Children, ack
from tests.faults.disk import Disk, Fail, Shim, fail, fired
from tests.faults.keeping import Kept, clean

CASES: list[tuple[str, str, Any, int]] = [
    ("write", "*.frames", errno.ENOSPC, 17),
    ("write", "*.frames", errno.EIO, 23),
    ("write", "*.frames", "short", 19),
    ("read", "*.frames", errno.EIO, 67),
    ("sync", "*.frames", errno.EIO, 13),
    ("sync", "*/data", errno.EIO, 5),
    ("open", "*.frames", errno.EMFILE, 23),
    ("write", "*log.db-wal", errno.ENOSPC, 97),
    ("sync", "*log.db-wal", errno.EIO, 17),
    ("write", "*log.db", errno.ENOSPC, 61),
    ("sync", "*log.db", errno.EIO, 9),
    ("truncate", "*log.db-wal", errno.EIO, 5),
    ("entry", "*.frames", errno.EIO, 9),
]
"""What fails, and how many calls apart (a walk has at most ROUNDS rounds)."""
ROUNDS = 3


def walk(template: str, folder: str, kind: Any, glob: str, error: Any, stride: int) -> None:
    """The work once for every n, each in a copy of the log, until the rule no longer fires."""
    index_module.CHECKPOINT_BYTES = 30_000
    recovery.LEFTOVER_SECONDS = 0
    with opened(shutil.copytree(template, f"{folder}/first")) as log:
        before = Kept.of(log)
    for nth in itertools.count(1, stride):
        home = shutil.copytree(template, f"{folder}/log")
        with opened(home) as log:
            log._engine.files.file_bytes_max = keeping.FILE_BYTES
            fail(Fail(kind, glob, error, nth=nth))
            outcomes: list[str] = []
            keeping.work(log, told(outcomes))
            count = fired()
            fail()
            ack([nth, count, outcomes])
            before.check_half(log)
            stopped = log._engine.committer.failed is not None
            if stopped:
                assert attempt(lambda: log.topic("many").append(keeping.row("many", "after", 1))) == "SyncFailed"
            else:
                again: list[str] = []
                keeping.work(log, told(again))
                assert set(again) == {"clean"}, (nth, again)
                before.check_done(log)
        with opened(home) as log:
            if stopped:
                keeping.work(log, completed)
            before.check_done(log)
        shutil.rmtree(home)
        if not count or nth > (ROUNDS - 1) * stride:
            return


def told(outcomes: list[str]) -> Callable[[str, Callable[[], Any]], None]:
    def do(_: str, step: Callable[[], Any]) -> None:
        outcomes.append(attempt(step))

    return do


def attempt(step: Callable[[], Any]) -> str:
    """ "clean", "told" or the name of the typed error; any other exception ends the child, and the test."""
    try:
        result = step()
    except HeadraceError as error:
        return type(error).__name__
    return "clean" if clean(result) else "told"


def completed(what: str, step: Callable[[], Any]) -> None:
    result = step()
    assert clean(result), (what, result)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("upkeep") / "filled"
    keeping.fill(home)
    return home


@pytest.mark.parametrize(
    ("kind", "glob", "error", "stride"), CASES, ids=[f"{k}-{g}-{errno.errorcode.get(e, e)}" for k, g, e, _ in CASES]
)
def test_every_nth_call(
    kind: str, glob: str, error: Any, stride: int, template: Path, shim: Shim, memory: Path, children: Children
) -> None:
    child = Disk(shim, memory).start(children, walk, str(template), str(memory), kind, glob, error, stride)
    facts = child.finish(100)
    assert any(count for _, count, _ in facts), "the rule never fired"
    hurt = {outcome for _, count, outcomes in facts if count for outcome in outcomes}
    if kind in ("read", "sync") or (kind, error, glob) == ("write", errno.ENOSPC, "*.frames"):
        assert hurt - {"clean"}, f"nobody was told: {facts}"
