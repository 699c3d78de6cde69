"""Servers that sections need beside headrace: a Postgres, a Kafka broker, a Spark cluster, each of its own on free
ports of the loopback, gone with the section. Where one cannot be had, `Unavailable` says why."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.peers import Unavailable

SCRIPTS = Path(__file__).parent.parent / "scripts"
READY_SECONDS = 120


@contextlib.contextmanager
def _script(name: str, *arguments: str) -> Iterator[str]:
    """What the script says first; it ends when its input does."""
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as started:
        assert started.stdin is not None and started.stdout is not None and started.stderr is not None
        said = started.stdout.readline().strip()
        try:
            if not said or said.startswith("there is no"):
                lines = (said or started.stderr.read().strip()).splitlines()
                raise Unavailable(lines[-1] if lines else f"scripts/{name} did not start")
            yield said
        finally:
            started.stdin.close()
            started.wait(timeout=60)


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """An address for HEADRACE_VIEWS. With Postgres' own settings: every commit is synced."""
    with _script("postgres") as said:
        yield json.loads(said)["url"]


@contextlib.contextmanager
def kafka() -> Iterator[str]:
    """HOST:PORT."""
    with _script("kafka", "--until-eof") as said:
        yield said


@contextlib.contextmanager
def spark_daemon(folder: Path, kind: str, *arguments: str, java_options: str = "") -> Iterator[str]:
    """A part of Spark's standalone cluster, which finds nothing of ours by itself; the address that it says first."""
    import pyspark

    folder.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_WORKER_DIR": str(folder), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": java_options}
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *here, *arguments], env=environment, stdout=out, stderr=out, cwd=folder, start_new_session=True
        )
    try:
        until = time.monotonic() + READY_SECONDS
        while not (found := re.search(r"(?:at|with master) (spark://[\d.]+:\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise Unavailable(f"no Spark cluster: {log.read_text()[-200:]}")
            time.sleep(0.05)
        yield found[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
