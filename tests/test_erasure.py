"""A home with a subject in every kind of place: after an erasure no byte of it is in any file or table, and what was
made of the log is what the same programs make of the log that is left. Without a JVM; `tests/flows/test_erasure.py` has
what needs one."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import failpoints
from headrace import sourcing as es
from headrace.erasure import Forgotten, erase_from, unfinished
from headrace.formats.frames import PIECE_BYTES
from headrace.sink import Sink
from headrace.traces import traces
from tests.cdc.sqlite_source import SqliteSource
from tests.databases import PostgresServer
from tests.log.twin import TwinLog
from tests.operators import test_join_programs as joins
from tests.operators.sparkless_joins import without_spark
from tests.sourcing.transferring import Asked, HandClock, TakenBack, transfers_in

CANARY = "canary-17"
VIEWS = ("users", "users_history", "visits", "bought", "rises", "rises_partials", "again")
ZERO = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Named:
    name: str


def at(seconds: int) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def people_in(log: Any) -> es.Entities[str]:
    return es.Entities(
        log,
        "people",
        events=[Named],
        evolve=lambda _, event: str(event.name),
        decide=lambda _, command, __: [Named(command)],
        initial="",
        snapshot_every=1,
    )


def shop(home: Path, views: str | None = None) -> hr.App:
    """A table with its history, an enrichment, an interval join, a pattern with partial matches, a dedup, a chain of
    two flows, copies into a topic, and a full-text index."""
    app = hr.App("shop", home=home, views=views)
    users = app.table(
        "users", "user string, city string, at timestamp", key="user", event_time="at", history="versions"
    )
    columns = "user string, page string, n int, at timestamp"
    clicks = app.topic("clicks", columns, key="user", event_time="at", partitions=2)
    buys = app.topic("buys", columns, key="user", event_time="at")
    stream, late = app.stream(clicks), {"grace": "1 second", "late": hr.correct(within="1 hour")}
    stream.enrich(users, on="user", as_of="at", columns=["city"], **late).to_view("visits")
    stream.join(app.stream(buys), on="user", after="1 hour", how="left", **late).to_view("bought")
    rise = hr.pattern("low high", define={"low": "n = 1", "high": "n = 2"}, within="1 hour", measures={"n": "count(*)"})
    stream.match(rise, by="user", **late).to_view("rises")
    joined = stream.join(app.stream(buys), on="user", after="1 minute", **late)
    joined.enrich(users, on="user", columns=["city"], **late).to_view("again")
    stream.to_topic("copies")
    stream.to_sink("pages", hr.search_index("pages.db", text=["page"], key="user"))
    return app


def filled(home: Path, views: str | None = None) -> None:
    with shop(home, views) as app:
        log = app.log
        names = [CANARY, *(f"user-{n}" for n in range(8))]
        app._tables["users"].upsert([{"user": name, "city": f"city of {name}", "at": at(0)} for name in names])
        for step in range(3):
            rows = [
                {"user": name, "page": f"page of {name}", "n": 1 + (step + number) % 2, "at": at(10 * step)}
                for number, name in enumerate(names)
            ]
            log.topic("clicks").append(rows)
            log.topic("buys").append([row for row in rows if row["n"] == 2])
            app.drain()
        log.topic("clicks").bury([{"reason": "bad_input", "error": "", "source": "x", "raw": CANARY.encode()}])
        log.topic("clicks").append({"user": CANARY, "page": "far", "n": 1, "at": datetime.now(UTC) + timedelta(days=9)})
        for name in (CANARY, "other"):
            people_in(log).handle(name, f"Named {name}", id=f"command of {name}")
            es.append(log, [es.tagged(Named(name), person=name, all="all")])


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch.setattr)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("erasure") / "home"
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch.setattr)
        filled(home)
    return home


def found(home: Path, views: str | None = None) -> list[str]:
    return [each.place for each in traces(home, CANARY, views=views)]


def rows(app: hr.App) -> dict[str, list[str]]:
    """Of all views, but for what depends on the moment."""
    hidden = ("_status", "_updated_at")
    return {
        view: sorted(
            repr({name: value for name, value in row.items() if name not in hidden})
            for row in app.query(f"select * from {view}").to_pylist()
        )
        for view in VIEWS
    }


def erase_all(home: Path, views: str | None = None) -> Forgotten:
    """As a user does: from each topic that has the subject."""
    done = [hr.erase(home, topic, CANARY, views=views) for topic in ("users", "clicks", "buys", "people")]
    with hr.open_log(home) as log:
        es.erase(log, es.query(tags={"person": CANARY}))
    return Forgotten([place for each in done for place in each.places])


def check(home: Path, expected: dict[str, list[str]], views: str | None = None) -> None:
    """No byte of the subject is left, and a run of the program makes what was there, without it."""
    assert found(home, views) == []
    with shop(home, views) as app:
        app.drain()
        assert rows(app) == {view: [row for row in each if CANARY not in row] for view, each in expected.items()}
        copies = [record.value["user"] for record in app.log.topic("copies").records()]
        assert CANARY not in copies and len(copies) == 24
        (pages,) = [each for each in app.beside if isinstance(each, Sink)]
        assert len(pages.search("page").hits) == 8
        assert people_in(app.log).load("other").state == "Named other"
        assert app.log.verify().ok  # type: ignore[attr-defined]
    assert found(home, views) == []


def test_nothing_of_it_is_left_and_all_else_is_made_again(before: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(before, home)
    with shop(home) as app:
        expected = rows(app)
    assert all(any(CANARY in row for row in each) for each in expected.values()), "it is in each view"
    kinds = {place.partition(":")[0].split("/")[0] for place in found(home)}
    assert kinds == {"data", "views.db", "indexes", "snapshots.db"}
    done = erase_all(home)
    assert done.complete, done.left
    said = {(each.place, each.done) for each in done.places}
    dropped = {("view users", "dropped"), ("view visits", "dropped"), ("view again", "dropped")}
    assert said >= {*dropped, ("topic clicks", "erased"), ("topic copies", "erased"), ("index pages", "removed")}
    assert said >= {("snapshots of entities", "removed"), ("dead letters of clicks", "erased")}
    check(home, expected)
    again = erase_all(home)
    assert again.complete and not any(each.records for each in again.places if each.done == "erased")


def in_postgres(home: Path, postgres: PostgresServer) -> tuple[str, dict[str, list[str]]]:
    views = postgres.schema(home)
    filled(home, views)
    with shop(home, views) as app:
        expected = rows(app)
    assert any(place.startswith("Postgres") for place in found(home, views))
    return views, expected


def test_the_views_in_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    views, expected = in_postgres(tmp_path, postgres)
    done = erase_all(tmp_path, views)
    assert done.complete, done.left
    assert any(each.place == "Postgres" and each.done == "out of reach" for each in done.places)
    check(tmp_path, expected, views)


@pytest.mark.soak  # the leases of who was killed last for some seconds
def test_killed_with_views_in_postgres(tmp_path: Path, postgres: PostgresServer, killed: Callable[..., int]) -> None:
    views, expected = in_postgres(tmp_path, postgres)
    assert killed(tmp_path, "forget.dropped", 1, views) == -signal.SIGKILL
    until = time.monotonic() + 30
    while not (done := erase_all(tmp_path, views)).complete:
        assert time.monotonic() < until and all("runs it" in str(each.do) for each in done.left), done.left
    check(tmp_path, expected, views)


# -- crashes -------------------------------------------------------------------------------------------

POINTS = [(point, 0) for point in failpoints.KNOWN if point.startswith("forget.")]
POINTS += [("forget.topics", 1), ("forget.dropped", 1), ("forget.dropped", 2), ("erase.wiped", 1), ("swap.done", 2)]


def erased_and_killed(home: Path, point: str, skip: int, views: str | None = None) -> None:
    failpoints.arm(point, "kill", skip=skip)
    erase_all(home, views)


@pytest.fixture(scope="module")
def killed() -> Callable[..., int]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pandas"])

    def ended(*arguments: Any) -> int:
        process = context.Process(target=erased_and_killed, args=arguments)
        process.start()
        process.join(60)
        return int(process.exitcode or 0)

    return ended


@pytest.mark.parametrize(("point", "skip"), POINTS)
def test_killed_anywhere_it_is_gone_on_with(
    point: str, skip: int, before: Path, tmp_path: Path, killed: Callable[..., int]
) -> None:
    home = tmp_path / "home"
    shutil.copytree(before, home)
    with shop(home) as app:
        expected = rows(app)
    assert killed(home, point, skip) == -signal.SIGKILL
    assert unfinished(home) in ({"users"}, {"clicks"}, {"buys"})  # which headrace doctor says
    assert erase_all(home).complete
    assert unfinished(home) == set()
    check(home, expected)


# -- random programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 300))])
def test_joins_are_the_same_as_one_batch_over_the_log_that_is_left(seed: int, tmp_path: Path) -> None:
    """Any joins behind each other, erased from in between, in any cuts."""
    dice, clock = random.Random(seed), joins.Clock()
    program = joins.random_program(dice)
    for now in range(0, 60, 20):
        with hr.App("programs", home=tmp_path, clock_us=clock) as app:
            _, columns, _ = program.on(app)
            for second in range(15):
                joins.random_append(dice, program, app, now + second)
                if dice.random() < 0.2:
                    app.drain(batch_rows=dice.choice([None, 1, 3]))
            app.drain(close=now == 40)
        topic = dice.choice([*program.topics, *program.tables])
        column = "k" if topic in program.topics else None
        assert hr.erase(tmp_path, topic, *dice.sample("xyz", dice.randint(1, 2)), column=column).complete
    with hr.App("programs", home=tmp_path, clock_us=clock) as app:
        joined, columns, pairs = program.on(app)
        app.drain(close=True)
        names = (*columns, "_corrections")
        made = Counter(tuple(row[name] for name in names) for row in joined.to_arrow().to_pylist())
        rows = program.rows(program.tree, app.log)
        assert made == Counter((*(row.cells.get(name) for name in columns), row.corrections) for row in rows)
        met = [f"v_{name}" for name in program.met[:2]]
        made = Counter(tuple(row[name] for name in met) for row in pairs.to_arrow().to_pylist())
        assert made == program.pairs(app.log)


# -- what is left, and why -----------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> Iterator[hr.App]:
    with hr.App("small", home=tmp_path / "home") as app:
        app.topic("clicks", "user string, n int, at timestamp", key="user", event_time="at")
        yield app


def counts(app: hr.App) -> hr.Stream:
    rise = hr.pattern("a+", define={"a": "n > 0"}, within="1 hour", measures={"n": "count(*)"})
    return app.stream("clicks").match(rise, by="user", grace="1 second")


def append(app: hr.App, *users: str) -> None:
    app.log.topic("clicks").append([{"user": user, "n": 1, "at": at(n)} for n, user in enumerate(users)])


def left(app: hr.App, **how: Any) -> dict[str, str | None]:
    return {each.place: each.do for each in hr.erase(app.home, "clicks", CANARY, **how).left}


def test_what_a_process_runs_is_left(app: hr.App) -> None:
    counts(app).to_view("matches")
    append(app, CANARY, "bob")
    app.drain()  # which has the flow's lock until the app is closed
    assert "runs it: stop that, and erase again" in str(left(app)["view matches"])
    assert [record.key for record in app.log.topic("clicks").records()] == ["bob"], "the log does not wait"
    app.close()
    assert left(app) == {} and found(app.home) == []


def test_a_topic_that_a_flow_with_state_writes_goes_only_if_that_is_said(app: hr.App) -> None:
    counts(app).to_topic("matches")
    app.stream("matches").to_topic("behind")
    append(app, CANARY, "bob")
    app.drain(close=True)
    app.close()
    assert found(app.home)
    (writer,) = hr.erase(app.home, "matches", CANARY, column="user").left
    assert (writer.place, writer.done) == ("flow matches", "left") and "erase from what it reads" in str(writer.do)
    said = left(app)
    assert "would write all of matches again. headrace erase … --all deletes that" in str(said["flow matches"])
    assert "would write all of behind again" in str(said["flow behind"])
    assert found(app.home)
    assert left(app, everything=True) == {}
    assert found(app.home) == []


def test_a_topic_that_another_flow_writes_too_is_not_deleted(app: hr.App) -> None:
    app.topic("others", "user string, n int, at timestamp", key="user", event_time="at")
    rise = hr.pattern("a+", define={"a": "n > 0"}, within="1 hour", measures={"n": "count(*)"})
    for name in "clicks", "others":
        late = hr.drop(dropped_to="late")
        app.stream(name).match(rise, by="user", grace="1 second", late=late).to_view(f"of_{name}")
    append(app, "bob", CANARY)
    app.log.topic("clicks").append({"user": CANARY, "n": 1, "at": at(-99)})
    app.log.topic("others").append([{"user": "cat", "n": 1, "at": at(second)} for second in (0, -99)])
    app.drain(close=True)
    app.close()
    said = left(app, everything=True)
    assert said["view of_clicks"] == "view of_others writes late, too: drop both, delete the topic, and run them again"
    with hr.open_log(app.home) as log:
        assert [record.value["user"] for record in log.topic("late").records()] == [CANARY, "cat"]


def test_a_view_of_records_that_retention_has_deleted_goes_only_if_that_is_said(app: hr.App) -> None:
    counts(app).to_view("matches")
    append(app, CANARY, "bob")
    app.drain(close=True)
    app.log.topic("clicks").alter(retention_bytes=1)
    append(app, "cat")
    app.log.maintain()  # type: ignore[attr-defined]
    app.close()
    assert "retention has deleted records" in str(left(app)["view matches"])
    with hr.open_log(app.home) as log:
        assert log.topic("clicks").ends()[0].earliest
    assert left(app, everything=True) == {} and found(app.home) == []


def test_a_sink_is_told_of(app: hr.App) -> None:
    app.stream("clicks").to_sink("mails", lambda _, __: None)
    append(app, CANARY)
    app.drain()
    app.close()
    done = {each.place: each for each in hr.erase(app.home, "clicks", CANARY).places}
    assert done["sink mails"].done == "out of reach" and "ask who gets" in str(done["sink mails"].do)


def test_a_version_that_is_not_served_goes_too(app: hr.App) -> None:
    counts(app).to_view("matches")
    append(app, CANARY, "bob")
    app.drain()
    app.rebuild("matches").switch()
    app.close()
    assert hr.erase(app.home, "clicks", CANARY).complete and found(app.home) == []


def test_a_runner_that_has_lost_its_lock_brings_nothing_back(app: hr.App) -> None:
    """It has read the subject's records before, and would commit them."""
    counts(app).to_view("matches")
    append(app, "bob")
    app.drain()
    append(app, CANARY, "cat")
    loop = app.running.loop(app.flows["matches"])
    batch = loop.prepare()
    assert batch is not None
    for lock in app.running._locks.values():
        lock.release()
    assert left(app) == {}
    with pytest.raises(hr.HeadraceError):
        loop.commit(batch)
    app.close()
    assert found(app.home) == []


