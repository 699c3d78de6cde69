"""One log, many ways to work through it: cut here or there, read by one worker or by many, interrupted and begun
again. Every way must come to the same rows, the same ledger and the same topics. Owns the ways and the comparison.

What is compared is what headrace promises to be a function of the log: not how far windows were called final, and of
the changes that go to a topic what they come to together, not how many there are."""

from __future__ import annotations

import multiprocessing
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from headrace import failpoints
from headrace.app import App
from headrace.durations import instant_us
from headrace.errors import InvalidArgument
from headrace.failpoints import InjectedFault
from headrace.flows.audit import Audited, Compared, Difference, compare
from headrace.flows.loop import FlowLoop
from headrace.flows.query import DRIVER_ROWS, ONE_TASK_ROWS
from headrace.flows.spark import session
from headrace.names import OWN_PREFIX
from headrace.testing.comparing import shown, table
from headrace.testing.spark import shared_session
from headrace.testing.steps import Add, Advance
from headrace.testing.trial import Trial, told
from headrace.views.contract import OP

CRASH_POINTS = tuple(name for name in failpoints.KNOWN if name.split(".")[0] in ("flow", "view", "relay"))
"""Where a flow can be struck: while it plans and computes, while the store commits, while results go to topics."""
STRIKES = (0, 1, 3)
"""A run is struck so often, each time when the point was passed so many times since the start."""
CHILD_SECONDS = 300

Program = App | Callable[[], App]


def assert_cut_invariant(
    app: Program, *steps: Add | Advance, cuts: int = 5, seed: int = 0, check: Callable[[App], object] | None = None
) -> None:
    """Works `cuts` times through the log that the steps make, or without any through one like the app's own, each time
    cut, read and interrupted as chance has it, and compares with working through it at once. AssertionError names both
    ways and what differs. `check` is called with the app at the end of each."""
    program = _program(app)
    with _with_log(program, steps) as whole:
        whole.drain()
        if check is not None:
            check(whole.app)
        for number in range(cuts):
            with _with_log(program, steps) as trial:
                way = _cut(trial, random.Random(f"{seed} {number}"))
                found = _differences(trial.app, whole.app)
                if not found.ok:
                    raise AssertionError(
                        "the result depends on how the log is cut\n"
                        f"at once: {_lengths(whole.app)}\ncut {number} of seed {seed}: {', '.join(way)}\n"
                        + _describe(found, "cut", "at once")
                    )
                if check is not None:
                    check(trial.app)


def crash_points(
    app: Program, *steps: Add | Advance, points: Sequence[str] = CRASH_POINTS, kill: bool = False
) -> list[str]:
    """Works through the log that the steps make, or without any through one like the app's own, struck at each of the
    points and started again, and compares with working through it undisturbed, and with the audit. Which points it
    passed and so was struck at. The strike is an exception; with `kill=True` a process of its own is ended by SIGKILL,
    which takes seconds each: `app` is then a function of a module that makes the app. These processes share the JVM of
    the tests."""
    for point in points:
        if point not in CRASH_POINTS:
            raise InvalidArgument("points", point, f"is none of {', '.join(CRASH_POINTS)}")
    if kill and isinstance(app, App):
        raise InvalidArgument("app", app, "another process has to make it: pass a function of a module that does")
    program, struck = _program(app), []
    with _with_log(program, steps) as calm:
        rows = _size(calm)
        calm.drain(rows)
        for point in points:
            with _with_log(program, steps) as trial:
                if not (_killed(app, trial, point, rows) if kill else _struck(trial, point, rows)):
                    continue
                trial.drain(rows)
                for what, found in (
                    ("undisturbed", _differences(trial.app, calm.app)),
                    ("by audit", trial.app.audit()),
                ):
                    if not found.ok:
                        raise AssertionError(
                            f"struck at {point}, the result differs\n{_describe(found, 'struck', what)}"
                        )
                struck.append(point)
    return struck


# -- ways to work through a log ----------------------------------------------------------------------


def _program(app: Program) -> App:
    if isinstance(app, App):
        return app
    shared_session()  # so that it makes none of its own, which would end with it
    return app()


def _with_log(program: App, steps: Sequence[Add | Advance]) -> Trial:
    """The program with the log that the steps make, or one like its own, of which it has read nothing."""
    steps = steps or _logged(program)
    for step in steps:
        if not isinstance(step, Add | Advance):
            raise InvalidArgument("steps", told(step), "only add and advance make the log")
    if not any(isinstance(step, Add) for step in steps):
        raise InvalidArgument("steps", steps, "without records nothing is tried: add some")
    trial = Trial(program, steps)
    if any(each.start == "latest" for flow in trial.app.flows.values() for each in flow.inputs):
        trial.drain()  # such a flow starts where it is first run
    for step in steps:
        if isinstance(step, Add):
            trial.add(step)
        else:
            trial.clock.now_us += step.by_us
    return trial


def _logged(program: App) -> list[Add]:
    """What is in the program's log, as it came; but for what its flows write."""
    written = {flow.target for flow in program.flows.values()}
    topics = {topic.name: topic for flow in program.flows.values() for topic in flow.topics}
    found = [
        (record.arrived_at, name, record.partition, record.offset, record.value)
        for name, topic in topics.items()
        if name not in written and not name.startswith(OWN_PREFIX)
        for record in topic.records()
    ]
    steps = []
    for (at, name, partition), records in groupby(sorted(found, key=itemgetter(0, 1, 2, 3)), key=itemgetter(0, 1, 2)):
        chosen = None if topics[name].settings.key else partition  # a key chooses the partition itself
        rows = tuple(value for *_, value in records)
        steps.append(Add(name, rows, chosen, instant_us(at, argument="at")))
    return steps


