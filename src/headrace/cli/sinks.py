"""`headrace sinks …`: where records go outside of log and views: lists and drops sinks, and lets one begin anew."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import complete_sink, confirm, format_option, home, home_option, opened, yes_option
from headrace.cli.output import note, print_rows
from headrace.connect.calling import rewind as begin_anew
from headrace.connect.index.spec import KIND
from headrace.connect.journal import recorded
from headrace.connect.journal import sinks as known
from headrace.connect.open import forget
from headrace.connect.reading import beginning, ends_of
from headrace.connect.running import reader_of
from headrace.errors import InvalidArgument, UnknownTopic
from headrace.log.contract import FLOW_GROUP
from headrace.log.standing import group_facts
from headrace.sink import Sink

if TYPE_CHECKING:
    from headrace.log.contract import Log

EMPTY = "No sinks yet. A program makes them: app.stream(topic).to_sink('mails', function); an index: headrace index add"
LISTED = ("sink", "kind", "topic", "lag_records", "lag_seconds")


@click.group()
@home_option
def sinks() -> None:
    """List and drop sinks, and let one begin anew.

    \b
    Example:
      headrace sinks list
    """


@sinks.command("list")
@format_option
@home_option
def list_(format_: str | None) -> None:
    """List the sinks, what they read, and how far behind they are.

    \b
    Example:
      headrace sinks list
    """
    with contextlib.closing(opened()) as log:
        found = [_listed(log, name, facts) for name, facts in known(log).items()]
    if not found:
        note(EMPTY)
        return
    print_rows(found, LISTED, format_)


def _listed(log: Log, name: str, facts: dict[str, Any]) -> dict[str, Any]:
    out = {"sink": name, "kind": facts["kind"], "topic": facts["topic"], "lag_records": None, "lag_seconds": None}
    with contextlib.suppress(UnknownTopic):
        topic = log.topic(facts["topic"])
        begin = beginning(topic)  # of one that has delivered nothing yet
        out["lag_records"] = sum(end - begin.get(partition, 0) for partition, end in ends_of(topic).items())
        for group in topic.groups():
            if group.name == f"{FLOW_GROUP}{reader_of(name)}":
                out |= {of: value for of, value in group_facts(topic, group).items() if of in out and of != "topic"}
    return out


@sinks.command()
@click.argument("name", shell_complete=complete_sink)
@yes_option
@home_option
def rewind(name: str, yes: bool) -> None:
    """Let a sink get all records of its topic again.

    A function, webhook or program gets them from the first on, with new keys. An index: headrace index rebuild.

    \b
    Example:
      headrace sinks rewind mails --yes
    """
    with contextlib.closing(opened()) as log:
        facts = recorded(log, name)["spec"]
        if facts["kind"] == KIND:
            why = f"is an {KIND}, which is built again with: headrace index rebuild {name}"
            raise InvalidArgument("name", name, why)
        topic = log.topic(facts["topic"])
        confirm(f"deliver all of {topic.name} to {name} again", yes)
        with Sink.locked(home(), name):
            begin_anew(name, log, topic)
    note(f"{name} gets all of {topic.name} again, with new keys")


@sinks.command()
@click.argument("name", shell_complete=complete_sink)
@yes_option
@home_option
def drop(name: str, yes: bool) -> None:
    """Forget a sink.

    How far it was, its lag, and the file of an index go. What was delivered stays.

    \b
    Example:
      headrace sinks drop mails --yes
    """
    with contextlib.closing(opened()) as log:
        recorded(log, name)
        confirm(f"forget how far sink {name} is, and the file of an index", yes)
        with Sink.locked(home(), name):
            forget(log, home(), name)
    note(f"{name} is forgotten")
