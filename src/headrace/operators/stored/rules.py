"""Records that match rules: `stream.match(rules, by=…)`. Owns for which records each version of a rule counts, and
which rules are accepted. What matches is `MatchPattern`'s: each version is a pattern over the records that it sees.

A version sees the records that arrived after it, until its rule is put again or removed. Its matches are those of its
pattern in these records alone, and its time stands still at its end: what it still waits for then, an event, an absence
or a time-out, does not come any more, and what it has found stays. So all matches are a function of the two logs. Rules
are read to their end before the records, so a step has all versions that it needs.

State is that of patterns, with rule and version in front of the key: so the versions share its tables, and no version
sees another one's rows. A version is kept until no record to come arrived before its end, and no event of it is kept.

Whether a rule is accepted depends on the rules before it alone, which come from one partition, in its order. One that
is not accepted ends the version before it, like a removal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cep.definition import Pattern
from headrace.cep.rules import LIMITS, check_rule
from headrace.errors import HeadraceError, InvalidArgument, InvalidRule, UnknownColumn
from headrace.operators.contract import REASON, Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.rows import ID, gone_and_come
from headrace.operators.patterns.judging import Judged, judge, ledger_of
from headrace.operators.patterns.match import EVENTS, INPUT, NEVER, MatchPattern, Span
from headrace.operators.records import columns_of
from headrace.operators.result_rows import column
from headrace.operators.stored.version_rows import EVERY, VERSIONS, VersionRows
from headrace.operators.stored.versions import FOREVER, Version, counts_from_to
from headrace.views.contract import PARTIALS
from headrace.views.keyed import State, TableSpec, Writes
from headrace.views.values import us_column

__all__ = ["FACTS", "RULES", "MatchRules"]

FACTS, RULES = "facts", "rules"
RULE, VERSION = "rule", "version"
NOTHING = Pattern("record", (), 0, closed=True)


@dataclass(frozen=True)
class _Counts:
    """A version, and for which arrivals it counts: later than `since_us`, up to `until_us`."""

    version: Version
    since_us: int
    until_us: int

    @property
    def named(self) -> tuple[str, str]:
        """As its rows in the state are named."""
        return self.version.key[-1], self.version.name


@dataclass(frozen=True)
class MatchRules:
    """`facts`: the columns of the records; `rules`: those of the rules. `columns`: those of the records that rules may
    name. `called`: the topic of the rules. `longest_us`: the most that the `within` of a rule may be; `most`: so many
    rules there may be."""

    facts: pa.Schema
    rules: pa.Schema
    columns: pa.Schema
    by: tuple[str, ...]
    time: str
    called: str
    longest_us: int
    most: int
    grace_us: int
    late_us: int
    retracts: bool = False

    def __post_init__(self) -> None:
        known = self.facts.names
        for name in (*self.columns.names, *self.by):
            if name not in known:
                raise UnknownColumn("match", name, list(known))
        for each in self.columns:
            if not self.facts.field(each.name).type.equals(each.type):
                why = f"is {self.facts.field(each.name).type} in the records, and {each.type} in the rules' schema"
                raise InvalidArgument("schema", each.name, f"{why}: give both one type")
        for name in self.by:
            if name.lower() in (RULE, VERSION):
                raise InvalidArgument("by", name, "is also a column of matches: rename it before, in .transform(…)")
        assert self._nothing

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input(FACTS, columns_of(self.facts), (), changes=self.retracts),
            Input(RULES, columns_of(self.rules), (), changes=True, first=True),
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self._version_rows.spec, *self._nothing.tables)

    @property
    def output(self) -> Output:
        return self._nothing.output

    @property
    def timers(self) -> tuple[Timer, ...]:
        return (Timer(PARTIALS, FACTS),)

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def reset(self) -> None:
        """It knows nothing between steps."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        """As if each rule had the longest `within`: so a new rule changes nothing of it."""
        return self._longest.ahead({INPUT: times[FACTS]})

    def behind_us(self, column: str | None) -> int | None:
        """How far the times in a column of the rows may be before `match_end`; None: that is not known."""
        return self._longest.behind_us(column)

    @cached_property
    def _version_rows(self) -> VersionRows:
        return VersionRows((RULE,))

    @cached_property
    def _nothing(self) -> MatchPattern:
        return self._matching(NOTHING)

    @cached_property
    def _longest(self) -> MatchPattern:
        return self._matching(replace(NOTHING, within_us=self.longest_us))

    def _matching(self, pattern: Pattern) -> MatchPattern:
        """The columns of its tables and of its matches are the same for each pattern."""
        own = {name: self.facts.field(name).type for name in (*self.columns.names, *self.by, self.time)}
        return MatchPattern(
            pa.schema([(RULE, pa.string()), (VERSION, pa.string()), *own.items()]),
            (RULE, VERSION, *self.by),
            self.time,
            pattern,
            self.grace_us,
            self.late_us,
            retracts=True,
            keeps=tuple(self.columns.names),
            together=True,
            limits=LIMITS,
        )

    @cached_property
    def _matchers(self) -> dict[str, MatchPattern]:
        """By text of rule, of those that were accepted."""
        return {}

    def _matcher(self, text: str) -> MatchPattern:
        """InvalidRule if there is no such rule over these columns."""
        if text not in self._matchers:
            if len(self._matchers) > 4 * self.most:
                self._matchers.clear()
            self._matchers[text] = self._matching(check_rule(text, self.columns, self.longest_us))
        return self._matchers[text]

    # -- a step ----------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        *,
        changes: bool,  # noqa: ARG002 (what goes on is what the step is for)
    ) -> Step:
        stored = self._version_rows.read(state.scan(VERSIONS, EVERY))
        refused: dict[tuple[int, int], HeadraceError] = {}
        new = self._accepted(stored, self._version_rows.of_records(batch[RULES]), refused) if RULES in batch else []
        ends_before = {each.version.at: each.until_us for each in _counting(stored)}
        counting = _counting([*stored, *new])

        went, came = gone_and_come(batch[FACTS]) if FACTS in batch else (None, None)
        gone, come = (judge(each, self.time, self.grace_us, self.late_us, self.facts.names) for each in (went, came))
        now = times[FACTS]
        frontier_us = -NEVER if now.frontier_us is None else now.frontier_us
        bound_us = -NEVER if now.reach_us is None else now.reach_us - self.grace_us - self.late_us
        due = _by_version(state.due(PARTIALS, frontier_us - 1) if frontier_us > -NEVER else None)

        steps: list[Step] = []
        for each in counting:
            if each.version.text is None:
                continue
            ended_before_us = ends_before.get(each.version.at, FOREVER)
            seen_gone, seen_come = self._seen(each, gone), self._seen(each, come)
            ended = self._keys_of(each, state) if ended_before_us != each.until_us else None
            over = due.get(each.named)
            if ended is None and over is None and not len(seen_gone.late) + len(seen_come.late):
                continue
            told_us = NEVER if ended_before_us == FOREVER else ended_before_us
            span = Span(frontier_us, bound_us, NEVER if each.until_us == FOREVER else each.until_us, told_us)
            made = self._matcher(each.version.text).fold(seen_gone, seen_come, over, state, span, ended)
            steps.append(self._told(each, made))

        puts, deletes = (_together([getattr(each.writes, what) for each in steps]) for what in ("puts", "deletes"))
        written = _by_version(puts.get(EVENTS))
        forgotten = self._forgotten(counting, now.arrived_us, times[RULES].reach_us, written, state)
        versions = self._version_rows.writes(new, forgotten)
        drops = {} if bound_us == -NEVER else {EVENTS: bound_us - 1}
        return Step(
            Writes({**puts, **versions.puts}, {}, {**deletes, **versions.deletes}, drops),
            _joined(each.changes for each in steps),
            ledger_of(gone, come),
            come.dropped if come.dropped is not None and come.dropped.num_rows else None,
            _joined(each.letters for each in steps),
            self._version_rows.letters(batch[RULES], refused) if refused else None,
        )

    def _accepted(
        self, stored: list[Version], records: list[Version], refused: dict[tuple[int, int], HeadraceError]
    ) -> list[Version]:
        """The versions of records, without a text where they are refused."""
        active = {each.version.key for each in _counting(stored) if each.until_us == FOREVER and each.version.text}
        out = []
        for each in sorted(records, key=lambda version: version.place):
            made = each
            if each.text is not None:
                try:
                    self._matcher(each.text)
                    if each.key not in active and len(active) >= self.most:
                        raise InvalidRule(each.text, f"there are {self.most:,} rules, which is all that there may be")
                except InvalidRule as error:
                    error.rule = each.key[-1]
                    refused[each.place[1:]] = error
                    made = replace(each, text=None)
            (active.discard if made.text is None else active.add)(made.key)
            out.append(made)
        return out

    def _seen(self, each: _Counts, judged: Judged) -> Judged:
        """Of accepted records those that the version sees, with its name."""
        if judged.records is None or not judged.records.num_rows:
            return judged
        arrived_us = us_column(judged.records["_arrived_at"])
        some = judged.only((each.since_us < arrived_us) & (arrived_us <= each.until_us))
        assert some.records is not None
        records = some.records
        for name, value in zip((RULE, VERSION), each.named, strict=True):
            if name in records.column_names:  # the records' own, which no rule may name
                records = records.drop_columns([name])
            records = records.append_column(name, pa.repeat(value, records.num_rows))
        return replace(some, records=records)

    def _keys_of(self, each: _Counts, state: State) -> pa.Table:
        """Of all events that are kept for a version."""
        rows = state.scan(EVENTS, _prefixes([each]))
        return rows.select([RULE, VERSION, *self.by])

    def _told(self, each: _Counts, made: Step) -> Step:
        """Matches with ids of their own, and letters with the columns of records."""
        changes, letters = made.changes, made.letters
        if changes is not None:
            suffix = f"|{each.version.version_id(self.called)}"
            ids = pc.binary_join_element_wise(column(changes, ID), pa.scalar(suffix), "")
            changes = changes.set_column(changes.column_names.index(ID), ID, ids)
        if letters is not None:
            why = pc.binary_join_element_wise(f"rule {each.version.key[-1]!r}: ", column(letters, REASON), "")
            letters = letters.set_column(letters.column_names.index(REASON), REASON, why)
            letters = letters.drop_columns([RULE, VERSION])
        return replace(made, changes=changes, letters=letters)

    def _forgotten(
        self,
        counting: list[_Counts],
        arrives_us: int | None,
        reach_us: int | None,
        written: Mapping[tuple[str, str], pa.Table],
        state: State,
    ) -> list[Version]:
        """The versions that nothing needs any more, the oldest ones of each rule: no record is to come that arrived
        before their end, and no event of them is kept."""
        if arrives_us is None or reach_us is None:
            return []
        from_us = min(arrives_us, reach_us)
        ended = [each for each in counting if _end_us(each) < from_us]
        used = set(written)
        if ended:
            used |= set(_by_version(state.scan(EVENTS, _prefixes(ended), limit=1)))
        out = []
        for _, some in groupby(ended, key=lambda each: each.version.key):
            for each in some:
                if each.named in used:
                    break
                out.append(each.version)
        return out


def _counting(versions: list[Version]) -> list[_Counts]:
    """By rule, in order."""
    out = []
    for _, found in groupby(sorted(versions, key=lambda each: each.at), key=lambda each: each.key):
        some = [*found]
        counts = counts_from_to([each.place[0] for each in some])
        out += [_Counts(each, *of) for each, of in zip(some, counts, strict=True)]
    return out


def _end_us(each: _Counts) -> int:
    """When it counts for nothing any more; a removal ends where it begins."""
    return each.since_us if each.version.text is None and each.until_us == FOREVER else each.until_us


def _prefixes(some: list[_Counts]) -> pa.Table:
    named = [each.named for each in some]
    rules, versions = (pa.array([each[at] for each in named], pa.string()) for at in (0, 1))
    return pa.table({RULE: rules, VERSION: versions})


def _by_version(rows: pa.Table | None) -> dict[tuple[str, str], pa.Table]:
    if rows is None or not rows.num_rows:
        return {}
    named = list(zip(rows[RULE].to_pylist(), rows[VERSION].to_pylist(), strict=True))
    places: dict[tuple[str, str], list[int]] = {}
    for at, name in enumerate(named):
        places.setdefault(name, []).append(at)
    return {name: rows.take(pa.array(np.array(some))) for name, some in places.items()}


def _together(written: Iterable[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    out: dict[str, list[pa.Table]] = {}
    for each in written:
        for name, rows in each.items():
            out.setdefault(name, []).append(rows)
    return {name: pa.concat_tables(some) for name, some in out.items()}


def _joined(some: Iterable[pa.Table | None]) -> pa.Table | None:
    found = [each for each in some if each is not None]
    return pa.concat_tables(found) if found else None
