"""How much of Spark a flow uses: its numbers are those that Spark's own status tracker gives for the thread's group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JVMView  # type: ignore[import-untyped]
from pyspark import InheritableThread
from pyspark.sql import functions as F

import headrace as hr
from headrace.flows.spark import session
from headrace.flows.spark.spark_use import SparkUse


@pytest.fixture
def group(spark: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """What a user may have set for this thread."""
    spark.sparkContext.setJobGroup(request.node.name, "as it was")
    yield request.node.name
    spark.sparkContext._jsc.clearJobGroup()


def told(spark: Any, group: str) -> tuple[int, int]:
    """Jobs and tasks of the group, by another way than the one that is tested."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(number) for job in jobs for number in job.stageIds]
    return len(jobs), sum(stage.numCompletedTasks + stage.numFailedTasks for stage in stages)


def broken(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ValueError("this record breaks the program")


def actions(spark: Any) -> list[Callable[[], object]]:
    numbers = spark.range(300, numPartitions=3)
    grouped = numbers.selectExpr("id % 7 as k").groupBy("k").count()
    joined = numbers.join(grouped.hint("broadcast"), numbers.id == grouped.k)
    return [numbers.toArrow, grouped.toArrow, joined.toArrow, spark.createDataFrame([(1,)], "x int").limit(0).toArrow]


def test_an_action_counts_the_jobs_and_tasks_that_spark_ran(spark: Any, group: str) -> None:
    use = SparkUse()
    for action in actions(spark):
        use.run(spark, action)
        assert (use.jobs, use.tasks) == told(spark, group)
    assert (use.jobs, use.tasks) == told(spark, group)  # a second look counts nothing twice
    assert use.jobs > 3  # a broadcast is a job of its own
    assert use.seconds > 0
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == group
    assert not spark.sparkContext.getLocalProperty("spark.job.tags")


def test_an_action_that_fails_counts(spark: Any, group: str) -> None:
    use, bad = SparkUse(), spark.range(2, numPartitions=1).mapInArrow(broken, "id long")
    with pytest.raises(Exception, match="breaks the program"):
        use.run(spark, bad.toArrow)
    assert (use.jobs, use.tasks) == told(spark, group)
    assert use.jobs == 1 and use.tasks >= 1


def test_the_search_for_bad_records_counts_and_leaves_the_users_group(spark: Any, group: str) -> None:
    use, good = SparkUse(), spark.range(4, numPartitions=2)
    save = good.write.format("noop").mode("overwrite").save
    assert use.run(spark, lambda: session.failed_tasks(spark, save, 2)) == {}
    assert (use.jobs, use.tasks) == told(spark, group) == (1, 2)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == group
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "as it was"


def test_threads_that_share_it_lose_nothing(spark: Any) -> None:
    use, one = SparkUse(), spark.range(10, numPartitions=2).selectExpr("id + 1")
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(use.run, spark, one.toArrow) for _ in range(24)]:
            each.result()
    assert (use.jobs, use.tasks) == (24, 48)


def test_a_job_that_outlives_its_action_is_counted_when_it_ends(spark: Any, tmp_path: Path) -> None:
    use, release = SparkUse(), tmp_path / "release"

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        while not release.exists():
            time.sleep(0.01)
        return batches

    slow = InheritableThread(target=spark.range(1, numPartitions=1).mapInArrow(waits, "id long").toArrow)
    use.run(spark, slow.start)
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getActiveJobsIds():
        assert slow.is_alive()
    use.run(spark, spark.range(1, numPartitions=1).selectExpr("id + 1").toArrow)
    assert (use.jobs, use.tasks) == (1, 1)
    release.touch()
    slow.join()
    assert (use.jobs, use.tasks) == (2, 2)


def test_without_a_context_an_action_is_one_job_of_unknown_tasks() -> None:
    use = SparkUse()
    assert use.run(object(), lambda: 7) == 7  # type: ignore[arg-type]  # as a session of Spark Connect has none
    use.folded_on_driver()
    assert (use.jobs, use.tasks, use.on_driver) == (1, 0, 1)


def test_the_status_of_flows_has_the_jobs_that_the_session_ran(spark: Any) -> None:
    with hr.App("seen", home=":temp:", spark=spark) as app:
        numbers = app.topic("numbers", "n long, at timestamp", event_time="at")
        squares = app.stream(numbers).transform(lambda df: df.withColumn("n", F.expr("n * n")))
        squares.window(hr.tumbling("1 minute")).agg(total=hr.sum("n")).to_view("computed")
        app.stream(numbers).agg(count=hr.count()).to_view("plain")
        rows = [{"n": n, "at": "2026-01-01T09:00:00Z"} for n in range(50)]
        numbers.append(rows)
        app.drain()  # flows are checked, by jobs that are none of theirs
        before, known = app.status(), ran(spark)
        for _ in range(3):
            numbers.append(rows)
            app.drain()
        after, later = app.status(), ran(spark)
        computed, plain = (
            (b.spark_jobs - a.spark_jobs, b.spark_tasks - a.spark_tasks) for a, b in zip(before, after, strict=True)
        )
        jobs, tasks = (b - a for a, b in zip(known, later, strict=True))
        assert (computed[0] + plain[0], computed[1] + plain[1]) == (jobs, tasks)
        assert computed[0] == 3, "a computed batch is a job"
        assert after[0].spark_seconds > before[0].spark_seconds > 0
        assert (plain, after[1].driver_batches) == ((0, 0), 4), "few plain records are counted on the driver"
        assert "spark_jobs" in after._repr_html_()


def ran(spark: Any) -> tuple[int, int]:
    """Jobs and tasks of the whole session so far."""
    scala = spark.sparkContext._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    tracker, total = spark.sparkContext.statusTracker(), scala.dagScheduler().numTotalJobs()
    stages = [tracker.getStageInfo(id) for job in map(tracker.getJobInfo, range(total)) if job for id in job.stageIds]
    return total, sum(stage.numCompletedTasks for stage in stages if stage)


def test_a_flow_runs_without_asking_again_what_names_mean(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM looks through all its jars for a name: PySpark asks hundreds of times for the few that it uses."""
    asked: Counter[str] = Counter()
    find = JVMView.__getattr__
    monkeypatch.setattr(JVMView, "__getattr__", lambda view, name: asked.update([name]) or find(view, name))
    with hr.App("names", home=tmp_path, spark=spark, driver_rows=0) as app:
        topic = app.topic("t", "word string, n int", durability="os")
        twice = app.stream(topic).transform(lambda df: df.withColumn("m", F.when(df.n > 0, -F.col("n")).otherwise(2)))
        twice.group_by("word").agg(n=hr.count(), least=hr.min("m")).to_view("v")
        topic.append([{"word": "a", "n": n} for n in range(20)])
        app.drain()
        assert app.view("v").to_arrow()["least"].to_pylist() == [-19]
    assert not {name: times for name, times in asked.items() if times > 1}
