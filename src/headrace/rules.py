"""Rules, as programs use them: put, changed, removed and explained while flows run. Owns no rows: they are a table,
whose topic the flows read that match with them.

    limits = app.rules("limits", "card string, amount double")
    app.stream(payments).match(limits, by="card").to_view("alarms")
    limits.put("large", "amount > 500")"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.cep.definition import Pattern, parts_of
from headrace.cep.rules import check_rule, parse_rule, rule_text
from headrace.durations import Duration, duration_us, format_duration
from headrace.errors import COLUMNS_NAMED_MAX, InvalidArgument, InvalidRule, UnknownRule
from headrace.flows import graph
from headrace.names import check_name as check_topic_name
from headrace.operators.stored.matching import FACTS, RULES, MatchingRules
from headrace.schema import schema_from, to_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.app import App
    from headrace.log.contract import Appended, Record, Topic
    from headrace.table import Table
    from headrace.windows import Late

__all__ = [
    "RuleExplanation",
    "Rules",
    "check_most",
    "check_name",
    "explain_rule",
    "rules_in",
    "rules_table",
    "stored_rule",
]

NAME_MAX, MOST = 1_000, 1_000
TAKEN = ("rule", "version", "measures")


@dataclass(frozen=True)
class RuleExplanation:
    """A rule. `pattern`, `define`, `within`, `measures`: as it was understood; a condition on one record is a pattern
    of one. `steps`: of the pattern, written out. `error`: why it matches nothing, if it is wrong; then these are
    empty."""

    rule: str
    version: str
    effective: datetime
    text: str
    pattern: str | None = None
    define: Mapping[str, str] | None = None
    within: str | None = None
    measures: Mapping[str, str] | None = None
    steps: int = 0
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Its facts by name."""
        return asdict(self)


class Rules:
    """Rules: put, changed, removed, explained. `schema`: the columns of the records that they may name. `within`: the
    most that a rule's own may be; `most`: so many rules there may be."""

    def __init__(self, table: Table, schema: Any, within: Duration, most: int) -> None:
        self.table, self.schema, self.most = table, schema_from(schema), most
        self.within_us = duration_us(within, argument="within")
        for name in self.schema.names:
            if name.lower() in TAKEN or name.startswith("_"):
                why = "is a column of matches, or headrace's own: rename it before, in .transform(…)"
                raise InvalidArgument("schema", name, why)
        if isinstance(most, bool) or not isinstance(most, int) or not 0 < most <= MOST:
            raise InvalidArgument("most", most, f"must be between 1 and {MOST:,}: each rule looks at each record")

    @property
    def name(self) -> str:
        """What they are called: a table and its topic."""
        return self.table.name

    def __repr__(self) -> str:
        return f"<rules {self.name!r} of {self.table.app!r}>"

    # -- writing ---------------------------------------------------------------------------------------

    def put(self, rule: str, says: str | Pattern) -> Appended:
        """Stores a rule by its name, in place of the one of that name: a condition on one record, `"amount > 500"`, a
        pattern in clauses, `"PATTERN (a b) WITHIN '1 hour' DEFINE …"`, or `hr.pattern(…)`. It matches records that
        arrive from then on. InvalidRule says why a rule is refused: nothing is stored then."""
        return self.put_all({rule: says})

    def put_all(self, rules: Mapping[str, str | Pattern]) -> Appended:
        """Stores many rules, by name, at once: all, or none if one is refused."""
        rows = []
        for rule, says in rules.items():
            check_name(rule)
            try:
                rows.append({"rule": rule, "text": self.check(says)})
            except InvalidRule as error:
                error.rule = rule
                raise
        check_most({*rules_in(self.table.topic)}, rows, self.most)
        return self.table.upsert(rows)

    def remove(self, rule: str) -> Appended:
        """From then on it matches nothing; what it has found stays. UnknownRule if there is none."""
        stored_rule(self.table.topic, rule)
        return self.table.delete([(rule,)])

    # -- reading ---------------------------------------------------------------------------------------

    def check(self, says: str | Pattern) -> str:
        """The text that `put` would store; InvalidRule if it would refuse. Stores nothing."""
        text = rule_text(says) if isinstance(says, Pattern) else says
        check_rule(text, self.schema, self.within_us)
        return text

    def list(self) -> dict[str, str]:
        """The rules as they are now: by name, their texts."""
        return {rule: record.value["text"] for rule, record in rules_in(self.table.topic).items()}

    def explain(self, rule: str) -> RuleExplanation:
        """How a rule is understood. UnknownRule if there is none."""
        return explain_rule(stored_rule(self.table.topic, rule), self.schema, self.within_us)

    # -- in a program ----------------------------------------------------------------------------------

    def _matching(self, by: Sequence[str], grace_us: int, late: Late, idle_us: int, absent_us: int) -> MatchingRules:
        columns = to_ddl(self.schema)
        return MatchingRules(
            self.name, columns, tuple(by), self.within_us, self.most, grace_us, late, idle_us, absent_us
        )

    def _sides(self, records: graph.Records) -> tuple[tuple[str, graph.Records], ...]:
        self.table.topic.alter_at_first_use(cleanup="delete")  # records may be older than a rule's last version
        return ((FACTS, records), (RULES, graph.Source(self.table.topic)))


