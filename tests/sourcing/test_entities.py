"""Entities: commands are validated against the state, and their events appended once, whatever happens beside."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import sourcing as es
from headrace.sourcing.snapshots import FILE


@dataclass(frozen=True)
class Deposited:
    cents: int


@dataclass(frozen=True)
class Withdrawn:
    cents: int


@dataclass(frozen=True)
class Closed:
    pass


@dataclass(frozen=True)
class Account:
    cents: int = 0
    open: bool = True


@dataclass
class Deposit:
    cents: int


@dataclass
class Withdraw:
    cents: int


@dataclass
class Close:
    pass


EVENTS = [Deposited, Withdrawn, Closed]


def evolve(account: Account, event: Any) -> Account:
    match event:
        case Deposited(cents):
            return replace(account, cents=account.cents + cents)
        case Withdrawn(cents):
            return replace(account, cents=account.cents - cents)
        case _:
            return replace(account, open=False)


def decide(account: Account, command: Any, key: str) -> list[Any]:
    if not account.open:
        raise es.Rejected(f"{key} is closed")
    match command:
        case Deposit(cents):
            return [Deposited(cents)] if cents else []
        case Withdraw(cents):
            if cents > account.cents:
                raise es.Rejected(f"{key} has {account.cents}, not {cents}")
            return [Withdrawn(cents)]
        case _:
            return [Withdrawn(account.cents), Closed()] if account.cents else [Closed()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with hr.open_log(tmp_path) as log:
        yield log


def accounts_in(log: Any, **changes: Any) -> es.Entities[Account]:
    given = {"events": EVENTS, "evolve": evolve, "decide": decide, "initial": Account(), "snapshot_every": 5}
    return es.Entities(log, "accounts", **{**given, **changes})


def test_a_command_appends_what_is_decided(log: Any) -> None:
    accounts = accounts_in(log)
    done = accounts.handle("ann", Deposit(100))
    assert (done.events, done.version, done.state) == ((Deposited(100),), 1, Account(100))
    assert done.position.offsets("accounts") == {0: 1}
    with pytest.raises(es.Rejected, match="ann has 100, not 200"):
        accounts.handle("ann", Withdraw(200))
    done = accounts.handle("ann", Close())
    assert (done.events, done.version) == ((Withdrawn(100), Closed()), 3)
    assert accounts.load("ann") == es.Loaded("ann", Account(0, False), 3)
    assert accounts.load("bob") == es.Loaded("bob", Account(), 0)
    rows = [record.value for record in log.topic("accounts").records()]
    assert [(row["event"], row["version"], row["Deposited"], row["Withdrawn"]) for row in rows] == [
        ("Deposited", 1, {"cents": 100}, None),
        ("Withdrawn", 2, None, {"cents": 100}),
        ("Closed", 3, None, None),
    ]


def test_nothing_to_do_appends_nothing(log: Any) -> None:
    done = accounts_in(log).handle("ann", Deposit(0))
    assert (done.events, done.version, bool(done.position)) == ((), 0, False)
    assert log.topic("accounts").offsets()[0].next == 0


def test_a_decision_on_an_old_state_is_made_again(log: Any) -> None:
    """Two programs: what one keeps in memory, the other has outdated."""
    one, other = accounts_in(log), accounts_in(log)
    one.handle("ann", Deposit(100))
    other.handle("ann", Withdraw(80))
    with pytest.raises(es.Rejected, match="ann has 20"):
        one.handle("ann", Withdraw(50))
    other.handle("ann", Deposit(100))
    assert one.handle("ann", Withdraw(110)).state == Account(10)  # with the 20 that it knew of, it would be rejected
    other.handle("ann", Deposit(5))
    assert one.handle("ann", Deposit(0)).version == 5


def test_a_version_can_be_expected(log: Any) -> None:
    accounts = accounts_in(log)
    accounts.handle("ann", Deposit(1), expected=0)
    with pytest.raises(es.VersionConflict) as caught:
        accounts.handle("ann", Deposit(1), expected=0)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == ("ann", 0, 1)
    with pytest.raises(es.VersionConflict):
        accounts.append("ann", Deposited(1), expected=0)
    assert accounts.append("ann", Deposited(1), expected=1).version == 2


def test_a_command_of_an_id_is_handled_once(log: Any) -> None:
    accounts = accounts_in(log)
    accounts.handle("ann", Deposit(100))
    first = accounts.handle("ann", Withdraw(100), id="w1")
    accounts.handle("ann", Deposit(7))
    again = accounts_in(log).handle("ann", Withdraw(100), id="w1")  # now it would be rejected
    assert again == replace(first, duplicate=True)
    nothing = accounts.handle("ann", Deposit(0), id="d0")
    assert accounts.handle("ann", Deposit(0), id="d0") == replace(nothing, duplicate=True)
    with pytest.raises(hr.InvalidArgument, match="is that of a command to 'ann'"):
        accounts.handle("bob", Deposit(1), id="w1")
    assert accounts.load("ann").state == Account(7)


def test_a_rejected_command_may_be_tried_again_with_its_id(log: Any) -> None:
    accounts = accounts_in(log)
    with pytest.raises(es.Rejected):
        accounts.handle("ann", Withdraw(5), id="w1")
    accounts.handle("ann", Deposit(5))
    assert accounts.handle("ann", Withdraw(5), id="w1").duplicate is False


def test_a_command_that_another_thread_handles_meanwhile_is_not_rejected(log: Any) -> None:
    """It has the same id, and is decided on a state that has its events."""
    accounts = accounts_in(log)
    accounts.handle("ann", Deposit(100))
    late = accounts_in(log)

    def decide_later(account: Account, command: Any, key: str) -> list[Any]:
        late.decide = decide
        accounts.handle("ann", Withdraw(100), id="w1")
        return decide(account, command, key)

    late.decide = decide_later
    assert late.handle("ann", Withdraw(100), id="w1").duplicate
    late.decide = decide_later
    with pytest.raises(es.Rejected):
        late.handle("ann", Withdraw(100), id="w2")


def test_a_time_that_the_topic_would_quarantine_is_refused(log: Any) -> None:
    accounts = accounts_in(log)
    with pytest.raises(hr.InvalidArgument, match="max_ahead"):
        accounts.handle("ann", Deposit(1), id="d1", at=datetime(3026, 1, 1, tzinfo=UTC))
    assert not accounts.handle("ann", Deposit(1), id="d1").duplicate


@pytest.mark.parametrize("given", [None, Deposited(1)])
def test_decide_gives_a_list(log: Any, given: Any) -> None:
    with pytest.raises(hr.InvalidArgument, match="must be a list of events"):
        accounts_in(log, decide=lambda *_: given).handle("ann", Deposit(1))


def test_decide_may_be_a_generator(log: Any) -> None:
    def each(account: Account, command: Deposit, _key: str) -> Iterator[Any]:
        yield Deposited(command.cents)
        if account.cents:
            raise es.Rejected("once")

    accounts = accounts_in(log, decide=each)
    assert accounts.handle("ann", Deposit(1)).version == 1
    with pytest.raises(es.Rejected):
        accounts.handle("ann", Deposit(1))
    assert accounts.load("ann").version == 1


def test_threads_lose_nothing(log: Any) -> None:
    accounts, results = accounts_in(log), Counter[str]()

    def spend() -> None:
        for _ in range(20):
            try:
                accounts.handle("ann", Withdraw(1))
                results["spent"] += 1
            except es.Rejected:
                results["rejected"] += 1

    accounts.handle("ann", Deposit(100))
    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"spent": 100, "rejected": 60}
    assert accounts.load("ann") == es.Loaded("ann", Account(0), 101)
    assert [event.version for event in accounts.events("ann")] == list(range(1, 102))


def test_the_past(log: Any) -> None:
    accounts = accounts_in(log)
    for cents in range(1, 13):
        accounts.handle("ann", Deposit(cents))
    for version in (0, 1, 7, 12):
        assert accounts_in(log).load("ann", at=version).state == Account(sum(range(version + 1)))
    with pytest.raises(hr.InvalidArgument, match="'ann' is at version 12"):
        accounts.load("ann", at=13)
    fourth = list(log.topic("accounts").records())[3].arrived_at
    assert accounts.load("ann", at=fourth).state.cents in (10, 15)  # the fifth may have come in that microsecond
    assert accounts.load("ann", at=datetime(2020, 1, 1, tzinfo=UTC)).version == 0
    with pytest.raises(hr.InvalidArgument, match="no time zone"):
        accounts.load("ann", at=datetime(2020, 1, 1))


# -- snapshots -----------------------------------------------------------------------------------------


def counting(folded: list[Any]) -> Any:
    def evolve_and_count(account: Account, event: Any) -> Account:
        folded.append(event)
        return evolve(account, event)

    return evolve_and_count


def test_a_snapshot_and_the_events_behind_it_are_the_fold(log: Any) -> None:
    for cents in range(1, 13):
        accounts_in(log).handle("ann", Deposit(cents))  # a program each, as after a restart
    folded: list[Any] = []
    again = accounts_in(log)
    again.evolve = counting(folded)  # the fingerprint stays
    assert again.load("ann") == es.Loaded("ann", Account(78), 12)
    assert len(folded) == 2, "from the snapshot at 10 on"
    assert again.load("ann").version == 12 and len(folded) == 2, "what is in memory is not folded again"
    assert accounts_in(log).audit() == es.EntityAudit(1, [])


def test_a_snapshot_is_checked_without_reading_what_others_did(log: Any, tmp_path: Path) -> None:
    """Their bytes are damaged: whoever reads them, fails."""
    accounts = accounts_in(log)
    for key in ("before", *["ann"] * 5, "behind"):
        accounts.handle(key, Deposit(7))
    for path in (tmp_path / "data").iterdir():
        whole = path.read_bytes()
        for key in (b"before", b"behind"):
            assert key in whole
            path.write_bytes(whole := whole.replace(key, b"damage"))
    assert accounts_in(log).load("ann") == es.Loaded("ann", Account(35), 5)
    assert accounts_in(log, snapshot_every=None).load("ann", at=0).version == 0
    with pytest.raises(hr.DamagedData):
        accounts_in(log).load("behind")


@pytest.mark.parametrize("changed", [{"version": "2"}, {"evolve": counting([])}, {"events": [*EVENTS, Account]}])
def test_a_snapshot_of_another_program_counts_as_none(log: Any, changed: dict[str, Any]) -> None:
    for cents in range(1, 13):
        accounts_in(log).handle("ann", Deposit(cents))
    folded: list[Any] = []
    again = accounts_in(log, **changed)
    again.evolve = counting(folded)
    assert again.load("ann").state == Account(78) and len(folded) == 12


def test_a_damaged_or_removed_snapshot_counts_as_none(log: Any, tmp_path: Path) -> None:
    for cents in range(1, 13):
        accounts_in(log).handle("ann", Deposit(cents))
    whole = (tmp_path / FILE).read_bytes()
    for damaged in (b"", b"no database", whole[:4096], whole[:-1000] + b"\xff" * 1000, None):
        (tmp_path / FILE).unlink(missing_ok=True)
        if damaged is not None:
            (tmp_path / FILE).write_bytes(damaged)
        assert accounts_in(log).load("ann") == es.Loaded("ann", Account(78), 12)


@pytest.mark.parametrize("more", [1, 12])
def test_snapshots_of_another_time_line_count_as_none(tmp_path: Path, more: int) -> None:
    """The log is a copy from before, the snapshots are not: the log ends before them, or went another way."""
    with hr.open_log(tmp_path / "home") as log:
        for _ in range(7):
            accounts_in(log).handle("ann", Deposit(1))
    shutil.copytree(tmp_path / "home", tmp_path / "older")
    with hr.open_log(tmp_path / "home") as log:
        for _ in range(8):
            accounts_in(log).handle("ann", Deposit(1))
    shutil.copy(tmp_path / "home" / FILE, tmp_path / "older" / FILE)
    with hr.open_log(tmp_path / "older") as log:
        for _ in range(more):
            accounts_in(log, snapshot_every=None).handle("ann", Deposit(100))
        assert accounts_in(log).load("ann") == es.Loaded("ann", Account(7 + 100 * more), 7 + more)
        assert accounts_in(log).load("ann", at=7).state == Account(7)
        assert accounts_in(log).handle("ann", Withdraw(1)).state == Account(6 + 100 * more)


def test_a_snapshot_that_the_states_class_refuses_counts_as_none(log: Any) -> None:
    for _ in range(5):
        accounts_in(log).handle("ann", Deposit(1))
    again = accounts_in(log)
    again._column = replace(again._column, load=lambda _: 1 / 0)
    assert again.load("ann").state == Account(5)


def test_the_audit_finds_a_fold_that_is_not_the_same(log: Any) -> None:
    """`evolve` depends on something that neither its fingerprint nor the version names."""
    accounts = accounts_in(log)
    accounts.evolve = lambda account, event: replace(evolve(account, event), cents=1)
    for cents in range(1, 6):
        accounts.handle("ann", Deposit(cents))
    audited = accounts_in(log).audit()
    assert not audited.ok and audited.checked == 1
    assert audited.differences == [es.Difference("ann", 5, Account(1), Account(15))]


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


def put(basket: Basket, event: Deposited) -> Basket:
    basket.items.append(str(event.cents))  # in place: nobody else may see it
    return basket


def keep(_basket: Basket, command: Deposit, _key: str) -> list[Any]:
    return [Deposited(command.cents)]


def grab(basket: Basket, command: Deposit, _key: str) -> list[Any]:
    basket.items.clear()
    return [Deposited(command.cents)]


def test_a_state_that_is_changed_in_place_is_nobody_elses(log: Any) -> None:
    baskets = es.Entities(log, "baskets", events=[Deposited], evolve=put, decide=grab, initial=Basket())
    for cents in (1, 2, 3):
        done = baskets.handle("ann", Deposit(cents))
    assert done.state.items == ["1", "2", "3"]
    done.state.items.clear()
    baskets.load("ann").state.items.clear()
    assert baskets.load("ann").state.items == ["1", "2", "3"]
    assert baskets.load("bob").state.items == []


@dataclass(frozen=True)
class Bag:
    items: list[str] = field(default_factory=list)


def test_a_frozen_state_that_holds_a_list_is_nobody_elses(log: Any) -> None:
    def put_in(bag: Bag, event: Deposited) -> Bag:
        bag.items.append(str(event.cents))
        return bag

    bags = es.Entities(log, "bags", events=[Deposited], evolve=put_in, decide=grab, initial=Bag())  # type: ignore[arg-type]
    assert bags.handle("ann", Deposit(1)).state == Bag(["1"])
    assert bags.handle("bob", Deposit(2)).state == Bag(["2"])
    assert bags.load("ann").state == Bag(["1"]) and bags.initial == Bag()


def test_a_state_without_a_column_needs_no_snapshots(log: Any) -> None:
    given: dict[str, Any] = {"events": [Deposited], "evolve": lambda state, _: state + 1j, "initial": 0j}
    with pytest.raises(hr.InvalidArgument, match="snapshot_every=None"):
        es.Entities(log, "odd", **given)
    assert es.Entities(log, "odd", **given, snapshot_every=None).append("a", Deposited(1), expected=0).state == 1j


# -- events that grow ----------------------------------------------------------------------------------


def test_older_events_are_read_as_the_newer_ones(log: Any) -> None:
    accounts_in(log).handle("ann", Deposit(150))

    @dataclass(frozen=True)
    class Deposited:
        euros: float
        currency: str

    def to_euros(fields: dict[str, Any]) -> dict[str, Any]:
        return {"euros": fields["cents"] / 100}

    def with_currency(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"currency": "EUR"}

    Deposited.__annotations__ = {"euros": float, "currency": str}
    with pytest.raises(hr.InvalidArgument, match="Give it a version"):
        accounts_in(log, events=[Deposited, Withdrawn, Closed]).load("ann")
    upcasts = {Deposited: {1: to_euros, 2: with_currency}}
    newer = accounts_in(log, events=[Deposited, Withdrawn, Closed], upcasts=upcasts, evolve=lambda state, _: state)
    newer.append("ann", Deposited(2.0, "USD"), expected=1)
    assert [event.event for event in newer.events("ann")] == [Deposited(1.5, "EUR"), Deposited(2.0, "USD")]
    with pytest.raises(hr.UnknownEvent, match="this program knows versions up to 1"):
        list(accounts_in(log).events("ann"))


@pytest.mark.parametrize(
    ("upcast", "why"),
    [
        (lambda fields: {"cents": fields["gone"], "by": ""}, "KeyError"),
        (lambda fields: fields, "Deposited.by is missing"),
        (lambda _: None, "AttributeError"),
    ],
)
def test_an_upcast_that_fails_is_named(log: Any, upcast: Any, why: str) -> None:
    accounts_in(log).handle("ann", Deposit(150))

    @dataclass(frozen=True)
    class Deposited:
        cents: int
        by: str

    Deposited.__annotations__ = {"cents": int, "by": str}
    newer = accounts_in(log, events=[Deposited, Withdrawn, Closed], upcasts={Deposited: {1: upcast}})
    with pytest.raises(hr.UnknownEvent, match=f"its upcasts to version 2 fail: .*{why}"):
        newer.load("ann")


def test_programs_with_other_events_may_begin_at_once(log: Any) -> None:
    """Each gives the topic a column of its own."""
    together, said = threading.Barrier(6), list[Any]()

    def begin(number: int) -> None:
        happened = make_dataclass(f"Happened{number}", [("x", int)], frozen=True)
        mine = es.Entities(log, "mixed", events=[happened], evolve=lambda state, _: state + 1, initial=0)
        together.wait()
        said.append(mine.append(f"k{number}", happened(1), expected=0).version)
        es.append(log, [es.tagged(happened(1), number=str(number))])

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [1] * 6 and len(list(log.topic("events").records())) == 6


def test_an_event_without_its_class_is_named(log: Any) -> None:
    accounts = accounts_in(log)
    accounts.handle("ann", Deposit(1))
    accounts.handle("ann", Close())
    with pytest.raises(hr.UnknownEvent, match=r"'Closed'.*keep the class"):
        accounts_in(log, events=[Deposited, Withdrawn]).load("ann")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"events": []}, "one at least"),
        ({"events": [int]}, "a dataclass"),
        ({"upcasts": {Account: {1: dict}}}, "none of the event classes"),
        ({"upcasts": {Deposited: {2: dict}}}, "each version from 1 on"),
        ({"snapshot_every": 0}, "above zero"),
        ({"events": [Deposited, type("deposited", (Deposited,), {})]}, "rename the class"),
    ],
)
def test_programs_that_make_no_sense(log: Any, given: dict[str, Any], why: str) -> None:
    with pytest.raises(hr.InvalidArgument, match=why):
        accounts_in(log, **given)


def test_commands_that_make_no_sense(log: Any) -> None:
    accounts = accounts_in(log, decide=lambda _, command, __: [command])
    with pytest.raises(hr.InvalidArgument, match="none of the event classes"):
        accounts.handle("ann", Deposit(1))
    with pytest.raises(hr.InvalidArgument, match="cents: 'a' is of type str, not int"):
        accounts.handle("ann", Deposited("a"))  # type: ignore[arg-type]
    with pytest.raises(hr.InvalidArgument, match="not empty"):
        accounts.handle("", Deposited(1))
    with pytest.raises(hr.InvalidArgument, match="give decide="):
        accounts_in(log, decide=None).handle("ann", Deposit(1))
    assert accounts.load("ann").version == 0


def test_a_topic_of_something_else_is_refused(log: Any) -> None:
    log.create_topic("accounts", "entity string, at timestamp", key="entity", event_time="at")
    with pytest.raises(hr.InvalidArgument, match="something else"):
        accounts_in(log).load("ann")


def test_the_log_must_have_versions() -> None:
    class Cluster:
        address = "kafka://host:9092"

    with pytest.raises(hr.Unsupported):
        accounts_in(Cluster()).load("ann")


# -- erasure -------------------------------------------------------------------------------------------


def test_what_is_erased_is_in_no_file(log: Any, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Named:
        name: str

    Named.__annotations__ = {"name": str}
    people = es.Entities(
        log,
        "people",
        events=[Named],
        evolve=lambda _, event: event.name,
        decide=lambda _, command, __: [Named(command)],
        initial="",
        snapshot_every=1,
    )
    for number in range(3):
        people.handle("subject-17", f"canary-{number}", id=f"id-{number}-subject-17")
    people.handle("other", "kept")
    assert people.erase("subject-17") == 6
    log.maintain()
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"canary-" in path.read_bytes()]
    assert left == []
    assert people.load("subject-17") == es.Loaded("subject-17", "", 3)
    assert people.handle("subject-17", "new").version == 4
    assert people.load("subject-17").state == "new" and people.load("other").state == "kept"
    with pytest.raises(hr.InvalidArgument, match="erased"):
        people.handle("subject-17", "again", id="id-0-subject-17")


def test_a_command_without_events_is_erased_too(log: Any, tmp_path: Path) -> None:
    accounts = accounts_in(log)
    accounts.handle("canary-ann", Deposit(0), id="d1")
    assert accounts.erase("canary-ann") == 1
    log.maintain()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"canary-" in path.read_bytes()] == []


def test_another_program_does_not_bring_back_what_is_erased(log: Any, tmp_path: Path) -> None:
    """It has the state in memory, and does not know: neither what it says later nor its snapshots have it."""
    baskets = [es.Entities(log, "baskets", events=[Deposited], evolve=put, decide=keep, initial=Basket(),
                           snapshot_every=2) for _ in range(2)]  # fmt: skip
    baskets[0].handle("ann", Deposit(71717171))
    assert baskets[1].load("ann").version == 1
    baskets[0].erase("ann")
    baskets[1].handle("ann", Deposit(2))
    assert not (tmp_path / FILE).exists() or b"71717171" not in (tmp_path / FILE).read_bytes()
    assert baskets[1].load("ann") == es.Loaded("ann", Basket(["2"]), 2)
    baskets[0].handle("ann", Deposit(3))
    assert baskets[1].load("ann").state == baskets[0].load("ann").state == Basket(["2", "3"])
    with pytest.raises(hr.InvalidArgument, match="erased"):
        baskets[0].load("ann", at=1)


# -- against a model -----------------------------------------------------------------------------------

COMMANDS = st.tuples(
    st.sampled_from("ab"),
    st.one_of(st.builds(Deposit, st.integers(0, 9)), st.builds(Withdraw, st.integers(0, 9)), st.just(Close())),
    st.none() | st.sampled_from(["id1", "id2", "id3"]),
    st.integers(0, 2),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
@given(st.lists(COMMANDS, max_size=25))
def test_commands_come_to_what_a_model_says(tmp_path_factory: pytest.TempPathFactory, commands: list[Any]) -> None:
    """Three programs handle them in turn: with memory, with snapshots only, and with neither."""
    model: dict[str, list[Any]] = {"a": [], "b": []}
    used: dict[str, tuple[str, tuple[Any, ...]]] = {}
    with hr.open_log(tmp_path_factory.mktemp("log")) as log:
        warm = accounts_in(log, snapshot_every=2)
        for key, command, id, which in commands:
            program = (warm, accounts_in(log, snapshot_every=2), accounts_in(log, snapshot_every=None))[which]
            state = Account()
            for event in model[key]:
                state = evolve(state, event)
            if id in used:
                if used[id][0] == key:
                    done = program.handle(key, command, id=id)
                    assert (done.events, done.duplicate) == (used[id][1], True)
                continue
            try:
                events = tuple(decide(state, command, key))
            except es.Rejected:
                with pytest.raises(es.Rejected):
                    program.handle(key, command, id=id)
                continue
            done = program.handle(key, command, id=id)
            model[key] += events
            assert (done.events, done.version, done.duplicate) == (events, len(model[key]), False)
            if id is not None:
                used[id] = key, events
        for key, events in model.items():
            assert [event.event for event in warm.events(key)] == events
        assert warm.audit().ok
