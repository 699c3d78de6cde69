"""`headrace demo`. Owns nothing: the story is in `headrace.demo`."""

from __future__ import annotations

import click

from headrace.cli.options import home_option


@click.command()
@click.option(
    "--live", is_flag=True, help="Then continue with more visitors, show the view and serve the page, until Ctrl-C."
)
@home_option
def demo(live: bool) -> None:
    """Streams into views in half a minute, on a small web shop: a window closes, a straggler corrects it, a wrong clock
    is put right, two sessions become one, a worker is killed, nothing is lost. Uses a temporary
    directory; needs Java 17 or 21.

    \b
    Example:
      headrace demo
      headrace demo --live
    """
    from headrace.demo.run import run

    code = run(live=live)
    if code:
        raise click.exceptions.Exit(code)
