"""The demo ends by itself, tells the truth in the right order, and leaves nothing behind; tampered with, it says so."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow.compute as pc
import pytest

from headrace.demo.backlog import by_hand, in_view, requests
from headrace.demo.recount import differing, lost_and_doubled, recount
from headrace.demo.recount_chats import chats_of
from headrace.demo.telling import Teller
from headrace.demo.traffic import Traffic, day_of
from headrace.flows.spark import java
from tests.lending import jvm_of

README = Path(__file__).parent.parent / "README.md"
JAVA = java.home()
needs_spark = pytest.mark.skipif(
    not JAVA or importlib.util.find_spec("pyspark") is None, reason="the demo needs Spark: pyspark and Java"
)
MARK = "HEADRACE_DEMO_TEST"
SECONDS_MAX = 200  # half a minute on a quiet machine with two cores
STEPS = (
    "The shop opens",
    "A minute closes",
    "A straggler arrives",
    "A wrong clock is put right",
    "Two sessions become one",
    "An invoice gets its tax rate, and a late one",
    "The ledger balances",
    "kill -9",
    "Another worker goes on",
    "Count again",
    "Spark works a backlog off",
    "Now you",
)


@contextmanager
def demo(folder: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The demo in a process of its own, without a terminal; afterwards nothing of it may be left."""
    mark = uuid.uuid4().hex
    env = {**os.environ, "TMPDIR": str(folder), "TERM": "xterm", MARK: mark, **environment}
    command = [sys.executable, "-m", "headrace", "demo", *options]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
    assert list(folder.iterdir()) == []
    deadline = time.monotonic() + 10
    while left := processes(mark):  # Spark's Python processes end when they see that the JVM is gone
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes(mark: str) -> list[str]:
    """What still runs and has the mark in its environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(path.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


# -- what the story must say, worked out from what it sends -----------------------------------------------

MINUTE = timedelta(minutes=1)
NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)


class Books:
    """What becomes of visits: on time, corrected, dropped; and the rows. Written for this test alone."""

    def __init__(self) -> None:
        self.reached: dict[int, datetime] = {}
        self.views: dict[tuple[datetime, str], set[str]] = defaultdict(set)
        self.sales: dict[tuple[datetime, str], list[int]] = defaultdict(list)
        self.fixes: dict[tuple[datetime, str], int] = defaultdict(int)
        self.fate = {"on time": 0, "corrected": 0, "dropped": 0}
        self.twice = 0

    def add(self, visits: list[dict[str, Any]]) -> None:
        for visit in visits:
            off = visit["sent"] - visit["received"]
            true = visit["occurred"] - (off if abs(off) > timedelta(seconds=1) else timedelta(0))
            key = (NINE + (true - NINE) // MINUTE * MINUTE, visit["page"])
            partition = zlib.crc32(visit["city"].encode()) % 3
            reached = self.reached.get(partition, true - timedelta(days=1))
            self.reached[partition] = max(reached, true)
            late_by = reached - (key[0] + MINUTE + timedelta(seconds=10))
            if late_by >= timedelta(minutes=10):
                self.fate["dropped"] += 1
                continue
            self.fate["corrected" if late_by >= timedelta(0) else "on time"] += 1
            self.fixes[key] += late_by >= timedelta(0)
            if visit["cents"]:
                self.sales[key].append(visit["cents"])
            self.twice += visit["view"] in self.views[key]
            self.views[key] |= {visit["view"]} - {None}

    @property
    def visits(self) -> int:
        return sum(self.fate.values())

    def row(self, minute: int, page: str, status: str) -> str:
        """The row as the story prints it, without its spaces."""
        key = (NINE + minute * MINUTE, page)
        sales = self.sales[key]
        sold = f"{len(sales)} orders {sum(sales) / 100:,.2f} " if page in ("/kettle", "/teapot", "/cups") else ""
        fixes = f", corrected {self.fixes[key]}x" if self.fixes[key] else ""
        return f"09:{minute:02} {page} {len(self.views[key])} views {sold}{status}{fixes}"


def chats_among(messages: list[dict[str, Any]]) -> int:
    """Each begins with a message that has none of its customer in the half minute before it."""
    at: dict[str, set[datetime]] = defaultdict(set)
    for message in messages:
        at[message["customer"]].add(message["at"])
    half = timedelta(seconds=30)
    return sum(not any(timedelta(0) < b - a <= half for a in times) for times in at.values() for b in times)


def expected() -> list[str]:
    """The lines with numbers, in their order."""
    day, books = day_of(Traffic()), Books()
    books.add(day.opening)
    orders = sum(map(len, books.sales.values()))
    lines = [f"{books.visits - orders} page views and {orders} purchases, from 3 cities"]
    lines += [books.row(0, page, "open") for page in ("/", "/cups", "/kettle", "/search", "/teapot")]
    lines.append(f"- {books.row(0, '/', 'open')}")
    books.add(day.minute_ends)
    lines += [f"+ {books.row(0, '/', 'final')}", f"- {books.row(0, '/kettle', 'final')}"]
    books.add([day.straggler])
    lines += [f"+ {books.row(0, '/kettle', 'final')}", f"- {books.row(1, '/teapot', 'open')}"]
    books.add([day.wrong_clock])
    lines.append(f"+ {books.row(1, '/teapot', 'open')}")
    lines += ["- ann 09:00:05 to 09:00:12 2 messages final", "- ann 09:00:50 to 09:00:58 2 messages final"]
    lines.append("+ ann 09:00:05 to 09:00:58 5 messages final, corrected 1x")
    lines.append("+ invoice 1 100.00 tax 8 % taxes_version 0:0")
    lines.append("- invoice 1 100.00 tax 8 % taxes_version 0:0")
    lines.append("+ invoice 1 100.00 tax 9 % taxes_version 0:1 corrected 1x")
    lines.append("why: made of invoices, partition 0, offset 0 and taxes, partition 0, offset 1")
    fate = " + ".join(f"{count:,} {what}" for what, count in books.fate.items())
    lines.append(f"{books.visits:,} visits in the log = {fate}")
    assert len(day.messages) == 99
    lines.append("100 messages in the log = 99 on time + 1 corrected + 0 dropped")
    lines.append(f"{len(day.rush):,} more visits; worker")
    books.add(day.rush)
    rows = len(books.views.keys() | books.sales.keys())
    lines.append(f"{books.visits:,} visits counted by hand, against {rows} rows: 0 lost, 0 doubled")
    lines.append(f"{books.twice} page views were sent twice and count once")
    chats = chats_among([*day.messages, day.between, *day.rush_messages])
    lines.append(f"400 messages put together by hand: the same {chats} chats")
    taxed, taxes = 1, 1
    audited = rows + chats + taxed + taxes
    lines.append(f"audit: {audited} rows of all views recomputed in one batch: no difference")
    lines.append("300,000 requests of the night come at once")
    lines.append(f"300,000 requests counted by hand: the same {60 * 5} rows")
    assert books.fate["corrected"] == 1 and books.fate["dropped"] == 2 and books.twice > 100
    return lines


def in_order(wanted: list[str], lines: list[str]) -> None:
    """Each of the wanted is the beginning of a line, in their order; `…` is anything, spaces count as one."""
    left = iter([" ".join(line.split()) for line in lines])
    for want in wanted:
        pattern = ".*".join(re.escape(part) for part in " ".join(want.split()).split("…"))
        assert any(re.match(pattern, line) for line in left), f"{want!r} is not there, or not in its place"


# -- the whole of it -----------------------------------------------------------------------------------


@needs_spark
@pytest.mark.timeout(300)
def test_the_demo(tmp_path: Path) -> None:
    began = time.monotonic()
    with demo(tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("headrace: ")
        first = time.monotonic() - began
        shown, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0 and said == "", shown + said
    assert first < 3, "the first line comes within a second on a machine that is not busy with tests"
    lines = shown.splitlines()
    assert [line for line in lines if re.match(r"\d+\. ", line)] == [f"{n}. {step}" for n, step in enumerate(STEPS, 1)]
    in_order(expected(), lines)
    killed = re.search(r"([\d,]+) more visits; worker (\d+) got SIGKILL with ([\d,]+) of them", shown)
    went_on = re.search(r"worker (\d+) has read the rest", shown)
    assert killed and went_on and killed[2] != went_on[1]
    assert 0 < int(killed[3].replace(",", "")) < int(killed[1].replace(",", ""))
    worked = re.search(r"(\d+) batch(?:es)?, (\d+) Spark jobs, (\d+) tasks, [\d.]+ s in Spark", shown)
    assert worked, "the story says what Spark did"
    batches, jobs, tasks = map(int, worked.groups())
    assert 0 < batches <= jobs <= tasks, "a computed batch is a job"
    assert "\x1b" not in shown
    assert max(map(len, lines)) < 120
    told = re.search(r"^```console\n\$ make demo\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert told, "the README shows what the demo says"
    in_order([line for line in told[1].splitlines() if line.strip(" …")], ["headrace: …", *lines])


@needs_spark
@pytest.mark.timeout(300)
def test_a_tampered_ledger_is_found(tmp_path: Path, headrace_spark: Any) -> None:
    with demo(tmp_path, **jvm_of(headrace_spark, "headrace.demo.worker")) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("2. "):
                break
        (path,) = tmp_path.glob("headrace-demo-*/home/views.db")
        with sqlite3.connect(path, timeout=60) as db:
            changed = db.execute("UPDATE _ledger SET on_time = on_time + 1 WHERE window_start = '2026-01-01 09:00:00'")
            assert changed.rowcount == 1
        db.close()
        shown, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1, shown + said
    assert "not as promised: " in shown and "lost, 0 doubled" not in shown


def test_without_java(tmp_path: Path) -> None:
    with demo(tmp_path, JAVA_HOME=str(tmp_path.with_name("none"))) as process:
        shown, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert shown == "" and len(said.splitlines()) == 1
    assert "Java 17 or 21" in said and "install" in said


@needs_spark
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_live(tmp_path: Path) -> None:
    with demo(tmp_path, "--live") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if (page := re.match(r"     page: (http\S+)/\?token=(\S+)", line)) is not None:
                with httpx.Client(headers={"Authorization": f"Bearer {page[2]}"}) as client:
                    flows = client.get(f"{page[1]}/api/overview").json()["flows"]
                assert {flow["view"]: flow["state"] for flow in flows} == dict.fromkeys(
                    ("pages_per_minute", "chats", "requests_per_minute", "taxes", "taxed_invoices"), "running"
                )
            if re.match(r"   \+ 09:1\d  /.* final", line):  # minutes that the story did not have, closed by visitors
                break
        assert flows, "the page was served"
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0 and said == "", shown + said


# -- its parts -----------------------------------------------------------------------------------------


def by_city(visits: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [[visit for visit in visits if visit["city"] == city] for city in ("oslo", "berlin", "lima")]


def test_the_count_by_hand_finds_what_is_wrong() -> None:
    day = day_of(Traffic())
    read = recount(by_city(day.opening))
    rows = [{"window_start": start, "page": page} | cell.facts() for (start, page), cell in read.cells.items()]
    assert lost_and_doubled(read, rows) == (0, 0) and differing(read, rows) == []
    rows[0]["views"] -= 2
    rows[1]["orders"] += 1
    assert lost_and_doubled(read, rows) == (2, 1) and len(differing(read, rows)) == 2
    gone = rows.pop()
    assert lost_and_doubled(read, rows) == (2 + gone["views"] + gone["orders"], 1)
    rows = [{"window_start": start, "page": page} | cell.facts() for (start, page), cell in read.cells.items()]
    rows[0]["_corrections"] += 1
    assert lost_and_doubled(read, rows) == (0, 0) and len(differing(read, rows)) == 1


def test_chats_put_together_by_hand_find_what_is_wrong() -> None:
    day = day_of(Traffic())
    apart, joined = chats_of(day.messages), chats_of([*day.messages, day.between])
    assert len(joined.rows) == len(apart.rows) - 1 == chats_among(day.messages) - 1
    names = ("customer", "window_start", "window_end", "messages", "_corrections")
    rows = [dict(zip(names, (*key, *facts), strict=True)) for key, facts in joined.rows.items()]
    assert joined.differing(rows) == [] and len(apart.differing(rows)) == 2
    rows[0]["messages"] += 1
    assert len(joined.differing(rows)) == 1 and len(joined.differing(rows[1:])) == 1


def test_requests_counted_by_hand_are_those_of_an_independent_query() -> None:
    night = requests()
    assert night.equals(requests()), "the same in every run"
    minute = pc.floor_temporal(night["at"], unit="minute")
    page = pc.list_element(pc.split_pattern(night["path"], "?", max_splits=1), 0)
    table = night.append_column("window_start", minute).append_column("page", page)
    table = table.append_column("slow", pc.greater(night["ms"], 800).cast("int64"))
    found = table.group_by(["window_start", "page"]).aggregate([("ms", "count"), ("slow", "sum"), ("ms", "max")])
    rows = found.rename_columns(["window_start", "page", "requests", "slow", "slowest"]).to_pylist()
    assert len(rows) == 60 * 5 and in_view(rows) == by_hand(night.to_batches())
    rows[0]["slow"] += 1
    assert in_view(rows) != by_hand(night.to_batches())


def test_visitors_are_the_same_in_every_run() -> None:
    assert day_of(Traffic()) == day_of(Traffic())
    assert day_of(Traffic()) != day_of(Traffic(seed=2))
    visits = day_of(Traffic()).opening
    occurred = [visit["occurred"] for visit in visits]
    assert occurred != sorted(occurred), "they are out of order"
    views = [visit["view"] for visit in visits if visit["view"]]
    assert len(set(views)) < len(views), "some come twice"
    assert any(abs(visit["sent"] - visit["received"]) > timedelta(minutes=5) for visit in visits), "clocks are wrong"


@pytest.mark.parametrize(
    ("terminal", "term", "no_colour", "coloured"),
    [(True, "xterm", "", True), (True, "xterm", "1", False), (True, "dumb", "", False), (False, "xterm", "", False)],
)
def test_colour_is_for_terminals_that_want_it(
    terminal: bool,
    term: str,
    no_colour: str,
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_colour)
    teller = Teller()
    teller.step("A step")
    teller.change("-", "a row")
    assert ("\x1b" in capsys.readouterr().out) is coloured


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_is_shown_in_place_or_line_by_line(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    teller = Teller()
    for seconds in (5, 10):
        teller.tick(f"… Spark starts: {seconds} s")
    teller.clear()
    shown = capsys.readouterr().out
    assert ("10 s\n" in shown) is not terminal
    assert shown.endswith("\r\x1b[K") is terminal
