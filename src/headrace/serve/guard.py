"""Access control: which requests are allowed, how large they may be, and the headers of every response. Owns the token,
the cookie, the check of Host and Origin, the limit on size, and the headers. Knows no routes except the page and
`/api/health`, which needs no token.

Other sites may send requests through the same browser. So the cookie is for this site only, a request that changes
something must also have a header that no other site can set, and a foreign host name that resolves to this machine is
refused."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.serve.answers import failure, refusal

__all__ = ["BODY_BYTES_MAX", "CALLER", "Caller", "Door", "Guard"]

logger = logging.getLogger("headrace.serve")

BODY_BYTES_MAX = 8 << 20
BODY_SECONDS = 30.0
"""What is sent must have come by then."""
REQUESTS_MAX = 600
"""At a time, those who listen too."""
HEALTH = "/api/health"
FRAME = "/page/"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Door:
    """`host`: what the server listens on."""

    token: str
    host: str
    port: int
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def cookie(self) -> str:
        """By port: cookies of one machine are shared by all its servers."""
        return f"headrace_{self.port}"

    def knows_host(self, host: str) -> bool:
        """Loopback, or what is listened on. Who listens on all addresses is asked by any of them; an address, unlike a
        name, cannot be pointed elsewhere."""
        name, colon, port = host.rpartition(":")
        if not colon or port.endswith("]"):
            name, port = host, "80"
        if port != str(self.port):
            return False
        name = name.lower().removeprefix("[").removesuffix("]")
        return name in LOOPBACK | {self.host.lower()} or (_everywhere(self.host) and _is_address(name))

    def opens_to(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())


def _everywhere(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


CALLER = "headrace.caller"


@dataclass(slots=True)
class Caller:
    """Who is at the other end of a connection. `known`: has shown the token on it."""

    known: bool = False


class _Refused(Exception):
    """What is sent is too much, or does not come."""


class Guard:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door, self._inside = app, door, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        body = _Body(receive, self._door.body_bytes_max, answer)
        self._inside += 1
        try:
            refused = self._refused(scope) or body.announced(Headers(scope=scope)) or self._full()
            await (refused or self._app)(scope, body.receive, answer.send)
        except ClientDisconnect:
            pass
        except Exception:
            if answer.refused_with is None:
                logger.exception("a request failed: %s", scope["path"])
            if not answer.begun:
                await answer.fail(scope, receive)
        finally:
            self._inside -= 1

    def _full(self) -> Response | None:
        if self._inside <= REQUESTS_MAX:
            return None
        return refusal(503, "Busy", f"the server is at its limit of {REQUESTS_MAX} requests. Try again in a moment.")

    def _refused(self, scope: Scope) -> Response | None:
        """The answer to one who may not come in; None: he may."""
        headers, door, caller = Headers(scope=scope), self._door, scope["state"][CALLER]
        host = headers.get("host", "")
        if not door.knows_host(host):
            why = f"this server is not {host[:100]!r}. Open the address it printed."
            return refusal(403, "UnknownHost", why)
        if scope["path"] == HEALTH:
            return None
        if scope["method"] in SAFE_METHODS and (scope["path"] == "/" or scope["path"].startswith(FRAME)):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token") if scope["path"] == "/" else None
            return None if given is None else self._enter(given[0])
        authorization = headers.get("authorization", "")
        if authorization:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() == "bearer" and door.opens_to(token.strip()):
                caller.known = True
                return None
            return self._unknown(scope)
        if not door.opens_to(cookie_parser(headers.get("cookie", "")).get(door.cookie, "")):
            return self._unknown(scope)
        caller.known = True
        if scope["method"] in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if headers.get("x-headrace") != "page" or (origin is not None and origin != f"{scope['scheme']}://{host}"):
            why = "with a cookie, what changes something needs the header 'X-Headrace: page', from this server's page."
            return refusal(403, "CrossSite", why)
        return None

    def _enter(self, token: str) -> Response:
        """The printed link: the token becomes a cookie, and leaves the address. With another one, the page asks for
        it."""
        answer = RedirectResponse("/", 303)
        if self._door.opens_to(token):
            answer.set_cookie(self._door.cookie, token, httponly=True, samesite="strict", path="/")
        return answer

    def _unknown(self, scope: Scope) -> Response:
        why = "open the link that headrace printed, or send 'Authorization: Bearer TOKEN'."
        if scope["path"].startswith("/api/") or scope["path"] == "/metrics":
            answer: Response = refusal(401, "Unauthorized", f"no token, or another one: {why}")
        else:
            answer = PlainTextResponse(f"headrace: no token, or another one: {why}\n", 401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


class _Answer:
    """What goes out, with the headers that all have; or a refusal in its place, as long as nothing went out."""

    def __init__(self, send: Send) -> None:
        self._send, self.begun = send, False
        self.refused_with: Callable[[], Response] | None = None

    async def send(self, message: Message) -> None:
        if self.refused_with is not None and not self.begun:
            raise _Refused
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)

    async def fail(self, scope: Scope, receive: Receive) -> None:
        make, self.refused_with = self.refused_with or failure, None
        await make()(scope, receive, self.send)


class _Body:
    """What comes in, counted."""

    def __init__(self, receive: Receive, bytes_max: int, answer: _Answer) -> None:
        self._receive, self._bytes_max, self._answer = receive, bytes_max, answer
        self._bytes, self._whole = 0, False
        self._limit = asyncio.get_running_loop().time() + BODY_SECONDS

    def announced(self, headers: Headers) -> Response | None:
        length = headers.get("content-length", "")
        return self._too_much() if length.isdecimal() and int(length[:20]) > self._bytes_max else None

    def _too_much(self) -> Response:
        answer = refusal(413, "TooLarge", f"more than {self._bytes_max} bytes: send it in pieces.")
        answer.headers["Connection"] = "close"
        return answer

    def _too_slow(self) -> Response:
        answer = refusal(408, "TooSlow", f"the request did not come within {BODY_SECONDS:g} s.")
        answer.headers["Connection"] = "close"
        return answer

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._limit):
                message = await self._receive()
        except TimeoutError:
            self._answer.refused_with = self._too_slow
            raise _Refused from None
        self._whole = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._bytes_max:
            self._answer.refused_with = self._too_much
            raise _Refused
        return message
