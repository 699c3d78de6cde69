"""`headrace call TOPIC JSON`: a request, and its reply. Starts no Spark: a running program answers."""

from __future__ import annotations

import click

from headrace.cli.options import format_option, home_option, opened, topic_argument
from headrace.cli.output import print_one


@click.command()
@topic_argument
@click.argument("request", metavar="JSON")
@click.option("--id", help="Names the request: calling again with it waits for the same reply.")
@click.option("--timeout", metavar="DURATION", default="5 seconds", show_default=True, help="How long to wait.")
@format_option
@home_option
def call(topic: str, request: str, id: str | None, timeout: str, format_: str | None) -> None:
    """Append a request to a topic, wait for its reply, and print it.

    A program answers that has app.answers(TOPIC, …) and runs. Without a reply in time the exit code is 1, and the
    request stands: the message says its id.

    \b
    Example:
      headrace call quotes '{"sku": "k1"}'
    """
    from headrace.calls import call as asked
    from headrace.jsonrows import parse_object

    with opened() as log:
        print_one(asked(log, topic, parse_object(request), timeout=timeout, id=id).value, format_)
