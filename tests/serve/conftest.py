"""A server on a home without Spark: a log, and a view whose commits are made by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace.log.embedded.log import EmbeddedLog
from headrace.serve.server import Server
from tests.views.committing import VIEW, Committing

__all__ = ["VIEW", "Served"]

CLICKS = "user string, page string, ms int, at timestamp"


class Served:
    """Who is let in asks with `client`; `anonymous` is a stranger."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.home, self.options = home, options
        self.log: EmbeddedLog = hr.open_log(home)
        self.clicks = self.log.create_topic(
            "clicks", CLICKS, key="user", event_time="at", partitions=2, extra="keep", exist_ok=True
        )
        self.committing = Committing(home, topic_id=self.clicks.topic_id)
        self.server = Server(home, port=0, **options)
        self.server.start()
        self._clients()

    def _clients(self) -> None:
        self.anonymous = httpx.Client(base_url=self.server.url, timeout=30)
        token = {"Authorization": f"Bearer {self.server.token}"}
        self.client = httpx.Client(base_url=self.server.url, headers=token, timeout=30)

    def restart(self) -> None:
        """Another server in its place, with the same token and port."""
        port, token = self.server.port, self.server.token
        self.stop()
        self.server = Server(self.home, port=port, token=token)
        self.server.start()
        self._clients()

    def stop(self) -> None:
        self.client.close()
        self.anonymous.close()
        self.server.stop()

    def get(self, path: str, status: int = 200, **options: Any) -> Any:
        answer = self.client.get(path, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, status: int = 200, **options: Any) -> Any:
        answer = self.client.post(path, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    def query(self, sql: str, status: int = 200, **more: Any) -> Any:
        return self.post("/api/query", status, json={"sql": sql, **more})

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.stop()
        self.committing.close()
        self.log.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with contextlib.closing(Served(tmp_path / "home")) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that leave it as they found it: three rows in two windows, one of them final."""
    with contextlib.closing(Served(tmp_path_factory.mktemp("served") / "home")) as found:
        found.committing.commit([(0, "/", 5), (0, None, 7), (1, "/b", 3)], closed=1)
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from tests.serve.browsing import chromium  # without Playwright the modules that ask for it are skipped

    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    from tests.serve.browsing import opening

    with opening(browser) as open_page:
        yield open_page
