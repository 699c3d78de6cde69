"""What is SQLite's own: other processes beside this one, readers in the way, kills at every step of a commit, disks
that fail, files that are damaged, forks. Whatever happens, the file is as some commit left it, and has a name for it.

A flow counts how often it was committed, on every page alike: half a commit would show."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import failpoints
from headrace.aggregates import Aggregate, top_k
from headrace.errors import (
    DiskFull,
    FlowFenced,
    ForkedProcess,
    HeadraceError,
    InvalidArgument,
    LogMissing,
    StorageError,
    UnsupportedFormat,
    ViewsDamaged,
)
from headrace.testing.view_contract import SIZE, T0, commit, counted, counting
from headrace.views.contract import (
    Column,
    FlowSpec,
    FlowState,
    LedgerRow,
    Outgoing,
    Place,
    Result,
    SlotColumn,
    ViewSpec,
)
from headrace.views.open import open_views
from headrace.views.sqlite import file
from tests.faults.children import Children, ack, hear
from tests.faults.disk import Disk, Fail, Shim, fail, fired, mark
from tests.views.folded import SqliteViews

PAGES = [f"/{n:02}" for n in range(40)]
POINTS = sorted(point for point in failpoints.KNOWN if point.startswith("view."))


def once(store: SqliteViews, state: FlowState) -> FlowState:
    """One more of everything: rows, ledger, position, outbox."""
    spec, after = counting(state.name), state.sequence + 1
    return store.commit(
        state,
        commit(
            state,
            counted(spec, [(0, page, 1) for page in PAGES] + [(after, "/", 1)]),
            ledger=[LedgerRow(T0, T0 + SIZE, on_time=1)],
            places={"clicks": {0: Place(after, T0 + after)}},
            topic_ids={"clicks": "id"},
            frontier_us=T0 + after,
            outgoing=[Outgoing("out", pa.table({"n": [after]}))],
        ),
    )


def check(home: Path, flow: str = "clicks") -> int:
    """How many commits there are; everything says the same number."""
    views = open_views(home)
    table = views.to_arrow(flow)
    with SqliteViews(home) as store:
        state, outbox = store.state(flow), store.outbox(flow)
    n = state.sequence
    first = [row["n"] for row in table.to_pylist() if row["window_start"].timestamp() * 1_000_000 == T0]
    assert first == [n] * len(PAGES if n else []), "half a commit"
    assert table.num_rows == (len(PAGES) + n if n else 0)
    assert [row["on_time"] for row in views.ledger(flow).to_pylist()] == ([n] if n else [])
    assert state.places == ({"clicks": {0: Place(n, T0 + n)}} if n else {})
    assert state.frontier_us == (T0 + n if n else None)
    assert [waiting.rows["n"].to_pylist() for waiting in outbox] == [[number] for number in range(1, n + 1)]
    db = sqlite3.connect(home / "views.db")
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    return n


# -- other processes ---------------------------------------------------------------------------------


def committer(home: str, flow: str, commits: int) -> None:
    with SqliteViews(Path(home)) as store:
        state = store.begin(counting(flow))
        ack("begun")
        for _ in range(commits):
            state = once(store, state)
            ack(state.sequence)


def test_readers_in_another_process_see_whole_commits_only(tmp_path: Path, children: Children) -> None:
    child = children.start(committer, str(tmp_path), "clicks", 60)
    assert child.next() == "begun"
    views, seen = open_views(tmp_path), set()
    while max(seen, default=0) < 60:
        table = views.to_arrow("clicks")
        first = {row["n"] for row in table.to_pylist() if row["page"] != "/"}
        assert len(first) <= 1, "half a commit"
        n = first.pop() if first else 0
        assert table.num_rows == (len(PAGES) + n if n else 0)
        assert n >= max(seen, default=0), "back in time"
        seen.add(n)
    child.finish()
    assert check(tmp_path) == 60


def test_two_processes_commit_flows_of_one_file(tmp_path: Path, children: Children) -> None:
    started = [children.start(committer, str(tmp_path), flow, 30) for flow in ("a", "b", "c")]
    for child in started:
        assert child.finish(60)[-1] == 30
    assert [check(tmp_path, flow) for flow in ("a", "b", "c")] == [30, 30, 30]


def fenced(home: str) -> None:
    with SqliteViews(Path(home)) as store:
        state = once(store, store.begin(counting()))
        ack("ready")
        hear()
        try:
            once(store, state)
        except FlowFenced as error:
            ack([error.epoch, error.current_epoch])


def test_a_committer_that_slept_while_another_took_over_is_fenced(tmp_path: Path, children: Children) -> None:
    child = children.start(fenced, str(tmp_path))
    assert child.next() == "ready"
    child.stop()
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        assert state.sequence == 1
        child.tell("go")
        child.resume()
        old, current = child.next()
        assert old < current == state.epoch
        child.finish()
        once(store, state)
    assert check(tmp_path) == 2


def test_who_took_over_between_a_commit_and_its_return_is_not_mistaken_for_oneself(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store, SqliteViews(tmp_path) as other:
        mine = store.begin(counting())
        failpoints.arm("view.committed", lambda: other.begin(counting()))
        after = once(store, mine)
        assert after.epoch == mine.epoch and after.sequence == 1
        with pytest.raises(FlowFenced):
            once(store, after)
    assert check(tmp_path) == 1


# -- a reader in the way -------------------------------------------------------------------------------


def test_a_long_reader_postpones_checkpoints_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "CHECKPOINT_BYTES", 200_000)
    wal = tmp_path / "views.db-wal"
    with SqliteViews(tmp_path) as store:
        state = once(store, store.begin(counting()))
        reader = sqlite3.connect(tmp_path / "views.db", isolation_level=None)
        reader.execute("BEGIN")
        count = 'SELECT count(*) FROM "clicks"'
        before = reader.execute(count).fetchone()
        for _ in range(30):
            state = once(store, state)
        assert wal.stat().st_size > 300_000, "the reader holds it up"
        assert reader.execute(count).fetchone() == before
        reader.execute("COMMIT")
        assert reader.execute(count).fetchone() == (before[0] + 30,)
        state = once(store, state)
        assert wal.stat().st_size == 0
        for _ in range(60):
            state = once(store, state)
            assert wal.stat().st_size < 300_000
        reader.close()
    assert check(tmp_path) == 92


# -- kills -------------------------------------------------------------------------------------------


def killed(home: str, point: str, action: str, skip: int) -> None:
    file.CHECKPOINT_BYTES = 100_000
    with SqliteViews(Path(home)) as store:
        state = store.begin(counting())
        failpoints.arm(point, action, skip=skip)  # type: ignore[arg-type]
        while state.sequence < 12:
            try:
                state = once(store, state)
            except failpoints.InjectedFault:
                state = store.state("clicks")
            ack(state.sequence)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("skip", [0, 5])
def test_killed_at(point: str, skip: int, tmp_path: Path, children: Children) -> None:
    child = children.start(killed, str(tmp_path), point, "kill", skip)
    assert child.wait() == -signal.SIGKILL
    acked = max(child.rest(), default=0)
    assert acked == skip
    assert check(tmp_path) == acked + (point == "view.committed")
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        for _ in range(3):
            state = once(store, state)
    assert check(tmp_path) == state.sequence


@pytest.mark.parametrize("point", POINTS)
def test_made_to_fail_at(point: str, tmp_path: Path, children: Children) -> None:
    facts = children.start(killed, str(tmp_path), point, "raise", 4).finish()
    assert facts == [1, 2, 3, 4, *([] if point == "view.committed" else [4]), *range(5, 13)]
    assert check(tmp_path) == 12


# -- disks -------------------------------------------------------------------------------------------

CASES: list[tuple[str, str, Any]] = [
    ("write", "views.db-wal", errno.ENOSPC),
    ("write", "views.db-wal", errno.EIO),
    ("write", "views.db-wal", "short"),
    ("sync", "views.db-wal", errno.EIO),
    ("write", "views.db", errno.ENOSPC),
    ("write", "views.db", errno.EIO),
    ("sync", "views.db", errno.EIO),
    ("truncate", "views.db-wal", errno.EIO),
    ("truncate", "views.db", errno.ENOSPC),
]


def on_a_bad_disk(home: str, kind: Any, glob: str, error: Any, stride: int) -> None:
    """Commits, the n-th call failing, for every n; then again without a fault, in the same process."""
    file.CHECKPOINT_BYTES = 60_000
    with SqliteViews(Path(home)) as store:
        state = store.begin(counting())
        for nth in itertools.count(1, stride):
            fail(Fail(kind, glob, error, nth=nth))
            for _ in range(4):
                before = state.sequence
                try:
                    state = once(store, state)
                except HeadraceError as failed:
                    ack(["failed", type(failed).__name__])
                    fail()
                    state = store.state("clicks")
                    assert state.sequence == before, "refused, and there"
            count = fired()
            fail()
            state = once(store, state)
            ack(["at", state.sequence])
            if not count:
                return
            assert nth < 600


@pytest.mark.parametrize(
    ("kind", "glob", "error"), CASES, ids=[f"{k}-{g}-{errno.errorcode.get(e, e)}" for k, g, e in CASES]
)
def test_a_disk_that_fails(kind: str, glob: str, error: Any, shim: Shim, memory: Path, children: Children) -> None:
    home = memory / "home"
    stride = 7 if kind == "write" else 1
    child = Disk(shim, home).start(children, on_a_bad_disk, str(home), kind, glob, error, stride)
    facts = child.finish(100)
    assert check(home) == facts[-1][1]
    names = {fact[1] for fact in facts if fact[0] == "failed"}
    if glob == "views.db-wal" and kind == "write":
        assert names == {"DiskFull" if error == errno.ENOSPC else "StorageError"} or error == "short"
    if glob == "views.db":
        assert not names, "a checkpoint that fails is tried again, and no committer's business"


def traced(home: str) -> None:
    file.CHECKPOINT_BYTES = 60_000
    with SqliteViews(Path(home)) as store:
        state = store.begin(counting())
        mark(0)
        for _ in range(12):
            state = once(store, state)
            mark(state.sequence)


@pytest.mark.parametrize("points", [80, pytest.param(400, marks=pytest.mark.soak)])
def test_what_was_committed_outlives_a_power_loss(
    shim: Shim, memory: Path, children: Children, seed: int, points: int
) -> None:
    home = memory / "home"
    trace = Disk(shim, home).trace(children, traced, str(home))
    found = set()
    for image in trace.images(seed=seed, points=points):
        copy = memory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        image.write(copy)
        acked = max((fact for fact in image.markers), default=None)
        if acked is None:
            continue  # the store was not opened yet, or its flow not begun
        n = check(copy)
        assert n in (acked, acked + 1)
        found.add(n)
    assert len(found) > 5


def opening_without_permission(home: str) -> None:
    for glob in "views.lock", "views.db", "views.db-wal":  # the lock is opened once
        fail(Fail("open", glob, errno.EROFS, times=0))
        try:
            with SqliteViews(Path(home)) as store:
                store.begin(counting())
            ack([glob, "ok"])
        except HeadraceError as error:
            ack([glob, type(error).__name__, str(error)])
        fail()
    with SqliteViews(Path(home)) as store:
        once(store, store.begin(counting()))


def test_a_home_that_cannot_be_written(shim: Shim, tmp_path: Path, children: Children) -> None:
    with SqliteViews(tmp_path) as store:
        once(store, store.begin(counting()))
    facts = Disk(shim, tmp_path).start(children, opening_without_permission, str(tmp_path)).finish()
    for glob, name, *said in facts:
        assert name == "StorageError" and "views" in said[0], glob
    assert check(tmp_path) == 2


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(StorageError):
        SqliteViews(tmp_path / "home")


# -- damage ------------------------------------------------------------------------------------------


def made(home: Path) -> Path:
    with SqliteViews(home) as store:
        once(store, once_begun(store))
    return home / "views.db"


def once_begun(store: SqliteViews) -> FlowState:
    return once(store, store.begin(counting()))


def hold(home: str) -> None:
    with SqliteViews(Path(home)) as store, store.transaction():
        ack(os.getpid())
        hear()


def test_a_home_made_again_in_its_place_has_a_lock_of_its_own(tmp_path: Path, children: Children) -> None:
    """With the old one, this process and others would not take turns."""
    home = tmp_path / "home"
    old = SqliteViews(home)
    shutil.rmtree(home)
    child = children.start(hold, str(home))
    pid = child.next()
    with pytest.raises(LogMissing, match="removed or replaced while open"), old.transaction():
        pass
    opening = threading.Thread(target=lambda: SqliteViews(home).close())
    opening.start()
    limit = time.monotonic() + 20
    while file._gates[home / file.FILE, os.getpid()].turnstile.holder() != pid:
        assert time.monotonic() < limit, f"the lock does not know that it is the turn of process {pid}"
        time.sleep(0.01)
    child.tell("go on")
    opening.join(20)
    assert not opening.is_alive()


@pytest.mark.parametrize("what", ["garbage", "header", "cut", "text"])
def test_a_damaged_file_has_a_name_and_is_left_alone(tmp_path: Path, what: str) -> None:
    path = made(tmp_path)
    whole = path.read_bytes()
    bad = {
        "garbage": os.urandom(len(whole)),
        "header": b"x" * 100 + whole[100:],
        "cut": whole[: len(whole) // 3],
        "text": b"not a database",
    }[what]
    path.write_bytes(bad)
    for use in (lambda: once_begun(SqliteViews(tmp_path)), lambda: open_views(tmp_path).to_arrow("clicks")):
        with pytest.raises(ViewsDamaged, match="computes the views again from the log"):
            use()
    assert path.read_bytes()[:100] == bad[:100]
    path.unlink()
    made(tmp_path)
    assert check(tmp_path) == 2


@pytest.mark.parametrize("turns", [100, pytest.param(1_000, marks=pytest.mark.soak)])
def test_damaged_pages_are_never_an_untyped_error(tmp_path: Path, seed: int, turns: int) -> None:
    import random

    rng = random.Random(seed)
    path = made(tmp_path / "whole")
    whole = path.read_bytes()
    outcomes = set()
    for turn in range(turns):
        home = tmp_path / str(turn)
        home.mkdir()
        page = rng.randrange(1, len(whole) // 4096)
        bad = bytearray(whole)
        if turn % 4 == 0:
            bad[page * 4096 : page * 4096 + 512] = rng.randbytes(512)
        else:
            bad[page * 4096 + rng.randrange(4096)] ^= 1 << rng.randrange(8)
        (home / "views.db").write_bytes(bad)
        for use in (
            lambda home=home: once_begun(SqliteViews(home)),
            lambda home=home: open_views(home).to_arrow("clicks"),
            lambda home=home: open_views(home).ledger("clicks"),
            lambda home=home: open_views(home).query("select * from clicks"),
        ):
            try:
                use()
                outcomes.add("ok")
            except HeadraceError as error:
                outcomes.add(type(error).__name__)
        shutil.rmtree(home, ignore_errors=True)  # a store that nobody holds any more may be closing its files
    assert "ViewsDamaged" in outcomes


def test_a_spec_that_says_nonsense(tmp_path: Path) -> None:
    path = made(tmp_path)
    for spec in ("{", "[]", json.dumps({"name": "clicks"})):
        db = sqlite3.connect(path)
        db.execute("UPDATE _flows SET spec = ?", (spec,))
        db.commit()
        db.close()
        with SqliteViews(tmp_path) as store, pytest.raises(ViewsDamaged):
            store.begin(counting())
        with pytest.raises(ViewsDamaged, match=r"views\.db"):
            open_views(tmp_path).to_arrow("clicks")


def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "views.db")
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    with pytest.raises(UnsupportedFormat, match="not one of headrace's"):
        SqliteViews(tmp_path)
    db = sqlite3.connect(tmp_path / "views.db")
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    db.close()


@pytest.mark.parametrize(("written", "do"), [("99", "upgrade headrace"), ("1", "delete it, and run the apps")])
def test_another_format_is_refused(tmp_path: Path, written: str, do: str) -> None:
    path = made(tmp_path)
    db = sqlite3.connect(path)
    db.execute("UPDATE _meta SET value = ? WHERE name = 'format'", (written,))
    db.commit()
    db.close()
    with pytest.raises(UnsupportedFormat, match=f"format {written}, .*: {do}"):
        SqliteViews(tmp_path)
    with pytest.raises(UnsupportedFormat, match=f"format {written}, .*: {do}"):
        open_views(tmp_path).specs()


# -- forks and threads ---------------------------------------------------------------------------------


def in_a_fork(body: Any) -> None:
    """Runs it in a forked child, which must end well."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # one that waits for a lock of its parent's would wait for ever
        try:
            body()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    """Also with a store of its own: closing the parent's would lose what the child commits there."""
    with SqliteViews(tmp_path) as store:
        state = once(store, store.begin(counting()))

        def child() -> None:
            for use in (
                lambda: store.begin(counting()),
                lambda: once(store, state),
                lambda: store.state("clicks"),
                lambda: store.outbox("clicks"),
                lambda: store.drop("clicks"),
                lambda: store.closes("clicks", T0),
                lambda: store.last_window_end("clicks"),
                lambda: SqliteViews(tmp_path),
                lambda: open_views(tmp_path).to_arrow("clicks"),
                lambda: open_views(tmp_path).query("select 1"),
            ):
                with pytest.raises(ForkedProcess, match="spawn"):
                    use()
            store.close()
            gc.collect()

        in_a_fork(child)
        once(store, state)
    assert check(tmp_path) == 2


