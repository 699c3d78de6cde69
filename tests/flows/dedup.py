"""A program that takes out repetitions, about, for tests that run it in many ways; and what it should come to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import headrace as hr
from tests.flows.oracle import EPOCH
from tests.flows.shop import START

WITHIN, GRACE = timedelta(seconds=20), timedelta(seconds=5)


def shop(home: Path | str, spark: Any, **settings: Any) -> hr.App:
    """Two topics, as one; behind that a session, which grows with each record that is let through."""
    app = hr.App("tests", home=home, spark=spark, **settings)
    schema = "id string, n int, at timestamp"
    one = app.topic("one", schema, key="id", event_time="at", partitions=2, durability="os")
    two = app.topic("two", schema, key="id", event_time="at", durability="os")
    both = app.stream(one).union(app.stream(two)).transform(lambda df: df.where("n <> 13"))
    clean = both.dedup("id", within=WITHIN, grace=GRACE, approx=0.01, keys=1_000, late=hr.drop(dropped_to="too_late"))
    sessions = clean.window(hr.session("3 seconds"), late=hr.correct(within="1 day"), idle="1 day")
    sessions.group_by("n").agg(records=hr.count(), ids=hr.count_distinct("id"), most=hr.max("id")).to_view("sessions")
    return app


def program() -> hr.App:
    """For processes that are killed."""
    return shop(":temp:", None)


def some_rows(rng: random.Random, count: int, now: float) -> list[dict[str, Any]]:
    """Many come twice or more, some late, some too late, a few without key or time."""
    out: list[dict[str, Any]] = []
    for number in range(count):
        late = rng.choice([0, 0, 0, 0, 1, 8, 22, 40])
        at = START + timedelta(seconds=now + number * 0.7 - late + rng.random())
        row = {"id": rng.choice([f"i{rng.randrange(300)}", None]), "n": rng.randrange(11, 15), "at": at}
        row |= {"at": None} if rng.random() < 0.05 else {}
        if out and rng.random() < 0.3:
            row = dict(rng.choice(out))
            row["at"] = row["at"] and row["at"] + timedelta(seconds=rng.choice([0, 2]))
        out.append(row)
    return out


def taken_out(topics: Sequence[Any], is_let_through: Any) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    """Record by record, by dicts: what goes on, and what the ledger says. So few keys are never mistaken."""
    passed, ledger = [], {"on_time": 0, "dropped": 0, "untimed": 0}
    for topic in topics:
        seen: set[tuple[int, Any, int]] = set()
        reached: dict[int, Any] = {}
        for record in sorted(topic.records(), key=lambda record: (record.partition, record.offset)):
            row, at = record.value, record.value["at"]
            if not is_let_through(row):
                continue
            if at is None:
                ledger["untimed"] += 1
                continue
            came = [each for each in (record.progress, reached.get(record.partition)) if each is not None]
            reached[record.partition] = max(came, default=None)
            if came and max(came) >= at + WITHIN + GRACE:
                ledger["dropped"] += 1
                continue
            ledger["on_time"] += 1
            stretch = (at - EPOCH) // WITHIN
            if not any((record.partition, row["id"], stretch + beside) in seen for beside in (-1, 0, 1)):
                passed.append((row["id"], row["n"], at))
            seen.add((record.partition, row["id"], stretch))
    return passed, ledger


def check(app: hr.App) -> None:
    topics = [app.log.topic(name) for name in ("one", "two")]
    passed, ledger = taken_out(topics, lambda row: row["n"] != 13)
    read = [record.value for record in app.log.topic("__records.sessions.dedup").records()]
    found = [tuple(value for name, value in row.items() if name != "change__updated_at") for row in read]
    assert sorted(found, key=str) == sorted(passed, key=str)
    (row,) = app.view("sessions.dedup").ledger().to_pylist()
    assert {name: row[name] for name in ledger} == ledger
    assert len(list(app.log.topic("too_late").records())) == ledger["dropped"] > 0
    assert sum(row["records"] for row in app.view("sessions").to_arrow().to_pylist()) == len(passed)
