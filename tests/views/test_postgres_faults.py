"""What goes wrong between a store and its Postgres: lost connections, a crash of the server, secrets, queries of
others. The server is a real one; a connection is cut by a proxy."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import commit, counted, counting, counts
from headrace.views.contract import Column, Commit, FlowSpec, TableSpec, Writes
from headrace.views.open import open_store, open_views
from headrace.views.values import arrow_type
from tests.databases import PostgresServer, Proxy

psycopg = pytest.importorskip("psycopg")
connections = pytest.importorskip("headrace.views.postgres.connections")


@pytest.fixture
def address(postgres: PostgresServer, tmp_path: Path) -> str:
    return postgres.schema(tmp_path)


@pytest.fixture
def store(address: str) -> Iterator[Any]:
    with FoldingStore(open_store(address)) as store:
        yield store


def once(where: str) -> Callable[[bytes], str]:
    """Cuts the connection at the first COMMIT of a transaction that has written the flow's row."""
    wrote = []

    def cut(said: bytes) -> str:
        wrote.extend([1] if b"UPDATE _flows SET sequence" in said else [])
        if wrote and b"COMMIT" in said and len(wrote) < 2:
            wrote.append(1)
            return where
        return ""

    return cut


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_connection_that_is_cut_around_commit(address: str, store: Any, where: str) -> None:
    """Before COMMIT arrives nothing was committed, and it is tried again; after it the flow's row says that it was."""
    state = store.begin(counting())
    proxy = Proxy(address, once(where))
    with FoldingStore(open_store(proxy.url)) as far:
        far._specs = store._specs
        state = far.commit(state, commit(state, counted(counting(), [(0, "/", 1)])))
    proxy.close()
    assert state.sequence == 1 == store.state("clicks").sequence
    assert counts(open_views(address)) == {(0, "/"): 1}


def test_a_server_that_is_killed_in_mid_commit(postgres: PostgresServer, address: str, store: Any) -> None:
    """SIGKILL to all its processes, while a commit's rows are merged and not committed; then it starts again."""
    state = store.begin(counting())
    state = store.commit(state, commit(state, counted(counting(), [(0, "/", 1)])))
    killed: list[int] = []
    applied = store._store._write

    def write(*given: Any) -> Any:
        found = applied(*given)
        if not killed:
            killed.append(postgres.pid)
            postgres.kill()
        return found

    store._store._write = write
    state = store.commit(state, commit(state, counted(counting(), [(0, "/", 2)])))
    assert killed and state.sequence == 2
    assert counts(open_views(address)) == {(0, "/"): 3}


def cuts_at_random(address: str, server: str, dice: random.Random, commits: int) -> None:
    """Any message of any connection may be the last one, arrived or not. Any client sees whole commits only."""
    seen, done = set[Any](), threading.Event()
    schema = address.rpartition("=")[2]
    both = f"SELECT (SELECT sum(n) FROM {schema}.clicks), (SELECT sequence FROM {schema}._flows)"

    def look() -> None:
        with psycopg.connect(server, autocommit=True) as plain:
            while not done.is_set():
                seen.add(plain.execute(both).fetchone())

    odds = [0.0]
    proxy = Proxy(address, lambda _: dice.choice(("before", "after")) if dice.random() < odds[0] else "")
    rows = [(0, f"/{number}", 1) for number in range(50)]
    with FoldingStore(open_store(address)) as near, FoldingStore(open_store(proxy.url)) as far:
        state = near.begin(counting())
        far._specs = near._specs
        thread = threading.Thread(target=look)
        thread.start()
        made, odds[0] = 0, 0.02
        while made < commits:
            try:
                state = far.commit(state, commit(state, counted(counting(), rows)))
            except hr.StorageError:  # while it read what it folds into: the flow begins again
                state = near.begin(counting())
            assert state.sequence in (made, made + 1)
            made = state.sequence
        done.set()
        thread.join()
    proxy.close()
    assert counts(open_views(address)) == {row[:2]: commits for row in rows}
    assert len(seen) > 1 and all((total or 0) == 50 * sequence for total, sequence in seen), seen


