"""Commands handled by entities, and entities loaded from a large topic."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.settings import Run
from bench.table import Row, of_rates, of_samples
from headrace import sourcing as es
from headrace.log.contract import Log
from headrace.log.open import open_log

THREADS = 8


@dataclass(frozen=True)
class Deposited:
    cents: int


@dataclass(frozen=True)
class Account:
    cents: int = 0


def evolve(account: Account, event: Deposited) -> Account:
    return Account(account.cents + event.cents)


def decide(account: Account, command: int, key: str) -> list[Deposited]:
    if account.cents + command < 0:
        raise es.Rejected(f"{key} has {account.cents}")
    return [Deposited(command)]


def sourcing(run: Run) -> Iterator[Row]:
    each = run.size(1_000, 20)
    settings = "a SQLite file, WAL, synchronous=FULL; get, trigger, save; aggregates in its cache, not read again"
    ours = of_rates(list(_ours(run, each)))
    yield Row(
        "sourcing", "commands handled by entities, fsync, 8 threads", "commands/s", ours, 1_500,
        peers=[run.peer("eventsourcing", settings, lambda: of_rates(list(_theirs(run, each))))],
    )  # fmt: skip
    with run.log() as log:
        yield from _loads(run, log)


def _ours(run: Run, each: int) -> Iterator[float]:
    for _ in range(run.repeat):
        with run.log() as log:
            accounts = _accounts(log)
            yield _rate(each, lambda name, accounts=accounts: lambda: accounts.handle(name, 1))


def _theirs(run: Run, each: int) -> Iterator[float]:
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event

    class Balance(Aggregate):
        def __init__(self, cents: int) -> None:
            self.cents = cents

        @event("Deposited")
        def deposit(self, cents: int) -> None:
            self.cents += cents

    class Bank(Application[uuid.UUID]):
        def open(self) -> uuid.UUID:
            balance = Balance(0)
            self.save(balance)
            return balance.id

        def deposit(self, account: uuid.UUID) -> None:
            balance: Balance = self.repository.get(account)
            balance.deposit(1)
            self.save(balance)

    for _ in range(run.repeat):
        path = run.fresh("eventsourcing.db")
        kept = {"AGGREGATE_CACHE_MAXSIZE": "1000", "AGGREGATE_CACHE_FASTFORWARD": "n"}  # as ours are
        bank = Bank(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path), **kept})

        def worker(_: str, bank: Bank = bank) -> Callable[[], object]:
            account = bank.open()
            return lambda: bank.deposit(account)

        yield _rate(each, worker)
        bank.close()


def _rate(each: int, worker: Callable[[str], Callable[[], object]]) -> float:
    work = [worker(f"account{number}") for number in range(THREADS)]

    def go(handle: Callable[[], object]) -> None:
        for _ in range(each):
            handle()

    threads = [threading.Thread(target=go, args=(handle,)) for handle in work]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * each / (time.perf_counter() - began)


def _loads(run: Run, log: Log) -> Iterator[Row]:
    """An entity of 1,000 events, among those of others."""
    accounts, others = _accounts(log), run.size(10_000_000, 20_000)
    for _ in range(1_000):
        accounts.handle("one", 1)
    for start in range(0, others, 100_000):
        accounts.topic.append(_of_others(start, min(start + 100_000, others)))
    for _ in range(10):
        accounts.handle("one", 1)
    path = Path(log.address)
    what = f"load of an entity with 1,010 events behind a snapshot, in a topic of {others / 1e6:g} M,"
    warm = [_milliseconds(lambda: accounts.load("one")) for _ in range(run.size(100, 5))]
    yield Row("sourcing", f"{what} warm", "ms", of_samples(warm), 2, smaller_is_better=True)
    cold = []
    for _ in range(run.size(21, 3)):
        with open_log(path) as again:
            fresh = _accounts(again)
            cold.append(_milliseconds(lambda fresh=fresh: fresh.load("one")))
    yield Row("sourcing", f"{what} cold", "ms", of_samples(cold[1:]), 15, smaller_is_better=True)
    once = "the same, when nobody has looked for anything among those events before"
    yield Row("sourcing", once, "ms", of_samples(cold[:1]), smaller_is_better=True)


def _of_others(start: int, stop: int) -> pa.Table:
    """Events of entities that have a hundred each."""
    numbers = np.arange(start, stop)
    count = len(numbers)
    columns: dict[str, Any] = {
        "entity": pc.binary_join_element_wise("other", pa.array(numbers // 100).cast(pa.string()), ""),
        "event": pa.repeat("Deposited", count),
        "event_version": pa.repeat(pa.scalar(1, pa.int32()), count),
        "version": pa.array(numbers % 100 + 1),
        "at": pa.repeat(datetime.now(UTC), count),
        "Deposited": pa.StructArray.from_arrays([pa.array(np.ones(count, np.int64))], ["cents"]),
    }
    return pa.table(columns)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def _accounts(log: Log) -> es.Entities[Account]:
    return es.Entities(log, "accounts", events=[Deposited], evolve=evolve, decide=decide, initial=Account())
