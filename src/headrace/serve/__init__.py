"""The HTTP side of headrace: an API over log and views, and the page that uses it. Starts no Spark and needs none.

    guard       who may come in: host, token, size of what is sent; the headers of every answer
    answers     values and errors as JSON
    shapes      what the routes answer, for the OpenAPI document
    home        the log and the views that are served
    overview    everything at a glance, gathered once for all who look
    feeds       a view's changes, read once for all who listen
    streams     server-sent events: what is sent to one who listens
    routes      those of a part of a home: captures, indexes, patterns, stored queries, requests
    api         the other routes
    exposition  numbers for Prometheus
    server      the socket, the token, the thread

Its libraries are an extra: `open_server` says so when they are not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ServeMissing

if TYPE_CHECKING:
    from headrace.serve.server import Server

__all__ = ["open_server"]


def open_server(home: Path, **options: Any) -> Server:
    """A server that listens, and answers when it is started: see `server.Server`. ServeMissing if its libraries are."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ServeMissing(why=str(error)) from None
    from headrace.serve.server import Server

    return Server(home, **options)
