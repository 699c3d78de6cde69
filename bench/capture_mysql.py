"""Change capture of a real MariaDB: from its binlog into durable topics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from bench.capture import server
from bench.peers import Unavailable
from bench.settings import Run
from bench.table import Measured, Row

UPDATES, SNAPSHOT_ROWS = 200_000, 1_000_000
TABLE = "(id int PRIMARY KEY, name varchar(40), amount decimal(12, 2), at timestamp NULL, note text)"
ROWS = "SELECT seq, concat('name ', seq), seq / 100.0, now(), md5(seq) FROM seq_1_to_{count}"
WRITER = """
    CREATE OR REPLACE PROCEDURE write_all() BEGIN DECLARE i INT DEFAULT 1; WHILE i <= {transactions} DO
    UPDATE users SET amount = amount + 1, name = concat('i', i)
    WHERE id > (i * 7) % 9000 AND id <= (i * 7) % 9000 + {rows}; SET i = i + 1; END WHILE; END"""


def capture(run: Run) -> Iterator[Row]:
    try:
        with server("mariadb", "innodb_flush_log_at_trx_commit=0", "innodb_buffer_pool_size=512M") as url:
            yield from _measured(run, url)
    except Unavailable as error:
        yield Row("mariadb", str(error), "changes/s", Measured(None, why=str(error)))


def _measured(run: Run, url: str) -> Iterator[Row]:
    import pymysql

    from headrace.cdc.choice import Choice
    from headrace.cdc.open import open_source

    count, large = run.size(UPDATES, 5_000), run.size(SNAPSHOT_ROWS, 20_000)
    to = urlsplit(url)
    connected = pymysql.connect(host=to.hostname, port=to.port, user=to.username, autocommit=True)
    with run.log() as log, connected as db, db.cursor() as sql:
        for statement in ("CREATE DATABASE shop", "USE shop", f"CREATE TABLE users {TABLE}"):
            sql.execute(statement)
        sql.execute(f"INSERT INTO users {ROWS.format(count=10_000)}")
        source = open_source(log, "shop", f"{url}shop", Choice.of(["users"], None, "shop"), run.fresh("home"))
        source.drain()
        for rows in (1, 10):
            sql.execute(WRITER.format(transactions=count // rows, rows=rows))
            sql.execute("CALL write_all()")
            began = time.perf_counter()
            done = source.drain()
            rate = done / (time.perf_counter() - began)
            what = f"MariaDB: {count:,} updates, {rows} a transaction, into a durable topic"
            yield Row("mariadb", what, "changes/s", Measured(rate, rate))
        sql.execute(f"CREATE TABLE large {TABLE}")
        sql.execute(f"INSERT INTO large {ROWS.format(count=large)}")
        began = time.perf_counter()
        open_source(log, "large", f"{url}shop", Choice.of(["large"], None, "shop"), run.fresh("home")).drain()
        rate = large / (time.perf_counter() - began)
        yield Row("mariadb", f"MariaDB: snapshot of {large:,} rows", "rows/s", Measured(rate, rate))
