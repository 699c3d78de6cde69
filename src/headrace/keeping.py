"""Backup and restore of a home. Owns that log and views are of one moment, when no flow can commit: so the log has what
the views have read, and of what flows write no more than they know of. And the manifest, which is written last: a
directory without it is no backup.

A backup is made, or restored, under another name and renamed when it is whole: after a crash it is there, or it is
not. What is restored is what the manifest names, with the checksums that it has; names and links lead nowhere else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.durations import from_us
from headrace.errors import DamagedBackup, InvalidArgument, LogMissing
from headrace.log.capabilities import Files, capability
from headrace.log.contract import Verified
from headrace.log.open import open_log
from headrace.places import directory
from headrace.storage import disk
from headrace.storage.copying import Copied, copy_bytes, folder_in_place, open_inside
from headrace.views.open import back_up_views, store_exists

__all__ = ["Backup", "backup", "restore"]

MANIFEST, FORMAT = "manifest.json", 1
MANIFEST_BYTES_MAX = 64 << 20
OURS = {"log.db", "log.db-wal", "log.db-shm", "log.db-journal", "data", "views.db", "views.db-wal", "views.db-shm"}
OURS |= {"views.db-journal", "views.lock", "outbox", "lock", "wake", "reserve", "keys.db", "snapshots.db", MANIFEST}

Progress = Callable[[int], object]
"""Called with the number of bytes so far."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup, or what was restored from one. `commit`: the log's last commit that is in it; None without a log.
    `records`: of the log, all of them read and checked."""

    path: str
    taken_at: datetime
    log_id: str | None
    commit: int | None
    topics: int
    records: int
    views: bool
    files: int
    bytes: int


def backup(home: str | Path, target: str | Path, *, progress: Progress | None = None) -> Backup:
    """Copies log and views of a home into a new directory, while they are in use, and checks the copy. A `target` that
    is there, or in the home, is refused. Upkeep of the log waits meanwhile."""
    source, target = directory(home).absolute(), directory(target, argument="target").absolute()
    has_log = (source / "log.db").exists()
    if target.resolve().is_relative_to(source.resolve()):
        raise InvalidArgument("target", str(target), "is in the home itself: name a directory elsewhere")
    if not has_log and not store_exists(source):
        raise LogMissing(path=str(source), why="there is no log and there are no views here")
    taken_us = time.time_ns() // 1000
    told = _Sum(progress)
    log_id, commit, found = None, None, Verified(0, 0, 0, 0)
    files: list[Copied] = []
    with folder_in_place(target, OURS) as making:

        def with_views(begin: Callable[[], None]) -> None:
            files.extend(back_up_views(source, making, told, begin))

        if has_log:
            with open_log(source, create=False) as log:
                log_id = log.log_id
                copied, found, commit = capability(log, Files).back_up(making, told, with_views)
            files += copied
        else:
            with_views(lambda: None)
        if not found.ok:
            first = found.problems[0]
            where = f"{first.topic}/{first.partition} offsets {first.start}..{first.stop}: " if first.topic else ""
            raise DamagedBackup(path=str(source), why=f"{where}{first.what}. headrace verify lists all damage")
        manifest = {
            "format": FORMAT,
            "taken_us": taken_us,
            "log_id": log_id,
            "commit": commit,
            "topics": found.topics,
            "records": found.records,
            "files": [asdict(each) for each in files],
        }
        _write(making / MANIFEST, manifest)
    return _described(target, manifest, files)


def restore(source: str | Path, home: str | Path, *, progress: Progress | None = None) -> Backup:
    """Makes a home of a backup. A `home` that is there is refused, unless it is an empty directory. Each file is
    compared with the checksum that the backup's manifest has."""
    source, home = directory(source, argument="source").absolute(), directory(home).absolute()
    manifest, files = _read(source)
    told = _Sum(progress)
    with folder_in_place(home, OURS) as making:
        for folder in sorted({os.path.dirname(each.name) for each in files} | {"data"} - {""}):
            (making / folder).mkdir(mode=disk.DIRECTORY_MODE, exist_ok=True)
        for wanted in files:
            fd = open_inside(source, wanted.name)
            try:
                if (size := os.fstat(fd).st_size) != wanted.bytes:
                    why = f"it has {size} bytes, and had {wanted.bytes}"
                    raise DamagedBackup(path=str(source / wanted.name), why=why)
                copied = copy_bytes(fd, making / wanted.name, wanted.bytes, wanted.name, told)
            finally:
                os.close(fd)
            if copied != wanted:
                raise DamagedBackup(path=str(source / wanted.name), why="its checksum is not the one it had")
        if not any(each.name == "log.db" for each in files):
            (making / "data").rmdir()
    return _described(home, manifest, files)


class _Sum:
    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._sum = progress, 0

    def __call__(self, count: int) -> None:
        self._sum += count
        if self._progress is not None:
            self._progress(self._sum)


def _described(path: Path, manifest: dict[str, Any], files: list[Copied]) -> Backup:
    return Backup(
        str(path),
        from_us(manifest["taken_us"]),
        manifest["log_id"],
        manifest["commit"],
        manifest["topics"],
        manifest["records"],
        any(each.name == "views.db" for each in files),
        len(files),
        sum(each.bytes for each in files),
    )


def _write(path: Path, manifest: dict[str, Any]) -> None:
    fd = disk.create(path)
    try:
        with disk.typed(path):
            disk.write_at(fd, [json.dumps(manifest, indent=1).encode()], 0)
        disk.sync(fd, path)
    finally:
        os.close(fd)


def _read(source: Path) -> tuple[dict[str, Any], list[Copied]]:
    """The manifest, of which nothing is believed before it is looked at."""
    path = source / MANIFEST
    if not path.exists():
        why = "it has no manifest.json, so it is no backup, or one that was not finished"
        raise DamagedBackup(path=str(source), why=why)
    fd = open_inside(source, MANIFEST)
    try:
        if os.fstat(fd).st_size > MANIFEST_BYTES_MAX:
            raise DamagedBackup(path=str(path), why="it is larger than a manifest can be")
        with open(fd, "rb", closefd=False) as file:
            found = json.load(file)
        if found["format"] != FORMAT:
            why = f"it is of format {found['format']!r}, this headrace reads {FORMAT}: use the headrace that made it"
            raise DamagedBackup(path=str(path), why=why)
        files = [Copied(str(each["name"]), int(each["bytes"]), str(each["sha256"])) for each in found["files"]]
        _described(source, found, files)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedBackup(path=str(path), why=f"it cannot be read: {error!r}") from None
    finally:
        os.close(fd)
    names = [each.name for each in files]
    if len(set(names)) != len(names) or not set(names) & {"log.db", "views.db"} or set(names) & {MANIFEST}:
        raise DamagedBackup(path=str(path), why="it does not name the files of a home, each once")
    for each in files:
        if each.name not in ("log.db", "views.db") and not each.name.startswith(("data/", "outbox/")):
            raise DamagedBackup(path=str(path), why=f"{each.name!r} is no file of a home")
    return found, files
