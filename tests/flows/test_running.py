"""Flows that are kept running: woken by the log, stopped in bounded time, past bad records, one runner at a time."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

import headrace as hr
from headrace import failpoints
from headrace.flows import supervise
from headrace.flows.spark import session
from headrace.flows.supervise import Supervisor
from tests.flows.sparkless import Sparkless


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def counting(home: Path, spark: Any, **settings: Any) -> hr.App:
    app = hr.App("counts", home=home, spark=spark, **settings)
    words = app.topic("words", "word string, n int", durability="os")

    def checked(df: Any) -> Any:
        return df.withColumn("m", (100 / df.n).cast("int"))  # n = 0 is poison

    app.stream(words).transform(checked).group_by("word").agg(n=hr.count(), total=hr.sum("m")).to_view("per_word")
    return app


def rows(app: hr.App) -> dict[str, int]:
    return {row["word"]: row["n"] for row in app.view("per_word").to_arrow().to_pylist()}


def test_started_flows_follow_the_log(spark: Any, tmp_path: Path) -> None:
    with counting(tmp_path, spark) as app:
        words = app.log.topic("words")
        app.start()
        for number in range(1, 4):
            done = words.append([{"word": "a", "n": 1}, {"word": "b", "n": 2}])
            found = app.query("select word, n from per_word order by 1", wait_for=done.position, timeout="1 minute")
            assert found.to_pylist() == [{"word": "a", "n": number}, {"word": "b", "n": number}]
        (status,) = app.status()
        assert (status.lag, status.dead, status.restarts, status.error) == (0, 0, 0, "")
        began = time.monotonic()
        app.stop()
        assert time.monotonic() - began < 20
        (status,) = app.status()
        assert status.state == "stopped"
        words.append({"word": "a", "n": 1})
        app.start()
        app.views.wait_for(hr.Position.of("words", words.topic_id, {0: 7}), timeout="1 minute")
        assert rows(app) == {"a": 4, "b": 3}


def test_a_poison_record_becomes_a_dead_letter_and_the_rest_goes_on(spark: Any, tmp_path: Path) -> None:
    with counting(tmp_path, spark) as app:
        words = app.log.topic("words")
        done = words.append([{"word": f"w{n % 3}", "n": n} for n in range(20)])  # n = 0 and no other
        app.start()
        app.views.wait_for(done.position, timeout="2 minutes")
        app.stop()
        assert sum(rows(app).values()) == 19
        (letter,) = app.log.dead_letters()
        assert letter.reason == "poison" and "ZERO" in letter.error and letter.origin.source == "flow per_word"
        assert letter.origin.offset == 0 and letter.value == {"word": "w0", "n": 0}
        assert app.audit().ok  # what was given up is no part of the view
        letter.drop()
        assert app.audit().ok


def divided_by_python(df: Any) -> Any:
    from pyspark.sql import functions as F

    return df.withColumn("m", F.udf(lambda n: 100 // n, "int")("n"))


def divided_by_pandas(df: Any) -> Any:
    from pyspark.sql import functions as F

    return df.withColumn("m", F.pandas_udf(lambda n: n.map(lambda each: 100 // each), "int")("n"))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("transforms", "tasks"),
    [
        ((), [64, 64, 9]),
        ((divided_by_python,), [64, 64, 9]),
        ((divided_by_pandas,), [64, 64, 9]),
        ((lambda df: df.where("n % 2 = 0"), divided_by_python), [64, 64, 9, 24]),  # which row is not which record
    ],
    ids=["spark", "python", "pandas", "python behind a filter"],
)
def test_a_drain_gets_past_many_poison_records_with_few_jobs(
    spark: Any,
    tmp_path: Path,
    transforms: tuple[Any, ...],
    tasks: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with counting(tmp_path, spark) as app:
        words = app.log.topic("words")
        words.append([{"word": "w", "n": n % 150} for n in range(600)])  # four are 0
        if transforms:
            app.flows["per_word"] = replace(app.flows["per_word"], transforms=transforms)
        jobs: list[int] = []
        run = session.failed_tasks
        monkeypatch.setattr(session, "failed_tasks", lambda *given: jobs.append(given[2]) or run(*given))
        assert app.drain() == 600
        assert len(jobs) == len(tasks) and all(map(operator.le, jobs, tasks)), jobs
        letters = list(app.log.dead_letters())
        assert [letter.origin.offset for letter in letters] == [0, 150, 300, 450]
        reason = "ZeroDivisionError: integer division or modulo by zero" if transforms else "ZERO"
        assert all(reason in letter.error.splitlines()[0] for letter in letters)
        assert not any("headrace" in letter.error for letter in letters), "nothing of the search is in the letter"
        warnings = [each.getMessage() for each in caplog.records if "dead letter" in each.getMessage()]
        assert len(warnings) == 4
        assert warnings[1].startswith(f"flow per_word: words/0 offset 150 became dead letter {letters[1].id}: ")
        assert rows(app) == {"w": 596 if len(transforms) < 2 else 296}
        assert app.audit().ok


def test_a_program_that_fails_on_everything_is_stopped(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "DEAD_MIN", 3)
    with counting(tmp_path, spark) as app:
        app.log.topic("words").append([{"word": "x", "n": 0}] * 40)
        app.start()
        with pytest.raises(hr.TooManyDeadLetters, match="40 of 40"):
            app.wait("3 minutes")
        assert app.status()[0].state == "failed"
        assert not list(app.log.dead_letters()), "the program is mended, and reads them again"


def test_an_error_of_the_surroundings_is_tried_again(spark: Any, tmp_path: Path) -> None:
    with counting(tmp_path, spark) as app:
        done = app.log.topic("words").append([{"word": "a", "n": 1}] * 10)
        failpoints.arm("view.applied", "raise", skip=1)  # the first is the commit of where the flow starts
        app.start()
        app.views.wait_for(done.position, timeout="1 minute")
        app.stop()
        assert rows(app) == {"a": 10}
        assert not list(app.log.dead_letters())


def test_a_batch_that_a_stop_gives_up_makes_no_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while a stop has Spark's jobs cancelled: that is no fault of the record they are at."""
    with Sparkless(tmp_path, None, names=("records",)) as flow:
        flow.topic.append({"word": "a"})
        supervisor = Supervisor(flow.loop, lambda _: flow.started())

        def cancelled(_: Any) -> None:
            supervisor.ask_to_stop()
            raise RuntimeError("the job was cancelled")

        monkeypatch.setattr(flow.loop._query, "rows", cancelled)
        supervisor.work_off()
        assert not list(flow.log.dead_letters()) and flow.started().drain() == 1


