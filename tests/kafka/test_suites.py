"""The suites of flows on a broker, in `make soak`: the oracle, any cut, strikes at every point, joins. Each way is a
home of its own over one log in Kafka. `make test` has short ones of the same kind in `test_flows` and
`test_flow_loop`."""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import add
from headrace.testing.invariance import CRASH_POINTS, _cut, _differences, _size, _struck
from headrace.testing.steps import Add
from tests.flows.shop import QUERIES, app_of, check, some_rows
from tests.flows.test_joins import everything, random_steps

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
POINTS = (*CRASH_POINTS, "kafka.sent", "kafka.committed")


class Way:
    """A home over the program's log, and a program there that can be started again."""

    def __init__(self, program: hr.App, home: Path) -> None:
        self.program, self.home = program, home
        self.app = self._opened()

    def _opened(self) -> hr.App:
        return self.program.replace(home=self.home, spark=self.program.running.spark)

    def restart(self) -> None:
        self.app.close()
        self.app = self._opened()

    def drain(self, rows: int | None = None) -> None:
        self.app.drain(rows)

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()


@pytest.fixture
def homes(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Fresh ones, of programs on a prefix of their own."""
    monkeypatch.setenv("HEADRACE_LOG", f"kafka://{broker}?prefix=s{uuid.uuid4().hex[:8]}.")
    return (tmp_path / f"home-{number}" for number in itertools.count())


def a_seed() -> int:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    return seed


def put(app: hr.App, steps: list[Any], rng: random.Random) -> None:
    """Some in transactions, whose ends are holes in the offsets, some of them aborted."""
    for step in steps:
        if not isinstance(step, Add):
            continue
        if rng.random() < 0.3:
            with app.log.transaction() as tx:
                tx.append(step.topic, step.rows)
        else:
            app.log.topic(step.topic).append(step.rows, partition=step.partition)
        if rng.random() < 0.1:
            with pytest.raises(ZeroDivisionError), app.log.transaction() as tx:
                tx.append(step.topic, step.rows)
                raise ZeroDivisionError


def seconds() -> float:
    return float(os.environ.get("HEADRACE_SOAK_SECONDS", "600")) / 30


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_views_are_their_queries_over_the_log_however_it_is_cut(
    homes: Any, headrace_spark: Any, partitions: int
) -> None:
    rng = random.Random(a_seed())
    with app_of(next(homes), headrace_spark, partitions, names=tuple(QUERIES)) as program:
        put(program, [add("events", *some_rows(rng, 30, now)) for now in range(0, 100, 20)], rng)
        until = time.monotonic() + seconds()
        while time.monotonic() < until:
            with Way(program, next(homes)) as way:
                said = _cut(way, rng)  # type: ignore[arg-type]
                try:
                    check(way.app)
                except AssertionError as error:
                    error.add_note(", ".join(said))
                    raise


def test_joins_come_to_the_same_however_the_log_is_cut(homes: Any, headrace_spark: Any) -> None:
    rng = random.Random(a_seed())
    with everything(headrace_spark) as program:
        put(program, random_steps(rng.randrange(2**32)), rng)
        with Way(program, next(homes)) as calm:
            calm.drain()
            until = time.monotonic() + 2 * seconds()
            while time.monotonic() < until:
                with Way(program, next(homes)) as way:
                    said = _cut(way, rng)  # type: ignore[arg-type]
                    found = _differences(way.app, calm.app)
                    assert found.ok, (found.differences, said)


@pytest.mark.parametrize("name", ["windows", "joins"])
def test_struck_anywhere_it_comes_to_the_same(homes: Any, headrace_spark: Any, name: str) -> None:
    rng = random.Random(a_seed())
    with (
        everything(headrace_spark)
        if name == "joins"
        else app_of(next(homes), headrace_spark, 2, names=("tumbling_correct",)) as program
    ):
        steps = [add("events", *some_rows(rng, 30, now)) for now in range(0, 100, 20)]
        put(program, random_steps(7) if name == "joins" else steps, rng)
        struck = []
        with Way(program, next(homes)) as calm:
            calm.drain()
            rows = _size(calm)  # type: ignore[arg-type]
            for point in POINTS:
                with Way(program, next(homes)) as way:
                    if _struck(way, point, rows):  # type: ignore[arg-type]
                        struck.append(point)
                    way.drain(rows)
                    found = _differences(way.app, calm.app)
                    assert found.ok, (point, found.differences)
                    audited = way.app.audit()
                    assert audited.ok, (point, audited.differences)
            with Way(program, next(homes)) as way:
                way.drain(rows)
                for view in way.app.views.names():
                    made = way.app.rebuild(view)
                    assert not made.diff().rows.num_rows, (view, made.diff().rows.to_pylist())
                    made.discard()
        assert len(struck) > (7 if name == "joins" else 4), struck
