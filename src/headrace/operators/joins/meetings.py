"""Steps of a program in which records of several inputs meet: what a user writes, as values. `over` makes the operator
when the columns are known. A new kind of join is an operator in a file of its own, and a class here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from headrace.durations import format_duration
from headrace.operators.contract import InputTimes
from headrace.schema import OP_COLUMN
from headrace.windows import Drop, Late

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.cep.definition import Pattern

__all__ = [
    "Enriching",
    "History",
    "How",
    "Joining",
    "Matching",
    "Meeting",
    "Missing",
    "TableJoining",
    "Tabling",
    "ViewEnriching",
    "with_op",
]

History = Literal["latest", "versions", "bitemporal"]
How = Literal["inner", "left", "right", "full"]
Missing = Literal["null", "drop", "dead_letter"]
Pairs = tuple[tuple[str, str], ...]
"""Columns of the one side, each with that of the other."""
OP = OP_COLUMN
IDLE_US, ABSENT_US = 30_000_000, 3_600_000_000


class Meeting(Protocol):
    """`over` makes the operator, an `Operator` whose inputs are called as the step's sides."""

    @property
    def called(self) -> str:
        """What a helper flow is called behind its parent's name."""

    @property
    def first(self) -> tuple[str, ...]:
        """The inputs that are read to an end that is looked up after the ends of the others: tables."""

    @property
    def late(self) -> Late: ...

    @property
    def idle_us(self) -> int: ...

    @property
    def absent_us(self) -> int: ...

    def over(self, schemas: Mapping[str, pa.Schema], times: Mapping[str, str | None], *, retracts: bool) -> Any:
        """`schemas`: the columns of each side's records; `times`: their event times. `retracts`: whether records that
        are no table's can be taken back."""

    def time(self, times: Mapping[str, str | None]) -> str | None:
        """The column with the event time of what comes out; `times`: that of each side."""

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        """Rows whose `FINAL_AT` is before that are final."""


@dataclass(frozen=True)
class Tabling:
    """A table's own records: what is there of each key, and what was."""

    key: tuple[str, ...]
    valid_from: str | None
    history: History
    keep_us: int | None = None
    late: Late = field(default_factory=Drop)
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    called: ClassVar[str] = "table"
    first: ClassVar[tuple[str, ...]] = ("records",)

    def over(
        self,
        schemas: Mapping[str, pa.Schema],
        times: Mapping[str, str | None],  # noqa: ARG002
        *,
        retracts: bool,  # noqa: ARG002
    ) -> Any:
        from headrace.operators.joins.table import TableRows

        return TableRows(_without_op(schemas["records"]), self.key, self.valid_from, self.history, self.keep_us)

    def time(self, times: Mapping[str, str | None]) -> str | None:  # noqa: ARG002
        return None

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:  # noqa: ARG002
        return None

    def __str__(self) -> str:
        keep = "" if self.keep_us is None else f", keep={format_duration(self.keep_us)!r}"
        return f"table(key={self.key!r}, history={self.history!r}{keep})"


@dataclass(frozen=True)
class Enriching:
    """`stream.enrich(table, …)`: each record with the row of a table that was valid, or there, at its time."""

    table: str
    on: Pairs
    as_of: str | None
    valid_from: str | None
    columns: Pairs
    grace_us: int
    late: Late
    missing: Missing
    keep_us: int | None = None
    loads: bool = False
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    called: ClassVar[str] = "enrich"
    first: ClassVar[tuple[str, ...]] = ("table",)

    def over(
        self,
        schemas: Mapping[str, pa.Schema],
        times: Mapping[str, str | None],  # noqa: ARG002
        *,
        retracts: bool,  # noqa: ARG002
    ) -> Any:
        from headrace.operators.joins.enrich import Enrich

        return Enrich(
            schemas["facts"],
            _without_op(schemas["table"]),
            self.on,
            self.as_of,
            self.valid_from if self.as_of is not None else None,
            self.columns,
            f"{self.table}_version",
            self.grace_us if self.as_of is not None else 0,  # without it, what arrives later is not what was there
            self.late.within_us if self.as_of is not None else 0,
            self.missing,
            self.keep_us,
            self.loads,
        )

    def time(self, times: Mapping[str, str | None]) -> str | None:
        return times["facts"]

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        return times["table"].frontier_us

    def __str__(self) -> str:
        said = f"enrich({self.table!r}, on={dict(self.on)}, as_of={self.as_of!r}, columns={dict(self.columns)}"
        said += "" if self.keep_us is None else f", keep={format_duration(self.keep_us)!r}"
        said += ", loads=True" if self.loads else ""
        return f"{said}, grace={format_duration(self.grace_us)!r}, late={self.late}, missing={self.missing!r})"


