"""The index of stored queries against brute force: every query asked of every record."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from headrace.errors import InvalidSearch
from headrace.search.batch import Batch
from headrace.search.bind import bound
from headrace.search.fields import fields_of
from headrace.search.index import FOREVER, QueryIndex
from tests.search.asking import SCHEMA, TEXT, Asked, fits, query, record, table, written

FIELDS = fields_of(SCHEMA, TEXT)


def stored(
    index: QueryIndex, asked: Asked, since: int = 0, until: int = FOREVER, tenant: str | None = None
) -> int | None:
    try:
        return index.add(written(asked), since, until, tenant)
    except InvalidSearch as error:
        if any(why in error.why for why in ("exclude each other", "would find nearly all", "letters")):
            return None
        raise


def agrees(dice: random.Random, queries: int, records: int) -> int:
    """So many hits were found, and were all."""
    index, there = QueryIndex(FIELDS), {}
    for _ in range(queries):
        asked, since, until = query(dice), dice.randint(0, 3), dice.choice([FOREVER, 5])
        tenant = dice.choice(["acme", "umbrella"])
        slot = stored(index, asked, since, until, tenant)
        if slot is None and "exclude" in refusal(asked):
            rows = [record(dice) for _ in range(20)]
            assert not any(fits(asked, row) for row in rows)
        if slot is not None:
            there[slot] = asked, since, until, tenant
    count = 0
    for part in range(3):
        rows = [record(dice) for _ in range(records)]
        arrived = [dice.randint(1, 7) for _ in rows]
        whose = [dice.choice(["acme", "umbrella", "nobody", None]) for _ in rows]
        found = index.hits(Batch(table(rows), FIELDS), np.array(arrived), whose)
        wanted = [
            (at, slot)
            for at, row in enumerate(rows)
            for slot, (asked, since, until, tenant) in sorted(there.items())
            if since < arrived[at] <= until and tenant == whose[at] and fits(asked, row)
        ]
        assert list(zip(found.rows.tolist(), found.slots.tolist(), strict=True)) == wanted
        count += len(wanted)
        if part == 0:
            index.learn(Batch(table(rows), FIELDS))
        for slot in dice.sample(sorted(there), len(there) // 4):
            index.forget(slot)
            del there[slot]
        asked = query(dice)
        if (slot := stored(index, asked, tenant="acme")) is not None:
            there[slot] = asked, 0, FOREVER, "acme"
    return count


def refusal(asked: Asked) -> str:
    with pytest.raises(InvalidSearch) as refused:
        QueryIndex(FIELDS).add(written(asked), 0)
    return refused.value.why


def test_it_finds_what_brute_force_finds(seed: int) -> None:
    dice = random.Random(seed)
    assert sum(agrees(dice, 60, 25) for _ in range(12)) > 100


def test_words_that_were_forgotten_are_looked_up_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.search.batch.WORDS_MAX", 3)
    dice = random.Random(seed)
    assert sum(agrees(dice, 30, 25) for _ in range(4)) > 20


def test_checks_that_were_forgotten_are_made_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.search.index.CHECKS_MAX", 2)
    dice = random.Random(seed)
    assert sum(agrees(dice, 30, 25) for _ in range(4)) > 20


def test_a_word_is_known_by_queries_that_come_later() -> None:
    index = QueryIndex(FIELDS)
    index.add("pump", 0)
    batch = Batch(table([{"title": "heat pump heater", "sku": "A12"}]), FIELDS)
    assert len(index.hits(batch, np.ones(1, np.int64)).rows) == 1
    for text in ("heat", "title:heater", "heat*", "sku:A1*", 'sku:"A12"'):
        index.add(text, 0)
    assert len(index.hits(batch, np.ones(1, np.int64)).rows) == 6


@pytest.mark.soak
def test_it_finds_what_brute_force_finds_for_long(seed: int, soak_seconds: float) -> None:
    dice, until = random.Random(seed), time.monotonic() + soak_seconds
    while time.monotonic() < until:
        agrees(dice, dice.choice([1, 20, 200, 2_000]), dice.choice([1, 30, 300]))


def test_nothing_is_left_of_terms_and_tenants_that_are_gone(seed: int) -> None:
    """Queries come and go, each with words, ranges and a tenant of its own; some stay, and find what they found."""
    dice, index = random.Random(seed), QueryIndex(FIELDS)
    rows = [record(dice) for _ in range(20)]
    batch, arrived = Batch(table(rows), FIELDS), np.ones(20, np.int64)
    asking = [query(dice) for _ in range(60)]
    stay = {slot: asked for asked in asking if (slot := stored(index, asked, tenant="t")) is not None}
    wanted = [(at, slot) for at, row in enumerate(rows) for slot, asked in sorted(stay.items()) if fits(asked, row)]
    terms = 0
    for part in range(6):
        slots = []
        for number in range(1_500 * part, 1_500 * (part + 1)):
            text = f"(title:a{number} OR body:b{number} c{number}*) AND price:[{number} TO {number + 1}]"
            slots.append(index.add(text, 0, tenant=f"of{number}"))
        for slot in slots:
            index.forget(slot)
        found = index.hits(batch, arrived, ["t"] * 20)
        assert list(zip(found.rows.tolist(), found.slots.tolist(), strict=True)) == wanted
        terms = terms or index._vocabulary.count
    assert index._vocabulary.count <= terms < 1_000 and [*index._tenants] == ["t"]
    assert all(index.laid(slot).terms for slot in stay)


def test_a_query_that_is_written_out_means_the_same(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(500):
        try:
            tree = bound(written(query(dice)), FIELDS)
        except InvalidSearch:
            continue
        assert bound(str(tree), FIELDS) == tree


def test_many_queries_that_do_not_match_are_not_looked_at() -> None:
    """The work for a record does not grow with them."""
    met = []
    for count in (100, 10_000):
        index = QueryIndex(FIELDS)
        for number in range(count):
            index.add(f"rare{number} AND the", 0)
        index.add("pump AND the", 0)
        batch = Batch(table([{"title": "the heat pump", "body": "of the house"}] * 50), FIELDS)
        index.learn(batch)
        found = index.hits(batch, np.ones(50, np.int64))
        assert len(found.rows) == 50
        met.append(found.candidates)
    assert met == [50, 50]


def test_ranges_alone_are_looked_up_too() -> None:
    """A price is asked of the ranges around it, of ten thousand."""
    index = QueryIndex(FIELDS)
    for number in range(10_000):
        index.add(f"price:[{number} TO {number + 1}}}", 0)
    batch = Batch(table([{"price": 500.5}, {"price": 9_999.0}, {"price": -1.0}, {"price": None}]), FIELDS)
    found = index.hits(batch, np.ones(4, np.int64))
    assert list(zip(found.rows.tolist(), found.slots.tolist(), strict=True)) == [(0, 500), (1, 9_999)]
    assert found.candidates < 40


def test_queries_that_mean_the_same_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    index = QueryIndex(FIELDS)
    slots = [index.add(text, 0) for text in ("heat AND pump", "(heat) pump", "HEAT AND (heat pump)")]
    check = index._check(0)
    monkeypatch.setattr(index, "_check", lambda meaning: lambda document: asked.append(meaning) or check(document))
    found = index.hits(Batch(table([{"title": "a heat pump"}]), FIELDS), np.ones(1, np.int64))
    assert found.slots.tolist() == slots and asked == [0]


def test_nothing_is_left_of_queries_that_were_forgotten() -> None:
    index = QueryIndex(FIELDS)
    stays = index.add("heat", 0)
    batch = Batch(table([{"title": "heat pump 7"}]), FIELDS)
    for number in range(5_000):
        index.forget(index.add(f"pump AND {number}", 0))
        if number % 100 == 0:
            assert index.hits(batch, np.ones(1, np.int64)).slots.tolist() == [stays]
    again = index.add("pump AND 7", 0)
    assert index.hits(batch, np.ones(1, np.int64)).slots.tolist() == sorted([stays, again])
    assert index.text(again) == "pump AND 7" and len(index._texts) < 1_300 and index._count < 1_300
    assert sum(index._uses) <= 2 * len(index._meanings)


def test_a_slot_is_used_again() -> None:
    index = QueryIndex(FIELDS)
    first = index.add("heat", 0)
    index.forget(first)
    batch = Batch(table([{"title": "heat"}]), FIELDS)
    index.learn(batch)
    again = index.add("pump OR heat", 0)
    assert (again, len(index)) == (first, 1)
    assert index.hits(batch, np.ones(1, np.int64)).slots.tolist() == [again]