def test_connections_that_are_cut_anywhere(
    address: str, postgres: PostgresServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.views.postgres.store.RETRY_SECONDS", (0.0,) * 50)
    cuts_at_random(address, postgres.url, random.Random(seed), 25)


@pytest.mark.soak
def test_connections_that_are_cut_anywhere_again_and_again(
    address: str, postgres: PostgresServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.views.postgres.store.RETRY_SECONDS", (0.0,) * 50)
    cuts_at_random(address, postgres.url, random.Random(seed), 2_000)


def test_a_view_is_an_ordinary_relation(address: str, store: Any, postgres: PostgresServer) -> None:
    """Any client reads and joins it, with types of its own, and sees whole commits."""
    state = store.begin(counting())
    state = store.commit(state, commit(state, counted(counting(), [(0, "/", 1), (1, "/", 2)]), closed_us=None))
    schema = address.rpartition("=")[2]
    with psycopg.connect(postgres.url) as plain:
        types = plain.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "ORDER BY ordinal_position",
            (schema, "clicks"),
        ).fetchall()
        assert types == [
            ("window_start", "timestamp with time zone"),
            ("window_end", "timestamp with time zone"),
            ("page", "text"),
            ("n", "bigint"),
            ("_status", "text"),
            ("_corrections", "bigint"),
            ("_updated_at", "timestamp with time zone"),
        ]
        pages = "(VALUES ('/', 'home')) AS pages(page, title)"
        joined = f"SELECT title, sum(n) FROM {schema}.clicks JOIN {pages} USING (page) GROUP BY title"
        assert plain.execute(joined).fetchall() == [("home", 3)]


def test_no_state_is_left_in_a_session(address: str, store: Any, postgres: PostgresServer) -> None:
    """So a pooler may lend connections for one transaction: nothing prepared, listened to, locked or temporary."""
    state = store.begin(counting())
    rows = [(0, f"/{number}", 1) for number in range(2_500)]  # so many are copied into a temporary table
    store.commit(state, commit(state, counted(counting(), rows)))
    from headrace.views.postgres.address import Address
    from headrace.views.postgres.connections import pool_of

    (_, raw), *_ = pool_of(Address.parse(address)).sockets.idle
    left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()), "
    left += "(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), "
    left += "(SELECT count(*) FROM pg_class WHERE relname = 'headrace_rows'), current_setting('search_path')"
    with psycopg.connect(postgres.url) as plain:
        search_path = plain.execute("SHOW search_path").fetchone()[0]
    assert raw.execute(left).fetchone() == (0, 0, 0, 0, search_path)


def _with(secret: str, sign: str) -> tuple[str, str]:
    """Passwords with a character that had to be encoded; the second begins as a port does."""
    return secret.replace("-", sign), f"4711{sign}{secret}"


