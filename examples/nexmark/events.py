"""Nexmark's events: people who open auctions and bid on them. Owns the generator and the three topics; the queries are
the programs beside it. Knows no Spark.

Of 50 events one is a person, three are auctions and 46 are bids. Half of the bids go to a hot auction, the first of the
last hundred; three of four come from a hot bidder, the second of the last hundred people, and three of four auctions
are a hot seller's, the first of them. The others choose among the last 100 auctions and the last 1,000 people. These
are the published numbers. Two things differ: an id is never of somebody who comes only later, and `extra` is short.

An event is a function of the seed and of its number: however the events are cut, or asked for, they are the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import instant_us
from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.log.contract import Log, Topic

__all__ = ["SCHEMAS", "Events", "Topics", "events", "load", "topics"]

SCHEMAS = {
    "person": "id bigint, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string",
    "auction": "id bigint, itemName string, description string, initialBid bigint, reserve bigint, "
    "dateTime timestamp, expires timestamp, seller bigint, category bigint, extra string",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, extra string",
}
KEYS = {"person": "id", "auction": "id", "bid": "auction"}

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
TOTAL = PEOPLE + AUCTIONS + BIDS
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1_000, 10, 5
HOT_AUCTION, HOT_BIDDER, HOT_SELLER, HOT_CHANNEL = 2, 4, 4, 2
"""One of so many is *not* hot."""
HOT_OF = 100
"""There is a new hot auction, bidder and seller every so many."""
AUCTIONS_OPEN, PEOPLE_ACTIVE = 100, 1_000
CHANNELS = 10_000
CHANNELS_HOT = ("Google", "Facebook", "Baidu", "Apple")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

_I64 = npt.NDArray[np.int64]
_U64 = npt.NDArray[np.uint64]
_F64 = npt.NDArray[np.float64]
_DRAWS = 16
"""Random numbers that an event may use."""
_TIME = pa.timestamp("us", tz="UTC")


class Events(NamedTuple):
    """Some events in the order of their times: of each kind a table."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


class Topics(NamedTuple):
    """What the events are in."""

    person: Topic
    auction: Topic
    bid: Topic


