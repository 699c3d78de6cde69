"""`headrace topics …`: what is asked for is made, shown and deleted; refusals are one line that says what to do."""

import time

import pytest

from tests.cli.conftest import Shell


def test_no_log_is_no_error_and_stays_no_log(shell: Shell) -> None:
    done = shell.ok("topics", "list")
    assert done.out == b""
    assert done.err == 'No topics yet. Create one: headrace topics create clicks "user string, at timestamp"\n'
    assert not shell.home.exists()


def test_created_with_every_setting(shell: Shell) -> None:
    shell.ok(
        *("topics", "create", "orders", "id bigint NOT NULL, user string, at timestamp", "--key", "user,id"),
        *("--event-time", "at", "--partitions", "3", "--retention", "30 days", "--retention-bytes", "1000000"),
        *("--cleanup", "compact", "--durability", "os", "--versioned", "--max-ahead", "5 minutes", "--extra", "keep"),
        *("--unread", "keep", "--tombstone-grace", "2 hours", "--compression", "lz4"),
    )
    (row,) = shell.ok("topics", "list").rows
    assert row == {
        "topic": "orders",
        "records": 0,
        "bytes": 0,
        "partitions": 3,
        "key": ["user", "id"],
        "event_time": "at",
        "retention": "30 days",
        "cleanup": "compact",
        "durability": "os",
        "schema": "id bigint NOT NULL, user string, at timestamp",
    }
    (shown,) = shell.ok("topics", "show", "orders").rows
    assert shown["versioned"] is True
    assert shown["retention_bytes"] == 1_000_000
    assert (shown["unread"], shown["tombstone_grace"]) == ("keep", "2 hours")
    assert shown["max_ahead"] == "5 minutes"
    assert (shown["extra"], shown["compression"]) == ("keep", "lz4")
    assert [part["next"] for part in shown["partitions"]] == [0, 0, 0]


def test_a_topic_that_exists(shell: Shell) -> None:
    shell.ok("topics", "create", "a", "x int")
    assert shell.refused("topics", "create", "a", "x int").startswith("topic 'a' exists already.")
    assert "is there already" in shell.ok("topics", "create", "a", "x int", "--exist-ok").err


def test_altered(clicks: Shell) -> None:
    clicks.ok(
        "topics", "alter", "clicks", "--retention", "7 days", "--add-column", "country string", "--partitions", "3"
    )
    (shown,) = clicks.ok("topics", "show", "clicks").rows
    assert shown["schema"] == "user string, ms int, at timestamp, country string"
    assert (shown["retention"], len(shown["partitions"])) == ("1 week", 3)
    assert shown["compression"] == "zstd"
    clicks.ok("topics", "alter", "clicks", "--retention", "none", "--compression", "none")
    clicks.ok("topics", "alter", "clicks", "--schema", "user string, ms bigint, at timestamp, country string")
    (shown,) = clicks.ok("topics", "show", "clicks").rows
    assert (shown["retention"], shown["schema_version"], shown["compression"]) == (None, 3, "none")
    assert "column 'ms' cannot change" in clicks.refused(
        "topics", "alter", "clicks", "--schema", "user string, ms string, at timestamp, country string"
    )
    assert clicks("topics", "alter", "clicks").code == 2
    assert clicks("topics", "alter", "clicks", "--retention-bytes", "many").code == 2


def test_shown_with_partitions_and_groups(clicks: Shell) -> None:
    clicks.ok("consume", "clicks", "--group", "g", "--max", "1")
    (shown,) = clicks.ok("topics", "show", "clicks").rows
    assert sum(part["next"] for part in shown["partitions"]) == 3
    assert max(part["progress"] or "" for part in shown["partitions"]) == "2026-01-01T00:00:02Z"
    (group,) = shown["groups"]
    assert (group["group"], group["members"], group["lag_records"]) == ("g", 0, 2)
    assert group["lag_seconds"] >= 0


def test_shown_of_a_log_on_kafka_without_what_it_does_not_know(
    shell: Shell, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LOG", f"kafka://{broker}?prefix=shown{time.time_ns()}.")
    shell.ok("topics", "create", "clicks", "user string, at timestamp", "--key", "user", "--event-time", "at")
    shell.ok("produce", "clicks", stdin=b'{"user":"ann","at":"2026-01-01T09:00:05Z"}')
    shell.ok("consume", "clicks", "--group", "billing")
    (shown,) = shell.ok("topics", "show", "clicks").rows
    assert (shown["records"], shown["key"], shown["partitions"][0]["next"]) == (1, ["user"], 1)
    assert [group["group"] for group in shown["groups"]] == ["billing"] and "batches" not in shown
    assert shell.refused("maintain").startswith("this command is for a log in a directory: ")


def test_deleted_only_when_meant(clicks: Shell) -> None:
    done = clicks("topics", "delete", "clicks")
    assert done.code == 2
    assert "This would delete topic clicks and its 3 records. Say --yes" in done.err
    clicks.ok("topics", "delete", "clicks", "--yes")
    assert clicks.refused("topics", "show", "clicks").startswith("there is no topic 'clicks', and no other.")


def test_refusals_say_what_to_do(clicks: Shell) -> None:
    assert clicks.refused("topics", "show", "click") == (
        "there is no topic 'click'. Did you mean 'clicks'? There are: clicks."
    )
    assert "at character" in clicks.refused("topics", "create", "b", "x integ")
    assert "'zz'" in clicks.refused("topics", "create", "b", "x int", "--key", "zz")
    assert "There are: x" in clicks.refused("topics", "create", "b", "x int", "--event-time", "at")
    assert "there are 2, and never fewer" in clicks.refused("topics", "alter", "clicks", "--partitions", "1")
    assert "partitions 0" in clicks.refused("topics", "create", "b", "x int", "--partitions", "0")
    missing = clicks.refused("topics", "show", "clicks", "--home", "/nowhere")
    assert missing.startswith("there is no log in /nowhere. Name another directory with --home, or begin one:")


def test_home_before_and_after_the_command(clicks: Shell, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("HEADRACE_HOME")
    home = str(clicks.home)
    for args in (
        ("--home", home, "topics", "list"),
        ("topics", "--home", home, "list"),
        ("topics", "list", "--home", home),
    ):
        assert clicks.ok(*args).rows[0]["topic"] == "clicks"


def test_every_format(clicks: Shell) -> None:
    import pyarrow as pa

    assert clicks.ok("topics", "list", "--format", "csv").text.splitlines()[1].startswith("clicks,3,")
    assert "clicks" in clicks.ok("topics", "list", "--format", "table").text
    table = pa.ipc.open_stream(clicks.ok("topics", "list", "--format", "arrow").out).read_all()
    assert table.column("topic").to_pylist() == ["clicks"]
    assert "event_time" in clicks.ok("topics", "show", "clicks", "--format", "table").text


def test_data_cannot_drive_the_terminal(shell: Shell) -> None:
    shell.ok("topics", "create", "a", "s string")
    shell.ok("produce", "a", stdin=b'{"s": "\\u001b]0;owned\\u0007\xc2\x9b\xe2\x80\xae"}')
    text = shell.ok("consume", "a", "--format", "table").text
    assert r"\x1b]0;owned\x07\x9b\u202e" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}
    refused = shell.refused("topics", "show", "\x1b[31mno")
    assert "\x1b" not in refused


def test_an_event_time_that_is_a_number_is_told_what_to_do(shell: Shell) -> None:
    said = shell.refused("topics", "create", "clicks", "ms bigint", "--event-time", "ms")
    assert "is bigint; it must be a timestamp" in said and "window(…, time=…)" in said
