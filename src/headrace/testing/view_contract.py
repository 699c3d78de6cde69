"""The behaviour any view store must show, as a pytest suite to inherit. Owns the promises behind
`headrace.views.contract`, one test each; knows no implementation. Needs pytest and hypothesis.

    class TestMyViews(ViewStoreContract):
        def open_store(self, home): return MyViews(home)
        def open_views(self, home): return my_views(home)            # the reading side

What must come out is computed twice: by the store, and by a few lines of plain Python over all records at once. However
records are cut into commits and partial rows, both have to agree."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.aggregates import ORDER, Aggregate, collect, count_distinct, over_changes, top_k
from headrace.aggregates import max as greatest
from headrace.aggregates import min as least
from headrace.aggregates.exact import exact_sum, rounded
from headrace.errors import (
    AggregateFailed,
    Closed,
    CommitConflict,
    DoesNotFit,
    FlowChanged,
    FlowFenced,
    InvalidArgument,
    InvalidName,
    TransformRefused,
    UnknownView,
    ViewTaken,
)
from headrace.position import Position
from headrace.testing.folding import FoldingStore, PartialCommit
from headrace.views.contract import (
    ROWS,
    Column,
    FlowSpec,
    FlowState,
    LedgerRow,
    Mark,
    Outgoing,
    Place,
    ReadMark,
    Result,
    SlotColumn,
    TableSpec,
    ViewSpec,
    Writes,
)
from headrace.views.values import arrow_type

__all__ = ["ViewStoreContract"]

SECOND = 1_000_000
T0 = 1_767_225_600 * SECOND  # 2026-01-01
SIZE = 10 * SECOND
INSTANT = pa.timestamp("us", tz="UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

examples = settings(
    max_examples=settings().max_examples // 8,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.differing_executors,  # a suite has several heirs
    ],
    deadline=None,
)
"""Few, by the profile that is loaded: each is several synced commits."""


def moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


# -- values of every type ------------------------------------------------------------------------------


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale, _WIDE))


_WIDE = Context(prec=80)
_floats = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": _floats,
    "double": st.floats() | _floats,
    "decimal(38,0)": _decimals(38, 0),
    "decimal(38,38)": _decimals(38, 38),
    "decimal(5,2)": _decimals(5, 2),
    "string": st.text(max_size=5)
    | st.sampled_from(["", "a\0b", "a\0", "a", "'", '"', "NaN", "10", "9", "größe", "😀"]),
    "binary": st.binary(max_size=4) | st.sampled_from([b"", b"\0", b"NaN", b"\xff"]),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)) | st.sampled_from([moment(T0), moment(T0 + 1), moment(T0 - 1)]),
    "timestamp_ntz": st.datetimes() | st.just(datetime(2026, 1, 1)),
}
"""What a column may hold, by its type: everything a view can keep."""


def plain(value: Any) -> Any:
    """For comparing: NaN is itself, and there is one zero."""
    if isinstance(value, float):
        return "not a number" if math.isnan(value) else value + 0.0
    return value


def ranked(value: Any) -> Any:
    """For ordering: NaN is above all numbers."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


NAMES = ['a"b', "select", 'x";drop table _flows;--', "x'y", "größe", "rowid", "oid", "_rowid_", "a b", "?1", ":x", "%s"]
NAMES += ["excluded", "s", "t", "number", "k0", "[x]", "`x`", "a.b", "\n", "row", "value", "closed", "flow"]
"""What a user's column may be called."""


# -- flows ---------------------------------------------------------------------------------------------


def counting(
    name: str = "clicks",
    *,
    window: bool = True,
    groups: Sequence[Column] = (Column("page", "string"),),
    keep_us: int | None = None,
    **more: Any,
) -> FlowSpec:
    """Counts records by page, in windows of ten seconds."""
    view = ViewSpec(
        name,
        tuple(groups),
        (SlotColumn("n", "bigint", "add"),),
        (Result("n", "bigint", ("n",)),),
        (SIZE, SIZE) if window else None,
        keep_us,
        more.get("emit") is None,
    )
    more = {"aggregates": {"n": "count()"}, "window": "tumbling('10 seconds')" if window else "", **more}
    return FlowSpec(name, "shop", ("clicks",), view, **more)


def counted(spec: FlowSpec, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Partial rows of `counting`: (window number, *groups, n) or, with one more, corrections."""
    assert spec.view is not None
    groups, found = spec.view.groups, list(rows)
    if spec.view.window_us is None:
        found = [(0, *row) for row in found]
    starts = [T0 + row[0] * spec.view.window_us[1] if spec.view.window_us else 0 for row in found]
    columns: dict[str, pa.Array] = {}
    if spec.view.window_us:
        columns["window_start"] = pa.array(starts, pa.int64()).cast(INSTANT)
        columns["window_end"] = pa.array([at + spec.view.window_us[0] for at in starts], pa.int64()).cast(INSTANT)
    for number, group in enumerate(groups, start=1):
        columns[group.name] = pa.array([row[number] for row in found], arrow_type(group.type))
    at = len(groups) + 1
    columns["n"] = pa.array([row[at] for row in found], pa.int64())
    columns["_corrections"] = pa.array([row[at + 1] if len(row) > at + 1 else 0 for row in found], pa.int64())
    columns["_updated_at"] = pa.array([moment(T0)] * len(found), INSTANT)
    return pa.table(columns)


BUSY = (Column("copy", "bigint"), Column("half", "double"))


def shaping(name: str = "clicks", *, shaped: Sequence[Column] = BUSY, **more: Any) -> FlowSpec:
    """As `counting`, and readers see what a function, such as `busy`, makes of it."""
    spec = counting(name, **more)
    assert spec.view is not None
    return replace(spec, view=replace(spec.view, shaped=tuple(shaped)))


def busy(table: pa.Table) -> pa.Table:
    """Results of more than 2 (a threshold), once for each more (explode), with half of the count (a ratio)."""
    found = [{**row, "copy": n, "half": row["n"] / 2} for row in table.to_pylist() for n in range(row["n"] - 2)]
    added = [pa.field("copy", pa.int64()), pa.field("half", pa.float64())]
    return pa.Table.from_pylist(found, schema=pa.schema([*table.schema, *added])).drop_columns(["n"])


def commit(
    state: FlowState,
    partials: pa.Table | None = None,
    *,
    shape: Any = None,
    aggregates: Any = None,
    **facts: Any,
) -> PartialCommit:
    facts = {"sequence": state.sequence, "places": {}, "topic_ids": {}, **facts}
    return PartialCommit(partials, shape, FUNCTIONS if aggregates is None else aggregates, facts)


# -- every rule at once, and its model -------------------------------------------------------------------

Record = tuple[Any, Any, int, int, int]
"""Group, value, seconds, partition, offset."""


def all_rules(name: str, ddl: str) -> FlowSpec:
    """Least, greatest, first, last, the number of different values, the most frequent and the earliest ones of a
    column of that type, the latter made of all that are kept, too; and the offset where it is least and greatest."""
    order = [("at", "timestamp"), ("partition", "int"), ("offset", "bigint")]
    slots = [SlotColumn("lo", ddl, "least"), SlotColumn("hi", ddl, "greatest")]
    for slot, rule in ("one", "earliest"), ("end", "latest"):
        slots.append(SlotColumn(slot, ddl, rule, slot))  # type: ignore[arg-type]
        slots += [SlotColumn(f"{slot}__{part}", kind, rule, slot) for part, kind in order]  # type: ignore[arg-type]
    for slot, rule in ("low", "least_by"), ("high", "greatest_by"):
        slots.append(SlotColumn(slot, "bigint", rule, slot))  # type: ignore[arg-type]
        by = [("by", ddl), *order]
        slots += [SlotColumn(f"{slot}__{part}", kind, rule, slot) for part, kind in by]  # type: ignore[arg-type]
    slots.append(SlotColumn("kinds", ddl, "distinct"))
    slots.append(SlotColumn("most", f"array<struct<value:{ddl},count:bigint>>", "kept", ddl))
    slots.append(SlotColumn("top", f"array<struct<value:{ddl},count:bigint>>", "counted"))
    kept = ",".join(f"{part}:{kind}" for part, kind in [*order, ("value", ddl)])
    slots.append(SlotColumn("some__state", f"array<struct<{kept}>>", "merged"))
    slots.append(SlotColumn("some", f"array<{ddl}>", "finished", "some__state"))
    results = [
        *(Result(each, ddl, (each,)) for each in ("lo", "hi", "one", "end")),
        *(Result(each, "bigint", (each,)) for each in ("low", "high", "kinds")),
        *(Result(slot.name, slot.type, (slot.name,)) for slot in slots if slot.name in ("most", "top", "some")),
    ]
    view = ViewSpec(name, (Column("g", "string"),), tuple(slots), tuple(results))
    return FlowSpec(name, "shop", ("clicks",), view)


FUNCTIONS = {"top": top_k("x", 2), "some": collect("x", 3), "most": over_changes("most", top_k("x", 2), {})}
"""Of `all_rules`, what no SQL merges."""


def partial(records: Sequence[Record]) -> dict[str, Any]:
    """What the records come to, in slots."""
    known = [record for record in records if record[1] is not None]
    values = [record[1] for record in known]
    place = lambda record: (*record[2:], ranked(record[1]))  # noqa: E731
    out: dict[str, Any] = {"lo": min(values, key=ranked, default=None), "hi": max(values, key=ranked, default=None)}
    for slot, best in ("one", min), ("end", max):
        found = best(known, key=place, default=None)
        out[slot] = None if found is None else found[1]
        out[f"{slot}__at"] = None if found is None else moment(T0 + found[2] * SECOND)
        out[f"{slot}__partition"], out[f"{slot}__offset"] = (None, None) if found is None else found[3:]
    for slot, best in ("low", min), ("high", max):
        found = best(known, key=lambda record: (ranked(record[1]), *record[2:]), default=None)
        out[slot], out[f"{slot}__by"] = (None, None) if found is None else (found[4], found[1])
        out[f"{slot}__at"] = None if found is None else moment(T0 + found[2] * SECOND)
        out[f"{slot}__partition"], out[f"{slot}__offset"] = (None, None) if found is None else found[3:]
    out["kinds"] = values
    out["top"] = out["most"] = [{"value": value, "count": 1} for value in values]
    earliest = [(moment(T0 + record[2] * SECOND), *record[3:], record[1]) for record in sorted(known, key=place)]
    out["some__state"] = [dict(zip((*ORDER, "value"), each, strict=True)) for each in earliest[:3]]
    return out


def partial_rows(spec: FlowSpec, pieces: Sequence[Sequence[Record]]) -> pa.Table:
    """A partial row for each piece, whose records are of one group."""
    assert spec.view is not None
    rows = [{"g": piece[0][0], **partial(piece)} for piece in pieces]
    columns = {"g": pa.array([row["g"] for row in rows], pa.string())}
    for slot in spec.view.slots:
        kind = arrow_type(slot.type)
        kind = pa.list_(kind) if slot.rule == "distinct" else kind
        if slot.rule == "kept":
            kind = pa.list_(pa.struct([("value", arrow_type(slot.of)), ("count", pa.int64())]))
        if slot.rule != "finished":
            columns[slot.name] = pa.array([row[slot.name] for row in rows], kind)
    columns["_corrections"] = pa.array([0] * len(rows), pa.int64())
    columns["_updated_at"] = pa.array([moment(T0)] * len(rows), INSTANT)
    return pa.table(columns)


def seen(records: Sequence[Record]) -> tuple[Any, ...]:
    """What a reader must see of them."""
    all_of_them = partial(records)
    times = Counter(plain(value) for value in all_of_them["kinds"])
    known = {plain(value): ranked(value) for value in all_of_them["kinds"]}
    top = sorted(times.items(), key=lambda each: (-each[1], known[each[0]]))[:2]
    some = [plain(each["value"]) for each in all_of_them["some__state"]]
    places = tuple(all_of_them[name] for name in ("low", "high"))
    return (*(plain(all_of_them[name]) for name in ("lo", "hi", "one", "end")), *places, len(times), top, top, some)


def found_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a reader does see."""
    lists = [[(plain(each["value"]), each["count"]) for each in row[name]] for name in ("most", "top")]
    some, places = [plain(value) for value in row["some"]], (row["low"], row["high"])
    return (*(plain(row[name]) for name in ("lo", "hi", "one", "end")), *places, row["kinds"], *lists, some)


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, count), max_size=4).map(lambda at: sorted({0, count, *at}))


# ------------------------------------------------------------------------------------------------------


class Setting:
    """How to open a store, and what the tests do with one."""

    def open_store(self, home: Path) -> Any:
        raise NotImplementedError("return a store that keeps what it has in this directory")

    def open_views(self, home: Path) -> Any:
        raise NotImplementedError("return what reads the views in this directory")

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        return tmp_path / "home"

    @pytest.fixture
    def store(self, home: Path) -> Iterator[Any]:
        with self.opened(home) as store:
            yield store

    def opened(self, home: Path) -> Any:
        """The store, whose commits are folded first."""
        return FoldingStore(self.open_store(home))

    @pytest.fixture
    def views(self, store: Any, home: Path) -> Any:  # noqa: ARG002 (makes it)
        return self.open_views(home)


