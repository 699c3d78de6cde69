"""What a flow asks of Spark: how many jobs and tasks it ran, and how long it waited for them. Owns the counts of one
flow's query, and the tag by which its jobs are found again.

The numbers are Spark's own. Each action runs under a job tag of its own, which leaves job groups alone, and Spark's
status store says which jobs had the tag and how many tasks they ran. That store follows the scheduler with a delay, so
an action is counted when the store certainly knows it: at the next action, or when somebody looks. No job is lost and
none is counted twice. Over Spark Connect there is no store to ask: an action is one job, and its tasks are unknown."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.flows.spark import session

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
RETAINED = 1000
"""So many actions may wait to be counted; Spark itself remembers no more jobs (spark.ui.retainedJobs)."""
LOOK_MS = 100
"""Who looks waits so long at most for Spark's status store to catch up."""


class SparkUse:
    """Cumulative, and safe to use from several threads. An action must not run within another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = self._tasks = 0
        self._uncounted: deque[str] = deque(maxlen=RETAINED)
        """Tags of actions that have ended, the oldest first."""
        self._told: _Told | None = None
        self.seconds = 0.0
        """Spent in actions, by the wall clock."""
        self.on_driver = 0
        """Batches folded without a Spark job."""

    def run(self, spark: SparkSession, action: Callable[[], T]) -> T:
        """Runs the action and counts it, whether it succeeds or not."""
        context = session.context_of(spark)
        tag = f"headrace-{uuid.uuid4().hex}"
        if context is not None:
            context.addJobTag(tag)
        began = time.perf_counter()
        try:
            return action()
        finally:
            self._ran(context, tag, time.perf_counter() - began)

    def folded_on_driver(self) -> None:
        with self._lock:
            self.on_driver += 1

    @property
    def jobs(self) -> int:
        self._look()
        return self._jobs

    @property
    def tasks(self) -> int:
        """Those that ran: repeated and failed ones too, skipped ones not."""
        self._look()
        return self._tasks

    def _ran(self, context: SparkContext | None, tag: str, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds
            if context is None:
                self._jobs += 1
                return
            earlier = list(self._uncounted)
            self._uncounted.append(tag)
        with contextlib.suppress(Exception):  # of a JVM that is gone; the action has said so
            context.removeJobTag(tag)
            if self._told is None or self._told.context is not context:
                self._told = _Told(context)
            # Spark tells the store in order: when it knows a job of this action, it knows all of the earlier ones.
            if earlier and len(self._told.tracker.getJobIdsForTag(tag)):
                self._count(self._told, earlier)

    def _look(self) -> None:
        """Counts what has ended by now, unless Spark is too busy to tell: then the next look does."""
        told, ended = self._told, list(self._uncounted)
        if told is not None and ended:
            with contextlib.suppress(Exception):  # the session may be stopped, and its JVM gone
                told.bus.waitUntilEmpty(LOOK_MS)
                self._count(told, ended)

    def _count(self, told: _Told, tags: Iterable[str]) -> None:
        """Adds up the actions with these tags, each once, when all of its jobs have ended."""
        with self._lock:
            for tag in [tag for tag in tags if tag in self._uncounted]:
                found = [told.store.job(number) for number in told.tracker.getJobIdsForTag(tag)]
                if all(job.completionTime().isDefined() for job in found):
                    self._jobs += len(found)
                    self._tasks += sum(_tasks_of(job) for job in found)
                    self._uncounted.remove(tag)


class _Told:
    """Where a context says what it runs. Fetched once: each call into the JVM takes a tenth of a millisecond."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context
        scala: Any = context._jsc.sc()
        self.bus, self.tracker, self.store = scala.listenerBus(), scala.statusTracker(), scala.statusStore()


def _tasks_of(job: Any) -> int:
    return int(job.numCompletedTasks() + job.numFailedTasks() + job.numKilledTasks())
