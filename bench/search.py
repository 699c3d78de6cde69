"""Search on streams: stored queries asked of articles. Processor time of the operator alone, on one core: words are
found, looked up, checked and marked, and rows are made of what is found. No JVM and no store beside it.

Articles have a title of 8 and a body of 32 words, of 50,000 words that are as frequent as words are (Zipf). Queries are
of words from the 200th on, of ten kinds: words, phrases, columns, ranges, alternatives, prefixes and exclusions. Those
that do not match are of words that no article has.

A restart is a step of an operator that knows nothing, over the versions that the step before wrote: every query is read
and indexed again. The memory of a query is what the process has grown by while it was stored, with what the step wrote.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.settings import Run
from bench.table import Measured, Row, of_rates
from headrace.operators.contract import InputTimes
from headrace.operators.joins.rows import ID
from headrace.operators.stored.search import FACTS, QUERIES, VERSIONS, Search
from headrace.schema import parse_ddl
from headrace.testing import MemoryTables
from headrace.views.keyed import State

ARTICLES = parse_ddl("title string, body string, sku string, price double")
STORED = parse_ddl("query string, text string")
BATCH, WORDS, RARE = 8_192, 50_000, 200
INSTANT = pa.timestamp("us", tz="UTC")
TIMES = {FACTS: InputTimes(None, None), QUERIES: InputTimes(None, None)}


def search(run: Run) -> Iterator[Row]:
    articles = _articles(run.size(80_000, BATCH))
    many, most, few = run.size(1_000_000, 2_000), run.size(100_000, 1_000), run.size(10_000, 100)
    found = _measured(_queries(many), articles.slice(0, BATCH), 3)  # first: memory that others left would hide its own
    yield from _rows(found, None)
    yield Row("search", f"memory of a query, {many:,} stored", "bytes", found.bytes, smaller_is_better=True)
    for count in (few, most):
        yield from _rows(_measured(_queries(count), articles, run.repeat), 10_000.0 if count == 100_000 else None)
    base = _measured(_strange(few), articles, run.repeat).rates
    more = _measured(_strange(most), articles, run.repeat).rates
    assert base.median is not None and more.median is not None
    ratio = Measured(base.median / more.median)
    what = f"time for an article, {most:,} queries that do not match : {few:,}"
    yield Row("search", what, "ratio", ratio, 1.5, smaller_is_better=True)


@dataclass(frozen=True)
class Found:
    """`rates`: articles a second; `hits` of an article; `stored` and `again`, after a restart: queries a second."""

    queries: int
    rates: Measured
    hits: float
    stored: Measured
    again: Measured
    bytes: Measured


def _rows(found: Found, target: float | None) -> Iterator[Row]:
    what = f"{found.queries:,} stored queries, {found.hits:.2g} hits an article"
    yield Row("search", what, "articles/s", found.rates, target)
    yield Row("search", f"{found.queries:,} queries are stored", "queries/s", found.stored)
    yield Row("search", f"{found.queries:,} queries are there again after a restart", "queries/s", found.again)


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


def _measured(queries: list[str], articles: pa.Table, repeat: int) -> Found:
    operator, stored = Search(ARTICLES, STORED, ("title", "body"), None), _stored(queries)
    nothing = MemoryTables(*operator.tables).state()
    before, began = _bytes(), time.process_time()
    kept = Kept(operator.step({QUERIES: stored}, nothing, TIMES, changes=True).writes.puts[VERSIONS])
    rates = [len(queries) / (time.process_time() - began)]
    size = (_bytes() - before) / len(queries)
    operator.reset()
    began = time.process_time()
    operator.step({}, kept, TIMES, changes=True)
    rates.append(len(queries) / (time.process_time() - began))
    found, hits = [], 0
    for _ in range(repeat + 1):
        began, hits = time.process_time(), 0
        for first in range(0, articles.num_rows, BATCH):
            made = operator.step({FACTS: articles.slice(first, BATCH)}, kept, TIMES, changes=True).changes
            hits += 0 if made is None else made.num_rows
        found.append(articles.num_rows / (time.process_time() - began))
    per_article = hits / articles.num_rows
    return Found(len(queries), of_rates(found[1:]), per_article, *map(Measured, rates), Measured(size))


class Kept(State):
    """The versions of queries, of which nobody asks for some."""

    def __init__(self, versions: pa.Table) -> None:
        self._versions = versions

    def scan(self, *_: object, **__: object) -> pa.Table:
        return self._versions


def _bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
