"""Programs on Kafka, in Spark: unchanged, with the results of the embedded log, and each change written once."""

from __future__ import annotations

import json
import random
import re
import runpy
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import app as apps
from headrace import failpoints
from headrace.failpoints import InjectedFault
from tests.kafka.test_flow_hardships import until_ended
from tests.kafka.test_foreign import plain_records

ROOT = Path(__file__).parents[2]
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def prefix() -> str:
    return f"f{uuid.uuid4().hex[:8]}."


def test_the_readmes_program_runs_unchanged(
    broker: str, prefix: str, headrace_spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    program = next(block for block in re.findall(r"```python.*?\n(.*?)```", text, re.DOTALL) if "hr.App(" in block)
    monkeypatch.setenv("HEADRACE_LOG", f"kafka://{broker}?prefix={prefix}")
    monkeypatch.setitem(apps.overrides, "spark", headrace_spark)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "README.md", "exec"), names)
    found = names["views"].to_arrow().to_pylist()
    assert [(row["views"], row["_corrections"]) for row in found] == [(3, 1), (1, 0)]
    assert len(plain_records(broker, f"{prefix}clicks")) == 4  # they are nowhere else
    names["app"].close()


def test_the_demos_program_runs_unchanged_joins_included(
    broker: str, prefix: str, headrace_spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_LOG", f"kafka://{broker}?prefix={prefix}")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(apps.overrides, "spark", headrace_spark)
    names = runpy.run_path(str(ROOT / "src" / "headrace" / "demo" / "shop.py"))
    at = [T0 + timedelta(seconds=n) for n in range(60)]
    visit = {"city": "a", "device": "d", "page": "/", "cents": 100}
    names["visits"].append([{**visit, "view": str(t), "occurred": t, "sent": t, "received": t} for t in at])
    names["taxes"].upsert([{"country": "de", "percent": 19, "since": at[0]}])
    names["invoices"].append([{"number": 1, "country": "de", "cents": 100, "at": at[5]}])
    with names["app"] as app:
        app.drain()
        assert [row["orders"] for row in app.view("pages_per_minute").to_arrow().to_pylist()] == [60]
        assert [row["percent"] for row in app.view("taxed_invoices").to_arrow().to_pylist()] == [19]
        assert app.audit().ok


def program(home: Path, spark: Any, **how: Any) -> hr.App:
    app = hr.App("shop", home=home, spark=spark, **how)
    sales = app.topic("sales", "shop string, cents bigint, at timestamp", key="shop", event_time="at", partitions=2)
    windowed = app.stream(sales).window(hr.tumbling("10 seconds"), late=hr.correct(within="20 seconds"))
    windowed.group_by("shop").agg(n=hr.count(), cents=hr.sum("cents")).to_view("sums")
    app.stream(app.view("sums")).agg(shops=hr.count()).to_topic("totals")
    return app


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Some late, some too late to be counted."""
    rng = random.Random(seed)
    return [
        {"shop": f"s{rng.randrange(5)}", "cents": n, "at": T0 + timedelta(seconds=n / 4 + rng.uniform(-40, 0))}
        for n in range(count)
    ]


def results(app: hr.App) -> tuple[Any, Any]:
    """The view's rows without the time of their update, and the ledger."""
    found = app.view("sums").to_arrow().drop_columns(["_updated_at"]).to_pylist()
    ledger = app.view("sums").ledger().to_pylist()
    return sorted(map(str, found)), sorted(map(str, ledger))


def append(app: hr.App, some: list[dict[str, Any]], transactions: Callable[[int], bool]) -> None:
    for number in range(0, len(some), 20):
        part = some[number : number + 20]
        if transactions(number):  # their ends are holes in the offsets
            with app.log.transaction() as tx:
                tx.append("sales", part)
        else:
            app.log.topic("sales").append(part)


@pytest.mark.timeout(300)
def test_a_view_is_that_of_the_embedded_log_however_it_is_cut_and_stopped(
    broker: str, prefix: str, headrace_spark: Any, tmp_path: Path, seed: int
) -> None:
    some = rows(seed, 200)
    with program(tmp_path / "embedded", headrace_spark) as app:
        append(app, some, lambda _: False)
        app.drain()
        wanted = results(app)
    log = f"kafka://{broker}?prefix={prefix}"
    with program(tmp_path / "kafka", headrace_spark, log=log, driver_rows=0) as app:  # every batch is a Spark job
        append(app, some[:120], lambda number: number % 40 == 0)
        app.drain(batch_rows=50)
    failpoints.arm("relay.appended", "raise")  # what was relayed is in Kafka, and the store does not know
    try:
        with program(tmp_path / "kafka", headrace_spark, log=log) as app:
            append(app, some[120:], lambda number: number % 40 == 0)
            with pytest.raises(InjectedFault):
                app.drain(batch_rows=30)
    finally:
        failpoints.disarm()
    with program(tmp_path / "kafka", headrace_spark, log=log) as app:
        app.drain(batch_rows=37)
        assert results(app) == wanted
        assert app.audit().ok
        shown = app.log.topic("sales").group("__flow.sums").lag()
        assert sum(lag.records for lag in shown.values()) == 0  # for Kafka's own tools
    changes = [json.loads(each.value()) for each in plain_records(broker, f"{prefix}totals")]
    standing: Counter[int] = Counter()
    for change in changes:  # each change once: whatever went had come, and one row is left
        standing[change["shops"]] += 1 if change["op"] == "+" else -1
        assert standing[change["shops"]] >= 0
    assert [(shops, count) for shops, count in standing.items() if count] == [(len(wanted[0]), 1)]


def test_a_record_waits_for_a_transaction_that_its_table_has_open(
    broker: str, prefix: str, headrace_spark: Any, tmp_path: Path
) -> None:
    """What the transaction holds arrived before the record, and is seen after it."""
    from confluent_kafka import Producer

    log = f"kafka://{broker}?prefix={prefix}"
    with hr.App("shop", home=tmp_path / "home", spark=headrace_spark, log=log) as app:
        users = app.table("users", "id string, zip string", key="id")
        clicks = app.topic("clicks", "user string, at timestamp", event_time="at")
        app.stream(clicks).enrich(users, on={"user": "id"}, columns=["zip"]).to_view("seen")
        users.upsert([{"id": "a", "zip": "1"}])
        others = Producer({"bootstrap.servers": broker, "transactional.id": uuid.uuid4().hex})
        others.init_transactions(10)
        others.begin_transaction()
        others.produce(f"{prefix}users", json.dumps({"id": "a", "zip": "2", "_op": "upsert"}), "a", 0)
        assert others.flush(10) == 0
        clicks.append({"user": "a", "at": T0})
        found = []
        for end in (others.commit_transaction, None):
            app.drain()
            found += [(row["zip"], row["_status"]) for row in app.view("seen").to_arrow().to_pylist()]
            if end is not None:
                end(10)
                until_ended(app.log.topic("users"))
        assert found == [("1", "open"), ("2", "final")]
        assert app.audit().ok
