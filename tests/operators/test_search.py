"""Search on streams: the contract, and a model over all records, for any cut."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import InvalidArgument, UnknownColumn
from headrace.operators.contract import InputTimes, Operator
from headrace.operators.joins.rows import ID
from headrace.operators.stored.search import FACTS, QUERIES, Search
from headrace.operators.stored.version_rows import EVERY, VERSIONS
from headrace.operators.stored.versions import StoredQueries, Version
from headrace.schema import parse_ddl
from headrace.search.batch import Batch
from headrace.search.fields import fields_of
from headrace.testing import MemoryTables, OperatorContract
from headrace.testing.view_contract import INSTANT, SECOND, T0

ARTICLES = parse_ddl("title string, whose string, price double, at timestamp")
STORED = parse_ddl("whose string, query string, text string")
TEXTS = ["heat", "pump", "heat AND pump", '"heat pump" OR sun', "price < 5 heat", "nowhere:1", "NOT heat"]
FITS = {
    "heat": lambda title, _: "heat" in title,
    "pump": lambda title, _: "pump" in title,
    "heat AND pump": lambda title, _: "heat" in title and "pump" in title,
    '"heat pump" OR sun': lambda title, _: "heat pump" in title or "sun" in title,
    "price < 5 heat": lambda title, price: price < 5 and "heat" in title,
}


def operator(**settings: Any) -> Search:
    return Search(ARTICLES, STORED, ("title",), "at", "queries", **{"tenant": "whose", **settings})


def article(dice: random.Random, offset: int, arrived: int) -> dict[str, Any]:
    title = " ".join(dice.choice(["heat", "pump", "sun", "rain"]) for _ in range(3))
    return {
        "title": title,
        "whose": dice.choice(["acme", "umbrella", None]),
        "price": float(dice.randint(0, 9)),
        "at": None,
        **place(offset, arrived, "articles"),
    }


def change(dice: random.Random, offset: int, arrived: int) -> dict[str, Any]:
    op = dice.choice(["upsert", "upsert", "delete"])
    text = dice.choice(TEXTS) if op == "upsert" else None
    whose, query = dice.choice(["acme", "umbrella"]), dice.choice("abc")
    return {"whose": whose, "query": query, "text": text, "_op": op, **place(offset, arrived, "queries")}


def place(offset: int, arrived: int, topic: str) -> dict[str, Any]:
    at = T0 + arrived * SECOND
    return {
        "_partition": 0,
        "_offset": offset,
        "_arrived_at": at,
        "_progress": at,
        ID: f"{topic}/0/{offset:016}",
    }


def of(schema: pa.Schema, rows: list[dict[str, Any]], *more: tuple[str, pa.DataType]) -> pa.Table:
    own = [("_partition", pa.int32()), ("_offset", pa.int64()), ("_arrived_at", INSTANT), ("_progress", INSTANT)]
    return pa.Table.from_pylist(rows, pa.schema([*schema, *more, *own, (ID, pa.string())]))


def rows_of(articles: list[dict[str, Any]], changes: list[dict[str, Any]]) -> Mapping[str, pa.Table]:
    out = {FACTS: of(ARTICLES, articles)} if articles else {}
    return {**out, QUERIES: of(STORED, changes, ("_op", pa.string()))} if changes else out


class TestSearch(OperatorContract):
    """The queries of a batch have arrived with its records, or before."""

    def operator(self) -> Operator:
        return operator()

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        """All records, of queries too, that arrive at one time: those of one step count for each other's."""
        if number % 2 == 0:
            return rows_of([], [change(dice, 100 * number + at, 10 * number) for at in range(8)])
        return rows_of([article(dice, 100 * number + at, 10 * number + at) for at in range(12)], [])


