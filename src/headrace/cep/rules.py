"""Rules: patterns as texts that come from a topic while programs run. Owns how a rule is written, and what is refused
because nobody has looked at it before it runs: what needs Spark, and what has no bound. Pure.

A rule is a condition on one record, `amount > 500`, or a pattern in clauses of SQL:

    MEASURES sum(small.amount) AS total PATTERN (small+ big) WITHIN '10 minutes' DEFINE small AS …, big AS …

A condition is a pattern of one record, whose measures are the columns that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa

from headrace.cep import expressions
from headrace.cep.definition import TAKEN, Pattern, parts_of
from headrace.cep.evaluate import is_of_one_row
from headrace.cep.expressions import Column, walk
from headrace.cep.fitting import check_conditions, measure_types
from headrace.cep.matcher import Limits
from headrace.cep.recognize import match_recognize
from headrace.durations import format_duration
from headrace.errors import InvalidArgument, InvalidRule

__all__ = ["LIMITS", "check_rule", "parse_rule", "rule_text"]

CHARACTERS_MAX, STEPS_MAX = 8_192, 200
LIMITS = Limits(rows=10_000, steps=20_000)
"""Of an attempt of a rule: a rule is written by others than the program, and may take a tenth of the steps."""
RECORD = "record"
"""The symbol of a condition on one record."""
CLAUSE = re.compile(
    r"\s*(MATCH_RECOGNIZE\s*\(|PARTITION\s+BY\s|ORDER\s+BY\s|MEASURES\s+[^\s=<>!+*/%-]|ONE\s+ROW\s+PER\s|ALL\s+ROWS\s+PER\s"
    r"|AFTER\s+MATCH\s|PATTERN\s*\()",
    re.IGNORECASE,
)
SKIPS = {"to_next": "TO NEXT ROW", "to_first": "TO FIRST {}", "to_last": "TO LAST {}"}


def check_rule(text: str, columns: pa.Schema, longest_us: int) -> Pattern:
    """The rule as a pattern over these columns; InvalidRule says why it is none. `longest_us`: the most that its
    `within` may be."""
    found = parse_rule(text)
    if found.within_us > longest_us:
        longest = format_duration(longest_us)
        _refuse(text, f"is WITHIN {format_duration(found.within_us)!r}, and rules here have at most {longest!r}")
    schema = {each.name: each.type for each in columns}
    try:
        check_conditions(found, schema)
        measure_types(found, schema)
    except InvalidArgument as error:
        _refuse(text, error.why)
    return found


def parse_rule(text: str) -> Pattern:
    """What can be said of a rule without the columns of the records."""
    if not isinstance(text, str) or not text.strip():
        _refuse(str(text), "must be a condition, as amount > 500, or PATTERN (a b) WITHIN '1 hour' DEFINE a AS …")
    if len(text) > CHARACTERS_MAX:
        _refuse(text, f"is longer than {CHARACTERS_MAX:,} characters")
    try:
        found = replace(match_recognize(text), closed=True) if CLAUSE.match(text) else _condition(text)
        _check(text, found)
    except InvalidArgument as error:
        _refuse(text, error.why)
    return found


def _refuse(text: str, why: str) -> NoReturn:
    raise InvalidRule(text, why)


def _condition(text: str) -> Pattern:
    tree = expressions.parse(text, (RECORD,), argument="rule", of=RECORD)
    if not is_of_one_row(tree):
        _refuse(text, "looks at several records: write PATTERN (…) WITHIN … DEFINE …")
    named = dict.fromkeys(each.name for each in walk(tree) if isinstance(each, Column))
    shown = [name for name in named if not name.startswith(("_", "/")) and name.lower() not in TAKEN]
    measures = tuple((name, "`{}`".format(name.replace("`", "``"))) for name in shown)
    return Pattern(RECORD, ((RECORD, text),), 0, measures, closed=True)


def _check(text: str, pattern: Pattern) -> None:
    for given, clause in ((pattern.by, "PARTITION BY"), (pattern.order_by, "ORDER BY")):
        if given:
            _refuse(text, f"has {clause}, which is not a rule's to say: match(rules, by=…) does. Leave it out")
    if pattern.rows == "all" or pattern.timed_out:
        why = "has ALL ROWS PER MATCH" if pattern.rows == "all" else "asks for timed_out=True"
        _refuse(text, f"{why}: a rule has one row for each match. Leave it out")
    parts = parts_of(pattern)
    if parts.computed:
        some = next(iter(parts.computed.values()))
        why = f"{some!r} is not understood, or needs Spark, and no code of a rule runs. Rules have comparisons,"
        _refuse(text, f"{why} arithmetic, AND OR NOT, IS NULL, IN, BETWEEN, and first last prev count sum avg min max")
    if len(parts.program.code) > STEPS_MAX:
        _refuse(text, f"has {len(parts.program.code)} steps, written out; {STEPS_MAX} are allowed")


def rule_text(pattern: Pattern) -> str:
    """A pattern as the text of a rule, which means the same. InvalidRule if it cannot be written so."""
    wanted = replace(pattern, closed=True)
    _check(str(pattern), wanted)
    clauses = [f"PATTERN ({pattern.text})", f"WITHIN '{format_duration(pattern.within_us)}'"]
    how, _, symbol = pattern.skip.partition(":")
    if how in SKIPS:
        clauses.insert(0, f"AFTER MATCH SKIP {SKIPS[how].format(symbol.strip())}")
    if pattern.measures:
        clauses.insert(0, f"MEASURES {', '.join(f'{said} AS {_name(name)}' for name, said in pattern.measures)}")
    if pattern.define:
        clauses.append(f"DEFINE {', '.join(f'{name} AS {said}' for name, said in pattern.define)}")
    text = " ".join(clauses)
    if _meaning(parse_rule(text)) != _meaning(wanted):
        _refuse(str(pattern), f"is read as another one when it is written as a text: {text}")
    return text


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`"


def _meaning(pattern: Pattern) -> tuple[object, ...]:
    parts = parts_of(pattern)
    return parts.program, parts.skip_to, pattern.within_us, parts.measure_trees, _trees(pattern)


def _trees(pattern: Pattern) -> Mapping[str, object]:
    return {each.symbol: (each.row, each.history) for each in parts_of(pattern).conditions}