def rows(views: Any, view: str = "clicks") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = views.to_arrow(view).to_pylist()
    return found


def counts(views: Any, view: str = "clicks") -> dict[Any, int]:
    """(window number, page) -> n, or page -> n without windows."""
    out = {}
    for row in rows(views, view):
        start = row.get("window_start")
        page = row.get("page")
        out[page if start is None else (((start - moment(T0)) // timedelta(microseconds=SIZE)), page)] = row["n"]
    return out


class FlowContract(Setting):
    """Who may write, and that a commit is all or nothing."""

    def test_a_flow_begins_with_nothing(self, store: Any, views: Any) -> None:
        state = store.begin(counting())
        assert (state.name, state.sequence, state.places, state.topic_ids, state.frontier_us) == (
            "clicks",
            0,
            {},
            {},
            None,
        )
        assert rows(views) == [] and store.outbox("clicks") == [] and views.names() == ["clicks"]
        assert store.last_window_end("clicks") is None and not store.closes("clicks", T0 + 100 * SIZE)

    def test_a_commit_changes_everything_together(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        out = Outgoing("letters", pa.table({"a": [1, 2]}))
        places = {"clicks": {0: Place(7, T0 + 5 * SECOND), 1: Place(0, None)}}
        state = store.commit(
            state,
            commit(
                state,
                counted(spec, [(0, "/", 3), (1, "/a", 1)]),
                places=places,
                topic_ids={"clicks": "id-1"},
                frontier_us=T0 + 12 * SECOND,
                closed_us=T0 + SIZE,
                ledger=[LedgerRow(T0, T0 + SIZE, on_time=3, dropped=1), LedgerRow(None, None, untimed=2)],
                outgoing=[out],
            ),
        )
        assert (state.sequence, state.places, state.topic_ids) == (1, places, {"clicks": "id-1"})
        assert state.frontier_us == T0 + 12 * SECOND and store.state("clicks") == state
        assert [(row["page"], row["n"], row["_status"]) for row in rows(views)] == [
            ("/", 3, "final"),
            ("/a", 1, "open"),
        ]
        assert [tuple(row.values()) for row in views.ledger("clicks").to_pylist()] == [
            (None, None, 0, 0, 0, 2),
            (moment(T0), moment(T0 + SIZE), 3, 0, 1, 0),
        ]
        (waiting,) = store.outbox("clicks")
        assert (waiting.sequence, waiting.target, waiting.base, waiting.rows) == (0, "letters", 0, out.rows)
        assert store.last_window_end("clicks") == T0 + 2 * SIZE

    def test_the_ledger_adds_up(self, store: Any, views: Any) -> None:
        state = store.begin(counting())
        for _ in range(3):
            ledger = [LedgerRow(T0, T0 + SIZE, 1, 2, 3), LedgerRow(None, None, untimed=1)]
            state = store.commit(state, commit(state, ledger=ledger))
        assert [tuple(row.values())[2:] for row in views.ledger("clicks").to_pylist()] == [(0, 0, 0, 3), (3, 6, 9, 0)]

    def test_places_are_replaced_one_by_one(self, store: Any) -> None:
        state = store.begin(counting())
        ids = {"clicks": "id"}
        state = store.commit(
            state, commit(state, places={"clicks": {0: Place(1, T0), 1: Place(2, None)}}, topic_ids=ids)
        )
        state = store.commit(state, commit(state, places={"clicks": {0: Place(9, T0 + 1)}}, topic_ids=ids))
        assert state.places == {"clicks": {0: Place(9, T0 + 1), 1: Place(2, None)}}

    def test_the_newest_mark_of_what_was_read_and_all_that_were_raised_stay(self, store: Any, home: Path) -> None:
        state = store.begin(counting())
        assert store.read_marks("clicks") == []
        marks = [ReadMark("clicks", 0, offset, T0 + offset, T0, raised=offset == 2) for offset in (1, 2, 3)]
        other = ReadMark("clicks", 1, 9, None, None)
        for some in marks[:1], marks[1:2], [marks[2], other]:
            state = store.commit(state, commit(state, read_marks=some))
        with self.opened(home) as again:
            for found in store.read_marks("clicks"), again.read_marks("clicks"):
                assert {*marks[1:], other} <= {*found} <= {*marks, other}

    def test_where_a_flow_began_and_that_it_is_the_same_stays(self, store: Any, home: Path) -> None:
        state = store.begin(counting())
        assert state.begins == {}
        ids, begins = {"clicks": "id"}, {"clicks": {0: Place(5, T0), 1: Place(0, None)}}
        state = store.commit(state, commit(state, places=begins, begins=begins, topic_ids=ids))
        for offset in 7, 9:
            state = store.commit(state, commit(state, places={"clicks": {0: Place(offset, T0 + 1)}}, topic_ids=ids))
        assert state.begins == begins and state.places["clicks"][0].offset == 9
        with self.opened(home) as other:
            assert other.begin(counting()).begins == begins
            assert other.state("clicks").born == state.born != ""
            anew = other.begin(counting(), replace=True)
            assert anew.begins == {} and anew.born not in ("", state.born)

    def test_the_outbox_counts_rows_by_target_until_they_are_relayed(self, store: Any) -> None:
        state = store.begin(counting())
        table = pa.table({"a": [1, 2, 3]})
        state = store.commit(state, commit(state, outgoing=[Outgoing("x", table), Outgoing("y", table[:1])]))
        state = store.commit(state, commit(state, outgoing=[Outgoing("x", table[:2]), Outgoing("x", table[2:])]))
        found = [(each.sequence, each.target, each.base, each.rows["a"].to_pylist()) for each in store.outbox("clicks")]
        assert found == [(0, "x", 0, [1, 2, 3]), (0, "y", 0, [1]), (1, "x", 3, [1, 2]), (1, "x", 5, [3])]
        state = store.commit(state, commit(state, relayed=0))
        assert [each.base for each in store.outbox("clicks")] == [3, 5]
        state = store.commit(state, commit(state, relayed=1, outgoing=[Outgoing("x", table)]))
        assert [(each.sequence, each.base) for each in store.outbox("clicks")] == [(3, 6)]
        store.commit(state, commit(state, relayed=-1))
        assert len(store.outbox("clicks")) == 1, "nothing comes back"

    def test_what_was_relayed_leaves_the_outbox_without_a_commit(self, store: Any) -> None:
        state = store.begin(counting())
        state = store.commit(state, commit(state, outgoing=[Outgoing("x", pa.table({"a": [1, 2, 3]}))]))
        store.note_relayed(state, 0, Position.of("x", "1d", {0: 3}))
        assert store.outbox("clicks") == [] and store.state("clicks").sequence == state.sequence
        state = store.commit(state, commit(state, outgoing=[Outgoing("x", pa.table({"a": [4]}))]))
        assert [each.base for each in store.outbox("clicks")] == [3]
        stale, state = state, store.begin(counting())
        with pytest.raises(FlowFenced):
            store.note_relayed(stale, 1, Position.of("x", "1d", {0: 4}))
        assert len(store.outbox("clicks")) == 1

    def test_a_place_keeps_when_the_record_before_it_arrived(self, store: Any) -> None:
        state = store.begin(counting())
        for arrived_us in (T0, T0 + 1, None):
            at = {"places": {"clicks": {0: Place(5, None, arrived_us)}}, "topic_ids": {"clicks": "1d"}}
            state = store.commit(state, commit(state, **at))
            assert state.places["clicks"][0].arrived_us == arrived_us
            assert store.begin(counting()).places["clicks"][0].arrived_us == arrived_us
            state = store.begin(counting())

    def test_a_fence_ends_with_a_switch_or_when_it_is_let_go(self, store: Any) -> None:
        spec = counting()
        assert spec.view is not None
        store.begin(spec)
        assert not store.is_fenced("clicks") and store.program("clicks") is None
        store.unfence(store.fence("clicks"))
        assert not store.is_fenced("clicks")
        beside = replace(spec, name="clicks/next", view=replace(spec.view, name="clicks/next"))
        store.begin_beside(beside, "made so")
        made, fenced = store.begin(beside), store.fence("clicks")
        assert store.is_fenced("clicks")
        store.switch(fenced, made)
        assert not store.is_fenced("clicks") and store.program("clicks") == "made so"
        store.unfence(fenced)
        assert store.state("clicks").epoch > fenced.epoch, "there is nothing to let go of"

    def test_tables_of_a_flow_are_written_with_its_commit_and_go_with_it(self, store: Any) -> None:
        pages = TableSpec("pages", (Column("stretch", "bigint"), Column("page", "bigint")), (Column("bits", "binary"),))
        spec = replace(counting(), view=None, tables=(pages,))

        def written(state: FlowState, *rows: tuple[int, int, bytes], gone: Sequence[int] = ()) -> FlowState:
            columns = dict(zip(("stretch", "page", "bits"), map(list, zip(*rows, strict=True)), strict=True))
            deletes = {"pages": pa.table({"stretch": list(gone)})} if gone else {}
            writes = Writes(puts={"pages": pa.table(columns)}, deletes=deletes)
            made: FlowState = store.commit(state, commit(state, writes=writes))
            return made

        def kept(state: FlowState) -> list[tuple[Any, ...]]:
            found = store.read_state(state).scan("pages", pa.table({"x": [1]}).select([]))
            return [tuple(row.values()) for row in found.to_pylist()]

        state = written(store.begin(spec), (7, 0, b"a"), (8, 1, b"b"), (-9, 0, b"c"))
        assert kept(state) == [(-9, 0, b"c"), (7, 0, b"a"), (8, 1, b"b")]
        stale, state = state, written(state, (8, 1, b"d"), (8, 2, b"e"), gone=[7])
        with pytest.raises(CommitConflict):
            written(stale, (9, 0, b"f"))
        fenced, state = state, store.begin(spec)
        with pytest.raises(FlowFenced):
            written(fenced, (9, 0, b"f"))
        assert kept(state) == [(-9, 0, b"c"), (8, 1, b"d"), (8, 2, b"e")]
        for key, columns in (pages.key, (Column("words", "string"),)), (pages.key[:1], pages.columns):
            with pytest.raises(FlowChanged, match=r"what is kept: (bits binary|page bigint) went"):
                store.begin(replace(spec, tables=(replace(pages, key=key, columns=columns),)))
        store.drop("clicks")
        assert kept(store.begin(spec)) == []

    def test_neither_frontier_nor_what_is_closed_goes_back(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        state = store.commit(
            state, commit(state, counted(spec, [(0, "/", 1)]), frontier_us=T0 + 2 * SIZE, closed_us=T0 + SIZE)
        )
        assert rows(views)[0]["_status"] == "final"
        for frontier, closed in (T0, T0 - SIZE), (None, None):
            state = store.commit(state, commit(state, frontier_us=frontier, closed_us=closed))
            assert state.frontier_us == T0 + 2 * SIZE
            assert rows(views)[0]["_status"] == "final"

    def test_a_window_closes_at_its_end_exactly(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 1), (1, "/", 1)]), closed_us=T0 + SIZE - 1))
        assert [row["_status"] for row in rows(views)] == ["open", "open"]
        assert store.closes("clicks", T0 + SIZE) and not store.closes("clicks", T0 + SIZE - 1)
        state = store.commit(state, commit(state, closed_us=T0 + SIZE))
        assert [row["_status"] for row in rows(views)] == ["final", "open"]
        assert not store.closes("clicks", T0 + 2 * SIZE - 1) and store.closes("clicks", T0 + 2 * SIZE)

    def test_without_windows_nothing_is_final(self, store: Any, views: Any) -> None:
        spec = counting(window=False)
        state = store.begin(spec)
        store.commit(state, commit(state, counted(spec, [("/", 1)]), closed_us=T0))
        assert rows(views)[0]["_status"] == "open" and not store.closes("clicks", T0)

    # -- who may write ------------------------------------------------------------------------------

    def test_a_batch_is_applied_once(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        rows, ledger = counted(spec, [(0, "/", 1)]), [LedgerRow(T0, T0 + SIZE, 1)]
        after = store.commit(state, commit(state, rows, ledger=ledger))
        for sequence in (state.sequence, 2, -1):
            with pytest.raises(CommitConflict) as error:
                store.commit(after, commit(after, rows, ledger=ledger, sequence=sequence))
            assert (error.value.flow, error.value.sequence, error.value.current) == ("clicks", sequence, 1)
        assert counts(views) == {(0, "/"): 1} and store.state("clicks") == after
        assert views.ledger("clicks")["on_time"].to_pylist() == [1]

    def test_whoever_begins_fences_whoever_began_before(self, store: Any, views: Any, home: Path) -> None:
        spec = counting()
        old = store.begin(spec)
        old = store.commit(old, commit(old, counted(spec, [(0, "/", 1)])))
        with self.opened(home) as other:
            new = other.begin(spec)
            assert new.epoch > old.epoch and new.sequence == 1
            with pytest.raises(FlowFenced) as error:
                store.commit(old, commit(old, counted(spec, [(0, "/", 1)])))
            assert (error.value.epoch, error.value.current_epoch) == (old.epoch, new.epoch)
            assert counts(views) == {(0, "/"): 1}
            new = other.commit(new, commit(new, counted(spec, [(0, "/", 1)])))
        assert counts(views) == {(0, "/"): 2}

    def test_epochs_are_never_used_twice(self, store: Any) -> None:
        first = store.begin(counting())
        store.drop("clicks")
        with pytest.raises(FlowFenced):
            store.commit(first, commit(first))
        second = store.begin(counting())
        assert second.epoch > first.epoch
        with pytest.raises(FlowFenced):
            store.commit(first, commit(first))

    def test_two_flows_commit_beside_each_other(self, store: Any, views: Any) -> None:
        def work(name: str) -> None:
            spec = counting(name)
            state = store.begin(spec)
            for _ in range(10):
                state = store.commit(state, commit(state, counted(spec, [(0, "/", 1)])))

        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [counts(views, name) for name in ("a", "b", "c")] == [{(0, "/"): 10}] * 3

    def test_a_failed_commit_changes_nothing(self, store: Any) -> None:
        spec = counting(emit="updates", target="out")
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 1)])))
        before = store.outbox("clicks")

        def broken(table: pa.Table) -> pa.Table:
            raise RuntimeError(f"in the user's function, with {table.num_rows} rows")

        with pytest.raises(RuntimeError, match="in the user's function, with 2 rows"):
            store.commit(
                state,
                commit(state, counted(spec, [(0, "/", 1)]), shape=broken, ledger=[LedgerRow(T0, T0 + SIZE, 1)]),
            )
        assert store.state("clicks") == state and store.outbox("clicks") == before
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 5)])))
        assert [row["n"] for row in store.outbox("clicks")[-1].rows.to_pylist()] == [1, 6]

    def test_a_closed_store_says_so(self, home: Path) -> None:
        store = self.opened(home)
        state = store.begin(counting())
        store.close()
        store.close()
        uses: list[Callable[[], Any]] = [
            lambda: store.begin(counting()),
            lambda: store.commit(state, commit(state)),
            lambda: store.state("clicks"),
            lambda: store.outbox("clicks"),
            lambda: store.closes("clicks", T0),
            lambda: store.last_window_end("clicks"),
            lambda: store.drop("clicks"),
        ]
        for use in uses:
            with pytest.raises(Closed):
                use()

    def test_what_was_committed_is_there_when_opened_again(self, home: Path) -> None:
        spec = counting()
        with self.opened(home) as store:
            state = store.begin(spec)
            before = store.commit(state, commit(state, counted(spec, [(0, "/", 1)]), frontier_us=T0 + 1))
        with self.opened(home) as store:
            assert store.state("clicks") == before
            after = store.begin(spec)
            assert replace(after, epoch=before.epoch) == before
        assert counts(self.open_views(home)) == {(0, "/"): 1}

    # -- what a flow is -----------------------------------------------------------------------------

    def test_a_view_belongs_to_one_app(self, store: Any) -> None:
        store.begin(counting())
        with pytest.raises(ViewTaken) as error:
            store.begin(replace(counting(), app="other"))
        assert (error.value.view, error.value.app) == ("clicks", "shop")
        with pytest.raises(ViewTaken):
            store.begin(replace(counting(), app="other"), replace=True)

    def test_names_that_differ_in_case_only_are_one_name(self, store: Any) -> None:
        store.begin(counting("Clicks"))
        with pytest.raises(ViewTaken, match="'Clicks'"):
            store.begin(counting("clicks"))

    def test_names_of_views_cannot_meet(self, store: Any, views: Any) -> None:
        names = ["a", "a__state", "a__n", "a.b", "a-b", "select", "touched", "1", "a_state"]
        for number, name in enumerate(names):
            spec = counting(name)
            state = store.begin(spec)
            store.commit(state, commit(state, counted(spec, [(0, "/", number)])))
        assert [counts(views, name)[0, "/"] for name in names] == list(range(len(names)))
        assert views.names() == sorted(names)
        for name in names:
            store.drop(name)
        assert views.names() == []

    @pytest.mark.parametrize("name", ["_flows", "_meta", "_mine", "sqlite_master", "SQLITE_x", 'a"b', "a'b", "", "a b"])
    def test_a_name_that_cannot_be_a_view(self, store: Any, views: Any, name: str) -> None:
        with pytest.raises(InvalidName):
            store.begin(counting(name))
        assert views.names() == []

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"sources": ("clicks", "orders")}, "source: clicks became clicks, orders"),
            ({"window": "tumbling('1 minute')"}, "window: tumbling('10 seconds') became tumbling('1 minute')"),
            ({"grace_us": 5 * SECOND}, "grace: '0 seconds' became '5 seconds'"),
            ({"within_us": 3600 * SECOND}, "late: drop() became correct(within='1 hour')"),
            ({"time": "sent"}, "time: the topic's became sent"),
            ({"aggregates": {"n": "count()", "most": "max(ms)"}}, "aggregate 'most' was added"),
            ({"aggregates": {}}, "aggregate 'n' was removed"),
            ({"aggregates": {"n": "count(where=ms > 1)"}}, "aggregate 'n': count() became count(where=ms > 1)"),
            ({"target": "out", "emit": "final"}, "written to: a view became topic 'out'"),
        ],
        ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
    )
    def test_a_changed_flow_is_refused_by_name(
        self, store: Any, views: Any, change: Mapping[str, Any], said: str
    ) -> None:
        state = store.begin(counting())
        state = store.commit(state, commit(state, counted(counting(), [(0, "/", 1)])))
        with pytest.raises(FlowChanged) as error:
            store.begin(replace(counting(), **change))
        assert said in error.value.changes and said in str(error.value)
        assert store.state("clicks") == state and counts(views) == {(0, "/"): 1}
        assert store.commit(state, commit(state)).sequence == 2, "who was refused has fenced nobody"

    @pytest.mark.parametrize(
        ("groups", "said"),
        [
            ((), "group_by: page string became nothing"),
            ((Column("page", "binary"),), "group_by: page string became page binary"),
            ((Column("page", "string"), Column("b", "int")), "group_by: page string became page string, b int"),
        ],
    )
    def test_another_group_is_another_flow(self, store: Any, groups: tuple[Column, ...], said: str) -> None:
        store.begin(counting())
        with pytest.raises(FlowChanged) as error:
            store.begin(counting(groups=groups))
        assert error.value.changes == [said]

    def test_a_changed_type_is_named_beside_other_changes(self, store: Any) -> None:
        spec = counting()
        store.begin(spec)
        assert spec.view is not None
        wider = replace(spec.view, slots=(SlotColumn("n", "decimal(38,0)", "add"),))
        with pytest.raises(FlowChanged) as error:
            store.begin(replace(spec, view=wider))
        assert error.value.changes == ["aggregate 'n': its type bigint became decimal(38,0)"]
        with pytest.raises(FlowChanged) as error:
            store.begin(replace(spec, view=wider, grace_us=1 * SECOND))
        assert len(error.value.changes) == 2

    def test_results_in_another_order_and_another_keep_are_no_change(self, store: Any, views: Any) -> None:
        slots = (SlotColumn("n", "bigint", "add"), SlotColumn("top", "string", "greatest"))
        results = (Result("n", "bigint", ("n",)), Result("top", "string", ("top",)))
        spec = counting(aggregates={"n": "count()", "top": "max(page)"})
        assert spec.view is not None
        spec = replace(spec, view=replace(spec.view, slots=slots, results=results))
        state = store.begin(spec)
        table = counted(spec, [(0, "/", 1)]).append_column("top", pa.array(["x"]))
        store.commit(state, commit(state, table))
        assert spec.view is not None
        other = replace(spec.view, slots=slots[::-1], results=results[::-1], keep_us=3600 * SECOND)
        state = store.begin(replace(spec, view=other, aggregates={"top": "max(page)", "n": "count()"}))
        store.commit(state, commit(state, table))
        (row,) = rows(views)
        assert (row["n"], row["top"]) == (2, "x")
        assert list(row)[3:5] == ["top", "n"]

    def test_replace_begins_anew(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        out = [Outgoing("x", pa.table({"a": [1]}))]
        ledger = [LedgerRow(T0, T0 + SIZE, 1)]
        store.commit(
            state,
            commit(
                state,
                counted(spec, [(0, "/", 1)]),
                outgoing=out,
                ledger=ledger,
                places={"clicks": {0: Place(1, T0)}},
                topic_ids={"clicks": "id"},
                frontier_us=T0,
                closed_us=T0 + SIZE,
            ),
        )
        changed = counting(groups=(Column("page", "int"),))
        new = store.begin(changed, replace=True)
        assert new.epoch > state.epoch and (new.sequence, new.places, new.frontier_us) == (0, {}, None)
        assert rows(views) == [] and store.outbox("clicks") == [] and views.ledger("clicks").num_rows == 0
        new = store.commit(new, commit(new, counted(changed, [(0, 7, 1)]), outgoing=out))
        assert [(row["page"], row["_status"]) for row in rows(views)] == [(7, "open")]
        assert store.outbox("clicks")[0].base == 0

    def test_a_dropped_flow_is_gone(self, store: Any, views: Any) -> None:
        for name in "gone", "stays":
            spec = counting(name)
            state = store.begin(spec)
            store.commit(state, commit(state, counted(spec, [(0, "/", 1)])))
        store.drop("gone")
        assert views.names() == ["stays"] and counts(views, "stays") == {(0, "/"): 1}
        for use in (store.state, store.drop, lambda name: store.closes(name, T0), store.last_window_end):
            with pytest.raises(UnknownView, match=r"no view 'gone'.*stays"):
                use("gone")
        with pytest.raises(UnknownView):
            views.to_arrow("gone")

    def test_what_stays_is_there_after_a_wipe(self, store: Any, views: Any) -> None:
        for name in "gone", "stays":
            spec = counting(name)
            state = store.begin(spec)
            state = store.commit(state, commit(state, counted(spec, [(0, "/", 1)])))
        store.drop("gone")
        assert store.wipe() == []
        store.commit(state, commit(state, counted(spec, [(0, "/", 1)])))
        assert counts(views, "stays") == {(0, "/"): 2}

    @pytest.mark.parametrize("name", ["window_start", "WINDOW_END", "_status", "_corrections", "_updated_at", "n", "N"])
    def test_a_group_that_is_called_like_another_column(self, store: Any, views: Any, name: str) -> None:
        with pytest.raises(InvalidArgument) as error:
            store.begin(counting(groups=(Column(name, "string"),)))
        assert error.value.value in (name, "n")
        assert views.names() == []
        with pytest.raises(InvalidArgument):
            store.begin(counting(groups=(Column("user", "string"), Column("User", "string"))))

    @pytest.mark.parametrize(
        "name",
        NAMES,
    )
    @pytest.mark.parametrize("emit", [None, "updates"])
    def test_any_name_can_be_a_group_and_a_result(self, store: Any, views: Any, name: str, emit: Any) -> None:
        """Null keys, distinct values and changes each have SQL of their own."""
        for place in "group", "result":
            group, result = (name, "n") if place == "group" else ("page", name)
            slots = (SlotColumn(result, "bigint", "add"), SlotColumn("kinds", "string", "distinct"))
            results = (Result(result, "bigint", (result,)), Result("kinds", "bigint", ("kinds",)))
            view = ViewSpec(place, (Column(group, "string"),), slots, results, (SIZE, SIZE), None, emit is None)
            spec = FlowSpec(place, "shop", ("clicks",), view, emit=emit, target=emit and "out")
            state = store.begin(spec)
            plain = counted(counting(), [(0, "/", 1), (0, None, 2), (0, None, 3)])
            table = plain.rename_columns(["window_start", "window_end", group, result, "_corrections", "_updated_at"])
            table = table.append_column("kinds", pa.array([["a"], ["a", "b"], ["c"]]))
            for _ in range(2):
                state = store.commit(state, commit(state, table))
            found = (
                rows(views, place)
                if emit is None
                else [row for row in store.outbox(place)[-1].rows.to_pylist() if row["op"] == "+"]
            )
            assert {(row[group], row[result], row["kinds"]) for row in found} == {("/", 2, 1), (None, 10, 3)}

    def test_a_window_start_can_be_a_group_where_there_are_no_windows(self, store: Any, views: Any) -> None:
        groups = (Column("window_start", "timestamp"), Column("window_end", "string"))
        spec = counting(window=False, groups=groups)
        state = store.begin(spec)
        store.commit(state, commit(state, counted(spec, [(moment(T0), "x", 2)])))
        assert [(row["window_start"], row["window_end"], row["n"]) for row in rows(views)] == [(moment(T0), "x", 2)]


class MergeContract(Setting):
    """However records are cut, the rows are those of all of them at once."""

    @pytest.mark.parametrize("ddl", VALUES)
    @examples
    @given(data=st.data())
    def test_every_rule_for_every_type_under_every_cut(self, store: Any, views: Any, ddl: str, data: Any) -> None:
        places = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2))
        record = st.tuples(st.sampled_from(["a", "b", None]), st.none() | VALUES[ddl], places).map(
            lambda r: (r[0], r[1], *r[2])
        )
        records: list[Record] = data.draw(st.lists(record, min_size=1, max_size=12))
        spec = all_rules("v", ddl)
        state = store.begin(spec, replace=True)
        at = data.draw(cuts(len(records)))
        for start, stop in pairwise(at):
            pieces = []
            for group in {record[0] for record in records[start:stop]}:
                mine = [record for record in records[start:stop] if record[0] == group]
                middle = data.draw(st.integers(0, len(mine)))  # two partial rows of one key, perhaps
                pieces += [piece for piece in (mine[:middle], mine[middle:]) if piece]
            partials = partial_rows(spec, data.draw(st.permutations(pieces)))
            state = store.commit(state, commit(state, partials))
        expected = {
            group: seen([record for record in records if record[0] == group])
            for group in {record[0] for record in records}
        }
        assert {row["g"]: found_of(row) for row in rows(views, "v")} == expected

    @examples
    @given(data=st.data())
    def test_keys_of_every_type_with_nulls(self, store: Any, views: Any, data: Any) -> None:
        ddls = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=0, max_size=3))
        window = data.draw(st.booleans())
        groups = tuple(Column(f"k{number}", ddl) for number, ddl in enumerate(ddls))
        pools = [data.draw(st.lists(st.none() | VALUES[ddl], min_size=1, max_size=3)) for ddl in ddls]
        key = st.tuples(*(st.sampled_from(pool) for pool in pools))
        spec = counting("v", window=window, groups=groups)
        state = store.begin(spec, replace=True)
        expected: Counter[Any] = Counter()
        for batch in data.draw(
            st.lists(st.lists(st.tuples(st.integers(0, 2), key, st.integers(1, 9)), max_size=6), max_size=3)
        ):
            partials = counted(spec, [((n,) if window else ()) + (*k, count) for n, k, count in batch])
            state = store.commit(state, commit(state, partials))
            for n, k, count in batch:
                expected[(moment(T0 + n * SIZE) if window else None, *map(plain, _narrowed(k, ddls)))] += count
        found = {
            (row.get("window_start"), *(plain(row[group.name]) for group in groups)): row["n"]
            for row in rows(views, "v")
        }
        assert found == dict(expected)
        listed = views.to_arrow("v").to_pylist()
        for row in listed:
            where = {name: row[name] for name in spec.view.key}  # type: ignore[union-attr]
            assert len(views.to_arrow("v", where).to_pylist()) == 1, f"found again by {where}"

    def test_a_row_holds_values_as_they_were(self, store: Any, views: Any) -> None:
        """Also the ones nobody draws: the longest decimals, fractions of seconds, the ends of time."""
        given: dict[str, list[Any]] = {
            "decimal(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38)],
            "decimal(38,38)": [Decimal("0." + "9" * 38)],
            "decimal(10,2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("10.00")],
            "timestamp": [moment(T0), moment(T0 + 500_000), moment(1), moment(-1), datetime.max.replace(tzinfo=UTC)],
            "timestamp_ntz": [datetime(2026, 1, 1, 0, 0, 0, 1), datetime.min],
            "date": [date.min, date.max, date(1970, 1, 1)],
            "double": [5e-324, 1.7976931348623157e308, 0.1 + 0.2, math.inf, -math.inf, 2.0**53 + 2],
            "bigint": [2**63 - 1, -(2**63), 2**53 + 1],
            "string": ["\0", "", "x" * 100_000, "'; drop table clicks; --"],
            "binary": [bytes(range(256)), b""],
        }
        for ddl, values in given.items():
            spec = all_rules("v", ddl)
            for value in values:
                state = store.begin(spec, replace=True)
                store.commit(state, commit(state, partial_rows(spec, [[("g", value, 0, 0, 0)]])))
                (row,) = rows(views, "v")
                assert [row[name] for name in ("lo", "hi", "one", "end")] == [value] * 4, f"{ddl} {value!r}"

    @examples
    @given(data=st.data())
    def test_sums_of_whole_numbers_and_decimals_are_exact(self, store: Any, views: Any, data: Any) -> None:
        cents = st.integers(-(10**30), 10**30).map(lambda n: Decimal(n).scaleb(-2, _WIDE))
        batches = data.draw(
            st.lists(
                st.lists(st.tuples(st.none() | st.integers(-(2**64), 2**64), st.none() | cents), max_size=4), max_size=4
            )
        )
        spec = _sums("v")
        state = store.begin(spec, replace=True)
        for batch in batches:
            state = store.commit(state, commit(state, _summed(spec, batch)))
        for name, at in ("whole", 0), ("money", 1):
            values = [record[at] for batch in batches for record in batch if record[at] is not None]
            row = rows(views, "v")[0] if any(batches) else {name: None}
            assert row[name] == (sum(map(Fraction, values)) if values else None)

    @pytest.mark.parametrize("first", [2**63 - 1, -(2**63)])
    def test_a_sum_beyond_64_bits_makes_its_column_wider(self, store: Any, views: Any, first: int) -> None:
        spec = _sums("v")
        state = store.begin(spec)
        state = store.commit(state, commit(state, _summed(spec, [(first, None)])))
        assert views.to_arrow("v").schema.field("whole").type == pa.int64()
        one = 1 if first > 0 else -1
        for added, total in (one, first + one), (first, 2 * first + one), (-one, 2 * first), (-first, first):
            state = store.commit(state, commit(state, _summed(spec, [(added, None)])))
            table = views.to_arrow("v")
            assert table["whole"].to_pylist() == [total]
            assert table.schema.field("whole").type == pa.decimal128(38, 0), "from then on"
        state = store.begin(spec)  # by a program that is started again
        assert views.to_arrow("v").schema.field("whole").type == pa.decimal128(38, 0)
        assert views.query("SELECT whole FROM v")["whole"].to_pylist() == [first]
        state = store.commit(state, commit(state, _summed(spec, [(first, None)])))
        found = views.query("SELECT whole FROM v")["whole"]
        assert found.to_pylist() == [2 * first] and found.type == pa.decimal128(38, 0)

    def test_partial_sums_beyond_64_bits_add_up_to_one_that_fits(self, store: Any, views: Any) -> None:
        spec = _sums("v")
        state = store.begin(spec)
        state = store.commit(state, commit(state, _summed(spec, [(2**64, None), (-(2**64), None), (7, None)])))
        assert rows(views, "v")[0]["whole"] == 7

    def test_a_sum_that_becomes_wider_is_watched_on(self, store: Any, views: Any) -> None:
        spec = _sums("v")
        state = store.begin(spec)
        with views.watch("v", timeout="5 seconds") as watch:
            state = store.commit(state, commit(state, _summed(spec, [(2**62, None)])))
            store.commit(state, commit(state, _summed(spec, [(2**62, None)])))
            seen = [next(watch) for _ in range(3)]
        assert [(each["op"], each["whole"]) for each in seen] == [("+", 2**62), ("-", 2**62), ("+", 2**63)]

    def test_a_commit_that_is_rolled_back_makes_no_column_wider(self, store: Any, views: Any) -> None:
        a, b = _sums("a"), _sums("b")
        state, other = store.begin(a), store.begin(b)
        store.commit(state, commit(state, _summed(a, [(1, Decimal("9" * 36))])))
        state = store.state("a")
        with pytest.raises(DoesNotFit):
            store.commit(state, commit(state, _summed(a, [(2**64, Decimal("9" * 36))])))
        store.commit(other, commit(other, _summed(b, [(1, None)])))
        assert views.to_arrow("b").schema.field("whole").type == pa.int64()

    @pytest.mark.parametrize(
        ("old", "new"),
        [("9" * 36 + ".99", "0.01"), ("-" + "9" * 36 + ".99", "-0.01"), ("9" * 36 + ".99", "9" * 36 + ".99")],
    )
    def test_a_decimal_sum_beyond_its_type_is_refused(self, store: Any, views: Any, old: str, new: str) -> None:
        spec = _sums("v")
        state = store.begin(spec)
        state = store.commit(state, commit(state, _summed(spec, [(1, Decimal(old))])))
        with pytest.raises(DoesNotFit, match=r"decimal\(38,2\)"):
            store.commit(state, commit(state, _summed(spec, [(1, Decimal(new))])))
        assert store.state("v") == state and rows(views, "v")[0]["money"] == Decimal(old)

    @examples
    @given(data=st.data())
    def test_sums_and_averages_of_doubles(self, store: Any, views: Any, data: Any) -> None:
        """Such as every order adds up alike."""
        value = st.integers(-(2**30), 2**30).map(lambda n: n / 4) | st.sampled_from([math.nan, math.inf, -math.inf])
        batches = data.draw(st.lists(st.lists(st.none() | value, min_size=1, max_size=4), min_size=1, max_size=4))
        spec = _averages("v")
        state = store.begin(spec, replace=True)
        for batch in batches:
            columns = {
                "total": pa.array(batch, pa.float64()),
                "mean__sum": pa.array(batch, pa.float64()),
                "mean__count": pa.array([value is not None for value in batch]).cast(pa.int64()),
            }
            state = store.commit(state, commit(state, _tailed(columns, len(batch))))
        values = [value for batch in batches for value in batch if value is not None]
        (row,) = rows(views, "v")
        assert plain(row["total"]) == plain(sum(values) if values else None)
        assert plain(row["mean"]) == plain(sum(values) / len(values) if values else None)

    def test_averages_of_whole_numbers_and_decimals(self, store: Any, views: Any) -> None:
        for ddl, values in (
            ("bigint", [1, 2, 4]),
            ("decimal(20,2)", [Decimal("1.10"), Decimal("2.20"), Decimal("3.30")]),
        ):
            slots = (SlotColumn("mean__sum", ddl, "add"), SlotColumn("mean__count", "bigint", "add"))
            view = ViewSpec("v", (), slots, (Result("mean", "double", ("mean__sum", "mean__count")),))
            state = store.begin(FlowSpec("v", "shop", ("clicks",), view), replace=True)
            for value in [*values, None]:
                columns = {
                    "mean__sum": pa.array([value], arrow_type(ddl)),
                    "mean__count": pa.array([int(value is not None)]),
                }
                state = store.commit(state, commit(state, _tailed(columns, 1)))
            (row,) = rows(views, "v")
            assert row["mean"] == pytest.approx(float(sum(values)) / 3)

    @examples
    @given(data=st.data())
    def test_exact_sums_are_rounded_once(self, store: Any, views: Any, data: Any) -> None:
        batches = data.draw(st.lists(st.lists(st.none() | st.floats(), min_size=1, max_size=5), min_size=1, max_size=5))
        slots = (SlotColumn("x__exact", "string", "exact"), SlotColumn("x", "double", "rounded", "x__exact"))
        view = ViewSpec("v", (), slots, (Result("x", "double", ("x",)),))
        state = store.begin(FlowSpec("v", "shop", ("clicks",), view), replace=True)
        for batch in batches:
            text = exact_sum(batch)
            double = rounded(text)
            columns = {
                "x__exact": pa.array([text], pa.string()),
                "x": pa.array([float(double) if double is not None else None], pa.float64()),
            }
            state = store.commit(state, commit(state, _tailed(columns, 1)))
        (row,) = rows(views, "v")
        assert plain(row["x"]) == plain(_true_sum([value for batch in batches for value in batch]))

    def test_the_latest_arrival_is_kept(self, store: Any, views: Any) -> None:
        spec = counting(window=False)
        state = store.begin(spec)
        for us in (T0 + 5, T0 + 500_000, T0, None):
            table = counted(spec, [("/", 1)])
            arrived = pa.array([None if us is None else moment(us)], INSTANT)
            state = store.commit(state, commit(state, table.set_column(3, "_updated_at", arrived)))
        assert rows(views)[0]["_updated_at"] == moment(T0 + 500_000)

    def test_corrections_add_up(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        for _ in range(2):
            state = store.commit(state, commit(state, counted(spec, [(0, "/", 3, 1), (0, "/", 1, 1), (1, "/", 1)])))
        assert [(row["n"], row["_corrections"]) for row in rows(views)] == [(8, 4), (2, 0)]

    def test_many_rows(self, store: Any, views: Any) -> None:
        """Around the number of rows that go together, and with one key many times."""
        for count in (1, 99, 100, 101, 250):
            spec = counting("v")
            state = store.begin(spec, replace=True)
            batch = [(n % 7, f"p{n % 50:03}" if n % 10 else None, 1) for n in range(count)]
            for _ in range(2):
                state = store.commit(state, commit(state, counted(spec, batch)))
            expected = Counter((n, page) for n, page, _ in batch)
            assert counts(views, "v") == {key: 2 * number for key, number in expected.items()}

    def test_an_empty_batch(self, store: Any, views: Any) -> None:
        spec = counting()
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [])))
        assert state.sequence == 1 and rows(views) == []

    # -- distinct -----------------------------------------------------------------------------------

    def test_values_of_windows_that_cannot_change_are_forgotten(self, store: Any, views: Any) -> None:
        """And their count stays. Whether they are forgotten shows when one comes again, which no flow does."""
        spec = _distinct("v")
        state = store.begin(spec)
        batch = [(n, "/", [f"u{n}", "u"]) for n in range(3)]
        state = store.commit(state, commit(state, _users(spec, batch), unchanged_us=T0))
        state = store.commit(state, commit(state, unchanged_us=T0 + 2 * SIZE))
        assert [row["users"] for row in rows(views, "v")] == [2, 2, 2]
        state = store.commit(state, commit(state, _users(spec, batch), unchanged_us=T0 + SIZE))
        assert [row["users"] for row in rows(views, "v")] == [4, 4, 2]

    @examples
    @given(
        batches=st.lists(
            st.lists(
                st.tuples(
                    st.integers(0, 2), st.sampled_from(["/", None]), st.none() | st.lists(st.sampled_from("abcd"))
                ),
                max_size=5,
            ),
            max_size=4,
        )
    )
    def test_distinct_values_are_counted_by_row(self, store: Any, views: Any, batches: Any) -> None:
        spec = _distinct("v")
        state = store.begin(spec, replace=True)
        expected: dict[Any, set[str]] = {}
        for batch in batches:
            state = store.commit(state, commit(state, _users(spec, batch)))
            for n, page, users in batch:
                expected.setdefault((moment(T0 + n * SIZE), page), set()).update(users or ())
        found = {(row["window_start"], row["page"]): row["users"] for row in rows(views, "v")}
        assert found == {key: len(users) for key, users in expected.items()}

    # -- functions of aggregates ----------------------------------------------------------------------

    def test_lists_are_typed_for_readers(self, store: Any, views: Any) -> None:
        row = self._lists(store, views)
        assert row["top"] == [{"value": moment(T0 + 1), "count": 2}, {"value": moment(T0), "count": 1}]
        assert views.to_arrow("v", {"top": row["top"]}).num_rows == 1

    def test_lists_are_typed_in_the_result_of_a_query(self, store: Any, views: Any) -> None:
        row = self._lists(store, views)
        assert views.query('select top, "some" from v').to_pylist() == [{"top": row["top"], "some": row["some"]}]

    def _lists(self, store: Any, views: Any) -> dict[str, Any]:
        spec = all_rules("v", "timestamp")
        state = store.begin(spec)
        records = [("a", moment(T0 + n), n, 0, n) for n in (0, 1, 1)]
        store.commit(state, commit(state, partial_rows(spec, [records])))
        (row,) = rows(views, "v")
        return row

    @pytest.mark.parametrize(
        ("step", "change", "why"),
        [
            ("merge", {"merge": lambda a, b: 1 // (a - b)}, "ZeroDivisionError"),
            ("merge", {"merge": lambda a, b: str(a + b)}, "something else than bigint"),
            ("finish", {"finish": lambda value: value.nothing}, "AttributeError"),
            ("finish", {"finish": lambda _: "x"}, "something else than double"),
        ],
    )
    def test_a_function_that_fails_is_named_and_changes_nothing_else(
        self, store: Any, views: Any, step: str, change: Any, why: str
    ) -> None:
        slots = (SlotColumn("own__state", "bigint", "merged"), SlotColumn("own", "double", "finished", "own__state"))
        view = ViewSpec("v", (Column("g", "string"),), slots, (Result("own", "double", ("own",)),))
        state = store.begin(FlowSpec("v", "shop", ("clicks",), view))
        good: dict[str, Any] = {"partial": "sum(x)", "merge": lambda a, b: a + b, "finish": lambda value: value / 2}

        def batch(*values: int | None) -> pa.Table:
            columns = {"g": pa.array(["a"] * len(values)), "own__state": pa.array(values, pa.int64())}
            return _tailed(columns, len(values))

        state = store.commit(state, commit(state, batch(3, None, 3), aggregates={"own": Aggregate(**good)}))
        assert rows(views, "v")[0]["own"] == 3.0
        with pytest.raises(AggregateFailed, match=why) as failed:
            store.commit(state, commit(state, batch(6), aggregates={"own": Aggregate(**{**good, **change})}))
        assert (failed.value.flow, failed.value.aggregate, failed.value.step) == ("v", "own", step)
        state = store.commit(state, commit(state, batch(4), aggregates={"own": Aggregate(**good)}))
        assert rows(views, "v")[0]["own"] == 5.0

    def test_functions_are_asked_for_many_rows(self, store: Any, views: Any) -> None:
        """More than are asked for at once, several of a key among them, however they fall."""
        slots = (SlotColumn("own", "bigint", "merged"),)
        view = ViewSpec("v", (Column("g", "int"),), slots, (Result("own", "bigint", ("own",)),))
        state = store.begin(FlowSpec("v", "shop", ("clicks",), view))
        keys = [n % 1_700 for n in range(5_100)]
        for _ in range(2):
            columns = {"g": pa.array(keys, pa.int32()), "own": pa.array(range(5_100), pa.int64())}
            own = {"own": Aggregate("sum(x)", merge=lambda a, b: a + b)}
            state = store.commit(state, commit(state, _tailed(columns, 5_100), aggregates=own))
        expected = {key: 2 * (3 * key + 1_700 + 3_400) for key in range(1_700)}
        assert {row["g"]: row["own"] for row in rows(views, "v")} == expected

    # -- keeping ------------------------------------------------------------------------------------

    def test_rows_go_when_they_are_older_than_kept(self, store: Any, views: Any) -> None:
        spec = counting(keep_us=SIZE)
        state = store.begin(spec)
        batch = counted(spec, [(n, page, 1) for n in range(5) for page in ("/", None)])
        ledger = [LedgerRow(T0 + n * SIZE, T0 + (n + 1) * SIZE, 2) for n in range(5)]
        state = store.commit(state, commit(state, batch, ledger=ledger))
        assert len(rows(views)) == 10

        def at(us: int, **more: int) -> set[int]:
            nonlocal state
            reached = {"frontier_us": us, "closed_us": us, "unchanged_us": us, **more}
            state = store.commit(state, commit(state, **reached))
            return {n for n, _ in counts(views)}

        assert at(T0 + 2 * SIZE - 1) == {0, 1, 2, 3, 4}
        assert at(T0 + 2 * SIZE) == {1, 2, 3, 4}  # [0, 10) ended 10 s before
        assert at(T0 + 4 * SIZE, unchanged_us=T0 + SIZE) == {1, 2, 3, 4}, "what may change is kept"
        assert at(T0 + 4 * SIZE, closed_us=T0 + SIZE) == {1, 2, 3, 4}, "what is not final is kept"
        assert at(T0 + 4 * SIZE) == {3, 4}
        assert views.ledger("clicks").num_rows == 5, "the ledger stays"
        state = store.begin(counting(keep_us=None))
        assert at(T0 + 100 * SIZE) == {3, 4}
        state = store.begin(counting(keep_us=1))
        assert at(T0 + 100 * SIZE + 1) == set()

    def test_groups_without_a_window_go_when_nothing_has_come_for_as_long_as_they_are_kept(
        self, store: Any, views: Any
    ) -> None:
        """Rows come with when the first and the last of their records arrived, in any order. Readers see the newest of
        a group's runs that are at most so long apart."""
        spec = counting(window=False, keep_us=SIZE)
        state = store.begin(spec)
        second = SIZE // 10

        def come(*pieces: tuple[int, int, str | None, int], reach: int | None = None) -> list[tuple[Any, int]]:
            nonlocal state
            batch = counted(spec, [piece[2:] for piece in pieces])
            spans = {"window_start": [piece[0] for piece in pieces], "window_end": [piece[1] for piece in pieces]}
            for name, seconds in spans.items():
                times = [T0 + at * second for at in seconds]
                batch = batch.append_column(name, pa.array(times, pa.int64()).cast(INSTANT))
            reached = None if reach is None else T0 + reach * second
            state = store.commit(state, commit(state, batch if pieces else None, unchanged_us=reached))
            return [(row["page"], row["n"]) for row in rows(views)]

        assert come((0, 5, "/", 2), (15, 15, "/", 1), (0, 0, None, 7)) == [(None, 7), ("/", 3)]  # 15 - 5 = 10
        assert come((30, 30, "/", 1)) == [(None, 7), ("/", 1)]
        assert come((22, 22, "/", 1)) == [(None, 7), ("/", 5)]  # between both
        assert come(reach=10) == [(None, 7), ("/", 5)]
        assert come(reach=11) == [("/", 5)]
        assert come((30, 30, None, 1), reach=40) == [(None, 1), ("/", 5)]
        assert come((52, 52, "/", 9)) == [(None, 1), ("/", 9)]
        assert come(reach=41) == [("/", 9)]
        assert come((45, 45, "/", 1)) == [("/", 10)]
        with pytest.raises(FlowChanged, match="keep: '10 seconds' became for ever"):
            store.begin(counting(window=False))

    def test_what_is_not_kept_was_published_before(self, store: Any) -> None:
        spec = counting(keep_us=1, emit="final", target="out")
        state = store.begin(spec)
        late = {"frontier_us": T0 + 9 * SIZE, "closed_us": T0 + 9 * SIZE, "unchanged_us": T0 + 9 * SIZE}
        store.commit(state, commit(state, counted(spec, [(0, "/", 4)]), **late))
        assert [(row["op"], row["n"]) for row in store.outbox("clicks")[0].rows.to_pylist()] == [("+", 4)]
        assert store.last_window_end("clicks") is None


class ChangesContract(Setting):
    """What is emitted is what changed."""

    _batches = st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", None]), st.integers(0, 3), st.integers(0, 1)),
                max_size=5,
            ),
            st.integers(0, 6),
        ),
        max_size=6,
    )

    @pytest.mark.parametrize("emit", ["updates", "final"])
    @examples
    @given(batches=_batches)
    def test_changes_add_up_to_the_view(self, store: Any, emit: Any, batches: Any) -> None:
        spec = counting("v", emit=emit, target="out")
        state = store.begin(spec, replace=True)
        model: dict[tuple[int, Any], int] = {}
        shown: dict[tuple[int, Any], int] = {}
        closed = 0
        for batch, closes in batches:
            closed_before, before = closed, dict(model)
            state = store.commit(state, commit(state, counted(spec, batch), closed_us=T0 + closes * SIZE))
            closed = max(closed, closes)
            for n, page, count, _ in batch:
                model[n, page] = model.get((n, page), 0) + count
            wanted = {key: row for key, row in model.items() if emit == "updates" or key[0] < closed}
            waiting = [each for each in store.outbox("v") if each.sequence == state.sequence - 1]
            changed = [row for each in waiting for row in each.rows.to_pylist()]
            for row in changed:
                key = ((row["window_start"] - moment(T0)) // timedelta(microseconds=SIZE), row["page"])
                value = row["n"]
                assert row["window_end"] == row["window_start"] + timedelta(microseconds=SIZE)
                assert row["_progress"] == row["window_start"], "a change of a view is never late"
                if row["op"] == "-":
                    assert shown.pop(key) == value == before[key], "what goes was there"
                    assert emit == "updates" or key[0] < closed_before, "a result is final once; then it is corrected"
                else:
                    assert row["op"] == "+" and key not in shown
                    shown[key] = value
            assert shown == wanted
            touched = {(n, page) for n, page, _, _ in batch}
            assert len(changed) <= 2 * len(touched) + sum(closed_before <= n < closed for n, _ in model)

    def test_nothing_changed_nothing_goes_out(self, store: Any) -> None:
        spec = counting(emit="updates", target="out")
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 1)])))
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 0)])))
        store.commit(state, commit(state, closed_us=T0 + SIZE))
        assert len(store.outbox("clicks")) == 1

    def test_a_view_without_keys_changes(self, store: Any) -> None:
        spec = counting(window=False, groups=(), emit="updates", target="out")
        state = store.begin(spec)
        for _ in range(2):
            state = store.commit(state, commit(state, counted(spec, [(2,), (3,)])))
        state = store.commit(state, commit(state, counted(spec, [])))
        found = [(row["op"], row["n"]) for each in store.outbox("clicks") for row in each.rows.to_pylist()]
        assert found == [("+", 5), ("-", 5), ("+", 10)]

    @pytest.mark.parametrize("ddl", VALUES)
    @settings(examples, max_examples=8)
    @given(data=st.data())
    def test_keys_of_every_type_go_out_typed(self, store: Any, ddl: str, data: Any) -> None:
        keys = data.draw(st.lists(st.none() | VALUES[ddl], max_size=5))
        spec = counting("v", groups=(Column("page", ddl),), emit="updates", target="out")
        state = store.begin(spec, replace=True)
        store.commit(state, commit(state, counted(spec, [(0, key, 1) for key in keys])))
        found = [each.rows for each in store.outbox("v")]
        assert all(table.schema.field("page").type == arrow_type(ddl) for table in found)
        gone = {plain(row["page"]): row["n"] for table in found for row in table.to_pylist()}
        assert gone == dict(Counter(plain(key) for key in _narrowed(keys, [ddl] * len(keys))))

    def test_a_function_shapes_what_goes_out(self, store: Any) -> None:
        spec = counting(emit="updates", target="out")
        state = store.begin(spec)
        store.commit(
            state,
            commit(state, counted(spec, [(0, "/", 1), (0, "x", 9)]), shape=lambda table: table.slice(1).select(["n"])),
        )
        (waiting,) = store.outbox("clicks")
        assert (waiting.target, waiting.rows.to_pylist()) == ("out", [{"n": 9}])


