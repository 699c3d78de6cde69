"""A consumer of the demo, a process of its own: `python -m headrace.demo.consumer HOME NAME`.

Reads page views as a member of the group, and writes what it saw to another topic. Results and offsets are one
transaction, so a crash at any point loses nothing and doubles nothing. After SIGUSR1 it stops between reading and
committing, says so, and waits to be killed: the worst moment there is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import headrace as hr

TOPIC, RESULTS, GROUP = "page_views", "seen", "analytics"
RESULTS_SCHEMA = "partition int, offset bigint, consumer string, page string"
LEASE = "1 second"
POLL_ROWS = 250


def main(home: str, name: str) -> None:
    asked_to_stop = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: asked_to_stop.set())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent = os.getppid()
    with hr.open_log(home, create=False) as log, log.topic(TOPIC).group(GROUP).join(lease=LEASE) as member:
        while os.getppid() == parent:  # whoever tells the story is still there
            records = member.poll(timeout="200 milliseconds", max_records=POLL_ROWS)
            if not records:
                continue
            if asked_to_stop.is_set():
                print(f"holding {len(records)}", flush=True)
                while os.getppid() == parent:
                    time.sleep(0.05)
                return
            try:
                with log.transaction() as tx:
                    tx.append(RESULTS, [_result(record, name) for record in records])
                    tx.commit(member)
            except hr.MemberFenced:
                continue  # the partitions went to somebody else meanwhile; so will these records


def _result(record: hr.Record, name: str) -> dict[str, object]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "consumer": name,
        "page": record.value["page"],
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
