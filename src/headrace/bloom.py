"""Which keys came lately, in bounded memory: Bloom filters, one for each stretch of event time. Pure: numpy and
numbers; no Arrow, no Spark, no store, no clock.

Event time is cut into stretches as long as `within`. A record sets its key's bits in the stretch that its time is in,
and is a repetition if they were set there, or in the stretch before or behind, when it came: so one at most `within`
from its like is always found, one at least twice that far never is, and in between it depends. What is decided of a
record depends on those before it in its partition and on nothing else; steps of any length come to the same.

The bits of a key lie in one page, so what a step changes grows with its records, not with the filter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.durations import format_duration
from headrace.errors import InvalidArgument
from headrace.time import UNSET

__all__ = ["PAGE_BYTES", "Dedup", "Filters", "Judged"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

PAGE_BYTES = 1_024
_PAGE_BITS = 8 * PAGE_BYTES
_BESIDE = (-1, 0, 1)
"""The stretches, from that of a record, that can have a record at most `within` from it."""
_CHUNK_BITS = 14
_CHUNK = 1 << _CHUNK_BITS
"""So many records are judged together; more at a time would need more memory, and be no faster."""
_BEGUN_MAX = 16
"""And no more than that are in stretches that none was in before: each of those needs a filter until it is known that
nothing is compared with it."""
PAGES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Dedup:
    """Of records with the same `key`, at most `within_us` apart, the first that came. `approx`: the share of records
    that may be taken for repetitions and are none, if at most `keys` different keys come within `within_us`, in a
    partition. A record is too late when its partition is `within_us` and `grace_us` beyond it."""

    key: tuple[str, ...]
    within_us: int
    grace_us: int
    approx: float
    keys: int

    def __post_init__(self) -> None:
        if isinstance(self.approx, bool) or not isinstance(self.approx, int | float) or not 0 < self.approx < 0.5:
            why = (
                "must be above 0 and below 0.5: the share of records that may be lost, such as 0.01. Without it none is"
            )
            raise InvalidArgument("approx", self.approx, why)
        if isinstance(self.keys, bool) or not isinstance(self.keys, int) or self.keys < 1:
            why = "must be a whole number, 1 or more: how many different keys come within `within`, in a partition"
            raise InvalidArgument("keys", self.keys, why)
        if self.pages > PAGES_MAX:
            size, most = (pages * PAGE_BYTES >> 20 for pages in (self.pages, PAGES_MAX))
            why = f"needs filters of {size:,} MiB, and they have at most {most:,}: with more partitions, a shorter"
            raise InvalidArgument("keys", self.keys, f"{why} `within` or a larger `approx` they are smaller")

    @property
    def pages(self) -> int:
        """Of each stretch's filter."""
        return _sized(self.keys, self.approx)[0]

    @property
    def bits(self) -> int:
        """That each key sets."""
        return _sized(self.keys, self.approx)[1]

    @property
    def bytes_max(self) -> int:
        """What a partition's filters take; as much as one of them more for each `within` that records are ahead."""
        return (len(_BESIDE) + math.ceil(self.grace_us / self.within_us)) * self.pages * PAGE_BYTES

    def pages_of(self, hashes: I64) -> I64:
        """The page that each key's bits are in."""
        page = ((hashes.view(np.uint64) >> np.uint64(32)) * np.uint64(self.pages)) >> np.uint64(32)
        return page.astype(np.int64)

    def stretches_of(self, times_us: I64) -> I64:
        """Which stretch each time is in, and those beside it: a row of three."""
        stretches: I64 = (times_us // self.within_us)[:, None] + np.array(_BESIDE)
        return stretches

    def lowest(self, reached_us: int) -> int:
        """The first stretch that a record can still be compared with, when the partition has come so far."""
        return (reached_us + 1 - self.within_us - self.grace_us) // self.within_us + _BESIDE[0]

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.key))
        return f"dedup({names}, within={format_duration(self.within_us)!r}, approx={self.approx}, keys={self.keys})"


