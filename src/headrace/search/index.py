"""An index of stored queries: which of them find a record. Owns where each query lies, and what is known of how often
terms occur.

Each query lies under one of its needs, the rarest as far as records have shown; so a record meets few queries, however
many there are. What a record meets is a candidate. Candidates go through three sieves: whose the query is and for which
arrivals it counts; whether the record has the other terms that the query needs, by a filter that may err to one side;
and the query itself. So how it is indexed changes the cost, and never the result.

Queries are added, ended and forgotten one by one. They are laid out anew when records have shown enough more, or when
more were forgotten than are there: then nothing is left of those."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from headrace.search.batch import Batch, Vocabulary, distinct
from headrace.search.bind import bound
from headrace.search.exact import Check, check_of
from headrace.search.fields import Fields
from headrace.search.highlight import asked_for
from headrace.search.postings import NONE, OTHERS, Postings
from headrace.search.terms import Need, needs_of
from headrace.search.tree import Phrase

__all__ = ["FOREVER", "Hits", "Laid", "QueryIndex"]

I64 = npt.NDArray[np.int64]
FOREVER = 2**63 - 1
WAYS_MAX = 16
"""A query lies under so many terms at most, for what it needs together; alternatives may be more."""
GONE = -(2**63)
CANDIDATES_MAX = 2_000_000
"""So many are looked at at a time: that bounds the memory that a batch takes."""
CHECKS_MAX = 250_000
"""So many queries that were asked lately are kept as functions: to make one takes as long as many questions."""
GONE_MIN = 1_000
"""So many may be forgotten, at least, until queries are laid out anew."""
LAY_FIRST = 1_000
"""Records, until queries are laid out anew for the first time."""
RECORDS_MAX = 1 << 22
GUESS = 1_000.0
"""A term of which nothing is known is taken to be as frequent in so many records as it is in queries."""
A, B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows of a batch, each with the slot of a query that finds it; by row, then by slot."""

    rows: I64
    slots: I64
    candidates: int


@dataclass(frozen=True, slots=True)
class Laid:
    """Where a query lies: the texts of the terms under which it is found, and in how many of the records seen each
    of them was."""

    terms: tuple[str, ...]
    seen: tuple[int, ...]
    records: int