class ShapedContract(Setting):
    """Readers see what a transform makes of the results, and nothing it made of results that are no more."""

    @examples
    @given(batches=ChangesContract._batches)
    def test_readers_see_what_the_function_makes_of_the_results(self, store: Any, views: Any, batches: Any) -> None:
        spec = shaping("v")
        state = store.begin(spec, replace=True)
        model: dict[tuple[int, Any], list[int]] = {}
        closed = 0
        for batch, closes in batches:
            more = {"closed_us": T0 + closes * SIZE, "shape": busy}
            state = store.commit(state, commit(state, counted(spec, batch), **more))
            closed = max(closed, closes)
            for n, page, count, late in batch:
                found = model.setdefault((n, page), [0, 0])
                model[n, page] = [found[0] + count, found[1] + late]
            wanted = Counter(
                (moment(T0 + n * SIZE), page, copy, count / 2, "final" if n < closed else "open", late)
                for (n, page), (count, late) in model.items()
                for copy in range(count - 2)
            )
            names = ("window_start", "page", "copy", "half", "_status", "_corrections")
            assert Counter(tuple(row[name] for name in names) for row in rows(views, "v")) == wanted
            assert views.status("v").rows == wanted.total()
        made = ["window_start", "window_end", "page", "copy", "half", "_status", "_corrections", "_updated_at"]
        assert views.to_arrow("v").column_names == made

    def test_without_windows_and_without_groups(self, store: Any, views: Any) -> None:
        for name, groups, row in ("one", (), (3,)), ("pages", (Column("page", "string"),), (None, 3)):
            spec = shaping(name, window=False, groups=groups)
            state = store.begin(spec)
            for _ in range(2):
                state = store.commit(state, commit(state, counted(spec, [row]), shape=busy))
            assert [(row["copy"], row["half"]) for row in rows(views, name)] == [(copy, 3.0) for copy in range(4)]
            state = store.commit(state, commit(state, counted(spec, [(*row[:-1], -3)]), shape=busy))
            assert [row["copy"] for row in rows(views, name)] == [0]

    @pytest.mark.parametrize("ddl", VALUES)
    @settings(examples, max_examples=8)
    @given(data=st.data())
    def test_keys_and_values_of_every_type(self, store: Any, views: Any, ddl: str, data: Any) -> None:
        keys = data.draw(st.lists(st.none() | VALUES[ddl], min_size=1, max_size=5))
        spec = shaping("v", groups=(Column("page", ddl),), shaped=(Column("again", ddl),))
        state = store.begin(spec, replace=True)
        for _ in range(2):
            batch = counted(spec, [(0, key, 1) for key in keys])
            state = store.commit(
                state, commit(state, batch, shape=lambda table: table.append_column("again", table["page"]))
            )
        found = [(plain(row["page"]), plain(row["again"])) for row in rows(views, "v")]
        assert Counter(found) == Counter(
            (key, key) for key in {plain(key) for key in _narrowed(keys, [ddl] * len(keys))}
        )

    def test_rows_go_with_their_results(self, store: Any, views: Any) -> None:
        spec = shaping(keep_us=SIZE)
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(n, "/", 4) for n in range(3)]), shape=busy))
        assert len(rows(views)) == 6
        at = {"frontier_us": T0 + 2 * SIZE, "closed_us": T0 + 2 * SIZE, "unchanged_us": T0 + 2 * SIZE}
        state = store.commit(state, commit(state, shape=busy, **at))
        assert {row["window_start"] for row in rows(views)} == {moment(T0 + SIZE), moment(T0 + 2 * SIZE)}
        assert views.status("clicks").rows == 4
        state = store.begin(spec, replace=True)
        assert rows(views) == []
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 3)]), shape=busy))
        assert [row["copy"] for row in rows(views)] == [0]
        store.drop("clicks")
        assert views.names() == []
        state = store.begin(counting())
        store.commit(state, commit(state, counted(counting(), [(0, "/", 3)])))
        assert counts(views) == {(0, "/"): 3}

    @pytest.mark.parametrize("groups", [(), (Column("page", "string"),)])
    def test_rows_go_with_groups_that_go(self, store: Any, views: Any, groups: tuple[Column, ...]) -> None:
        """Of a group that comes again, nothing is left that was made of it before."""
        spec = shaping(window=False, groups=groups, keep_us=SIZE)
        state = store.begin(spec)

        def come(count: int, at: int, reach: int) -> list[int]:
            nonlocal state
            batch = counted(spec, [("/", count)[-1 - len(groups) :]] if count else [])
            for name in ("window_start", "window_end"):
                batch = batch.append_column(name, pa.array([T0 + at] * batch.num_rows, pa.int64()).cast(INSTANT))
            state = store.commit(state, commit(state, batch, shape=busy, unchanged_us=T0 + reach))
            return [row["copy"] for row in rows(views)]

        assert come(5, at=0, reach=0) == [0, 1, 2]
        assert come(0, at=0, reach=SIZE + 1) == []
        assert views.status("clicks").rows == 0
        assert come(3, at=3 * SIZE, reach=3 * SIZE) == [0]
        assert come(5, at=5 * SIZE, reach=7 * SIZE) == [], "older than it is kept when it comes"
        assert views.status("clicks").rows == 0

    def test_a_function_that_fails_changes_nothing(self, store: Any, views: Any) -> None:
        spec = shaping()
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 3)]), shape=busy))
        before = rows(views)

        def fails(_: pa.Table) -> pa.Table:
            raise ZeroDivisionError("n is 0")

        with pytest.raises(ZeroDivisionError):
            store.commit(state, commit(state, counted(spec, [(0, "/", 1)]), shape=fails))
        assert rows(views) == before and store.state("clicks") == state
        store.commit(state, commit(state, counted(spec, [(0, "/", 1)]), shape=busy))
        assert [row["half"] for row in rows(views)] == [2.0, 2.0]

    def test_a_function_that_changes_the_key_is_refused(self, store: Any, views: Any) -> None:
        spec = shaping()
        state = store.begin(spec)

        def moves(table: pa.Table) -> pa.Table:
            return busy(table).set_column(2, "page", pa.array(["elsewhere"]))

        with pytest.raises(TransformRefused, match="page 'elsewhere'"):
            store.commit(state, commit(state, counted(spec, [(0, "/", 3)]), shape=moves))
        assert rows(views) == []

    def test_other_columns_are_another_flow(self, store: Any) -> None:
        store.begin(shaping())
        for other, said in (
            (counting(), "transform behind agg: to copy bigint, half double became none"),
            (shaping(shaped=(Column("copy", "int"), Column("half", "double"))), "became to copy int, half double"),
            (shaping(shaped=()), "became a filter"),
        ):
            with pytest.raises(FlowChanged, match=said):
                store.begin(other)
        store.begin(shaping())

    @pytest.mark.parametrize("name", ["page", "Page", "_status", "_updated_at", "WINDOW_END"])
    def test_a_column_that_is_called_like_another(self, store: Any, name: str) -> None:
        with pytest.raises(InvalidArgument, match="transform"):
            store.begin(shaping(shaped=(Column(name, "string"),)))

    @pytest.mark.parametrize("name", [*NAMES, "n", "f", "copy"])
    def test_any_other_name_can_be_a_column(self, store: Any, views: Any, name: str) -> None:
        spec = shaping(shaped=(Column(name, "bigint"),))
        state = store.begin(spec)
        for _ in range(2):
            batch = counted(spec, [(0, "/", 1), (0, None, 2)])
            shape = lambda table: table.rename_columns([*table.column_names[:-1], name])  # noqa: E731
            state = store.commit(state, commit(state, batch, shape=shape))
        assert {(row["page"], row[name]) for row in rows(views)} == {("/", 2), (None, 4)}


