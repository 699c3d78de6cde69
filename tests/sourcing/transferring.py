"""Accounts, and a process manager that moves money between them: what tests of processes run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace import sourcing as es

BEGUN = datetime(2024, 1, 1, tzinfo=UTC)


class HandClock:
    """A clock that stands still until it is set on."""

    def __init__(self) -> None:
        self.now = BEGUN

    def __call__(self) -> datetime:
        return self.now

    def pass_on(self, **length: float) -> None:
        self.now += timedelta(**length)


@dataclass(frozen=True)
class Credited:
    cents: int


@dataclass(frozen=True)
class Debited:
    cents: int


@dataclass(frozen=True)
class Closed:
    pass


@dataclass(frozen=True)
class Account:
    cents: int = 0
    open: bool = True


@dataclass(frozen=True)
class Credit:
    cents: int


@dataclass(frozen=True)
class Debit:
    cents: int


@dataclass(frozen=True)
class Close:
    pass


def evolve_account(account: Account, event: Any) -> Account:
    match event:
        case Credited(cents):
            return replace(account, cents=account.cents + cents)
        case Debited(cents):
            return replace(account, cents=account.cents - cents)
        case _:
            return replace(account, open=False)


def decide_account(account: Account, command: Any, key: str) -> list[Any]:
    if not account.open:
        raise es.Rejected(f"{key} is closed")
    match command:
        case Credit(cents):
            return [Credited(cents)]
        case Debit(cents):
            if cents > account.cents:
                raise es.Rejected(f"{key} has {account.cents}, not {cents}")
            return [Debited(cents)]
        case _:
            return [Closed()]


def accounts_in(log: Any) -> es.Entities[Account]:
    return es.Entities(
        log,
        "accounts",
        events=[Credited, Debited, Closed],
        evolve=evolve_account,
        decide=decide_account,
        initial=Account(),
    )


@dataclass(frozen=True)
class Asked:
    source: str
    target: str
    cents: int


@dataclass(frozen=True)
class TakenBack:
    pass


@dataclass(frozen=True)
class Transfer:
    source: str = ""
    target: str = ""
    cents: int = 0
    stage: str = "new"


@dataclass(frozen=True)
class Mail:
    to: str
    text: str


def evolve(transfer: Transfer, event: Any) -> Transfer:
    match event, transfer.stage:
        case Asked(source, target, cents), "new":
            return Transfer(source, target, cents, "waiting")
        case TakenBack(), "waiting":
            return replace(transfer, stage="taken back")
        case es.TimerFired("waited"), "waiting":
            return replace(transfer, stage="debiting")
        case es.CommandAccepted("Debit"), "debiting":
            return replace(transfer, stage="crediting")
        case es.CommandRejected("Debit"), "debiting":
            return replace(transfer, stage="refused")
        case es.CommandAccepted("Credit"), "crediting":
            return replace(transfer, stage="done")
        case es.CommandRejected("Credit"), "crediting":
            return replace(transfer, stage="refunding")
        case es.CommandAccepted("Credit"), "refunding":
            return replace(transfer, stage="refunded")
    return transfer


def react(transfer: Transfer, event: Any, key: str) -> list[es.Send | es.Timer | es.Cancel]:
    match event, transfer.stage:
        case Asked(), "waiting":
            return [es.Timer("waited", after="10 minutes")]
        case TakenBack(), "taken back":
            return [es.Cancel("waited"), es.Send(Mail(transfer.source, f"{key} is taken back"))]
        case es.TimerFired(), "debiting":
            return [es.Send(Debit(transfer.cents), to=transfer.source)]
        case es.CommandAccepted("Debit"), _:
            return [es.Send(Credit(transfer.cents), to=transfer.target)]
        case es.CommandRejected("Debit"), _:
            return [es.Send(Mail(transfer.source, f"{key} is refused"))]
        case es.CommandRejected("Credit"), "refunding":
            return [es.Send(Credit(transfer.cents), to=transfer.source)]
        case es.CommandAccepted("Credit"), _:
            return [es.Send(Mail(transfer.source, f"{key} is {transfer.stage}"))]
    return []


def transfers_in(
    log: Any, clock: Callable[[], datetime], accounts: es.Entities[Account] | None = None, **changes: Any
) -> es.ProcessManager[Transfer]:
    handlers = accounts or accounts_in(log)
    mails = None if log is None else log.create_topic("mails", "to string, text string", key="to", exist_ok=True)
    given = {
        "events": [Asked, TakenBack],
        "evolve": evolve,
        "react": react,
        "initial": Transfer(),
        "commands": {Debit: handlers, Credit: handlers, Mail: mails},
        "snapshot_every": 3,
        "clock": clock,
    }
    return es.ProcessManager(log, "transfers", **{**given, **changes})
