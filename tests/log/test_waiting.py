"""Wake-ups are hints: one that cannot be given never fails the commit it tells of."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.log.embedded.storage.waiting import Wakes
from headrace.log.open import open_log


def test_a_commit_touches_its_topic(tmp_path: Path) -> None:
    wakes = Wakes(tmp_path)
    wakes.wake({"a"})
    os.utime(tmp_path / "a", (1, 1))
    wakes.wake({"a"})
    assert (tmp_path / "a").stat().st_mtime > 1 and sorted(os.listdir(tmp_path)) == ["a"]


def test_a_hint_that_cannot_be_given_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    with open_log(tmp_path / "log") as log:
        topic = log.create_topic("clicks", "n int", durability="os")
        monkeypatch.setattr(os, "utime", refused)
        topic.append({"n": 1})
        assert [record.value["n"] for record in topic.records()] == [1]


def test_a_missing_folder_fails_nothing(tmp_path: Path) -> None:
    Wakes(tmp_path / "gone").wake({"a"})
    assert not (tmp_path / "gone").exists()


def test_who_was_interrupted_when_it_began_to_watch_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    wakes = Wakes(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            wakes.count("a")
    wakes.close()
