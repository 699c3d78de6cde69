"""The port of `headrace run --metrics`: whoever only connects takes nobody's place."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import replace

from headrace.flows import metrics
from headrace.flows.status import FlowStatus


def test_idle_connections_make_room_for_others() -> None:
    port = metrics.serve(0, lambda: [])
    with contextlib.ExitStack() as idle:
        came = [
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(metrics.CONNECTIONS_MAX + 20)
        ]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"headrace_flow_up" in answer.read()
        limit = time.monotonic() + 10
        while sum(map(is_open, came)) > metrics.CONNECTIONS_MAX:
            assert time.monotonic() < limit, "as many descriptors and threads as somebody likes"
            time.sleep(0.01)
        assert is_open(came[-1])


def test_large_counts_are_told_to_the_last_digit() -> None:
    status = FlowStatus("views", "running", 123_456_789, 12, 0.0, 0.1, 0, None, 0, 0, "", spark_jobs=7, spark_tasks=14)
    told = metrics.exposition([replace(status, spark_seconds=2.5, driver_batches=5)]).splitlines()
    assert 'headrace_flow_records_total{flow="views"} 123456789' in told
    spark = ("headrace_flow_spark", "headrace_flow_driver")
    assert [line.rpartition(" ")[2] for line in told if line.startswith(spark)] == ["7", "14", "2.5", "5"]


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_health_without_the_page() -> None:
    states = ["running", "waiting"]
    port = metrics.serve(0, lambda: [flow(f"f{number}", state) for number, state in enumerate(states)])

    def asked() -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    assert asked() == (200, {"status": "ok", "flows": {"f0": "running", "f1": "waiting"}})
    states[0] = "retrying"
    assert asked()[0] == 200 and asked()[1]["status"] == "retrying"
    states[1] = "failed"
    assert asked()[0] == 503 and asked()[1]["status"] == "failed"


def flow(name: str, state: str) -> FlowStatus:
    return FlowStatus(name, state, 0, 0, 0.0, 0.0, 0, None, 0, 0, "")
