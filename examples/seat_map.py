"""A seat map with reservations in two steps: a hold is tentative, and expires after 15 minutes unless it is confirmed.
The timer is durable: it fires with no further event, also if every program was stopped meanwhile.

Prints:
    12A: held by ann
    12A: bob is refused, it is held by ann
    14C: confirmed for bob
    after 15 minutes: 12A free, 14C confirmed for bob
    12A: held by bob
    after 5 minutes: 12A held by bob"""

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import headrace as hr
from headrace import sourcing as es

# -- seats


@dataclass(frozen=True)
class Held:
    by: str
    hold: int


@dataclass(frozen=True)
class Confirmed:
    pass


@dataclass(frozen=True)
class Expired:
    pass


@dataclass(frozen=True)
class Hold:
    by: str


@dataclass(frozen=True)
class Confirm:
    by: str


@dataclass(frozen=True)
class Expire:
    hold: int


@dataclass(frozen=True)
class Seat:
    status: str = "free"
    by: str = ""
    holds: int = 0

    def __str__(self):
        return {"free": "free", "held": f"held by {self.by}", "confirmed": f"confirmed for {self.by}"}[self.status]


def decide(seat, command, _key):
    match command, seat.status:
        case Hold(by), "free":
            return [Held(by, seat.holds + 1)]
        case Confirm(seat.by), "held":
            return [Confirmed()]
        case Expire(seat.holds), "held":
            return [Expired()]
        case Expire(), _:
            return []  # it was confirmed meanwhile, or is another hold
    raise es.Rejected(f"it is {seat}")


def evolve(seat, event):
    match event:
        case Held(by, hold):
            return Seat("held", by, hold)
        case Confirmed():
            return Seat("confirmed", seat.by, seat.holds)
    return Seat("free", "", seat.holds)


# -- holds: a process for each seat, which is told what happens to it


def react(hold, event, seat):
    match event:
        case Held():
            return [es.Timer("expires", after="15 minutes")]
        case Confirmed():
            return [es.Cancel("expires")]
        case es.TimerFired():
            return [es.Send(Expire(hold), to=seat)]
    return []


def evolve_hold(hold, event):
    return event.hold if isinstance(event, Held) else hold


now = datetime(2026, 1, 1, 9, tzinfo=UTC)


def clock():  # an example cannot wait for 15 minutes
    return now


with tempfile.TemporaryDirectory() as home, hr.open_log(home) as log:
    seats = es.Entities(
        log,
        "seats",
        events=[Held, Confirmed, Expired],
        evolve=evolve,
        decide=decide,
        initial=Seat(),
        clock=clock,
    )
    holds = es.ProcessManager(
        log,
        "holds",
        events=[Held, Confirmed],
        evolve=evolve_hold,
        react=react,
        initial=0,
        commands={Expire: seats},
        inputs={seats: lambda event, seat: None if isinstance(event, Expired) else seat},
        clock=clock,
    )
    print(f"12A: {seats.handle('12A', Hold('ann')).state}")
    try:
        seats.handle("12A", Hold("bob"))
    except es.Rejected as error:
        print(f"12A: bob is refused, {error}")
    seats.handle("14C", Hold("bob"))
    print(f"14C: {seats.handle('14C', Confirm('bob')).state}")
    holds.drain()  # in a service: app.supervise(holds), and headrace run

    now += timedelta(minutes=15)
    holds.drain()
    print(f"after 15 minutes: 12A {seats.load('12A').state}, 14C {seats.load('14C').state}")

    print(f"12A: {seats.handle('12A', Hold('bob')).state}")
    now += timedelta(minutes=5)
    holds.drain()
    print(f"after 5 minutes: 12A {seats.load('12A').state}")
