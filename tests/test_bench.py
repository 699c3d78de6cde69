"""The bench runs and prints every row. How fast anything is does not belong in a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


LOG = ("append", "singles", "producer", "scan", "size", "wake", "queue", "upkeep")
FLOWS = ("windows", "kinds", "growth", "merge", "nexmark")


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
    ):
        assert f"| {row}" in printed
    found = json.loads((tmp_path / "results" / "results.json").read_text("utf-8"))
    assert len(found["rows"]) == 27 and all(row["ours"]["median"] is not None for row in found["rows"])
    for plot in ("append_cost.svg", "commit_cost.svg"):
        assert (tmp_path / "results" / plot).read_text("utf-8").startswith("<svg")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_rows_of_latency(tmp_path: Path) -> None:
    results = tmp_path / "results"
    printed = bench(
        "latency", "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(results), timeout=500
    )
    for row in (
        "a batch of 20 rows in the loop, plain columns, p50",
        "append of 20 rows to seen in the view by another process, plain columns, p50",
        "append of 20 rows to seen in the view by another process, behind a filter in PySpark, p99",
        "p50 of the last minute against the first",
        "memory of the runner",
    ):
        assert f"| {row}" in printed


@pytest.mark.timeout(600)
def test_the_rows_of_flows(tmp_path: Path) -> None:
    results = tmp_path / "results"
    printed = bench(*FLOWS, "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(results), timeout=500)
    for row in (
        "windowed count and max, 10 s windows, 100 keys",
        "windowed count and max, 1 s windows, 10,000 keys",
        "the same behind a filter written in PySpark",
        "an event in hopping('60 seconds', every='1 second') against tumbling('10 seconds'), 100 keys",
        "count and max in session('1 second'), 10,000 keys",
        "rows merged into a view of 10 k rows",
        "a commit into 0.04 M rows against one into 10 k",
        "rows merged at random keys",
        "processor time per touched row: top_k, 10 k values a row",
        "q17, auction statistics",
        "q17, processor time",
    ):
        assert f"| {row}" in printed
    found = json.loads((results / "results.json").read_text("utf-8"))
    assert len(found["rows"]) == 33 and all(row["ours"]["median"] is not None for row in found["rows"])


def test_a_section_can_be_asked_for(tmp_path: Path) -> None:
    printed = bench("scan", "--quick", "--no-peers", "--folder", str(tmp_path), "--results", str(tmp_path / "results"))
    assert "scan two columns" in printed and "single records" not in printed


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(AssertionError, match="no section apend"):
        bench("apend")
