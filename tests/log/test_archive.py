"""Archives: retention moves old records into Parquet files, and the log reads them there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.topic import EmbeddedTopic
from headrace.log.embedded.upkeep import archiving, erasing, swapping
from headrace.log.open import open_log
from headrace.testing.log_contract import Clock
from tests.searching import files_with

COLUMNS = "user string, n int, x double, d decimal(9,2), at timestamp, l array<struct<a: int>>, m map<string, int>"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.replace_machine_clocks(monkeypatch)
    return clock


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[EmbeddedLog]:  # noqa: ARG001
    with open_log(tmp_path / "log") as log:
        yield log


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "GROUP_ROWS", 25)


def some(log: EmbeddedLog, clock: Clock, folder: Path, **settings: Any) -> EmbeddedTopic:
    """Ten hours, ten records each."""
    topic = log.create_topic(
        "clicks", COLUMNS, key="user", event_time="at", partitions=2, archive=str(folder), **settings
    )
    for hour in range(10):
        topic.append([row(hour, n) for n in range(10)])
        clock.advance(hours=1)
    return topic


def row(hour: int, n: int) -> dict[str, Any]:
    at = datetime(2026, 1, 1, hour, (7 * n) % 60, tzinfo=UTC)
    told = {"x": 0.5 * n if n % 4 else None, "d": f"{n}.25", "l": [{"a": n}, None], "m": {"k": n} if n % 2 else None}
    return {"user": f"user {n % 6}", "n": 10 * hour + n, "at": at if n % 5 else None, **told}


def held(topic: EmbeddedTopic, **how: Any) -> list[tuple[Any, ...]]:
    return [(r.partition, r.offset, r.arrived_at, r.progress, r.key, r.value) for r in topic.records(**how)]


def archived(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def test_readers_notice_nothing(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    topic = some(log, clock, folder)
    before, offsets = held(topic), topic.offsets()
    at = datetime(2026, 1, 1, 3, tzinfo=UTC)
    by_time, by_key = held(topic, start=at), held(topic, key="user 1")
    topic.alter(retention="4 hours")
    done = log.maintain()
    assert (done.records_archived, done.records_deleted, done.overtaken, done.problems) == (60, 0, [], [])
    assert (held(topic), topic.offsets()) == (before, offsets)
    assert (held(topic, start=at), held(topic, key="user 1")) == (by_time, by_key)
    for number, each in offsets.items():
        middle = each.next // 2
        ranges = topic.batches(partition=number, start=3, stop=middle, columns=["_offset", "n"])
        assert [n for batch in ranges for n in batch.column(0).to_pylist()] == list(range(3, middle))
    assert log.maintain().records_archived == 0
    found = log.verify()
    assert found.ok and found.records == 100
    with open_log(tmp_path / "log") as again:
        assert held(again.topic("clicks")) == before
    used = topic.usage()
    assert used.records == 100 and used.would_delete_records == 0
    topic.group("g").rewind("earliest")
    assert sum(each.records for each in topic.group("g").lag().values()) == 100


def test_others_read_the_files(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="1 hour")
    log.maintain()
    assert len(archived(folder)) == 2 and {path.stat().st_mode & 0o077 for path in archived(folder)} == {0}
    whole = [r.value["n"] for r in topic.records() if r.arrived_at < datetime(2026, 1, 1, 9, tzinfo=UTC)]
    sql = f"SELECT n, _offset, _arrived_at, _progress FROM read_parquet('{folder}/clicks-*.parquet') ORDER BY n"
    assert [n for n, *_ in duckdb.sql(sql).fetchall()] == sorted(whole)
    assert sorted(pl.scan_parquet(folder / "*.parquet").select("n").collect()["n"].to_list()) == sorted(whole)


def test_columns_that_came_later_are_null_there(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive", retention="4 hours")
    log.maintain()
    topic.alter(schema=COLUMNS.replace("n int", "n bigint") + ", more string")
    assert [(r.value["n"], r.value["more"]) for r in topic.records(partition=0)][:3] == [
        (r.value["n"], None) for r in topic.records(partition=0)
    ][:3]
    clock.advance(hours=5)
    log.maintain()
    assert sorted(r.value["n"] for r in topic.records()) == list(range(100))
    assert log.verify().ok


def test_by_size(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive")
    limit = topic.usage().bytes // 2
    topic.alter(retention_bytes=limit)
    topic.append([row(10, n) for n in range(10)])  # nothing is in the way of an append
    assert log.maintain().records_archived > 0
    assert topic.usage().bytes <= limit
    assert sorted(r.value["n"] for r in topic.records()) == list(range(110))
    assert log.verify().ok


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", ["_write", "_begin", "submit"])
def test_a_crash_leaves_the_one_or_the_other(
    log: EmbeddedLog, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    folder = tmp_path / "archive"
    topic = some(log, clock, folder)
    before = held(topic)
    topic.alter(retention="4 hours")
    owner = swapping if at == "submit" else archiving
    real = getattr(owner, at)

    def killed(*given: Any) -> None:
        if at != "submit":  # behind it, and before it
            real(*given)
        raise Killed

    with monkeypatch.context() as stopping:
        stopping.setattr(owner, at, killed)
        with pytest.raises(Killed):
            log.maintain()
    assert held(topic) == before
    clock.advance(hours=1)  # then more is due, and the files have other names
    assert log.maintain().records_archived == 70
    assert held(topic) == before and log.verify().ok
    counted = duckdb.sql(f"SELECT count(*), count(DISTINCT n) FROM read_parquet('{folder}/*.parquet')").fetchall()
    assert counted == [(70, 70)]


def test_a_copy_of_the_log_touches_no_file_of_the_other(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    """A backup that is restored beside it knows the same directory."""
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="4 hours")
    log.maintain()
    hr.backup(tmp_path / "log", tmp_path / "copy")
    clock.advance(hours=1)
    log.maintain()
    files = {path.name: path.read_bytes() for path in archived(folder)}
    with open_log(tmp_path / "copy") as copy:
        done = copy.maintain()
        assert done.records_archived == 0 and "did not write it" in done.postponed[0]
    assert {path.name: path.read_bytes() for path in archived(folder)} == files
    assert len(held(topic)) == 100 and log.verify().ok


def test_what_a_crash_left_is_removed_by_who_left_it(
    log: EmbeddedLog, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup of just then notes the same file; the log that it was made of goes on, and writes it anew."""
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="4 hours")
    before, real = held(topic), archiving._write

    def killed(*given: Any) -> None:
        real(*given)
        raise Killed

    with monkeypatch.context() as stopping, pytest.raises(Killed):
        stopping.setattr(archiving, "_write", killed)
        log.maintain()
    (left,) = archived(folder)
    hr.backup(tmp_path / "log", tmp_path / "copy")
    assert log.maintain().records_archived == 60
    files = {path: path.stat().st_mtime_ns for path in archived(folder)}
    assert left in files
    with open_log(tmp_path / "copy") as copy:
        done = copy.maintain()
        assert done.records_archived == 0 and "did not write it" in done.postponed[0]
    assert {path: path.stat().st_mtime_ns for path in archived(folder)} == files
    assert held(topic) == before and log.verify().ok


