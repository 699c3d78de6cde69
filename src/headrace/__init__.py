"""headrace: a partitioned, durable, typed log in a directory, and streams and views on it.

    import headrace as hr
    log = hr.open_log(".headrace")

Importing starts no JVM and no thread, reads no environment and touches no file; names are loaded when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.aggregates import Aggregate as Aggregate
    from headrace.aggregates import approx_count_distinct as approx_count_distinct
    from headrace.aggregates import approx_quantile as approx_quantile
    from headrace.aggregates import avg as avg
    from headrace.aggregates import collect as collect
    from headrace.aggregates import count as count
    from headrace.aggregates import count_distinct as count_distinct
    from headrace.aggregates import first as first
    from headrace.aggregates import histogram as histogram
    from headrace.aggregates import last as last
    from headrace.aggregates import max as max
    from headrace.aggregates import max_by as max_by
    from headrace.aggregates import merge as merge
    from headrace.aggregates import min as min
    from headrace.aggregates import min_by as min_by
    from headrace.aggregates import percentile as percentile
    from headrace.aggregates import stddev as stddev
    from headrace.aggregates import sum as sum
    from headrace.aggregates import sum_distinct as sum_distinct
    from headrace.aggregates import top_k as top_k
    from headrace.aggregates import variance as variance
    from headrace.app import App as App
    from headrace.calls import Reply as Reply
    from headrace.calls import call as call
    from headrace.calls import cancel as cancel
    from headrace.capture import Capture as Capture
    from headrace.cdc.open import debezium as debezium
    from headrace.cdc.open import outbox as outbox
    from headrace.cep.definition import Pattern as Pattern
    from headrace.cep.definition import pattern as pattern
    from headrace.cep.recognize import match_recognize as match_recognize
    from headrace.connect.command import command as command
    from headrace.connect.index.spec import search_index as search_index
    from headrace.connect.webhook import webhook as webhook
    from headrace.durations import Duration as Duration
    from headrace.erasure import erase as erase
    from headrace.errors import *  # noqa: F403
    from headrace.flows.clocks import clock_quality as clock_quality
    from headrace.flows.clocks import corrected_time as corrected_time
    from headrace.keeping import backup as backup
    from headrace.keeping import restore as restore
    from headrace.log.capabilities import Message as Message
    from headrace.log.contract import META as META
    from headrace.log.contract import Appended as Appended
    from headrace.log.contract import Lag as Lag
    from headrace.log.contract import Offsets as Offsets
    from headrace.log.contract import QueueStats as QueueStats
    from headrace.log.contract import Record as Record
    from headrace.log.contract import Start as Start
    from headrace.log.open import avro as avro
    from headrace.log.open import epoch as epoch
    from headrace.log.open import kafka as kafka
    from headrace.log.open import open_log as open_log
    from headrace.operators.changed import changed as changed
    from headrace.operators.records import RecordOperator as RecordOperator
    from headrace.position import Position as Position
    from headrace.queries import Explanation as Explanation
    from headrace.queries import Queries as Queries
    from headrace.rules import RuleExplanation as RuleExplanation
    from headrace.rules import Rules as Rules
    from headrace.sink import Sink as Sink
    from headrace.streams import Aggregated as Aggregated
    from headrace.streams import Stream as Stream
    from headrace.table import Table as Table
    from headrace.view import View as View
    from headrace.views.contract import CHANGE as CHANGE
    from headrace.views.open import open_views as open_views
    from headrace.windows import calendar as calendar
    from headrace.windows import correct as correct
    from headrace.windows import cumulative as cumulative
    from headrace.windows import drop as drop
    from headrace.windows import hopping as hopping
    from headrace.windows import session as session
    from headrace.windows import sliding as sliding
    from headrace.windows import tumbling as tumbling

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("open_log", "kafka", "avro", "epoch"), "headrace.log.open"),
    "Position": "headrace.position",
    "Duration": "headrace.durations",
    "META": "headrace.log.contract",
    "Appended": "headrace.log.contract",
    "Lag": "headrace.log.contract",
    "Offsets": "headrace.log.contract",
    "Record": "headrace.log.contract",
    "Start": "headrace.log.contract",
    "QueueStats": "headrace.log.contract",
    "Message": "headrace.log.capabilities",
    **dict.fromkeys(("backup", "restore"), "headrace.keeping"),
    "erase": "headrace.erasure",
    "App": "headrace.app",
    **dict.fromkeys(("call", "cancel", "Reply"), "headrace.calls"),
    "Capture": "headrace.capture",
    "debezium": "headrace.cdc.open",
    "outbox": "headrace.cdc.open",
    "Sink": "headrace.sink",
    "search_index": "headrace.connect.index.spec",
    "webhook": "headrace.connect.webhook",
    "command": "headrace.connect.command",
    **dict.fromkeys(("Pattern", "pattern"), "headrace.cep.definition"),
    "match_recognize": "headrace.cep.recognize",
    **dict.fromkeys(("Explanation", "Queries"), "headrace.queries"),
    **dict.fromkeys(("RuleExplanation", "Rules"), "headrace.rules"),
    "Stream": "headrace.streams",
    "Aggregated": "headrace.streams",
    "Table": "headrace.table",
    "View": "headrace.view",
    "CHANGE": "headrace.views.contract",
    "open_views": "headrace.views.open",
    "changed": "headrace.operators.changed",
    "RecordOperator": "headrace.operators.records",
    **dict.fromkeys(("corrected_time", "clock_quality"), "headrace.flows.clocks"),
    **dict.fromkeys(
        ("tumbling", "hopping", "cumulative", "calendar", "session", "sliding", "drop", "correct"), "headrace.windows"
    ),
    **dict.fromkeys(("count", "sum", "avg", "min", "max", "first", "last", "count_distinct"), "headrace.aggregates"),
    **dict.fromkeys(("approx_count_distinct", "approx_quantile", "top_k", "histogram"), "headrace.aggregates"),
    **dict.fromkeys(("max_by", "min_by", "stddev", "variance", "percentile", "sum_distinct"), "headrace.aggregates"),
    **dict.fromkeys(("collect", "merge", "Aggregate"), "headrace.aggregates"),
}

_OTHER_NAMES = {
    **dict.fromkeys(("mean", "average"), "hr.avg(column)"),
    "median": "hr.percentile(column, 0.5)",
    "quantile": "hr.percentile(column, q)",
    **dict.fromkeys(("std", "stdev"), "hr.stddev(column)"),
    "var": "hr.variance(column)",
    **dict.fromkeys(("nunique", "countDistinct"), "hr.count_distinct(column)"),
    **dict.fromkeys(("collect_list", "array_agg"), "hr.collect(column, limit)"),
}
"""What PySpark, pandas and SQL call it, and what it is here."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    errors = import_module("headrace.errors")  # not `from headrace import errors`: that would ask here again
    if name in errors.__all__:
        return getattr(errors, name)
    instead = _OTHER_NAMES.get(name)
    hint = f" It is called {instead} here." if instead else errors.nearest(name, __dir__())
    raise AttributeError(f"module 'headrace' has no attribute {name!r}{'.' if hint else ''}{hint}")


def __dir__() -> list[str]:
    from importlib import import_module

    return sorted([*_HOMES, *import_module("headrace.errors").__all__, "__version__"])
