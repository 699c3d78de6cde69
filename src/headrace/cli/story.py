"""`headrace demo`. Owns nothing: the story is in `headrace.demo`."""

from __future__ import annotations

import click

from headrace.cli.options import home_option


@click.command()
@home_option
def demo() -> None:
    """The log in ten seconds: produce, share, kill, take over, rewind. Uses a temporary directory.

    \b
    Example:
      headrace demo
    """
    from headrace.demo import run

    code = run()
    if code:
        raise click.exceptions.Exit(code)
