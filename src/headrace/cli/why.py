"""`headrace why VIEW KEY…`: the records that a row was made of, and what it waits for. Starts no Spark."""

from __future__ import annotations

import click

from headrace.cli.options import format_option, home_option, opened, opened_views, view_argument
from headrace.cli.output import print_one


@click.command()
@view_argument
@click.argument("key", nargs=-1)
@format_option
@home_option
def why(view: str, key: tuple[str, ...], format_: str | None) -> None:
    """Show where a row of a view comes from, and what it waits for.

    KEY: of joined rows their `_id`; of a table its key; of windows the window's start, then the groups.

    \b
    Example:
      headrace why enriched clicks/0/0000000000000017
    """
    from headrace.why import why as asked

    with opened() as log:
        found = asked(opened_views(), log, view, *key).as_json()
    for origin in found["origins"]:
        if origin["source"] == origin["topic"]:
            del origin["source"]
    facts = {name: found[name] for name in ("waits_for", "note", "origins") if name != "note" or found[name]}
    print_one({**found["row"], **facts}, format_)