def test_a_forked_child_opens_what_its_parent_has_closed(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        once(store, store.begin(counting()))

    def child() -> None:
        with SqliteViews(tmp_path) as own:
            once(own, own.begin(counting()))

    in_a_fork(child)
    assert check(tmp_path) == 2


def test_a_fork_while_another_thread_commits(tmp_path: Path) -> None:
    """The lock it holds is not the child's."""
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        inside, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            inside.set()
            go_on.wait(20)

        failpoints.arm("view.merged", wait)
        thread = threading.Thread(target=once, args=(store, state))
        thread.start()
        assert inside.wait(20)

        def child() -> None:
            with pytest.raises(ForkedProcess):
                store.state("clicks")

        in_a_fork(child)
        go_on.set()
        thread.join()
    assert check(tmp_path) == 1


def test_a_disk_that_was_full_is_used_again(tmp_path: Path) -> None:
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(DiskFull, match="Nothing was written"):
            for _ in range(50):
                state = once(store, state)
        assert store.state("clicks") == state
        store._db.execute("PRAGMA max_page_count = 1000000")
        state = once(store, state)
    assert check(tmp_path) == state.sequence


# -- cost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shaped", [False, True])
def test_no_part_of_a_commit_reads_the_whole_view(tmp_path: Path, shaped: bool) -> None:
    """Closing, forgetting, keeping, changes, null keys, a watcher: every statement finds its rows by an index."""
    top = "array<struct<value:string,count:bigint>>"
    slots = (SlotColumn("n", "bigint", "add"), SlotColumn("kinds", "string", "distinct"))
    slots += (SlotColumn("top", top, "counted"), SlotColumn("own", "bigint", "merged"))
    results = (Result("n", "bigint", ("n",)), Result("kinds", "bigint", ("kinds",)), Result("top", top, ("top",)))
    view = ViewSpec("v", (Column("page", "string"),), slots, results, (SIZE, SIZE), SIZE, public=shaped)
    spec = FlowSpec("v", "shop", ("clicks",), view, emit="final", target="out")
    if shaped:
        view = replace(view, shaped=(Column("n", "bigint"),))
        spec = replace(spec, view=view, emit=None, target=None)
    with SqliteViews(tmp_path) as store, contextlib.ExitStack() as watched:
        state = store.begin(spec)
        if shaped:
            watched.enter_context(open_views(tmp_path).watch("v"))
        run: set[str] = set()
        table = counted(counting(), [(n, page, 1) for n in range(150) for page in ("/", None)])
        table = table.append_column("kinds", pa.array([["a"]] * table.num_rows))
        table = table.append_column("top", pa.array([[{"value": "a", "count": 1}]] * table.num_rows))
        table = table.append_column("own", table["n"])
        own = {"top": top_k("x", 2), "own": Aggregate("sum(x)", merge=lambda a, b: a + b)}
        for turn in range(3):
            us = T0 + turn * SIZE
            if turn == 2:
                for db in (store._db, *store._opened):
                    db.set_trace_callback(run.add)
            more: dict[str, Any] = {
                "frontier_us": us + SIZE,
                "closed_us": us,
                "unchanged_us": us,
                "shape": lambda table: table,
            }
            state = store.commit(state, commit(state, table, aggregates=own, **more))
        assert store.closes("v", T0 + 9 * SIZE) and store.last_window_end("v")
        for db in (store._db, *store._opened):
            db.set_trace_callback(None)
        ours = [sql for sql in run if '"v/' in sql and not sql.startswith(("--", "CREATE"))]
        plans = [(row[3], sql) for sql in ours for row in store._db.execute(f"EXPLAIN QUERY PLAN {sql}")]
    searched = {plan for plan, _ in plans if plan.startswith("SEARCH")}
    assert any(plan.startswith("SEARCH s") for plan in searched)
    assert any(plan.startswith(("SEARCH v/", "SEARCH f")) for plan in searched)
    assert not [sql for plan, sql in plans if plan.startswith(("SCAN s", "SCAN f", "SCAN v/"))]


def test_a_view_of_too_many_columns_is_refused(tmp_path: Path) -> None:
    slots = tuple(SlotColumn(f"n{number}", "bigint", "add") for number in range(1_989))
    results = tuple(Result(slot.name, "bigint", (slot.name,)) for slot in slots)
    with SqliteViews(tmp_path) as store, pytest.raises(InvalidArgument, match="needs 1991 columns, and 1990 fit"):
        store.begin(FlowSpec("wide", "shop", ("t",), ViewSpec("wide", (), slots, results)))
    with SqliteViews(tmp_path) as store:
        store.begin(FlowSpec("wide", "shop", ("t",), ViewSpec("wide", (), slots[1:], results[1:])))


def test_a_store_that_is_closed_keeps_no_descriptor(tmp_path: Path) -> None:
    """Of many homes one after the other, and of one home twice at a time."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    SqliteViews(tmp_path / "first").close()
    before = descriptors()
    for number in range(5):
        SqliteViews(tmp_path / str(number)).close()
    one, two = SqliteViews(tmp_path / "first"), SqliteViews(tmp_path / "first")
    one.close()
    one.close()
    two.begin(counting("still"))  # its lock is there
    two.close()
    assert descriptors() == before
