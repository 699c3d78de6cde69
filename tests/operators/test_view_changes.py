"""A view's changes as a changelog: joined with a table, what is passed on adds up to the join of the view's rows as
they are, by brute force, wherever the changes are cut."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from headrace.operators.contract import InputTimes
from headrace.operators.joins.table_join import How, TableJoin
from headrace.operators.joins.view_changes import ROW, changelog_of, changelog_schema
from headrace.testing import MemoryTables
from headrace.testing.view_contract import INSTANT
from headrace.views.contract import Column, feed_columns, rows_view
from tests.operators.changelogs import Change, add_up, arrow, latest, log_of, times

FEED = pa.schema(
    {
        "_id": pa.string(),
        "page": pa.string(),
        "n": pa.int64(),
        "n__whole": pa.decimal128(38, 0),
        "n__sum": pa.int64(),
        "n__count": pa.int64(),
        "change__op": pa.string(),
        "change__at": INSTANT,
        "change__corrections": pa.int64(),
        "change__updated_at": INSTANT,
        "change__closed": INSTANT,
        "change__reachable": INSTANT,
    }
)
PAGES = pa.schema({"page": pa.string(), "title": pa.string()})
NOW = InputTimes(None, None)
Rows = dict[str, tuple[str | None, int, int, int]]
"""By id: page, n, corrections, when it was updated."""


def view_changes(dice: random.Random, count: int) -> list[tuple[str, str, tuple[str | None, int, int, int]]]:
    """What goes and comes of a view's rows. A row may get an earlier time: its newest record was taken back."""
    rows, out = Rows(), []
    for _ in range(count):
        id = dice.choice("abc")
        if id in rows:
            out.append(("-", id, rows.pop(id)))
        if dice.random() < 0.8:
            rows[id] = (dice.choice(["x", "y", None]), dice.randint(1, 3), dice.randint(0, 2), dice.randint(0, 9))
            out.append(("+", id, rows[id]))
    return out


def fed(changes: list[tuple[str, str, Any]], first: int) -> pa.Table:
    """As a flow reads them: a row's arrival is its own."""
    columns: dict[str, Any] = dict.fromkeys(FEED.names)
    columns["_id"] = [id for _, id, _ in changes]
    columns["page"], columns["n"], corrections, updated = ([row[at] for _, _, row in changes] for at in range(4))
    columns |= {"change__op": [op for op, _, _ in changes], "change__corrections": corrections}
    columns |= {"change__updated_at": times(updated)}
    table = pa.table(
        {
            each.name: pa.nulls(len(changes), each.type)
            if columns[each.name] is None
            else pa.array(columns[each.name], each.type)
            for each in FEED
        }
    )
    table = table.append_column("_partition", pa.array([0] * len(changes), pa.int32()))
    table = table.append_column("_offset", pa.array(range(first, first + len(changes)), pa.int64()))
    return table.append_column("_arrived_at", times(updated)).append_column("/id", table["_id"])


def operator(how: How) -> TableJoin:
    schema = changelog_schema(FEED)
    assert schema.names == [ROW, "page", "n", "/corrections", "_op"]
    view = schema.remove(schema.get_field_index("_op"))
    return TableJoin(view, PAGES, (ROW,), ("page",), (("page", "page"),), how, views=("left",))


def test_columns_that_are_called_like_an_aggregates_state_are_the_users_own() -> None:
    own = (Column("visits", "int"), Column("visits__count", "int"), Column("page__state", "string"))
    view = rows_view("seen", (Column("id", "string"),), own, final=False)
    names = [each.name for each in feed_columns(view)]
    assert names == ["id", "visits", "visits__count", "page__state"]
    schema = pa.schema([(name, pa.string()) for name in (*names, *FEED.names[-6:])])
    assert changelog_schema(schema).names == [*names, "/corrections", "_op"]


def model(how: How, seen: list[tuple[str, str, Any]], pages: list[Change]) -> Counter[str]:
    rows, titles = Rows(), latest(pages, ("page",))
    for op, id, row in seen:
        if op == "+":
            rows[id] = row
        else:
            rows.pop(id, None)
    out = Counter[str]()
    for id, (page, n, corrections, updated) in rows.items():
        found = titles.get((page,)) if page is not None else None
        if found is not None or how in ("left", "full"):
            key = "" if found is None else f'["{page}"]'
            last = updated if found is None else max(updated, found.arrived)
            title = None if found is None else found.values["title"]
            out[repr([page, n, title, f'["{id}"]|{key}', None, corrections, times([last]).to_pylist()[0], None])] += 1
    for (page,), found in titles.items():
        if how in ("right", "full") and page not in [row[0] for row in rows.values() if row[0] is not None]:
            last = times([found.arrived]).to_pylist()[0]
            key = "null" if page is None else f'"{page}"'
            out[repr([page, None, found.values["title"], f"|[{key}]", None, 0, last, None])] += 1
    return out


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_what_is_passed_on_adds_up_to_the_join_with_the_view_as_it_is(how: How) -> None:
    for seed in range(4):
        dice = random.Random(f"{how} {seed}")
        joined, told = operator(how), Counter[str]()
        tables = MemoryTables(*joined.tables)
        changes = view_changes(dice, 30)
        pages = log_of(dice, 20, lambda d=dice: {"page": d.choice(["x", "y", None]), "title": d.choice("ST")}, ["page"])
        pages = [each for each in pages if each.partition == 0]
        read, known = 0, 0
        while read < len(changes) or known < len(pages):
            some, more = changes[read : read + dice.randint(0, 7)], pages[known : known + dice.randint(0, 4)]
            batch = {"left": changelog_of(fed(some, read))} if some else {}
            batch |= {"right": arrow(more, PAGES)} if more else {}
            read, known = read + len(some), known + len(more)
            step = joined.step(batch, tables.state(), {"left": NOW, "right": NOW}, changes=True)
            tables.apply(step.writes)
            add_up(told, step.changes)
            assert +told == model(how, changes[:read], pages[:known])
            assert tables.state().last_us("left/deletes") is None, "a view's changes come in order: no delete is kept"