class VersionContract(Setting):
    """Another version of a view beside it, and the switch."""

    def served(self, store: Any, spec: FlowSpec, *, windows: int = 3) -> FlowState:
        """The view with some rows, read up to offset 7."""
        state = store.begin(spec)
        found = [(number, page, number + 1) for number in range(windows) for page in ("/", None)]
        places = {"clicks": {0: Place(7, T0 + 5 * SECOND)}}
        return self.commit(store, state, counted(spec, found), places=places, closed_us=T0 + SIZE)

    def commit(self, store: Any, state: FlowState, table: pa.Table | None = None, **more: Any) -> FlowState:
        done: FlowState = store.commit(state, commit(state, table, topic_ids={"clicks": "a1"}, **more))
        return done

    def made(self, store: Any, spec: FlowSpec, program: str = "p") -> FlowState:
        """A version beside it that counts everything twice and knows one window more, read up to offset 9."""
        store.begin_beside(spec, program)
        state: FlowState = store.begin(spec)
        if state.sequence:
            return state
        found = [(number, page, 2 * (number + 1)) for number in range(1, 4) for page in ("/", None)]
        more: dict[str, Any] = {"outgoing": [Outgoing("letters", pa.table({"a": [1]}))]}
        more |= {"ledger": [LedgerRow(T0, T0 + SIZE, on_time=5)], "frontier_us": T0 + SIZE}
        places = {"clicks": {0: Place(9, T0 + 8 * SECOND)}}
        return self.commit(store, state, counted(spec, found), places=places, begins=places, **more)

    def test_a_version_beside_is_nobodys_business(self, store: Any, views: Any) -> None:
        self.served(store, counting())
        before = rows(views)
        self.made(store, counting("clicks/next"))
        assert views.names() == ["clicks"] and [state.name for state in views.states()] == ["clicks"]
        assert rows(views) == before and store.beside("clicks") == "clicks/next"
        assert counts(views, "clicks/next") == {(n, page): 2 * n + 2 for n in (1, 2, 3) for page in ("/", None)}

    def test_a_switch_moves_everything(self, store: Any, views: Any) -> None:
        self.served(store, counting())
        new = self.made(store, counting("clicks/next"))
        old, status, letters = rows(views), views.status("clicks"), store.outbox("clicks/next")
        state = store.switch(store.fence("clicks"), new)
        assert counts(views) == {(n, page): 2 * n + 2 for n in (1, 2, 3) for page in ("/", None)}
        assert (state.name, state.places, state.begins) == ("clicks", new.places, new.places)
        assert state.born == new.born and state.frontier_us == T0 + SIZE
        assert [each.rows for each in store.outbox("clicks")] == [each.rows for each in letters]
        assert views.ledger("clicks")["on_time"].to_pylist() == [5] and views.status("clicks").rows == 6
        # What was served is kept, whole.
        assert store.beside("clicks") == "clicks/previous" and rows(views, "clicks/previous") == old
        assert store.state("clicks/previous").places == {"clicks": {0: Place(7, T0 + 5 * SECOND)}}
        assert views.status("clicks/previous").rows == status.rows
        # The new program goes on, under the view's own name.
        state = store.begin(counting())
        self.commit(store, state, counted(counting(), [(1, "/", 1)]))
        assert counts(views)[1, "/"] == 5 and rows(views, "clicks/previous") == old

    def test_a_rollback_brings_back_what_was(self, store: Any, views: Any) -> None:
        self.served(store, counting())
        old, new = rows(views), self.made(store, counting("clicks/next"))
        store.switch(store.fence("clicks"), new)
        after = rows(views)
        store.switch(store.fence("clicks"), store.state("clicks/previous"))
        assert rows(views) == old and rows(views, "clicks/next") == after and store.beside("clicks") == "clicks/next"
        state = store.begin(counting())
        assert state.places == {"clicks": {0: Place(7, T0 + 5 * SECOND)}}
        self.commit(store, state, counted(counting(), [(0, None, 1)]))
        assert counts(views)[0, None] == 2
        # And forth again.
        store.switch(store.fence("clicks"), store.state("clicks/next"))
        assert rows(views) == after

    def test_who_ran_it_is_fenced_and_told_why(self, store: Any, views: Any) -> None:
        spec = counting()
        old, new = self.served(store, spec), self.made(store, counting("clicks/next"))
        fenced = store.fence("clicks")
        for check in (lambda: store.refuse_fenced(old), lambda: self.commit(store, old, counted(spec, [(0, "/", 1)]))):
            with pytest.raises(FlowFenced, match="another version of the view takes its place"):
                check()
        store.refuse_fenced(fenced)
        store.switch(fenced, new)
        for state in (old, fenced, new):
            with pytest.raises(FlowFenced):
                self.commit(store, state, counted(spec, [(0, "/", 1)]))
        assert counts(views)[1, "/"] == 4

    def test_who_ran_it_before_another_runner_is_only_fenced(self, store: Any) -> None:
        """It does not go on with the new version: another process does already."""
        old, new = self.served(store, counting()), self.made(store, counting("clicks/next"))
        store.switch(store.fence("clicks"), new)
        runs = store.begin(counting())
        with pytest.raises(FlowFenced) as refused:
            store.refuse_fenced(old)
        assert refused.value.why == ""
        store.refuse_fenced(runs)

    def test_a_switch_is_refused_when_somebody_was_there_since(self, store: Any, views: Any) -> None:
        self.served(store, counting())
        new, before = self.made(store, counting("clicks/next")), rows(views)
        fenced = store.fence("clicks")
        store.begin(counting())
        with pytest.raises(FlowFenced):
            store.switch(fenced, new)
        fenced = store.fence("clicks")
        self.commit(store, new, None)
        with pytest.raises(CommitConflict):
            store.switch(fenced, new)
        assert rows(views) == before and store.beside("clicks") == "clicks/next"

    def test_what_was_made_is_gone_on_with_or_made_anew(self, store: Any, views: Any) -> None:
        spec = counting("clicks/next")
        self.served(store, counting())
        self.made(store, spec)
        assert self.made(store, spec).sequence == 1  # the same flow and program: not made again
        store.begin_beside(spec, "another")
        with pytest.raises(UnknownView):
            store.state("clicks/next")
        self.made(store, spec, "another")
        store.begin_beside(replace(spec, grace_us=1), "another")
        assert store.beside("clicks") is None
        store.switch(store.fence("clicks"), self.made(store, spec))
        self.made(store, spec)  # the next rebuild: what was served before goes
        assert store.beside("clicks") == "clicks/next" and views.names() == ["clicks"]
        assert store.discard("clicks") == ["clicks/next"] and store.discard("clicks") == []
        self.made(store, spec)
        store.drop("clicks")
        with pytest.raises(UnknownView):
            store.state("clicks/next")

    @pytest.mark.parametrize("window", [True, False])
    def test_columns_and_groups_may_be_others(self, store: Any, views: Any, window: bool) -> None:
        """With tables of its own for distinct values, and of shaped rows."""
        store.begin(counting(window=window))
        other = all_rules("clicks/next", "string")
        assert other.view is not None
        groups = (Column("g", "string"),)
        shaped = replace(other, view=replace(other.view, groups=groups, shaped=(Column("most", "string"),)))
        store.begin_beside(shaped, "p")
        state = store.begin(shaped)

        def shape(table: pa.Table) -> pa.Table:
            return table.select(["g", "hi"]).rename_columns(["g", "most"])

        table = partial_rows(shaped, [[("a", "x", 0, 0, 0)], [("b", "y", 0, 0, 1)]])
        state = self.commit(store, state, table, shape=shape)
        store.switch(store.fence("clicks"), state)
        assert [(row["g"], row["most"]) for row in rows(views)] == [("a", "x"), ("b", "y")]
        assert views.query("select most from clicks where g = 'a'")["most"].to_pylist() == ["x"]
        assert shaped.view is not None
        state = store.begin(replace(shaped, name="clicks", view=replace(shaped.view, name="clicks")))
        self.commit(store, state, partial_rows(shaped, [[("a", "z", 0, 0, 2)]]), shape=shape)
        assert rows(views)[0]["most"] == "z"

    def test_a_name_with_a_slash_is_no_view(self, store: Any) -> None:
        for name in ("clicks/other", "clicks/next/next", "/next", "a/b"):
            with pytest.raises(InvalidName):
                store.begin(counting(name))

    def test_the_difference_by_hand(self, store: Any, views: Any) -> None:
        served = counting()
        state = store.begin(served)
        self.commit(store, state, counted(served, [(0, "/", 1), (0, "/a", 2), (1, None, 3), (2, "/", 4)]))
        spec = counting("clicks/next")
        store.begin_beside(spec, "p")
        state = store.begin(spec)
        self.commit(store, state, counted(spec, [(0, "/", 1), (1, None, 5), (2, "/", 4), (3, "/b", 6)]), closed_us=T0)
        diff = views.diff("clicks")
        found = [(row["op"], row["page"], row["n"]) for row in diff.rows.to_pylist()]
        assert found == [("-", "/a", 2), ("-", None, 3), ("+", None, 5), ("+", "/b", 6)]
        kinds = (diff.counts.added, diff.counts.removed, diff.counts.changed, diff.counts.same)
        assert kinds == (1, 1, 1, 2) and not diff.counts.ok and (diff.added, diff.removed) == ([], [])
        assert views.diff("clicks", limit=1).rows.num_rows == 1
        store.switch(store.fence("clicks"), store.state("clicks/next"))
        assert views.diff("clicks").rows.to_pylist() == diff.rows.to_pylist()  # what was, beside what is

    def test_a_column_that_was_added_is_no_difference(self, store: Any, views: Any) -> None:
        served = counting()
        state = store.begin(served)
        self.commit(store, state, counted(served, [(0, "/", 1), (0, "/a", 2)]))
        spec = counting("clicks/next")
        assert spec.view is not None
        slots = (*spec.view.slots, SlotColumn("total", "double", "add"))
        results = (*spec.view.results, Result("total", "double", ("total",)))
        spec = replace(spec, view=replace(spec.view, slots=slots, results=results))
        store.begin_beside(spec, "p")
        state = store.begin(spec)
        table = counted(spec, [(0, "/", 1), (0, "/a", 7)]).append_column("total", pa.array([1.5, 2.5]))
        self.commit(store, state, table)
        diff = views.diff("clicks")
        assert (diff.added, diff.removed, diff.counts.same, diff.counts.changed) == (["total"], [], 1, 1)
        found = [(row["op"], row["page"], row["n"], row["total"]) for row in diff.rows.to_pylist()]
        assert found == [("-", "/a", 2, None), ("+", "/a", 7, 2.5)]

    def test_doubles_may_differ_in_their_last_digits(self, store: Any, views: Any) -> None:
        pairs = [(0.3, 0.1 + 0.2), (1e300, 1e300 * (1 + 1e-12)), (math.nan, math.nan), (None, None), (0.0, -0.0)]
        other = [(math.nan, 0.0), (0.0, None), (None, 0.0), (1.0, 1.00001), (0.0, 1e-30), (math.inf, 1.0)]
        for name, side in ("clicks", 0), ("clicks/next", 1):
            view = ViewSpec(
                name,
                (Column("page", "int"),),
                (SlotColumn("x", "double", "add"), SlotColumn("d", "decimal(5,2)", "greatest")),
                (Result("x", "double", ("x",)), Result("d", "decimal(5,2)", ("d",))),
            )
            spec = FlowSpec(name, "shop", ("clicks",), view)
            if side:
                store.begin_beside(spec, "p")
            values = [pair[side] for pair in (*pairs, *other)]
            columns: dict[str, Any] = {"page": pa.array(range(len(values)), pa.int32())}
            columns["x"] = pa.array(values, pa.float64(), from_pandas=False)
            columns["d"] = pa.array([Decimal("9.50")] * len(values), pa.decimal128(5, 2))
            columns["_corrections"] = pa.array([0] * len(values), pa.int64())
            columns["_updated_at"] = pa.array([moment(T0)] * len(values), INSTANT)
            state = self.commit(store, store.begin(spec), pa.table(columns))
        found = views.diff("clicks").rows.to_pylist()
        assert [row["page"] for row in found if row["op"] == "+"] == list(range(len(pairs), len(pairs) + len(other)))
        store.switch(store.fence("clicks"), state)
        assert rows(views)[0]["d"] == Decimal("9.50")

    def test_other_groups_are_other_rows(self, store: Any, views: Any) -> None:
        self.served(store, counting(), windows=1)
        spec = counting("clicks/next", groups=(Column("page", "string"), Column("user", "int")))
        store.begin_beside(spec, "p")
        state = store.begin(spec)
        self.commit(store, state, counted(spec, [(0, "/", 1, 5)]))
        diff = views.diff("clicks")
        assert [row["op"] for row in diff.rows.to_pylist()] == ["-", "-", "+"] and diff.counts.same == 0

    @examples
    @given(cells=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 3)), max_size=8))
    def test_the_difference_of_shaped_rows(self, tmp_path_factory: Any, cells: list[tuple[int, int, int]]) -> None:
        """Any rows, some of one result, some twice: the difference turns the one into the other."""
        home = tmp_path_factory.mktemp("views")
        with self.opened(home) as store:
            for name, side in ("clicks", 0), ("clicks/next", 1):
                spec = shaping(name)
                if side:
                    store.begin_beside(spec, "p")
                state = store.begin(spec)
                found = [(cell[2], str(number), cell[side]) for number, cell in enumerate(cells)]
                self.commit(store, state, counted(spec, found), shape=busy)
            views = self.open_views(home)
            old, new = (_bag(rows(views, name)) for name in ("clicks", "clicks/next"))
            diff = views.diff("clicks")
            gone, come = (_bag(row for row in diff.rows.to_pylist() if row["op"] == op) for op in "-+")
            assert old - gone + come == new and gone == old - new and come == new - old
            counts = diff.counts
            assert counts.added + counts.changed == come.total() and counts.removed + counts.changed == gone.total()
            assert counts.same == (old & new).total()