def events(
    count: int,
    *,
    seed: int = 1,
    rate: int = 10_000,
    start: str | datetime = "2026-01-01T00:00:00Z",
    batch_events: int = 100_000,
) -> Iterator[Events]:
    """`count` events of all kinds, `batch_events` at a time; `rate` of them for each second from `start` on. Times are
    whole milliseconds."""
    for name, value, least in ("count", count, 0), ("rate", rate, 1), ("batch_events", batch_events, 1):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidArgument(name, value, f"must be a whole number, {least} or more")
    some = _Numbered(seed, rate, instant_us(start, argument="start") // 1_000)
    return (some.between(first, min(first + batch_events, count)) for first in range(0, count, batch_events))


def topics(where: App | Log, *, partitions: int = 1, durability: str = "os") -> Topics:
    """The topics person, auction and bid; made if there are none."""
    log: Any = getattr(where, "log", where)
    return Topics(
        *(
            log.create_topic(
                name,
                schema,
                key=KEYS[name],
                event_time="dateTime",
                partitions=partitions,
                durability=durability,
                exist_ok=True,
            )
            for name, schema in SCHEMAS.items()
        )
    )


def load(where: App | Log, count: int, *, partitions: int = 1, durability: str = "os", **settings: Any) -> Topics:
    """Appends `events(count, …)` to the topics of an app or a log."""
    made = topics(where, partitions=partitions, durability=durability)
    for some in events(count, **settings):
        for topic, table in zip(made, some, strict=True):
            if table.num_rows:
                topic.append(table)
    return made


class _Numbered:
    """Events by their numbers. An event in the e-th fifty knows of people up to the e-th, and of auctions up to the
    3 e + 2nd; both are counted from 0."""

    def __init__(self, seed: int, rate: int, begin_ms: int) -> None:
        self._seed, self._rate, self._begin_ms = seed, rate, begin_ms

    def between(self, first: int, stop: int) -> Events:
        numbers = np.arange(first, stop)
        place = numbers % TOTAL
        person, bid = place < PEOPLE, place >= PEOPLE + AUCTIONS
        return Events(self.people(numbers[person]), self.auctions(numbers[~person & ~bid]), self.bids(numbers[bid]))

    def people(self, numbers: _I64) -> pa.Table:
        draw = _Draw(self._seed, numbers)
        names = pc.binary_join_element_wise(draw.of(FIRST_NAMES), draw.of(LAST_NAMES), " ")
        email = pc.binary_join_element_wise(draw.letters(7), "@", draw.letters(5), ".com", "")
        columns = {
            "id": numbers // TOTAL + FIRST_ID,
            "name": names,
            "emailAddress": email,
            "creditCard": pc.binary_join_element_wise(draw.digits(4), draw.digits(4), draw.digits(4), " "),
            "city": draw.of(CITIES),
            "state": draw.of(STATES),
            "dateTime": self._times(numbers),
            "extra": draw.letters(8),
        }
        return pa.table(columns)

    def auctions(self, numbers: _I64) -> pa.Table:
        draw = _Draw(self._seed, numbers)
        at_ms = self._at_ms(numbers)
        open_ms = self._at_ms(numbers + AUCTIONS_OPEN * TOTAL // AUCTIONS) - at_ms
        initial = draw.price()
        columns = {
            "id": numbers // TOTAL * AUCTIONS + numbers % TOTAL - PEOPLE + FIRST_ID,
            "itemName": draw.letters(8),
            "description": draw.letters(16),
            "initialBid": initial,
            "reserve": initial + draw.price(),
            "dateTime": _times(at_ms),
            "expires": _times(at_ms + 1 + draw.below(np.maximum(2 * open_ms, 1))),
            "seller": draw.known(HOT_SELLER, numbers // TOTAL, PEOPLE_ACTIVE, 0) + FIRST_ID,
            "category": draw.below(CATEGORIES) + FIRST_CATEGORY,
            "extra": draw.letters(8),
        }
        return pa.table(columns)

    def bids(self, numbers: _I64) -> pa.Table:
        draw = _Draw(self._seed, numbers)
        last = numbers // TOTAL
        hot, part = draw.hot(HOT_CHANNEL)
        channel = pa.array(
            np.where(hot, part * len(CHANNELS_HOT), len(CHANNELS_HOT) + part * CHANNELS).astype(np.int32)
        )
        names, urls = _channels()
        columns = {
            "auction": draw.known(HOT_AUCTION, last * AUCTIONS + AUCTIONS - 1, AUCTIONS_OPEN, 0) + FIRST_ID,
            "bidder": draw.known(HOT_BIDDER, last, PEOPLE_ACTIVE, 1) + FIRST_ID,
            "price": draw.price(),
            "channel": names.take(channel),
            "url": urls.take(channel),
            "dateTime": self._times(numbers),
            "extra": draw.letters(8),
        }
        return pa.table(columns)

    def _at_ms(self, numbers: _I64) -> _I64:
        return self._begin_ms + numbers * 1_000 // self._rate

    def _times(self, numbers: _I64) -> pa.Array:
        return _times(self._at_ms(numbers))


def _times(at_ms: _I64) -> pa.Array:
    return pa.array(at_ms * 1_000).cast(_TIME)


class _Draw:
    """Random numbers of some events, one after the other: splitmix64, whose n-th number can be had by itself."""

    def __init__(self, seed: int, numbers: _I64) -> None:
        with np.errstate(over="ignore"):
            self._place = _mixed(np.array([seed % 2**64], np.uint64)) + numbers.astype(np.uint64) * np.uint64(_DRAWS)
        self._drawn = 0

    def next(self) -> _U64:
        assert self._drawn < _DRAWS
        self._drawn += 1
        return _mixed(self._place + np.uint64(self._drawn))

    def part(self) -> _F64:
        """From 0 to below 1."""
        return (self.next() >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, limit: int | _I64) -> _I64:
        return (self.part() * limit).astype(np.int64)

    def hot(self, ratio: int) -> tuple[npt.NDArray[np.bool_], _F64]:
        """Which are hot, all but one of `ratio`; and what is left of the random number, from 0 to below 1."""
        part, whole = np.modf(self.part() * ratio)
        return whole > 0, part

    def known(self, ratio: int, last: _I64, among: int, place: int) -> _I64:
        """The hot one, at that place in the last hundred, or one of the last `among`, up to the last that is there."""
        hot, part = self.hot(ratio)
        count = np.minimum(last + 1, among)
        chosen = last + 1 - count + (part * count).astype(np.int64)
        return np.where(hot, np.minimum(last // HOT_OF * HOT_OF + place, last), chosen)

    def price(self) -> _I64:
        """In cents, from a dollar to a million: as many below ten as above a hundred thousand."""
        return np.round(10 ** (self.part() * 6) * 100).astype(np.int64)

    def of(self, texts: tuple[str, ...]) -> pa.Array:
        return pa.array(texts).take(pa.array(self.below(len(texts))))

    def letters(self, width: int) -> pa.Array:
        return self._texts(width, "a", 26)

    def digits(self, width: int) -> pa.Array:
        return self._texts(width, "0", 10)

    def _texts(self, width: int, first: str, kinds: int) -> pa.Array:
        drawn = np.stack([self.next() for _ in range(-(-width // 8))], axis=1).view(np.uint8)[:, :width]
        data = (drawn % np.uint8(kinds) + np.uint8(ord(first))).tobytes()
        ends = np.arange(len(drawn) + 1, dtype=np.int32) * np.int32(width)
        return pa.StringArray.from_buffers(len(drawn), pa.py_buffer(ends), pa.py_buffer(data))


def _mixed(place: _U64) -> _U64:
    with np.errstate(over="ignore"):
        found = place * np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """All channels and their addresses: the hot ones first. Nine of ten others have a number in the address."""
    draw = _Draw(0, np.arange(len(CHANNELS_HOT) + CHANNELS))
    folders = zip(*(draw.letters(5).to_pylist() for _ in range(3)), strict=True)
    urls = [f"https://www.nexmark.com/{'/'.join(each)}/item.htm?query=1" for each in folders]
    told, number = draw.below(10) > 0, draw.below(2**31)
    for at in range(len(CHANNELS_HOT), len(urls)):
        urls[at] += f"&channel_id={number[at]}" if told[at] else ""
    return pa.array([*CHANNELS_HOT, *(f"channel-{each}" for each in range(CHANNELS))]), pa.array(urls)
