"""`headrace rules …`: puts, removes, lists and explains rules. Reads and writes their topic; no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import (
    confirm,
    format_option,
    home_option,
    opened,
    opened_views,
    topic_argument,
    writable,
    yes_option,
)
from headrace.cli.output import note, print_one, print_rows, say

if TYPE_CHECKING:
    from headrace.log.contract import Log, Topic

LISTED = ("rule", "version", "effective", "text")


@click.group()
@home_option
def rules() -> None:
    """Put, remove, list and explain rules, which records are matched with as they come.

    TOPIC is what the program calls them: app.rules('limits', …).

    \b
    Example:
      headrace rules put limits large 'amount > 500'
    """


@rules.command()
@topic_argument
@click.argument("rule")
@click.argument("text")
@home_option
def put(topic: str, rule: str, text: str) -> None:
    """Store a rule, in place of the one of that name. It matches the records that arrive from then on.

    TEXT is a condition on one record, or a pattern in clauses of SQL. It is checked before: as it is written, and, once
    a program of this home matches with these rules, by the columns that they may name.

    \b
    Example:
      headrace rules put limits large 'amount > 500'
      headrace rules put limits thrice "PATTERN (a{3}) WITHIN '1 hour' DEFINE a AS amount > 100"
    """
    from headrace.cep.rules import check_rule, parse_rule
    from headrace.errors import InvalidRule
    from headrace.rules import check_most, check_name, rules_in
    from headrace.schema import parse_ddl

    with opened() as log:
        stored = _rules_in(log, topic)
        check_name(rule)
        known = _checked_by(topic)
        try:
            if known is None:
                parse_rule(text)
            else:
                check_rule(text, parse_ddl(known["columns"]), known["within_us"])
        except InvalidRule as error:
            error.rule = rule
            raise
        if known is not None:
            check_most({*rules_in(stored)}, [{"rule": rule, "text": text}], known["most"])
        done = stored.append({"rule": rule, "text": text, "_op": "upsert"})
        ((partition, (offset,)),) = done.ranges.items()
        say(f"stored {rule!r} in {topic}, version {partition}:{offset}")


@rules.command()
@topic_argument
@click.argument("rule")
@yes_option
@home_option
def remove(topic: str, rule: str, yes: bool) -> None:
    """Remove a rule: from then on it matches nothing. What it has found stays.

    \b
    Example:
      headrace rules remove limits large --yes
    """
    from headrace.rules import stored_rule

    with opened() as log:
        stored = _rules_in(log, topic)
        stored_rule(stored, rule)
        confirm(f"remove rule {rule!r} of {topic}", yes)
        stored.append({"rule": rule, "_op": "delete"})
        say(f"removed {rule!r} of {topic}")


@rules.command("list")
@topic_argument
@format_option
@home_option
def list_(topic: str, format_: str | None) -> None:
    """List the rules, as they are now.

    \b
    Example:
      headrace rules list limits
    """
    from headrace.rules import rules_in

    with opened() as log:
        rows = [
            {**record.value, "version": f"{record.partition}:{record.offset}", "effective": record.arrived_at}
            for record in rules_in(_rules_in(log, topic)).values()
        ]
        if not rows:
            note(f"No rules in {topic} yet: headrace rules put {topic} NAME 'amount > 500'")
            return
        print_rows([{name: row[name] for name in LISTED} for row in rows], LISTED, format_)


@rules.command()
@topic_argument
@click.argument("rule")
@format_option
@home_option
def explain(topic: str, rule: str, format_: str | None) -> None:
    """Show how a rule is understood: its pattern, its conditions and its measures; or why it matches nothing.

    \b
    Example:
      headrace rules explain limits large
    """
    from headrace.rules import explain_rule, stored_rule
    from headrace.schema import parse_ddl

    with opened() as log:
        record = stored_rule(_rules_in(log, topic), rule)
        known = _checked_by(topic)
        by = (None, None) if known is None else (parse_ddl(known["columns"]), known["within_us"])
        print_one(explain_rule(record, *by).as_json(), format_)


def _rules_in(log: Log, topic: str) -> Topic:
    from headrace.errors import InvalidArgument

    found = log.topic(writable(topic))
    if not {"rule", "text", "_op"} <= {*found.schema.names}:
        why = "has no rules: app.rules('limits', …) makes a topic of them, with the columns rule and text"
        raise InvalidArgument("topic", topic, why)
    return found


def _checked_by(topic: str) -> dict[str, Any] | None:
    """By what the flow of this home checks rules that matches with them; None: there is none yet."""
    from headrace.operators.stored.matching import RULES, rules_checked_by

    for spec in opened_views().specs():
        if dict(spec.sides).get(RULES) == topic and (found := rules_checked_by(spec.operator)) is not None:
            return found
    return None
