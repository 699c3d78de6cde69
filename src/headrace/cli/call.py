"""`headrace call TOPIC JSON`: a request, and its reply. Starts no Spark: a running program answers."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.options import format_option, home_option, opened, topic_argument
from headrace.cli.output import print_one


@click.command()
@topic_argument
@click.argument("request", metavar="JSON", required=False)
@click.option("--id", help="Names the request: calling again with it waits for the same reply.")
@click.option("--timeout", metavar="DURATION", default="5 seconds", show_default=True, help="How long to wait.")
@click.option("--cancel", "taken_back", is_flag=True, help="Take the request of this --id back.")
@click.option("--server", metavar="URL", help="Ask a server, http://HOST:PORT, with the token in HEADRACE_TOKEN.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="The token of the --server.")
@format_option
@home_option
def call(
    topic: str,
    request: str | None,
    id: str | None,
    timeout: str,
    taken_back: bool,
    server: str | None,
    token_file: Path | None,
    format_: str | None,
) -> None:
    """Append a request to a topic, wait for its reply, and print it. Without JSON, wait for the reply to --id.

    A program answers that has app.answers(TOPIC, …) and runs. Without a reply in time the exit code is 1, and the
    request stands: the message says its id.

    \b
    Example:
      headrace call quotes '{"sku": "k1"}'
      headrace call quotes '{"sku": "k1"}' --id order-77 --server http://127.0.0.1:8321
      headrace call quotes --id order-77 --cancel
    """
    from headrace.calls import call as asked
    from headrace.calls import cancel
    from headrace.jsonrows import parse_object

    if id is None and (request is None or taken_back):
        raise click.UsageError("Say which request with --id, or give one: headrace call TOPIC JSON.")
    if taken_back and request is not None:
        raise click.UsageError("--cancel takes a request back that was made: leave the JSON out.")
    if token_file is not None and server is None:
        raise click.UsageError("--token-file is for --server.")
    token = None if token_file is None else f"file:{token_file}"
    where = click.get_current_context().with_resource(opened()) if server is None else server
    if id is not None and taken_back:
        print_one({"id": id, "cancelled": cancel(where, topic, id, token=token)}, format_)
        return
    given = None if request is None else parse_object(request)
    print_one(asked(where, topic, given, timeout=timeout, id=id, token=token).value, format_)
