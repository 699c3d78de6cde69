"""The generator of Nexmark's events: proportions, times, who knows whom; only seed and number count."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from examples.nexmark import events as nexmark
from examples.nexmark.events import FIRST_ID, Events, events
from headrace.schema import parse_ddl

COUNT = 100_000


def whole(count: int, **settings: object) -> Events:
    return Events(*(pa.concat_tables(kind).combine_chunks() for kind in zip(*events(count, **settings), strict=True)))


@pytest.fixture(scope="module")
def some() -> Events:
    return whole(COUNT)


def test_of_fifty_one_is_a_person_three_are_auctions_and_the_rest_are_bids(some: Events) -> None:
    assert [table.num_rows for table in some] == [COUNT // 50, COUNT // 50 * 3, COUNT // 50 * 46]
    assert [table.num_rows for table in whole(53)] == [2, 5, 46]  # 50, then a person and two auctions


def test_columns_are_those_of_the_topics(some: Events) -> None:
    for table, ddl in zip(some, nexmark.SCHEMAS.values(), strict=True):
        assert [(field.name, field.type) for field in table.schema] == [
            (field.name, field.type) for field in parse_ddl(ddl)
        ]
        assert all(column.null_count == 0 for column in table.columns)


@pytest.mark.parametrize("batch_events", [1, 7, 999])
def test_events_are_the_same_however_they_are_cut(batch_events: int) -> None:
    count = 60 if batch_events == 1 else 1_234
    assert whole(count, batch_events=batch_events) == whole(count)


def test_more_events_begin_with_the_same_and_another_seed_gives_others(some: Events) -> None:
    for few, many, others in zip(whole(4_321), some, whole(4_321, seed=2), strict=True):
        assert few == many.slice(0, few.num_rows) and few != others


def test_the_events_of_a_seed_stay_the_same() -> None:
    """Changing them is no crime, but results measured before are then of other events."""
    assert whole(200).bid.to_pylist()[-1] == {
        "auction": 1000,
        "bidder": 1001,
        "price": 1051157,
        "channel": "Google",
        "url": "https://www.nexmark.com/txdtf/kxdfc/brjyy/item.htm?query=1",
        "dateTime": datetime(2026, 1, 1, 0, 0, 0, 19_000, tzinfo=UTC),
        "extra": "ovkbxusi",
    }


def test_times_advance_at_the_rate_and_never_go_back(some: Events) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for table in some:
        at = table["dateTime"].cast(pa.int64()).to_numpy()
        assert (np.diff(at) >= 0).all()
    assert some.person["dateTime"][0].as_py() == begin
    assert some.bid["dateTime"][-1].as_py() == begin + timedelta(milliseconds=(COUNT - 1) // 10)
    slow = whole(101, rate=10, start="2026-02-01T00:00:00Z")
    assert slow.person["dateTime"].to_pylist() == [datetime(2026, 2, 1, 0, 0, 5 * n, tzinfo=UTC) for n in range(3)]


def test_ids_are_of_those_who_came_before(some: Events) -> None:
    for ids in (some.person["id"], some.auction["id"]):
        assert ids.to_pylist() == list(range(FIRST_ID, FIRST_ID + len(ids)))
    fifty = np.arange(COUNT // 50)
    for column, each, made in (
        (some.auction["seller"], 3, 1),
        (some.bid["bidder"], 46, 1),
        (some.bid["auction"], 46, 3),
    ):
        known = np.repeat((fifty + 1) * made, each)
        assert (column.to_numpy() >= FIRST_ID).all() and (column.to_numpy() < FIRST_ID + known).all()
    expires, at = (some.auction[name].to_numpy() for name in ("expires", "dateTime"))
    assert (expires > at).all()


def test_some_are_hot(some: Events) -> None:
    """A half of the bids go to the hot auction of the time, three quarters come from the hot bidder, and so on; and now
    and then one of the others is it."""
    fifty = np.repeat(np.arange(COUNT // 50), 46)
    hot_auction = (fifty * 3 + 2) // 100 * 100
    hot_bidder = np.minimum(fifty // 100 * 100 + 1, fifty)
    seller = np.repeat(np.arange(COUNT // 50), 3) // 100 * 100
    for column, hot, share in (
        (some.bid["auction"], hot_auction, 1 / 2),
        (some.bid["bidder"], hot_bidder, 3 / 4),
        (some.auction["seller"], seller, 3 / 4),
    ):
        assert np.mean(column.to_numpy() - FIRST_ID == hot) == pytest.approx(share, abs=0.02)
    channels = some.bid["channel"].value_counts().to_pylist()
    hot = [each["counts"] for each in channels if not each["values"].startswith("channel-")]
    assert len(hot) == 4 and sum(hot) / some.bid.num_rows == pytest.approx(1 / 2, abs=0.02)


def test_prices_are_spread_over_six_powers_of_ten(some: Events) -> None:
    prices = some.bid["price"].to_numpy()
    assert prices.min() >= 100 and prices.max() <= 100_000_000
    shares = np.histogram(np.log10(prices), bins=range(2, 9))[0] / len(prices)
    assert shares == pytest.approx([1 / 6] * 6, abs=0.01)


def test_addresses_are_of_channels(some: Events) -> None:
    of: dict[str, set[str]] = {}
    for channel, url in zip(some.bid["channel"].to_pylist(), some.bid["url"].to_pylist(), strict=True):
        of.setdefault(channel, set()).add(url)
    assert {len(urls) for urls in of.values()} == {1}
    numbered = [("&channel_id=" in url) for channel, (url,) in of.items() if channel.startswith("channel-")]
    assert np.mean(numbered) == pytest.approx(0.9, abs=0.02)
    assert all(len(url.split("/")) == 7 for (url,) in of.values())


def test_a_log_is_loaded(tmp_path: Path, some: Events) -> None:
    with hr.open_log(tmp_path) as log:
        topics = nexmark.load(log, 5_000, batch_events=1_234)
        for topic, table in zip(topics, some, strict=True):
            found = pa.Table.from_batches(topic.batches()).combine_chunks()
            assert found == table.slice(0, found.num_rows).combine_chunks() and topic.settings.event_time == "dateTime"
        assert [topic.describe().records for topic in topics] == [100, 300, 4_600]


@pytest.mark.parametrize("wrong", [{"count": -1}, {"rate": 0}, {"batch_events": 0}, {"start": "2026-01-01"}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(hr.InvalidArgument, match=next(iter(wrong))):
        events(**{"count": 10, **wrong})


def test_it_needs_no_spark() -> None:
    program = "import sys, events; next(events.events(10)); assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=Path(nexmark.__file__).parent, check=True, timeout=60)
