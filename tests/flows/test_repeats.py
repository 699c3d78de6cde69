"""Repetitions, without a JVM: what Spark adds to records is added here, all else is the real thing, from the log to the
store and on to the topic of what is left. Whatever the cuts, whatever is given up and done again, it is the same."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace import failpoints
from headrace.aggregates.hashes import hashes
from headrace.bloom import Dedup
from headrace.failpoints import InjectedFault
from headrace.flows.compiler.compile import Compiled
from headrace.flows.compiler.partials import SOURCE
from headrace.flows.compiler.reads import Reads
from headrace.flows.flow import Flow, Input
from headrace.flows.loop import FlowLoop
from headrace.flows.query import FlowQuery, Planned
from headrace.log.contract import META
from headrace.operators.dedup import TakeOut
from headrace.operators.records import HASH
from headrace.schema import parse_ddl
from headrace.views.contract import UPDATED_AT, FlowSpec
from headrace.views.sqlite.store import SqliteViews
from tests.flows.dedup import GRACE, WITHIN, some_rows, taken_out

SEED = 20261116
SECOND = 1_000_000
DEDUP = Dedup(("id",), WITHIN.seconds * SECOND, GRACE.seconds * SECOND, 0.01, 1_000)

ANY_ROW = pa.table({"x": [1]}).select([])


class _Here(FlowQuery):
    """Reads without Spark, and hashes as it does."""

    def rows(self, planned: Planned) -> pa.Table:
        pieces = []
        for number, read in enumerate(self._flow.inputs):
            columns = [*read.topic.schema.names, *META]
            for each in planned.get(read.topic.name, ()):
                found = read.topic.batches(each.partition, each.start, each.stop, columns)
                table = pa.Table.from_batches(list(found))
                table = table.append_column(HASH, pa.array(np.where(table["id"].is_null(), 42, hashes(table["id"]))))
                if "_partition" not in table.column_names:
                    table = table.append_column("_partition", pa.array([each.partition] * len(table), pa.int32()))
                pieces.append(table.append_column(SOURCE, pa.array([number] * len(table), pa.int32())))
        random.Random(SEED).shuffle(pieces)  # Spark promises no order
        return pa.concat_tables(pieces)


class Cleaning:
    def __init__(self, home: Path) -> None:
        self.log, self.store = hr.open_log(home), SqliteViews(home)
        self.store._db.execute("PRAGMA synchronous=OFF")
        schema = "id string, n int, at timestamp"
        made = {"key": "id", "event_time": "at", "durability": "os", "exist_ok": True}
        self.topics = [self.log.create_topic(name, schema, partitions=2, **made) for name in ("one", "two")]
        written = parse_ddl(f"{schema}, {UPDATED_AT} timestamp")
        self.log.own_topic("__clean", written, event_time="at", max_ahead="36500 days", partitions=4)
        windows = "window_start timestamp, window_end timestamp, windows_missed bigint, windows_counted bigint"
        dropped = f"{schema}, {windows}"
        self.log.create_topic("too_late", dropped, exist_ok=True)
        step = TakeOut(DEDUP)
        operator = step.over(parse_ddl(schema), "at")
        flow = Flow("clean", tuple(map(Input, self.topics)), target="__clean", through=step, late=hr.drop("too_late"))
        flow = replace(flow, operator=operator)
        tables = operator.tables
        spec = FlowSpec("clean", "tests", ("one", "two"), None, target="__clean", operator=str(step), tables=tables)
        self._compiled = Compiled(flow, flow, spec, Reads({}), None)
        self.loop = self.started()

    def started(self, *, turned: bool = False) -> FlowLoop:
        """`turned`: by a program that names the topics in another order."""
        compiled, flow = self._compiled, self._compiled.flow
        if turned:
            flow = replace(flow, inputs=flow.inputs[::-1])
            compiled = replace(compiled, given=flow, flow=flow)
        loop = FlowLoop(_Here(compiled, None), log=self.log, store=self.store)  # type: ignore[arg-type]
        loop.begin()
        return loop

    def check(self) -> None:
        passed, ledger = taken_out(self.topics, bool)
        records = [record.value for record in self.log.topic("__clean").records()]
        found = [tuple(value for name, value in each.items() if name != UPDATED_AT) for each in records]
        assert sorted(found, key=str) == sorted(passed, key=str)
        (row,) = hr.open_views(self.log.home).ledger("clean").to_pylist()
        assert {name: row[name] for name in ledger} == ledger
        dropped = [record.value for record in self.log.topic("too_late").records()]
        assert len(dropped) == ledger["dropped"] and all(row["window_start"] == row["at"] for row in dropped)
        for partition in range(4):  # behind each partition of the sources, time never goes back
            reached = [each.progress for each in self.log.topic("__clean").records(partition=partition)]
            times = [each for each in reached if each is not None]
            assert times == sorted(times)

    def close(self) -> None:
        self.store.close()
        self.log.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_what_goes_on_is_what_is_found_one_by_one(tmp_path: Path, seed: int) -> None:
    """Batches of any size, some given up when they are computed, some when they are committed, some begun again."""
    rng = random.Random(seed)
    cleaning = Cleaning(tmp_path)
    for now in range(0, 200, 20):
        for topic in cleaning.topics:
            topic.append(some_rows(rng, rng.randrange(1, 40), now))
        for _ in range(rng.randrange(4)):
            trouble = rng.choice(
                [None, None, "flow.computed", "view.merged", "view.committed", "relay.appended", "again"]
            )
            if trouble == "again":
                cleaning.loop = cleaning.started(turned=rng.random() < 0.5)
                trouble = None
            if trouble is not None:
                failpoints.arm(trouble, "raise")
            try:
                cleaning.loop.step(rng.randrange(1, 60))
            except InjectedFault:
                if trouble != "flow.computed":  # a batch that is not computed is computed again, by the same loop
                    cleaning.loop = cleaning.started()
            finally:
                failpoints.disarm()
    cleaning.loop.drain(rng.choice([7, 1_000]))
    cleaning.check()
    cleaning.close()


def test_what_is_kept_is_bounded_and_goes_with_its_time(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path)
    rng = random.Random(SEED)
    for now in range(0, 2_000, 100):
        for topic in cleaning.topics:
            topic.append(some_rows(rng, 150, now))
        cleaning.loop.drain()
        pages = cleaning.store.read_state(cleaning.loop.position).scan("pages", ANY_ROW)
        sizes = Counter[tuple[str, int]]()
        for page in pages.to_pylist():
            sizes[page["/topic"], page["_partition"]] += len(page["bits"])
        assert len(sizes) == 4 and max(sizes.values()) <= DEDUP.bytes_max + 1024 * DEDUP.pages  # one that is ahead
    cleaning.check()
    cleaning.close()


def test_a_source_that_gets_more_partitions(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path)
    rng = random.Random(SEED)
    for partitions in (2, 5):
        for topic in cleaning.topics:
            topic.alter(partitions=partitions)
            topic.append(some_rows(rng, 60, partitions * 10))
        cleaning.loop.drain()
    assert cleaning.log.topic("__clean").settings.partitions > 4
    cleaning.check()
    cleaning.close()


def test_other_settings_are_another_flow() -> None:
    spec = FlowSpec("clean", "tests", ("one",), None, operator=str(DEDUP))
    (said,) = spec.changes(replace(spec, operator=str(replace(DEDUP, approx=0.02))))
    assert said.startswith("through: dedup('id', within='20 seconds'") and said.endswith("approx=0.02, keys=1000)")