@dataclass(frozen=True)
class ViewEnriching:
    """`stream.enrich(view, …)`: each record with the view's row whose window ended last by its time."""

    table: str
    on: Pairs
    as_of: str
    columns: Pairs
    missing: Missing
    late: Late = field(default_factory=Drop)
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    called: ClassVar[str] = "enrich"
    first: ClassVar[tuple[str, ...]] = ("table",)

    def over(
        self,
        schemas: Mapping[str, pa.Schema],
        times: Mapping[str, str | None],  # noqa: ARG002
        *,
        retracts: bool,  # noqa: ARG002
    ) -> Any:
        from headrace.operators.joins.enrich_view import EnrichView

        view, receipt = _without_op(schemas["table"]), f"{self.table}_version"
        return EnrichView(schemas["facts"], view, self.on, self.as_of, self.columns, receipt, self.missing)

    def time(self, times: Mapping[str, str | None]) -> str | None:
        return times["facts"]

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        return times["table"].frontier_us

    def __str__(self) -> str:
        said = f"enrich(view {self.table!r}, on={dict(self.on)}, as_of={self.as_of!r}, columns={dict(self.columns)}"
        return f"{said}, missing={self.missing!r})"


@dataclass(frozen=True)
class Joining:
    """`stream.join(other, …)`: pairs of records whose times are close."""

    on: Pairs
    before_us: int
    after_us: int
    how: How
    suffix: str
    grace_us: int
    late: Late
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    by: str = "joined_at"
    """The column with the time of what comes out: windows behind it may go by the time of one of the sides."""
    called: ClassVar[str] = "join"
    first: ClassVar[tuple[str, ...]] = ()

    def over(self, schemas: Mapping[str, pa.Schema], times: Mapping[str, str | None], *, retracts: bool) -> Any:
        from headrace.operators.joins.interval_join import IntervalJoin

        left, right = times["left"], times["right"]
        assert left is not None and right is not None, "the compiler has looked"
        return IntervalJoin(
            schemas["left"],
            schemas["right"],
            self.on,
            left,
            right,
            self.before_us,
            self.after_us,
            self.how,
            self.grace_us,
            self.late.within_us,
            self.suffix,
            retracts,
        )

    def time(self, times: Mapping[str, str | None]) -> str | None:  # noqa: ARG002
        return self.by

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        known = [times[side].frontier_us for side in ("left", "right")]
        return min((us for us in known if us is not None), default=None) if None not in known else None

    def __str__(self) -> str:
        said = f"join(on={dict(self.on)}, before={format_duration(self.before_us)!r}"
        said += f", after={format_duration(self.after_us)!r}, how={self.how!r}, suffix={self.suffix!r}"
        said += "" if self.by == "joined_at" else f", by={self.by!r}"
        return f"{said}, grace={format_duration(self.grace_us)!r}, late={self.late})"


@dataclass(frozen=True)
class Matching:
    """`stream.match(pattern, by=…)`: what matches a pattern in the records of each key."""

    pattern: Pattern
    by: tuple[str, ...]
    grace_us: int
    late: Late
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    called: ClassVar[str] = "match"
    first: ClassVar[tuple[str, ...]] = ()

    def over(self, schemas: Mapping[str, pa.Schema], times: Mapping[str, str | None], *, retracts: bool) -> Any:
        from headrace.operators.patterns.match import INPUT, MatchPattern

        time = times[INPUT]
        assert time is not None, "the compiler has looked"
        return MatchPattern(schemas[INPUT], self.by, time, self.pattern, self.grace_us, self.late.within_us, retracts)

    def time(self, times: Mapping[str, str | None]) -> str | None:  # noqa: ARG002
        return "match_end"

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        return times["events"].frontier_us

    def __str__(self) -> str:
        return f"match({self.pattern}, by={self.by!r}, grace={format_duration(self.grace_us)!r}, late={self.late})"


@dataclass(frozen=True)
class TableJoining:
    """`table.join(other, …)`: the rows of two tables, joined, as they change."""

    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    on: Pairs
    how: How
    suffix: str
    views: tuple[str, ...] = ()
    """The sides that are views."""
    valid_from: tuple[str | None, str | None] = (None, None)
    """Of tables with a history, left and right: the column with a row's valid time, by which the latest is known."""
    history: History = "latest"
    late: Late = field(default_factory=Drop)
    idle_us: int = IDLE_US
    absent_us: int = ABSENT_US
    called: ClassVar[str] = "join"
    first: ClassVar[tuple[str, ...]] = ("left", "right")

    def over(
        self,
        schemas: Mapping[str, pa.Schema],
        times: Mapping[str, str | None],  # noqa: ARG002
        *,
        retracts: bool,  # noqa: ARG002
    ) -> Any:
        from headrace.operators.joins.joined_history import JoinedHistory
        from headrace.operators.joins.table_join import TableJoin

        left, right = (_without_op(schemas[side]) for side in ("left", "right"))
        join = TableJoin(
            left, right, self.left_key, self.right_key, self.on, self.how, self.suffix, self.views, self.valid_from
        )
        return join if self.history == "latest" else JoinedHistory(join)

    def time(self, times: Mapping[str, str | None]) -> str | None:  # noqa: ARG002
        return None

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:  # noqa: ARG002
        return None

    def __str__(self) -> str:
        more = "" if self.history == "latest" else f", history={self.history!r}"
        more += f", valid_from={self.valid_from}" if any(self.valid_from) else ""
        return f"table_join(on={dict(self.on)}, how={self.how!r}, suffix={self.suffix!r}{more})"


def with_op(schema: pa.Schema) -> pa.Schema:
    """The columns of a table's records, of those of its rows."""
    import pyarrow as pa

    return schema.append(pa.field(OP, pa.string()))


def _without_op(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index(OP))
