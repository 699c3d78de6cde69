"""`headrace consume`: from where, how far, what of it; and in a group, printed before committed."""

import json

import pyarrow as pa
import pytest

import headrace as hr
from tests.cli.conftest import Shell


def users(shell: Shell, *args: str) -> list[str]:
    return [row["user"] for row in shell.ok("consume", "clicks", *args).rows]


def test_everything_in_order_of_arrival(clicks: Shell) -> None:
    clicks.ok("produce", "clicks", stdin=b'{"user":"bob","ms":9,"at":"2026-01-01T00:00:09Z"}')
    found = users(clicks)
    assert sorted(found[:3]) == ["ann", "bob", "cat"]
    assert found[3] == "bob"
    assert len(users(clicks, "--max", "2")) == 2
    assert users(clicks, "--key", "bob") == ["bob", "bob"]
    assert users(clicks, "--start", "latest") == []
    assert sorted(users(clicks, "--partition", "0") + users(clicks, "--partition", "1")) == sorted(found)


def test_the_order_is_that_of_records(shell: Shell) -> None:
    shell.ok("topics", "create", "n", "x int", "--partitions", "3")
    with hr.open_log(shell.home) as log:
        topic = log.topic("n")
        for first in range(0, 60, 4):
            topic.append([{"x": x} for x in range(first, first + 4)])
        expected = [(r.partition, r.offset, r.value["x"]) for r in topic.records()]
    for args in ((), ("--follow", "--max", "60")):
        rows = shell.ok("consume", "n", "--meta", *args).rows
        assert [(row["_partition"], row["_offset"], row["x"]) for row in rows] == expected


def test_starts(clicks: Shell) -> None:
    with hr.open_log(clicks.home) as log:
        ends = {number: at.next for number, at in log.topic("clicks").offsets().items()}
        (last,) = clicks.ok("consume", "clicks", "--meta", "--key", "cat").rows
    behind = ",".join(f"{number}:{end}" for number, end in ends.items())
    assert users(clicks, "--start", behind) == []
    assert users(clicks, "--start", "2000-01-01T00:00:00Z") == users(clicks)
    assert users(clicks, "--start", "2999-01-01T00:00:00Z") == []
    assert users(clicks, "--start", last["_arrived_at"], "--key", "cat") == ["cat"]
    assert "is beyond the end" in clicks.refused("consume", "clicks", "--start", "0:99")


@pytest.mark.parametrize("start", ["sometime", "2026-01-01T00:00:00", "0:1,0:2", "0:x", "9:0", ""])
def test_starts_that_make_no_sense(clicks: Shell, start: str) -> None:
    assert clicks("consume", "clicks", "--start", start).code == 2


def test_columns_and_metadata(clicks: Shell) -> None:
    rows = clicks.ok("consume", "clicks", "--columns", "ms,user", "--meta").rows
    assert list(rows[0]) == ["ms", "user", "_partition", "_offset", "_arrived_at", "_progress"]
    assert clicks("consume", "clicks", "--columns", "mss").code == 2
    followed = clicks.ok("consume", "clicks", "--columns", "ms,user", "--meta", "--follow", "--max", "3").rows
    assert sorted(map(json.dumps, followed)) == sorted(map(json.dumps, rows))
    done = clicks("produce", "clicks", stdin=json.dumps(rows[0]).encode())
    assert (done.code, "leave --meta out" in done.err) == (1, True)


def test_every_format_shows_the_same(clicks: Shell) -> None:
    rows = clicks.ok("consume", "clicks").rows
    assert clicks.ok("consume", "clicks", "--format", "csv").text.splitlines() == [
        "user,ms,at",
        *(f"{row['user']},{row['ms']},{row['at']}" for row in rows),
    ]
    table = pa.ipc.open_stream(clicks.ok("consume", "clicks", "--format", "arrow").out).read_all()
    assert sorted(table.column("ms").to_pylist()) == sorted(row["ms"] for row in rows)  # batch by batch
    some = clicks.ok("consume", "clicks", "--format", "arrow", "--meta", "--columns", "ms", "--max", "2").out
    assert pa.ipc.open_stream(some).read_all().shape == (2, 5)
    shown = clicks.ok("consume", "clicks", "--format", "table").text.splitlines()
    assert [line.split() for line in shown] == [
        ["user", "ms", "at"],
        *([row["user"], str(row["ms"]), row["at"]] for row in rows),
    ]


@pytest.mark.parametrize("format_", ["json", "csv", "table", "arrow"])
def test_an_empty_topic(shell: Shell, format_: str) -> None:
    shell.ok("topics", "create", "e", "x int")
    done = shell.ok("consume", "e", "--format", format_)
    assert done.err == ("no records\n" if format_ == "table" else "")
    out = done.out
    if format_ == "arrow":
        assert pa.ipc.open_stream(out).read_all().num_rows == 0
    else:
        assert out == (b"x\n" if format_ == "csv" else b"")


def test_a_group_goes_on_where_it_was(clicks: Shell) -> None:
    first = users(clicks, "--group", "g", "--max", "2")
    rest = users(clicks, "--group", "g")
    assert sorted(first + rest) == ["ann", "bob", "cat"]
    assert users(clicks, "--group", "g") == []
    assert users(clicks, "--group", "new", "--start", "latest") == []
    assert users(clicks, "--group", "new") == []  # latest was committed, though nothing was read
    assert users(clicks, "--group", "g", "--follow", "--timeout", "10 ms") == []


def test_following_stops_after_a_while_without_records(clicks: Shell) -> None:
    assert len(users(clicks, "--follow", "--timeout", "10 ms")) == 3


def test_composite_and_typed_keys(shell: Shell) -> None:
    shell.ok("topics", "create", "k", "a int, d date, v string", "--key", "a,d")
    shell.ok("produce", "k", stdin=b'{"a":1,"d":"2026-01-01","v":"x"}\n{"a":2,"d":"2026-01-01","v":"y"}')
    assert shell.ok("consume", "k", "--key", "2,2026-01-01").rows[0]["v"] == "y"
    assert shell("consume", "k", "--key", "2").code == 2
    assert "is not a whole number" in shell.refused("consume", "k", "--key", "two,2026-01-01")


@pytest.mark.parametrize(
    "args",
    [
        ("--group", "g", "--key", "x"),
        ("--group", "g", "--partition", "0"),
        ("--timeout", "1 s"),
        ("--lease", "1 s"),
        ("--max", "0"),
    ],
)
def test_options_that_do_not_go_together(clicks: Shell, args: tuple[str, ...]) -> None:
    assert clicks("consume", "clicks", *args).code == 2


def test_a_partition_that_is_not_there(clicks: Shell) -> None:
    assert "has 0..1" in clicks.refused("consume", "clicks", "--partition", "7")
