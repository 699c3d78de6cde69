"""`headrace maintain`, `headrace erase`, and what topics and groups show of retention."""

import json
import os
import sqlite3
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.output import about
from tests.cli.conftest import Shell, Spawner
from tests.searching import files_with


def produced(shell: Shell, topic: str, *rows: object) -> None:
    for row in rows:  # a batch each
        shell.ok("produce", topic, stdin=json.dumps(row).encode())


@pytest.fixture
def numbers(shell: Shell) -> Shell:
    """A topic `numbers` with ten batches of one record, which a group `g` has not read."""
    shell.ok("topics", "create", "numbers", "n int", "--key", "n")
    shell.ok("groups", "rewind", "g", "numbers", "--start", "earliest")
    produced(shell, "numbers", *({"n": n} for n in range(10)))
    return shell


def test_maintain(numbers: Shell) -> None:
    (before,) = numbers.ok("topics", "show", "numbers").rows
    assert (before["batches"], before["small_batches"], before["would_delete_records"]) == (10, 10, 0)
    (done,) = numbers.ok("maintain").rows
    assert (done["batches_sealed"], done["records_deleted"], done["problems"], done["incomplete"]) == (9, 0, [], [])
    assert done["files_removed"] == 10  # one of each `produce`
    (after,) = numbers.ok("topics", "show", "numbers").rows
    assert (after["batches"], after["records"]) == (1, 10)
    assert [row["n"] for row in numbers.ok("consume", "numbers").rows] == list(range(10))
    assert "batches_sealed" in numbers.ok("maintain", "--format", "table").text


def test_what_retention_would_delete_and_whom_it_overtakes(numbers: Shell) -> None:
    (shown,) = numbers.ok("topics", "show", "numbers").rows
    each = shown["bytes"] // 10
    numbers.ok("topics", "alter", "numbers", "--retention-bytes", str(4 * each), "--unread", "keep")
    (shown,) = numbers.ok("topics", "show", "numbers").rows
    assert shown["would_delete_records"] == 0  # the group holds them
    assert shown["consumers"] == [{"kind": "group", "name": "g", "partition": 0, "offset": 0, "lag_records": 10}]
    full = numbers("produce", "numbers", stdin=b'{"n": 10}')
    assert full.code == 1
    assert "that groups or queues have not read" in full.err

    numbers.ok("topics", "alter", "numbers", "--unread", "delete")
    (shown,) = numbers.ok("topics", "show", "numbers").rows
    assert (shown["would_delete_records"], shown["would_delete_bytes"]) == (6, 6 * each)
    done = numbers.ok("maintain")
    assert done.rows[0]["records_deleted"] == 6
    assert done.rows[0]["overtaken"] == [
        {"topic": "numbers", "partition": 0, "kind": "group", "consumer": "g", "start": 0, "stop": 6}
    ]
    assert "retention deleted offsets 0..6 before group 'g' had read them" in done.err
    refused = numbers.refused("consume", "numbers", "--group", "g")
    assert "offsets 0..6 were deleted by retention (have 6..10)" in refused
    assert "headrace groups rewind GROUP numbers --start earliest" in refused
    assert numbers.ok("groups", "list").rows[0]["time_to_loss_seconds"] == 0
    assert "group g of numbers loses records in 0 seconds" in numbers.ok("groups", "show", "g", "numbers").err


def test_dead_bytes_and_what_maintain_would_free(numbers: Shell) -> None:
    (shown,) = numbers.ok("topics", "show", "numbers").rows
    assert shown["home_live_bytes"] == shown["bytes"]
    assert shown["home_would_free_bytes"] == 0
    numbers.ok("topics", "create", "other", "x int")
    numbers.ok("topics", "delete", "numbers", "--yes")
    (shown,) = numbers.ok("topics", "show", "other").rows
    assert shown["home_live_bytes"] == 0
    assert shown["home_dead_bytes"] == shown["home_would_free_bytes"] > 0
    (done,) = numbers.ok("maintain").rows
    assert done["bytes_freed"] == shown["home_dead_bytes"]
    assert numbers.ok("topics", "show", "other").rows[0]["home_dead_bytes"] == 0


