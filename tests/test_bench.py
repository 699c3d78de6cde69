"""The bench runs and prints every row. How fast anything is does not belong in a test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bench import __main__ as command
from bench import flink_peer, flow_peers, flow_window
from bench.payload import Payload
from bench.settings import Run
from headrace import app as apps

ROOT = Path(__file__).parent.parent


LOG = ("append", "singles", "producer", "scan", "size", "wake", "queue", "upkeep", "disk")
FLOWS = ("windows", "catching_up", "kinds", "growth", "keyed", "merge", "nexmark", "peers", "poison")


def bench(*arguments: str, timeout: float = 110) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_prints_every_row_and_writes_the_results(tmp_path: Path) -> None:
    printed = bench(*LOG, "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(tmp_path / "results"))
    for row in (
        "append 10 k-row Arrow batches, os, no key",
        "append 10 k-row Arrow batches, fsync, no key",
        "append 10 k-row Arrow batches, os, hashed by key over 4 partitions",
        "single records, fsync, 1 thread",
        "single records, fsync, 8 threads, group commit",
        "group commit: 8 threads against 1",
        "single records, os, 1 thread",
        "batching producer",
        "scan all typed columns",
        "scan two columns",
        "records as dicts",
        "append a 10 k-row batch behind 200,000 records",
        "peak memory growth while scanning",
        "append a record beside 1,000 batch rows",
        "open a log of 10 data files",
        "append (os) to woken follower in another process, p50",
        "append (os) to woken follower in another process, p99",
        "receive and ack, 100 at a time, os",
        "receive 100, ack one by one, fsync, 8 threads",
        "seal batches of 1,000 rows",
        "compact 0.05 M rows",
        "seal one-row appends",
        "appends (10 k rows, fsync) beside sealing",
        "a flight as appended",
        "a flight, sealed, zstd",
        "scan all columns of sealed flights, lz4",
    ):
        assert f"| {row}" in printed
    found = json.loads((tmp_path / "results" / "results.json").read_text("utf-8"))
    assert len(found["rows"]) == 37 and all(row["ours"]["median"] is not None for row in found["rows"])
    for plot in ("append_cost.svg", "commit_cost.svg"):
        assert (tmp_path / "results" / plot).read_text("utf-8").startswith("<svg")


def test_the_rows_of_search(tmp_path: Path) -> None:
    results = tmp_path / "results"
    printed = bench("search", "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(results))
    for row in (
        "2,000 queries are stored",
        "2,000 queries are there again after a restart",
        "memory of a query, 2,000 stored",
        "time for an article, 1,000 queries that do not match : 100",
    ):
        assert f"| {row}" in printed
    found = json.loads((results / "results.json").read_text("utf-8"))
    assert len(found["rows"]) == 11 and all(row["ours"]["median"] is not None for row in found["rows"])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_rows_of_kafka(broker: str, tmp_path: Path) -> None:
    assert broker  # where there is none, this is skipped
    results = tmp_path / "results"
    printed = bench("kafka", "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(results), timeout=500)
    for row in (
        "Kafka to a windowed count and max, 10 s windows, 10,000 keys",
        "read and decode JSON records in Spark's workers",
        "append of 20 rows to Kafka to seen in the view by another process, p50",
        "append of a list of dicts",
        "producer: send() each row, a future each",
    ):
        assert f"| {row}" in printed


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_rows_of_latency_and_memory(tmp_path: Path) -> None:
    results = tmp_path / "results"
    printed = bench(
        *("latency", "memory", "calls"),
        *("--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(results)),
        timeout=500,
    )
    for row in (
        "a request and its reply, looked up in a table, by the log, p50",
        "a request and its reply, and then a transform in PySpark, over HTTP, 8 callers at a time, p50",
        "a batch of 20 rows in the loop, plain columns, p50",
        "append of 20 rows to seen in the view by another process, plain columns, p50",
        "append of 20 rows to seen in the view by another process, behind a computed filter in PySpark, p99",
        "p50 of the last minute against the first",
        "memory of the runner",
        "memory of its JVM and workers, 100 keys, plain columns, after 0.08 M events",
    ):
        assert f"| {row}" in printed


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_rows_of_many_machines(tmp_path: Path) -> None:
    """Or why there are none."""
    where = ("--folder", str(tmp_path), "--results", str(tmp_path / "results"))
    printed = bench("postgres", "cluster", "--quick", "--no-peers", *where, timeout=500)
    for row in ("rows touched in a view of 0.005 M rows, staged by two workers", "two workers against one"):
        assert f"| {row}" in printed or "| there is no" in printed


@pytest.mark.timeout(600)
def test_the_rows_of_flows(
    tmp_path: Path, headrace_spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the Spark session of the tests: each section makes an app, and would start one."""
    results = tmp_path / "results"
    monkeypatch.setitem(apps.overrides, "spark", headrace_spark)
    given = ["--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["bench", *FLOWS, *given])
    assert command.main() == 0
    printed = capsys.readouterr().out
    for row in (
        "windowed count and max, 10 s windows, 100 keys",
        "windowed count and max, 1 s windows, 10,000 keys",
        "the same behind a filter written in PySpark",
        "the same behind a computed filter written in PySpark",
        "an event in hopping('60 seconds', every='1 second') against tumbling('10 seconds'), 10,000 keys",
        "count and max in session('1 second'), 10,000 keys",
        "rows merged into a view of 10 k rows",
        "a commit into 0.04 M rows against one into 10 k",
        "rows merged at random keys",
        "processor time per touched row: top_k, 10 k values a row",
        "q17, auction statistics",
        "q17, processor time",
        "windowed count and max, 10 s windows every 2 s, 100 keys, from Flink's CSV files",
        "count and max in sessions with a gap of 1 s, 100 keys",
        "top_k of 10, 10 s windows, 100 keys",
        "2 records among 500 that break a Python function are dead letters",
    ):
        assert f"| {row}" in printed
    found = json.loads((results / "results.json").read_text("utf-8"))
    assert len(found["rows"]) == 52 and all(row["ours"]["median"] is not None for row in found["rows"])


def test_a_peer_without_its_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    data = flow_peers.Data(Run(Payload([]), tmp_path, tmp_path, quick=True, peers=True), [flow_window.events(10, 2)])
    for peer in flow_peers.SMALL:
        found = flow_peers._small(data.run, data, flow_peers.TUMBLING, peer)
        assert found.value.why == f"{peer.job} has no environment here (scripts/peers makes it)"


def test_the_answer_that_peers_must_give() -> None:
    """10 s every 2 s: 12 s is in the windows from 4 to 12, 19 s in those from 10 to 18."""
    at = pa.array([12_000_000, 19_000_000]).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"user": ["ann", "ann"], "ms": pa.array([7, 5], pa.int32()), "at": at})
    found = flow_peers.HOPPING.answer([table]).to_pylist()
    assert [(row["start_ms"] // 1000, row["n"], row["m"]) for row in found] == [
        (4, 1, 7), (6, 1, 7), (8, 1, 7), (10, 2, 7), (12, 2, 7), (14, 1, 5), (16, 1, 5), (18, 1, 5),
    ]  # fmt: skip


def test_what_is_left_of_a_peers_changes(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("INSERT,ann,1\nUPDATE_BEFORE,ann,1\nUPDATE_AFTER,ann,2\nINSERT,bob,1\n")
    (tmp_path / "part-1").write_text("INSERT,cy,1\nDELETE,cy,1\nINSERT,bob,1\n")
    (tmp_path / "part-2").write_text("")
    found = flink_peer.answer(tmp_path, {"user": pa.string(), "n": pa.int64()}).to_pylist()
    assert sorted((row["user"], row["n"]) for row in found) == [("ann", 2), ("bob", 1), ("bob", 1)]


def test_a_section_can_be_asked_for(tmp_path: Path) -> None:
    printed = bench("scan", "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(tmp_path / "results"))
    assert "scan two columns" in printed and "single records" not in printed


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(AssertionError, match="no section apend"):
        bench("apend")
