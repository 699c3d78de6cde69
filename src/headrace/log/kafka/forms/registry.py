"""A schema registry, as a reader needs it: the schema that has an id. Owns the requests and their limits, and what was
answered, which is kept for the life of the process: a schema never changes under its id, so what is known goes on being
read while the registry is down. Knows no Kafka and no values.

The address is the operator's, but a request to it must not become one to somewhere else: see `headrace.outbound`."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import quote

import orjson

from headrace import outbound
from headrace.errors import InvalidArgument, RegistryFailed
from headrace.log.kafka.settings import Kafka
from headrace.references import secret_of

__all__ = ["Registry", "SchemaUnknown", "registry_of"]

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
        for subject, version in self._references(said, what):
            if depth > REFERENCES_MAX or len(texts) > REFERENCES_MAX:
                raise SchemaUnknown(f"{what} of the registry refers to more than {REFERENCES_MAX} others")
            where = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            self._collect(where, f"schema {subject!r} version {version}", texts, depth + 1)
        texts[text] = None

    def _references(self, said: Mapping[str, Any], what: str) -> list[tuple[str, int]]:
        try:
            return [(str(each["subject"]), int(each["version"])) for each in said.get("references") or ()]
        except (TypeError, KeyError, ValueError):
            self._fail(what, "its references are none that name a subject and a version")

    # -- requests ----------------------------------------------------------------------------------

    def _get(self, path: str, what: str) -> dict[str, Any]:
        for pause in (*TRY_AGAIN_SECONDS, None):
            try:
                status, body = self._request(path)
            except outbound.Failed as error:
                status, body = 0, str(error).encode("utf-8", "replace")
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
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "User-Agent": "headrace"}
        if self._place.username is not None and self._place.password is not None:
            try:
                secret = secret_of(self._place.password, argument="registry_password")
            except InvalidArgument as error:
                self._fail("an answer", str(error))
            login = base64.b64encode(f"{self._place.username}:{secret}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        try:
            answer = outbound.request(
                "GET",
                self._place.url.rstrip("/") + path,
                headers=headers,
                ca=self._place.ca,
                private=self._place.private,
                bytes_max=ANSWER_BYTES_MAX,
            )
        except outbound.Refused as error:
            hint = ": allow that with registry_private=True" if isinstance(error, outbound.NearRefused) else ""
            self._fail("an answer", f"{error}{hint}")
        return answer.status, answer.body
