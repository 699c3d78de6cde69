"""Every kind of aggregation keeps the contract of operators."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.aggregates.aggregate import Aggregate
from headrace.operators.aggregate import INPUT
from headrace.operators.contract import InputTimes, Operator
from headrace.operators.kinds import aggregation
from headrace.testing import OperatorContract
from headrace.testing.operator_contract import STEPS
from headrace.testing.view_contract import SECOND, T0
from headrace.views.contract import FlowSpec
from tests.operators.test_same_as_sqlite import FUNCTIONS, rows_of, spec_of


def added(a: int, b: int) -> int:
    return a + b


def halved(value: int) -> float:
    return value / 2


PICKLED = {**FUNCTIONS, "own": Aggregate("sum(x)", merge=added, finish=halved)}


class Windows(OperatorContract):
    kind = "fixed"
    values = True

    @pytest.fixture(params=[*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))])
    def batches(self, request: pytest.FixtureRequest) -> list[Any]:
        dice = random.Random(request.param)
        return [self.batch(dice, number) for number in range(STEPS)]

    def spec(self) -> FlowSpec:
        return spec_of(self.kind, self.values)

    def operator(self) -> Operator:
        return aggregation(self.spec(), PICKLED)

    def batch(self, dice: random.Random, number: int) -> Mapping[str, pa.Table]:
        records = [
            (
                dice.choice(["a", "b", None]),
                dice.choice([None, 1, 2, 3, -1]),
                5 * number - dice.choice([0, 0, 1, 2, 5, 9]),
                dice.choice([0, 0, 1]),
            )
            for _ in range(dice.choice([1, 3, 12]))
        ]
        rows = rows_of(self.spec(), records)
        return {INPUT: rows}

    def times(self, number: int) -> InputTimes:
        return InputTimes(T0 + (5 * number - 2) * SECOND, T0 + (5 * number - 14) * SECOND)


class TestFixed(Windows):
    pass


class TestAdded(Windows):
    """Nothing but sums, least and greatest values: the store adds."""

    values = False


class TestCalendar(Windows):
    kind = "calendar"


class TestCumulative(Windows):
    kind = "cumulative"


class TestNone(Windows):
    kind = "none"


class TestSessions(Windows):
    kind = "session"


class TestSliding(Windows):
    kind = "sliding"


class TestGroupsThatGo(Windows):
    kind = "lives"
    values = False

    def times(self, number: int) -> InputTimes:  # noqa: ARG002
        return InputTimes(None, None)
