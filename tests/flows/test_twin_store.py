"""Flows run on a second view store, in memory: loops, windows and relays know the contract and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.flows.loop import FlowLoop
from tests.flows.sparkless import Sparkless
from tests.flows.test_windows_sparkless import WINDOWS, put
from tests.operators.in_memory import MemoryStore, MemoryViews

FIXED = (hr.tumbling("4 seconds"), hr.hopping("4 seconds", every="2 seconds"))


@pytest.mark.parametrize("emit", [None, "updates", "final"])
@pytest.mark.parametrize("window", [*WINDOWS.values(), *FIXED], ids=str)
def test_a_flow_makes_the_same_in_any_store(tmp_path: Path, window: Any, emit: Any, seed: int) -> None:
    dice = random.Random(f"{window} {emit} {seed}")
    found = [
        (dice.randrange(2), dice.choice(["a", "b", None]), dice.randrange(31), dice.random() < 0.3, dice.random() < 0.7)
        for _ in range(40)
    ]
    with Sparkless(tmp_path / "real", window, partitions=2, within=10, emit=emit) as real:
        put(real, found)
        memory = tmp_path / "memory"
        store: Any = MemoryStore(memory)
        twin = FlowLoop(real.loop._query, log=real.log, store=store)
        for _ in range(2):  # and goes on where it was
            twin.begin()
            while twin.step(7):
                pass
        assert store.state("view").places == real.store.state("view").places
        if emit is None:
            views: Any = MemoryViews(memory)
            assert plain(views.to_arrow("view")) == plain(real.views.to_arrow("view"))
            assert views.ledger("view").to_pylist() == real.views.ledger("view").to_pylist()
        else:
            assert store.outbox("view") == [] and real.log.topic("view").offsets()[0].next > 0
    del MemoryStore.homes[memory]


def plain(rows: Any) -> list[str]:
    """Without what depends on when they were made."""
    kept = [name for name in rows.column_names if name not in ("_status", "_updated_at")]
    return sorted(map(repr, rows.select(kept).to_pylist()))
