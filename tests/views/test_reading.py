"""Queries: what they may do, what goes in and out of them, and what they say when they cannot."""

from __future__ import annotations

import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError, InvalidArgument, InvalidQuery, UnknownView, WaitTimeout
from headrace.position import Position
from headrace.testing.view_contract import NAMES, T0, all_rules, commit, counted, counting, moment, partial_rows
from headrace.views.contract import Column, FlowSpec, Place, ViewSpec
from headrace.views.open import open_views
from headrace.views.reading import Bounds, Views
from headrace.views.sqlite.file import FILE, translate
from tests.faults.children import Children, ack
from tests.views.folded import SqliteViews


@pytest.fixture
def home(memory: Path) -> Path:
    return memory / "home"


@pytest.fixture
def store(home: Path) -> Any:
    with SqliteViews(home) as store:
        yield store


@pytest.fixture
def views(store: SqliteViews, home: Path) -> Views:
    spec = counting()
    state = store.begin(spec)
    store.commit(state, commit(state, counted(spec, [(0, "/", 3), (1, "/", 1), (1, None, 2)])))
    return open_views(home)


def values_of(store: SqliteViews, ddl: str, values: list[Any]) -> str:
    """A view whose column `one` has these, by group a, b, c …; the name of the view."""
    spec = all_rules("typed", ddl)
    state = store.begin(spec, replace=True)
    pieces = [[(chr(97 + number), value, 0, 0, 0)] for number, value in enumerate(values)]
    store.commit(state, commit(state, partial_rows(spec, pieces)))
    return "typed"