def test_a_log_that_cannot_erase_says_what_to_do(tmp_path: Path) -> None:
    log: Any = TwinLog()
    with hr.App("small", home=tmp_path / "home", log=log) as app:
        app.topic("clicks", "user string, n int, at timestamp", key="user", event_time="at")
        counts(app).to_view("matches")
        append(app, CANARY)
        app.drain()
    done = erase_from(log, tmp_path / "home", "clicks", [CANARY], views=tmp_path / "home")
    said = {each.place.split(" in ")[0]: str(each.do) for each in done.left}
    assert "a record with the key and no value" in said["topic clicks"]
    assert said["view matches"] == "when the log has forgotten: headrace views drop matches"


def test_a_captured_table_is_told_of(tmp_path: Path) -> None:
    shop = SqliteSource(tmp_path)
    shop.sql("CREATE TABLE users (id TEXT PRIMARY KEY)", f"INSERT INTO users VALUES ('{CANARY}')")
    shop.drain()
    done = {
        each.place: each for each in erase_from(shop.log, shop.home, "shop_users", [CANARY], views=shop.home).places
    }
    assert (done["topic shop_users"].records, done["capture shop"].done) == (1, "out of reach")
    assert "delete it in the database, too" in str(done["capture shop"].do)


def test_a_process_goes_with_what_it_sends_and_its_timers(tmp_path: Path) -> None:
    with hr.open_log(tmp_path) as log:
        transfers = transfers_in(log, HandClock())
        for name in (CANARY, "t2"):
            transfers.handle(name, Asked("ann", "bob", 1), id=f"id of {name}")
            transfers.handle(name, TakenBack())
    assert found(tmp_path)
    done = {each.place: each.records for each in hr.erase(tmp_path, "transfers", CANARY).places}
    kinds = {"topic transfers": 2, "topic transfers.commands": 1, "topic transfers.timers": 2}
    assert done.items() >= {*kinds.items(), ("topic transfers.outbox", 1)}
    assert found(tmp_path) == []


