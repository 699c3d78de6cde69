"""Several runners with homes of their own, over one log and one store in Postgres: one on standby takes over when the
active one dies, a rolling restart loses and doubles nothing, and flows are spread over runners."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace.flows.sharing import Sharing, fair_share
from headrace.views.open import open_store, open_views
from tests.databases import PostgresServer
from tests.flows.runner_of_many import FLOWS, made
from tests.flows.sparkless import Sparkless
from tests.flows.test_windows_sparkless import at

psycopg = pytest.importorskip("psycopg")
leases = pytest.importorskip("headrace.views.postgres.leases")
formats = pytest.importorskip("headrace.views.postgres.schema")
ROOT = Path(__file__).parents[2]


# -- leases ------------------------------------------------------------------------------------------


@pytest.fixture
def store(postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the store, each time as another process does."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(open_store(postgres.schema(tmp_path)))


def test_a_lease_is_held_until_it_is_released(store: Callable[[], Any]) -> None:
    one, other = store().leases, store().leases
    one.take("clicks")
    one.take("clicks")
    assert other.is_held("clicks") and not one.is_held("clicks") and other.names("cl") == ["clicks"]
    with pytest.raises(hr.AlreadyRunning) as told:
        other.take("clicks")
    assert (told.value.flow, told.value.pid) == ("clicks", os.getpid())
    one.release("clicks")
    other.take("clicks")
    other.release("clicks")
    assert other.names("") == []


def test_a_lease_ends_when_its_holder_gives_no_sign(store: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the database's clock. While it is renewed nobody gets it, however long it is held."""
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.4)
    one, other = store().leases, store().leases
    one.take("clicks")
    until = time.monotonic() + 1.2
    with pytest.raises(hr.AlreadyRunning):
        other.take("clicks", wait=lambda: time.monotonic() < until)
    one._end.set()  # as of a process that was killed, or stopped
    other.take("clicks", wait=lambda: True)
    with pytest.raises(hr.AlreadyRunning):
        one.take("clicks")
    one.take("clicks", take_over=True)
    assert other.is_held("clicks")


def test_a_store_of_an_older_format_is_changed_in_place(
    store: Callable[[], Any], postgres: PostgresServer, tmp_path: Path
) -> None:
    """By who opens it to write; who only reads can do so before."""
    store()
    schema = postgres.schema(tmp_path).rpartition("=")[2]
    with psycopg.connect(postgres.url) as plain:
        for create in [each for made in formats.MIGRATIONS.values() for each in made]:
            assert create.startswith("CREATE TABLE ")
            plain.execute(f"DROP TABLE {schema}.{create.split()[2]}")
        plain.execute(f"UPDATE {schema}._meta SET value = '1' WHERE name = 'format'")
    assert open_views(postgres.schema(tmp_path)).names() == []
    store().leases.take("clicks")
    with psycopg.connect(postgres.url) as plain:
        assert plain.execute(f"SELECT value FROM {schema}._meta WHERE name = 'format'").fetchone() == (formats.FORMAT,)


def test_fair_shares() -> None:
    for runners, shares in (("a", [4]), ("ab", [2, 2]), ("abc", [2, 1, 1]), ("abcde", [1, 1, 1, 1, 0])):
        assert [fair_share(4, name, [*runners]) for name in runners] == shares


# -- runners -----------------------------------------------------------------------------------------


class Runners:
    """Processes that run the flows."""

    def __init__(self, flow: Sparkless, address: str, folder: Path) -> None:
        self.flow, self.address, self._folder = flow, address, folder
        self._all: list[subprocess.Popen[str]] = []
        self.sent = 0

    def start(self, how: str) -> subprocess.Popen[str]:
        home = self._folder / f"home-{len(self._all)}"
        command = [
            sys.executable,
            "-m",
            "tests.flows.runner_of_many",
            str(self.flow.home),
            str(home),
            self.address,
            how,
        ]
        pipe = subprocess.PIPE
        self._all.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
        return self._all[-1]

    def has_started(self, runner: subprocess.Popen[str]) -> None:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "started\n"

    def stop(self, runner: subprocess.Popen[str]) -> None:
        assert runner.stdin is not None
        runner.stdin.close()
        assert runner.wait(30) == 0

    def put(self, count: int) -> None:
        """And waits until all flows have it, and nobody has it twice."""
        position = self.flow.topic.append([{"word": "a", "n": n, "at": at(n)} for n in range(count)]).position
        self.sent += count
        views = open_views(self.address)
        views.wait_for(position, timeout="40 seconds")
        for name in FLOWS:
            assert sum(row["records"] for row in views.to_arrow(name).to_pylist()) == self.sent, name

    def of_each(self) -> list[int]:
        """How many flows each process runs that has any."""
        with psycopg.connect(self.address.partition("?")[0]) as plain:
            schema = self.address.rpartition("=")[2]
            sql = f"SELECT pid, count(*) FROM {schema}._leases WHERE name = ANY(%s) AND ends_at > clock_timestamp() "
            return sorted(count for _, count in plain.execute(f"{sql} GROUP BY pid", (list(FLOWS),)))

    def become(self, counts: list[int]) -> None:
        until = time.monotonic() + 40
        while self.of_each() != counts:
            assert time.monotonic() < until, self.of_each()
            time.sleep(0.1)

    def end(self) -> None:
        for each in self._all:
            with contextlib.suppress(ProcessLookupError):
                each.send_signal(signal.SIGCONT)
                each.kill()
            each.wait()


