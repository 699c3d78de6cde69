"""Bank accounts: no account goes below zero, and a transfer is a process of two commands. If the second is refused, the
first is made good.

Prints:
    t1: done, ann 30, bob 70
    t2: refused (bob has 70, not 500), bob 70, ann 30
    t3: refunded (cy is closed), ann 30, cy 0
    the money is still 100"""

import tempfile
from dataclasses import dataclass, replace

import headrace as hr
from headrace import sourcing as es

# -- accounts


@dataclass(frozen=True)
class Deposited:
    euros: int


@dataclass(frozen=True)
class Withdrawn:
    euros: int


@dataclass(frozen=True)
class Closed:
    pass


@dataclass(frozen=True)
class Deposit:
    euros: int


@dataclass(frozen=True)
class Withdraw:
    euros: int


@dataclass(frozen=True)
class Close:
    pass


@dataclass(frozen=True)
class Account:
    euros: int = 0
    is_open: bool = True


def decide_account(account, command, key):
    if not account.is_open:
        raise es.Rejected(f"{key} is closed")
    match command:
        case Deposit(euros):
            return [Deposited(euros)]
        case Withdraw(euros) if euros > account.euros:
            raise es.Rejected(f"{key} has {account.euros}, not {euros}")
        case Withdraw(euros):
            return [Withdrawn(euros)]
    return [Closed()]


def evolve_account(account, event):
    match event:
        case Deposited(euros):
            return replace(account, euros=account.euros + euros)
        case Withdrawn(euros):
            return replace(account, euros=account.euros - euros)
    return replace(account, is_open=False)


# -- transfers


@dataclass(frozen=True)
class Asked:
    source: str
    target: str
    euros: int


@dataclass(frozen=True)
class Transfer:
    source: str = ""
    target: str = ""
    euros: int = 0
    stage: str = ""
    why: str = ""


def evolve_transfer(transfer, event):
    match event, transfer.stage:
        case Asked(source, target, euros), _:
            return Transfer(source, target, euros, "withdrawing")
        case es.CommandAccepted(), "withdrawing":
            return replace(transfer, stage="depositing")
        case es.CommandAccepted(), "depositing":
            return replace(transfer, stage="done")
        case es.CommandRejected(reason=why), "withdrawing":
            return replace(transfer, stage="refused", why=why)
        case es.CommandRejected(reason=why), "depositing":
            return replace(transfer, stage="refunding", why=why)
        case es.CommandAccepted(), "refunding":
            return replace(transfer, stage="refunded")
    return transfer


def react(transfer, _event, _key):
    match transfer.stage:
        case "withdrawing":
            return [es.Send(Withdraw(transfer.euros), to=transfer.source)]
        case "depositing":
            return [es.Send(Deposit(transfer.euros), to=transfer.target)]
        case "refunding":
            return [es.Send(Deposit(transfer.euros), to=transfer.source)]
    return []


with tempfile.TemporaryDirectory() as home, hr.open_log(home) as log:
    accounts = es.Entities(
        log,
        "accounts",
        events=[Deposited, Withdrawn, Closed],
        evolve=evolve_account,
        decide=decide_account,
        initial=Account(),
    )
    transfers = es.ProcessManager(
        log,
        "transfers",
        events=[Asked],
        evolve=evolve_transfer,
        react=react,
        initial=Transfer(),
        commands={Withdraw: accounts, Deposit: accounts},
    )
    accounts.handle("ann", Deposit(100))
    accounts.handle("cy", Close())
    for name, asked in (
        ("t1", Asked("ann", "bob", 70)),
        ("t2", Asked("bob", "ann", 500)),
        ("t3", Asked("ann", "cy", 10)),
    ):
        transfers.handle(name, asked, id=name)
        transfers.drain()  # in a service: app.supervise(transfers), and headrace run
        found = transfers.load(name).state
        why = f" ({found.why})" if found.why else ""
        held = [f"{owner} {accounts.load(owner).state.euros}" for owner in (asked.source, asked.target)]
        print(f"{name}: {found.stage}{why}, {', '.join(held)}")
    print(f"the money is still {sum(accounts.load(owner).state.euros for owner in ('ann', 'bob', 'cy'))}")
