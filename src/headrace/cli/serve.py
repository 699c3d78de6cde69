"""`headrace serve`, and how `run` and `demo` serve: the page and the HTTP API. Owns what is said when the libraries for it
are not installed, and how the command is stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from headrace.cli.options import home, home_option
from headrace.cli.output import note

if TYPE_CHECKING:
    from headrace.flows.running import FlowStatus
    from headrace.serve.server import Server

MISSING = "the page needs FastAPI and uvicorn: pip install 'headrace[serve]'"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="8321, or the next that is free, unless said.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME", help="What to listen on.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Keep the token in this file.")
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
@home_option
def serve(port: int | None, host: str, token_file: Path | None, open_: bool) -> None:
    """Serve the page and the HTTP API of the log and its views, until Ctrl-C or SIGTERM. Starts no Spark.

    Prints a link with a token, which lets whoever has it in: a new one for each start, unless HEADRACE_TOKEN or
    --token-file keeps it. Listens on this machine only; what --host opens it to is not encrypted.

    \b
    Example:
      headrace serve
      headrace serve --port 8400 --token-file ~/.headrace-token --open
    """
    server = made_server(home(), host=host, port=port, token_file=token_file)
    if server is None:
        raise click.ClickException(MISSING)
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with server:
            tell(server)
            if open_:
                import webbrowser

                webbrowser.open(server.link)
            while not stopping.wait(3600):
                pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    note("stopped")


def made_server(
    path: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token_file: Path | None = None,
    flows: Callable[[], list[FlowStatus]] | None = None,
) -> Server | None:
    """None when what it needs is not installed."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        return None
    from headrace.serve.server import Server, kept_token

    token = kept_token(token_file) if token_file is not None else os.environ.get("HEADRACE_TOKEN")
    return Server(path, host=host, port=port, token=token, flows=flows)


def tell(server: Server) -> None:
    """The link, once."""
    if server.host not in LOOPBACK:
        note(f"anybody who can reach {server.host} can ask for the page, and what is sent is not encrypted")
    note(f"page: {server.link}")