@pytest.fixture
def runners(postgres: PostgresServer, tmp_path: Path) -> Iterator[Runners]:
    with made(tmp_path / "log") as flow:
        found = Runners(flow, postgres.schema(tmp_path), tmp_path)
        try:
            yield found
        finally:
            found.end()


@pytest.mark.timeout(180)
def test_one_on_standby_takes_over_within_ten_seconds(runners: Runners) -> None:
    """When the active one is killed. In a rolling restart the next one is on standby before that one is stopped."""
    active = runners.start("alone")
    runners.has_started(active)
    runners.put(20)
    standby = runners.start("standby")
    runners.put(20)
    active.kill()
    began = time.monotonic()
    runners.has_started(standby)
    runners.put(20)
    assert time.monotonic() - began < 10
    third = runners.start("standby")
    runners.stop(standby)
    runners.has_started(third)
    runners.put(20)


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_one_that_is_paused_past_its_lease_is_fenced(runners: Runners) -> None:
    active = runners.start("alone")
    runners.has_started(active)
    runners.put(20)
    standby = runners.start("standby")
    os.kill(active.pid, signal.SIGSTOP)
    runners.has_started(standby)
    runners.put(20)
    os.kill(active.pid, signal.SIGCONT)
    assert active.wait(30) == 1, "its epoch is over"
    runners.put(20)


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", [name for name in failpoints.KNOWN if name.startswith(("view.", "flow."))])
def test_one_that_is_killed_anywhere_in_a_commit(runners: Runners, point: str) -> None:
    killed = runners.start(point)
    runners.has_started(killed)
    standby = runners.start("standby")
    for _ in range(8):
        runners.put(10)
    assert killed.wait(30) == -signal.SIGKILL
    runners.has_started(standby)


class Some:
    """A runner that only remembers what it runs."""

    def __init__(self, leases: Any) -> None:
        self.leases, self.here = leases, list[str]()
        self.sharing = Sharing(self, leases, "app")

    def shared(self) -> tuple[list[str], list[str]]:
        return list(self.here), [flow for flow in FLOWS if flow not in self.here]

    def begin_one(self, flow: str) -> None:
        self.leases.take(flow)
        self.here.append(flow)

    def let_go(self, flow: str) -> None:
        self.leases.release(flow)
        self.here.remove(flow)


def test_each_looks_for_itself_and_all_flows_run(store: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.flows.sharing.LOOK_SECONDS", 0.02)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 2.0)
    runners = [Some(store().leases)]
    assert sorted(runners[0].here) == sorted(FLOWS)
    for counts in [2, 2], [1, 1, 2], [1, 1, 1, 1]:
        runners.append(Some(store().leases))
        _until(lambda counts=counts: sorted(len(each.here) for each in runners) == counts)  # type: ignore[misc]
    dead = runners.pop()
    dead.sharing._end.set()  # without a word
    dead.leases._end.set()
    _until(lambda: sorted(flow for each in runners for flow in each.here) == sorted(FLOWS))
    for each in runners[1:]:
        each.sharing.end()
        for flow in list(each.here):
            each.let_go(flow)
    _until(lambda: sorted(runners[0].here) == sorted(FLOWS))
    runners[0].sharing.end()


def _until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_flows_are_spread_over_runners(runners: Runners) -> None:
    """One that comes gets its part, and that of one that dies is taken by the others."""
    first = runners.start("share")
    runners.has_started(first)
    runners.become([4])
    runners.put(10)
    second = runners.start("share")
    runners.become([2, 2])
    runners.put(10)
    first.kill()
    runners.become([4])
    runners.put(10)
    runners.has_started(second)