@lru_cache(maxsize=64)
def _sized(keys: int, approx: float) -> tuple[int, int]:
    """How many pages a filter has, and how many bits a key: the fewest pages that keep to the share, when each of the
    filters a record is compared with has all of its keys."""
    share = approx / len(_BESIDE)
    about = round(-math.log2(share))
    most = {bits: _keys_in_page(share, bits) for bits in range(max(1, about - 2), about + 3)}
    bits = max(most, key=lambda each: most[each])
    return math.ceil(keys / most[bits]), bits


def _keys_in_page(share: float, bits: int) -> float:
    """How many keys a page may have, on average, for no more than that share of others to look like one of them."""
    low, high = 0.0, float(_PAGE_BITS)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _mistaken(middle, bits) <= share else (low, middle)
    return max(low, 1e-3)


def _mistaken(keys: float, bits: int) -> float:
    """The share of other keys whose bits are all set. A page has more or fewer keys than the average, and those that
    have more weigh more."""
    count = np.arange(int(keys + 12 * math.sqrt(keys)) + 20)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.maximum(count[1:], 1)))))
    odds = np.exp(count * math.log(max(keys, 1e-300)) - keys - log_factorial)
    is_set = -np.expm1(bits * count * math.log1p(-1 / _PAGE_BITS))
    return float((odds * is_set**bits).sum())


class Judged(NamedTuple):
    """Of each record: whether it is the first of its key; whether it is too late to say."""

    first: Flags
    late: Flags


