"""The visitors of the demo's shop, the same in every run: page views, purchases and messages as the shop's server gets
them, out of order, some twice, some from devices whose clocks are wrong. Pure: time is simulated, chance is seeded."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]

OPENS = datetime(2026, 1, 1, 9, tzinfo=UTC)
"""The shop's clock at second 0."""
CITIES = ("oslo", "berlin", "lima")
"""Each has a partition of its own."""
QUIET, OTHERS = CITIES[0], CITIES[1:]
PAGES = {"/": 30, "/search": 20, "/kettle": 15, "/teapot": 12, "/cups": 9}
PRICES = {"/kettle": 3490, "/teapot": 2450, "/cups": 790}
HEALTH = "/health"
CUSTOMERS = ("bob", "cleo", "dan", "eve", "finn", "gina", "hugo", "ida", "jan", "kim", "lou", "mia")
DEVICES = 40
SEED = 1


class Traffic:
    def __init__(self, seed: int = SEED) -> None:
        self._chance, self._chat_chance = random.Random(seed), random.Random(seed)
        self._views = 0
        slow, fast = timedelta(minutes=-20), timedelta(hours=3)
        self._wrong = {
            f"{city}-{number:02}": slow + (fast - slow) * self._chance.random()
            for city in CITIES
            for number in range(0, DEVICES, 8)
        }
        """Device -> how far its clock is ahead."""

    def visits(self, begin_s: float, end_s: float, per_second: int, cities: tuple[str, ...] = CITIES) -> list[Row]:
        """What happens from `begin_s` to `end_s` by the shop's clock, in the order in which it arrives."""
        rows: list[Row] = []
        for _ in range(round((end_s - begin_s) * per_second)):
            city, at_s = self._chance.choice(cities), self._chance.uniform(begin_s, end_s)
            device = f"{city}-{self._chance.randrange(DEVICES):02}"
            if self._chance.random() < 0.06:
                rows.append(self._purchase(city, device, at_s))
                continue
            view = self.view(city, device, self._page(), at_s, arrives_s=at_s + self._chance.uniform(0.2, 5))
            rows.append(view)
            if self._chance.random() < 0.04:  # the answer got lost: the browser sends it again
                rows.append(_later(view, timedelta(seconds=self._chance.uniform(1, 3))))
        return sorted(rows, key=lambda row: row["received"])

    def messages(self, begin_s: float, end_s: float, of_ann_s: tuple[float, ...] = ()) -> list[Row]:
        """What customers write, one each second, and ann beside them; in the order in which it arrives."""
        chance = self._chat_chance
        others = [(chance.choice(CUSTOMERS), chance.uniform(begin_s, end_s)) for _ in range(round(end_s - begin_s))]
        written = [*others, *(("ann", at_s) for at_s in of_ann_s)]
        return [message(*each) for each in sorted(written, key=lambda each: each[1] + chance.uniform(0, 5))]

    def view(
        self, city: str, device: str, page: str, at_s: float, arrives_s: float, ahead: timedelta | None = None
    ) -> Row:
        """A page view; `ahead`: how far the device's clock is."""
        ahead = self._wrong.get(device, timedelta(0)) if ahead is None else ahead
        self._views += 1
        sent = clock(arrives_s) - timedelta(seconds=0.1)
        return _row(city, device, page, occurred=clock(at_s) + ahead, sent=sent + ahead, received=clock(arrives_s)) | {
            "view": f"view-{self._views}"
        }

    def _purchase(self, city: str, device: str, at_s: float) -> Row:
        """The shop's own server tells of it, by its own clock, once."""
        page, now = self._chance.choice(list(PRICES)), clock(at_s)
        return _row(city, device, page, occurred=now, sent=now, received=now) | {"cents": PRICES[page]}

    def _page(self) -> str:
        return self._chance.choices(list(PAGES), list(PAGES.values()))[0]


@dataclass(frozen=True, slots=True)
class Day:
    """What the story sends, piece by piece."""

    opening: list[Row]
    """The first 50 seconds; nothing comes from QUIET after 20."""
    minute_ends: list[Row]
    """So much of the second minute that the first can be closed; and two phones that were in flight mode."""
    straggler: Row
    """Of the first minute, when that is closed."""
    wrong_clock: Row
    """Of the second minute, by a clock that is 47 minutes ahead."""
    messages: list[Row]
    """Of the first minute and a half; ann writes twice, and some time later twice again."""
    between: Row
    """A message of ann's, of the time between."""
    tax: Row
    """The tax rate that is known when the shop opens."""
    invoice: Row
    """Of the second minute."""
    new_tax: Row
    """A rate that is valid from nine o'clock on, and known when the invoice is written."""
    rush: list[Row]
    """Five minutes more, from all cities."""
    rush_messages: list[Row]


RUSH_ENDS_S = 400


def day_of(traffic: Traffic) -> Day:
    offline = [traffic.view("berlin", f"berlin-{number}", "/", -1500, arrives_s=94) for number in (31, 32)]
    return Day(
        opening=traffic.visits(0, 20, 12) + traffic.visits(20, 50, 12, OTHERS),
        minute_ends=traffic.visits(50, 95, 12, OTHERS) + offline,
        straggler=traffic.view("berlin", "berlin-07", "/kettle", 30, arrives_s=97),
        wrong_clock=traffic.view("lima", "lima-tablet", "/teapot", 92, arrives_s=98, ahead=timedelta(minutes=47)),
        messages=traffic.messages(0, 95, of_ann_s=(5, 12, 50, 58)),
        between=message("ann", 30),
        tax={"country": "ch", "percent": 8, "since": OPENS - timedelta(days=365)},
        invoice={"number": 1, "country": "ch", "cents": 100_00, "at": clock(99)},
        new_tax={"country": "ch", "percent": 9, "since": OPENS},
        rush=traffic.visits(100, RUSH_ENDS_S, 8),
        rush_messages=traffic.messages(100, RUSH_ENDS_S),
    )


def health(city: str) -> Row:
    """The server of a city is asked how it is. It says nothing about visitors, and shows that the line is alive."""
    now = clock(0)
    return _row(city, "server", HEALTH, occurred=now, sent=now, received=now)


def message(customer: str, at_s: float) -> Row:
    return {"customer": customer, "at": clock(at_s)}


def clock(second: float) -> datetime:
    """The shop's clock, to the millisecond."""
    return OPENS + timedelta(milliseconds=round(second * 1000))


def _row(city: str, device: str, page: str, *, occurred: datetime, sent: datetime, received: datetime) -> Row:
    row = {"city": city, "device": device, "page": page, "view": None, "cents": None}
    return row | {"occurred": occurred, "sent": sent, "received": received}


def _later(row: Row, wait: timedelta) -> Row:
    return row | {"sent": row["sent"] + wait, "received": row["received"] + wait}
