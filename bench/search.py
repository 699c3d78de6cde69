"""Search on streams: stored queries asked of articles. Processor time of the operator alone, on one core: words are
found, looked up, checked and marked, and rows are made of what is found. No JVM and no store beside it.

Articles have a title of 8 and a body of 32 words, of 50,000 words that are as frequent as words are (Zipf). Queries are
of words from the 200th on, of ten kinds: words, phrases, columns, ranges, alternatives, prefixes and exclusions. Those
that do not match are of words that no article has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa

from bench.settings import Run
from bench.table import Measured, Row, of_rates
from headrace.operators.contract import InputTimes
from headrace.operators.joins.rows import ID
from headrace.operators.stored.search import FACTS, QUERIES, Search
from headrace.schema import parse_ddl
from headrace.testing import MemoryTables

ARTICLES = parse_ddl("title string, body string, sku string, price double")
STORED = parse_ddl("query string, text string")
BATCH, WORDS, RARE = 8_192, 50_000, 200
INSTANT = pa.timestamp("us", tz="UTC")
TIMES = {FACTS: InputTimes(None, None), QUERIES: InputTimes(None, None)}


def search(run: Run) -> Iterator[Row]:
    rows = run.size(80_000, BATCH)
    most, few = run.size(100_000, 1_000), run.size(10_000, 100)
    articles = _articles(rows)
    for count in (few, most):
        rates, hits, load = _measured(_queries(count), articles, run.repeat)
        target = 10_000.0 if count == 100_000 else None
        what = f"{count:,} stored queries, {hits:.2g} hits an article"
        yield Row("search", what, "articles/s", rates, target)
        yield Row("search", f"{count:,} queries are stored", "queries/s", load)
    base = _measured(_strange(few), articles, run.repeat)[0]
    more = _measured(_strange(most), articles, run.repeat)[0]
    assert base.median is not None and more.median is not None
    ratio = Measured(base.median / more.median)
    what = f"time for an article, {most:,} queries that do not match : {few:,}"
    yield Row("search", what, "ratio", ratio, 1.5, smaller_is_better=True)
    many = run.size(1_000_000, 2_000)
    rates, hits, load = _measured(_queries(many), articles, 1)
    yield Row("search", f"{many:,} stored queries, {hits:.2g} hits an article", "articles/s", rates)
    yield Row("search", f"{many:,} queries are stored", "queries/s", load)


@cache
def _words() -> list[str]:
    random, letters = np.random.default_rng(1), np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return ["".join(random.choice(letters, size)) for size in random.integers(3, 10, WORDS)]


def _articles(count: int) -> pa.Table:
    random, words = np.random.default_rng(2), _words()
    often = 1 / np.arange(1, WORDS + 1)

    def texts(size: int) -> list[str]:
        chosen = random.choice(WORDS, (count, size), p=often / often.sum())
        return [" ".join(words[number] for number in row) for row in chosen]

    number = np.arange(count)
    at = pa.array(number + 1_000_000).cast(INSTANT)
    return pa.table(
        {
            "title": texts(8),
            "body": texts(32),
            "sku": [f"A{each % 1_000}" for each in number],
            "price": random.uniform(0, 1_000, count),
            "_partition": pa.array(np.zeros(count), pa.int32()),
            "_offset": pa.array(number),
            "_arrived_at": at,
            "_progress": at,
            ID: [f"articles/0/{each:016}" for each in number],
        }
    )


def _queries(count: int) -> list[str]:
    random, words = np.random.default_rng(3), _words()
    chosen = (RARE * (WORDS / RARE) ** random.random((count, 3))).astype(np.int64).clip(0, WORDS - 1)
    return [_query(number, *(words[each] for each in row)) for number, row in enumerate(chosen)]


def _query(number: int, one: str, two: str, three: str) -> str:
    kinds = (
        f"{one} AND {two}",
        f"{one} {two} {three}",
        f'"{one} {two}"',
        f"title:{one} AND price < {number % 1_000}",
        f"({one} OR {two}) AND {three}",
        f"{one} {two} NOT {three}",
        f"{one} AND title:{two}",
        f"{one} AND sku:A{number % 1_000}",
        f'"{one} {two}" OR "{two} {three}"',
        f"{one[:5]}* AND {two} AND {three}",
    )
    return kinds[number % len(kinds)]


def _strange(count: int) -> list[str]:
    return [_query(number, f"x{number}x", f"y{number % 5_000}y", f"z{number % 500}z") for number in range(count)]


def _measured(queries: list[str], articles: pa.Table, repeat: int) -> tuple[Measured, float, Measured]:
    """Articles a second, hits an article, and queries stored a second."""
    operator = Search(ARTICLES, STORED, ("title", "body"), None)
    tables = MemoryTables(*operator.tables)
    began = time.process_time()
    step = operator.step({QUERIES: _stored(queries)}, tables.state(), TIMES, changes=True)
    tables.apply(step.writes)
    operator.reset()
    operator.step({}, tables.state(), TIMES, changes=True)  # as after a restart
    loads = 2 * len(queries) / (time.process_time() - began)
    state, rates, hits = tables.state(), [], 0
    for _ in range(repeat + 1):
        began, hits = time.process_time(), 0
        for first in range(0, articles.num_rows, BATCH):
            some = articles.slice(first, BATCH)
            made = operator.step({FACTS: some}, state, TIMES, changes=True).changes
            hits += 0 if made is None else made.num_rows
        rates.append(articles.num_rows / (time.process_time() - began))
    return of_rates(rates[1:]), hits / articles.num_rows, Measured(loads)


def _stored(queries: list[str]) -> pa.Table:
    number = np.arange(len(queries))
    at = pa.array(number).cast(INSTANT)
    return pa.table(
        {
            "query": [f"q{each}" for each in number],
            "text": queries,
            "_op": pa.repeat("upsert", len(queries)),
            "_partition": pa.array(np.zeros(len(queries)), pa.int32()),
            "_offset": pa.array(number),
            "_arrived_at": at,
            "_progress": at,
            ID: [f"queries/0/{each:016}" for each in number],
        }
    )
