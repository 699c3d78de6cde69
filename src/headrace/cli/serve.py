"""`headrace serve`. Owns how the command is stopped, what it says, and where the token comes from."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import home, home_option, log_at, views_at
from headrace.cli.output import note
from headrace.cli.stopping import stoppable
from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    from headrace.serve.server import Server

OPEN_SECONDS = 60.0
"""A browser that was started has read what it should open by then."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="The port; default: 8321, or the next free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME", help="The address to listen on.")
@click.option("--insecure", is_flag=True, help="Allow a --host that other machines can reach, unencrypted.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Keep the token in this file.")
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
@home_option
def serve(port: int | None, host: str, insecure: bool, token_file: Path | None, open_: bool) -> None:
    """Serve the page and the HTTP API of the log and its views, until Ctrl-C or SIGTERM. Starts no Spark.

    Prints a link with a token. Everybody who has the token has access. It is new for each start, unless HEADRACE_TOKEN
    or --token-file sets it. The server listens on this machine only; to listen for others, unencrypted, use --host with
    --insecure.

    \b
    Example:
      headrace serve
      headrace serve --port 8400 --token-file token.txt --open
    """
    from headrace.serve import open_server

    if host not in LOOPBACK and not insecure:
        why = "the connection would not be encrypted: use an ssh tunnel (ssh -L), or add --insecure"
        raise InvalidArgument("host", host, why)
    server = open_server(home(), host=host, port=port, token=token(token_file), views=views_at(), log=log_at())
    with stoppable() as stopping, server, contextlib.ExitStack() as opening:
        tell(server)
        if open_:
            opening.enter_context(_opened(server.link, home()))
        limit = time.monotonic() + OPEN_SECONDS
        while not stopping.wait(1):
            server.check()
            if time.monotonic() > limit:
                opening.close()
    note("stopped")
    stopping.tell()


@contextlib.contextmanager
def _opened(link: str, folder: Path) -> Iterator[None]:
    """In a browser, by a file that only this user may read and that leads to the link: a link among the browser's
    arguments is seen by every user of the machine. In the home, if it is one: a browser in a sandbox may not see the
    system's temporary files, and a directory with other things in it does not become a home."""
    import tempfile
    import webbrowser

    made = os.access(folder, os.W_OK) and (folder / "log.db").exists()
    fd, path = tempfile.mkstemp(prefix="open-", suffix=".html", dir=folder if made else None)
    try:
        with open(fd, "w") as file:
            file.write(f'<!doctype html><title>headrace</title><meta http-equiv="refresh" content="0; url={link}">\n')
        webbrowser.open(Path(path).as_uri())
        yield
    finally:
        Path(path).unlink(missing_ok=True)


def token(file: Path | None = None) -> str | None:
    """The one that is kept; None: a new one."""
    if file is None:
        return os.environ.get("HEADRACE_TOKEN") or None
    from headrace.serve.server import kept_token

    return kept_token(file)


def tell(server: Server) -> None:
    """The link, once."""
    if server.host not in LOOPBACK:
        note(f"listening on {server.host}: everybody who can reach it may connect, and the connection is not encrypted")
    note(f"page: {server.link}")
