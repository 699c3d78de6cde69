"""`headrace queue …`, `headrace work …`, and the dead letters of queues."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.work import Worker, _stopped_by_signals
from tests.cli.conftest import SECONDS_MAX, Shell, Spawner

FUNCTIONS = """
import asyncio, os, time
DONE = os.environ.get("DONE", "done.txt")

def done(message):
    with open(DONE, "a") as file:
        file.write(f"{message.value['user']} {message.deliveries}\\n")

def send(message):
    if message.value["user"] == "bob":
        raise ValueError("no such mailbox")
    done(message)

async def send_async(message):
    await asyncio.sleep(0.01)
    send(message)

def slow(message):
    os.write(1, f"begun {message.value['user']}\\n".encode())
    while not os.path.exists("go"):
        time.sleep(0.01)
    done(message)

class Mailer:
    def __call__(self, message):
        done(message)

mailer = Mailer()
NUMBER = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`mail.py` in the current directory."""
    (tmp_path / "mail.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DONE", str(tmp_path / "done.txt"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("mail", None)
    return tmp_path


def done(module: Path) -> list[str]:
    path = module / "done.txt"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def test_queues_are_listed_and_shown(clicks: Shell) -> None:
    assert clicks.ok("queue", "list").err.startswith("No queues yet.")
    with hr.open_log(clicks.home) as log:
        queue = log.topic("clicks").queue("mailer", order="key", max_deliveries=1)
        queue.receive()[0].nack("no such mailbox")
        queue.receive()
    (row,) = clicks.ok("queue", "list").rows
    assert (row["queue"], row["topic"], row["order"], row["ready"], row["in_flight"], row["dead_open"]) == (
        *("mailer", "clicks", "key"),
        *(1, 1, 1),
    )
    assert [found["queue"] for found in clicks.ok("queue", "list", "clicks").rows] == ["mailer"]
    (shown,) = clicks.ok("queue", "stats", "clicks", "mailer").rows
    assert (shown["visibility_seconds"], shown["max_deliveries"], shown["delivered"]) == (30.0, 1, 2)
    assert "oldest_seconds" in clicks.ok("queue", "stats", "clicks", "mailer", "--format", "table").text
    (peeked,) = clicks.ok("queue", "peek", "clicks", "mailer").rows
    assert set(peeked) == {"partition", "offset", "arrived_at", "value"}
    assert "has no queue 'mailr'. Did you mean 'mailer'? There are: mailer." in clicks.refused(
        "queue", "stats", "clicks", "mailr"
    )


def test_without_a_log(shell: Shell) -> None:
    assert shell.ok("queue", "list").out == b""
    assert "there is no log" in shell.refused("queue", "list", "clicks")


def test_dead_letters_of_a_queue(clicks: Shell) -> None:
    with hr.open_log(clicks.home) as log:
        queue = log.topic("clicks").queue("mailer", max_deliveries=1)
        for _ in range(3):
            queue.receive()[0].nack("no such mailbox")
    rows = clicks.ok("dead", "list", "--topic", "clicks").rows
    assert [(row["reason"], row["source"], row["error"]) for row in rows] == [
        ("deliveries", "queue mailer", "no such mailbox")
    ] * 3
    assert rows[0]["value"]["user"] in ("ann", "bob", "cat")
    (shown,) = clicks.ok("dead", "show", str(rows[0]["id"])).rows
    assert (shown["deliveries"], shown["partition"] in (0, 1), shown["offset"] >= 0) == (1, True, True)
    clicks.ok("dead", "replay", str(rows[0]["id"]))
    assert len(clicks.ok("consume", "clicks").rows) == 3  # not appended again
    assert [row["value"] for row in clicks.ok("queue", "peek", "clicks", "mailer").rows] == [rows[0]["value"]]
    assert clicks.ok("queue", "redrive", "clicks", "mailer").err == "2 messages back in queue mailer of clicks\n"
    assert len(clicks.ok("queue", "peek", "clicks", "mailer").rows) == 3


def test_rewinding_and_deleting(clicks: Shell) -> None:
    with hr.open_log(clicks.home) as log:
        queue = log.topic("clicks").queue("mailer")
        queue.ack(queue.receive(9) + queue.receive(9))
    assert clicks.ok("queue", "peek", "clicks", "mailer").err == "Nothing to receive now.\n"
    rewound = clicks.ok("queue", "rewind", "clicks", "mailer", "--start", "earliest").rows
    assert rewound == [{"partition": 0, "next": 0}, {"partition": 1, "next": 0}]
    assert len(clicks.ok("queue", "peek", "clicks", "mailer").rows) == 3
    assert clicks("queue", "delete", "clicks", "mailer").code == 2
    clicks.ok("queue", "delete", "clicks", "mailer", "--yes")
    assert clicks.ok("queue", "list").out == b""


def test_a_worker_acknowledges_and_rejects(clicks: Shell, module: Path) -> None:
    ran = clicks.ok(
        "work", "mail:send", "clicks", "mailer", "--max-deliveries", "2", "--concurrency", "3", "--stop-when-empty"
    )
    assert done(module) == ["ann 1", "cat 1"]
    assert "delivery 2: ValueError: no such mailbox" in ran.err
    assert ran.err.endswith("queue mailer of clicks: 2 done, 2 failed, 1 dead letter (headrace dead list)\n")
    (letter,) = clicks.ok("dead", "list").rows
    assert (letter["error"], letter["source"]) == ("ValueError: no such mailbox", "queue mailer")


@pytest.mark.parametrize("function", ["send_async", "mailer"])
def test_functions_of_any_kind(clicks: Shell, module: Path, function: str) -> None:
    clicks.ok("work", f"mail:{function}", "clicks", "m", "--max-deliveries", "1", "--stop-when-empty", "--batch", "2")
    assert done(module)[0] == "ann 1"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("mail", "is not MODULE:FUNCTION"),
        ("mial:send", "there is no module 'mial'"),
        ("mail:sned", "has no 'sned'. Did you mean 'send'?"),
        ("mail:NUMBER", "is not a function, but int"),
        ("other:two", "other:two cannot be called with one argument, the message: missing a required argument: 'b'"),
        ("other:lazy", "other:lazy is a generator"),
        ("typo:send", "typo cannot be imported: SyntaxError: '(' was never closed (typo.py, line 1)"),
        ("broken:send", "broken cannot be imported: NameError: name 'x' is not defined"),
        ("needs:send", "needs cannot be imported: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
    ],
)
def test_a_function_that_is_not_there(clicks: Shell, module: Path, function: str, why: str) -> None:
    (module / "broken.py").write_text("x")
    (module / "other.py").write_text("def two(a, b): ...\ndef lazy(message):\n    yield message\n")
    (module / "typo.py").write_text("def send(message:\n")
    (module / "needs.py").write_text("import nothing_of_the_kind")
    refused = clicks("work", function, "clicks", "mailer")
    assert refused.code == 2
    assert why in refused.err
    assert clicks.ok("queue", "list").out == b""


def begun(worker: subprocess.Popen[bytes], count: int) -> None:
    assert worker.stdout is not None
    for _ in range(count):
        assert worker.stdout.readline().startswith(b"begun")


def stats(home: Path) -> Any:
    with hr.open_log(home) as log:
        return log.topic("clicks").queue("mailer", create=False).stats()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_stops_gracefully(clicks: Shell, module: Path, spawn: Spawner, number: int, code: int) -> None:
    worker = spawn("work", "mail:slow", "clicks", "mailer", "--batch", "10", cwd=module)
    begun(worker, 1)
    worker.send_signal(number)
    deadline = time.monotonic() + SECONDS_MAX
    while stats(clicks.home).in_flight != 1:  # the others of its batch went back
        assert time.monotonic() < deadline
    (module / "go").touch()
    assert worker.wait(SECONDS_MAX) == code
    assert worker.stderr is not None
    assert b"1 done, 0 failed" in worker.stderr.read()
    assert len(done(module)) == 1
    left = clicks.ok("work", "mail:slow", "clicks", "mailer", "--stop-when-empty")
    assert left.err.endswith("2 done, 0 failed\n")
    assert [line.split()[1] for line in done(module)] == ["1", "1", "1"]  # none counted a delivery for nothing


def test_a_second_ctrl_c_ends_at_once(clicks: Shell, module: Path, spawn: Spawner) -> None:
    worker = spawn("work", "mail:slow", "clicks", "mailer", "--visibility", "1 second", cwd=module)
    begun(worker, 1)
    worker.send_signal(signal.SIGINT)
    assert worker.stderr is not None
    assert b"stopping" in worker.stderr.readline()
    worker.send_signal(signal.SIGINT)
    assert worker.wait(SECONDS_MAX) == 130
    (module / "go").touch()
    clicks.ok("work", "mail:slow", "clicks", "mailer", "--stop-when-empty")  # gets it when its visibility has run out
    assert "2" in [line.split()[1] for line in done(module)]


def test_a_worker_keeps_what_it_works_on(clicks: Shell, module: Path, spawn: Spawner) -> None:
    """Its visibility is extended while the function runs; when the worker is killed, others get the message."""
    two = ("--visibility", "2 seconds", "--concurrency", "3")
    worker = spawn("work", "mail:slow", "clicks", "mailer", *two, cwd=module)
    begun(worker, 3)
    with hr.open_log(clicks.home) as log:
        queue = log.topic("clicks").queue("mailer")
        assert queue.receive(9, wait="3 seconds") == []
        worker.kill()
        assert len(queue.receive(9, wait="10 seconds")) >= 1


def test_a_slow_message_holds_up_no_other(clicks: Shell, module: Path, spawn: Spawner) -> None:
    """A worker takes no more than it can begin: what it only kept, nobody else could work on."""
    worker = spawn("work", "mail:slow", "clicks", "mailer", cwd=module)
    begun(worker, 1)
    others: list[Any] = []
    with hr.open_log(clicks.home) as log:
        queue = log.topic("clicks").queue("mailer")
        while found := queue.receive(1, wait="2 seconds" if len(others) < 2 else None):
            others += found
    assert len(others) == 2
    (module / "go").touch()


def test_a_signal_just_before_the_worker_waits(clicks: Shell) -> None:
    """Its handler runs in the thread that is about to wait, and cannot wake it."""

    def until_the_others_went_back(_: Any) -> None:
        deadline = time.monotonic() + 5
        while worker.given_back < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    def wait(timeout: float | None = None) -> bool:
        if worker._waiting == 2:  # the first is begun
            os.kill(os.getpid(), signal.SIGTERM)
        return really_wait(timeout)

    with hr.open_log(clicks.home) as log:
        queue = log.topic("clicks").queue("mailer")
        worker = Worker(queue, until_the_others_went_back, 1, 10, None, False)
        really_wait, worker._changed.wait = worker._changed.wait, wait  # type: ignore[method-assign]
        with _stopped_by_signals(worker):
            worker.run()
    assert (worker.done, worker.given_back) == (1, 2)


def test_what_a_function_says_cannot_drive_the_terminal(clicks: Shell, module: Path) -> None:
    (module / "evil.py").write_text("def f(message):\n    raise ValueError('\\x1b]0;owned\\x07')\n")
    told = clicks.ok("work", "evil:f", "clicks", "mailer", "--max-deliveries", "1", "--stop-when-empty").err
    assert "ValueError: \\x1b]0;owned\\x07" in told and "\x1b" not in told


def test_names_are_completed(clicks: Shell) -> None:
    from tests.cli.test_process import completed

    with hr.open_log(clicks.home) as log:
        log.topic("clicks").queue("mailer")
    assert completed("headrace", "queue", "stats", "clicks", "m") == ["mailer"]
    assert completed("headrace", "queue", "st") == ["stats"]