def _bag(found: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(value for name, value in sorted(row.items()) if name != "op") for row in found)


class RetractionContract:
    """Results that shrink, and changes for flows over the view."""

    @pytest.mark.parametrize("ddl", VALUES)
    @settings(examples, max_examples=8)
    @given(data=st.data())
    def test_what_came_can_go_again(self, store: Any, views: Any, ddl: str, data: Any) -> None:
        spec, kinds = shrinking("v", ddl), st.lists(VALUES[ddl], min_size=1, max_size=4)
        values = _narrowed(known := data.draw(kinds), [ddl] * len(known))
        state, there = store.begin(spec, replace=True), list[tuple[str, Any]]()
        for _ in range(4):
            came = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, *values])), max_size=5))
            goes = [there[at] for at in sorted(data.draw(st.sets(st.integers(0, 20), max_size=5))) if at < len(there)]
            left = Counter(map(_cell, there)) - Counter(map(_cell, goes))
            there = [one for one in there if left[_cell(one)] > 0 and not left.subtract([_cell(one)])] + came
            changed = [*((one, -1) for one in goes), *((one, 1) for one in came)]
            state = store.commit(state, commit(state, _weighed(ddl, changed), aggregates=SHRINKING))
            found = {row["g"]: row for row in rows(views, "v")}
            assert found.keys() == {group for group, _ in there}
            for group, row in found.items():
                of = [value for each, value in there if each == group and value is not None]
                counts = Counter(map(plain, of))
                order = {plain(value): ranked(value) for value in of}
                assert plain(row["lo"]) == (min(counts, key=lambda value: order[value]) if of else None)
                assert plain(row["hi"]) == (max(counts, key=lambda value: order[value]) if of else None)
                assert row["kinds"] == len(counts)
                top = sorted(counts.items(), key=lambda one: (-one[1], order[one[0]]))[:2]
                assert [(plain(each["value"]), each["count"]) for each in row["top"] or []] == top
                assert row["n"] == (len(of) or None)

    def test_a_view_without_groups_is_empty_when_all_has_gone_again(self, store: Any, views: Any) -> None:
        grouped = shrinking("v", "int")
        assert grouped.view is not None
        state = store.begin(replace(grouped, view=replace(grouped.view, groups=())))
        for sign, found in (1, [(5, 5, 1)]), (-1, []), (1, [(5, 5, 1)]):
            batch = _weighed("int", [(("a", 5), sign)]).drop_columns(["g"])
            state = store.commit(state, commit(state, batch, aggregates=SHRINKING))
            assert [(row["lo"], row["hi"], row["kinds"]) for row in rows(views, "v")] == found

    def test_changes_and_marks_for_flows_over_it(self, store: Any) -> None:
        spec = counting("v")
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 2), (1, "/", 1)])))
        fed = replace(spec, feeds=("updates", "final"))
        state = store.begin(fed)  # flows over it begin with what is there
        told = self._rows_of_outbox(store, state)
        assert [(row["change__op"], row["n"]) for row in told["__changes.v"]] == [("+", 2), ("+", 1)]
        assert "__finals.v" not in told
        batch = counted(fed, [(0, "/", 3), (2, "/", 1)])
        more = {"closed_us": T0 + 2 * SIZE, "unchanged_us": T0 + SIZE, "frontier_us": T0 + 2 * SIZE}
        state = store.commit(state, commit(state, batch, **more))
        told = self._rows_of_outbox(store, state)
        assert [(row["change__op"], row["n"]) for row in told["__changes.v"]] == [
            ("-", 2),
            ("+", 5),
            ("+", 1),
            (".", None),
        ]
        assert [(row["change__op"], row["n"]) for row in told["__finals.v"]] == [("+", 5), ("+", 1), (".", None)]
        for rows_told in told.values():
            assert [row["change__at"] for row in rows_told[:-1]] == [
                row["window_end"] - timedelta(microseconds=1) for row in rows_told[:-1]
            ]
            assert (rows_told[-1]["change__closed"], rows_told[-1]["change__reachable"]) == (
                moment(T0 + 2 * SIZE),
                moment(T0 + SIZE),
            )
        state = store.commit(state, commit(state, counted(fed, [(0, "/", 1, 1)])))
        told = self._rows_of_outbox(store, state)
        assert [(row["change__op"], row["n"], row["change__corrections"]) for row in told["__finals.v"]] == [
            ("-", 5, 0),
            ("+", 6, 1),
        ]

    def test_flows_over_it_are_told_what_a_transform_made(self, store: Any) -> None:
        """Every row of a result goes, and every one comes: none below the threshold, and one more for each above."""
        spec = shaping("v")
        state = store.begin(spec)
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 4), (1, "/", 1)]), shape=busy))
        fed = replace(spec, feeds=("updates", "final"))
        state = store.begin(fed)

        def told(topic: str) -> list[tuple[Any, ...]]:
            return [
                (row["change__op"], row["copy"], row["half"])
                for row in self._rows_of_outbox(store, state).get(f"__{topic}.v", ())
            ]

        assert told("changes") == [("+", 0, 2.0), ("+", 1, 2.0)] and told("finals") == []
        columns = ["change__op", "window_start", "window_end", "page", "copy", "half"]
        assert list(self._rows_of_outbox(store, state)["__changes.v"][0])[:6] == columns
        more = {"closed_us": T0 + SIZE, "unchanged_us": T0, "frontier_us": T0 + SIZE}
        batch = counted(fed, [(0, "/", 1), (1, "/", 2)])
        state = store.commit(state, commit(state, batch, shape=busy, **more))
        five = [("+", copy, 2.5) for copy in range(3)]
        end = (".", None, None)
        assert told("changes") == [("-", 0, 2.0), ("-", 1, 2.0), *five, ("+", 0, 1.5), end]
        assert told("finals") == [*five, end]
        state = store.commit(state, commit(state, counted(fed, [(0, "/", -3, 1)]), shape=busy))
        assert told("changes") == told("finals") == [("-", copy, 2.5) for copy in range(3)]

    def test_what_grace_waits_for_is_kept(self, store: Any, views: Any) -> None:
        """Of records that can be taken back, too: `keep` may be shorter than `grace`, and the time for corrections."""
        counts_rows = counting(keep_us=SIZE)
        assert counts_rows.view is not None
        slots = (*counts_rows.view.slots, SlotColumn(ROWS, "bigint", "add"))
        spec = replace(counts_rows, view=replace(counts_rows.view, slots=slots, retracts=True))
        state = store.begin(spec)

        def put(window: int, **more: Any) -> dict[Any, int]:
            nonlocal state
            some = counted(spec, [(window, "/", 1)])
            state = store.commit(state, commit(state, some.append_column(ROWS, some["n"]), **more))
            return counts(views)

        assert put(0, frontier_us=T0 + 9 * SIZE, closed_us=T0) == {(0, "/"): 1}
        assert put(0) == {(0, "/"): 2}, "it is older than `keep`, and not final"
        on = {"frontier_us": T0 + 9 * SIZE, "closed_us": T0 + 3 * SIZE}
        assert put(0, **on) == {(0, "/"): 3}
        assert put(0, **on) == {(0, "/"): 4}, "it is final, and may change, whatever silence says"
        assert put(0, **on, unchanged_us=T0 + SIZE - 1) == {(0, "/"): 5}
        assert put(3, unchanged_us=T0 + SIZE) == {(3, "/"): 1}
        assert put(0) == {(3, "/"): 1}, "what has gone does not begin anew"

    def test_what_has_gone_does_not_come_back_in_part(self, store: Any) -> None:
        def kept(keep_us: int | None) -> FlowSpec:
            spec = counting(keep_us=keep_us)
            assert spec.view is not None
            return replace(spec, view=replace(spec.view, retracts=True))

        store.begin(kept(None))
        store.begin(kept(SIZE))
        for longer in (2 * SIZE, None):
            with pytest.raises(FlowChanged, match="keep: '10 seconds' became"):
                store.begin(kept(longer))
        store.begin(kept(1))

    def test_a_switch_tells_of_all_that_may_change(self, store: Any) -> None:
        """Rows that are older than `keep`, and may be corrected, are there: who reads changes knows them."""
        spec, beside = replace(counting(keep_us=SIZE), feeds=("updates",)), counting("clicks/next", keep_us=SIZE)
        on = {"frontier_us": T0 + 9 * SIZE, "closed_us": T0 + 9 * SIZE, "unchanged_us": T0}
        state = store.begin(spec)
        store.commit(state, commit(state, counted(spec, [(0, "/", 2)]), **on))
        store.begin_beside(beside, "p")
        new = store.begin(beside)
        new = store.commit(new, commit(new, counted(beside, [(0, "/", 3)]), **on))
        state = store.switch(store.fence("clicks"), new)
        told = [row for each in store.outbox("clicks") for row in each.rows.to_pylist()]
        assert [(row["change__op"], row["n"]) for row in told] == [("-", 2), ("+", 3), (".", None)]

    def test_what_is_made_of_records_closes_by_how_far_they_are(self, store: Any) -> None:
        """What takes out repetitions waits for longer than the windows behind it do."""
        spec = replace(counting("once.dedup"), feeds=("updates",), grace_us=100 * SIZE)
        assert spec.view is not None
        store.begin(replace(spec, view=replace(spec.view, records=True, windows="session", window_us=(SIZE, 0))))
        behind = replace(counting("once", grace_us=SIZE), sources=("__changes.once.dedup",))
        state = store.begin(behind)
        store.commit(state, commit(state, counted(behind, [(0, "/", 1)])))
        last = T0 + 2 * SIZE  # the end of the window and its grace
        assert store.closes("once.dedup", last) and not store.closes("once.dedup", last - 1)

    def test_what_a_flow_writes_closes_windows_of_those_who_read_it(self, store: Any) -> None:
        store.begin(FlowSpec("hop", "shop", ("clicks",), None, target="hop"))
        behind = replace(counting("behind", grace_us=SIZE), sources=("hop",))
        state = store.begin(behind)
        store.commit(state, commit(state, counted(behind, [(0, "/", 1)])))
        last = T0 + 2 * SIZE  # the end of the window and its grace
        assert store.closes("hop", last) and not store.closes("hop", last - 1)

    def test_a_mark_is_the_frontier_of_the_flow_that_writes_a_topic(self, store: Any) -> None:
        """For those who have read all of it once it has all arrived: what is on its way could be earlier."""
        assert store.marks(["clicks", "hop"]) == {}
        state = store.begin(FlowSpec("hop", "shop", ("clicks",), None, target="hop"))
        assert store.marks(["clicks", "hop"]) == {"hop": None}
        rows = pa.table({"page": ["/"]})
        state = store.commit(state, commit(state, frontier_us=T0, outgoing=[Outgoing("hop", rows)]))
        assert store.marks(["hop"]) == {"hop": Mark(T0, sent=False)}
        state = store.commit(state, commit(state, frontier_us=T0 + SIZE, relayed=state.sequence - 1))
        assert store.marks(["hop"]) == {"hop": Mark(T0 + SIZE, sent=True)}
        other = store.begin(FlowSpec("other", "shop", ("orders",), None, target="hop"))
        assert store.marks(["hop"]) == {"hop": None}
        store.commit(other, commit(other, frontier_us=T0))
        assert store.marks(["hop"]) == {"hop": Mark(T0, sent=True)}

    def test_a_mark_of_results_speaks_of_when_windows_begin(self, store: Any) -> None:
        spec = counting("out", emit="final", target="out", grace_us=SIZE)
        state = store.begin(spec)
        store.commit(state, commit(state, frontier_us=T0 + 5 * SIZE, closed_us=T0 + 4 * SIZE))
        mark = Mark(T0 + 3 * SIZE + 1, sent=True)
        assert store.marks(["out"]) == {"out": mark}, "[3, 4) is final, and may begin there"
        behind = replace(counting("behind"), sources=("out",))
        state = store.begin(behind)
        store.commit(state, commit(state, counted(behind, [(3, "/", 1)])))
        last = T0 + 6 * SIZE - 1  # then the mark is at the end of [3, 4)
        assert store.closes("out", last) and not store.closes("out", last - 1)

    def test_what_is_dropped_with_a_view_is_headraces_own(self, store: Any, views: Any) -> None:
        for name in ("a", "a.dedup", "b"):
            store.begin(counting(name))
        store.begin(FlowSpec("b.dedup", "shop", ("clicks",), None, target="__records.b.dedup", parent="b"))
        store.drop("a")
        assert views.names() == ["a.dedup", "b"], "a view may be called so"
        assert store.drop("b") == ["__records.b.dedup"] and views.names() == ["a.dedup"]

    def test_changes_of_records_go_back_where_they_are_written_to(self, store: Any) -> None:
        """A record that goes has the progress that it came with."""
        spec = counting("clean.dedup")
        assert spec.view is not None
        store.begin(replace(spec, view=replace(spec.view, records=True), target="__changes.clean.dedup"))
        for source in ("clicks", "__changes.clicks", "__changes.clean.dedup"):
            store.begin(FlowSpec("clean", "shop", (source,), None, target="clean"), replace=True)
            assert store.goes_back(["clean"]) is (source == "__changes.clean.dedup")

    def test_what_goes_back_goes_back_in_copies_of_it(self, store: Any) -> None:
        store.begin(counting("out", emit="updates", target="out"))
        for source, target in ("out", "__records.copied.dedup"), ("__records.copied.dedup", "copied"):
            store.begin(FlowSpec(target, "shop", (source,), None, target=target))
        store.begin(FlowSpec("other", "shop", ("clicks",), None, target="other"))
        assert store.goes_back(["copied"]) and not store.goes_back(["other", "clicks"])

    def _rows_of_outbox(self, store: Any, state: FlowState) -> dict[str, list[dict[str, Any]]]:
        waiting = [each for each in store.outbox(state.name) if each.sequence == state.sequence - 1]
        return {each.target: each.rows.to_pylist() for each in waiting}


