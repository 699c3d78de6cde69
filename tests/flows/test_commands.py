"""`headrace run`, `check`, `rebuild` and `audit`: each once at least as a shell runs it, and `run` with a JVM that it
starts itself; beside that in this process, in the Spark session of the tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace import app as apps
from tests.cli.conftest import Shell
from tests.lending import jvm_of

pytestmark = pytest.mark.timeout(400)  # each command starts a JVM

PROGRAM = """
import headrace as hr

app = hr.App("shop")
clicks = app.topic("clicks", "user string, page string, at timestamp", key="user", event_time="at")
(app.stream(clicks)
    .window(hr.tumbling("1 minute"), grace="10 seconds", late=hr.correct(within="1 hour"))
    .group_by("page").agg(views=hr.count(), visitors=hr.count_distinct("user"))
    .to_view("views_per_minute"))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(PROGRAM)
    return path


def headrace(*arguments: str, cwd: Path, spark: Any = None) -> subprocess.CompletedProcess[str]:
    """`spark`: whose JVM the command takes; without, it starts one."""
    command = [sys.executable, "-m", "headrace", *arguments]
    environment = {**os.environ, **(jvm_of(spark, "headrace") if spark else {})}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False)


@contextlib.contextmanager
def begun(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive its test."""
    with subprocess.Popen(command, text=True, **options) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture
def here(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Commands in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(apps, "overrides", {"spark": spark})
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Shell(tmp_path / ".headrace")


def some_clicks(home: Path) -> None:
    with hr.open_log(home) as log:
        topic = log.create_topic(
            "clicks", "user string, page string, at timestamp", key="user", event_time="at", exist_ok=True
        )
        topic.append([{"user": f"u{n % 3}", "page": f"/{n % 2}", "at": f"2026-01-01T09:{n:02}:00Z"} for n in range(20)])


def test_run_once_then_audit(program: Path, tmp_path: Path, here: Shell, spark: Any) -> None:
    home = tmp_path / "elsewhere"
    some_clicks(home)
    done = headrace("run", str(program), "--once", "--home", str(home), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 records processed" in done.stderr and done.stdout == ""
    assert "WARN" not in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / ".headrace").exists()  # the command line comes over the program
    assert hr.open_views(home).query("select sum(views) n from views_per_minute").to_pylist() == [{"n": 20}]
    audited = here.ok("--home", str(home), "audit", str(program))
    assert "1 view, 20 rows recomputed: no difference" in audited.err
    with sqlite3.connect(home / "views.db") as db:
        db.execute('UPDATE "views_per_minute/rows" SET views = 7 WHERE window_start = 1767258180000000')
    done = headrace("--home", str(home), "audit", str(program), "--format", "csv", cwd=tmp_path, spark=spark)
    assert done.returncode == 3, done.stderr
    assert "views,7,1" in done.stdout and "1 difference" in done.stderr


def test_the_last_line_of_a_drain_says_what_spark_ran(program: Path, here: Shell) -> None:
    some_clicks(here.home)
    program.write_text(program.read_text().replace('hr.App("shop"', 'hr.App("shop", driver_rows=0'))
    assert "driver_rows=0" in program.read_text()
    last = here.ok("run", str(program), "--drain").err.splitlines()[-1]
    assert re.fullmatch(r"20 records processed, \d+ Spark jobs? \(\d+ tasks?\): \d+\.\d s", last), last


def test_a_run_is_stopped_by_sigterm(program: Path, tmp_path: Path) -> None:
    """To every process of it, as `systemctl stop` sends it, and `kill %1` to those of a job."""
    some_clicks(tmp_path / ".headrace")
    command = [
        sys.executable,
        "-m",
        "headrace",
        "run",
        str(program),
        "--serve",
        "--metrics",
        "0",
        "--log-format",
        "json",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stderr is not None
        said: list[str] = []
        for line in running.stderr:
            said.append(line)
            if "page: " in line:
                break
        views = hr.open_views(tmp_path / ".headrace")
        with hr.open_log(tmp_path / ".headrace") as log:
            done = log.topic("clicks").append({"user": "u9", "page": "/new", "at": "2026-01-01T09:30:00Z"})
        found = views.query(
            "select views from views_per_minute where page = '/new'", wait_for=done.position, timeout="1 minute"
        )
        assert found.to_pylist() == [{"views": 1}]
        with urllib.request.urlopen(said[-2].split("metrics on ")[1].strip(), timeout=10) as answer:
            assert 'headrace_flow_records_total{flow="views_per_minute"} 21' in answer.read().decode()
        url, _, token = said[-1].removeprefix("page: ").strip().partition("/?token=")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
            (flow,) = client.get("/api/overview").json()["flows"]
            assert (flow["state"], flow["lag"], flow["batch_seconds"] > 0) == ("running", 0, True)
            assert 'headrace_flow_records_total{flow="views_per_minute"} 21' in client.get("/metrics").text
            assert client.post("/api/query", json={"sql": "select 1"}, timeout=30).status_code == 200
        second = headrace("run", str(program), "--once", cwd=tmp_path)
        assert second.returncode == 1 and f"process {running.pid}" in second.stderr and "--take-over" in second.stderr
        below = processes_below(running.pid)
        assert len(below) >= 2, "the JVM, and the process for queries"
        for pid in (*below, running.pid):  # the JVM first
            os.kill(pid, signal.SIGTERM)
        assert running.wait(timeout=40) == 0
        assert running.stderr.read() == "stopping\nstopped\n"
        until_gone(below)


def test_a_jvm_that_is_killed_is_named_in_one_sentence(program: Path, tmp_path: Path) -> None:
    computes = 'app.stream(clicks).transform(lambda df: df.selectExpr("*", "upper(page) as loud"))'
    program.write_text(PROGRAM.replace("app.stream(clicks)", computes).replace('group_by("page")', 'group_by("loud")'))
    some_clicks(tmp_path / ".headrace")
    command = [sys.executable, "-m", "headrace", "run", str(program), "--no-serve"]
    with begun(command, cwd=tmp_path, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("running "):
                break
        assert running.poll() is None, line
        views = hr.open_views(tmp_path / ".headrace")
        with hr.open_log(tmp_path / ".headrace") as log:
            click = {"user": "u9", "page": "/new", "at": "2026-01-01T09:30:00Z"}
            views.wait_for(log.topic("clicks").append(click).position, timeout="1 minute")
            (jvm,) = [pid for pid in processes_below(running.pid) if name_of(pid) == "java"]
            os.kill(jvm, signal.SIGKILL)
            log.topic("clicks").append(click)
            assert running.wait(timeout=60) == 1
        said = running.stderr.read()
    assert "Traceback" not in said and "install" not in said
    (sentence,) = {line.partition("Spark's JVM")[2] for line in said.splitlines() if "Spark's JVM" in line}
    assert sentence.startswith(" has ended (by SIGKILL)") and "spark.log" in sentence
    assert len(said.splitlines()) <= 3, said


STARTS = """
import sys
from pathlib import Path
from headrace.flows.spark import session
spark, _ = session.make("t", {"spark.master": "local[1]"}, Path(sys.argv[1]))
print(spark.sparkContext._gateway.proc.pid, flush=True)
for line in sys.stdin:
    print(spark.range(7).count(), flush=True)
"""


def test_a_jvm_survives_sigterm_and_not_its_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with begun(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None and running.stdout is not None
        jvm = int(running.stdout.readline())
        os.kill(jvm, signal.SIGTERM)
        running.stdin.write("count\n")
        running.stdin.flush()
        assert running.stdout.readline() == "7\n"
        running.kill()
    until_gone([jvm])


def processes_below(pid: int) -> list[int]:
    """Its children and theirs, the youngest last."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [each for child in children for each in (child, *processes_below(child))]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def until_gone(pids: list[int]) -> None:
    limit = time.monotonic() + 30
    while there := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < limit, there
        time.sleep(0.05)


def test_a_changed_flow_is_told_and_rebuilt(program: Path, tmp_path: Path, here: Shell, spark: Any) -> None:
    some_clicks(tmp_path / ".headrace")
    here.ok("run", str(program), "--drain")
    program.write_text(
        PROGRAM.replace(
            'count(), visitors=hr.count_distinct("user")', """count(where="page = '/1'"), latest=hr.last("user")"""
        )
    )
    refused = here("run", str(program), "--drain")
    assert refused.code == 1
    assert "aggregate 'latest' was added;" in refused.err and "aggregate 'visitors' was removed" in refused.err
    assert "headrace rebuild APP.py views_per_minute --switch" in refused.err
    told = here.ok("rebuild", "shop.py", "views_per_minute", "--max", "3", "--format", "csv")
    assert [line.split(",")[0] for line in told.text.splitlines()] == ["op", "-", "+", "-"]
    assert "… 17 more" in told.err and "not switched" in told.err
    assert "10 rows changed, 0 added, 0 removed, 10 the same" in told.err
    assert "1 column added: latest" in told.err and "1 column removed: visitors" in told.err
    views = hr.open_views(tmp_path / ".headrace")
    assert "latest" not in views.to_arrow("views_per_minute").column_names
    done = headrace("rebuild", "shop.py", "views_per_minute", "--switch", cwd=tmp_path, spark=spark)
    assert done.returncode == 0 and "is the new version" in done.stderr, done.stderr
    assert views.query("select sum(views) n from views_per_minute").to_pylist() == [{"n": 10}]
    for option, said in ("--rollback", "is what it was"), ("--discard", "views_per_minute/next dropped"):
        told = here.ok("rebuild", "shop.py", "views_per_minute", option)
        assert said in told.err and "Spark" not in told.err
        assert views.query("select sum(views) n from views_per_minute").to_pylist() == [{"n": 20}]
    assert here("rebuild", "shop.py", "views_per_minute", "--rollback").code == 1
    assert here("rebuild", "shop.py", "v", "--switch", "--discard").code == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "has no hr.App"),
        ("import headrace as hr\na = hr.App('a'); b = hr.App('b')", "shop.py has 2 apps: a, b. Say which: shop.py:a"),
        ("import headrace as hr\napp = hr.App('a')", "app 'a': has no flows: end a stream with .to_view"),
        ("import nothing_at_all", "ModuleNotFoundError"),
    ],
)
def test_what_is_no_program(program: Path, here: Shell, text: str, problem: str) -> None:
    program.write_text(text)
    done = here("check", "shop.py")
    assert done.code in (1, 2) and problem in done.err
    assert here("check", "nothing.py").code == 2
    if "2 apps" in problem:
        assert "shop.py has no app named 'c'. It has: a, b" in here("check", "shop.py:c").err


