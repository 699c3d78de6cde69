"""Sinks over topics on Kafka: offsets have holes where transactions end, and what a sink records is a topic there."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SinkFailed
from tests.cli.conftest import Shell, shell

__all__ = ["shell"]

ROWS: list[dict[str, Any]] = [{"_op": "upsert", "id": id, "name": f"heat {id}"} for id in range(40)]


def test_an_index_and_a_function(broker: str, tmp_path: Path, shell: Shell) -> None:
    address = f"kafka://{broker}?prefix=s{uuid.uuid4().hex[:8]}."
    batches: list[tuple[str, int]] = []
    fails = [True]

    def deliver(rows: Any, key: str) -> None:
        batches.append((key, rows.num_rows))
        if fails.pop() if fails else False:
            raise OSError("down")

    with hr.open_log(address) as log:
        log.create_topic("users", "_op string, id int, name string", key="id", partitions=2)
        with log.transaction() as tx:
            tx.append("users", ROWS)
        with log.transaction() as tx:
            tx.append("users", [{"_op": "delete", "id": 0}])
    for _ in range(2):  # the second goes on where the first ended
        with hr.App("site", home=tmp_path / "home", log=address) as app:
            people = app.stream("users").to_sink("people", hr.search_index("people.db", text="name"))
            app.stream("users").to_sink("out", deliver)
            if fails:
                with pytest.raises(SinkFailed):
                    app.drain()
            app.drain()
            assert (people.search("heat").count, people.audit().ok, people.lag) == (39, True, 0)
            assert people.rebuild() == 39
    assert batches == [("out-0000000000000001", 41)] * 2
    home = ("--home", str(tmp_path / "home"), "--log", address)
    assert [row["id"] for row in shell.ok("index", "search", "people", "heat 7", *home).rows] == [7]
    shell.ok("index", "audit", "people", *home)
    (lag, none) = (row["lag_records"] for row in shell.ok("sinks", "list", *home).rows)
    assert lag == none == 0
