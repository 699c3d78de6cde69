"""The server: a socket, a token, and a thread that serves until it is stopped. Owns the port, the link with the token,
and the stop: event streams are closed, and it waits for nothing longer than some seconds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.errors import InvalidArgument
from headrace.serve.api import Routes, make_app
from headrace.serve.guard import CALLER, REQUESTS_MAX, Caller, Door, Guard
from headrace.serve.home import Home

if TYPE_CHECKING:
    from headrace.flows.status import FlowStatus

__all__ = ["HOST", "PORT", "Server", "kept_token"]

HOST, PORT = "127.0.0.1", 8321
PORTS_TRIED = 100
TOKEN_BYTES, TOKEN_CHARACTERS_MIN = 32, 16
CONNECTIONS_MAX = REQUESTS_MAX + 100
"""More are not even looked at."""
HEAD_SECONDS = 30
"""A connection on which no request comes for so long, or for twice that, is closed."""
DEAF_MS = 60_000
"""A connection whose other end takes nothing for so long is closed."""
STRANGERS_MAX, NEWCOMERS_MAX = 100, 400
"""Connections on which nobody has shown the token: after a second, and before."""
NEW_SECONDS = 1.0
BACKLOG = 64
"""So many are accepted before the first of them is looked at."""
STOP_SECONDS = 3
START_SECONDS = 30.0


def kept_token(path: Path) -> str:
    """The token in a file that nobody else may read; made if there is none."""
    with contextlib.suppress(FileExistsError), open(path, "x", opener=_private) as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    with open(path, opener=_private) as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidArgument("token_file", str(path), "others may read it: chmod 600")
        return file.read(10_000).strip()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def checked_token(token: str) -> str:
    """It must fit a link, a header and a cookie."""
    if re.fullmatch(rf"[A-Za-z0-9._~-]{{{TOKEN_CHARACTERS_MIN},200}}", token) is None:
        why = f"must have {TOKEN_CHARACTERS_MIN} or more letters, digits, '.', '_', '~' and '-'"
        why += " (it is that of HEADRACE_TOKEN, --token-file or token=)"
        raise InvalidArgument("token", "…", why)
    return token


class _Connection(H11Protocol):
    """Closed when no request comes on it: whoever only connects must not keep others out. Uvicorn sees to that after
    the first answer, and as long as not a byte has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since, self._caller = self.loop.time(), Caller()
        self.app_state = {**self.app_state, CALLER: self._caller}
        self._look(waited_since=self)
        self._make_room()
        self.loop.call_later(NEW_SECONDS, self._leave_if_too_many)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self, waited_since: object) -> None:
        """Waiting for the same request as at the last look: too long."""
        if not self._answering and waited_since is self.cycle:
            self.transport.close()
        if not self.transport.is_closing():
            self.loop.call_later(HEAD_SECONDS, self._look, self if self._answering else self.cycle)

    @property
    def _strangers(self) -> list[_Connection]:
        every = (each for each in self.connections if isinstance(each, _Connection))
        return [each for each in every if not each._caller.known and not each.transport.is_closing()]

    def _make_room(self) -> None:
        """The oldest goes, one that waits for no answer first."""
        strangers = self._strangers
        if len(strangers) > NEWCOMERS_MAX:
            min(strangers, key=lambda each: (each._answering, each._since)).transport.abort()

    def _leave_if_too_many(self) -> None:
        """Whoever asks shows the token with the first request, so soon after connecting."""
        strangers = self._strangers
        if len(strangers) > STRANGERS_MAX and self in strangers and not self._answering:
            self.transport.abort()


class _Uvicorn(uvicorn.Server):
    """Lets go of those who listen before it waits for answers to be finished."""

    routes: Routes

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.routes.home.closing.set()
        self.routes.wake()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the command's."""
        yield


class Server:
    """`with Server(home) as server: print(server.link)`. `port`: None takes the first that is free from 8321 on.
    `flows`: how the flows of this process do; `beside`: its captures and sinks."""

    def __init__(
        self,
        home: Path,
        *,
        host: str = HOST,
        port: int | None = None,
        token: str | None = None,
        flows: Callable[[], list[FlowStatus]] | None = None,
        views: str | Path | None = None,
        log: str | None = None,
        beside: Callable[[], dict[str, tuple[str, str]]] = dict,
    ) -> None:
        self._token = secrets.token_urlsafe(TOKEN_BYTES) if token is None else checked_token(token)
        self._socket = _listening(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._home = Home(home, flows, views, log, beside)
        self._error: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-serve", daemon=True)
        self._uvicorn: _Uvicorn | None = None

    @property
    def url(self) -> str:
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
            self.host, f"[{self.host}]" if ":" in self.host else self.host
        )
        return f"http://{shown}:{self.port}"

    @property
    def link(self) -> str:
        """Lets whoever opens it in."""
        return f"{self.url}/?token={self._token}"

    @property
    def token(self) -> str:
        return self._token

    def start(self) -> None:
        self._thread.start()
        if not self._started.wait(START_SECONDS) or self._error is not None:
            raise RuntimeError("the server did not start") from self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        app = make_app(self._home)
        routes: Routes = app.state.routes
        config = uvicorn.Config(
            Guard(app, Door(self._token, self.host, self.port)),
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http=_Connection,
            backlog=BACKLOG,
            loop="asyncio",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=HEAD_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._uvicorn = _Uvicorn(config)
        self._uvicorn.routes = routes
        asyncio.get_running_loop().call_soon(self._started.set)
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            self._home.closing.set()
            await asyncio.to_thread(routes.feeds.close)

    def check(self) -> None:
        """Raises what ended it, if it has ended."""
        if not self._thread.is_alive():
            raise RuntimeError("the server has ended") from self._error

    def stop(self) -> None:
        """In bounded time, whoever is connected."""
        if self._uvicorn is not None:
            self._home.closing.set()
            self._uvicorn.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS + 10)
        self._home.close()
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _listening(host: str, port: int | None) -> socket.socket:
    """A socket that listens: on that port, or on the first that is free."""
    candidates = range(PORT, PORT + PORTS_TRIED) if port is None else [port]
    for candidate in candidates:
        try:
            return _bound(host, candidate)
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                said = error.strerror or str(error)
                why = f"{said[0].lower()}{said[1:]}"
                if error.errno == errno.EADDRINUSE:
                    why += "; without --port the next that is free is taken"
                raise InvalidArgument("port" if port is not None else "host", f"{host}:{candidate}", why) from None
    raise InvalidArgument("port", PORT, f"none of {PORTS_TRIED} ports from there on is free: say which with --port")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # inherited by its connections
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAF_MS)
        found.bind(address)
        found.listen(256)
    except BaseException:
        found.close()
        raise
    return found
