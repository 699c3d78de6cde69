"""The same program over Spark Connect: a server of its own on the loopback, no JVM in the app's process."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from headrace.flows.spark import class_archive
from headrace.views.open import open_views
from tests.flows.oracle import expected, records_of
from tests.flows.shop import QUERIES, app_of, ledger_in, rows_in, some_rows

pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'headrace[connect]'")

ROOT = Path(__file__).parent.parent.parent
NAMES = ("tumbling_drop", "all_time", "arrow_drop")
PROGRAM = f"""
import sys
from pathlib import Path
from headrace.flows.query import FlowQuery
from tests.flows.shop import app_of
with app_of(Path(sys.argv[1]), sys.argv[2], names={NAMES}) as app:
    app.stream("events").transform(lambda df: df.where("word = 'a'")).to_topic("only_a")
    assert app.drain(batch_rows=100) > 0  # small batches
    FlowQuery.one_task_rows = 0
    app.log.topic("events").append(list(app.log.topic("events").records())[0].value)
    assert app.drain() > 0  # and a large one, as it were
    done = app.status()
    assert all(each.spark_jobs + each.driver_batches >= each.batches and each.spark_tasks == 0 for each in done), done
    assert any(each.spark_jobs for each in done), done
    assert app.audit().ok
"""


@pytest.mark.timeout(400)
def test_flows_over_spark_connect(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "server.log"
    with app_of(home, None, names=NAMES) as app:
        app.log.topic("events").append(some_rows(random.Random(1), 150))
    settings = {"port": "0", "address": "127.0.0.1"}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"spark.connect.grpc.binding.{name}={value}"]
    quick = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
    if "SharedArchiveFile" in (archive := class_archive.java_options()):
        quick["spark.driver.extraJavaOptions"] = archive
    for name, value in quick.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as out, subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=out) as it:
        try:
            address = f"sc://127.0.0.1:{port_of(it, log)}"
            program = [sys.executable, "-c", PROGRAM, str(home), address]
            done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
        finally:
            it.kill()
    with app_of(home, None, names=NAMES) as app:
        records = records_of(app.log.topic("events"))
        sent = sum(record["word"] == "a" for record in records)
        assert len(list(app.log.topic("only_a").records())) == sent
    views = open_views(home)
    for name in NAMES:
        rows, ledger = expected(records, QUERIES[name])
        assert rows_in(views, name) == rows
        assert ledger_in(views, name) == ledger


def port_of(server: subprocess.Popen[bytes], log: Path) -> int:
    """What it listens on: it says so once it does."""
    until = time.monotonic() + 120
    while not (found := re.search(r"Spark Connect server started at: .*?:(\d+)", log.read_text(errors="replace"))):
        assert server.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-3000:]
        time.sleep(0.05)
    return int(found[1])