SHRINKING = {
    name: over_changes(name, each, {})
    for name, each in {
        "lo": least("x"),
        "hi": greatest("x"),
        "kinds": count_distinct("x"),
        "top": top_k("x", 2),
    }.items()
}


def shrinking(name: str, ddl: str) -> FlowSpec:
    """The least, the greatest, how many and which values there are of a column of that type, by group."""
    types = {"lo": ddl, "hi": ddl, "kinds": "bigint", "top": f"array<struct<value:{ddl},count:bigint>>"}
    slots = [SlotColumn(ROWS, "bigint", "add"), SlotColumn("n__sum", "bigint", "add")]
    slots += [SlotColumn(slot, kind, "kept", ddl) for slot, kind in types.items()]
    results = [Result(slot, kind, (slot,)) for slot, kind in types.items()]
    results.append(Result("n", "bigint", ("n__sum",), unless="n__sum"))
    view = ViewSpec(name, (Column("g", "string"),), tuple(slots), tuple(results), retracts=True)
    return FlowSpec(name, "shop", ("__changes.x",), view)


def _weighed(ddl: str, changed: Sequence[tuple[tuple[str, Any], int]]) -> pa.Table:
    """A partial row for each change."""
    struct = pa.struct([("value", arrow_type(ddl)), ("count", pa.int64())])
    lists = [[] if value is None else [{"value": value, "count": sign}] for (_, value), sign in changed]
    columns: dict[str, pa.Array] = {"g": pa.array([group for (group, _), _ in changed], pa.string())}
    columns[ROWS] = pa.array([sign for _, sign in changed], pa.int64())
    columns["n__sum"] = pa.array([0 if value is None else sign for (_, value), sign in changed], pa.int64())
    columns |= {slot: pa.array(lists, pa.list_(struct)) for slot in SHRINKING}
    return _tailed(columns, len(changed))


