"""Backup beside writers, and restore: whole or not there, checked, refused where something would be lost or somebody
could be led astray."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.cli.conftest import Shell

WRITER = """
import sys, headrace as hr
with hr.open_log(sys.argv[1]) as log:
    numbers = log.create_topic("numbers", "n int", partitions=2)
    print("up", flush=True)
    for start in range(0, 1_000_000, 10):
        numbers.append([{"n": n} for n in range(start, start + 10)])
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with hr.open_log(tmp_path / "home") as log:
        log.create_topic("numbers", "n int").append([{"n": 1}, {"n": 2}])
    return tmp_path / "home"


def numbers(home: Path) -> list[int]:
    with hr.open_log(home, create=False) as log:
        assert log.verify().ok
        return [record.value["n"] for record in log.topic("numbers").records()]


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_backup_beside_a_writer_is_restored(tmp_path: Path) -> None:
    home, copy, again = tmp_path / "home", tmp_path / "copy", tmp_path / "again"
    writing = subprocess.Popen([sys.executable, "-c", WRITER, str(home)], stdout=subprocess.PIPE, text=True)
    try:
        assert writing.stdout is not None and writing.stdout.readline() == "up\n"
        with hr.open_log(home) as log:
            for _ in zip(range(100), log.topic("numbers").records(follow=True, timeout="30 seconds"), strict=False):
                pass
            made = hr.backup(home, copy)
            for _ in log.topic("numbers").records(start="latest", follow=True, timeout="30 seconds"):
                break  # the writer went on
    finally:
        writing.kill()
        writing.wait()
    assert made.records >= 100 and made.topics == 1 and not made.views
    assert hr.restore(copy, again).records == made.records
    with hr.open_log(home) as log, hr.open_log(again, create=False) as restored:
        found = sorted(record.value["n"] for record in restored.topic("numbers").records())
        assert found == list(range(made.records))  # whole appends, none missing
        assert len(found) < log.topic("numbers").describe().records
        assert restored.verify().ok and restored.log_id == log.log_id == made.log_id
        restored.topic("numbers").append({"n": -1})
        assert restored.verify().ok