def test_what_a_programs_function_raises_is_told_from_its_own_lines_on(program: Path, here: Shell) -> None:
    for wrong, said in (
        ("1 // 0", "ZeroDivisionError: "),
        ('df.where("page = = 1")', "ParseException: [PARSE_SYNTAX_ERROR]"),
    ):
        program.write_text(PROGRAM.replace(".window(", f".transform(lambda df: {wrong}).window(", 1))
        for command in ["check", "shop.py"], ["run", "shop.py", "--drain"]:
            done = here(*command)
            *trace, last = done.err.splitlines()
            assert done.code == 1 and last.startswith(f"Error: shop.py: {said}")
            assert last.endswith("(in transform 1 of flow 'views_per_minute')")
            assert wrong in "".join(trace) and "click" not in "".join(trace).replace("clicks", "")


@pytest.mark.usefixtures("program")
def test_an_audit_before_the_first_run_does_not_say_that_all_is_well(here: Shell) -> None:
    assert here.ok("audit", "shop.py").err.endswith("no view of shop has been run yet (headrace run shop.py)\n")


def test_check_makes_no_topic(program: Path, tmp_path: Path, here: Shell) -> None:
    """A wrong program that was checked once would refuse the right one: its topics would be there."""
    chain = """
minutes = app.stream(clicks).window(hr.tumbling("1 minute")).group_by("page").agg(n=hr.count()).to_view("minutes")
app.stream(minutes).window(hr.tumbling("1 hour")).agg(n=hr.sum("n")).to_topic("hours")
app.stream(clicks).dedup("page", within="1 hour").group_by("page").agg(n=hr.count()).to_view("once")
"""
    program.write_text(PROGRAM.replace("page string, ", "page int, extra string, ") + chain)
    here.ok("check", "shop.py")
    assert not (tmp_path / ".headrace" / "log.db").exists() and not (tmp_path / ".headrace" / "views.db").exists()
    program.write_text(PROGRAM)
    here.ok("run", "shop.py", "--drain")
    before = here.ok("topics", "list").rows
    program.write_text(PROGRAM + chain)
    here.ok("check", "shop.py")
    assert here.ok("topics", "list").rows == before
    with hr.open_log(tmp_path / ".headrace") as log, pytest.raises(hr.UnknownTopic):
        log.topic("__changes.minutes")
    program.write_text(PROGRAM.replace("page string, ", "page int, "))
    assert "'page'" in here.refused("check", "shop.py")


def test_check_names_flow_and_column(program: Path, tmp_path: Path, here: Shell, spark: Any) -> None:
    """Also as the first of all commands, which makes no home of its own and is in nobody's way."""
    first = headrace("check", "shop.py", cwd=tmp_path, spark=spark)
    assert first.returncode == 0, first.stderr
    here.ok("topics", "create", "orders", "id int")
    here.ok("check", "shop.py")
    program.write_text(PROGRAM.replace('group_by("page")', 'group_by("pag")'))
    done = headrace("check", "shop.py", cwd=tmp_path, spark=spark)
    assert done.returncode == 1
    assert "views_per_minute" in done.stderr and "Did you mean 'page'?" in done.stderr
