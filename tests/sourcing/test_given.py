"""Given, when, then."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace import sourcing as es
from headrace.testing import given
from tests.sourcing.test_entities import Account, Close, Closed, Deposit, Deposited, Withdraw, Withdrawn, accounts_in

ACCOUNTS = accounts_in(None)  # nothing is opened


def test_what_is_decided() -> None:
    given(ACCOUNTS).when(Deposit(5)).then(Deposited(5)).when(Close()).then(Withdrawn(5), Closed()).state(
        Account(0, False)
    )
    given(ACCOUNTS, Deposited(1), Deposited(2)).state(Account(3))
    given(ACCOUNTS, Deposited(1), key="ann").when(Withdraw(2)).rejected("ann has 1")
    given(ACCOUNTS).when(Deposit(0)).then()


def test_what_is_not_as_expected() -> None:
    with pytest.raises(AssertionError, match=r"gives \[Deposited\(cents=5\)\], not \[\]"):
        given(ACCOUNTS).when(Deposit(5)).then()
    with pytest.raises(AssertionError, match="is rejected: key has 0, not 1"):
        given(ACCOUNTS).when(Withdraw(1)).then()
    with pytest.raises(AssertionError, match="is not rejected"):
        given(ACCOUNTS).when(Deposit(1)).rejected()
    with pytest.raises(AssertionError, match="not 'closed'"):
        given(ACCOUNTS).when(Withdraw(1)).rejected("closed")
    with pytest.raises(AssertionError, match="the state is"):
        given(ACCOUNTS, Deposited(1)).state(Account(2))


@dataclass
class Drifting:
    """Comes back as something else."""

    cents: int

    def __post_init__(self) -> None:
        self.cents += 1


def test_an_event_that_does_not_come_back() -> None:
    drifting = es.Entities(None, "odd", events=[Drifting], evolve=lambda state, _: state, initial=0)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="comes back from a log as"):
        given(drifting, Drifting(1)).state(0)
