"""What headrace on Kafka is measured against: Spark's own Kafka source, whose jars Maven fetches once, and
confluent-kafka's own producer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from bench.peers import JOB_SECONDS_MAX, Unavailable

ROOT = Path(__file__).parent.parent
JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""Those of 4.2 run on Spark 4.3. Each by itself: their poms ask for what Spark has in other versions."""


def jars() -> list[Path]:
    """The jars of Spark's Kafka source, in the cache folder of scripts/kafka."""
    given, shared = os.environ.get("HEADRACE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    cache = Path(given) if given else (Path(shared) if shared else Path.home() / ".cache") / "headrace"
    folder = cache / "spark-kafka-4.2.0"
    if not folder.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise Unavailable("there is no mvn on the PATH to fetch Spark's Kafka source with")
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="spark-kafka-") as made:
            for artifact in JARS:
                command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={made}"]
                done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
                if done.returncode:
                    said = [line for line in done.stdout.splitlines() if "ERROR" in line]
                    raise Unavailable(f"mvn could not fetch {artifact}: {said[0][:200] if said else ''}")
            with contextlib.suppress(OSError):  # another process was faster
                Path(made).rename(folder)
    return sorted(folder.glob("*.jar"))


def spark_job(request: dict[str, Any]) -> dict[str, Any]:
    """`bench/spark_kafka_job.py` in a process of its own: Spark takes jars only when it starts."""
    asked = {**request, "jars": [str(jar) for jar in jars()]}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.spark_kafka_job"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS_MAX,
            check=False,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Spark did not finish in {JOB_SECONDS_MAX:.0f} s") from None
    if done.returncode:
        raise Unavailable(f"Spark failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def produce(address: str, topic: str, rows: Sequence[dict[str, Any]]) -> None:
    """By confluent-kafka alone, as its documentation says: idempotent, a report for each record."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 2,
            "queue.buffering.max.messages": 500_000,
            "batch.size": 1 << 20,
        }
    )
    failed: list[object] = []
    arrived = 0

    def report(error: object, _: object) -> None:
        nonlocal arrived
        arrived += 1
        if error is not None:
            failed.append(error)

    for row in rows:
        while True:
            try:
                producer.produce(topic, orjson.dumps(row, option=orjson.OPT_UTC_Z), on_delivery=report)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(60)
    assert not failed and arrived == len(rows), (failed[:1], arrived)
