"""Every program in examples/nexmark gives what the query says over the same events, by an independent engine: DuckDB,
with SQL close to the published one. One load, one session, drained in several cuts."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from examples.nexmark import events as nexmark
from headrace import app as apps

PROGRAMS = Path(__file__).parents[2] / "examples" / "nexmark"
COUNT, RATE = 20_000, 200  # 100 seconds, of which 46 in 50 are bids
EUROS = "cast(0.908 * price as decimal(23, 3))"
RANKS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}
BIDS = ", ".join(f"count(*) filter (where {price}) as {rank}_bids" for rank, price in RANKS.items())
DISTINCT = ", ".join(
    f"count(distinct {column}) filter (where {price}) as {rank}_{column}s"
    for column in ("bidder", "auction")
    for rank, price in RANKS.items()
)
DAY = "time_bucket(interval 1 day, dateTime)"
SECONDS = "time_bucket(interval 10 seconds, {})"
WHILE_OPEN = "auction join bid on auction.id = bid.auction and bid.dateTime between auction.dateTime and expires"
FINAL = f"select id, seller, category, expires, max(price) as final from {WHILE_OPEN} group by all"

ANSWERS = {
    "q0": "select auction, bidder, price, dateTime, extra from bid",
    "q1": f"select auction, bidder, {EUROS} as price, dateTime, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select name, city, state, auction.id from auction join person on auction.seller = person.id
        where category = 10 and state in ('OR', 'ID', 'CA')""",
    "q4": f"select category, avg(final) as price from ({FINAL}) group by category",
    "q5": """
        with hops as (
            select auction, unnest(range(5)) as hop, time_bucket(interval 2 seconds, dateTime) as pane from bid
        ), counted as (
            select pane - hop * interval 2 seconds as window_start, auction, count(*) as num from hops group by all
        )
        select window_start, auction, num from counted
        where num >= (select max(num) from counted as others where others.window_start = counted.window_start)""",
    "q6": f"""
        select seller, avg(final) as price from (
            select *, row_number() over (partition by seller order by expires desc, final desc) as place from ({FINAL})
        ) where place <= 10 group by seller""",
    "q7": f"""
        select window_start, auction, bidder, price, dateTime from (
            select *, {SECONDS.format("dateTime")} as window_start,
                row_number() over (
                    partition by {SECONDS.format("dateTime")}
                    order by price desc, dateTime desc, auction desc, bidder desc
                ) as place
            from bid
        ) where place = 1""",
    "q8": f"""
        select distinct person.id, name, {SECONDS.format("person.dateTime")} as window_start
        from person join auction on person.id = seller
            and {SECONDS.format("person.dateTime")} = {SECONDS.format("auction.dateTime")}""",
    "q9": f"""
        select id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra, bidder,
            price, dateTime_bid, extra_bid
        from (
            select auction.*, bidder, price, bid.dateTime as dateTime_bid, bid.extra as extra_bid,
                row_number() over (
                    partition by id order by price desc, bid.dateTime, bidder desc, bid.extra desc
                ) as place
            from {WHILE_OPEN}
        ) where place = 1""",
    "q11": """
        with steps as (
            select *, coalesce(dateTime - lag(dateTime) over (partition by bidder order by dateTime), interval 1 day)
                > interval 10 seconds as begins
            from bid
        ), sessions as (
            select *, sum(begins::int) over (partition by bidder order by dateTime) as session from steps
        )
        select bidder, min(dateTime) as window_start, max(dateTime) as window_end, count(*) as bids
        from sessions group by bidder, session""",
    "q12": f"select bidder, {SECONDS.format('_arrived_at')} as window_start, count(*) as bids from bid group by all",
    "q13": """
        select auction, bidder, price, dateTime, value from bid join side_input on auction % 10000 = key""",
    "q14": f"""
        select auction, bidder, {EUROS} as price,
            case when hour(dateTime) between 8 and 18 then 'dayTime'
                 when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, len(extra) - len(replace(extra, 'c', '')) as c_counts
        from bid where {EUROS} > 1000000 and {EUROS} < 50000000""",
    "q15": f"select {DAY} as window_start, {BIDS}, {DISTINCT} from bid group by all",
    "q16": f"""
        select channel, {DAY} as window_start, max(strftime(dateTime, '%H:%M')) as minute, {BIDS}, {DISTINCT}
        from bid group by all""",
    "q17": f"""
        select auction, {DAY} as window_start, {BIDS}, min(price) as min_price, max(price) as max_price,
            avg(price) as avg_price, sum(price)::bigint as sum_price
        from bid group by all""",
    "q18": """
        select auction, bidder, price, channel, url, dateTime, extra from (
            select *, row_number() over (partition by bidder, auction order by dateTime desc, _offset desc) as place
            from bid
        ) where place <= 1""",
    "q19": """
        select auction, bidder, price, channel, url, dateTime, extra, place as rank_number from (
            select *, row_number() over (
                partition by auction order by price desc, dateTime desc, bidder desc, channel desc, url desc, extra desc
            ) as place
            from bid
        ) where place <= 10""",
    "q20": """
        select auction, bidder, price, channel, url, bid.dateTime as dateTime, bid.extra as extra, itemName,
            description, initialBid, reserve, auction.dateTime as dateTime_auction, expires, seller, category,
            auction.extra as extra_auction
        from bid join auction on bid.auction = auction.id where category = 10""",
    "q21": """
        select auction, bidder, price, channel, case
            when lower(channel) = 'apple' then '0' when lower(channel) = 'google' then '1'
            when lower(channel) = 'facebook' then '2' when lower(channel) = 'baidu' then '3'
            else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
        from bid
        where regexp_matches(url, '(&|^)channel_id=') or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
            split_part(url, '/', 6) as dir3
        from bid""",
    "q23": """
        select bidder, price, channel, url, bid.extra as bid_extra, person.id as person_id, name, emailAddress,
            creditCard, city, state, person.extra as person_extra, itemName, description, initialBid, reserve,
            auction.dateTime as dateTime_auction, expires, seller, category, auction.extra as auction_extra
        from bid join person on person.id = bid.bidder join auction on auction.seller = bid.bidder""",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[hr.App, dict[str, Any]]]:
    """All programs in one app, drained."""
    with hr.App("nexmark", home=tmp_path_factory.mktemp("nexmark"), spark=spark) as app:
        programs = {name: runpy.run_path(str(PROGRAMS / f"{name}.py")) for name in ANSWERS}
        for program in programs.values():
            if "load" in program:
                program["load"](app)
        nexmark.load(app, COUNT, rate=RATE, partitions=2)
        results = {name: program["flow"](app) for name, program in programs.items()}
        app.drain(batch_rows=7_000)  # three cuts
        yield app, results


