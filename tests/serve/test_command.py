"""`headrace serve` as people start it: the link, the port, the end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import headrace as hr
from headrace.serve.server import PORT
from tests.cli.conftest import COMMAND, SECONDS_MAX, Shell, Spawner, shell, spawn

__all__ = ["shell", "spawn"]


def link_of(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Its address, and the token."""
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    found = re.fullmatch(r"page: (http://127\.0\.0\.1:\d+)/\?token=([\w-]{40,})\n", line)
    assert found is not None, line
    return found.group(1), found.group(2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_link_lets_in_and_a_signal_ends_it(spawn: Spawner, number: int, code: int) -> None:
    process = spawn("serve", "--port", "0")
    url, token = link_of(process)
    with httpx.Client(follow_redirects=True) as client:
        assert client.get(f"{url}/?token={token}").status_code == 200
        assert client.get(f"{url}/api/overview").json()["topics"] == []
        with client.stream("GET", f"{url}/api/overview/events") as listening:
            assert next(listening.iter_lines()) == "event: overview"
            process.send_signal(number)
            assert process.wait(10) == code
    assert process.stderr is not None
    assert process.stderr.read() == b"stopped\n"


def test_a_port_that_is_taken(spawn: Spawner, shell: Shell) -> None:
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", PORT))
            taken.listen()
        except OSError:
            pass  # by another run of this test, say
        url, _ = link_of(spawn("serve"))
        assert int(url.rpartition(":")[2]) > PORT
        refused = shell.refused("serve", "--port", str(PORT))
        assert (
            refused == f"port '127.0.0.1:{PORT}': address already in use; without --port the next that is free is taken"
        )


def test_a_token_of_ones_own(spawn: Spawner, shell: Shell, tmp_path: Path) -> None:
    url, token = link_of(spawn("serve", "--port", "0", "--token-file", str(tmp_path / "token")))
    assert (tmp_path / "token").read_text().strip() == token
    environment = {**os.environ, "HEADRACE_TOKEN": "x" * 40}
    assert link_of(spawn("serve", "--port", "0", env=environment))[1] == "x" * 40
    assert "16 or more" in shell.refused("serve", "--token-file", _file(tmp_path / "short", "abc"))
    del url


@pytest.mark.parametrize("there", [True, False], ids=["a home", "a directory that may become one"])
def test_a_browser_is_not_told_the_token_where_all_can_see_it(spawn: Spawner, tmp_path: Path, there: bool) -> None:
    """Every user of the machine sees the arguments of every process."""
    home, told = tmp_path / "home", tmp_path / "told"
    home.mkdir(mode=0o700)
    if there:
        hr.open_log(home).close()
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nf="${{1#file://}}"; {{ echo "$@"; stat -c %a "$f"; cat "$f"; }} > {told}.new\n')
    with browser.open("a") as script:
        script.write(f"mv {told}.new {told}\n")
    browser.chmod(0o700)
    environment = {**os.environ, "BROWSER": f"{browser} %s", "HEADRACE_HOME": str(home)}
    process = spawn("serve", "--port", "0", "--open", env=environment)
    url, token = link_of(process)
    limit = time.monotonic() + SECONDS_MAX
    while not told.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    argument, mode, page = told.read_text().split("\n", 2)
    assert token not in argument and argument.startswith("file:///") and argument.endswith(".html")
    assert mode == "600" and f'url={url}/?token={token}"' in page
    assert there is (Path(argument.removeprefix("file://")).parent == home)
    hr.open_log(home).close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not Path(argument.removeprefix("file://")).exists()


def _file(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def test_elsewhere_is_asked_for_twice_and_warned_of(spawn: Spawner) -> None:
    refused = spawn("serve", "--port", "0", "--host", "0.0.0.0")
    assert refused.wait(SECONDS_MAX) == 1
    process = spawn("serve", "--port", "0", "--host", "0.0.0.0", "--insecure")
    assert process.stderr is not None
    assert b"not encrypted" in process.stderr.readline()
    link_of(process)


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    """Without the extra; here its import is forbidden."""
    program = "import sys; sys.modules['fastapi'] = None; from headrace.cli import run; sys.exit(run(['serve']))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.endswith("pip install 'headrace[serve]'.")


def test_serving_needs_no_spark(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headrace.serve.server import Server\n"
        f"with Server(Path({str(tmp_path)!r}), port=0): print([name for name in sys.modules if 'pyspark' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_help_starts_quickly() -> None:
    """What is only shown is not loaded."""
    program = "import sys; from headrace.cli import run; run(['serve', '--help']); print('fastapi' in sys.modules)"
    done = subprocess.run([*COMMAND[:1], "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"
