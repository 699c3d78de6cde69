"""Commands that read views, without Spark: the store is driven directly."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli.query import value_of
from headrace.durations import from_us, instant_us
from headrace.position import Position
from headrace.views.contract import FlowSpec, LedgerRow, Place, feed_topic
from headrace.views.sqlite.store import SqliteViews
from tests.cli.conftest import COMMAND, SECONDS_MAX, Shell, Spawner, environment
from tests.cli.test_process import completed, on_terminal
from tests.views.committing import MINUTE_US, SPEC, START, VIEW, Committing

START_US = instant_us(START, argument="start")


@pytest.fixture
def committing(shell: Shell) -> Iterator[Committing]:
    """A topic of five records, of which the view has read three; one window is final, one open."""
    with hr.open_log(shell.home) as log:
        clicks = log.create_topic("clicks", "user string, at timestamp", key="user", event_time="at")
        clicks.append([{"user": f"u{i}", "at": START} for i in range(5)])
        topic_id = clicks.describe().topic_id
    with Committing(shell.home, topic_id=topic_id) as made:
        made.commit(
            [(0, "/", 10), (0, "/cart", 5), (1, "/", 7)],
            closed=1,
            ledger=[
                LedgerRow(START_US, START_US + MINUTE_US, on_time=2, corrected=1),
                LedgerRow(START_US + MINUTE_US, START_US + 2 * MINUTE_US, on_time=1, dropped=4),
                LedgerRow(None, None, untimed=2),
            ],
        )
        yield made


FIRST = {
    "window_start": "2026-01-01T09:00:00Z",
    "window_end": "2026-01-01T09:01:00Z",
    "page": "/",
    "clicks": 1,
    "ms": 10.0,
    "slowest": 10,
    "_status": "final",
    "_corrections": 0,
    "_updated_at": "2026-01-01T09:00:10Z",
}


# -- query ---------------------------------------------------------------------------------------------


def test_a_view_by_its_name(shell: Shell, committing: Committing) -> None:
    rows = shell.ok("query", VIEW).rows
    assert rows[0] == FIRST
    assert [(row["page"], row["_status"]) for row in rows] == [("/", "final"), ("/cart", "final"), ("/", "open")]
    lines = shell.ok("query", VIEW, "--format", "csv").text.splitlines()
    assert lines[1] == "2026-01-01T09:00:00Z,2026-01-01T09:01:00Z,/,1,10.0,10,final,0,2026-01-01T09:00:10Z"
    table = pa.ipc.open_stream(io.BytesIO(shell.ok("query", VIEW, "--format", "arrow").out)).read_all()
    assert table.equals(committing.views.to_arrow(VIEW))
    shown = shell.ok("query", VIEW, "--format", "table").text.splitlines()
    assert shown[0].split()[:3] == ["window_start", "window_end", "page"] and len(shown) == 4


def test_sql_and_bound_parameters(shell: Shell, committing: Committing) -> None:
    sql = f"select window_start, page, clicks, ms from {VIEW} where page = ? and clicks >= ? and window_start >= ?"
    (row,) = shell.ok("query", sql, *("--param", "/", "--param", "1", "--param", "2026-01-01T09:01:00Z")).rows
    assert row == {"window_start": "2026-01-01T09:01:00Z", "page": "/", "clicks": 1, "ms": 7.0}
    assert shell.ok("query", f"select * from {VIEW} where page = ?", "--param", "/' or 1=1 --").rows == []
    assert shell.ok("query", f"select count(*) as n from {VIEW} limit ?", "--param", "1").rows == [{"n": 3}]
    arrow = shell.ok("query", "select 1 as a, 'x' as b", "--format", "arrow").out
    assert pa.ipc.open_stream(io.BytesIO(arrow)).read_all().to_pylist() == [{"a": 1, "b": "x"}]
    assert shell.ok("query", f"select page from {VIEW} where 0", "--format", "csv").text == "page\n"
    del committing


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        ("0.5", 0.5),
        ("1.0", 1.0),
        ("2026-01-01T10:00:00+01:00", START),
        *((text, text) for text in ("007", "+7", "1e3", "0.50", "-0", "2026-01-01", "2026-01-01T10:00:00", "", "null")),
        ("9" * 30, "9" * 30),
    ],
)
def test_what_a_parameter_stands_for(text: str, value: object) -> None:
    assert (value_of(text), type(value_of(text))) == (value, type(value))


@pytest.mark.parametrize("text", ["7", "-7", "0", "0.5", "1.0", "123456.654321", "-99.25"])
def test_a_number_equals_its_text_in_a_text_column(text: str) -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE t (s TEXT)")
    db.execute("INSERT INTO t VALUES (?)", (text,))
    assert db.execute("SELECT count(*) FROM t WHERE s = ?", (value_of(text),)).fetchone() == (1,)
    db.close()


def test_what_query_refuses(shell: Shell, committing: Committing) -> None:
    assert "Did you mean 'clicks_per_page'?" in shell.refused("query", "clicks_per_pag")
    assert "there is no view 'nowhere'" in shell.refused("query", "select * from nowhere")
    assert 'near "selct": syntax error' in shell.refused("query", "selct 1")
    for sql in (
        f'delete from "{VIEW}/rows"',
        f'update "{VIEW}/rows" set clicks = 9',
        "create table t (x)",
        "drop table _flows",
        "attach 'x.db' as x",
        "pragma journal_mode = delete",
    ):
        assert "only reading is possible" in shell.refused("query", sql), sql
    assert "one statement" in shell.refused("query", "select 1; select 2")
    assert "1, and there are 0" in shell.refused("query", "select ?")
    assert "returns no columns" in shell.refused("query", " ")
    assert "cannot be read" in shell.refused("query", VIEW, "--wait-for", "nonsense")
    for usage in (("--param", "1"), ("--timeout", "1 s")):
        assert shell("query", VIEW, *usage).code == 2
    assert len(committing.rows()) == 3
    assert committing.views.query("select count(*) as n from _flows").to_pylist() == [{"n": 1}]


def test_waiting_for_a_position(shell: Shell, committing: Committing) -> None:
    with hr.open_log(shell.home) as log:
        position = log.topic("clicks").append([{"user": "me", "at": START}]).position
    line = shell.refused("query", VIEW, "--wait-for", str(position), "--timeout", "0 seconds")
    assert line == f"waited 0 s for the views to be at {position} (behind: {VIEW}): does their app run?"
    assert shell("query", VIEW, "--wait-for", "latest", "--timeout", "1 ms").code == 1
    waiting = threading.Thread(target=lambda: (reading.wait(), committing.commit([(1, "/me", 1)] * 3)))
    reading = threading.Event()
    waiting.start()
    reading.set()
    rows = shell.ok("query", VIEW, "--wait-for", "latest", "--timeout", "30 seconds").rows
    waiting.join()
    assert rows[-1]["page"] == "/me"  # one reads what one wrote
    assert shell.ok("query", VIEW, "--wait-for", str(position)).rows == rows


def test_waiting_for_a_view_that_has_read_nothing_yet(shell: Shell, committing: Committing) -> None:
    assert SPEC.view is not None
    committing.store.begin(replace(SPEC, name="new", view=replace(SPEC.view, name="new")))
    position = committing.views.status(VIEW).position
    assert shell("query", "new", "--wait-for", str(position), "--timeout", "1 ms").code == 1


def test_large_results_are_streamed(shell: Shell, committing: Committing, spawn: Spawner) -> None:
    """A result without end is printed as it comes, and ends with its reader."""
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select i, 'x' as x from n"
    process = spawn("query", endless)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b'{"i":1,"x":"x"}\n'
    process.stdout.close()
    assert process.wait(SECONDS_MAX) == 0
    assert process.stderr.read() == b""
    del shell, committing


def test_ctrl_c_ends_a_query_that_prints_nothing(shell: Shell, committing: Committing) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select sum(i) from n"
    program = (
        "import os, signal, sys, threading; from headrace.cli import run\n"
        "from headrace.views.sqlite.reading import SqliteReading as Views\n"
        "begun = Views._explaining\n"
        "def explaining(self, *asked):\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    return begun(self, *asked)\n"
        "Views._explaining = explaining\n"
        "sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, "query", endless], timeout=SECONDS_MAX, capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"")
    del shell, committing


# -- views ---------------------------------------------------------------------------------------------


def test_a_view_behind_another_flow_is_as_far_as_both(shell: Shell, committing: Committing) -> None:
    """Of the five records the flow before it has read four, and the view has what was made of them but for one."""
    assert SPEC.view is not None
    before = replace(SPEC, name="behind.dedup", view=None, target="__records.behind.dedup", parent="behind")
    behind = replace(SPEC, name="behind", sources=(str(before.target),), view=replace(SPEC.view, name="behind"))
    committing.commit([(1, "/", 1), (1, "/", 1)])  # the other view has all
    with Committing(shell.home, before, committing.topic_id) as one, Committing(shell.home, behind, "ee") as two:
        for records, written in (3, 3), (1, 4):
            one.commit([(0, "/", 1)] * records, partials=None)
            one.store.note_relayed(one.flow, -1, Position.of(str(before.target), "ee", {0: written}))
        two.commit(places={str(before.target): {0: Place(3, None)}}, topic_ids={str(before.target): "ee"})
        listed = {row["view"]: row["lag_records"] for row in shell.ok("views", "list").rows}
        assert listed == {VIEW: 0, "behind": 2}
        (shown,) = shell.ok("views", "show", "behind").rows
        assert [(each["topic"], each["offset"], each["lag_records"]) for each in shown["sources"]] == [("clicks", 3, 2)]
        assert shell.ok("query", "behind", "--wait-for", shown["position"]).rows == []
        for wait in ("latest", f"clicks~{committing.topic_id}:0=4"):
            assert shell("query", "behind", "--wait-for", wait, "--timeout", "1 ms").code == 1


def test_list(shell: Shell, committing: Committing) -> None:
    (row,) = shell.ok("views", "list").rows
    at = row.pop("committed_at")
    assert from_us(instant_us(at, argument="at")) == committing.views.status(VIEW).committed_at
    assert row == {
        "view": VIEW,
        "app": "shop",
        "rows": 3,
        "commits": 1,
        "frontier": "2026-01-01T09:01:00Z",
        "lag_records": 2,  # 5 appended, 3 read
        "running": True,
    }
    assert "yes" in shell.ok("views", "list", "--format", "table").text


def test_show(shell: Shell, committing: Committing) -> None:
    (shown,) = shell.ok("views", "show", VIEW).rows
    assert (shown["window"], shown["grace"], shown["late"]) == (
        "tumbling('1 minute')",
        "10 seconds",
        "correct within 1 hour",
    )
    assert shown["columns"][:3] == [
        {"column": "window_start", "type": "timestamp"},
        {"column": "window_end", "type": "timestamp"},
        {"column": "page", "type": "string"},
    ]
    assert {"name": "ms", "aggregate": "avg('ms')"} in shown["aggregates"]
    assert shown["sources"] == [
        {
            "topic": "clicks",
            "partition": 0,
            "offset": 3,
            "next": 5,
            "lag_records": 2,
            "progress": "2026-01-01T09:01:00Z",
        }
    ]
    assert (shown["rows_in"], shown["on_time"], shown["corrected"], shown["dropped"], shown["untimed"]) == (
        *(10, 3, 1, 4),
        2,
    )
    assert (shown["pid"], shown["host"], shown["position"]) == (
        os.getpid(),
        socket.gethostname(),
        str(committing.views.status(VIEW).position),
    )
    assert "correct within 1 hour" in shell.ok("views", "show", VIEW, "--format", "table").text
    assert "Did you mean 'clicks_per_page'?" in shell.refused("views", "show", "clicks_per_pages")


def test_lag_of_a_topic_that_was_made_again_is_not_known(shell: Shell, committing: Committing) -> None:
    with hr.open_log(shell.home) as log:
        log.delete_topic("clicks")
    assert shell.ok("views", "list").rows[0]["lag_records"] is None
    with hr.open_log(shell.home) as log:
        log.create_topic("clicks", "user string")
    (source,) = shell.ok("views", "show", VIEW).rows[0]["sources"]
    assert (source["offset"], source["next"], source["lag_records"]) == (3, None, None)
    del committing


def test_whether_its_process_runs(shell: Shell, committing: Committing) -> None:
    def running(**facts: Any) -> bool | None:
        with committing.store.transaction() as db:
            sets = ", ".join(f"{name} = :{name}" for name in facts)
            db.execute(f"UPDATE _flows SET {sets}", facts)
        found: bool | None = shell.ok("views", "list").rows[0]["running"]
        return found

    assert running(pid=os.getpid()) is True
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if sys.platform == "linux":
        assert running(pid=child.pid) is False  # dead, though its parent has not asked
        assert running(pid=os.getpid(), started_at="2026-01-01 00:00:00") is False  # its number was given away again
    child.wait()
    assert running(pid=child.pid) is False
    assert running(host="elsewhere") is None
    assert shell.ok("views", "drop", VIEW, "--yes").out == b""  # what runs elsewhere is fenced


def test_drop(shell: Shell, committing: Committing) -> None:
    assert shell.refused("views", "drop", VIEW, "--yes") == (
        f"view {VIEW!r} is written by process {os.getpid()} on {socket.gethostname()}. Stop that one first; with "
        "--force its next commit is refused, and it stops."
    )
    with hr.open_log(shell.home) as log:  # as its flow would have told it
        log.report(VIEW, [(log.topic("clicks"), {0: 3})]).result()
    (listed,) = shell.ok("groups", "list").rows
    assert (listed["group"], listed["members"], listed["lag_records"]) == (f"__flow.{VIEW}", None, 2)
    shown = shell.ok("groups", "show", f"__flow.{VIEW}", "clicks").rows[0]
    assert shown["partitions"][0]["committed"] == 3
    assert "headrace views drop" in shell.refused("groups", "rewind", f"__flow.{VIEW}", "clicks", "--start", "earliest")
    assert shell("views", "drop", VIEW, "--force").code == 2  # nobody to ask
    assert committing.views.names() == [VIEW]
    assert "3 rows are dropped" in shell.ok("views", "drop", VIEW, "--yes", "--force").err
    assert committing.views.names() == []
    assert shell.ok("groups", "list").rows == []
    with pytest.raises(hr.FlowFenced):
        committing.commit([(0, "/", 1)])
    assert "there is no view" in shell.refused("views", "drop", VIEW, "--yes")


def test_the_ledger(shell: Shell, committing: Committing) -> None:
    rows = shell.ok("ledger", VIEW).rows
    assert [tuple(row.values()) for row in rows] == [
        (None, None, 0, 0, 0, 2),
        ("2026-01-01T09:00:00Z", "2026-01-01T09:01:00Z", 2, 1, 0, 0),
        ("2026-01-01T09:01:00Z", "2026-01-01T09:02:00Z", 1, 0, 4, 0),
    ]
    lines = shell.ok("ledger", VIEW, "--format", "table").text.splitlines()
    assert lines[-1] == "10 rows in = 3 on time + 1 corrected + 4 dropped + 2 untimed"
    arrow = shell.ok("ledger", VIEW, "--format", "arrow").out
    assert pa.ipc.open_stream(io.BytesIO(arrow)).read_all().equals(committing.views.ledger(VIEW))
    assert (
        shell.ok("ledger", VIEW, "--format", "csv").text.splitlines()[0].startswith("window_start,window_end,on_time")
    )


@pytest.mark.usefixtures("committing")
def test_the_ledger_behind_dedup_says_where_the_rest_is(shell: Shell) -> None:
    assert shell.ok("ledger", VIEW).err == ""
    name = f"{VIEW}.dedup"
    with SqliteViews(shell.home) as store:
        store.begin(FlowSpec(name, SPEC.app, ("clicks",), None, target=feed_topic(name, "updates"), parent=VIEW))
    assert shell.ok("ledger", VIEW).err == f"repetitions, and records too late for dedup(…): headrace ledger {name}\n"
    assert shell.ok("ledger", name).err == ""


# -- nothing there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [False, True])
def test_before_there_is_a_view(shell: Shell, topics: bool) -> None:
    if topics:
        shell.ok("topics", "create", "clicks", "user string")
    done = shell.ok("views", "list")
    assert (done.out, done.err) == (
        b"",
        "No views yet. The first run of an app creates its views: headrace run APP.py\n",
    )
    for command in (("query", "x"), ("views", "show", "x"), ("views", "drop", "x"), ("ledger", "x"), ("watch", "x")):
        line = shell.refused(*command)
        assert line.startswith(f"there is no view 'x', and no other, in {shell.home}. The first run of an app"), command
    assert shell.refused("query", "select 1").startswith(f"there are no views in {shell.home}.")
    assert "position" in shell.refused(
        "query", "x", "--wait-for", "nonsense", "--timeout", "1 hour"
    )  # waits for nothing
    assert not (shell.home / "views.db").exists()


def test_while_the_first_app_makes_its_store(shell: Shell) -> None:
    shell.ok("topics", "create", "clicks", "user string")
    (shell.home / "views.db").touch()
    assert shell.ok("views", "list").err.startswith("No views yet.")
    assert shell.refused("query", "select 1").startswith(f"there are no views in {shell.home}.")
    for command in (("query", "x"), ("views", "show", "x"), ("ledger", "x"), ("watch", "x")):
        assert shell.refused(*command).startswith("there is no view 'x', and no other"), command


# -- watch ---------------------------------------------------------------------------------------------


def test_watch_until_enough(shell: Shell, committing: Committing) -> None:
    rows = shell.ok("watch", VIEW, "--max", "2").rows
    assert rows[0] == {"op": "+", **FIRST, "_position": 1}
    assert len(rows) == 2
    assert len(shell.ok("watch", VIEW, "--timeout", "0 seconds").rows) == 3
    assert shell.ok("watch", VIEW, "--no-snapshot", "--timeout", "0 seconds").rows == []
    assert shell.ok("watch", VIEW, "--timeout", "0 s", "--format", "csv").text.count("\n+,2026") == 3
    assert shell.ok("watch", VIEW, "--timeout", "0 s", "--format", "table").text.count("\n+ ") == 3
    arrow = shell.ok("watch", VIEW, "--max", "3", "--format", "arrow").out
    assert pa.ipc.open_stream(io.BytesIO(arrow)).read_all()["op"].to_pylist() == ["+"] * 3
    del committing


def test_watch_sees_commits_of_another_process_and_stops_on_signals(
    shell: Shell, committing: Committing, spawn: Spawner
) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        before = len(committing.rows())
        watcher = spawn("watch", VIEW)
        assert watcher.stdout is not None and watcher.stderr is not None
        for _ in range(before):
            assert json.loads(watcher.stdout.readline())["op"] == "+"
        position = committing.commit([(0, "/", code)])
        old, new = json.loads(watcher.stdout.readline()), json.loads(watcher.stdout.readline())
        assert (old["op"], new["op"], new["clicks"] - old["clicks"]) == ("-", "+", 1)
        assert (new["slowest"], new["_position"]) == (code, position)
        watcher.send_signal(number)
        assert watcher.wait(SECONDS_MAX) == code
        assert watcher.stderr.read().strip() == b""
        with sqlite3.connect(shell.home / "views.db") as db:
            assert db.execute("SELECT count(*) FROM _watchers").fetchone() == (0,)  # it said good-bye
        db.close()


def test_watch_ends_with_its_reader(shell: Shell, committing: Committing, spawn: Spawner) -> None:
    watcher = spawn("watch", VIEW)
    assert watcher.stdout is not None and watcher.stderr is not None
    assert watcher.stdout.readline()
    watcher.stdout.close()  # no change comes any more
    assert watcher.wait(SECONDS_MAX) == 0
    assert watcher.stderr.read() == b""
    del shell, committing


def test_watch_says_when_the_view_is_dropped(shell: Shell, committing: Committing, spawn: Spawner) -> None:
    watcher = spawn("watch", VIEW)
    assert watcher.stdout is not None and watcher.stderr is not None
    for _ in range(3):
        assert watcher.stdout.readline()
    shell.ok("views", "drop", VIEW, "--yes", "--force")
    assert watcher.wait(SECONDS_MAX) == 1
    assert watcher.stderr.read().decode() == (
        f"headrace: watching view {VIEW!r} ended: the view was dropped. Watch it again, from its current rows.\n"
    )
    del committing


# -- as all commands -----------------------------------------------------------------------------------


def test_home_before_and_after(shell: Shell, committing: Committing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_HOME")
    home = str(shell.home)
    for words in (("query", VIEW), ("views", "list"), ("ledger", VIEW), ("watch", VIEW, "--max", "1")):
        assert shell.ok("--home", home, *words).out == shell.ok(*words, "--home", home).out != b""
    assert shell.ok("views", "--home", home, "list").out
    del committing


def test_names_are_completed(shell: Shell, committing: Committing) -> None:
    for words in (("query",), ("watch",), ("ledger",), ("views", "show"), ("views", "drop")):
        assert completed("headrace", *words, "cl") == [VIEW]
    assert completed("headrace", "--home", str(shell.home), "watch", "", HEADRACE_HOME="/nowhere") == [VIEW]
    assert completed("headrace", "watch", "", HEADRACE_HOME="/nowhere") == []
    del committing


def test_on_a_terminal(shell: Shell, committing: Committing) -> None:
    for words in (("query", VIEW), ("views", "show", VIEW), ("ledger", VIEW), ("watch", VIEW, "--max", "3")):
        code, shown = on_terminal(*words, NO_COLOR="1")
        assert code == 0
        assert b"{" not in shown and b"\x1b[3" not in shown, words
    assert b"\x1b[1mview" in on_terminal("views", "list")[1]
    assert on_terminal("query", VIEW, "--format", "arrow")[0] == 2
    del shell, committing


def test_no_spark_is_imported(shell: Shell, committing: Committing) -> None:
    for words in (
        ["query", VIEW],
        ["views", "list"],
        ["views", "show", VIEW],
        ["ledger", VIEW],
        ["watch", VIEW, "--max=1"],
    ):
        program = (
            "import sys; from headrace.cli import run; code = run(sys.argv[1:]);"
            "sys.exit(code or [name for name in ('pyspark', 'py4j') if name in sys.modules] or 0)"
        )
        done = subprocess.run(
            [COMMAND[0], "-c", program, *words], env=environment(), capture_output=True, timeout=SECONDS_MAX
        )
        assert (done.returncode, done.stderr) == (0, b""), words
    del shell, committing
