"""A flow that is run without a JVM: what the compiler finds out with Spark's help is written here by hand, all else is
the real thing, from the log to the store. For flows that are folded by Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import NullType, StructField, StructType

import headrace as hr
from headrace.aggregates.families.deviation import STATE
from headrace.flows.compiler.compile import Compiled
from headrace.flows.compiler.reads import Reads
from headrace.flows.compiler.records import judge_of
from headrace.flows.flow import Flow, Input
from headrace.flows.loop import FlowLoop
from headrace.flows.query import FlowQuery, Planned
from headrace.flows.reading import ranges
from headrace.flows.reading.inputs import Clock
from headrace.flows.rebuild import Rebuild
from headrace.flows.running import Running
from headrace.kernels.arrow_partials import ArrowPartials
from headrace.kernels.judge import JUDGED
from headrace.log.contract import META
from headrace.log.embedded.log import EmbeddedLog
from headrace.operators.fold import Fold
from headrace.places import Home
from headrace.views.contract import Column, FlowSpec, Result, SlotColumn, ViewSpec
from headrace.views.open import open_views
from headrace.views.reading import Views
from headrace.views.sqlite.store import SqliteViews
from headrace.windows import Window

INSTANT = pa.timestamp("us", tz="UTC")
AGGREGATES = {
    "records": hr.count(),
    "total": hr.sum("n"),
    "mean": hr.avg("n"),
    "least": hr.min("n"),
    "most": hr.max("word"),
    "first": hr.first("word"),
    "last": hr.last("word"),
    "words": hr.count_distinct("word"),
}
"""Of the topic of `tests.flows.shop`."""
MORE = {
    "best": hr.max_by("word", "n"),
    "worst": hr.min_by("word", "n"),
    "spread_out": hr.stddev("n"),
    "variance": hr.variance("n"),
    "median": hr.percentile("n", 0.5),
    "different": hr.sum_distinct("n"),
    "largest": hr.top_k("word", 2, by="n"),
}
"""More of it, for some tests."""
_PLACE = [("at", INSTANT), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())]
_BEST, _BY = pa.struct(_PLACE), pa.struct([("by", pa.int32()), *_PLACE])
_COUNTED = pa.list_(pa.struct([("value", pa.int32()), ("count", pa.int64())]))
_PARTIALS: dict[str, list[tuple[str, pa.DataType]]] = {
    "records": [("records", pa.int64())],
    "total": [("total", pa.int64())],
    "mean": [("mean__sum", pa.int64()), ("mean__count", pa.int64())],
    "least": [("least", pa.int32())],
    "most": [("most", pa.string())],
    "first": [("first", _BEST)],
    "last": [("last", _BEST)],
    "words": [("words", pa.list_(pa.string()))],
    "best": [("best", _BY)],
    "worst": [("worst", _BY)],
    "spread_out": [("spread_out__state", STATE)],
    "variance": [("variance__state", STATE)],
    "median": [("median", _COUNTED)],
    "different": [("different", _COUNTED)],
    "largest": [("largest__state", pa.list_(_BY))],
}
_TYPES = {"word": pa.string(), "n": pa.int32()}


def _settled(name: str) -> Any:
    aggregate = (AGGREGATES | MORE)[name]
    types = {part: _TYPES[column] for part, column in aggregate.algebra.parts().items()}
    return aggregate.with_algebra(aggregate.algebra.settled(types))


class _Here(FlowQuery):
    """Asks no session whether its workers are here."""

    def rows(self, planned: Planned) -> pa.Table:
        assert self.compiled.arrow is not None
        columns = self.compiled.columns
        found = [batch for name, chosen in planned.items() for batch in ranges.read_on_driver(columns[name], chosen)]
        return pa.Table.from_batches(found, self.compiled.arrow)

    def named(self, name: str, start: Any) -> _Here:
        return _Here(super().named(name, start).compiled, None)  # type: ignore[arg-type]


class Sparkless:
    """`view`, and with `emit` a flow of the same into the topic `changes`."""

    def __init__(
        self,
        home: Path,
        window: Window | None,
        *,
        groups: Sequence[str] = ("word",),
        grace: int = 0,
        within: int = 0,
        partitions: int = 1,
        names: Sequence[str] = tuple(AGGREGATES),
        emit: Any = None,
        time: str = "at",
        clock_us: Clock | None = None,
        idle_us: int = 10**15,
        log: Any = None,
        **more: Any,
    ) -> None:
        self.log: Any = EmbeddedLog(home, clock_us=clock_us) if log is None else log
        self._clock = {} if clock_us is None else {"clock_us": clock_us}
        self.topic = self.log.create_topic(
            "events",
            "word string, n int, at timestamp",
            event_time="at",
            partitions=partitions,
            durability="os",
            exist_ok=True,
        )
        if emit is not None:
            self.log.create_topic("view", _target(groups, names), durability="os", exist_ok=True)
        aggregates = {name: _settled(name) for name in names}
        late = hr.correct(within=f"{within} seconds") if within else hr.drop()
        self.flow = Flow(
            name="view",
            inputs=(Input(self.topic),),
            window=window,
            time=None if time == "at" else time,
            grace_us=grace * 1_000_000,
            late=late,
            idle_us=idle_us,
            groups=tuple(groups),
            aggregates=aggregates,
            target=None if emit is None else "view",
            emit=emit,
            **more,
        )
        self.store, self.home = SqliteViews(home), home
        self.store._db.execute("PRAGMA synchronous=OFF")  # no test of this pulls a plug
        self.compiled = self._compiled(aggregates, time)
        self.loop = self.started()

    def _compiled(self, aggregates: Any, time: str) -> Compiled:
        flow = self.flow
        slots, results, partials = [], [], []
        for name, aggregate in aggregates.items():
            slots += [SlotColumn(slot.name, slot.type, slot.rule, slot.of) for slot in aggregate.slots(name)]
            shown = aggregate.algebra.shown(name)
            results.append(Result(name, shown.type, shown.slots, shown.unless))
            partials += _PARTIALS[name]
        shown = None if flow.window is None or flow.lives else flow.window
        kind, length = ("fixed", None) if shown is None else (shown.kind, shown.kept_us)
        columns = tuple(Column(name, "int" if name == "n" else "string") for name in flow.groups)
        view = ViewSpec(
            "view", columns, tuple(slots), tuple(results), length, flow.keep_us, flow.target is None, windows=kind
        )
        spec = FlowSpec(
            "view",
            "tests",
            ("events",),
            view,
            aggregates={name: str(aggregate) for name, aggregate in aggregates.items()},
            grace_us=flow.grace_us,
            within_us=flow.late.within_us,
            time=None if flow.lives else flow.time,
            target=flow.target,
            emit=flow.emit,
        )
        spec = replace(spec, tables=Fold(spec, aggregates).tables)
        kinds = {field.name: field.type for field in self.topic.schema}
        schema = [(name, kinds[name]) for name in flow.groups]
        schema += [(name, pa.int64()) for name in JUDGED] if flow.window else []
        schema += partials
        schema += [("_first", pa.int64()), ("_last", pa.int64())] if flow.window and flow.window.joins_us else []
        schema += [("_records", pa.int64()), ("_updated_at", INSTANT)]
        judge = judge_of(flow, time) if flow.window else None
        arrow = ArrowPartials(pa.schema(schema), judge, time, flow.groups, aggregates)
        struct = StructType([StructField(name, NullType()) for name in (*self.topic.schema.names, *META)])
        read = ranges.Columns(
            self.topic, self.topic.schema, struct, frozenset(struct.names), ranges.AfterRead(struct, (arrow.of,))
        )
        return Compiled(flow, flow, spec, Reads({"events": read}, arrow.schema), time)

    def started(self, *, at_once: bool = True) -> FlowLoop:
        """As a program that is started again would."""
        query = _Here(self.compiled, None)  # type: ignore[arg-type]
        self.loop = FlowLoop(query, log=self.log, store=self.store, at_once=at_once, **self._clock)
        self.loop.begin()
        return self.loop

    def rebuilt(self) -> Rebuild:
        """A version beside the view, made anew."""
        query = _Here(self.loop._query.named("view/next", "earliest").compiled, None)  # type: ignore[arg-type]
        home = Home.at(self.log.home)
        made = Rebuild(query, log=self.log, home=home, store=self.store, loop_settings=self._clock, let_go=lambda: None)
        made.make()
        return made

    def running(self, *names: str, place: Home | None = None, **changes: Any) -> Running:
        """An app that runs the flow under these names, with a store of its own, as another process has; `changes`: its
        program is another one."""
        flows, queries = {}, {}
        for name in names:
            made = _Here(self.compiled, None).named(name, "earliest").compiled  # type: ignore[arg-type]
            flow = replace(made.flow, name=name, **changes)
            flows[name] = flow
            queries[name] = _Here(replace(made, given=flow, flow=flow), None)  # type: ignore[arg-type]
        place = place or Home.at(self.log.home)
        running = Running("tests", flows, self.log, place, None, 1_000_000, {})
        running._queries.update(queries)
        return running

    @property
    def views(self) -> Views:
        return open_views(self.home)

    def close(self) -> None:
        self.store.close()
        self.log.close()

    def __enter__(self) -> Sparkless:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _target(groups: Sequence[str], names: Sequence[str]) -> str:
    kinds = [f"{name} {'int' if name == 'n' else 'string'}" for name in groups]
    kinds += [f"{name} {_settled(name).algebra.shown(name).type}" for name in names]
    return ", ".join(["op string", "window_start timestamp", "window_end timestamp", *kinds])
