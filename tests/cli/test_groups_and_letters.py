"""`headrace groups …` and `headrace dead …`."""

from datetime import UTC, datetime, timedelta

import headrace as hr
from tests.cli.conftest import Shell


def test_groups(clicks: Shell) -> None:
    assert clicks.ok("groups", "list").err == "No groups yet. Join one: headrace consume TOPIC --group NAME\n"
    clicks.ok("consume", "clicks", "--group", "g")
    (row,) = clicks.ok("groups", "list").rows
    assert row == {
        "group": "g",
        "topic": "clicks",
        "members": 0,
        "lag_records": 0,
        "lag_seconds": 0.0,
        "time_to_loss_seconds": None,
    }
    assert clicks.ok("groups", "list", "clicks").rows == [row]
    rewound = clicks.ok("groups", "rewind", "g", "clicks", "--start", "earliest").rows
    assert rewound == [{"partition": 0, "committed": 0}, {"partition": 1, "committed": 0}]
    assert len(clicks.ok("consume", "clicks", "--group", "g").rows) == 3
    with hr.open_log(clicks.home) as log, log.topic("clicks").group("g").join():
        (shown,) = clicks.ok("groups", "show", "g", "clicks").rows
        (member,) = shown["members"]
        assert (member["partitions"], member["alive"]) == ([0, 1], True)
        assert [part["member"] for part in shown["partitions"]] == [member["member"]] * 2
        assert "joined_at" in clicks.ok("groups", "show", "g", "clicks", "--format", "table").text
    assert clicks("groups", "delete", "g", "clicks").code == 2
    clicks.ok("groups", "delete", "g", "clicks", "--yes")
    assert "has no group 'g'" in clicks.refused("groups", "show", "g", "clicks")


def test_rewind_to_a_time(clicks: Shell) -> None:
    (row,) = clicks.ok("consume", "clicks", "--key", "ann", "--meta").rows
    clicks.ok("groups", "rewind", "g", "clicks", "--start", row["_arrived_at"])
    assert len(clicks.ok("consume", "clicks", "--group", "g").rows) == 3
    assert clicks("groups", "rewind", "g", "clicks").code == 2


def test_groups_without_a_log(shell: Shell) -> None:
    assert shell.ok("groups", "list").out == b""
    assert shell.ok("dead", "list").out == b""
    assert "there is no log" in shell.refused("groups", "list", "clicks")
    assert not shell.home.exists()


def test_the_trace_of_an_error_is_read_as_lines_of_its_own(clicks: Shell) -> None:
    error = "ValueError: no such address\nTraceback (most recent call last):\n\tat \x1b[31m line 4"
    with hr.open_log(clicks.home) as log:
        log.topic("clicks").bury([{"reason": "poison", "error": error, "source": "x", "raw": b"{}"}])
    assert clicks.ok("dead", "list").rows[0]["error"] == error
    listed = clicks.ok("dead", "list", "--format", "table").text
    assert "ValueError: no such address" in listed and "Traceback" not in listed
    shown = clicks.ok("dead", "show", "0", "--format", "table").text.splitlines()
    assert shown[-2:] == ["Traceback (most recent call last):", "    at \\x1b[31m line 4"] and shown[-3] == ""


def test_dead_letters(clicks: Shell) -> None:
    ahead = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    clicks.ok("produce", "clicks", "--dead-letters", stdin=b"bad\n" + f'{{"user":"u","at":"{ahead}"}}'.encode())
    found = {letter["reason"]: letter["id"] for letter in clicks.ok("dead", "list").rows}
    bad, early = str(found["bad_input"]), str(found["max_ahead"])
    (shown,) = clicks.ok("dead", "show", bad).rows
    assert (shown["value"], shown["source"], shown["topic"]) == ("bad", "stdin:1", "clicks")
    assert "source" in clicks.ok("dead", "show", bad, "--format", "table").text

    done = clicks("dead", "replay", bad, early)
    assert done.code == 1
    assert "is not a row of a topic" in done.err
    assert "0 replayed, 2 not" in done.err
    clicks.ok("topics", "alter", "clicks", "--max-ahead", "3 hours")
    clicks.ok("dead", "replay", early)
    assert any(row["user"] == "u" for row in clicks.ok("consume", "clicks").rows)

    for command in (("topics", "delete", "--yes"), ("topics", "alter", "--retention", "1 day"), ("produce",)):
        assert "reserved for headrace itself" in clicks.refused(*command, "__dead_letters")
    assert len(clicks.ok("consume", "__dead_letters").rows) == 2
    assert clicks("dead", "drop", bad).code == 2
    assert clicks("dead", "drop").code == 2
    assert clicks("dead", "drop", bad, "--all").code == 2
    clicks.ok("dead", "drop", "--all", "--topic", "clicks", "--yes")
    assert clicks.ok("dead", "list").err == "No dead letters.\n"
    assert "there is no such dead letter" in clicks.refused("dead", "show", bad)
