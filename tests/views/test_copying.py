"""Views copied between SQLite and Postgres: the flow goes on there as if nothing had been."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flows.loop import FlowLoop
from headrace.testing.folding import FoldingStore
from headrace.testing.view_contract import commit, counting
from headrace.views.contract import Outgoing
from headrace.views.open import copy_views, open_store, open_views
from headrace.views.sql import copying
from tests.cli.conftest import Shell
from tests.databases import PostgresServer
from tests.flows.sparkless import Sparkless
from tests.flows.test_twin_store import plain
from tests.flows.test_windows_sparkless import WINDOWS, put
from tests.views.folded import SqliteViews

pytest.importorskip("psycopg")


def dice_rows(dice: random.Random) -> list[Any]:
    return [
        (dice.randrange(2), dice.choice(["a", "b", None]), dice.randrange(31), dice.random() < 0.3, dice.random() < 0.7)
        for _ in range(40)
    ]


def ignore(_: int) -> None:
    pass


@pytest.mark.parametrize("window", ["session"])
def test_a_flow_goes_on_in_postgres_and_back(postgres: PostgresServer, tmp_path: Path, seed: int, window: str) -> None:
    """Half of it in SQLite, some in Postgres, the rest in SQLite again; compared with one that stayed."""
    dice = random.Random(f"{window} {seed}")
    address = postgres.schema(tmp_path)
    first, later = dice_rows(dice), dice_rows(dice)
    with Sparkless(tmp_path / "real", WINDOWS[window], partitions=2, within=10) as real:
        query = real.loop._query
        for number, (rows, place, source) in enumerate(
            [(first, tmp_path / "one", None), (later, address, tmp_path / "one"), ([], tmp_path / "two", address)]
        ):
            put(real, rows)
            if source is not None:
                copied = copy_views(source, place, ignore)
                assert [(each.flow, each.there) for each in copied] == [("view", False)]
                assert [each.there for each in copy_views(source, place, ignore)] == [True]
                one, other = (open_views(each) for each in (source, place))
                assert plain(one.to_arrow("view")) == plain(other.to_arrow("view"))
                assert one.ledger("view").to_pylist() == other.ledger("view").to_pylist()
                states = [dataclasses.replace(each.state("view"), epoch=0) for each in (one, other)]
                assert states[0] == states[1]
            with open_store(place) as store:
                loop = FlowLoop(query, log=real.log, store=store)
                loop.begin()
                for _ in range(3 if number < 2 else 1000):
                    if not loop.step(7):
                        break
            with open_store(place) as store:
                left_by_nobody(store)
        real.loop.drain()
        there = open_views(tmp_path / "two")
        assert plain(there.to_arrow("view")) == plain(real.views.to_arrow("view"))
        assert there.ledger("view").to_pylist() == real.views.ledger("view").to_pylist()


def left_by_nobody(store: Any) -> None:
    """As when its process has ended."""
    with store._writing() as db:
        db.execute("UPDATE _flows SET pid = NULL")


def test_what_waits_to_go_out_is_copied(postgres: PostgresServer, tmp_path: Path) -> None:
    large = pa.table({"n": pa.array(range(30_000), pa.int64())})
    small = pa.table({"n": pa.array([1], pa.int64())})
    with SqliteViews(tmp_path) as store:
        state = store.begin(counting())
        store.commit(state, commit(state, outgoing=[Outgoing("x", large), Outgoing("x", small)]))
        left_by_nobody(store._store)
    address = postgres.schema(tmp_path)
    copy_views(tmp_path, address, ignore)
    with open_store(address) as store:
        waiting = store.outbox("clicks")
        assert [(each.base, each.rows) for each in waiting] == [(0, large), (30_000, small)]


def test_a_copy_that_fails_leaves_nothing_of_its_flow(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres.schema(tmp_path)
    with SqliteViews(tmp_path) as store:
        store.begin(counting())
        with pytest.raises(hr.ViewInUse):
            copy_views(tmp_path, address, ignore)
        left_by_nobody(store._store)
    with monkeypatch.context() as wrong:
        found = iter([(0, "a"), (1, "b")])
        wrong.setattr(copying, "_digest", lambda *_: next(found))
        with pytest.raises(hr.InvalidArgument, match=r"its 0 rows \(a\) have become 1 \(b\)"):
            copy_views(tmp_path, address, ignore)
    assert open_views(address).names() == []
    assert [each.flow for each in copy_views(tmp_path, address, ignore)] == ["clicks"]
    with FoldingStore(open_store(address)) as store:
        store.drop("clicks")
        store.begin(counting())
    with pytest.raises(hr.InvalidArgument, match="another flow 'clicks'"):
        copy_views(tmp_path, address, ignore)


def test_the_command(postgres: PostgresServer, tmp_path: Path) -> None:
    shell, address = Shell(tmp_path), postgres.schema(tmp_path)
    with SqliteViews(tmp_path) as store:
        store.begin(counting())
        left_by_nobody(store._store)
    done = shell.ok("copy", "--from", str(tmp_path), "--to", address)
    assert [(row["flow"], row["rows"], row["there"]) for row in done.rows] == [("clicks", 0, False)]
    assert f"with --views '{address}' now, and no more with --home {tmp_path}" in done.err
    assert shell("copy", "--from", str(tmp_path), "--to", address, "topic").code == 2
    assert "there are no views" in shell.refused("copy", "--from", address + "x", "--to", str(tmp_path / "new"))