def _cell(one: tuple[str, Any]) -> tuple[str, Any]:
    return one[0], plain(one[1])


class ViewStoreContract(
    FlowContract, MergeContract, ChangesContract, ShapedContract, VersionContract, RetractionContract
):
    """All of it."""


# -- more flows ------------------------------------------------------------------------------------------


def _tailed(columns: dict[str, pa.Array], count: int) -> pa.Table:
    tail = {"_corrections": pa.array([0] * count, pa.int64()), "_updated_at": pa.array([moment(T0)] * count, INSTANT)}
    return pa.table(columns | tail)


def _sums(name: str) -> FlowSpec:
    slots = (SlotColumn("whole", "decimal(38,0)", "whole"), SlotColumn("money", "decimal(38,2)", "add"))
    results = (Result("whole", "bigint", ("whole",)), Result("money", "decimal(38,2)", ("money",)))
    return FlowSpec(name, "shop", ("clicks",), ViewSpec(name, (), slots, results))


def _summed(spec: FlowSpec, records: Sequence[tuple[int | None, Decimal | None]]) -> pa.Table:
    assert spec.view is not None
    columns = {
        "whole": pa.array([record[0] for record in records], pa.decimal128(38, 0)),
        "money": pa.array([record[1] for record in records], pa.decimal128(38, 2)),
    }
    return _tailed(columns, len(records))


