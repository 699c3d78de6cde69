"""Whether a user's own aggregate gives one result however the records are cut, tried once before its flow starts: on
rows that are made up, in parts and as a whole. Owns the trial; the rows are those that transforms are tried on.

A difference is refused. An error on made-up rows proves nothing about real ones: it is told, not raised."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headrace.aggregates.aggregate import Own
from headrace.errors import AggregateFailed, HeadraceError, TransformRefused
from headrace.flows.compiler.partials import aggregated
from headrace.flows.compiler.plan_check import sample_rows
from headrace.flows.flow import Flow, through
from headrace.flows.reading.ranges import spark_schema
from headrace.rows import python_values
from headrace.schema import type_ddl
from headrace.views.values import arrow_type, as_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.aggregates import Aggregate
    from headrace.views.contract import ViewSpec

PARTS = 5
UNROUNDED = 1e-9
"""Sums of doubles depend on their order this much, of the larger of the two."""


def check_own(flow: Flow, view: ViewSpec, spark: SparkSession) -> list[str]:
    """What could not be tried, in words; TransformRefused if a result depends on the cut."""
    notes = []
    types = {slot.name: slot.type for slot in view.slots}
    for name, aggregate in (flow.aggregates or {}).items():
        if isinstance(aggregate.algebra, Own):
            try:
                _Trial(flow, name, aggregate, types, spark).run()
            except (TransformRefused, AggregateFailed):
                raise
            except Exception as error:
                said = str(error).strip().splitlines() or [""]
                notes.append(f"{flow.name}, aggregate {name}: not tried on made-up rows: {said[0][:200]}")
    return notes


class _Trial:
    def __init__(self, flow: Flow, name: str, own: Aggregate, types: dict[str, str], spark: SparkSession) -> None:
        self._flow, self._name, self._own, self._types, self._spark = flow, name, own, types, spark

    def run(self) -> None:
        *parts, whole = self._partials()
        known = [part for part in parts if part is not None]
        if len(known) < 3:
            return
        for a, b in itertools.combinations(known, 2):
            self._compare("its order", self._merged(a, b), self._merged(b, a))
        for a, b, c in itertools.combinations(known, 3):
            one, other = self._merged(self._merged(a, b), c), self._merged(a, self._merged(b, c))
            self._compare("how it is grouped", one, other)
        self._compare("the cut of its records", functools.reduce(self._merged, known), whole)

    def _partials(self) -> list[Any]:
        """Partial values of parts of the rows, and of all of them."""
        read = self._flow.inputs[0]
        schema = spark_schema(read.topic)
        df = self._spark.createDataFrame(sample_rows(schema)[-1], schema)
        df = through((*read.transforms, *self._flow.transforms), df)
        _, (partial,) = aggregated({"v": self._own}, df, None)
        parts = df.groupBy(F.pmod("_offset", F.lit(PARTS)).alias("part")).agg(partial).drop("part")
        return python_values(parts.unionAll(df.agg(partial)).toArrow().column(0).combine_chunks())

    def _merged(self, a: Any, b: Any) -> Any:
        assert self._own.merge is not None
        value = self._own.merge(copy.deepcopy(a), copy.deepcopy(b))
        self._check(value, self._own.slots(self._name)[0].name, "merge")
        return value

    def _finished(self, value: Any) -> Any:
        if self._own.finish is None:
            return value
        value = self._own.finish(copy.deepcopy(value))
        self._check(value, self._name, "finish")
        return value

    def _check(self, value: Any, slot: str, step: str) -> None:
        arrow = arrow_type(self._types[slot])
        try:
            as_column([value], arrow)
        except (HeadraceError, ValueError, TypeError, OverflowError) as error:
            why = f"it returned something else than {type_ddl(arrow)}: {error}"
            raise AggregateFailed(self._flow.name, self._name, step, why) from error

    def _compare(self, what: str, one: Any, other: Any) -> None:
        one, other = self._finished(one), self._finished(other)
        if not same(one, other):
            raise TransformRefused(
                self._flow.name,
                f"aggregate {self._name!r}",
                "merge",
                f"depends on {what}: {one!r} or {other!r} for the same records",
                "Partial values must merge in any order, and to the partial value of all their records: keep what adds "
                "up (a sum and a count, not an average), and compute the rest in finish",
            )


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, lists and what is in them too; NaN equals itself."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=UNROUNDED, abs_tol=0.0) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