def hits(
    articles: list[dict[str, Any]], changes: list[dict[str, Any]], as_of: int | None = None
) -> set[tuple[str, str]]:
    """Article and query, with its version, by brute force."""
    found = set()
    for fact in articles:
        latest: dict[tuple[str, str], dict[str, Any]] = {}
        for each in changes:
            by_then = as_of is not None and each["_arrived_at"] <= T0 + as_of * SECOND
            if each["_arrived_at"] < fact["_arrived_at"] or by_then:
                latest[each["whose"], each["query"]] = each
        for (whose, query), each in latest.items():
            fits = FITS.get(each["text"] or "")
            if fits and whose == fact["whose"] and fits(fact["title"], fact["price"]):
                found.add((fact[ID], f"{query}@0:{each['_offset']}"))
    return found


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("as_of", [None, 20])
def test_any_cut_finds_what_brute_force_finds(number: int, as_of: int | None) -> None:
    """Queries are read to their end before the records; how far they are ahead makes no difference, nor what is
    forgotten, nor a restart."""
    dice = random.Random(number)
    articles, changes = [], []
    for arrived in range(60):
        if dice.random() < 0.5:
            changes.append(change(dice, len(changes), arrived))
        if dice.random() < 0.7:
            articles.append(article(dice, len(articles), arrived))
    tables, made, searching = MemoryTables(*operator().tables), set(), operator(as_of_us=as_of and T0 + as_of * SECOND)
    read = told = 0
    if as_of is not None:
        read = sum(each["_arrived_at"] <= T0 + as_of * SECOND for each in changes)
        step = searching.step(rows_of([], changes[:read]), tables.state(), times(), changes=True)
        tables.apply(step.writes)
    while told < len(articles):
        some = articles[told : told + dice.randint(0, 5)]
        told += len(some)
        last = some[-1]["_arrived_at"] if some else T0
        least = sum(each["_arrived_at"] < last for each in changes)
        more = changes[read : max(read, dice.choice([least, least + 3, len(changes)]))]
        read += len(more)
        following = articles[told]["_arrived_at"] if told < len(articles) else None
        batch, now = rows_of(some, more), times(following, read == len(changes))
        if dice.random() < 0.3:
            searching.step(batch, tables.state(), now, changes=True)  # never committed
        if dice.random() < 0.3:
            searching.reset()
        step = searching.step(batch, tables.state(), now, changes=True)
        tables.apply(step.writes)
        made |= {(row[ID].split("|")[0], f"{row['query']}@{row['version']}") for row in step.changes.to_pylist()}
        refused = [] if step.refused is None else step.refused["text"].to_pylist()
        assert refused == [each["text"] for each in more if each["text"] in TEXTS[-2:]]
    assert made == hits(articles, changes, as_of)


def times(arrives: int | None = None, read: bool = False) -> dict[str, InputTimes]:
    facts = InputTimes(None, None, arrived_us=arrives)
    return {FACTS: facts, QUERIES: InputTimes(None, 10**18 if read else None)}


def test_versions_that_no_record_needs_go() -> None:
    dice = random.Random(1)
    changes = [
        {**change(dice, at, at), "whose": "acme", "query": "a", "text": "heat", "_op": "upsert"} for at in range(5)
    ]
    changes.append({**changes[-1], **place(5, 5, "queries"), "text": None, "_op": "delete"})
    tables, searching = MemoryTables(*operator().tables), operator()
    tables.apply(searching.step(rows_of([], changes), tables.state(), times(), changes=True).writes)
    left = []
    for arrives in (0, 3, 5, 6):
        now = times(T0 + arrives * SECOND, True)
        tables.apply(searching.step({}, tables.state(), now, changes=True).writes)
        left.append(tables.state().scan(VERSIONS, EVERY).num_rows)
    assert left == [6, 4, 2, 0]  # a version is needed until the next one has arrived before all that comes


def test_a_record_that_is_taken_back_takes_its_hits_with_it() -> None:
    dice, searching = random.Random(1), operator()
    tables = MemoryTables(*searching.tables)
    stored = {**change(dice, 0, 0), "whose": "acme", "query": "a", "text": "heat", "_op": "upsert"}
    fact = {**article(dice, 0, 1), "title": "heat", "whose": "acme"}
    tables.apply(searching.step(rows_of([], [stored]), tables.state(), times(), changes=True).writes)
    rows = []
    for op in "+-":
        batch = {FACTS: of(ARTICLES, [fact]).append_column("op", pa.array([op]))}
        step = searching.step(batch, tables.state(), times(), changes=True)
        tables.apply(step.writes)
        rows += step.changes.to_pylist()
    assert [row.pop("op") for row in rows] == ["+", "-"]
    assert rows[0] == rows[1]


def test_columns_that_do_not_fit_are_refused() -> None:
    for settings, error, why in [
        ({"text": ("body",)}, UnknownColumn, "body"),
        ({"text": ("price",)}, InvalidArgument, "must be a string"),
        ({"tenant": "price"}, InvalidArgument, "must be a string"),
    ]:
        with pytest.raises(error, match=why):
            Search(**{"facts": ARTICLES, "queries": STORED, "text": ("title",), "time": "at", **settings})
    with pytest.raises(InvalidArgument, match="Rename"):
        Search(ARTICLES.append(pa.field("version", pa.string())), STORED, ("title",), "at")


def test_a_version_that_ended_before_as_of_keeps_its_slot() -> None:
    """A query that is put later is not taken for it."""
    stored = StoredQueries(fields_of(ARTICLES, ("title",)), as_of_us=100)
    first, second = (Version(("a",), (at, 0, at), "heat") for at in (10, 20))
    stored.add([first, second])
    batch = Batch(
        pa.Table.from_pylist([{"title": "heat pump", "whose": None, "price": 1.0, "at": None}], ARTICLES),
        stored.index.fields,
    )
    stored.index.learn(batch)  # which lays queries out anew
    later = Version(("b",), (30, 0, 30), "pump")
    stored.add([later])
    stored.replace([("a",)], [second])
    found = stored.index.hits(batch, np.full(1, 200))
    assert {stored.versions[slot] for slot in found.slots.tolist()} == {second, later}