class QueryIndex:
    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._vocabulary = Vocabulary()
        self._postings = Postings()
        self._meanings: dict[str, int] = {}
        self._texts: list[str] = []
        self._needs: list[tuple[Need, ...]] = []
        self._checks: OrderedDict[int, tuple[Check, tuple[Phrase, ...]]] = OrderedDict()
        self._tenants: dict[str | None, int] = {}
        self._count = 0
        self._meaning, self._tenant = _Growing(NONE), _Growing(NONE)
        self._since, self._until = _Growing(FOREVER), _Growing(GONE)
        self._free: list[int] = []
        self._free_meanings: list[int] = []
        self._gone = 0
        self._unlaid: list[int] = []
        self._seen = _Growing(0)
        self._uses: list[int] = []
        self._records, self._lay_at, self._met = 0, LAY_FIRST, 0

    def __len__(self) -> int:
        return self._count - len(self._free)

    # -- queries ---------------------------------------------------------------------------------------

    def add(self, text: str, since_us: int, until_us: int = FOREVER, tenant: str | None = None) -> int:
        """The slot of a query that counts for records that arrive later than `since_us`, and until `until_us`.
        InvalidSearch if there is no such query over these columns."""
        meaning = self._meaning_of(text)
        slot = self._free.pop() if self._free else self._count
        self._count += slot == self._count
        self._meaning.put(slot, meaning)
        self._tenant.put(slot, self._tenants.setdefault(tenant, len(self._tenants)))
        self._since.put(slot, since_us)
        self._until.put(slot, until_us)
        self._unlaid.append(slot)
        return slot

    def count_for(self, slot: int, since_us: int, until_us: int) -> None:
        """For which records the query counts from now on."""
        self._since.put(slot, since_us)
        self._until.put(slot, until_us)

    def asks(self, slot: int) -> tuple[Phrase, ...]:
        """What a text may have been found by."""
        meaning = int(self._meaning.values[slot])
        return self._known_check(meaning)[1]

    def forget(self, slot: int) -> None:
        """It finds nothing any more. The slot is used again after the next layout: until then it lies under terms."""
        self.count_for(slot, FOREVER, GONE)
        self._gone += 1

    def text(self, slot: int) -> str:
        """The query, as it was understood."""
        return self._texts[int(self._meaning.values[slot])]

    def _meaning_of(self, text: str) -> int:
        """Queries that mean the same are one, with one check for each record."""
        node = bound(text, self.fields)
        said = str(node)
        known = self._meanings.get(said)
        if known is None:
            needs = needs_of(node, text, self.fields.kinds, self._vocabulary.number)
            known = self._meanings[said] = self._free_meanings.pop() if self._free_meanings else len(self._texts)
            self._texts[known : known + 1] = [said]
            self._needs[known : known + 1] = [tuple(needs)]  # of numbers: the garbage collector passes it by
            self._seen.reach(self._vocabulary.count)
            self._uses += [0] * (self._vocabulary.count - len(self._uses))
            for term in _terms_in(needs):
                self._uses[term] += 1
        return known

    def _check(self, meaning: int) -> Check:
        return self._known_check(meaning)[0]

    def _known_check(self, meaning: int) -> tuple[Check, tuple[Phrase, ...]]:
        """The one that was not asked for longest goes."""
        found = self._checks.get(meaning)
        if found is None:
            while len(self._checks) >= CHECKS_MAX:
                self._checks.popitem(last=False)
            node = bound(self._texts[meaning], self.fields)
            found = self._checks[meaning] = check_of(node), asked_for(node)
        self._checks.move_to_end(meaning)
        return found

    # -- where they lie --------------------------------------------------------------------------------

    def _cost(self, term: int) -> float:
        """In how many of the records seen the term was, or how many are expected."""
        return float(self._seen.values[term]) + GUESS * self._uses[term] / (len(self._texts) + 100)

    def _lay_new(self) -> None:
        """What was added since the last records, together: so each cost is computed once."""
        cost = cache(self._cost)
        for slot in self._unlaid:
            self._lay(slot, cost)
        self._unlaid = []

    def _lay(self, slot: int, cost: Callable[[int], float]) -> None:
        meaning = int(self._meaning.values[slot])
        tenant = int(self._tenant.values[slot]) << 40
        for under, others in _laid(self._needs[meaning], cost):
            for term in under:
                self._postings.add(tenant | term, slot, others)

    def _lay_anew(self) -> None:
        self._postings, self._unlaid, self._gone = Postings(), [], 0
        there = self._until.values[: self._count] != GONE
        self._free = np.flatnonzero(~there).tolist()
        self._forget_meanings(self._meaning.values[: self._count][there])
        self._forget_terms()
        self._forget_tenants(np.flatnonzero(there))
        cost = cache(self._cost)
        for slot in np.flatnonzero(there).tolist():
            self._lay(slot, cost)
        self._lay_at, self._met = 2 * self._records, 0

    def _forget_meanings(self, used: I64) -> None:
        """All but these. Their numbers are given again."""
        known = np.fromiter(self._meanings.values(), np.int64, len(self._meanings))
        for meaning in np.setdiff1d(known, used).tolist():
            del self._meanings[self._texts[meaning]]
            for term in _terms_in(self._needs[meaning]):
                self._uses[term] -= 1
            self._texts[meaning], self._needs[meaning] = "", ()
            self._checks.pop(meaning, None)
            self._free_meanings.append(meaning)

    def _forget_terms(self) -> None:
        """Those that no query needs, once they are more than the others, which are numbered anew."""
        self._uses += [0] * (self._vocabulary.count - len(self._uses))  # a query that was refused had terms, too
        used = np.array(self._uses, np.int64) > 0
        if 2 * int(used.sum()) >= len(used):
            return
        numbers = np.where(used, np.cumsum(used) - 1, NONE)
        self._seen.reach(len(used))
        seen = self._seen.values[: len(used)][used]
        self._seen = _Growing(0)
        self._seen.reach(len(seen))
        self._seen.values[: len(seen)] = seen
        self._uses = [each for each in self._uses if each]
        self._needs = [tuple(_renumbered(need, numbers) for need in needs) for needs in self._needs]
        self._vocabulary = self._vocabulary.only(numbers)

    def _forget_tenants(self, slots: I64) -> None:
        """All but those of these slots."""
        used, self._tenant.values[slots] = np.unique(self._tenant.values[slots], return_inverse=True)
        numbers = {number: at for at, number in enumerate(used.tolist())}
        self._tenants = {name: numbers[each] for name, each in self._tenants.items() if each in numbers}

    def laid(self, slot: int) -> Laid:
        ways = _laid(self._needs[int(self._meaning.values[slot])], self._cost)
        under = tuple(dict.fromkeys(term for terms, _ in ways for term in terms))
        names = {
            number: _said(scope, key)
            for scope, known in self._vocabulary.scopes.items()
            for key, number in known.items()
            if number in under
        }
        seen = tuple(int(self._seen.values[term]) for term in under)
        return Laid(tuple(names[term] for term in under), seen, self._records)

    # -- records ---------------------------------------------------------------------------------------

    def hits(
        self, batch: Batch, arrived_us: I64, tenants: Iterable[str | None] | None = None, *, learn: bool = True
    ) -> Hits:
        """Which queries find which records. `tenants`: whose queries each record is for; None: all have none. `learn`:
        from these records, too, how often terms occur."""
        is_shown = self._met > 2 * self._count and self._records >= self._lay_at
        if is_shown or self._gone > max(GONE_MIN, len(self) - self._gone):
            self._lay_anew()
        self._lay_new()
        rows, terms = batch.terms(self._vocabulary)
        whose = np.zeros(batch.rows, np.int64) + self._tenants.get(None, NONE)
        if tenants is not None:
            whose = np.fromiter((self._tenants.get(each, NONE) for each in tenants), np.int64, batch.rows)
        if learn:
            self._count_in(batch.rows, terms)
        known = np.flatnonzero(whose[rows] != NONE)
        rows, terms = rows[known], terms[known]
        filter_ = _Filter(rows, terms)
        found: list[tuple[I64, I64]] = []
        met = 0
        for row, slot, others in self._postings.candidates((whose[rows] << 40) | terms, rows, CANDIDATES_MAX):
            met += len(row)
            arrived = arrived_us[row]
            counts = (self._since.values[slot] < arrived) & (arrived <= self._until.values[slot])
            if not counts.all():
                row, slot, others = row[counts], slot[counts], others[counts]
            for place in range(OTHERS):
                if not len(row):
                    break
                other = others[:, place]
                passes = (other == NONE) | filter_.may_have(row, other.astype(np.int64))
                row, slot, others = row[passes], slot[passes], others[passes]
            if len(row):
                found.append((row, slot))
        self._met += met
        return self._checked(batch, found, met)

    def learn(self, batch: Batch) -> None:
        """How often terms occur, of records that are not searched; queries are laid out by it at once."""
        self._count_in(batch.rows, batch.terms(self._vocabulary)[1])
        self._lay_anew()

    def _count_in(self, records: int, terms: I64) -> None:
        self._seen.reach(self._vocabulary.count)
        self._seen.values[: self._vocabulary.count] += np.bincount(terms, minlength=self._vocabulary.count)
        self._records += records
        if self._records > RECORDS_MAX:  # what was long ago counts less
            self._seen.values >>= 1
            self._records, self._lay_at = self._records >> 1, self._lay_at >> 1

    def _checked(self, batch: Batch, found: list[tuple[I64, I64]], met: int) -> Hits:
        if not found:
            return Hits(np.zeros(0, np.int64), np.zeros(0, np.int64), met)
        pairs = distinct(np.concatenate([row * self._count + slot for row, slot in found]))
        row = pairs // self._count
        slot = pairs - row * self._count
        meaning = self._meaning.values[slot]
        said = row * len(self._texts) + meaning
        asked = distinct(said)  # who mean the same are asked once
        of = np.searchsorted(asked, said)
        fits, at, document = np.zeros(len(asked), np.bool_), NONE, batch.document(0)
        for number, key in enumerate(asked.tolist()):
            place, each = divmod(key, len(self._texts))
            if place != at:
                at, document = place, batch.document(place)
            fits[number] = self._check(each)(document)
        keep = fits[of]
        return Hits(row[keep], slot[keep], met)