def test_time_to_loss_in_words_and_in_seconds(numbers: Shell) -> None:
    numbers.ok("topics", "alter", "numbers", "--retention", "30 days")
    done = numbers.ok("groups", "list")
    assert 29 * 86_400 < done.rows[0]["time_to_loss_seconds"] < 30 * 86_400
    assert done.err == ""
    assert "30 days" in numbers.ok("groups", "list", "--format", "table").text  # within the hour
    (shown,) = numbers.ok("topics", "show", "numbers").rows
    numbers.ok("topics", "alter", "numbers", "--retention-bytes", str(2 * shown["bytes"]))
    for command in (("list",), ("show", "g", "numbers")):  # ten came in this minute, and there is room for ten more
        done = numbers.ok("groups", *command)
        assert 30 < done.rows[0]["time_to_loss_seconds"] < 90
        assert "group g of numbers loses records in " in done.err
        assert "headrace topics alter numbers with --unread keep" in done.err
    assert numbers.ok("maintain").rows[0]["at_risk"][0]["time_to_loss_seconds"] > 30


def test_durations_as_people_say_them() -> None:
    assert [about(seconds) for seconds in (0.2, 90.5, 7_290, 180_200)] == [
        *("0 seconds", "1 minute 30 seconds", "2 hours 2 minutes", "2 days 2 hours")
    ]


def test_maintain_meets_damage(numbers: Shell) -> None:
    file = next(path for path in (numbers.home / "data").iterdir() if path.stat().st_size > 100)
    data = bytearray(file.read_bytes())
    data[70] ^= 1
    file.write_bytes(data)
    done = numbers("maintain")
    assert done.code == 3
    assert len(done.rows[0]["problems"]) == 1
    assert "headrace verify says more" in done.err
    assert "there is no log" in numbers.refused("maintain", "--home", "/nowhere")


# -- erasing -------------------------------------------------------------------------------------------


def test_erase_only_when_meant(clicks: Shell) -> None:
    done = clicks("erase", "clicks", "ann")
    assert (done.code, done.out) == (2, b"")
    assert "This would erase all records of key 'ann' from clicks, and what was made of them. Say --yes" in done.err
    topic, backups = clicks.ok("erase", "clicks", "ann", "--yes").rows
    assert topic == {"place": "topic clicks", "done": "erased", "records": 1, "do": None}
    assert (backups["place"], backups["done"]) == ("backups, copies and snapshots of disks", "out of reach")
    assert {row["user"] for row in clicks.ok("consume", "clicks").rows} == {"bob", "cat"}
    assert files_with(clicks.home, "ann") == []


@pytest.mark.parametrize("key", [("ann", "7"), ("ann,7",), ('["ann", 7]',), ('["ann", "7"]',)])
def test_keys_of_several_columns(shell: Shell, key: tuple[str, ...]) -> None:
    shell.ok("topics", "create", "t", "a string, b bigint", "--key", "a,b")
    produced(shell, "t", {"a": "ann", "b": 7}, {"a": "ann", "b": 8}, {"a": "ann", "b": None})
    assert shell.ok("erase", "t", *key, "--yes").rows[0]["records"] == 1
    assert [row["b"] for row in shell.ok("consume", "t").rows] == [8, None]
    if len(key) == 1:
        assert shell.ok("consume", "t", "--key", key[0]).rows == []
    assert shell.ok("erase", "t", '["ann", null]', "--yes").rows[0]["records"] == 1


def test_records_are_found_by_another_column(shell: Shell) -> None:
    shell.ok("topics", "create", "t", "n int, user string, age int")
    produced(shell, "t", *({"n": n, "user": "abc"[n % 3], "age": n} for n in range(6)))
    assert shell.ok("erase", "t", "a", "c", "--column", "user", "--yes").rows[0]["records"] == 4
    assert shell.ok("erase", "t", "4", "--column", "age", "--yes").rows[0]["records"] == 1
    assert [row["n"] for row in shell.ok("consume", "t").rows] == [1]
    assert "has no such column; it has n, user, age" in shell("erase", "t", "a", "--column", "name", "--yes").err


def test_a_subject_that_is_left_is_found_and_not_shown(shell: Shell, tmp_path: Path) -> None:
    shell.ok("topics", "create", "t", "k string, v string", "--key", "k")
    produced(shell, "t", {"k": "ann", "v": "Ann Example"}, {"k": "bob", "v": "Bob"})
    found = shell("verify", "--subject", "-", stdin=b"Ann Example\n")
    assert found.code == 3 and "Ann" not in found.text and "Ann" not in found.err
    assert {row["place"].partition("/")[0] for row in found.rows} == {"data"}
    shell.ok("erase", "t", "ann", "--yes")
    (tmp_path / "subject").write_text("Ann Example")
    assert "not found" in shell.ok("verify", "--subject", str(tmp_path / "subject")).err
    assert "shorter than 3 bytes" in shell.refused("verify", "--subject", "-", stdin=b"An")
    assert "no UTF-8" in shell.refused("verify", "--subject", "-", stdin=b"\xff\xfe\0A\0n")


