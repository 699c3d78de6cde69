"""How flows do, as text for Prometheus, and whether they do at all. Owns the names of the metrics, and a small server
for both, on the loopback unless it is told another address."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.flows.status import FlowStatus

METRICS: dict[str, tuple[str, str, Callable[[FlowStatus], float]]] = {
    "headrace_flow_records_total": ("counter", "Records read since the start.", lambda s: s.rows),
    "headrace_flow_batches_total": ("counter", "Batches computed since the start.", lambda s: s.batches),
    "headrace_flow_dead_letters_total": ("counter", "Records that became dead letters.", lambda s: s.dead),
    "headrace_flow_restarts_total": ("counter", "Starts after an error.", lambda s: s.restarts),
    "headrace_flow_lag_records": ("gauge", "Records in the log that it does not have yet.", lambda s: s.lag),
    "headrace_flow_batch_seconds": ("gauge", "How long the last batch took to compute.", lambda s: s.batch_seconds),
    "headrace_flow_frontier_seconds": (
        "gauge",
        "Event time up to which the flow is complete, in seconds since 1970.",
        lambda s: s.frontier.timestamp() if s.frontier else 0.0,
    ),
    "headrace_flow_spark_jobs_total": ("counter", "Spark jobs run for the flow.", lambda s: s.spark_jobs),
    "headrace_flow_spark_tasks_total": ("counter", "Tasks of these jobs.", lambda s: s.spark_tasks),
    "headrace_flow_spark_seconds_total": ("counter", "Time spent waiting for Spark.", lambda s: s.spark_seconds),
    "headrace_flow_driver_batches_total": (
        "counter",
        "Batches computed on the driver, without a Spark job.",
        lambda s: s.driver_batches,
    ),
    "headrace_flow_up": ("gauge", "1 while the flow runs.", lambda s: float(s.state in ("running", "waiting"))),
}


def exposition(statuses: list[FlowStatus]) -> str:
    lines = []
    for name, (kind, text, value) in METRICS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{flow="{status.flow}"}} {value(status):.16g}' for status in statuses]
    return "\n".join(lines) + "\n"


CONNECTIONS_MAX = 50
"""Of more, the oldest is closed: each takes a descriptor and a thread of the run."""


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, CONNECTIONS_MAX

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((host, port), handler)
        self._open: list[Any] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        for oldest in self._open[:-CONNECTIONS_MAX]:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)


def health(statuses: list[FlowStatus]) -> tuple[int, dict[str, object]]:
    """The HTTP status and what is said: 503 if a flow has failed for good, and a restart of the process is due. A flow
    that is tried again is not."""
    states = {status.flow: status.state for status in statuses}
    said = next((state for state in ("failed", "retrying") if state in states.values()), "ok")
    return 503 if said == "failed" else 200, {"status": said, "flows": states}


def serve(port: int, statuses: Callable[[], list[FlowStatus]], *, host: str = "127.0.0.1") -> int:
    """Answers GET /metrics and /api/health; the port it got (0 asks for a free one)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", exposition(statuses()))
            elif path == "/api/health":
                code, said = health(statuses())
                self._answer(code, "application/json", json.dumps(said))
            else:
                self.send_error(404)

        def _answer(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(host, port, Handler)
    threading.Thread(target=server.serve_forever, name="headrace-metrics", daemon=True).start()
    return int(server.server_address[1])
