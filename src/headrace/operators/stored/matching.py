"""A step of a program: `stream.match(rules, by=…)`. What a user writes, as a value; `rules` is the operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.durations import format_duration
from headrace.operators.contract import InputTimes
from headrace.schema import OP_COLUMN, parse_ddl
from headrace.windows import Late

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FACTS", "RULES", "MatchingRules", "rules_checked_by"]

FACTS, RULES = "facts", "rules"
WRITTEN = "match_rules("


@dataclass(frozen=True)
class MatchingRules:
    """`rules`: what they are called. `columns`: those that rules may name, as DDL. `longest_us`: the most that the
    `within` of a rule may be; `most`: so many rules there may be."""

    rules: str
    columns: str
    by: tuple[str, ...]
    longest_us: int
    most: int
    grace_us: int
    late: Late
    idle_us: int = 30_000_000
    absent_us: int = 3_600_000_000
    called: ClassVar[str] = "match"
    first: ClassVar[tuple[str, ...]] = (RULES,)

    def over(self, schemas: Mapping[str, pa.Schema], times: Mapping[str, str | None], *, retracts: bool) -> Any:
        from headrace.operators.stored.rules import MatchRules

        time = times[FACTS]
        assert time is not None, "the compiler has looked"
        rules = schemas[RULES]
        return MatchRules(
            schemas[FACTS],
            rules.remove(rules.get_field_index(OP_COLUMN)),
            parse_ddl(self.columns),
            self.by,
            time,
            self.rules,
            self.longest_us,
            self.most,
            self.grace_us,
            self.late.within_us,
            retracts,
        )

    def time(self, times: Mapping[str, str | None]) -> str | None:  # noqa: ARG002
        return "match_end"

    def final_us(self, times: Mapping[str, InputTimes]) -> int | None:
        return times[FACTS].frontier_us

    def __str__(self) -> str:
        """As it is written, to be compared with what ran before."""
        checked = {"rules": self.rules, "columns": self.columns, "within_us": self.longest_us, "most": self.most}
        said = f"{WRITTEN}{json.dumps(checked)}, by={self.by!r}"
        return f"{said}, grace={format_duration(self.grace_us)!r}, late={self.late})"


def rules_checked_by(operator: str) -> dict[str, Any] | None:
    """By what a flow checks rules, as its step is written: `columns`, `within_us`, `most`; None: it has no rules."""
    if not operator.startswith(WRITTEN):
        return None
    found: dict[str, Any]
    found, _ = json.JSONDecoder().raw_decode(operator.removeprefix(WRITTEN))
    return found