def test_what_an_editor_writes_before_a_subject_is_not_looked_for(shell: Shell) -> None:
    shell.ok("topics", "create", "t", "k string", "--key", "k")
    produced(shell, "t", {"k": "Ann Example"})
    assert shell("verify", "--subject", "-", stdin=b"\xef\xbb\xbfAnn Example\r\n").code == 3


def test_a_place_where_a_subject_could_not_be_looked_for_is_named(shell: Shell) -> None:
    shell.ok("topics", "create", "t", "k string", "--key", "k")
    (shell.home / os.fsdecode(b"\xff.db")).write_bytes(b"SQLite format 3\0, but none")
    found = shell("verify", "--subject", "-", stdin=b"Ann Example")
    named = {"place": "\ufffd.db: its tables", "form": "not read: file is not a database", "times": 0}
    assert found.code == 3 and found.rows == [named]
    assert "found in 0 places; 1 place could not be read" in found.err


def test_the_doctor_says_that_an_erasure_did_not_end(numbers: Shell) -> None:
    (numbers.home / "erasing").write_text("numbers")  # as a kill leaves it
    (found,) = (row for row in numbers.ok("doctor").rows if row["check"] == "erasure")
    assert (found["state"], found["found"]) == ("warn", "one from topic numbers has begun, and did not end")
    numbers.ok("erase", "numbers", "3", "--yes")
    assert "erasure" not in {row["check"] for row in numbers.ok("doctor").rows}


def test_no_text_is_not_the_null_key(shell: Shell) -> None:
    shell.ok("topics", "create", "t", "n int", "--key", "n")
    produced(shell, "t", {"n": None})
    assert "is empty, and column 'n' is not text" in shell.refused("erase", "t", "", "--yes")
    assert shell.ok("consume", "t").rows == [{"n": None}]


def test_keys_are_typed(numbers: Shell) -> None:
    numbers.ok("produce", "numbers", stdin=b'{"n": -5}')
    assert numbers.ok("erase", "numbers", "7", "--yes").rows[0]["records"] == 1
    assert numbers.ok("erase", "numbers", "--yes", "--", "-5").rows[0]["records"] == 1
    assert "'x' is not a whole number" in numbers.refused("erase", "numbers", "x", "--yes")
    assert "has 1 part: n" in numbers("erase", "numbers", "7", "8", "--yes").err
    numbers.ok("topics", "create", "plain", "x int")
    assert "topic 'plain' has no key" in numbers("erase", "plain", "1", "--yes").err
    assert "reserved for headrace itself" in numbers.refused("erase", "__dead_letters", "1", "--yes")


def test_an_erasure_that_is_incomplete_says_so_and_is_finished_later(numbers: Shell) -> None:
    reader = sqlite3.connect(numbers.home / "log.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM batches").fetchone()  # from here on it needs the write-ahead log
    done = numbers("erase", "numbers", "7", "--yes")
    assert done.code == 1
    assert done.rows[0]["records"] == 1
    why = "the index's write-ahead log: a process is reading the index. Try again in a moment"
    (left,) = (row for row in done.rows if row["done"] == "left")
    assert f"{left['place']}: {left['do']}" == why
    assert "headrace: 1 place may still have it: see do" in done.err
    upkeep = next(row for row in numbers.ok("doctor").rows if row["check"] == "upkeep")
    assert (upkeep["state"], upkeep["found"]) == ("warn", "an erasure still has bytes to overwrite")
    assert numbers("maintain").code == 1
    reader.close()
    assert numbers.ok("maintain").rows[0]["incomplete"] == []
    with hr.open_log(numbers.home) as log:
        assert not log.usage().wipe_due


def test_as_processes(numbers: Shell, spawn: Spawner) -> None:
    assert spawn.done("erase", "numbers", "3", "--yes").code == 0
    done = spawn.done("maintain")
    assert (done.code, done.err) == (0, "")
    assert len(numbers.ok("consume", "numbers").rows) == 9