def test_a_backup_is_for_its_owner_and_has_what_its_manifest_says(home: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    made = hr.backup(home, tmp_path / "to" / "copy", progress=seen.append)
    copy = tmp_path / "to" / "copy"
    manifest = json.loads((copy / "manifest.json").read_text())
    assert sorted([each["name"] for each in manifest["files"]] + ["data", "manifest.json"]) == tree(copy)
    assert {path.stat().st_mode & 0o077 for path in [copy, *copy.rglob("*")]} == {0}
    assert seen == sorted(seen) and seen[-1] == made.bytes == sum(each["bytes"] for each in manifest["files"])
    assert numbers(copy) == [1, 2]  # as it lies there, too


def test_neither_overwrites_anything(home: Path, tmp_path: Path) -> None:
    hr.backup(home, tmp_path / "copy")
    for make in (lambda: hr.backup(home, tmp_path / "copy"), lambda: hr.restore(tmp_path / "copy", home)):
        with pytest.raises(hr.StorageError, match="is not overwritten"):
            make()
    for inside in (home / "copy", home / "data" / "copy", home):
        with pytest.raises(hr.InvalidArgument, match="is in the home itself"):
            hr.backup(home, inside)
    (tmp_path / "empty").mkdir()
    hr.restore(tmp_path / "copy", tmp_path / "empty")
    assert numbers(tmp_path / "empty") == [1, 2]


def test_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(hr.LogMissing):
        hr.backup(tmp_path / "none", tmp_path / "copy")
    assert tree(tmp_path) == []


def test_a_damaged_log_is_not_backed_up(home: Path, tmp_path: Path) -> None:
    (file,) = (home / "data").iterdir()
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    with pytest.raises(hr.DamagedBackup, match=r"numbers/0 offsets 0\.\.2"):
        hr.backup(home, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def linked(path: Path) -> None:
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [flip, linked, piped, Path.unlink, lambda path: os.truncate(path, 10)])
def test_a_spoilt_backup_is_not_restored(home: Path, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    copy = tmp_path / "copy"
    hr.backup(home, copy)
    (file,) = (copy / "data").iterdir()
    spoil(file)
    with pytest.raises(hr.DamagedBackup, match=re.escape(str(file))):
        hr.restore(copy, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "home"]


def test_a_folder_that_is_a_link_is_not_followed(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    hr.backup(home, copy)
    shutil.move(copy / "data", tmp_path / "elsewhere")
    (copy / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(hr.DamagedBackup):
        hr.restore(copy, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "name", ["../evil", "data/../../evil", "/tmp/evil", "data/a/b", "data/.x", "other", "manifest.json", "", "data/\0"]
)
def test_a_manifest_leads_nowhere_else(home: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    hr.backup(home, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"].append({**manifest["files"][-1], "name": name})
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(hr.DamagedBackup):
        hr.restore(copy, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "home"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"format": 1}', '{"format": 2}', '{"format": 1, "files": [{}]}', '{"format": 1, "files": []}'],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(hr.DamagedBackup, match="no manifest"):
        hr.restore(tmp_path / "copy", tmp_path / "again")
    (tmp_path / "copy" / "manifest.json").write_text(text)
    with pytest.raises(hr.DamagedBackup):
        hr.restore(tmp_path / "copy", tmp_path / "again")


KILLED = """
import os, signal, sys, headrace as hr
def told(count):
    if count > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
hr.{what}(sys.argv[1], sys.argv[2], progress=told)
"""


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_killed_on_the_way_it_is_not_there_and_the_next_run_makes_it(home: Path, tmp_path: Path, what: str) -> None:
    source, target = home, tmp_path / "made"
    if what == "restore":
        source = tmp_path / "copy"
        hr.backup(home, source)
    for count in ("0", "600"):  # in the first file, and in a later one
        killed = subprocess.run([sys.executable, "-c", KILLED.format(what=what), source, target, count], check=False)
        assert killed.returncode == -signal.SIGKILL and not target.exists()
    getattr(hr, what)(source, target)
    assert numbers(target) == [1, 2]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_not_ours_is_not_removed(home: Path, tmp_path: Path) -> None:
    making = tmp_path / ".copy.making"
    making.mkdir()
    (making / "diary.txt").write_text("mine")
    with pytest.raises(hr.StorageError, match=r"diary\.txt"):
        hr.backup(home, tmp_path / "copy")
    assert (making / "diary.txt").read_text() == "mine"


def test_upkeep_waits_for_a_backup(home: Path, tmp_path: Path) -> None:
    """What a backup copies is not moved, and appends go on."""
    with hr.open_log(home) as log:
        topic = log.topic("numbers")
        for n in range(3, 40):
            topic.append({"n": n})
        seen: list[Any] = []

        def told(_: int) -> None:
            if not seen:
                from headrace.log.embedded.upkeep import rounds

                with rounds.alone(log._engine, wait=False) as got:
                    seen.append(got)
                topic.append({"n": 0})

        hr.backup(home, tmp_path / "copy", progress=told)
        assert seen == [False]
        assert log.maintain().batches_sealed > 0
    assert numbers(tmp_path / "copy") == list(range(1, 40))


def test_the_commands(shell: Shell, tmp_path: Path) -> None:
    shell.ok("topics", "create", "numbers", "n int")
    shell.ok("produce", "numbers", stdin=b'{"n": 1}\n{"n": 2}')
    (made,) = shell.ok("backup", str(tmp_path / "copy")).rows
    assert (made["records"], made["topics"], made["views"], made["path"]) == (2, 1, False, str(tmp_path / "copy"))
    assert "is not overwritten" in shell.refused("backup", str(tmp_path / "copy"))
    (again,) = shell.ok("restore", str(tmp_path / "copy"), "--home", str(tmp_path / "again")).rows
    assert again == {**made, "path": str(tmp_path / "again")}
    assert shell.ok("consume", "numbers", "--home", str(tmp_path / "again")).rows == [{"n": 1}, {"n": 2}]
    assert "is not overwritten" in shell.refused("restore", str(tmp_path / "copy"))
