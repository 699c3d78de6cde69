"""Addresses of outboxes: `outbox+` before the address of a database, and behind its '?' which table it is. Opens
nothing.

    outbox+postgresql://app@db/shop?password=env:SHOP_PASSWORD&outbox.table=events"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from headrace.errors import InvalidArgument
from headrace.places import without_secrets

__all__ = ["PREFIX", "Outbox", "address_of", "outbox_at"]

PREFIX: Final = "outbox+"
_SETTING: Final = "outbox."


@dataclass(frozen=True)
class Outbox:
    """A table of events. `id`: of an event; `order`: what grows from event to event, "" for the id. `topic`, `key`,
    `type`, `headers`, `payload`: columns. `keep`: the column that is set when an event is taken, "" where it is
    deleted."""

    table: str = "outbox"
    id: str = "id"
    topic: str = "aggregatetype"
    key: str = "aggregateid"
    type: str = "type"
    headers: str = "headers"
    payload: str = "payload"
    order: str = ""
    keep: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, str) or (not value and each.name not in ("order", "keep")):
                raise InvalidArgument(each.name, value, "must be the name of a table, or of a column of it")

    @property
    def ordered_by(self) -> str:
        return self.order or self.id


def address_of(url: str, outbox: Outbox) -> str:
    """The text that `outbox_at` reads."""
    said = [(f"{_SETTING}{each.name}", getattr(outbox, each.name)) for each in fields(Outbox)]
    usual = Outbox()
    changed = [(name, value) for name, value in said if value != getattr(usual, name.removeprefix(_SETTING))]
    if not changed:
        return f"{PREFIX}{url}"
    return f"{PREFIX}{url}{'&' if '?' in url else '?'}{urlencode(changed, quote_via=quote)}"


def outbox_at(url: str) -> tuple[str, Outbox]:
    """The address of the database, and which table of it."""
    where, asked, query = url.removeprefix(PREFIX).partition("?")
    known = {each.name for each in fields(Outbox)}
    rest, said = [], {}
    for part in query.split("&") if asked else []:
        if not part.startswith(_SETTING):
            rest.append(part)  # as it was written: a password may be in it
            continue
        for name, value in parse_qsl(part, keep_blank_values=True):
            if (setting := name.removeprefix(_SETTING)) not in known:
                there = ", ".join(f"{_SETTING}{each}" for each in sorted(known))
                why = f"has the unknown setting {name!r}; there are {there}"
                raise InvalidArgument("url", without_secrets(url), why)
            said[setting] = value
    return (f"{where}?{'&'.join(rest)}" if rest else where), Outbox(**said)
