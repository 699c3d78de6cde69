"""A schema registry, as a reader needs it: the schema that has an id. Owns the requests and their limits, and what was
answered, which is kept for the life of the process: a schema never changes under its id, so what is known goes on being
read while the registry is down. Knows no Kafka and no values.

The address is the operator's, but a request to it must not become one to somewhere else: no redirects, no proxy, no
address of this machine or its network unless that is allowed, and the connection goes to what was checked."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import orjson

from headrace.errors import InvalidArgument, RegistryFailed
from headrace.log.kafka.settings import Kafka, secret_of

__all__ = ["Registry", "SchemaUnknown", "registry_of"]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
ANSWER_BYTES_MAX = 4 << 20
TRY_AGAIN_SECONDS = (0.1, 0.3, 0.9)
"""Pauses before a request is made again: a schema is registered before its first record, but perhaps elsewhere."""
UNKNOWN_SECONDS = 30.0
"""So long nobody asks again for an id that the registry did not know."""
REFERENCES_MAX = 100
PLAIN_TYPE = "AVRO"


class SchemaUnknown(ValueError):
    """The registry has no such schema, or none that can be read: so no value that names it can be."""


def registry_of(settings: Kafka) -> Registry | None:
    """The process's registry of a cluster; None if the settings name none."""
    return None if settings.registry is None else _registry(os.getpid(), Place.of(settings))


@lru_cache(64)
def _registry(_pid: int, place: Place) -> Registry:
    return Registry(place)


@dataclass(frozen=True)
class Place:
    """Where a registry is, and how one logs in. `password` is a reference."""

    url: str
    username: str | None
    password: str | None
    ca: str | None
    private: bool

    @classmethod
    def of(cls, settings: Kafka) -> Place:
        given = settings.registry_username, settings.registry_password, settings.ca, settings.registry_private
        return cls(settings.registry or "", *given)


class Registry:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[int, tuple[str, ...]] = {}
        self._unknown: dict[int, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def known(self) -> dict[int, tuple[str, ...]]:
        """What was answered so far, for another process."""
        return dict(self._known)

    def remember(self, schemas: Mapping[int, tuple[str, ...]]) -> None:
        self._known |= schemas

    def schema(self, id: int) -> tuple[str, ...]:
        """The schema, behind those it refers to. SchemaUnknown if there is none, RegistryFailed if nobody answers."""
        found = self._known.get(id)
        if found is None:
            with self._lock:  # one asks, the others wait for its answer
                found = self._known.get(id) or self._asked(id)
        return found

    def _asked(self, id: int) -> tuple[str, ...]:
        until, why = self._unknown.get(id, (0.0, ""))
        if time.monotonic() < until:
            raise SchemaUnknown(why)
        try:
            texts: dict[str, None] = {}
            self._collect(f"/schemas/ids/{id}", f"schema {id}", texts)
        except SchemaUnknown as error:
            self._unknown[id] = time.monotonic() + UNKNOWN_SECONDS, str(error)
            raise
        found = self._known[id] = tuple(texts)
        return found

    def _collect(self, path: str, what: str, texts: dict[str, None], depth: int = 0) -> None:
        """A schema's text behind those of its references."""
        said = self._get(path, what)
        kind, text = said.get("schemaType", PLAIN_TYPE), said.get("schema")
        if kind != PLAIN_TYPE or not isinstance(text, str):
            raise SchemaUnknown(f"{what} of the registry is {kind}, not {PLAIN_TYPE}")
        for each in said.get("references") or ():
            if depth > REFERENCES_MAX or len(texts) > REFERENCES_MAX:
                raise SchemaUnknown(f"{what} of the registry refers to more than {REFERENCES_MAX} others")
            subject, version = str(each["subject"]), int(each["version"])
            where = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            self._collect(where, f"schema {subject!r} version {version}", texts, depth + 1)
        texts[text] = None

    # -- requests ----------------------------------------------------------------------------------

    def _get(self, path: str, what: str) -> dict[str, Any]:
        for pause in (*TRY_AGAIN_SECONDS, None):
            try:
                status, body = self._request(path)
            except (OSError, http.client.HTTPException) as error:
                said = f"{type(error).__name__}: {error}"
                status, body = 0, said.encode("utf-8", "replace")
            if status == 200:
                return self._decoded(body, what)
            if status not in (0, 404, 408, 429) and status < 500:
                break
            if pause is not None:
                time.sleep(pause)
        if status == 404:
            raise SchemaUnknown(f"the registry has no {what}")
        self._fail(what, body.decode("utf-8", "replace")[:200] if status == 0 else f"it answered with status {status}")

    def _decoded(self, body: bytes, what: str) -> dict[str, Any]:
        try:
            said = orjson.loads(body)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            self._fail(what, "its answer is no JSON object")
        return said

    def _fail(self, what: str, why: str) -> NoReturn:
        raise RegistryFailed(self._place.url, what, why)

    def _request(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self._place.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        address = self._checked_address(host, port)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "User-Agent": "headrace"}
        if self._place.username is not None and self._place.password is not None:
            try:
                secret = secret_of(self._place.password, argument="registry_password")
            except InvalidArgument as error:
                self._fail("an answer", str(error))
            login = base64.b64encode(f"{self._place.username}:{secret}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        connection = _Pinned(host, port, address, self._context() if parts.scheme == "https" else None)
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, self._body(answer)
        finally:
            connection.close()

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        until, out = time.monotonic() + ANSWER_SECONDS, bytearray()
        while piece := answer.read1(1 << 16):
            out += piece
            if len(out) > ANSWER_BYTES_MAX:
                self._fail("a schema", f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > until:
                raise TimeoutError(f"its answer took longer than {ANSWER_SECONDS:g} s")
        return bytes(out)

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._place.ca)

    def _checked_address(self, host: str, port: int) -> str:
        """The address of the host. Looked up once for each request, so what is checked is what is connected to."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        at = ipaddress.ip_address(address.partition("%")[0])
        at = getattr(at, "ipv4_mapped", None) or at
        if at.is_link_local or at.is_multicast or at.is_unspecified:
            why = f"it is at {at}, where no registry is, but perhaps something that gives out a machine's credentials"
            self._fail("an answer", why)
        if not at.is_global and not self._place.private:
            why = f"it is at {at}, in the network of this machine: allow that with registry_private=True"
            self._fail("an answer", why)
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
