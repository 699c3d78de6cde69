"""Addresses that are wrong: whatever is said of one, no password is in it."""

from __future__ import annotations

import itertools
import traceback

import pytest

import headrace as hr
from headrace.cdc.open import check_address, choice_for, may_be_stored
from headrace.errors import InvalidArgument

SECRET = "sesame77"
SCHEMES = ("postgresql", "mysql", "sqlite", "outbox+postgresql", "outbox+mysql", "debezium+kafka", "oracle", "")
FORMS = (
    "{s}://u:{p}@127.0.0.1:1/db",
    "{s}://u:{p}@127.0.0.1:x/db",
    "{s}:/u:{p}@h/db",
    "{s}:u:{p}@h/db",
    " {s}://u:{p}@h/db",
    "//u:{p}@h/db",
    "host=127.0.0.1 port=1 password={p}",
    "host=127.0.0.1 port=1 password = '{p}'",
    "{s}://u@127.0.0.1:1/db?password={p}",
    "{s}://u@127.0.0.1:1/db?pass word={p}",
    "{s}://u@127.0.0.1:1/db?passwd={p}",
    "{s}://u@127.0.0.1:1/db?outbox.x=1&password={p}",
    "{s}://u@127.0.0.1:1/db#{p}",
)


@pytest.mark.parametrize("before", ["", *"/?#@:%[] \\&;é'"])
def test_no_password_is_told(before: str) -> None:
    for scheme, form in itertools.product(SCHEMES, FORMS):
        url = form.format(s=scheme, p=before + SECRET)
        for ask in (check_address, may_be_stored, lambda url: choice_for(url, ["no pattern"], None), hr.outbox):
            try:
                ask(url)
            except InvalidArgument as error:
                told = [str(error.__cause__), *traceback.format_exception_only(error)]
                assert SECRET not in "".join(told), (form, scheme)


def test_what_is_no_secret_is_told() -> None:
    with pytest.raises(InvalidArgument, match=r"url='shop.db': must be the address of a database"):
        check_address("shop.db")