def _averages(name: str) -> FlowSpec:
    slots = (
        SlotColumn("total", "double", "add"),
        SlotColumn("mean__sum", "double", "add"),
        SlotColumn("mean__count", "bigint", "add"),
    )
    results = (Result("total", "double", ("total",)), Result("mean", "double", ("mean__sum", "mean__count")))
    return FlowSpec(name, "shop", ("clicks",), ViewSpec(name, (), slots, results))


def _distinct(name: str) -> FlowSpec:
    view = ViewSpec(
        name,
        (Column("page", "string"),),
        (SlotColumn("users", "string", "distinct"),),
        (Result("users", "bigint", ("users",)),),
        (SIZE, SIZE),
    )
    return FlowSpec(name, "shop", ("clicks",), view)


def _users(spec: FlowSpec, rows: Sequence[tuple[int, Any, Any]]) -> pa.Table:
    plain = counted(counting(spec.name), [(n, page, 0) for n, page, _ in rows])
    return plain.set_column(3, "users", pa.array([users for _, _, users in rows], pa.list_(pa.string())))


def _narrowed(values: Sequence[Any], ddls: Sequence[str]) -> list[Any]:
    """The values as columns of these types hold them: a float is less than a double."""
    return [pa.scalar(value, arrow_type(ddl)).as_py() for value, ddl in zip(values, ddls, strict=True)]


def _true_sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    other = {value for value in known if not math.isfinite(value)}
    if other:
        return math.nan if len(other) > 1 or any(map(math.isnan, other)) else other.pop()
    total = sum(map(Fraction, known), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
