"""Rows that are posted, and programs that get them: each once in effect, and to no address but the one given."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connect.open import as_sink, open_sink
from headrace.connect.webhook import signature
from headrace.failpoints import arm
from tests.connect.test_program import until
from tests.faults.children import Children, ack
from tests.faults.conftest import children

__all__ = ["children"]


class Receiver:
    """`answers`: statuses, given first; then 204. `got`: headers and body of each request."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]

    @property
    def rows(self) -> list[Any]:
        return [json.loads(body)["data"]["n"] for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
            self.send_header("Location", f"{receiver.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?x=1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield receiver
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with hr.open_log(tmp_path) as log:
        log.create_topic("alerts", "n int, said string", durability="os")
        yield log


def deliver(log: Any, sink: Any, steps: int = 100) -> int:
    """As a process does that begins with what is recorded, and ends."""
    opened = open_sink(as_sink(sink), "pager", log, log.topic("alerts"), Path(log.address))
    total = 0
    for _ in range(steps):
        if not (taken := opened.step()):
            break
        total += taken
    return total


def test_rows_are_posted_in_order_and_signed(log: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", "whsec_" + base64.b64encode(b"k" * 24).decode())
    monkeypatch.setenv("HOOK_TOKEN", "Bearer t0ken")
    log.topic("alerts").append([{"n": 1, "said": 'a "quote" <b>'}, {"n": 2, "said": None}])
    hook = hr.webhook(receiver.url, secret="env:HOOK_KEY", headers={"Authorization": "env:HOOK_TOKEN"}, private=True)
    assert deliver(log, hook) == 2 and deliver(log, hook) == 0
    (headers, body), (_, second) = receiver.got
    assert json.loads(body) == {"type": "pager", "id": receiver.ids[0], "data": {"n": 1, "said": 'a "quote" <b>'}}
    assert json.loads(second)["data"] == {"n": 2, "said": None}
    assert headers["authorization"] == "Bearer t0ken" and headers["content-type"] == "application/json"
    assert headers["webhook-signature"] == signature(
        b"k" * 24, headers["webhook-id"], int(headers["webhook-timestamp"]), body
    )
    assert len(set(receiver.ids)) == 2


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of its specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_row_that_comes_again_has_the_same_id_and_bytes(log: Any, receiver: Receiver) -> None:
    log.topic("alerts").append([{"n": 1, "said": "x"}, {"n": 2, "said": "y"}])
    receiver.answers = [503, 429, 408]
    hook = hr.webhook(receiver.url, private=True)
    for _ in range(3):
        with pytest.raises(hr.SinkFailed, match=r"the webhook at 127\.0\.0\.1: it answered with status"):
            deliver(log, hook)
    assert deliver(log, hook) == 2
    assert len(set(receiver.ids[:4])) == 1 and len({body for _, body in receiver.got[:4]}) == 1
    assert receiver.rows == [1, 1, 1, 1, 2] and receiver.ids[4] > receiver.ids[0]


def test_nobody_answers(log: Any) -> None:
    log.topic("alerts").append({"n": 1, "said": "x"})
    with pytest.raises(hr.SinkFailed, match="Refused"):
        deliver(log, hr.webhook("http://127.0.0.1:1/", private=True))


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_a_row_that_is_refused_is_a_dead_letter_and_the_next_goes_on(log: Any, receiver: Receiver, status: int) -> None:
    log.topic("alerts").append([{"n": 1, "said": "x"}, {"n": 2, "said": "y"}])
    receiver.answers = [status]
    assert deliver(log, hr.webhook(receiver.url, private=True)) == 2
    assert receiver.rows == [1, 2]
    (letter,) = log.dead_letters()
    assert (letter.reason, letter.origin.source) == ("webhook", "sink pager")
    assert f"status {status}" in letter.error and json.loads(letter.value)["data"]["n"] == 1


def test_after_so_many_attempts_it_is_a_dead_letter(log: Any, receiver: Receiver) -> None:
    log.topic("alerts").append([{"n": 1, "said": "x"}, {"n": 2, "said": "y"}])
    receiver.answers = [500] * 3
    hook = hr.webhook(receiver.url, attempts=3, private=True)
    for _ in range(2):
        with pytest.raises(hr.SinkFailed):
            deliver(log, hook)
    assert deliver(log, hook) == 2 and receiver.rows == [1, 1, 1, 2]
    (letter,) = log.dead_letters()
    assert letter.error.endswith("status 500, 3 times")


def test_an_address_that_is_gone_gets_nothing_more(log: Any, receiver: Receiver) -> None:
    log.topic("alerts").append({"n": 1, "said": "x"})
    receiver.answers = [410]
    with pytest.raises(hr.WebhookGone, match="the rows wait in its topic"):
        deliver(log, hr.webhook(receiver.url, private=True))
    assert list(log.dead_letters()) == []


def test_addresses_of_this_machine_and_of_the_cloud_are_not_asked(log: Any, receiver: Receiver) -> None:
    log.topic("alerts").append({"n": 1, "said": "x"})
    with pytest.raises(hr.SinkFailed, match="is not allowed: allow that with private=True"):
        deliver(log, hr.webhook(receiver.url))
    with pytest.raises(hr.SinkFailed) as cloud:
        deliver(log, hr.webhook("http://169.254.169.254/"))
    assert "private=True" not in str(cloud.value)  # it would not help
    for host in ("169.254.169.254", "[fe80::1]", "0.0.0.0", "[::ffff:a9fe:a9fe]"):
        with pytest.raises(hr.SinkFailed, match="no such service is"):
            deliver(log, hr.webhook(f"http://{host}/", private=True))
    for host in ("100.100.100.200", "168.63.129.16", "[fd00:ec2::254]", "[64:ff9b::a9fe:a9fe]", "[::a9fe:a9fe]"):
        with pytest.raises(hr.SinkFailed, match="no such service is"):
            deliver(log, hr.webhook(f"http://{host}/", private=True))
    with pytest.raises(hr.SinkFailed, match="is not allowed"):
        deliver(log, hr.webhook("http://[64:ff9b::a00:1]/"))
    assert receiver.got == []


def served(answer: Any) -> Iterator[str]:
    """A receiver that takes a request and answers by hand."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as taken, contextlib.suppress(OSError):
                    taken.recv(1 << 16)
                    answer(taken)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def test_of_an_answer_only_the_status_counts(log: Any) -> None:
    """A receiver that took the row and says a lot about it has taken it."""
    log.topic("alerts").append({"n": 1, "said": "x"})
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 1_000_000
    with contextlib.contextmanager(served)(lambda taken: taken.sendall(said)) as url:
        assert deliver(log, hr.webhook(url, private=True)) == 1


def test_an_answer_that_comes_byte_by_byte_ends(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.outbound.ANSWER_SECONDS", 0.3)
    log.topic("alerts").append({"n": 1, "said": "x"})

    def drip(taken: socket.socket) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        taken.settimeout(0.02)
        while True:
            with contextlib.suppress(TimeoutError):
                if not taken.recv(1):
                    return
            taken.sendall(b"x")

    with (
        contextlib.contextmanager(served)(drip) as url,
        pytest.raises(hr.SinkFailed, match=r"longer than 0\.3 s|timed out"),
    ):
        deliver(log, hr.webhook(url, private=True))


def test_two_sinks_of_one_webhook_count_their_own_attempts(log: Any, receiver: Receiver) -> None:
    log.topic("alerts").append({"n": 1, "said": "x"})
    hook = hr.webhook(receiver.url, attempts=3, private=True)
    hook.tries["other-0000000000000001"] = 2
    assert deliver(log, hook) == 1
    assert hook.tries == {"other-0000000000000001": 2}


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"headers": {"Authorization": "env:BAD"}, "url": "https://a/"}, "headers"),
        ({"url": "env:BAD_URL"}, "url"),
        ({"url": "env:BAD_PORT"}, "url"),
    ],
)
def test_a_secret_that_cannot_be_sent_is_not_quoted(
    log: Any, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], argument: str
) -> None:
    monkeypatch.setenv("BAD", "Bearer canary\r\nX-Other: 1")
    monkeypatch.setenv("BAD_URL", "https://a/canary 17")
    monkeypatch.setenv("BAD_PORT", "https://a:99999/canary")
    log.topic("alerts").append({"n": 1, "said": "x"})
    with pytest.raises(hr.InvalidArgument) as caught:
        deliver(log, hr.webhook(**given))
    assert caught.value.argument == argument and "canary" not in f"{caught.value} {caught.value!r}"


def test_secrets_are_in_nothing_that_is_said_or_kept(
    log: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOOK_KEY", "canary-key")
    monkeypatch.setenv("HOOK_URL", receiver.url.replace("x=1", "x=canary-url"))
    log.topic("alerts").append({"n": 1, "said": "x"})
    receiver.answers = [500, 400]
    hook = hr.webhook("env:HOOK_URL", secret="env:HOOK_KEY", private=True)
    with pytest.raises(hr.SinkFailed) as caught:
        deliver(log, hook)
    deliver(log, hook)
    assert "canary" not in f"{caught.value} {caught.value!r} {hook!r} {hr.webhook('http://a/canary')!r}"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"url": "ftp://a/canary"}, "url"),
        ({"url": "https://ann:canary@a/"}, "url"),
        ({"url": "https:///canary"}, "url"),
        ({"url": "https://a/", "secret": "canary"}, "secret"),
        ({"url": "https://a:99999/canary"}, "url"),
        ({"url": "https://a/canary x"}, "url"),
        ({"url": "https://a/", "headers": {"a b": "canary"}}, "headers"),
        ({"url": "https://a/", "headers": {"A": "canary\nB: 1"}}, "headers"),
        ({"url": "https://a/", "headers": {"Webhook-Id": "canary"}}, "headers"),
        ({"url": "https://a/", "headers": {"A": 1}}, "headers"),
        ({"url": "https://a/", "attempts": 0}, "attempts"),
        ({"url": "https://a/", "per_minute": True}, "per_minute"),
    ],
)
def test_webhooks_that_make_no_sense(given: dict[str, Any], argument: str) -> None:
    with pytest.raises(hr.InvalidArgument) as caught:
        hr.webhook(**given)
    assert caught.value.argument == argument and "canary" not in str(caught.value)


def post(path: str, url: str, point: str) -> None:
    with hr.open_log(path) as log:
        arm(point, "kill")
        ack(deliver(log, hr.webhook(url, private=True)))


@pytest.mark.parametrize("point", ["sink.recorded", "sink.called"])
def test_who_is_killed_posts_the_same_again(log: Any, receiver: Receiver, children: Children, point: str) -> None:
    log.topic("alerts").append([{"n": 1, "said": "x"}, {"n": 2, "said": "y"}])
    assert children.start(post, log.address, receiver.url, point).wait() != 0
    assert deliver(log, hr.webhook(receiver.url, private=True)) == 2
    effects = dict(zip(receiver.ids, receiver.rows, strict=True))
    assert list(effects.values()) == [1, 2], "by their ids, each once"
    assert len(receiver.got) == (2 if point == "sink.recorded" else 3)


# -- programs ------------------------------------------------------------------------------------------

WRITES = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"


def test_a_program_gets_each_row(log: Any, tmp_path: Path) -> None:
    log.topic("alerts").append([{"n": 1, "said": "$(touch /tmp/x); `id`"}, {"n": 2, "said": "y"}])
    out = tmp_path / "out.txt"
    assert deliver(log, hr.command([sys.executable, "-c", WRITES, str(out)])) == 2
    got = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["data"]["said"] for each in got] == ["$(touch /tmp/x); `id`", "y"]
    assert got[0]["id"] < got[1]["id"]


@pytest.mark.parametrize(
    ("arguments", "timeout", "why"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no pager')"], "1 minute", "ended with 1: no pager"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "200 milliseconds", "took longer than 0.2 s"),
        (["/nowhere/program"], "1 minute", "cannot be started: No such file"),
    ],
)
def test_a_program_that_fails_gets_the_row_again(log: Any, arguments: list[str], timeout: str, why: str) -> None:
    log.topic("alerts").append({"n": 1, "said": "x"})
    with pytest.raises(hr.SinkFailed, match=why):
        deliver(log, hr.command(arguments, timeout=timeout))


def test_a_program_may_leave_another_one_behind(log: Any, tmp_path: Path) -> None:
    """Which keeps its standard error open. One that takes too long goes with what it has started."""
    log.topic("alerts").append([{"n": 1, "said": "x"}, {"n": 2, "said": "y"}])
    hung = f"import subprocess, sys; c = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'])\n"
    hung += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(c.pid))\n"
    assert deliver(log, hr.command([sys.executable, "-c", hung], timeout="20 seconds"), steps=1) == 1
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(hr.SinkFailed, match="took longer"):
        deliver(log, hr.command([sys.executable, "-c", f"{hung}c.wait()"], timeout="1 second"))
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def is_alive(pid: int) -> bool:
    """A zombie has ended."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_shells_line_is_no_program() -> None:
    with pytest.raises(hr.InvalidArgument, match="no shell"):
        hr.command("notify --json")  # type: ignore[arg-type]
