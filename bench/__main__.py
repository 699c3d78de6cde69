"""`python -m bench [section …]`: measures, prints one table, writes bench/results/."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from bench import (
    capture,
    capture_mysql,
    capture_sqlite,
    flow_analytics,
    flow_calls,
    flow_cluster,
    flow_growth,
    flow_joins,
    flow_kafka,
    flow_keyed,
    flow_latency,
    flow_memory,
    flow_merge,
    flow_peers,
    flow_poison,
    flow_postgres,
    flow_window,
    log_append,
    log_disk,
    log_queue,
    log_scan,
    log_size,
    log_upkeep,
    log_wake,
    nexmark,
    patterns,
    search,
    sourcing,
    table,
)
from bench.neighbours import Neighbours, wait_for_quiet
from bench.payload import payload
from bench.settings import Run

SECTIONS: dict[str, Callable[[Run], Iterator[table.Row]]] = {
    "append": log_append.batches,
    "singles": log_append.singles,
    "producer": log_append.producer,
    "scan": log_scan.scan,
    "size": log_size.size,
    "wake": log_wake.wake,
    "queue": log_queue.queue,
    "upkeep": log_upkeep.upkeep,
    "disk": log_disk.disk,
    "home": log_disk.home,
    "sourcing": sourcing.sourcing,
    "capture": capture.capture,
    "mariadb": capture_mysql.capture,
    "sqlite": capture_sqlite.capture,
    "search": search.search,
    "windows": flow_window.windows,
    "catching_up": flow_window.catching_up,
    "kinds": flow_window.kinds,
    "latency": flow_latency.latency,
    "calls": flow_calls.calls,
    "growth": flow_growth.growth,
    "keyed": flow_keyed.keyed,
    "joins": flow_joins.joins,
    "patterns": patterns.patterns,
    "merge": flow_merge.merge,
    "kafka": flow_kafka.kafka,
    "nexmark": nexmark.queries,
    "peers": lambda run: itertools.chain(flow_peers.in_windows(run), flow_analytics.analytics(run)),
    "memory": flow_memory.memory,
    "poison": flow_poison.poison,
    "postgres": flow_postgres.postgres,
    "cluster": flow_cluster.cluster,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What headrace costs, peers beside it.")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds, to see that it runs; the numbers mean little"
    )
    parser.add_argument("--no-peers", action="store_true", help="headrace alone")
    parser.add_argument(
        "--folder", type=Path, help="where to write, on the disk to be measured; default: the temporary one"
    )
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", help="default: %(default)s")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="wait so long for a quiet machine, per section"
    )
    given = parser.parse_args()
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    given.results.mkdir(parents=True, exist_ok=True)
    rows: list[table.Row] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=given.folder) as folder:
        run = Run(payload(), Path(folder), given.results, given.quick, not given.no_peers)
        for name in given.sections or SECTIONS:
            wait_for_quiet(given.wait)
            neighbours = Neighbours()
            for row in SECTIONS[name](run):
                rows.append(replace(row, others=neighbours.share()))
                print(f"{name}: {row.what}: {table.shown(row.ours.median)} {row.unit}", file=sys.stderr, flush=True)
    print(machine())
    print()
    print(table.text(rows))
    print()
    print(
        "others: the part of the processors that other programs used meanwhile (a row above a few percent says little)."
    )
    print(f"Medians{' of one' if run.repeat == 1 else f' of {run.repeat}'}; 'ours/peer' below 1x: the peer wins.")
    found = {
        "at": datetime.now(UTC).isoformat(),
        "machine": machine(),
        "quick": given.quick,
        "rows": [asdict(row) for row in rows],
    }
    (given.results / "results.json").write_text(json.dumps(found, indent=2, ensure_ascii=False), encoding="utf-8")
    print(f"Written to {given.results}: results.json and the plots.")
    return 0


def machine() -> str:
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, Arrow {pa.__version__}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
