"""Nexmark's queries as Flink runs them: the published SQL, each with the columns that the programs in examples/nexmark
have. Texts only.

Times are numbers of milliseconds in the files. Events are in the order of their times, so the watermark is the time
itself."""

from __future__ import annotations

from pathlib import Path

_BID = """
CREATE TABLE bid (
  auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ms BIGINT, extra STRING,
  `dateTime` AS TO_TIMESTAMP_LTZ(ms, 3),
  WATERMARK FOR `dateTime` AS `dateTime`
) WITH ('connector' = 'filesystem', 'path' = '{files}', 'format' = 'csv');
"""
_LOW, _MIDDLE, _HIGH = "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"
_DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
_HOPS = "TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"


def _by_rank(count: str, name: str) -> str:
    ranks = {"rank1": _LOW, "rank2": _MIDDLE, "rank3": _HIGH}
    return ", ".join(
        [f"{count} AS total_{name}", *(f"{count} FILTER (WHERE {of}) AS {rank}_{name}" for rank, of in ranks.items())]
    )


QUERIES = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q5": f"""
        SELECT bids.window_start, bids.auction, bids.num FROM (
          SELECT auction, COUNT(*) AS num, window_start, window_end FROM {_HOPS}
          GROUP BY auction, window_start, window_end
        ) AS bids JOIN (
          SELECT MAX(num) AS most, window_start, window_end FROM (
            SELECT COUNT(*) AS num, window_start, window_end FROM {_HOPS} GROUP BY auction, window_start, window_end
          ) GROUP BY window_start, window_end
        ) AS hot
        ON bids.window_start = hot.window_start AND bids.window_end = hot.window_end AND bids.num >= hot.most""",
    "q7": """
        SELECT bid.auction, bid.bidder, bid.price, bid.`dateTime`, bid.extra FROM bid JOIN (
          SELECT MAX(price) AS highest, window_end AS ends
          FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND)) GROUP BY window_start, window_end
        ) AS top ON bid.price = top.highest
        WHERE bid.`dateTime` BETWEEN top.ends - INTERVAL '10' SECOND AND top.ends""",
    "q11": """
        SELECT bidder, COUNT(*) AS bids, window_start, window_end
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q15": f"""
        SELECT {_DAY} AS `day`, {_by_rank("COUNT(*)", "bids")},
          {_by_rank("COUNT(DISTINCT bidder)", "bidders")}, {_by_rank("COUNT(DISTINCT auction)", "auctions")}
        FROM bid GROUP BY {_DAY}""",
    "q17": f"""
        SELECT auction, {_DAY} AS `day`, {_by_rank("COUNT(*)", "bids")}, MIN(price) AS min_price,
          MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": """
        SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid
        ) WHERE place <= 1""",
}
"""Those that Flink is measured with."""


def tables(files: Path) -> str:
    return _BID.format(files=files.absolute())
