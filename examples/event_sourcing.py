"""Event sourcing: what happened is the truth, and the balance is derived from it. An append on a condition keeps two
deciders from spending the same money; the history stays, and the state at any moment is a fold of it.

Prints:
    ann has 70 after 2 events
    somebody was first: ann is at version 3, not 2
    ann has 20 after 3 events
    after the first event she had 100"""

import tempfile

import headrace as hr


def balance(accounts, owner: str, upto: int | None = None) -> tuple[int, int]:
    """What the events of an owner come to, and how many they are."""
    changes = [record.value["change"] for record in accounts.records(key=owner)][:upto]
    return sum(changes), len(changes)


def withdraw(accounts, owner: str, euros: int, seen: tuple[int, int]) -> None:
    """Decided on what was seen; refused if something has happened since."""
    held, version = seen
    if held >= euros:
        accounts.append({"owner": owner, "change": -euros}, expect={owner: version})


with tempfile.TemporaryDirectory() as home, hr.open_log(home) as log:
    accounts = log.create_topic("accounts", "owner string, change int", key="owner", versioned=True)
    accounts.append({"owner": "ann", "change": 100}, expect={"ann": 0})
    withdraw(accounts, "ann", 30, balance(accounts, "ann"))
    seen = balance(accounts, "ann")  # both of the following decide on this
    print("ann has {} after {} events".format(*seen))

    withdraw(accounts, "ann", 50, seen)
    try:
        withdraw(accounts, "ann", 40, seen)
    except hr.VersionConflict as conflict:
        print(f"somebody was first: ann is at version {conflict.actual}, not {conflict.expected}")
    print("ann has {} after {} events".format(*balance(accounts, "ann")))
    print(f"after the first event she had {balance(accounts, 'ann', upto=1)[0]}")
