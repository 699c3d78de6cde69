"""One HTTP request to an address that an operator gave, which must not become a request to somewhere else. Owns the
limits: no redirects, no proxy, no address of this machine or its network unless that is allowed, and the connection
goes to the very address that was checked. Knows nothing of what is asked."""

from __future__ import annotations

import http.client
import io
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Answer", "Failed", "NearRefused", "Refused", "check_headers", "check_url", "request"]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
ANSWER_BYTES_MAX = 4 << 20
CREDENTIALS = {*map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))}
"""Where clouds give out a machine's credentials, beside link-local addresses."""
EMBEDS_IPV4 = ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96")
LOOPBACK = ipaddress.ip_address("::1")
URL = re.compile(r"[!-~]+")
NAME, VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t -~\xa0-\xff]*")


class Refused(ValueError):
    """The request is not made, or its answer not read: what was given must be changed."""


class NearRefused(Refused):
    """The address is in the network of this machine: whoever asks may allow that."""


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
    bytes_max: int | None = ANSWER_BYTES_MAX,
    seconds: float = ANSWER_SECONDS,
) -> Answer:
    """The answer, whatever its status. `private`: the address may be in the network of this machine. `ca`: a file with
    the certificates that are trusted. `bytes_max`: None leaves the answer's body unread. `seconds`: in which it must
    have come."""
    check_url(url)
    check_headers(headers)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        address = _checked_address(host, port, private)
        context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        connection = _Pinned(host, port, address, context, seconds)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, body, {"User-Agent": "headrace", **headers})
            answer = connection.getresponse()
            found = b"" if bytes_max is None else _body(answer, bytes_max)
            return Answer(answer.status, dict(answer.getheaders()), found)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{type(error).__name__}: {error}") from None


def check_url(url: str) -> None:
    """Refused says what is wrong, and never quotes the address: it may be all that one needs to know."""
    if not URL.fullmatch(url):
        raise Refused("its address has a blank, or a character that no address has: write it as %20, %C3%A9 and so on")
    try:
        port, host = urlsplit(url).port, urlsplit(url).hostname
    except ValueError:
        raise Refused("its address has a host or a port that cannot be: a port is at most 65535") from None
    if port == 0 or not host:
        raise Refused("its address has no host, or the port 0")


def check_headers(headers: Mapping[str, str]) -> None:
    """Refused names the header and never its value: a line end in it would begin another header."""
    for name, value in headers.items():
        if not NAME.fullmatch(name):
            raise Refused(f"{name!r} is no name of a header")
        if not VALUE.fullmatch(value):
            raise Refused(f"the header {name} has a line end or another character that no header has")


def _body(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    out = bytearray()
    while piece := answer.read1(1 << 16):
        out += piece
        if len(out) > bytes_max:
            raise Refused(f"its answer is longer than {bytes_max} bytes")
    return bytes(out)


def _checked_address(host: str, port: int, private: bool) -> str:
    """The address of the host. Looked up once for each request, so what is checked is what is connected to."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    at = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(at, ipaddress.IPv6Address):
        if at.ipv4_mapped is not None:
            at = at.ipv4_mapped
        elif at != LOOPBACK and any(at in network for network in EMBEDS_IPV4):
            at = ipaddress.IPv4Address(int(at) & 0xFFFFFFFF)
    if at.is_link_local or at.is_multicast or at.is_unspecified or at in CREDENTIALS:
        raise Refused(
            f"it is at {at}, where no such service is, but perhaps one that gives out a machine's credentials"
        )
    if not at.is_global and not private:
        raise NearRefused(f"it is at {at}, in the network of this machine, and that is not allowed")
    return address


class _Pinned(http.client.HTTPConnection):
    """To an address that was looked up before; with TLS, the certificate is checked for the host's name."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None, seconds: float) -> None:
        super().__init__(host, port, timeout=CONNECT_SECONDS)
        self._address, self._context, self._seconds = address, context, seconds

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), CONNECT_SECONDS)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
        self.sock = _Timed(self.sock, time.monotonic() + self._seconds)


class _Timed:
    """A socket, as far as `http.client` needs one, that is done by a time: however slowly the other side gives."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._until))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_TimedReader(self._sock, self._until))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until, self._raw = sock, until, sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        self._sock.settimeout(_left(self._until))
        return self._raw.readinto(into)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"it took longer than {ANSWER_SECONDS:g} s")
    return left
