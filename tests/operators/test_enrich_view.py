"""Facts that look up in a view of windows: after every step what was passed on is what a model of a few lines makes of
the view's rows and the facts so far, for any cut and any order of reading."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.operators.contract import InputTimes, Operator
from headrace.operators.joins.enrich_view import FACTS, TABLE, EnrichView
from headrace.operators.joins.view_changes import VIEW_CORRECTIONS
from headrace.schema import parse_ddl
from headrace.testing import MemoryTables, OperatorContract
from headrace.testing.view_contract import INSTANT
from tests.operators.changelogs import NOTHING, Asked, add_up, times, us_of
from tests.views.test_keyed import FileTables

CLICKS = parse_ddl("user string, region int, at timestamp")
VIEW = parse_ddl("window_start timestamp, window_end timestamp, id string, area int, n bigint")
VIEW = VIEW.append(pa.field(VIEW_CORRECTIONS, pa.int64()))
SETTINGS = EnrichView(
    CLICKS, VIEW, (("user", "id"), ("region", "area")), "at", (("n", "clicks"), ("area", "where")), "v_version", "null"
)
Key = tuple[str | None, int | None]


@dataclass(frozen=True)
class Fact:
    """Times are seconds."""

    key: Key
    at: int | None
    arrived: int
    offset: int


@dataclass(frozen=True)
class Row:
    key: Key
    start: int
    end: int
    n: int
    corrections: int
    updated: int


Change = tuple[str, Row]


def view_changes(dice: random.Random, count: int) -> list[tuple[Change, ...]]:
    """Commits of a view: its rows change, go, and get another start or end, as sessions do. A commit has its changes in
    the order of starts: a row may come before the one goes that ended together with it."""
    rows: dict[tuple[Key, int], Row] = {}
    out: list[tuple[Change, ...]] = []
    for _ in range(count):
        key, start = (dice.choice(["a", "b", None]), dice.choice([1, 2])), dice.randrange(0, 40, 10)
        told: list[Change] = []
        old = rows.pop((key, start), None)
        if old is not None:
            told.append(("-", old))
        if old is None or dice.random() < 0.8:
            begin, end = start - dice.randrange(3), start + dice.choice([4, 7, 7, 7])
            row = Row(key, begin, end, dice.randrange(5), dice.randrange(2), dice.randrange(50))
            rows[key, start] = row
            told.append(("+", row))
        out.append(tuple(sorted(told, key=lambda each: (each[1].start, each[0] == "+"))))
    return out


def facts_of(dice: random.Random, count: int) -> list[Fact]:
    def key() -> Key:
        return dice.choice(["a", "b", "c", None]), dice.choice([1, 2, None])

    return [
        Fact(key(), None if dice.random() < 0.1 else dice.randrange(-2, 45), number, number) for number in range(count)
    ]


def fact_records(facts: Sequence[Fact]) -> pa.Table:
    return pa.table(
        {
            "user": pa.array([each.key[0] for each in facts], pa.string()),
            "region": pa.array([each.key[1] for each in facts], pa.int32()),
            "at": times([each.at for each in facts]),
            "_partition": pa.array([0] * len(facts), pa.int32()),
            "_offset": pa.array([each.offset for each in facts], pa.int64()),
            "_arrived_at": times([each.arrived for each in facts]),
            "_progress": times([each.arrived for each in facts]),
            "/id": pa.array([f"c/0/{each.offset:016}" for each in facts], pa.string()),
        }
    )


def view_records(changes: Sequence[Change], first: int) -> pa.Table:
    rows = [row for _, row in changes]
    return pa.table(
        {
            "window_start": times([each.start for each in rows]),
            "window_end": times([each.end for each in rows]),
            "id": pa.array([each.key[0] for each in rows], pa.string()),
            "area": pa.array([each.key[1] for each in rows], pa.int32()),
            "n": pa.array([each.n for each in rows], pa.int64()),
            VIEW_CORRECTIONS: pa.array([each.corrections for each in rows], pa.int64()),
            "_op": pa.array(["delete" if op == "-" else "upsert" for op, _ in changes], pa.string()),
            "_partition": pa.array([0] * len(rows), pa.int32()),
            "_offset": pa.array(range(first, first + len(rows)), pa.int64()),
            "_arrived_at": times([each.updated for each in rows]),
            "_progress": pa.nulls(len(rows), INSTANT),
            "/id": pa.array([f"v/0/{first + at:016}" for at in range(len(rows))], pa.string()),
        }
    )


# -- the model -------------------------------------------------------------------------------------------------


def rows_of(changes: Sequence[Change]) -> list[Row]:
    rows: dict[tuple[Key, int], Row] = {}
    for op, row in changes:
        if op == "+":
            rows[row.key, row.start] = row
        elif rows[row.key, row.start] == row:  # and not one that came before it went
            del rows[row.key, row.start]
    return list(rows.values())


def answer(fact: Fact, rows: Sequence[Row]) -> Row | None:
    if fact.at is None or None in fact.key:
        return None
    mine = [row for row in rows if row.key == fact.key and row.end <= fact.at]
    return max(mine, key=lambda row: row.end, default=None)


def published(facts: Sequence[Fact], rows: Sequence[Row], *, found: bool = False) -> Counter[str]:
    out = Counter[str]()
    for fact in facts:
        used = answer(fact, rows)
        if used is None and found:
            continue
        at = times([fact.at]).to_pylist()[0]
        end = None if used is None else times([used.end]).cast(pa.string()).to_pylist()[0].replace(" ", "T")
        final = times([fact.at]).to_pylist()[0]
        if fact.at is None:
            final = pa.array([-62135596800000000], pa.int64()).cast(INSTANT).to_pylist()[0]
        updated = max(fact.arrived, fact.arrived if used is None else used.updated)
        row = [*fact.key, at, used and used.n, used and used.key[1], end, f"c/0/{fact.offset:016}", final]
        row += [0 if used is None else used.corrections, *times([updated, fact.arrived]).to_pylist()]
        out[repr(row)] += 1
    return out


def reach_of(commits: Sequence[tuple[Change, ...]], read: int) -> int:
    """No row that ends before then changes any more."""
    return min((row.end for commit in commits[read:] for _, row in commit), default=10**6)


def run(dice: random.Random, operator: EnrichView, tables: Any) -> int:
    commits, facts = view_changes(dice, 30), facts_of(dice, 25)
    every = [each for commit in commits for each in commit]
    whole = {sum(map(len, commits[:read])): read for read in range(len(commits) + 1)}
    told, known, read, missing, reach = Counter[str](), 0, 0, 0, 0
    while read < len(every) or known < len(facts) or reach < 10**6:
        some, more = every[read : read + dice.choice([0, 1, 5])], facts[known : known + dice.choice([0, 1, 4])]
        batch = {TABLE: view_records(some, read)} if some else {}
        batch |= {FACTS: fact_records(more)} if more else {}
        read, known = read + len(some), known + len(more)
        seen = every[:read]
        marked = read in whole and dice.random() < 0.5
        reach = max(reach, reach_of(commits, whole[read])) if marked else reach
        now = {
            FACTS: InputTimes(us_of(known), us_of(known)),
            TABLE: InputTimes(us_of(reach), us_of(reach) if marked else None),
        }
        step = operator.step(batch, tables.state(), now, changes=True)
        tables.apply(step.writes)
        add_up(told, step.changes)
        if read in whole:
            assert +told == published(facts[:known], rows_of(seen), found=operator.missing != "null")
        held = [each.arrived for each in facts[:known] if None not in (each.at, *each.key) and (each.at or 0) >= reach]
        assert step.ahead is not None and step.ahead.reach_us == us_of(min([known, *held]))
        missing += step.missing + (0 if step.letters is None else step.letters.num_rows)
    assert tables.state().scan(FACTS, NOTHING).num_rows == 0, "nothing can touch them any more"
    if operator.missing != "null":
        assert missing == sum(answer(fact, rows_of(seen)) is None for fact in facts)
    return missing


@pytest.mark.parametrize("missing", ["null", "drop", "dead_letter"])
def test_a_fact_has_the_row_of_the_last_window_that_ended_by_its_time(missing: Any) -> None:
    for seed in range(6):
        operator = replace(SETTINGS, missing=missing)
        run(random.Random(f"{missing} {seed}"), operator, MemoryTables(*operator.tables))


def test_the_same_in_a_file(tmp_path: Path) -> None:
    operator = replace(SETTINGS, missing="drop")
    tables = FileTables(tmp_path, *operator.tables)
    assert run(random.Random(3), operator, tables) > 0
    tables.store.close()


def test_a_change_reads_the_facts_between_its_window_and_the_next_and_no_more() -> None:
    tables = MemoryTables(*SETTINGS.tables)
    rows = [("+", Row(("a", 1), end - 10, end, end, 0, 0)) for end in range(10, 5_000, 10)]
    facts = [Fact(("a", 1), at, at, at) for at in range(0, 5_000)]
    now = {FACTS: InputTimes(None, None), TABLE: InputTimes(None, None)}
    step = SETTINGS.step({TABLE: view_records(rows, 0), FACTS: fact_records(facts)}, tables.state(), now, changes=True)
    tables.apply(step.writes)
    state = Asked(tables.state())
    old = rows[9][1]
    one = [("-", old), ("+", replace(old, n=7))]
    step = SETTINGS.step({TABLE: view_records(one, 900)}, state, now, changes=True)  # type: ignore[arg-type]
    assert step.changes is not None and step.changes["op"].to_pylist() == ["-"] * 10 + ["+"] * 10
    assert state.rows < 60


class TestContract(OperatorContract):
    def operator(self) -> Operator:
        return SETTINGS

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        changes = [("+", Row((dice.choice("ab"), 1), n * 10, n * 10 + 10, dice.randrange(9), 0, n)) for n in range(8)]
        facts = [replace(each, offset=each.offset + 100 * number) for each in facts_of(dice, 20)]
        return {TABLE: view_records(changes, 100 * number), FACTS: fact_records(facts)}

    def test_any_cut_gives_the_same(self, batches: Any) -> None:
        """Rows can be taken back, so what comes and goes on the way depends on the cut: see the model above."""