class _Filter:
    """Which record has which terms: never wrong when it says no, and seldom when it says yes."""

    def __init__(self, rows: I64, terms: I64) -> None:
        bits = max(16, int(len(rows) * 16).bit_length())
        self._shift = np.uint64(64 - bits)
        self._has = np.zeros(1 << bits, np.bool_)
        self._has[self._places(rows, terms)] = True

    def may_have(self, rows: I64, terms: I64) -> npt.NDArray[np.bool_]:
        return self._has[self._places(rows, terms)]

    def _places(self, rows: I64, terms: I64) -> npt.NDArray[np.uint64]:
        return (rows.astype(np.uint64) * A ^ terms.astype(np.uint64) * B) * A >> self._shift


class _Growing:
    """An array that grows as it is written to."""

    def __init__(self, default: int) -> None:
        self._default = default
        self.values: I64 = np.full(1_024, default, np.int64)

    def reach(self, size: int) -> None:
        if size > len(self.values):
            more = np.full(max(size, 2 * len(self.values)) - len(self.values), self._default, np.int64)
            self.values = np.concatenate([self.values, more])

    def put(self, at: int, value: int) -> None:
        if at >= len(self.values):
            self.reach(at + 1)
        self.values[at] = value


def _laid(needs: Sequence[Need], cost: Callable[[int], float]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Under which terms a query lies, each with others that a record must have besides. Every record that fits has the
    terms of one of the ways, so it lies under the rarest of each."""
    out = []
    for way in _ways(needs):
        best = min(way, key=lambda need: cost(need) if isinstance(need, int) else sum(map(cost, need)))
        under = (best,) if isinstance(best, int) else best
        others = [need for need in way if isinstance(need, int) and need != best]
        if len(others) > 1:
            others.sort(key=cost)
        out.append((under, (*others, *NO_OTHERS)[:OTHERS]))
    return out


NO_OTHERS = (NONE,) * OTHERS
Way = list[int | tuple[int, ...]]


def _ways(needs: Sequence[Need]) -> list[Way]:
    """The needs without alternatives among them: each way is one choice. Alternatives beyond `WAYS_MAX` are left out,
    if there is anything else that is needed: what is found is checked."""
    ways: list[Way] = [[need for need in needs if not isinstance(need, list)]]
    for need in sorted((each for each in needs if isinstance(each, list)), key=len):
        choices = [way for some in need for way in _ways(some)]
        if len(ways) * len(choices) <= WAYS_MAX or not ways[0]:
            ways = [[*way, *(each for each in choice if each not in way)] for way in ways for choice in choices]
    return ways


def _terms_in(needs: Sequence[Need]) -> Iterable[int]:
    for need in needs:
        if isinstance(need, int):
            yield need
        elif isinstance(need, tuple):
            yield from need
        else:
            for some in need:
                yield from _terms_in(some)


def _renumbered(need: Need, numbers: I64) -> Need:
    if isinstance(need, int):
        return int(numbers[need])
    if isinstance(need, tuple):
        return tuple(numbers[list(need)].tolist())
    return [[_renumbered(each, numbers) for each in some] for some in need]


def _said(scope: tuple[str, str | None, int], key: object) -> str:
    kind, field, bits = scope
    of = "" if field is None else f"{field}:"
    if kind == "cell":
        return f"{of}a range of values ({bits} bits wide)"
    return f"{of}{key}{'*' if 'beginning' in kind else ''}"