@pytest.mark.parametrize(("seconds", "then"), [(0.0, 5), (1e9, 800)])
def test_batches_follow_how_long_commits_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, then: int
) -> None:
    """They shrink when a commit has taken long; they grow as soon as few rows are to be committed."""
    monkeypatch.setattr(supervise, "COMMIT_SECONDS", seconds)
    monkeypatch.setattr(supervise, "PACE_FIRST", 100)
    monkeypatch.setattr(supervise, "PACE_MIN", 5)
    with Sparkless(tmp_path, None, names=("records",)) as flow:
        for _ in range(80):
            flow.topic.append([{"word": "a"}] * 50)
        sizes: list[int] = []
        commit = flow.loop.commit

        def noting(batch: Any) -> None:
            sizes.append(batch.rows)
            commit(batch)

        monkeypatch.setattr(flow.loop, "commit", noting)
        assert Supervisor(flow.loop, lambda _: flow.started()).work_off() == 4_000
        assert sizes[0] == 100
        assert set(sizes[1:2]) <= {100, then}  # it is planned while the first is committed: before its end, or behind
        assert then in sizes[1:6]


def test_the_first_batch_is_small_where_a_row_may_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "PACE_FIRST", 100)
    monkeypatch.setattr(supervise, "PACE_CAREFUL", 10)
    for window, first in (hr.tumbling("1 minute"), 100), (hr.session("1 minute"), 10):
        with Sparkless(tmp_path / window.kind, window, names=("records",)) as flow:
            for _ in range(20):
                flow.topic.append([{"word": "a", "at": "2026-01-01T00:00:00Z"}] * 10)
            sizes: list[int] = []
            monkeypatch.setattr(flow.loop, "_commit", _noting(sizes, flow.loop._commit))
            assert Supervisor(flow.loop, lambda _, started=flow.started: started()).work_off() == 200
            assert sizes[0] == first, window