READER = """
import os, sys
import headrace.views.sqlite.reading  # now: the other user may not read it
from headrace.views.open import open_views
os.setuid(65534)  # root may write anywhere
try:
    open(os.path.join(sys.argv[1], "x"), "w")
except PermissionError:
    print(open_views(sys.argv[1]).query("select sum(n) as n from clicks").to_pylist())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
def test_a_home_that_is_read_only_can_be_queried() -> None:
    """At rest, and while its app runs."""
    with tempfile.TemporaryDirectory() as folder:  # others may go there, unlike pytest's
        Path(folder).chmod(0o755)
        home = Path(folder, "home")
        spec = counting()

        def read() -> str:
            for path in home.iterdir():
                path.chmod(0o444)
            home.chmod(0o555)
            done = subprocess.run([sys.executable, "-c", READER, str(home)], capture_output=True, text=True)
            return done.stdout + done.stderr[-500:]

        with SqliteViews(home) as store:
            state = store.begin(spec)
            store.commit(state, commit(state, counted(spec, [(0, "/", 3), (1, "/", 1)])))
            assert read() == "[{'n': 4}]\n"
        assert read() == "[{'n': 4}]\n"


def test_what_cannot_be_written_and_what_cannot_be_opened_are_two_things(store: SqliteViews, home: Path) -> None:
    store.begin(counting())
    for sql, path, said in (
        ("CREATE TABLE t (a)", home / FILE, "cannot be written: look"),
        ("SELECT 1 FROM sqlite_schema", home / "gone" / FILE, "cannot be opened: look"),
    ):
        with pytest.raises(sqlite3.Error) as error:
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True).execute(sql)
        assert said in str(translate(error.value, path))


# -- only reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "insert into clicks values (1)",
        'insert into "clicks/rows" (n) values (1)',
        'delete from "clicks/rows"',
        'update "clicks/rows" set n = 0',
        "replace into _meta values ('format', '9')",
        "create table t (x)",
        "create temp table t (x)",
        "create temp view t as select 1",
        "create view t as select 1",
        "create index i on _flows (app)",
        "create virtual table t using fts5(x)",
        "create trigger t after insert on _meta begin select 1; end",
        "drop table _flows",
        "drop view clicks",
        "alter table _flows add column x",
        "pragma journal_mode = delete",
        "pragma user_version",
        "pragma writable_schema = on",
        "attach 'other.db' as other",
        "attach ':memory:' as other",
        "detach main",
        "vacuum",
        "vacuum into '/tmp/headrace-stolen.db'",
        "reindex",
        "analyze",
        "begin",
        "begin immediate",
        "commit",
        "savepoint s",
        "select load_extension('/tmp/x.so')",
        "select * from pragma_table_info('_flows')",
        "select * from pragma_database_list",
        "with x as (select 1) delete from _flows",
        "select writefile('/tmp/headrace-stolen', 'x')",
        "explain delete from _flows",
        ".read x",
        "",
        "   ",
        "-- nothing",
        "select 1; drop table _flows",
        "select 1; select 2",
        "select \0 1",
        "select 'a\ud800'",
        "selct 1",
    ],
)
def test_what_is_refused(views: Views, sql: str) -> None:
    before = views.to_arrow("clicks")
    with pytest.raises(InvalidQuery):
        views.query(sql)
    assert views.to_arrow("clicks").equals(before) and not Path("/tmp/headrace-stolen.db").exists()


def test_it_says_that_only_reading_is_possible(views: Views) -> None:
    with pytest.raises(InvalidQuery, match="only reading is possible"):
        views.query('delete from "clicks/rows"')


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select 1 as one", {"one": 1}),
        (
            "with recursive c(n) as (select 1 union all select n + 1 from c where n < 9) select sum(n) as s from c",
            {"s": 45},
        ),
        ("select count(*) as c from clicks where page is null", {"c": 1}),
        ("select n, n from clicks where page is null", {"n": 2, "n_2": 2}),
        ("values (1, null)", {"column1": 1, "column2": None}),
        ("select upper('ä' || 'b') as u, x'00ff' as b", {"u": "äB", "b": b"\x00\xff"}),
    ],
)
def test_what_is_answered(views: Views, sql: str, found: dict[str, Any]) -> None:
    assert views.query(sql).to_pylist() == [found]


def test_what_is_not_sql(views: Views) -> None:
    with pytest.raises(InvalidArgument):
        views.query(7)  # type: ignore[arg-type]


# -- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("boolean", [True, False]),
        ("bigint", [2**63 - 1, -(2**63), 2**53 + 1]),
        ("double", [0.1 + 0.2, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 1.0]),
        ("decimal(38,2)", [Decimal("9.00"), Decimal("10.00"), Decimal("-" + "9" * 36 + ".99")]),
        ("string", ["", "a\0b", "NaN", "größe", "10"]),
        ("binary", [b"", b"\0\xff"]),
        ("date", [date(2026, 1, 1), date(1, 1, 1)]),
        ("timestamp", [moment(T0), moment(T0 + 1), moment(-1)]),
        ("timestamp_ntz", [datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 1)]),
    ],
)
def test_values_go_in_and_come_out(store: SqliteViews, home: Path, ddl: str, values: list[Any]) -> None:
    view, views = values_of(store, ddl, values), open_views(home)
    assert views.query(f"select one from {view} order by g")["one"].to_pylist() == values
    for value in values:
        where = {"one": value}
        assert [row["one"] for row in views.to_arrow(view, where).to_pylist()] == [value]
        if ddl != "timestamp_ntz":
            for sql, params in ("one = ?", (value,)), ("one = :x", {"x": value}):
                found = views.query(f"select one from {view} where {sql}", params)["one"].to_pylist()
                assert found == [value]
    ordered = views.query(f"select one from {view} order by one")["one"].to_pylist()
    assert ordered == sorted(values)


def test_decimals_are_compared_by_value(store: SqliteViews, home: Path) -> None:
    view = values_of(store, "decimal(10,2)", [Decimal("9.00"), Decimal("10.00"), Decimal("-3.50")])
    views = open_views(home)

    def found(condition: str, *params: Any) -> list[float]:
        return [
            float(one) for one in views.query(f"select one from {view} where {condition}", params)["one"].to_pylist()
        ]

    assert found("one > 9.5") == [10.0]
    assert found("one between 0 and 9") == [9.0]
    assert found("one = ?", Decimal("10")) == [10.0]
    assert found("one = (select max(one) from typed)") == [10.0]
    assert views.query(f"select sum(one) as s from {view}")["s"].to_pylist() == [15.5]


def test_what_is_not_a_number(store: SqliteViews, home: Path) -> None:
    views = open_views(home)
    view = values_of(store, "double", [math.nan, 1.5, None])
    found = views.query(f"select one from {view} order by one desc")["one"].to_pylist()
    assert math.isnan(found[0]) and found[1:] == [1.5, None]
    only = views.query(f"select one from {view} where g = 'a'")["one"]
    assert math.isnan(only.to_pylist()[0]), "alone, too"
    assert views.query(f"select count(*) as c from {view} where one = ?", (math.nan,))["c"].to_pylist() == [1]
    view = values_of(store, "string", ["NaN", "x"])
    assert views.query(f"select one from {view} where g = 'a'")["one"].to_pylist() == ["NaN"], "a text is a text"


def test_a_result_without_rows_has_its_columns(views: Views) -> None:
    found = views.query("select page, n from clicks where n > 99")
    assert (found.column_names, found.num_rows) == (["page", "n"], 0)


@pytest.mark.parametrize("ddl", ["boolean", "int", "double", "decimal(5,2)", "string", "binary", "date", "timestamp"])
def test_a_column_without_values_has_its_type(store: SqliteViews, home: Path, ddl: str) -> None:
    """Without rows, and with nothing but nulls in them; whatever is bound, and beside what is computed."""
    values_of(store, ddl, [None])
    one = {"boolean": True, "int": 1, "double": 1.5, "decimal(5,2)": Decimal("100.25"), "string": "x", "binary": b"x"}
    one |= {"date": date(2026, 1, 1), "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    with SqliteViews(home) as other:
        spec = all_rules("full", ddl)
        state = other.begin(spec)
        other.commit(state, commit(state, partial_rows(spec, [[("a", one[ddl], 0, 0, 0)]])))
    views = open_views(home)
    wanted = views.query("select one, _updated_at from full").schema
    for sql, params in (
        ("select one, _updated_at from typed where g = ?", ("z",)),
        ("select t.one, t._updated_at from typed t where g = :g and g <> '?' -- or ?", {"g": "z"}),
        ("with q as (select * from typed) select one, _updated_at from q where 0", ()),
        ("select one, _updated_at from typed", ()),
    ):
        assert views.query(sql, params).schema == wanted, sql
    assert [str(kind) for kind in views.query("select one, 1 + 1 from typed where 0").schema.types][1] == "null"


def test_a_bounded_result_counts_small_values_too(views: Views) -> None:
    """10,000 rows of 2,000 columns would be gigabytes of small numbers."""
    rows = "with recursive n(i) as (select 1 union all select i + 1 from n limit 100) select i, i from n"
    table, more = views.bounded(rows, bounds=Bounds(result_bytes=800))
    assert (table.num_rows, more) == (50, True)  # 50 rows · 2 values · 8 bytes = 800
    assert views.bounded(rows, bounds=Bounds())[1] is False


def test_the_stores_own_tables_can_be_read(views: Views) -> None:
    for table in ("_flows", "_positions", "_ledger", "_outbox", "_meta"):
        assert views.query(f"select * from {table}").column_names


@pytest.mark.parametrize(
    ("sql", "params", "why"),
    [
        ("select ?", (), "1, and there are 0"),
        ("select 1", (1,), "0, and there are 1"),
        ("select :a", {"b": 1}, "a"),
        ("select ?", (2**63,), "too large"),
        ("select ?", (object(),), "not supported"),
        ("select ?", (["list"],), "not supported"),
        ("select ?", ("a\ud800",), "surrogates"),
    ],
)
def test_parameters_that_cannot_be_bound(views: Views, sql: str, params: Any, why: str) -> None:
    with pytest.raises(InvalidQuery, match=why):
        views.query(sql, params)


@pytest.mark.parametrize("params", ["/", 5, None])
def test_parameters_that_are_none(views: Views, params: Any) -> None:
    with pytest.raises(InvalidArgument, match="one for each"):
        views.query("select ?", params)


@pytest.mark.parametrize("position", ["clicks~1a:0=1", 5, {0: 1}])
def test_a_position_is_a_position(views: Views, position: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"append\(…\)\.position"):
        views.query("select 1", wait_for=position)


def test_a_time_without_zone_is_refused(views: Views) -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        views.query("select ?", (datetime(2026, 1, 1),))
    zoned = datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert views.query("select sum(n) as n from clicks where window_start >= ?", (zoned,))["n"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ({"pag": "/"}, "Did you mean 'page'"),
        ({"window_start": datetime(2026, 1, 1)}, "time zone"),
        ({"window_start": 5.5}, "timestamp"),
        ({"n": "x"}, "bigint"),
        ({"page": 7}, "string"),
    ],
)
def test_a_row_asked_for_by_nonsense(views: Views, where: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        views.to_arrow("clicks", where)


def test_a_row_asked_for_by_text(views: Views) -> None:
    assert views.to_arrow("clicks", {"window_start": "2026-01-01T01:00:00+01:00"})["n"].to_pylist() == [3]


@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_any_name_can_be_asked_for(store: SqliteViews, home: Path, name: str) -> None:
    spec = counting(groups=(Column(name, "string"),))
    state = store.begin(spec)
    store.commit(state, commit(state, counted(spec, [(0, "/", 3), (0, "x", 1)])))
    assert open_views(home).to_arrow("clicks", {name: "x"})["n"].to_pylist() == [1]


# -- what there is -----------------------------------------------------------------------------------


def test_an_unknown_view_is_named_with_its_neighbour(views: Views) -> None:
    for wrong, said in (
        ("select pag from clicks", "there is no column 'pag'. Did you mean 'page'?"),
        ("select c.pag from clicks c", "there is no column 'pag'. Did you mean 'page'?"),
        ("select * from clicks where page = ?", "with params=, or --param"),
    ):
        with pytest.raises(InvalidQuery, match=re.escape(said)):
            views.query(wrong)
    with pytest.raises(InvalidQuery, match="Did you mean 'clicks'"):
        views.query("select * from click")
    for use in views.to_arrow, views.ledger, views.status, views.spec:
        with pytest.raises(UnknownView, match="Did you mean 'clicks'"):
            use("click")


def test_a_home_without_views_says_what_to_do(tmp_path: Path) -> None:
    views = open_views(tmp_path)
    assert views.names() == [] and views.states() == []
    for use in (lambda: views.query("select 1"), lambda: views.to_arrow("clicks"), lambda: views.status("clicks")):
        with pytest.raises(UnknownView) as error:
            use()
        assert ("''" not in str(error.value) and "none yet" in str(error.value)) or "no views yet" in str(error.value)
    assert not (tmp_path / "views.db").exists()


def test_what_goes_to_a_topic_is_no_view(store: SqliteViews, home: Path) -> None:
    store.begin(counting("out", emit="updates", target="out"))
    views = open_views(home)
    assert views.names() == []
    with pytest.raises(UnknownView):
        views.to_arrow("out")
    with pytest.raises(InvalidQuery):
        views.query("select * from out")


# -- waiting -----------------------------------------------------------------------------------------


def test_waiting_for_a_position(store: SqliteViews, home: Path) -> None:
    spec = counting()
    views, wanted = open_views(home), Position.of("clicks", "1d", {0: 5, 1: 2})
    state = store.begin(spec)
    with pytest.raises(WaitTimeout):
        views.wait_for(wanted, timeout="0 seconds")  # it has read nothing, and reads the topic
    for places in ({0: Place(5, None)}, {0: Place(4, None), 1: Place(9, None)}):
        state = store.commit(state, commit(state, places={"clicks": places}, topic_ids={"clicks": "1d"}))
        if 1 not in places:
            with pytest.raises(WaitTimeout):
                views.query("select 1", wait_for=wanted, timeout="20 milliseconds")
    with pytest.raises(WaitTimeout):
        views.wait_for(wanted, timeout="1 millisecond")
    store.commit(state, commit(state, places={"clicks": {0: Place(5, None)}}, topic_ids={"clicks": "1d"}))
    assert views.query("select 1 as one", wait_for=wanted)["one"].to_pylist() == [1]
    with pytest.raises(InvalidArgument, match=r"Position\.parse"):
        views.query("select 1", wait_for=str(wanted))  # type: ignore[arg-type]


# -- running away ------------------------------------------------------------------------------------

ENDLESS = "with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) from c"


def run_away(home: str) -> None:
    try:
        ack("running")
        open_views(Path(home)).query(ENDLESS)
    except KeyboardInterrupt:
        ack("interrupted")
    except HeadraceError as error:
        ack(str(error))


def test_a_query_that_never_ends_is_ended_by_ctrl_c(views: Views, home: Path, children: Children) -> None:
    assert views.names()
    child = children.start(run_away, str(home))
    assert child.next() == "running"
    threading.Event().wait(0.3)  # until it runs; before, the signal would end it as well
    child.process.send_signal(signal.SIGINT)
    assert child.next() == "interrupted"
    child.finish()


def test_a_long_query_holds_no_commit_up(store: SqliteViews, home: Path) -> None:
    spec = FlowSpec("v", "shop", ("t",), ViewSpec("v", (), counting().view.slots, counting().view.results))  # type: ignore[union-attr]
    state = store.begin(spec)
    views = open_views(home)
    names, chunks = views.rows(
        "with recursive c(n) as (select 1 union all select n + 1 from c limit 300000) select n from c"
    )
    assert names == ["n"] and len(next(chunks)) > 0
    for _ in range(3):
        state = store.commit(state, commit(state))
    assert sum(len(chunk) for chunk in chunks) > 200_000
