"""Tables and joins without Spark: an app's flows in which records meet, read from its log and committed by the flows'
own step. Only what the compiler finds out with Spark's help is written here: no flow has a transform."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.durations import INSTANT_MAX_US, instant_us
from headrace.flows.compiler.meetings import event_times, meeting_spec
from headrace.flows.flow import Flow
from headrace.flows.folding.meeting import MeetingFold
from headrace.log.contract import META, Topic
from headrace.operators.contract import InputTimes
from headrace.views.contract import Commit, FlowState, Place
from headrace.views.open import open_store

__all__ = ["Joined", "shop"]


def shop(home: Path, name: str = "Germany", views: str | None = None) -> Joined:
    """Sales that are taxed and paid: `taxed` has a row that was corrected, `paid` one that waits; `rates` has a history
    of both times, `prices` of one, `countries` none. `priced` joins two tables."""
    app = hr.App("shop", home=home, views=views)
    since = "country string, percent int, since timestamp"
    rates = app.table("rates", since, key="country", event_time="since", history="bitemporal")
    prices = app.table("prices", "sku int, euros int, at timestamp", key="sku", event_time="at", history="versions")
    countries = app.table("countries", "code string, name string, sku int", key="code")
    sales = app.topic("sales", "country string, euros int, at timestamp", key="country", event_time="at")
    payments = app.topic(
        "payments", "country string, card string, at timestamp", key="country", event_time="at", partitions=2
    )
    app.stream(sales).enrich(rates, on="country", as_of="at", columns=["percent"]).to_view("taxed")
    app.stream(sales).join(app.stream(payments), on="country", after="1 hour", grace="10 seconds", how="left").to_view(
        "paid"
    )
    countries.join(prices, on="sku", how="left").to_view("priced", history="versions")
    joined = Joined(app)
    rates.upsert({"country": "ch", "percent": 8, "since": "2026-01-01T00:00:00Z"})
    sales.append([{"country": "ch", "euros": 100, "at": "2026-01-01T12:00:00Z"}])
    joined.run()
    rates.upsert({"country": "ch", "percent": 9, "since": "2026-01-01T00:00:00Z"})  # 8 was a mistake
    rates.upsert({"country": "ch", "percent": 10, "since": "2026-03-01T00:00:00Z"})
    sales.append([{"country": "de", "euros": 50, "at": "2026-01-01T12:01:00Z"}])
    payments.append([{"country": "ch", "card": "visa", "at": "2026-01-01T12:30:00Z"}])
    prices.upsert([{"sku": 7, "euros": euros, "at": f"2026-0{euros}-01T00:00:00Z"} for euros in (1, 2, 3)])
    prices.delete(7, at="2026-06-01T00:00:00Z")
    prices.upsert({"sku": 8, "euros": 5, "at": "2026-01-01T00:00:00Z"})
    countries.upsert([{"code": "ch", "name": "Switzerland", "sku": 8}, {"code": "de", "name": name, "sku": 9}])
    joined.run(final=False)
    return joined


class Joined:
    """`Joined(app).run()`: what is new in the log, a commit for each flow."""

    def __init__(self, app: hr.App) -> None:
        self.app, self.store = app, open_store(app.views_at)
        self.flows: dict[str, tuple[Flow, MeetingFold]] = {}
        self.states: dict[str, FlowState] = {}
        for name, flow in app.flows.items():
            if flow.meets is not None:
                schemas = {each.role: each.topic.schema for each in flow.inputs}
                flow = replace(flow, operator=flow.meets.over(schemas, event_times(flow), retracts=False))
                spec = meeting_spec(flow, app.name)
                self.flows[name] = flow, MeetingFold(flow, spec)
                self.states[name] = self.store.begin(spec)

    def run(self, *, final: bool = True) -> None:
        """`final`: tables are read at a time after all that is in them."""
        for name, (flow, fold) in self.flows.items():
            before = self.states[name]
            places = {topic.name: _places(topic) for topic in flow.topics}
            met = {each.id: _records(each.topic, before.places.get(each.topic.name, {})) for each in flow.inputs}
            times = {each.role: self._times(flow, each.role, final=final) for each in flow.inputs}
            state = self.store.read_state(before)
            done = fold.step(met, state, times, before, time.time_ns() // 1000)
            commit = Commit(
                before.sequence,
                places,
                {topic.name: topic.topic_id for topic in flow.topics},
                frontier_us=done.frontier_us,
                closed_us=done.closed_us,
                unchanged_us=done.unchanged_us,
                writes=done.writes,
                changes=done.changes,
                ledger=done.ledger,
                outgoing=done.outgoing,
            )
            self.states[name] = self.store.commit(before, commit)

    def _times(self, flow: Flow, role: str, *, final: bool) -> InputTimes:
        assert flow.meets is not None
        ends = [end for each in flow.inputs if each.role == role for end in each.topic.offsets().values()]
        if role in flow.meets.first:
            arrived = [instant_us(end.arrived_at, argument="") for end in ends if end.arrived_at is not None]
            return InputTimes(INSTANT_MAX_US if final else None, max(arrived, default=None))
        progress = [None if end.progress is None else instant_us(end.progress, argument="") for end in ends]
        known = [us for us in progress if us is not None]
        return InputTimes(min(known, default=None), min(known) if len(known) == len(progress) else None)

    def close(self) -> None:
        self.store.close()
        self.app.close()


def _places(topic: Topic) -> dict[int, Place]:
    out = {}
    for number, end in topic.offsets().items():
        progress = None if end.progress is None else instant_us(end.progress, argument="")
        out[number] = Place(end.next, progress)
    return out


def _records(topic: Topic, known: dict[int, Place]) -> pa.Table:
    columns = [*topic.schema.names, *META]
    batches: list[Any] = []
    for number, end in topic.offsets().items():
        batches += topic.batches(number, known[number].offset if number in known else 0, end.next, columns)
    if not batches:
        return pa.table({name: pa.nulls(0) for name in columns})
    return pa.Table.from_batches(batches).select(columns)
