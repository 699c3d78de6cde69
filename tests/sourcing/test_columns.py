"""Objects as typed columns: what has one comes back equal, what has none says so."""

from __future__ import annotations

import enum
import typing
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from headrace.errors import InvalidArgument
from headrace.sourcing.columns import column_of, is_fixed


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(NamedTuple):
    x: float
    y: float


class Address(BaseModel):
    zip: str
    lines: list[str] = []


@dataclass(frozen=True)
class Everything:
    text: str
    whole: int
    real: float
    yes: bool
    raw: bytes
    money: Decimal
    at: datetime
    day: date
    took: timedelta
    id: uuid.UUID
    colour: Colour
    size: Literal["s", "m"]
    maybe: str | None
    numbers: list[int]
    names: frozenset[str]
    pair: tuple[int, ...]
    counts: dict[str, int]
    place: Place | None
    address: Address
    loose: Any = field(default=None)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LONGS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
THINGS = st.builds(
    Everything,
    *(TEXT, LONGS, st.floats(allow_nan=False), st.booleans(), st.binary(max_size=5)),
    st.decimals(-(10**9), 10**9, places=4),
    TIMES,
    st.dates(),
    st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
    *(st.uuids(), st.sampled_from(Colour), st.sampled_from(["s", "m"]), st.none() | TEXT),
    *(st.lists(LONGS, max_size=3), st.frozensets(TEXT, max_size=3), st.lists(LONGS, max_size=3).map(tuple)),
    st.dictionaries(TEXT, LONGS, max_size=3),
    st.none() | st.builds(Place, st.floats(allow_nan=False), st.floats(allow_nan=False)),
    st.builds(Address, zip=TEXT, lines=st.lists(TEXT, max_size=2)),
    st.none() | st.dictionaries(TEXT, st.integers(0, 9) | TEXT, max_size=2),
)


@given(THINGS)
def test_an_object_comes_back_equal(thing: Everything) -> None:
    column = column_of(Everything, "event")
    assert column.type is not None
    (value,) = pa.array([column.store(thing)], column.type).to_pylist()
    assert column.load(value) == thing


def test_times_of_any_zone_are_the_same_instant() -> None:
    column = column_of(datetime, "at")
    assert column.store(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == datetime(
        2026, 1, 1, tzinfo=UTC
    )


@dataclass
class Empty:
    pass


def test_a_class_without_fields_needs_no_column() -> None:
    column = column_of(Empty, "event")
    assert column.type is None and column.load(column.store(Empty())) == Empty()


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (int | str, "of several types"),
        (tuple[int, str], "tuple\\[X, ...\\]"),
        (dict[int, str], "keys of a dict are text"),
        (complex, "has no column"),
        (Literal[1, "a"], "several types"),
        (list[Empty], "has no fields"),
        (typing.Callable, "has no column"),
    ],
)
def test_what_has_no_column_says_so(hint: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        column_of(hint, "Reserved.by")
    assert caught.value.argument == "Reserved.by"


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        *((str, 1), (int, True), (int, "1"), (bool, 1), (float, True), (bytes, "a"), (Decimal, 1.5)),
        *((datetime, datetime(2026, 1, 1)), (date, datetime(2026, 1, 1, tzinfo=UTC)), (Place, (1.0, 2.0))),
        *((Any, (1, 2)), (Any, {1: 2}), (Any, Decimal(1)), (dict, {"a": {1}})),
        *((uuid.UUID, "1"), (Colour, "red"), (Literal["s", "m"], "l"), (timedelta, 5), (list[str], "abc")),
        *((dict[str, int], [("a", 1)]), (tuple[int, ...], iter([1]))),
        (datetime, datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
    ],
)
def test_a_value_of_another_type_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        column_of(hint, "event").store(value)


def test_a_class_that_has_itself_in_it_has_no_column() -> None:
    with pytest.raises(InvalidArgument, match="has itself in it"):
        column_of(Nested, "event")


class Flag(NamedTuple):
    pass


@dataclass
class Flagged:
    by: str
    flag: Flag | None = None


def test_a_field_of_a_class_without_fields_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has no fields") as caught:
        column_of(Flagged, "event")
    assert caught.value.argument == "Flagged.flag"


@dataclass
class Changing:
    items: tuple[str, ...]
    names: list[str]


@dataclass(frozen=True)
class Holding:
    held: Changing | None = None


@dataclass(frozen=True)
class Nested:
    inner: Nested | None = None


@pytest.mark.parametrize(
    ("value", "fixed"),
    [
        *((1, True), ("a", True), ((1, ("a", None)), True), (frozenset("ab"), True), (Colour.RED, True)),
        *(((1, [2]), False), ([1], False), (Holding(), False), (Nested(), False), (Changing((), []), False)),
        *((Place(1, 2), True), (Address(zip="1"), False), (datetime(2026, 1, 1, tzinfo=UTC), True)),
    ],
)
def test_what_nobody_can_change(value: Any, fixed: bool) -> None:
    assert is_fixed(value) is fixed