def _size(trial: Trial) -> int:
    """Rows to a batch, so that there are a few."""
    return max(1, _records(trial.app) // 4)


def _records(app: App) -> int:
    topics = {topic.name: topic for flow in app.flows.values() for topic in flow.topics}
    return sum(end.next - end.earliest for topic in topics.values() for end in topic.offsets().values())


def _cut(trial: Trial, rng: random.Random) -> list[str]:
    """Works through the log as chance has it; in words, how."""
    way: list[str] = []
    total = max(2, _records(trial.app))
    sizes = [1, max(1, total // 15), max(1, total // 6), max(1, total // 2), 10 * total]
    while True:
        if rng.random() < 0.7:
            failpoints.arm(rng.choice(CRASH_POINTS), "raise", skip=rng.randrange(6))
        try:
            loops = [trial.app.running.loop(flow) for flow in trial.app.running.flows]
            while any(_some(trial, loop, rng, sizes, way) for loop in rng.sample(loops, len(loops))):
                pass
            return way
        except InjectedFault as fault:
            way.append(f"struck at {fault.name}")
            trial.restart()
        finally:
            failpoints.disarm()


def _some(trial: Trial, loop: FlowLoop, rng: random.Random, sizes: Sequence[int], way: list[str]) -> int:
    """A batch of the flow, or a few: the next computed while the last is committed. How many records."""
    query = trial.app.running.query(loop.flow)
    query.driver_rows = rng.choice([0, *[DRIVER_ROWS] * 6])
    query.one_task_rows = limit = rng.choice([0, 20, *[ONE_TASK_ROWS] * 6])
    several = rng.random() < 0.2
    size = rng.choice(sizes[2:] if several else sizes)
    rows = loop.drain(size) if several else loop.step(size)
    if rows:
        by = " by several tasks" if min(rows, size) > limit else ""
        way.append(f"{loop.flow.name} {rows}{f' in batches of {size}' if rows > size else ''}{by}")
    return rows


def _struck(trial: Trial, point: str, rows: int) -> bool:
    """Whether it came to the point at all."""
    struck = False
    for skip in STRIKES:
        failpoints.arm(point, "raise", skip=skip)
        try:
            trial.drain(rows)
            break
        except InjectedFault:
            struck = True
            trial.restart()
        finally:
            failpoints.disarm()
    return struck


def _killed(make: Program, trial: Trial, point: str, rows: int) -> bool:
    """Whether the child came to the point, which is its end."""
    with tempfile.TemporaryDirectory(prefix="headrace-child-") as folder:
        context = multiprocessing.get_context("forkserver")  # a child forked from here would share SQLite with us
        context.set_forkserver_preload([__name__, make.__module__, "pandas", "pyspark.sql"])  # imported once for all
        jvm = session.lent(trial.app.running.spark)
        child = context.Process(target=_child, args=(make, trial.home, folder, trial.clock.now_us, point, rows, jvm))
        child.start()
        child.join(CHILD_SECONDS)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise AssertionError(f"the process that was to end at {point} did not in {CHILD_SECONDS} seconds")
    if child.exitcode not in (0, -signal.SIGKILL):
        raise AssertionError(f"the process that was to end at {point} failed: what it printed says why")
    return child.exitcode != 0


def _child(
    make: Callable[[], App], home: Path, folder: str, now_us: int, point: str, rows: int, jvm: tuple[int, str] | None
) -> None:
    tempfile.tempdir = folder  # what is left behind goes with it
    if jvm is not None:
        session.borrowed(*jvm)
    with Trial(_program(make), home=home) as trial:
        trial.clock.now_us = now_us
        trial.app.running.check()
        failpoints.arm(point, "kill", skip=1)
        trial.drain(rows)


# -- what they came to -------------------------------------------------------------------------------


def _differences(app: App, reference: App) -> Audited:
    found = Audited()
    for flow in app.flows.values():
        if flow.target is None:
            expected = reference.views.moment(flow.name)
            compare(found, app.views.moment(flow.name), expected, Compared(expected.spec))
        else:
            _compare_topics(found, flow.target, _net(app, flow.target), _net(reference, flow.target))
        if flow.late.dropped_to is not None:
            name = flow.late.dropped_to
            _compare_topics(found, name, _net(app, name), _net(reference, name))
    return found


def _net(app: App, topic: str) -> Counter[str]:
    """What a topic's records come to: a row that went takes back one that came."""
    out: Counter[str] = Counter()
    for record in app.log.topic(topic).records():
        row = dict(record.value)
        op = row.pop(OP, row.pop("op", "+"))
        if op != ".":  # how far the writer is, which depends on the cut
            out[", ".join(f"{name} {_cell(value)}" for name, value in row.items())] += -1 if op == "-" else 1
    return out


def _cell(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else shown(value)  # sums of doubles depend on their order


def _compare_topics(found: Audited, topic: str, left: Counter[str], right: Counter[str]) -> None:
    for row in sorted(left.keys() | right.keys()):
        if left[row] != right[row]:
            found.found += 1
            found.differences.append(Difference(topic, row, "records", left[row], right[row]))


def _lengths(app: App) -> str:
    return ", ".join(f"{flow.name} {sum(_ends(flow.topics))}" for flow in app.flows.values())


def _ends(topics: Sequence[Any]) -> list[int]:
    return [end.next - end.earliest for topic in topics for end in topic.offsets().values()]


def _describe(found: Audited, stored: str, expected: str) -> str:
    rows = [(each.row, each.column, shown(each.stored), shown(each.expected)) for each in found.differences]
    names = [each.view for each in found.differences]
    kinds = {name: [row for row, of in zip(rows, names, strict=True) if of == name] for name in dict.fromkeys(names)}
    return table(("row", "column", stored, expected), kinds)
