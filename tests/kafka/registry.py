"""A schema registry for tests: the server's side of `/schemas/ids/N` and `/subjects/S/versions/N`, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """`schemas`: by id. `answers`: given first, one for each request: (status, headers, body)."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[str, Any]] = {}
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""

    def put(self, id: int, schema: Any, **more: Any) -> None:
        self.schemas[id] = {"schema": json.dumps(schema), **more}

    def answer(self, path: str, login: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((path, login))
        if self.answers:
            return self.answers.pop(0)
        if path.startswith("/schemas/ids/"):
            found = self.schemas.get(int(path.rpartition("/")[2]))
        else:
            found = self.subjects.get(path)
        if found is None:
            return 404, {}, b'{"error_code": 40403, "message": "Schema not found"}'
        return 200, {}, json.dumps(found).encode()


@contextmanager
def running() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = registry.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