def test_a_password_is_shown_nowhere(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "canary-7f3a"
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    good = (
        f"postgresql://ann:{secret}@127.0.0.1:{port}/db",
        f"postgresql://ann@127.0.0.1:{port}/db?password={secret}",
    )
    wrong = [f"postgresql://ann:{secret}@127.0.0.1:notaport/db"]
    wrong += [f"postgresql://ann:{part}@127.0.0.1/db" for sign in "/?#[\u2100" for part in _with(secret, sign)]
    for url in (*good, *wrong):
        with pytest.raises(hr.HeadraceError) as told:
            open_store(url)
        shown: BaseException | None = told.value
        while shown is not None:
            said = f"{shown} {shown!r} {vars(shown)}"
            assert not any(part in said for part in (secret, "canary", "7f3a", "4711")), url
            shown = shown.__cause__
    for url in good:
        assert secret not in f"{open_views(url).address} {hr.App('shop', home=tmp_path, views=url)!r}"
    user = address.replace("//headrace@", "//headrace:env:PG_CANARY@")
    monkeypatch.setenv("PG_CANARY", secret)
    with open_store(user) as store:  # the test's server trusts everybody: the reference is resolved all the same
        assert secret not in f"{store!r} {vars(store)}"
    monkeypatch.delenv("PG_CANARY")
    with pytest.raises(hr.InvalidArgument, match="env:PG_CANARY"):
        open_store(user.replace("?", "?connect_timeout=5&"))


def test_sql_of_others(address: str, store: Any) -> None:
    state = store.begin(counting())
    store.commit(state, commit(state, counted(counting(), [(0, "/", 1), (1, "a?", 2)])))
    views = open_views(address)
    assert views.query("SELECT n FROM clicks WHERE page = ?", ("a?",)).to_pydict() == {"n": [2]}
    named = views.query("SELECT n::text AS n, ':x' AS x FROM clicks WHERE page = :page", {"page": "/"})
    assert named.to_pydict() == {"n": ["1"], "x": [":x"]}
    typed = views.query("SELECT window_start, sum(n) AS n FROM clicks GROUP BY 1 ORDER BY 1").schema
    assert typed == pa.schema([("window_start", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    for wrong in (
        "DELETE FROM clicks",
        "SELECT 1; COMMIT; DROP VIEW clicks",
        "WITH gone AS (DELETE FROM _flows RETURNING 1) SELECT * FROM gone",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT * FROM click",
    ):
        with pytest.raises(hr.InvalidQuery, match="Postgres"):
            views.query(wrong)
    bounds = hr_bounds(seconds=0.2)
    with pytest.raises(hr.QueryTimeout):
        views.bounded("SELECT pg_sleep(30)", bounds=bounds)
    found, more = views.bounded("SELECT n FROM clicks ORDER BY n", bounds=hr_bounds(rows=1))
    assert (found.to_pydict(), more) == ({"n": [1]}, True)
    page = views.page("clicks", bounds=hr_bounds(rows=1))
    assert page.rows["n"].to_pylist() == [2] and page.after is not None
    assert views.page("clicks", bounds=hr_bounds(rows=1), after=page.after).rows["n"].to_pylist() == [1]


def test_sql_of_others_leaves_nothing_behind(address: str, store: Any, postgres: PostgresServer) -> None:
    """The connection is used again, by commits too: they would not be durable, or stopped."""
    store.begin(counting())
    views = open_views(address)
    views.query("SELECT set_config('synchronous_commit', 'off', false), set_config('lock_timeout', '1ms', false)")
    views.bounded("SELECT pg_advisory_lock(7)::text", bounds=hr_bounds())
    with contextlib.suppress(hr.InvalidQuery):  # since Postgres 16
        views.bounded("SELECT lo_creat(-1)", bounds=hr_bounds())
    with pytest.raises(hr.InvalidQuery):
        views.query("SELECT pg_advisory_lock(8)::text, 1 / (random() - random() - 9)::int / 0")
    from headrace.views.postgres.address import Address
    from headrace.views.postgres.connections import pool_of

    for _, raw in pool_of(Address.parse(address)).sockets.idle:
        left = "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout'), "
        left += "(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')"
        assert raw.execute(left).fetchone() == ("on", "0", 0)
    with psycopg.connect(postgres.url) as plain:
        assert plain.execute("SELECT count(*) FROM pg_largeobject_metadata").fetchone() == (0,)


def test_a_query_cannot_take_more_time_than_it_is_given(address: str, store: Any) -> None:
    """Neither by changing the limit, nor by being quick with each part of its rows."""
    store.begin(counting())
    slow = "SELECT set_config('statement_timeout', '0', true), CASE WHEN n > 1100 THEN pg_sleep(0.02)::text END "
    with pytest.raises(hr.QueryTimeout):
        open_views(address).bounded(f"{slow} FROM generate_series(1, 1150) AS n", bounds=hr_bounds(seconds=0.3))


@pytest.mark.parametrize("place", [["abc", "/"], ["2026-01-01", "\ud800"], ["'; DROP TABLE _flows; --", "/"]])
def test_a_page_after_something_else(address: str, store: Any, place: list[str]) -> None:
    store.begin(counting())
    after = base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
    with pytest.raises(hr.InvalidArgument, match="after="):
        open_views(address).page("clicks", after=after, bounds=hr_bounds())


def test_long_values(store: Any) -> None:
    """Arrow reads CSV in blocks of a megabyte, and no row that is longer than two."""
    spec = FlowSpec("f", "app", (), None, tables=(TableSpec("t", (Column("k", "int"),), (Column("v", "string"),)),))
    state = store._store.begin(spec)
    rows = pa.table({"k": pa.array([1, 2, 3], pa.int32()), "v": ["x" * 3_000_000, "y" * 2_500_000, "z"]})
    state = store._store.commit(state, Commit(0, {}, {}, writes=Writes(puts={"t": rows})))
    found = store._store.read_state(state).get("t", rows.select(["k"]))
    assert found.equals(rows.cast(found.schema))


@pytest.mark.parametrize("read", [0, 1])
def test_rows_that_nobody_reads_on(address: str, store: Any, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    """A large result is handed out while its transaction is open. Who drops it is not kept waiting, nor is the view."""
    monkeypatch.setattr("headrace.views.postgres.reading.CHUNK_ROWS", 2)
    state = store.begin(counting())
    store.commit(state, commit(state, counted(counting(), [(0, f"/{number}", 1) for number in range(50)])))

    def drop() -> None:
        _, batches = open_views(address).batches("clicks")
        for _ in range(read):
            assert next(batches).num_rows == 2

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    store.begin(counting(), replace=True)


def test_a_map_has_any_text_as_a_key(store: Any) -> None:
    kind = "map<string,int>"
    spec = FlowSpec("f", "app", (), None, tables=(TableSpec("t", (Column("k", "int"),), (Column("v", kind),)),))
    state = store._store.begin(spec)
    rows = pa.table({"k": pa.array([1], pa.int32()), "v": pa.array([{"a\0": 1, "\x01": 2}], arrow_type(kind))})
    state = store._store.commit(state, Commit(0, {}, {}, writes=Writes(puts={"t": rows})))
    assert dict(store._store.read_state(state).get("t", rows.select(["k"]))["v"][0].as_py()) == {"a\0": 1, "\x01": 2}


def test_rows_and_sequence_are_of_one_version(address: str, store: Any, postgres: PostgresServer) -> None:
    """Between a reader's snapshot and its rows, another table takes the place of the view's: it sees the one or the
    other, not the old sequence with the new table, which is empty for its snapshot."""
    state = store.begin(counting())
    store.commit(state, commit(state, counted(counting(), [(0, "/", 1)])))
    schema, found = address.rpartition("=")[2], list[Any]()
    reader = threading.Thread(target=lambda: found.append(open_views(address).moment("clicks")))
    with psycopg.connect(postgres.url) as plain:
        plain.execute(f"SET search_path TO {schema}")
        plain.execute('LOCK TABLE "clicks/rows" IN ACCESS EXCLUSIVE MODE')
        reader.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '\"clicks/rows\"'::regclass"
        while plain.execute(waiting).fetchone() == (0,):
            assert reader.is_alive()
        plain.execute('ALTER TABLE "clicks/rows" RENAME TO gone')
        plain.execute('CREATE TABLE "clicks/rows" (LIKE gone)')
        plain.execute('INSERT INTO "clicks/rows" SELECT * FROM gone')
        plain.execute("UPDATE _flows SET sequence = 2")
    reader.join(30)
    assert [(moment.rows.num_rows, moment.state.sequence) for moment in found] == [(1, 2)]


def test_a_writer_that_is_paused_in_its_commit(address: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the flow's row. The server ends its transaction after a while; it is fenced when it goes on."""
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.3)
    state = store.begin(counting())
    applied, taken = store._store._write, list[Any]()

    def write(*given: Any) -> Any:
        if not taken:
            with FoldingStore(open_store(address)) as other:
                taken.append(other.begin(counting()))
        return applied(*given)

    store._store._write = write
    with pytest.raises(hr.FlowFenced):
        store.commit(state, commit(state, counted(counting(), [(0, "/", 1)])))
    assert counts(open_views(address)) == {}


def test_who_reads_a_view_for_long_does_not_stop_all_flows(
    address: str, store: Any, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a view that is made again waits for its readers, no flow of the store can commit."""
    monkeypatch.setattr("headrace.views.postgres.store.READERS_SECONDS", 0.2)
    store.begin(counting())
    state = store.begin(counting("others"))
    with psycopg.connect(postgres.url) as plain:
        plain.execute(f"SELECT * FROM {address.rpartition('=')[2]}.clicks")
        with pytest.raises(hr.StorageError, match="transactions that read the view"):
            store.begin(counting(), replace=True)
        state = store.commit(state, commit(state, counted(counting("others"), [(0, "/", 1)])))
    store.begin(counting(), replace=True)
    assert state.sequence == 1


def hr_bounds(**given: Any) -> Any:
    from headrace.views.reading import Bounds

    return Bounds(**given)


def test_changes_are_watched(address: str, store: Any) -> None:
    state = store.begin(counting())
    state = store.commit(state, commit(state, counted(counting(), [(0, "/", 1)])))
    with open_views(address).watch("clicks", timeout="20 seconds") as watch:
        assert [(next(watch)["op"], watch.position)] == [("+", 1)]
        store.commit(state, commit(state, counted(counting(), [(0, "/", 4)])))
        assert [(change["op"], change["n"]) for change in (next(watch), next(watch))] == [("-", 1), ("+", 5)]


@pytest.mark.parametrize(
    ("name", "said"),
    [("v" * 60, "63 bytes"), ("größe" * 14, "InvalidName"), ("pg_stats", "its own tables")],
    ids=["long", "not a name", "a catalog's"],
)
def test_names_that_postgres_cannot_have(store: Any, name: str, said: str) -> None:
    with pytest.raises(hr.InvalidName) as told:
        store.begin(counting(name))
    assert said in f"{told.value} {type(told.value).__name__}"
