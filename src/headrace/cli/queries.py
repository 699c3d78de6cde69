"""`headrace queries …`: puts, removes, lists and explains stored queries. Reads and writes their topic; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
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

LISTED = ("query", "version", "effective", "text")
_tenant = click.option("--tenant", metavar="T", help="Whose query it is, where queries are stored by tenant.")


@click.group()
@home_option
def queries() -> None:
    """Put, remove, list and explain stored queries, which find records as they come.

    TOPIC is what the program calls them: app.queries('alerts').

    \b
    Example:
      headrace queries put alerts heating 'title:"heat pump" AND price < 500'
    """


@queries.command()
@topic_argument
@click.argument("query")
@click.argument("text")
@_tenant
@home_option
def put(topic: str, query: str, text: str, tenant: str | None) -> None:
    """Store a query, in place of the one of that name. It finds the records that arrive from then on.

    Where it is wrong in itself, it is refused. Whether the records have its columns is known to the flow that searches
    with it: what does not fit becomes a dead letter, see `headrace dead`.

    \b
    Example:
      headrace queries put alerts heating 'title:"heat pump" AND price < 500'
    """
    from headrace.errors import InvalidSearch
    from headrace.search.parse import parse

    with opened() as log:
        stored = _queries_in(log, topic)
        key = _key(stored, query, tenant)
        try:
            parse(text)
        except InvalidSearch as error:
            error.query = query
            raise
        done = stored.append({**key, "text": text, "_op": "upsert"})
        ((partition, (offset,)),) = done.ranges.items()
        say(f"stored {query!r} in {topic}, version {partition}:{offset}")


@queries.command()
@topic_argument
@click.argument("query")
@_tenant
@yes_option
@home_option
def remove(topic: str, query: str, tenant: str | None, yes: bool) -> None:
    """Remove a stored query: from then on it finds nothing.

    \b
    Example:
      headrace queries remove alerts heating --yes
    """
    from headrace.queries import stored_query

    with opened() as log:
        stored = _queries_in(log, topic)
        key = _key(stored, query, tenant)
        stored_query(stored, key)
        confirm(f"remove query {query!r} of {topic}", yes)
        stored.append({**key, "_op": "delete"})
        say(f"removed {query!r} of {topic}")


@queries.command("list")
@topic_argument
@format_option
@home_option
def list_(topic: str, format_: str | None) -> None:
    """List the stored queries, as they are now.

    \b
    Example:
      headrace queries list alerts
    """
    with opened() as log:
        stored = _queries_in(log, topic)
        rows = [*_rows(stored)]
        if not rows:
            note(f"No queries in {topic} yet: headrace queries put {topic} NAME 'a word'")
            return
        print_rows(rows, tuple(stored.settings.key[:-1]) + LISTED, format_)


@queries.command()
@topic_argument
@click.argument("query")
@_tenant
@format_option
@home_option
def explain(topic: str, query: str, tenant: str | None, format_: str | None) -> None:
    """Show how a stored query is understood.

    Also the terms that it is found by, and what it would find in the newest thousand records of the stream that it is
    asked of.

    \b
    Example:
      headrace queries explain alerts heating
    """
    from headrace.queries import explain_stored, stored_query

    with opened() as log:
        stored = _queries_in(log, topic)
        record = stored_query(stored, _key(stored, query, tenant))
        searched = _searched(log, topic)
        told = explain_stored(record, None, None, ()) if searched is None else explain_stored(record, *searched)
        print_one(told.as_json(), format_)


def _queries_in(log: Log, topic: str) -> Topic:
    from headrace.errors import InvalidArgument

    found = log.topic(writable(topic))
    if not {"query", "text", "_op"} <= {*found.schema.names}:
        why = "has no stored queries: app.queries('alerts') makes a topic of them, with the columns query and text"
        raise InvalidArgument("topic", topic, why)
    return found


def _key(topic: Topic, query: str, tenant: str | None) -> dict[str, str]:
    *by, name = topic.settings.key
    if len(by) != (tenant is not None):
        how = f"say whose it is, --tenant {by[0].upper()}" if by else "they are not stored by tenant: leave it out"
        raise click.BadParameter(f"queries {topic.name!r}: {how}", param_hint="--tenant")
    return {**({by[0]: tenant} if by and tenant is not None else {}), name: query}


def _rows(topic: Topic) -> Iterator[dict[str, Any]]:
    latest: dict[Any, Any] = {}
    for record in topic.records(start="earliest"):
        latest[record.key] = record
    for record in latest.values():
        if record.value["_op"] != "delete":
            value = {name: cell for name, cell in record.value.items() if name != "_op"}
            yield {**value, "version": f"{record.partition}:{record.offset}", "effective": record.arrived_at}


def _searched(log: Log, topic: str) -> tuple[Topic, Any, tuple[str, ...]] | None:
    """A topic that a flow of the home asks these queries of, its columns, and those that are searched for words."""
    from headrace.queries import searches

    for each in searches(opened_views().specs(), topic):
        if each.topic is not None:
            found = log.topic(each.topic)
            return found, found.schema, each.text
    return None
