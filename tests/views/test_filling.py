"""Gaps that are filled when a view is read: the stored rows and how far windows are closed say all of it. Against the
rule written out window by window; and who reads the view how sees what."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import InvalidArgument, InvalidQuery
from headrace.views.contract import Fill, FlowSpec, Gaps, LedgerRow, Result, SlotColumn
from headrace.views.reading import Bounds
from headrace.views.sqlite import filling
from tests.views.committing import MINUTE_US, SPEC, START, VIEW, Committing, partials

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
MINUTE = timedelta(minutes=1)


def spec_of(gaps: Gaps, window: str = "tumbling('1 minute')") -> FlowSpec:
    assert SPEC.view is not None
    fill = Fill(gaps, window, ("clicks",) if gaps == "zero" else ())
    return replace(SPEC, window=window, view=replace(SPEC.view, fill=fill))


def expected(stored: Iterable[dict[str, Any]], gaps: Gaps, closed: int | None) -> list[dict[str, Any]]:
    """The rows, and those between: of a group, from its first window to its last, or to the last that is closed."""
    groups: dict[Any, dict[datetime, dict[str, Any]]] = {}
    for row in stored:
        groups.setdefault(row["page"], {})[row["window_start"]] = row
    out = []
    for page, rows in groups.items():
        start, last = min(rows), max(rows)
        while start <= last or (closed is not None and start + MINUTE <= START + closed * MINUTE):
            if start in rows:
                row = before = rows[start]
            else:
                values = {"clicks": None, "ms": None, "slowest": None}
                if gaps == "zero":
                    values["clicks"] = 0
                elif gaps == "previous":
                    values = {name: before[name] for name in values}
                is_final = closed is not None and start + MINUTE <= START + closed * MINUTE
                row = {
                    "window_start": start,
                    "window_end": start + MINUTE,
                    "page": page,
                    **values,
                    "_status": "final" if is_final else "open",
                    "_corrections": 0,
                    "_updated_at": None,
                }
            out.append(row)
            start += MINUTE
    return sorted(out, key=lambda row: (row["window_start"], row["page"] is not None, row["page"] or ""))


clicks = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["/", "/cart", None]), st.integers(0, 99)), max_size=6)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["null", "zero", "previous"]),
    st.lists(st.tuples(clicks, st.none() | st.integers(0, 15)), max_size=3),
)
def test_any_rows_and_any_frontier(gaps: Gaps, batches: list[tuple[list[Any], int | None]]) -> None:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as home,
        tempfile.TemporaryDirectory(dir=MEMORY) as plain,
        Committing(Path(home), spec_of(gaps)) as filled,
        Committing(Path(plain)) as stored,
    ):
        closed = None
        for rows, to in batches:
            closed = max((each for each in (closed, to) if each is not None), default=None)
            for each in filled, stored:
                each.commit(rows, closed=to)
            wanted = expected(stored.rows(), gaps, closed)
            assert filled.rows() == wanted
            assert filled.views.query(f"select * from {VIEW} order by window_start, page").to_pylist() == wanted
            assert filled.views.moment(VIEW).rows.to_pylist() == stored.rows()


def test_a_straggler_takes_the_place_of_a_row_that_was_made(tmp_path: Path) -> None:
    with Committing(tmp_path, spec_of("zero")) as filled:
        filled.commit([(0, "/", 1), (3, "/", 1)], closed=5)
        counts = [(row["clicks"], row["_status"]) for row in filled.rows()]
        assert counts == [(1, "final"), (0, "final"), (0, "final"), (1, "final"), (0, "final")]
        filled.commit([(1, "/", 1)])
        assert [row["clicks"] for row in filled.rows()] == [1, 1, 0, 1, 0]
        filled.commit([(7, "/", 1)])
        assert [row["_status"] for row in filled.rows()] == ["final"] * 5 + ["open"] * 3


def test_pages_get_and_conditions_see_rows_that_fill_gaps(tmp_path: Path) -> None:
    with Committing(tmp_path, spec_of("previous")) as filled:
        filled.commit([(0, "/", 1), (0, "/cart", 7), (5, "/", 1)], closed=6)
        everything = filled.rows()
        assert len(everything) == 12
        found, after = [], None
        while True:
            page = filled.views.page(VIEW, after=after, bounds=Bounds(rows=5))
            found += page.rows.to_pylist()
            after = page.after
            if after is None:
                break
        assert found == everything[::-1]
        some = filled.views.page(VIEW, where={"page": "/cart"}, start_us=us(2), stop_us=us(4), bounds=Bounds())
        assert [row["slowest"] for row in some.rows.to_pylist()] == [7, 7]
        stored = filled.views.page(VIEW, bounds=Bounds(), stored=True).rows
        assert stored.num_rows == 3
        where = {"page": "/", "window_start": START + 2 * MINUTE}
        assert filled.views.to_arrow(VIEW, where).num_rows == 1
        times = filled.views.query(f"select window_start as at, page from {VIEW} where page = ? order by 1", ("/",))
        assert times.schema.field("at").type == pa.timestamp("us", tz="UTC")
        assert times["at"].to_pylist() == [START + minute * MINUTE for minute in range(6)]


def us(minute: int) -> int:
    return round(START.timestamp() * 1e6) + minute * MINUTE_US


def test_who_watches_sees_what_is_stored(tmp_path: Path) -> None:
    with (
        Committing(tmp_path, spec_of("zero")) as filled,
        filled.views.watch(VIEW, timeout="0 seconds") as before,
    ):
        filled.commit([(0, "/", 1), (3, "/", 1)], closed=5)
        assert [change["op"] for change in before] == ["+", "+"]
        with filled.views.watch(VIEW, timeout="0 seconds") as after:
            assert len(list(after)) == 2


def test_what_fills_gaps_may_change_and_go(tmp_path: Path) -> None:
    for spec, wanted in (SPEC, []), (spec_of("null"), [None]), (spec_of("zero"), [0]), (SPEC, []):
        with Committing(tmp_path, spec) as filled:
            if filled.flow.sequence == 0:
                filled.commit([(0, "/", 1), (2, "/", 1)])
            assert [row["clicks"] for row in filled.rows()] == [1, *wanted, 1]


def test_a_version_takes_the_place_of_a_view_whose_gaps_are_filled(tmp_path: Path) -> None:
    """SQLite looks at all views when tables are renamed."""
    spec = spec_of("zero")
    assert spec.view is not None
    with Committing(tmp_path, spec) as filled:
        filled.commit([(0, "/", 1), (2, "/", 1)])
        beside = replace(spec, name=f"{VIEW}/next", view=replace(spec.view, name=f"{VIEW}/next"))
        filled.store.begin_beside(beside, "p")
        filled.store.switch(filled.store.fence(VIEW), filled.store.begin(beside))
        assert filled.rows() == []


def test_days_of_a_time_zone_are_filled_as_they_are(tmp_path: Path) -> None:
    """Across 2026-03-29, which has 23 hours in Berlin."""
    assert SPEC.view is not None
    berlin = spec_of("zero", "calendar('day', timezone='Europe/Berlin')")
    assert berlin.view is not None
    spec = replace(berlin, view=replace(berlin.view, window_us=(0, 0), windows="calendar", groups=()))
    starts = [datetime(2026, 3, 27, 23, tzinfo=UTC), datetime(2026, 3, 30, 22, tzinfo=UTC)]
    row = {"clicks": 1, "ms__sum": 1.0, "ms__count": 1, "slowest": 1, "_corrections": 0, "_updated_at": START}
    with Committing(tmp_path, spec) as filled:
        day = hr.calendar("day", timezone="Europe/Berlin")
        ends = [datetime.fromtimestamp(day.end_of(round(at.timestamp() * 1e6)) / 1e6, UTC) for at in starts]
        rows = [{"window_start": start, "window_end": end, **row} for start, end in zip(starts, ends, strict=True)]
        table = pa.Table.from_pylist(rows)
        for name in ("window_start", "window_end", "_updated_at"):
            at = table.column_names.index(name)
            table = table.set_column(at, name, table[name].cast(pa.timestamp("us", tz="UTC")))
        table = table.set_column(table.column_names.index("slowest"), "slowest", table["slowest"].cast(pa.int32()))
        filled.commit(partials=table)
        found = [(row["window_start"].day, row["window_start"].hour, row["clicks"]) for row in filled.rows()]
    assert found == [(27, 23, 1), (28, 23, 0), (29, 22, 0), (30, 22, 1)]


def test_zeros_are_of_the_columns_types(tmp_path: Path) -> None:
    assert SPEC.view is not None
    slots = [("money", "decimal(12,2)"), ("x", "double"), ("n", "bigint")]
    view = replace(
        SPEC.view,
        slots=tuple(SlotColumn(name, kind, "add") for name, kind in slots),
        results=tuple(Result(name, kind, (name,)) for name, kind in slots),
        groups=(),
        fill=Fill("zero", "tumbling('1 minute')", ("money", "x", "n")),
    )
    kinds = {"window_start": pa.timestamp("us", tz="UTC"), "window_end": pa.timestamp("us", tz="UTC")}
    kinds |= {"money": pa.decimal128(12, 2), "x": pa.float64(), "n": pa.int64(), "_corrections": pa.int64()}
    rows = [
        {"window_start": START + at * MINUTE, "window_end": START + (at + 1) * MINUTE, "money": Decimal("1.50")}
        | {"x": 1.5, "n": 1, "_corrections": 0, "_updated_at": START}
        for at in (0, 2)
    ]
    schema = pa.schema([*kinds.items(), ("_updated_at", pa.timestamp("us", tz="UTC"))])
    with Committing(tmp_path, replace(SPEC, view=view)) as filled:
        filled.commit(partials=pa.Table.from_pylist(rows, schema=schema))
        made = filled.rows()[1]
        assert (made["money"], made["x"], made["n"]) == (Decimal("0.00"), 0.0, 0)
        assert isinstance(made["x"], float)
        found = filled.views.query(f"select money, x, n from {VIEW} order by window_start").to_pylist()
        assert found[1] == {"money": Decimal(0), "x": 0.0, "n": 0}


def test_so_many_rows_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "ROWS_MAX", 9)
    with Committing(tmp_path, spec_of("zero")) as filled:
        filled.commit([(0, "/", 1), (10, "/", 1)])
        assert len(filled.rows()) == 11
        filled.commit([(0, "/cart", 1)], closed=2)
        with pytest.raises(InvalidArgument, match="about 10 rows would be made, and at most 9 are"):
            filled.rows()
        with pytest.raises(InvalidQuery, match="about 10 rows would be made, and at most 9 are"):
            filled.views.query(f"select count(*) from {VIEW}")
        with pytest.raises(InvalidQuery, match="at most 9"):
            filled.views.page(VIEW, bounds=Bounds())
        with pytest.raises(InvalidQuery, match="there is no column 'missing'"):  # what was said is said once
            filled.views.query(f"select missing from {VIEW}")
        assert filled.views.moment(VIEW).rows.num_rows == 3
        filled.commit(ledger=[LedgerRow(None, None, untimed=1)])


def test_names_that_a_user_may_give_to_groups(tmp_path: Path) -> None:
    """No column of ours is called so."""
    spec = spec_of("zero")
    assert spec.view is not None
    groups = tuple(replace(group, name="first") for group in spec.view.groups)
    with Committing(tmp_path, replace(spec, view=replace(spec.view, groups=groups))) as filled:
        rows = partials([(0, "a", 1), (2, "a", 1)])
        filled.commit(partials=rows.rename_columns(["first" if name == "page" else name for name in rows.column_names]))
        assert [(row["first"], row["clicks"]) for row in filled.rows()] == [("a", 1), ("a", 0), ("a", 1)]