def test_nothing_is_moved_while_the_archive_is_away(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    """Its disk is not mounted: what would be written now would lie beneath it, or in a directory of that name."""
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="4 hours")
    before = held(topic)
    assert log.maintain().records_archived == 60
    folder.rename(tmp_path / "away")
    clock.advance(hours=1)
    for _ in range(2):
        done = log.maintain()
        assert done.records_archived == 0 and "is its disk mounted?" in done.postponed[0]
        folder.mkdir(exist_ok=True)
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    assert log.maintain().records_archived == 10
    assert held(topic) == before and log.verify().ok


def test_what_is_moved_is_not_lost(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive", retention="4 hours")
    with topic.group("slow").join() as member:
        next(iter(member.poll()))
        member.commit()
    assert topic.group("slow").time_to_loss() is None
    assert topic.usage().would_delete_records == 0
    assert log.maintain().at_risk == []


def test_erasure_reaches_archives(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="4 hours")
    topic.append([{**row(3, 1), "user": "b7f3-secret-91"}])
    clock.advance(hours=6)
    log.maintain()
    others = [each for each in held(topic) if each[4] != "b7f3-secret-91"]
    erased = topic.erase("b7f3-secret-91")
    assert (erased.records, erased.incomplete) == (1, [])
    assert held(topic) == others
    assert files_with(tmp_path, b"b7f3-secret-91") == [] and b"secret" not in b"".join(
        path.read_bytes() for path in archived(folder)
    )
    log.maintain()
    assert held(topic) == others and log.verify().ok and topic.usage().bytes == 0
    found = duckdb.sql(f"SELECT count(*) FROM read_parquet('{folder}/*.parquet')").fetchall()
    assert found == [(len(others),)]


def test_what_an_erasure_took_back_is_archived_again_around_what_stayed(
    log: EmbeddedLog, clock: Clock, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    topic = log.create_topic("t", "user string, n int", key="user", archive=str(folder), retention="1 hour")
    for users in ["ann", "bob"], ["bob", "cal"], ["ann", "cal"]:
        topic.append([{"user": user, "n": 1} for user in users])
        clock.advance(hours=2)
        assert log.maintain().records_archived == 2
    files = archived(folder)
    assert topic.erase("ann").incomplete == [] and archived(folder) == [files[1]]
    assert log.maintain().records_archived == 2 and log.maintain().records_archived == 0
    assert len(archived(folder)) == 3 and [r.key for r in topic.records()] == ["bob", "bob", "cal", "cal"]
    assert log.verify().ok


def test_an_interrupted_erasure_is_finished_by_upkeep(
    log: EmbeddedLog, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="4 hours")
    log.maintain()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(erasing, "wipe", raise_interrupt)
        topic.erase("user 1")
    assert files_with(folder, b"user 1") != [], "all is in the log again, and the file still there"
    log.maintain()
    assert files_with(tmp_path, b"user 1") == [] and log.verify().ok
    assert topic.erase("user 1").incomplete == []


def raise_interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_an_archive_that_is_away_hinders_no_erasure_of_the_rest(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive", retention="4 hours")
    log.maintain()
    (tmp_path / "archive").rename(tmp_path / "away")
    erased = topic.erase("user 1")
    assert erased.records > 0 and all("could not be read" in each for each in erased.incomplete) and erased.incomplete
    (tmp_path / "away").rename(tmp_path / "archive")
    assert "user 1" in {record.key for record in topic.records()}
    assert topic.erase("user 1").incomplete == [] and "user 1" not in {record.key for record in topic.records()}
    assert files_with(tmp_path, b"user 1") == []


def test_damage_is_found(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    topic = some(log, clock, folder, retention="4 hours")
    log.maintain()
    path = archived(folder)[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)
    assert not log.verify().ok
    path.rename(path.with_suffix(".moved"))
    with pytest.raises(hr.DamagedData, match="archived: "):
        list(topic.records())
    moved = tmp_path / "moved"
    folder.rename(moved)
    raw[len(raw) // 3] ^= 1
    (moved / path.name).write_bytes(raw)
    topic.alter(archive=str(moved))
    assert len(held(topic)) == 100 and log.verify().ok
    topic.alter(archive=None)
    with pytest.raises(hr.DamagedData, match="names no archive"):
        list(topic.records())


def test_a_backup_of_a_log_with_an_archive(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive", retention="4 hours")
    log.maintain()
    hr.backup(tmp_path / "log", tmp_path / "copy")
    with open_log(tmp_path / "copy") as copy:
        assert held(copy.topic("clicks")) == held(topic)


def test_what_is_empty_is_due_once(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive")
    for number in range(6):
        topic.erase(f"user {number}")
    topic.alter(retention="4 hours")
    assert log.maintain().records_archived == log.maintain().records_archived == 0
    assert archived(tmp_path / "archive") == [] and log.verify().ok


def test_without_an_archive_retention_forgets_what_was_archived(log: EmbeddedLog, clock: Clock, tmp_path: Path) -> None:
    topic = some(log, clock, tmp_path / "archive", retention="4 hours")
    log.maintain()
    topic.alter(archive=None)
    clock.advance(hours=1)
    assert log.maintain().records_deleted == 70
    assert sorted(r.value["n"] for r in topic.records()) == list(range(70, 100))
    assert len(archived(tmp_path / "archive")) == 2 and log.verify().ok


def test_what_has_no_archive(log: EmbeddedLog) -> None:
    with pytest.raises(hr.InvalidArgument, match="not compacted"):
        log.create_topic("t", "k string", key="k", cleanup="compact", archive="/a")
    with pytest.raises(hr.InvalidArgument, match="must be a directory"):
        log.create_topic("t", "k string", archive=3)  # type: ignore[arg-type]
