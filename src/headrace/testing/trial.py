"""A program run for a test: in a home of its own that goes when the test is over, with a clock that the test moves.
Owns that home and clock; the user's app lends its program and is not touched. Nothing sleeps and nothing runs in the
background: after each step everything there is has been worked off."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.durations import from_us, instant_us
from headrace.errors import InvalidArgument, nearest
from headrace.testing.comparing import cells, matched, shown, table, texts
from headrace.testing.spark import shared_session
from headrace.testing.steps import Add, Advance, Expect, Restart, Step

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App

START_US = instant_us("2026-01-01T00:00:00Z", argument="start")
"""Where the clock stands when no record says otherwise."""


def run_steps(app: App, *steps: Step) -> None:
    """Does what the steps say, one after the other, with the app's program in a temporary home. AssertionError when
    something is not as expected. A function is a step, too: it is called with the app that runs there."""
    with Trial(app, steps) as trial:
        trial.drain()
        for number, step in enumerate(steps, start=1):
            with _numbered(f"step {number} of {len(steps)}, {told(step)}"):
                trial.run(step)


def told(step: Step) -> str:
    return getattr(step, "__name__", repr(step)) if callable(step) else str(step)


@contextlib.contextmanager
def _numbered(where: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}").with_traceback(error.__traceback__) from None
    except Exception as error:
        error.add_note(f"in {where}")
        raise


class Clock:
    """Shows what it was set to, and never goes back."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def __str__(self) -> str:
        return shown(from_us(self.now_us))


class Trial(contextlib.AbstractContextManager["Trial", None]):
    """`home`: one that is there already, and stays."""

    def __init__(self, program: App, steps: Iterable[Step] = (), home: Path | None = None) -> None:
        self._program, self._made = program, contextlib.ExitStack()
        self._home = (
            home or Path(self._made.enter_context(tempfile.TemporaryDirectory(prefix="headrace-test-"))) / "home"
        )
        self._session = _session(program)
        self.clock = Clock(START_US)
        for step in steps:
            if isinstance(step, Add):
                times = [] if step.at_us is None else [step.at_us]
                times = times or _event_times(step, program.log.topic(step.topic).settings.event_time)
                if times:
                    self.clock.now_us = min(times)
                    break
        self.app = self._opened()

    def _opened(self) -> App:
        return self._program.replace(home=self._home, spark=self._session, clock_us=self.clock)

    @property
    def home(self) -> Path:
        return self._home

    def run(self, step: Step) -> None:
        match step:
            case Add():
                self.add(step)
                self.drain()
            case Advance():
                self.clock.now_us += step.by_us
                self.drain()
            case Restart():
                self.restart()
                self.drain()
            case Expect():
                self.expect(step)
            case _ if callable(step):
                step(self.app)
            case _:
                raise InvalidArgument("steps", step, "is no step: add, advance, expect, restart, or a function")

    # -- what steps do -----------------------------------------------------------------------------

    def add(self, step: Add) -> None:
        topic = self.app.log.topic(step.topic)
        now = self.clock.now_us
        if step.at_us is not None and step.at_us < now:
            raise InvalidArgument(
                "at", shown(from_us(step.at_us)), f"the clock shows {self.clock}: it does not go back"
            )
        latest = max([now, *_event_times(step, topic.settings.event_time)])
        self.clock.now_us = latest if step.at_us is None else step.at_us
        topic.append(step.rows, partition=step.partition)

    def drain(self, batch_rows: int | None = None) -> None:
        self.app.drain(batch_rows)

    def restart(self) -> None:
        """All that is in memory is gone, but for Spark and what is known of the program."""
        self.app.close()
        self.app = self._opened()

    def expect(self, step: Expect) -> None:
        if step.rows is not None:
            schema, rows = self.rows(step.name)
            columns = step.columns or tuple(schema.names[: len(step.rows[0])] if step.rows else schema.names)
            for column in columns:
                if column not in schema.names:
                    why = f"{step.name!r} has no column {column!r}.{nearest(column, schema.names)}"
                    raise InvalidArgument("rows", column, why)
            expected = [cells(row, columns, schema) for row in step.rows]
            same, missing, unexpected = matched(expected, [tuple(row[name] for name in columns) for row in rows])
            if missing or unexpected:
                kinds = {"missing": texts(missing), "unexpected": texts(unexpected), "": texts(same)}
                raise AssertionError(f"not as expected at {self.clock}\n{table(columns, kinds)}")
        if step.ledger is not None:
            found = self.app.view(step.name).ledger()
            totals = {name: sum(found[name].to_pylist()) for name in step.ledger}
            if totals != step.ledger:
                kinds = {"expected": texts([tuple(step.ledger.values())]), "found": texts([tuple(totals.values())])}
                raise AssertionError(f"the ledger is not as expected at {self.clock}\n{table(tuple(totals), kinds)}")

    def rows(self, name: str) -> tuple[pa.Schema, list[dict[str, Any]]]:
        """Of a view, or of a topic if no view has that name."""
        flow = self.app.flows.get(name)
        if flow is not None and flow.target is None:
            found = self.app.view(name).to_arrow()
            return found.schema, found.to_pylist()
        topic = self.app.log.topic(name)
        return topic.schema, [dict(record.value) for record in topic.records()]

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        self.app.close()
        self._made.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _session(program: App) -> Any:
    """What the program runs on: the session it brought, or the one of the tests."""
    given = program._spark
    session = shared_session() if given is None or isinstance(given, str | Mapping) else given
    return given if isinstance(given, Mapping) else session


def _event_times(step: Add, column: str | None) -> list[int]:
    """When the rows happened; what is no time is for the log to refuse."""
    times = []
    for row in step.rows:
        with contextlib.suppress(InvalidArgument):
            if column is not None and row.get(column) is not None:
                times.append(instant_us(row[column], argument=column))
    return times
