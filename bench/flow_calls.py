"""How long a request takes from `hr.call` to its reply: to a flow in another process, through the log and over HTTP;
and of how many threads that call at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import headrace as hr
from bench.flow_latency import of_part, running
from bench.settings import Run
from bench.table import Row
from headrace.log.contract import Log
from headrace.serve import open_server

CALLERS = 8
TOKEN = "a-token-of-the-bench-alone"
_APP = """
import sys
import headrace as hr
app = hr.App("bench", home=sys.argv[1], spark="local[2]")
prices = app.table("prices", "sku string, cents int", key="sku")
quotes = app.topic("quotes", "id string, sku string, pieces int", key="id", versioned=True)
answers = app.stream(quotes).enrich(prices, on="sku", columns=["cents"])
app.answers("quotes", answers{transform})
prices.upsert({{"sku": "k1", "cents": 250}})
app.start()
print("ready", flush=True)
try:
    app.wait()
except KeyboardInterrupt:
    app.stop()
"""
TOTAL = '.transform(lambda df: df.withColumn("total", df.pieces * df.cents))'


def calls(run: Run) -> Iterator[Row]:
    for transform, said in (("", "looked up in a table"), (TOTAL, "and then a transform in PySpark")):
        home = run.fresh("home")
        with running(home, transform, code=_APP), hr.open_log(home, create=False) as log:
            hr.call(log, "quotes", {"sku": "k1", "pieces": 1}, timeout="1 minute")
            yield from _rows(run, log, f"a request and its reply, {said}, by the log")
            os.environ["HEADRACE_TOKEN"] = TOKEN
            server = open_server(Path(home), port=0, token=TOKEN)
            server.start()
            try:
                yield from _rows(run, server.url, f"a request and its reply, {said}, over HTTP")
            finally:
                server.stop()


def _rows(run: Run, where: Log | str, said: str) -> Iterator[Row]:
    _took(where, run.size(20, 2))  # warming up
    took = _took(where, run.size(300, 5))
    yield Row("calls", f"{said}, p50", "ms", of_part(took, 0.5), 50, smaller_is_better=True)
    yield Row("calls", f"{said}, p99", "ms", of_part(took, 0.99), smaller_is_better=True)
    together: list[float] = []
    threads = [threading.Thread(target=lambda: together.extend(_took(where, run.size(40, 2)))) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield Row(
        "calls", f"{said}, {CALLERS} callers at a time, p50", "ms", of_part(together, 0.5), smaller_is_better=True
    )


def _took(where: Log | str, count: int) -> list[float]:
    """Milliseconds of each call, one after the other."""
    out = []
    for _ in range(count):
        began = time.perf_counter()
        reply = hr.call(where, "quotes", {"sku": "k1", "pieces": 3}, timeout="1 minute")
        out.append((time.perf_counter() - began) * 1e3)
        assert reply.value["cents"] == 250
    return out