def rules_table(app: App, name: str, settings: Mapping[str, Any]) -> Table:
    check_topic_name(name, argument="name")
    for given in ("key", "event_time", "history", "keep", "loads"):
        if given in settings:
            raise InvalidArgument(given, settings[given], "rules have no such setting: leave it out")
    if settings.get("partitions", 1) != 1:
        why = "must be 1: whether a rule is accepted depends on those before it"
        raise InvalidArgument("partitions", settings["partitions"], why)
    return app.table(name, "rule string, text string", key="rule", **settings)


def check_name(rule: str) -> None:
    if not isinstance(rule, str) or not 0 < len(rule) <= NAME_MAX:
        raise InvalidArgument("rule", rule, f"must be a name of 1 to {NAME_MAX:,} characters")


def check_most(known: set[str], rows: Sequence[Mapping[str, str]], most: int) -> None:
    """InvalidRule if there would be more rules than may be."""
    for row in rows:
        if row["rule"] not in known and len(known) >= most:
            why = f"there are {most:,} rules, which is all that there may be. Remove one before"
            raise InvalidRule(row["text"], why, row["rule"])
        known.add(row["rule"])


def rules_in(topic: Topic) -> dict[str, Record]:
    """By name, the records of the rules as they are now."""
    latest: dict[str, Record] = {}
    for record in topic.records(start="earliest"):
        latest[record.value["rule"]] = record
    return {rule: record for rule, record in latest.items() if record.value.get("_op") != "delete"}


def stored_rule(topic: Topic, rule: str) -> Record:
    """The record of a rule, as it is now."""
    found = rules_in(topic)
    if rule not in found:
        raise UnknownRule(topic.name, rule, sorted(map(str, found))[: 10 * COLUMNS_NAMED_MAX])
    return found[rule]


def explain_rule(record: Record, schema: pa.Schema | None, within_us: int | None) -> RuleExplanation:
    """`schema`, `within_us`: as far as they are known."""
    text = record.value["text"] or ""
    facts = (record.value["rule"], f"{record.partition}:{record.offset}", record.arrived_at, text)
    try:
        found = parse_rule(text) if schema is None or within_us is None else check_rule(text, schema, within_us)
    except InvalidRule as error:
        return RuleExplanation(*facts, error=error.why)
    return RuleExplanation(
        *facts,
        found.text,
        dict(found.define),
        format_duration(found.within_us),
        dict(found.measures),
        len(parts_of(found).program.code),
    )
