"""Entities on a broker: the handler may be killed, stopped or fenced anywhere, and replies may be lost; every command
is handled once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import sourcing as es
from tests.sourcing.test_entities import Account, Close, Closed, Deposit, Deposited, Withdraw, Withdrawn, decide, evolve

HANDLES = """
import os, signal, sys
import headrace as hr
from headrace import failpoints
from tests.kafka.test_entities import accounts_in
address, point, skip, signal_name = sys.argv[1:]
with hr.open_log(address) as log:
    if point:
        failpoints.arm(point, lambda: os.kill(os.getpid(), signal.Signals[signal_name]), skip=int(skip))
    accounts = accounts_in(log)
    accounts.drain()
    print("handling", flush=True)
    accounts.run(lambda: False)
"""


@pytest.fixture
def address(broker: str) -> str:
    return f"kafka://{broker}?prefix=e{uuid.uuid4().hex[:8]}."


@pytest.fixture
def log(address: str) -> Iterator[Any]:
    with hr.open_log(address) as log:
        yield log


def accounts_in(log: Any, **changes: Any) -> es.Entities[Account]:
    given = {"events": [Deposited, Withdrawn, Closed], "commands": [Deposit, Withdraw, Close], "initial": Account()}
    return es.Entities(log, "accounts", **{"evolve": evolve, "decide": decide, **given, **changes})


@contextlib.contextmanager
def handled(accounts: es.Entities[Any]) -> Iterator[None]:
    """By a thread of this process, as long as the block lasts."""
    stopping, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            accounts.run(stopping.is_set)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert not failed, failed


@contextlib.contextmanager
def handling(
    address: str, point: str = "", skip: int = 0, sent: signal.Signals = signal.SIGKILL
) -> Iterator[subprocess.Popen[str]]:
    """By another process, which sends itself this signal at the failpoint."""
    command = [sys.executable, "-c", HANDLES, address, point, str(skip), sent.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_same_as_in_a_directory(log: Any) -> None:
    accounts = accounts_in(log, partitions=2)
    with handled(accounts):
        done = accounts.handle("ann", Deposit(100))
        assert (done.events, done.version, done.state) == ((Deposited(100),), 1, Account(100))
        with pytest.raises(es.Rejected, match="ann has 100, not 200"):
            accounts.handle("ann", Withdraw(200))
        nothing = accounts.handle("ann", Deposit(0))
        assert (nothing.events, nothing.version, nothing.state, bool(nothing.position)) == ((), 1, Account(100), False)
        first = accounts.handle("ann", Withdraw(100), id="w1", expected=1)
        with pytest.raises(es.VersionConflict) as conflict:
            accounts.handle("ann", Deposit(1), expected=1)
        assert (conflict.value.key, conflict.value.expected, conflict.value.actual) == ("ann", 1, 2)
        assert accounts.append("ann", Deposited(3), Deposited(4), expected=2).state == Account(7)
        again = accounts_in(log).handle("ann", Withdraw(100), id="w1")  # now it would be rejected
        assert again == replace(first, duplicate=True)
        closed = accounts_in(log).handle("ann", Close())
        assert (closed.events, closed.version) == ((Withdrawn(7), Closed()), 6)
        assert accounts.load("ann") == es.Loaded("ann", Account(0, False), 6)
        assert accounts.load("ann", at=4) == es.Loaded("ann", Account(7), 4)
        assert accounts.load("nobody") == es.Loaded("nobody", Account(), 0) and not list(accounts.events("nobody"))
        with pytest.raises(hr.InvalidArgument, match="is not there yet: 'ann' is at version 6"):
            accounts.load("ann", at=7)
        with pytest.raises(hr.Unsupported, match="erasure"):
            accounts.erase("ann")
    happened = [(event.version, event.event, event.command == "w1") for event in accounts.events("ann")]
    assert happened[:2] == [(1, Deposited(100), False), (2, Withdrawn(100), True)] and len(happened) == 6
    ends = done.position.offsets("accounts")
    assert list(ends) == [record.partition for record in accounts.topic.records(key="ann")][:1]


def test_an_app_runs_them(log: Any, tmp_path: Path) -> None:
    app = hr.App("bank", home=tmp_path, log=log)
    app.supervise(accounts_in(log))
    app.start()
    assert accounts_in(log).handle("ann", Deposit(5)).version == 1
    app.stop()


def test_what_makes_no_sense_is_told_to_its_caller(log: Any) -> None:
    """And the handler goes on."""
    with pytest.raises(hr.InvalidArgument, match="name their classes"):
        accounts_in(log, commands=[])

    def fail(_account: Account, command: Any, _key: str) -> list[Any]:
        match command:
            case Withdraw():
                raise es.Rejected("no \ud800" + "!" * 20_000_000)  # no text, and too long for a record
            case Close():
                return [Deposited("much")]  # type: ignore[arg-type]
        return [Deposited(1 // command.cents)]

    accounts = accounts_in(log, decide=fail)
    with handled(accounts):
        for command, why in (Deposit(0), "ZeroDivisionError"), (Close(), "'much' is of type str, not int"):
            with pytest.raises(es.CommandFailed, match=why):
                accounts.handle("ann", command, id="d")
        with pytest.raises(es.Rejected, match=r"no \?!!!"):
            accounts.handle("ann", Withdraw(1), id="d")
        with pytest.raises(hr.InvalidArgument, match="none of the event classes"):
            accounts.handle("ann", Deposited(1))
        assert not accounts.handle("ann", Deposit(1), id="d").duplicate
        with pytest.raises(hr.InvalidArgument, match="is that of a command to 'ann'"):
            accounts.handle("bob", Deposit(1), id="d")
    with pytest.raises(hr.Unsupported):
        es.ProcessManager(
            log, "p", events=[Deposited], evolve=evolve, react=lambda *_: [], commands={Deposit: accounts}, initial=0
        ).load("x")


def test_a_reply_that_does_not_come_in_time_comes_with_the_id(log: Any) -> None:
    accounts = accounts_in(log, timeout="0.3 seconds")
    with pytest.raises(es.CommandTimeout, match="may still be handled") as late:
        accounts.handle("ann", Deposit(5))
    assert accounts.load("ann").version == 0 and accounts.drain() == 1
    with handled(accounts_in(log)):
        done = accounts_in(log).handle("ann", Deposit(5), id=late.value.id)
    assert done.duplicate and (done.events, done.version, done.state) == ((Deposited(5),), 1, Account(5))


def test_of_racers_that_expect_a_version_one_wins(log: Any) -> None:
    accounts, said = accounts_in(log), list[Any]()

    def race(number: int) -> None:
        try:
            said.append(accounts.handle("ann", Deposit(number + 1), expected=0).state)
        except es.VersionConflict as conflict:
            said.append(conflict.actual)

    with handled(accounts_in(log)):
        threads = [threading.Thread(target=race, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (won,) = [each for each in said if isinstance(each, Account)]
    assert said.count(1) == 15 and accounts.load("ann") == es.Loaded("ann", won, 1)


@pytest.mark.parametrize(
    ("point", "skip"),
    [("kafka.sent", 1), ("kafka.committed", 1), pytest.param("kafka.sent", 0, marks=pytest.mark.soak)],
)
def test_a_handler_is_killed(log: Any, address: str, point: str, skip: int) -> None:
    """Before its transaction is committed, or behind it: the next one goes on where it was."""
    accounts, done = accounts_in(log), list[Any]()
    with handling(address, point, skip) as first:
        asking = threading.Thread(
            target=lambda: done.extend(accounts.handle("ann", Deposit(n), id=f"d{n}").version for n in (1, 2, 3))
        )
        asking.start()
        assert first.wait(60) == -signal.SIGKILL, first.stderr and first.stderr.read()
    with handled(accounts_in(log)):
        asking.join()
        again = [accounts.handle("ann", Deposit(n), id=f"d{n}") for n in (1, 2, 3)]
    assert done == [1, 2, 3] == [each.version for each in again] and all(each.duplicate for each in again)
    assert [event.event for event in accounts.events("ann")] == [Deposited(1), Deposited(2), Deposited(3)]


def test_a_handler_that_was_suspended_is_fenced(log: Any, address: str) -> None:
    accounts = accounts_in(log)
    with handling(address) as old:
        assert old.stdout is not None and old.stderr is not None and old.stdout.readline() == "handling\n"
        accounts.handle("ann", Deposit(1))
        old.send_signal(signal.SIGSTOP)
        with handled(accounts_in(log)):
            accounts.handle("ann", Deposit(2), id="d2")
            old.send_signal(signal.SIGCONT)  # it finds the command, too, and decides it
            assert old.wait(60) == 1 and "ProducerReplaced" in old.stderr.read()
            assert accounts.handle("ann", Deposit(2), id="d2").duplicate
            accounts.handle("ann", Deposit(3))
    assert [event.event for event in accounts.events("ann")] == [Deposited(1), Deposited(2), Deposited(3)]


def test_a_handler_that_was_suspended_in_its_transaction_is_fenced(log: Any, address: str) -> None:
    """What it has sent is given up when the next one takes the partition."""
    accounts, done = accounts_in(log), list[int]()
    with handling(address, "kafka.sent", 1, signal.SIGSTOP) as old:
        asking = threading.Thread(
            target=lambda: done.extend(accounts.handle("ann", Deposit(n), id=f"d{n}").version for n in (1, 2, 3))
        )
        asking.start()
        until = time.monotonic() + 60
        while not (found := os.waitpid(old.pid, os.WUNTRACED | os.WNOHANG))[0]:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert os.WIFSTOPPED(found[1]) and done == [1]
        with handled(accounts_in(log)):
            asking.join()
            old.send_signal(signal.SIGCONT)  # it commits what it had sent
            assert old.wait(60) == 1 and old.stderr is not None and "ProducerReplaced" in old.stderr.read()
    assert done == [1, 2, 3]
    assert [event.event for event in accounts.events("ann")] == [Deposited(1), Deposited(2), Deposited(3)]


def test_commands_come_to_what_a_model_says(log: Any, seed: int) -> None:
    """Handlers take turns, with a batch or none between them."""
    chance, model, used = random.Random(seed), dict[str, list[Any]](), dict[str, tuple[str, tuple[Any, ...], int]]()
    programs = [accounts_in(log, partitions=2) for _ in range(2)]
    for _ in range(2):
        with handled(accounts_in(log)):
            for _ in range(10):
                key, id = chance.choice("abc"), chance.choice([None, "1", "2", "3"])
                id = id and key + id
                command = chance.choice([Deposit(chance.randrange(9)), Withdraw(chance.randrange(9)), Close()])
                program, events, state = chance.choice(programs), model.setdefault(key, []), Account()
                for event in events:
                    state = evolve(state, event)
                if id in used:
                    done = program.handle(key, command, id=id)
                    assert (key, done.events, done.version, done.duplicate) == (*used[id], True)
                    continue
                try:
                    wanted = tuple(decide(state, command, key))
                except es.Rejected as refused:
                    with pytest.raises(es.Rejected, match=str(refused)):
                        program.handle(key, command, id=id)
                    continue
                done = program.handle(key, command, id=id)
                events += wanted
                assert (done.events, done.version, done.duplicate) == (wanted, len(events), False)
                if id is not None:
                    used[id] = key, wanted, len(events)
    for key, events in model.items():
        assert [event.event for event in accounts_in(log).events(key)] == events
