"""The broker that tests and demos start: any client reaches it on loopback; where it cannot run, it says why."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.broker import SCRIPT


def test_any_client_reaches_it_on_loopback(broker: str) -> None:
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": broker}).list_topics(timeout=10)
    assert [f"{each.host}:{each.port}" for each in metadata.brokers.values()] == [broker]
    assert broker.startswith("127.0.0.1:")


def test_where_it_cannot_run_it_says_why_in_one_line(tmp_path: Path) -> None:
    python = Path(os.environ.get("VIRTUAL_ENV", "/usr"), "bin")
    (tmp_path / "python3").symlink_to(next(p for p in (python / "python3", Path("/usr/bin/python3")) if p.exists()))
    (tmp_path / "env").symlink_to("/usr/bin/env")
    for with_java, why in ((False, "there is no java on the PATH"), (True, "there is no mvn on the PATH")):
        if with_java:
            (tmp_path / "java").write_text("")
            (tmp_path / "java").chmod(0o700)
        clean = {"PATH": str(tmp_path), "HEADRACE_CACHE": str(tmp_path / "cache")}
        done = subprocess.run([str(SCRIPT)], env=clean, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (77, "")
        assert done.stderr.startswith(f"no Kafka broker: {why}") and done.stderr.count("\n") == 1