def _noting(sizes: list[int], commit: Any) -> Any:
    def noted(batch: Any, *args: Any, **given: Any) -> None:
        sizes.append(batch.rows)
        commit(batch, *args, **given)

    return noted


def test_a_commit_that_takes_long_is_seen() -> None:
    pulse = supervise.Pulse("f")
    assert pulse.committing_seconds == 0
    pulse.committing_since = time.monotonic() - 5
    assert pulse.committing_seconds >= 5


@pytest.mark.parametrize("what", ["rows", "plan"])
def test_what_is_no_records_fault_makes_no_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The JVM is gone; or the flow did not come to read anything."""
    error = Py4JNetworkError("Answer from Java side is empty") if what == "rows" else RuntimeError("no room")
    with Sparkless(tmp_path, None, names=("records",)) as flow:
        flow.topic.append({"word": "a"})
        assert flow.loop.step() == 1
        flow.topic.append({"word": "a"})

        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(*((flow.loop._query, "rows") if what == "rows" else (flow.loop._inputs, "ends")), fail)
        with pytest.raises(type(error)):
            Supervisor(flow.loop, lambda _: flow.started()).work_off()
        assert not list(flow.log.dead_letters())


def test_a_session_that_was_stopped_stops_its_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sparkless(tmp_path, None, names=("records",)) as flow:
        flow.topic.append({"word": "a"})
        query = flow.loop._query
        monkeypatch.setattr(query, "spark", SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))
        monkeypatch.setattr(query, "rows", lambda _: query.spark.sparkContext._jsc.sc())
        with pytest.raises(hr.Closed, match="the Spark session of flow 'view'"):
            Supervisor(flow.loop, lambda _: flow.started()).work_off()
        assert not list(flow.log.dead_letters())


def test_one_runner_at_a_time(spark: Any, tmp_path: Path) -> None:
    with counting(tmp_path, spark) as first, counting(tmp_path, spark) as second:
        words = first.log.topic("words")
        first.start()
        done = words.append([{"word": "a", "n": 1}] * 3)
        first.views.wait_for(done.position, timeout="1 minute")
        with pytest.raises(hr.AlreadyRunning, match="--take-over"):
            second.drain()
        second.start(take_over=True)
        done = words.append([{"word": "a", "n": 1}] * 3)
        second.views.wait_for(done.position, timeout="1 minute")
        with pytest.raises(hr.FlowFenced):
            first.wait("1 minute")
        assert rows(second) == {"a": 6}


def test_standing_by(spark: Any, tmp_path: Path) -> None:
    with counting(tmp_path, spark) as first, counting(tmp_path, spark) as second:
        first.start()
        waiting = threading.Thread(target=second.start, kwargs={"standby": True})
        waiting.start()
        done = first.log.topic("words").append([{"word": "a", "n": 1}])
        first.views.wait_for(done.position, timeout="1 minute")
        assert waiting.is_alive()
        first.close()
        waiting.join(timeout=30)
        assert not waiting.is_alive()
        done = second.log.topic("words").append([{"word": "a", "n": 1}])
        second.views.wait_for(done.position, timeout="1 minute")
        assert rows(second) == {"a": 2}