@pytest.fixture(scope="module")
def events(made: tuple[hr.App, dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    app, _ = made
    found = duckdb.connect(":memory:", config={"threads": 1})
    found.execute("set timezone = 'UTC'")
    for name, own in {"person": [], "auction": [], "bid": ["_offset", "_arrived_at"], "side_input": []}.items():
        topic = app.log.topic(name)
        found.register(name, pa.Table.from_batches(topic.batches(columns=[*topic.schema.names, *own])))
    return found


def test_every_program_is_asked_for() -> None:
    assert {path.stem for path in PROGRAMS.glob("q*.py")} == set(ANSWERS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("query", ANSWERS)
def test_it_is_what_the_query_says(
    made: tuple[hr.App, dict[str, Any]], events: duckdb.DuckDBPyConnection, query: str
) -> None:
    result = made[1][query]
    found = result.to_arrow() if isinstance(result, hr.View) else pa.Table.from_batches(result.batches())
    wanted = events.sql(ANSWERS[query])
    columns = ", ".join(wanted.columns)
    events.register("found", found)
    assert wanted.shape[0] == found.num_rows > 0
    assert events.sql(f"select {columns} from found except all ({ANSWERS[query]})").fetchall() == []
    if isinstance(result, hr.View):
        assert not any(result.ledger()["dropped"].to_pylist())


def test_a_program_runs_by_itself(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(apps.overrides, "spark", spark)
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setattr(sys, "argv", ["q11.py", "5000"])
    runpy.run_path(str(PROGRAMS / "q11.py"), run_name="__main__")
    told = capsys.readouterr().out.splitlines()
    sessions = len(next(nexmark.events(5_000)).bid["bidder"].unique())  # half a second: one each
    assert "bidder" in told[0] and told[-1] == f"{sessions} rows of 5000 events"