class Filters:
    """What came in one partition. `changed` and `reached_us` say what a store has to keep of it."""

    def __init__(self, dedup: Dedup) -> None:
        self._dedup = dedup
        self.reached_us = UNSET
        """How far the records that were judged say that the partition has come."""
        self._bits: dict[int, npt.NDArray[np.uint8]] = {}
        self._changed: dict[int, Flags] = {}

    @property
    def lowest(self) -> int:
        """The first stretch of which anything is kept."""
        return self._dedup.lowest(self.reached_us)

    @property
    def size_bytes(self) -> int:
        return sum(len(each) for each in self._bits.values())

    def put(self, stretch: int, page: int, bits: bytes) -> None:
        """What a store has kept."""
        self._of(stretch)[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = np.frombuffer(bits, np.uint8)

    def changed(self) -> Iterator[tuple[int, int, bytes]]:
        """Stretch, page and its bits, of the pages that were changed since this was last asked."""
        for stretch, pages in self._changed.items():
            bits = self._bits[stretch].reshape(-1, PAGE_BYTES)
            for page in np.flatnonzero(pages).tolist():
                yield stretch, page, bits[page].tobytes()
        self._changed = {}

    def step(self, hashes: I64, times_us: I64, progress_us: I64) -> Judged:
        """Judges the next records, in the order of their offsets. `progress_us`: how far the partition was when each
        came; it counts as no less than for those before it."""
        dedup = self._dedup
        reached = np.maximum.accumulate(np.maximum(progress_us, self.reached_us))
        late = reached >= times_us + (dedup.within_us + dedup.grace_us)
        first = np.zeros(len(hashes), np.bool_)
        judged, stretches = np.flatnonzero(~late), times_us // dedup.within_us
        for at in range(0, len(judged), _CHUNK):
            chunk = judged[at : at + _CHUNK]
            for some in np.split(chunk, _cuts(stretches[chunk])):
                first[some] = self._firsts(self._places(hashes[some]), stretches[some])
                self._forget(int(reached[some[-1]]))
        if len(reached):
            self._forget(int(reached[-1]))
        return Judged(first, late)

    def _forget(self, reached_us: int) -> None:
        """Stretches that no record to come is compared with: when they go changes nothing."""
        self.reached_us = reached_us
        for stretch in [each for each in self._bits if each < self.lowest]:
            del self._bits[stretch]
            self._changed.pop(stretch, None)

    def _of(self, stretch: int) -> npt.NDArray[np.uint8]:
        if stretch not in self._bits:
            self._bits[stretch] = np.zeros(self._dedup.pages * PAGE_BYTES, np.uint8)
        return self._bits[stretch]

    def _places(self, hashes: I64) -> I64:
        """The bits of each key: a row of their numbers in a filter, all of one page."""
        plain, page = hashes.view(np.uint64), self._dedup.pages_of(hashes).view(np.uint64)
        out = np.empty((len(plain), self._dedup.bits), np.int64)
        for number in range(self._dedup.bits):
            bit = _mixed(plain + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % 2**64)) >> np.uint64(64 - 13)
            out[:, number] = page * np.uint64(_PAGE_BITS) + bit
        return out

    def _firsts(self, places: I64, stretches: I64) -> Flags:
        """Of records in order, with the bits of their keys: which are the first, as if each had been asked, and set its
        bits, before the next came. For that, who was the first to set a bit is kept beside all that are set."""
        size = self._dedup.pages * _PAGE_BITS
        known, rank = np.unique(stretches, return_inverse=True)
        numbers = np.arange(len(places))
        sorted_ = np.sort((((rank[:, None] * size + places) << _CHUNK_BITS) | numbers[:, None]).ravel())
        fresh = np.ones(len(sorted_), np.bool_)
        np.not_equal(sorted_[1:] >> _CHUNK_BITS, sorted_[:-1] >> _CHUNK_BITS, out=fresh[1:])
        set_here, setter = sorted_[fresh] >> _CHUNK_BITS, sorted_[fresh] & (_CHUNK - 1)
        bounds = np.searchsorted(set_here, np.arange(len(known) + 1) * size).tolist()
        for number, stretch in enumerate(known.tolist()):
            inside = slice(bounds[number], bounds[number + 1])
            self._set(stretch, set_here[inside] - number * size, setter[inside])
        repeated = np.ones(len(places), np.bool_)
        repeated[setter[setter >= 0]] = False  # who was the first to set a bit found it not set
        for number, stretch in enumerate(known.tolist()):
            for beside in (stretch + _BESIDE[0], stretch + _BESIDE[-1]):
                found = self._all_set(beside, places, np.flatnonzero((rank == number) & ~repeated))
                there = int(np.searchsorted(known, beside))
                if len(found) and there < len(known) and known[there] == beside:  # some may be set by who came later
                    wanted = there * size + places[found]
                    near = np.minimum(np.searchsorted(set_here, wanted), len(set_here) - 1)
                    by = np.where(set_here[near] == wanted, setter[near], -1)
                    found = found[(by < found[:, None]).all(axis=1)]
                repeated[found] = True
        return ~repeated

    def _set(self, stretch: int, places: I64, setter: I64) -> None:
        """Sets the bits; those that were set have no setter here."""
        filled = self._of(stretch)
        byte, bit = places >> 3, (np.uint8(1) << (places & 7).astype(np.uint8))
        was = (filled[byte] & bit) != 0
        setter[was] = -1
        np.bitwise_or.at(filled, byte[~was], bit[~was])
        pages = self._changed.setdefault(stretch, np.zeros(self._dedup.pages, np.bool_))
        pages[places[~was] // _PAGE_BITS] = True

    def _all_set(self, stretch: int, places: I64, asking: I64) -> I64:
        """Which of those that ask find all bits of their key; most do not find the second or third."""
        filled = self._bits.get(stretch)
        if filled is None:
            return asking[:0]
        for number in range(places.shape[1]):
            place = places[asking, number]
            asking = asking[(filled[place >> 3] >> (place & 7).astype(np.uint8)) & 1 != 0]
        return asking


def _cuts(stretches: I64) -> I64:
    """Where to cut for no piece to begin too many stretches."""
    begun = np.zeros(len(stretches), np.int64)
    begun[np.unique(stretches, return_index=True)[1]] = 1
    return np.flatnonzero(np.diff((np.cumsum(begun) - 1) // _BEGUN_MAX)) + 1


def _mixed(numbers: U64) -> U64:
    """Neighbours become strangers (the finish of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