def test_archives_lie_elsewhere(tmp_path: Path) -> None:
    home, archive = tmp_path / "home", tmp_path / "archive"
    with hr.open_log(home) as log:
        clicks = log.create_topic("clicks", "user string", key="user", retention_bytes=1, archive=str(archive))
        clicks.append([{"user": CANARY}, {"user": "bob"}])
        clicks.append({"user": "cat"})
        assert log.maintain().records_archived == 3  # type: ignore[attr-defined]
    assert any(str(archive) in place for place in found(home))
    assert hr.erase(home, "clicks", CANARY).complete
    assert found(home) == []


def test_while_somebody_reads_the_views_it_is_not_complete(app: hr.App) -> None:
    counts(app).to_view("matches")
    append(app, CANARY)
    app.drain()
    app.close()
    with contextlib.closing(sqlite3.connect(app.home / "views.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM _flows").fetchone()
        assert "a process is reading the views" in str(left(app)["the write-ahead log of views.db"])
    assert left(app) == {} and found(app.home) == []


def test_an_erasure_is_unfinished_until_it_was_done_again(tmp_path: Path) -> None:
    """Not for one that was refused; and what is erased from other topics meanwhile does not end it."""
    with hr.open_log(tmp_path) as log:
        for name in "a", "b":
            log.create_topic(name, "user string", key="user").append({"user": CANARY})
        log.create_topic("plain", "user string")
    for topic, key in ("a", 5), ("plain", CANARY):
        with pytest.raises(hr.InvalidArgument):
            hr.erase(tmp_path, topic, key)
        assert unfinished(tmp_path) == set()
    failpoints.arm("forget.topics", "raise")
    with pytest.raises(failpoints.InjectedFault):
        hr.erase(tmp_path, "a", CANARY)
    hr.erase(tmp_path, "b", CANARY)
    with pytest.raises(hr.InvalidArgument):
        hr.erase(tmp_path, "a", 5)
    assert unfinished(tmp_path) == {"a"}
    hr.erase(tmp_path, "a", CANARY)
    assert unfinished(tmp_path) == set()


def test_while_an_app_runs_the_process_manager_it_is_not_complete(tmp_path: Path) -> None:
    """A command under way has a reply that would be written to the process."""
    with hr.App("bank", home=tmp_path) as app:
        transfers = transfers_in(app.log, lambda: datetime.now(UTC))
        transfers.handle(CANARY, Asked("ann", "bob", 1))
        app.supervise(transfers)
        app.start()
        (place,) = hr.erase(tmp_path, "transfers", CANARY).left
        assert place.place == "process manager transfers" and "stop that, and erase again" in str(place.do)
        app.stop()
    assert hr.erase(tmp_path, "transfers", CANARY).complete and found(tmp_path) == []


def test_what_is_searched_for_is_not_found_by_chance(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("Grüße, canary-17!".encode("utf-16-le"))
    (tmp_path / "b").write_text(json.dumps("Grüße"))
    assert [(each.place, each.form) for each in traces(tmp_path, "Grüße")] == [("a", "UTF-16"), ("b", "JSON")]
    with pytest.raises(hr.InvalidArgument, match="shorter than 3 bytes") as refused:
        list(traces(tmp_path, "ab"))
    assert "ab'" not in str(refused.value)


def test_a_long_text_is_found_where_pieces_of_what_is_compressed_meet(tmp_path: Path, seed: int) -> None:
    text = "".join(random.Random(seed).choices("abcdef", k=10_000))
    plain = b"x" * (PIECE_BYTES - 5_000) + text.encode() + b"y" * 5_000
    (tmp_path / "a").write_bytes(pa.Codec("zstd").compress(plain, asbytes=True))
    assert [(each.place, each.form, each.times) for each in traces(tmp_path, text)] == [("a", "UTF-8", 1)]


def test_a_home_that_is_not_there_is_not_found_clean(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in "nothing", "file":
        with pytest.raises(hr.LogMissing, match="nothing was searched"):
            list(traces(tmp_path / name, CANARY))


def test_what_cannot_be_read_is_named_and_the_rest_is_searched(tmp_path: Path) -> None:
    for name in "damaged", "virtual":
        with contextlib.closing(sqlite3.connect(tmp_path / name, isolation_level=None)) as db:
            db.execute("CREATE TABLE t (a)")
            db.executemany("INSERT INTO t VALUES (?)", [("x" * 4000,)] * 9)
    with (tmp_path / "damaged").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    with contextlib.closing(sqlite3.connect(tmp_path / "virtual", isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_schema VALUES ('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING gone(a)')")
    (tmp_path / "zoe").write_text("Zoe\u0308")
    assert [(each.place, each.form, each.times) for each in traces(tmp_path, "Zo\u00eb")] == [
        ("damaged: table t", "not read: database disk image is malformed", 0),
        ("zoe", "UTF-8, decomposed", 1),
    ]
