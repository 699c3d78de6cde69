"""One HTTP request to an address that an operator gave, which must not become a request to somewhere else. Owns the
limits: no redirects, no proxy, no address of this machine or its network unless that is allowed, and the connection
goes to the very address that was checked. Knows nothing of what is asked."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["Answer", "Failed", "Refused", "request"]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
ANSWER_BYTES_MAX = 4 << 20


class Refused(ValueError):
    """The request is not made, or its answer not read: what was given must be changed."""


class Failed(OSError):
    """There was no answer: it may come when it is asked again."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    ca: str | None = None,
    private: bool = False,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> Answer:
    """The answer, whatever its status. `private`: the address may be in the network of this machine. `ca`: a file with
    the certificates that are trusted."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        address = _checked_address(host, port, private)
        context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        connection = _Pinned(host, port, address, context)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, body, {"User-Agent": "headrace", **headers})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), _body(answer, bytes_max))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{type(error).__name__}: {error}") from None


def _body(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    until, out = time.monotonic() + ANSWER_SECONDS, bytearray()
    while piece := answer.read1(1 << 16):
        out += piece
        if len(out) > bytes_max:
            raise Refused(f"its answer is longer than {bytes_max} bytes")
        if time.monotonic() > until:
            raise TimeoutError(f"its answer took longer than {ANSWER_SECONDS:g} s")
    return bytes(out)


def _checked_address(host: str, port: int, private: bool) -> str:
    """The address of the host. Looked up once for each request, so what is checked is what is connected to."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    at = ipaddress.ip_address(address.partition("%")[0])
    at = getattr(at, "ipv4_mapped", None) or at
    if at.is_link_local or at.is_multicast or at.is_unspecified:
        raise Refused(
            f"it is at {at}, where no such service is, but perhaps one that gives out a machine's credentials"
        )
    if not at.is_global and not private:
        raise Refused(f"it is at {at}, in the network of this machine, and that is not allowed")
    return address


class _Pinned(http.client.HTTPConnection):
    """To an address that was looked up before; with TLS, the certificate is checked for the host's name."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=CONNECT_SECONDS)
        self._address, self._context = address, context

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), CONNECT_SECONDS)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
        self.sock.settimeout(ANSWER_SECONDS)
