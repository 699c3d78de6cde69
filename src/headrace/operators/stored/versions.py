"""The versions of what is stored, queries and rules: which of them counts when. Owns the order of versions, and the
index of queries. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import InvalidSearch
from headrace.search.fields import Fields
from headrace.search.index import FOREVER, QueryIndex

__all__ = ["FOREVER", "StoredQueries", "Version", "counts_from_to"]

Key = tuple[str, ...]
BEGINNING = -(2**63)
NONE = -1


@dataclass(frozen=True, slots=True)
class Version:
    """`key`: tenant, if there are tenants, and query; or rule. `place`: when it arrived, in microseconds, partition and
    offset. `text`: None where the query is removed."""

    key: Key
    place: tuple[int, int, int]
    text: str | None

    @property
    def at(self) -> tuple[Key, tuple[int, int, int]]:
        return self.key, self.place

    @property
    def name(self) -> str:
        """As readers see it."""
        return f"{self.place[1]}:{self.place[2]}"

    def version_id(self, topic: str) -> str:
        return f"{topic}/{self.place[1]}/{self.place[2]:016}"


def counts_from_to(arrived_us: Sequence[int]) -> list[tuple[int, int]]:
    """For which arrivals each version of one key counts: later than the first, up to the second. `arrived_us`: of the
    versions, in order."""
    return list(zip(arrived_us, [*arrived_us[1:], FOREVER], strict=True))


class StoredQueries:
    def __init__(self, fields: Fields, as_of_us: int | None, topic: str = "") -> None:
        self.index, self.topic = QueryIndex(fields), topic
        self.versions: list[Version] = []
        """By slot of the index: the last that had it."""
        self._as_of_us = BEGINNING if as_of_us is None else as_of_us
        self._known: dict[Key, list[tuple[tuple[int, int, int], int, Version]]] = {}
        """By query: place, slot and version, in order of places. No slot: it is removed, or wrong."""
        self._passing: set[Key] = set()
        """Queries with versions that have ended."""
        self._touched: dict[Key, None] = {}

    def begin(self) -> None:
        """A step begins: what it adds is not in the state yet."""
        self._touched = {}

    def touched(self) -> list[Key]:
        """The queries of which the last step wrote versions."""
        return [*self._touched]

    def replace(self, keys: Iterable[Key], versions: Iterable[Version]) -> None:
        """What the state has of these queries."""
        wanted: dict[Key, list[Version]] = {key: [] for key in keys}
        for version in versions:
            wanted[version.key].append(version)
        for key, some in wanted.items():
            stays = {version.place for version in some}
            for place, slot, version in [*self._known.get(key, [])]:
                if place not in stays:
                    self._remove(version, slot)
            there = {place for place, _, _ in self._known.get(key, [])}
            self.add([version for version in some if version.place not in there])

    def add(self, versions: Sequence[Version]) -> dict[tuple[int, int], InvalidSearch]:
        """By partition and offset, those that are no queries over these columns."""
        refused: dict[tuple[int, int], InvalidSearch] = {}
        for version in versions:
            known = self._known.setdefault(version.key, [])
            self._touched[version.key] = None
            if any(place == version.place for place, _, _ in known):
                continue
            slot = NONE
            if version.text is not None:
                try:
                    whose = version.key[0] if len(version.key) > 1 else None
                    slot = self.index.add(version.text, BEGINNING, FOREVER, whose)
                    self.versions[slot : slot + 1] = [version]
                except InvalidSearch as error:
                    error.query = version.key[-1]
                    refused[version.place[1:]] = error
            bisect.insort(known, (version.place, slot, version), key=lambda each: each[0])
            self._settle(version.key)
        return refused

    def _settle(self, key: Key) -> None:
        """Says of each version of the query for which arrivals it counts."""
        known = self._known[key]
        counts = counts_from_to([place[0] for place, _, _ in known])
        for (_, slot, _), (since_us, until_us) in zip(known, counts, strict=True):
            if slot != NONE:
                since_us = BEGINNING if since_us <= self._as_of_us else since_us
                ended = until_us <= self._as_of_us  # it counts for no record, and is not forgotten
                self.index.count_for(slot, FOREVER if ended else since_us, until_us)
        if len(known) > 1 or known[-1][2].text is None:
            self._passing.add(key)

    def forget(self, needed_from_us: int | None) -> list[Version]:
        """The versions that no record to come needs: it arrives at `needed_from_us` or later. They stay here until the
        state does not have them any more."""
        if needed_from_us is None:
            return []
        out = []
        for key in [*self._passing]:
            known = self._known.get(key)
            if known is None or (len(known) == 1 and known[0][2].text is not None):
                self._passing.discard(key)
                continue
            for at, (_, _, version) in enumerate(known):
                last = at + 1 == len(known)
                ends_us = known[at][0][0] if last else known[at + 1][0][0]
                if ends_us < needed_from_us and (not last or version.text is None):
                    out.append(version)
                    self._touched[key] = None
        return out

    def _remove(self, version: Version, slot: int) -> None:
        known = self._known[version.key]
        known[:] = [each for each in known if each[0] != version.place]
        if slot != NONE:
            self.index.forget(slot)
        if known:
            self._settle(version.key)
        else:
            del self._known[version.key]
