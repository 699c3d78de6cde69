"""How far event time and arrival had come where workers stopped reading, of topics whose progress is made by reading.
Owns the way of these marks to the driver: a Spark accumulator. A mark is a fact of the log, so it does no harm if a
task that is run again tells it twice, or if a job that fails has told it. A Spark Connect session has no accumulators:
there the driver reads for itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.accumulators import AccumulatorParam

from headrace.flows.spark import session
from headrace.log.capabilities import ReadMark, Remembers
from headrace.log.declared import DeclaredTopic

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

    from headrace.log.contract import Topic

__all__ = ["Reached", "gathering", "remembering", "report", "take_reports"]

Reached = dict[tuple[str, int], dict[int, ReadMark]]
"""Topic id and partition -> the marks by their offsets."""


class _Gathering(AccumulatorParam[Reached]):
    def zero(self, value: Reached) -> Reached:
        return type(value)()

    def addInPlace(self, value1: Reached, value2: Reached) -> Reached:
        for place, marks in value2.items():
            value1.setdefault(place, {}).update(marks)
        return value1


_gathered: WeakKeyDictionary[SparkContext, Accumulator[Reached]] = WeakKeyDictionary()
_lock = threading.Lock()


def remembering(topic: Topic) -> Remembers | None:
    """The topic, if its progress is made by its readers."""
    opened: Any = topic.opened() if isinstance(topic, DeclaredTopic) else topic
    return opened if isinstance(opened, Remembers) else None


def gathering(spark: SparkSession) -> Accumulator[Reached] | None:
    """What tasks of the session tell their marks to."""
    context = session.context_of(spark)
    if context is None:
        return None
    with _lock:
        if context not in _gathered:
            _gathered[context] = context.accumulator({}, _Gathering())
        return _gathered[context]


def report(reports: Accumulator[Reached], topic: Topic, stops: Mapping[int, int]) -> None:
    """In a worker that has read up to these offsets."""
    if isinstance(topic, Remembers):
        told = {(topic.topic_id, number): {stop: topic.reached(number, stop)} for number, stop in stops.items()}
        reports.add(told)


def take_reports(spark: SparkSession | None, topic: Topic) -> None:
    """Tells a topic what tasks have found out of it."""
    known, context = remembering(topic), None if spark is None else session.context_of(spark)
    with _lock:
        gathered = None if context is None or known is None else _gathered.get(context)
    if gathered is None or known is None:
        return
    here = gathered.value
    for topic_id, number in list(here):
        if topic_id == topic.topic_id:
            known.remember({number: here.pop((topic_id, number)).values()})
