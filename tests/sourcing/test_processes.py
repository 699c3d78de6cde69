"""Process managers: what an event asks for is done once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import failpoints
from headrace import sourcing as es
from headrace.testing import given
from tests.sourcing.transferring import (
    BEGUN,
    Account,
    Asked,
    Close,
    Credit,
    Credited,
    Debit,
    Debited,
    HandClock,
    Mail,
    TakenBack,
    Transfer,
    accounts_in,
    transfers_in,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with hr.open_log(tmp_path) as log:
        yield log
    failpoints.disarm()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def mails(log: Any) -> list[str]:
    return [record.value["text"] for record in log.topic("mails").records()]


def ends(log: Any) -> dict[str, int]:
    return {topic.name: sum(each.next for each in topic.offsets().values()) for topic in log.topics()}


def test_commands_are_sent_and_their_replies_are_events(log: Any, clock: HandClock) -> None:
    accounts, transfers = accounts_in(log), transfers_in(log, clock)
    accounts.handle("ann", Credit(100))
    transfers.handle("t1", Asked("ann", "bob", 70))
    assert transfers.drain() == 0  # it waits
    clock.pass_on(minutes=10)
    assert transfers.drain() > 0
    assert transfers.load("t1").state == Transfer("ann", "bob", 70, "done")
    assert (accounts.load("ann").state, accounts.load("bob").state) == (Account(30), Account(70))
    assert mails(log) == ["t1 is done"]
    assert [event.event for event in transfers.events("t1")] == [
        Asked("ann", "bob", 70),
        es.TimerFired("waited"),
        es.CommandAccepted("Debit", "ann", 2, 0),
        es.CommandAccepted("Credit", "bob", 3, 0),
    ]
    assert [(each.value["id"], each.value["command"], each.value["to"]) for each in transfers.outbox.records()] == [
        ("transfers/t1/2/0", "Debit", "ann"),
        ("transfers/t1/3/0", "Credit", "bob"),
        ("transfers/t1/4/0", "Mail", None),
    ]
    assert (transfers.waiting, transfers.timers(), transfers.drain()) == (0, [], 0)


def test_what_is_refused_is_made_good(log: Any, clock: HandClock) -> None:
    accounts, transfers = accounts_in(log), transfers_in(log, clock)
    accounts.handle("ann", Credit(100))
    accounts.handle("cy", Close())
    transfers.handle("t1", Asked("ann", "cy", 70))
    transfers.handle("t2", Asked("bob", "ann", 1))
    clock.pass_on(minutes=10)
    transfers.drain()
    assert transfers.load("t1").state.stage == "refunded" and transfers.load("t2").state.stage == "refused"
    assert accounts.load("ann").state == Account(100)
    rejected = [event.event for event in transfers.events("t2") if isinstance(event.event, es.CommandRejected)]
    assert rejected == [es.CommandRejected("Debit", "bob", "bob has 0, not 1", 2, 0)]
    assert mails(log) == ["t2 is refused", "t1 is refunded"]


def test_a_timer_that_is_cancelled_or_set_anew(log: Any, clock: HandClock) -> None:
    transfers = transfers_in(log, clock)
    transfers.handle("t1", Asked("ann", "bob", 1))
    (timer,) = transfers.timers("t1")
    assert timer == es.PendingTimer("t1", "waited", BEGUN + timedelta(minutes=10), 1)
    clock.pass_on(minutes=9)
    transfers.handle("t1", TakenBack())
    assert transfers.timers() == []
    clock.pass_on(minutes=9)
    transfers.drain()
    assert transfers.load("t1").state.stage == "taken back"
    assert mails(log) == ["t1 is taken back"]


def test_a_program_that_is_behind_fires_no_timer_that_another_has_cancelled(log: Any, clock: HandClock) -> None:
    behind, other = transfers_in(log, clock), transfers_in(log, clock)
    behind.handle("t1", Asked("ann", "bob", 1))
    behind.drain()  # it knows of the timer
    clock.pass_on(minutes=20)
    timers = behind._open_sides()[1]
    timer = timers.due(clock.now)
    assert timer is not None
    other.handle("t1", TakenBack())
    with pytest.raises(es.Rejected, match="cancelled"):
        es.Entities.handle(behind, "t1", timer)
    assert behind.drain() == 1  # the mail
    assert behind.load("t1").state.stage == "taken back"


def test_compaction_leaves_the_timers_that_are_to_fire(log: Any, clock: HandClock) -> None:
    transfers = transfers_in(log, clock)
    for number in range(20):
        transfers.handle(f"t{number}", Asked("ann", "bob", 1))
        if number % 2:
            transfers.handle(f"t{number}", TakenBack())
    log.maintain()
    again = transfers_in(log, clock)
    assert {timer.process for timer in again.timers()} == {f"t{number}" for number in range(0, 20, 2)}
    clock.pass_on(minutes=10)
    again.drain()
    assert [again.load(f"t{number}").state.stage for number in range(4)] == ["refused", "taken back"] * 2


def test_a_replay_sends_nothing_twice(log: Any, clock: HandClock) -> None:
    accounts, transfers = accounts_in(log), transfers_in(log, clock)
    accounts.handle("ann", Credit(100))
    accounts.handle("cy", Close())
    for name, target in ("t1", "bob"), ("t2", "cy"), ("t3", "bob"):
        transfers.handle(name, Asked("ann", target, 40), id=name)
    clock.pass_on(minutes=10)
    transfers.drain()
    before = ends(log)
    log.forget_flow("process.transfers")  # how far the outbox is sent is lost
    again = transfers_in(log, clock)
    assert again.waiting == before["transfers.outbox"] and again.drain() == again.outbox.ends()[0].next
    assert again.handle("t1", Asked("ann", "bob", 40), id="t1").duplicate
    assert ends(log) == before
    assert again.waiting == 0


def test_a_command_that_was_refused_is_not_handled_later(log: Any, clock: HandClock) -> None:
    """As by a program that slept while another told the process of the refusal."""
    accounts, transfers = accounts_in(log), transfers_in(log, clock)
    transfers.handle("t1", Asked("ann", "bob", 70))
    clock.pass_on(minutes=10)
    transfers.drain()
    assert transfers.load("t1").state.stage == "refused"
    accounts.handle("ann", Credit(100))
    late = accounts.handle("ann", Debit(70), id="transfers/t1/2/0")
    assert late.duplicate and late.events == () and accounts.load("ann").state == Account(100)


def test_a_command_that_another_program_got_through_was_not_refused(log: Any, clock: HandClock) -> None:
    accounts, transfers = accounts_in(log), transfers_in(log, clock)
    transfers.handle("t1", Asked("ann", "bob", 70))
    clock.pass_on(minutes=10)

    def get_through() -> None:
        accounts.handle("ann", Credit(100))
        assert accounts.handle("ann", Debit(70), id="transfers/t1/2/0").version == 2

    failpoints.arm("process.handled", get_through)
    transfers.drain()
    assert transfers.load("t1").state.stage == "done"
    assert (accounts.load("ann").state, accounts.load("bob").state) == (Account(30), Account(70))


def test_events_of_entities_are_routed_once(log: Any) -> None:
    """A watch on accounts: whoever is debited three times gets a mail, once."""
    accounts = accounts_in(log)

    def evolve(times: int, event: Any) -> int:
        return times + isinstance(event, Debited)

    def react(times: int, event: Any, key: str) -> list[es.Send]:
        return [es.Send(Mail(key, f"{key} spends"))] if isinstance(event, Debited) and times == 3 else []

    def watch() -> es.ProcessManager[int]:
        route = {accounts: lambda event, entity: entity if isinstance(event, Debited) else None}
        topic = log.create_topic("mails", "to string, text string", key="to", exist_ok=True)
        return es.ProcessManager(
            log, "watch", events=[Debited], evolve=evolve, react=react, initial=0, commands={Mail: topic}, inputs=route
        )

    for name in "ann", "bob":
        accounts.handle(name, Credit(10))
        accounts.handle(name, Debit(1))
    watch().drain()
    for _ in range(3):
        accounts.handle("ann", Debit(1))
    log.forget_flow("process.watch")
    watch().drain()
    assert watch().load("ann").state == 4 and watch().load("bob").state == 1
    at = [event.at for event in accounts.events("ann") if isinstance(event.event, Debited)]
    assert [event.at for event in watch().events("ann")] == at
    assert mails(log) == ["ann spends"]


def test_a_process_manager_sends_to_another(log: Any, clock: HandClock) -> None:
    transfers = transfers_in(log, clock)
    orders = es.ProcessManager(
        log,
        "orders",
        events=[TakenBack],
        evolve=lambda _, event: type(event).__name__,
        react=lambda _, event, key: [es.Send(Asked("ann", "bob", 1), to=key)] * isinstance(event, TakenBack),
        initial="",
        commands={Asked: transfers},
    )
    orders.handle("o1", TakenBack())
    orders.drain()
    assert orders.load("o1").state == "CommandAccepted"
    assert transfers.load("o1").state.stage == "waiting"


def test_a_function_that_fails_stops_the_manager_and_nothing_is_lost(log: Any, clock: HandClock) -> None:
    broken = accounts_in(log)
    broken.decide = lambda *_: 1 // 0
    transfers = transfers_in(log, clock, accounts=broken)
    transfers.handle("t1", Asked("ann", "bob", 1))
    clock.pass_on(minutes=10)
    with pytest.raises(hr.ProcessFailed) as failed:
        transfers.drain()
    assert str(failed.value) == (
        "process manager 'transfers', command Debit of 't1': ZeroDivisionError: integer division or modulo by zero. It "
        "was not done: fix the function, and run the process manager again."
    )
    fixed = transfers_in(log, clock)
    fixed.drain()
    assert fixed.load("t1").state.stage == "refused"


@pytest.mark.parametrize("told", [es.TimerFired, es.CommandAccepted])
def test_a_reaction_that_rejects_stops_the_manager_too(log: Any, clock: HandClock, told: type) -> None:
    """Nobody would be told of it, and the timer or the reply would be lost."""

    def rejecting(_: Transfer, event: Any, __: str) -> list[es.Send | es.Timer]:
        if isinstance(event, told):
            raise es.Rejected("not now")
        return [es.Timer("soon", after="1 minute"), es.Send(Credit(1), to="ann")] if isinstance(event, Asked) else []

    broken = transfers_in(log, clock, react=rejecting)
    broken.handle("t1", Asked("ann", "bob", 1))
    clock.pass_on(minutes=1)
    for _ in range(2):
        with pytest.raises(hr.ProcessFailed, match="Rejected: not now"):
            broken.drain()
    transfers_in(log, clock, react=lambda *_: []).drain()
    assert [type(event.event) for event in broken.events("t1")] == [Asked, es.TimerFired, es.CommandAccepted]


def test_an_erased_process_sends_nothing_more(log: Any, clock: HandClock) -> None:
    transfers = transfers_in(log, clock)
    for name in "t1", "t2":
        transfers.handle(name, Asked("ann", "bob", 1), id=name)
    assert transfers.erase("t1") == 3  # its event, the id, the timer
    assert [timer.process for timer in transfers.timers()] == ["t2"]
    transfers.handle("t2", TakenBack())
    assert transfers.erase("t2") == 6  # two events, an id, a timer and its end, a mail
    assert transfers_in(log, clock).drain() == 0 and mails(log) == []


def test_a_process_is_erased_from_all_that_was_made_of_it(tmp_path: Path, clock: HandClock) -> None:
    with hr.open_log(tmp_path) as log:
        transfers = transfers_in(log, clock)
        transfers.handle("subject", Asked("ann", "bob", 1), id="k1")
        transfers.handle("t2", Asked("ann", "bob", 1))
        transfers.handle("subject", TakenBack())
    hr.erase(tmp_path, "transfers", "subject")
    with hr.open_log(tmp_path) as log:
        transfers = transfers_in(log, clock)
        left = [*transfers.outbox.records(), *log.topic("transfers.timers").records(), *transfers.topic.records()]
        assert {record.value.get("process") or record.value["entity"] for record in left} == {"t2"}
        assert transfers.load("subject").state == Transfer() and transfers.drain() == 0


def test_an_erasure_that_crashes_leaves_no_timer_to_a_process_without_events(log: Any, clock: HandClock) -> None:
    transfers = transfers_in(log, clock)
    transfers.handle("t1", Asked("ann", "bob", 1))
    clock.pass_on(minutes=10)
    failpoints.arm("erase.wiped", "raise", skip=1)  # in the second of its topics
    with pytest.raises(failpoints.InjectedFault):
        transfers.erase("t1")
    assert transfers_in(log, clock).drain() == 0 and transfers.timers() == []
    assert transfers.erase("t1") == 1 and not list(transfers.events("t1"))


def test_what_is_erased_holds_nothing_up(log: Any, clock: HandClock) -> None:
    """The entity has handled the command and is erased, before the process was told; the process is erased, and how
    far it was routed is lost."""
    accounts, transfers = accounts_in(log), transfers_in(log, clock)
    accounts.handle("ann", Credit(100))
    transfers.handle("t1", Asked("ann", "bob", 70))
    clock.pass_on(minutes=10)
    failpoints.arm("process.handled", "raise")
    with pytest.raises(hr.ProcessFailed):
        transfers.drain()
    accounts.erase("ann")
    transfers_in(log, clock).drain()
    assert transfers.load("t1").state.stage == "done" and accounts.load("bob").state == Account(70)

    def copies() -> es.ProcessManager[int]:
        route = {accounts: lambda _, entity: entity}
        given: dict[str, Any] = {"evolve": lambda times, _: times + 1, "react": lambda *_: [], "initial": 0}
        return es.ProcessManager(log, "copies", events=[Credited], commands={Debit: accounts}, inputs=route, **given)

    assert copies().drain() > 0 and copies().load("bob").state == 1
    copies().erase("bob")
    log.forget_flow("process.copies")
    copies().drain()
    assert copies().load("bob").state == 0


def test_what_is_refused_where_it_is_written(log: Any, clock: HandClock, tmp_path: Path) -> None:
    transfers = transfers_in(log, clock)
    with pytest.raises(hr.InvalidArgument, match="comes from"):
        transfers.handle("t1", es.TimerFired("waited"))
    with pytest.raises(hr.InvalidArgument, match="comes from"):
        transfers.append("t1", es.CommandAccepted("Debit", "ann"), expected=0)
    with pytest.raises(hr.InvalidArgument, match="the process manager's own"):
        transfers.handle("t1", TakenBack(), id="transfers/t1/2/0")
    with pytest.raises(hr.InvalidArgument, match="one at least"):
        transfers_in(log, clock, commands={})
    with pytest.raises(hr.InvalidArgument, match="one of them"):
        es.Timer("t")
    with pytest.raises(hr.InvalidArgument, match="with a zone"):
        es.Timer("t", at=BEGUN.replace(tzinfo=None))
    with pytest.raises(hr.InvalidArgument, match="a text that is not empty"):
        es.Cancel("")
    for asked, why in (
        ([es.Send(Transfer(), to="t")], "none of the classes"),
        ([es.Send(Debit(1))], "without its key"),
        ([es.Send(Mail("ann", "hello"), to="ann")], "leave to= out"),
        ([Debit(1)], "must give a list of"),
        (None, "must give a list of"),
    ):
        with pytest.raises(hr.InvalidArgument, match=why):
            transfers_in(log, clock, react=lambda *_, asked=asked: asked).handle("t1", TakenBack())
    with hr.open_log(tmp_path / "other") as other, pytest.raises(hr.InvalidArgument, match="is in another log"):
        transfers_in(log, clock, accounts=accounts_in(other)).handle("t1", TakenBack())
    with pytest.raises(hr.InvalidArgument, match="behind the year 9999"):
        transfers_in(log, clock, react=lambda *_: [es.Timer("t", after="3000000 days")]).handle("t1", TakenBack())
    with pytest.raises(hr.InvalidArgument, match="an entity's key"):
        transfers.erase(None)
    with pytest.raises(hr.InvalidArgument, match="is this process manager itself"):
        transfers_in(log, clock, commands={TakenBack: transfers}).handle("t1", TakenBack())
    assert transfers.load("t1").version == 0


def test_a_manager_that_is_to_stop_ends_after_what_it_is_doing(log: Any, clock: HandClock) -> None:
    """However much there is to do."""
    transfers = transfers_in(log, clock)
    for number in range(5):
        transfers.handle(f"t{number}", Asked("ann", "bob", 1))
    clock.pass_on(minutes=10)
    transfers.run(lambda: len(transfers.timers()) < 4)
    assert len(transfers.timers()) == 3 and transfers.waiting == 2
    transfers_in(log, clock).run(lambda: transfers.load("t0").version > 2)
    assert [transfers.load(f"t{number}").state.stage for number in (0, 1)] == ["refused", "debiting"]
    transfers.drain()
    assert {transfers.load(f"t{number}").state.stage for number in range(5)} == {"refused"}


def test_what_another_manager_tells_its_processes_is_not_routed(log: Any, clock: HandClock) -> None:
    """It would take back a timer of that name, and the ids of commands that were never sent."""
    transfers = transfers_in(log, clock)
    transfers.handle("t1", Asked("ann", "bob", 1))
    clock.pass_on(minutes=10)
    transfers.drain()

    def watch(*events: type) -> es.ProcessManager[int]:
        route = {transfers: lambda event, key: key if isinstance(event, events) else None}
        given: dict[str, Any] = {"evolve": lambda times, _: times + 1, "react": lambda *_: [], "initial": 0}
        targets = {Debit: accounts_in(log)}
        return es.ProcessManager(log, "watch", events=[Asked], commands=targets, inputs=route, **given)

    with pytest.raises(hr.InvalidArgument, match="comes from a process's own manager alone"):
        watch(Asked, es.TimerFired).drain()
    watch(Asked).drain()
    assert watch().load("t1").state == 1


def test_an_app_runs_it(tmp_path: Path) -> None:
    with hr.App("bank", home=tmp_path) as app:
        accounts = accounts_in(app.log)

        def react(_: Transfer, event: Any, __: str) -> list[es.Send]:
            return [es.Send(Credit(5), to="ann")] if isinstance(event, Asked) else []

        transfers = transfers_in(app.log, lambda: BEGUN, react=react)
        supervised = app.supervise(transfers)
        with pytest.raises(hr.InvalidArgument, match="a process manager of that name"):
            app.supervise(transfers)
        transfers.handle("t1", Asked("ann", "bob", 5))
        assert app.drain() == 0  # no flow has records; the process manager has done its part
        assert accounts.load("ann").state == Account(5)
        app.start()
        transfers.handle("t2", Asked("ann", "bob", 5))
        replies = transfers.topic.records(key="t2", follow=True, timeout="1 minute")
        assert [next(replies).value["event"] for _ in range(2)] == ["Asked", "CommandAccepted"]
        assert (supervised.state, supervised.error) == ("running", "")
        app.stop()
        assert supervised.state == "stopped"
        with supervised.locked(tmp_path, "transfers"), pytest.raises(hr.AlreadyRunning) as running:
            app.start()
        assert str(running.value).startswith("process manager 'transfers' is run by process")
        assert "flow 'visits/next' is run" in str(hr.AlreadyRunning("visits/next", 1, "host"))


def test_an_app_drains_managers_until_none_has_anything_to_do(tmp_path: Path) -> None:
    """Whichever was named first."""
    with hr.App("bank", home=tmp_path) as app:

        def manager(name: str, command: Any, target: Any) -> es.ProcessManager[int]:
            def react(_: int, event: Any, key: str) -> list[es.Send]:
                to = key if isinstance(target, es.Entities) else None
                return [es.Send(command, to=to)] if isinstance(event, TakenBack) else []

            given: dict[str, Any] = {"evolve": lambda times, _: times + 1, "react": react, "initial": 0}
            return es.ProcessManager(app.log, name, events=[TakenBack], commands={type(command): target}, **given)

        mails_topic = app.log.create_topic("mails", "to string, text string", key="to")
        last = manager("last", Mail("ann", "all is done"), mails_topic)
        first = manager("first", TakenBack(), last)
        app.supervise(last)
        app.supervise(first)
        first.handle("p", TakenBack())
        app.drain()
        assert mails(app.log) == ["all is done"]


@dataclass
class Drifting:
    """Comes back as something else."""

    cents: int

    def __post_init__(self) -> None:
        self.cents += 1


def test_given_when_then(clock: HandClock) -> None:
    transfers = transfers_in(None, clock)
    asked = given(transfers, key="t1").when(Asked("ann", "bob", 7)).then(es.Timer("waited", after="10 minutes"))
    debiting = asked.when(es.TimerFired("waited")).then(es.Send(Debit(7), to="ann"))
    debiting.when(es.CommandRejected("Debit", "ann", "has 0")).then(es.Send(Mail("ann", "t1 is refused")))
    debiting.when(es.CommandAccepted("Debit", "ann")).then(es.Send(Credit(7), to="bob")).state(
        Transfer("ann", "bob", 7, "crediting")
    )
    with pytest.raises(AssertionError, match=r"gives \[Timer\(name='waited'"):
        given(transfers).when(Asked("ann", "bob", 7)).then()
    odd = transfers_in(
        None, clock, commands={Drifting: accounts_in(None)}, react=lambda *_: [es.Send(Drifting(1), "a")]
    )
    with pytest.raises(AssertionError, match="comes back from a log as"):
        given(odd).when(TakenBack()).then()
