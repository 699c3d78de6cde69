"""Requests over HTTP, to a server of `headrace serve` or `run --serve`. Owns what is asked of it, and how its errors
become ours. The token goes into a header, and into nothing else: no address, no error, no list of processes.

A connection that is lost says nothing of the request, which may have been appended: so a call is made anew by its
caller, with the same id, and never here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from headrace import errors, outbound
from headrace.errors import CallFailed, CallTimeout, HeadraceError, InvalidArgument
from headrace.jsonrows import encode_row, parse_object
from headrace.names import check_name
from headrace.references import secret_of

__all__ = ["TOKEN", "Remote", "refused"]

TOKEN = "env:HEADRACE_TOKEN"
"""Where the token is, unless it is said."""
WAIT_SECONDS = 30.0
"""How long one request waits for a reply; then the next one does."""
MORE_SECONDS = 10.0
"""How much later than that the server may answer."""


class Remote:
    """A server. Opens a connection for each request."""

    def __init__(self, url: str, token: str | None) -> None:
        try:
            outbound.check_url(url)
        except outbound.Refused as error:
            raise InvalidArgument("url", "http…", str(error)) from None
        parts = urlsplit(url)
        if parts.query or parts.fragment or "@" in parts.netloc:
            why = "has more than a host, a port and a path: the token is a reference of its own, token='env:NAME'"
            raise InvalidArgument("url", f"{parts.scheme}://…", why)
        if token is not None and not token.startswith(("env:", "file:")):
            raise InvalidArgument("token", "…", "must be a reference, env:NAME or file:PATH: programs are read by many")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {secret_of(token or TOKEN, argument='token')}"}

    def call(self, name: str, request: Mapping[str, Any] | None, id: str, seconds: float) -> dict[str, Any]:
        """The reply, as JSON has it."""
        until = time.monotonic() + seconds
        if request is None:
            found = self._reply(name, id, min(seconds, WAIT_SECONDS))
        else:
            given = {"request": dict(request), "id": id, "timeout": _span(seconds), "wait": _span(WAIT_SECONDS)}
            found = self._ask("POST", name, id, encode_row(given), min(seconds, WAIT_SECONDS))
        while found is None:
            left = until - time.monotonic()
            if left <= 0:
                raise CallTimeout(topic=name, id=id, seconds=seconds)
            found = self._reply(name, id, min(left, WAIT_SECONDS))
        return found

    def cancel(self, name: str, id: str) -> bool:
        found = self._ask("DELETE", name, id, None, 0.0)
        return found is not None and found["cancelled"] is True

    def _reply(self, name: str, id: str, seconds: float) -> dict[str, Any] | None:
        return self._ask("GET", name, id, None, seconds, wait=_span(seconds))

    def _ask(
        self, method: str, name: str, id: str, body: bytes | None, seconds: float, **asked: str
    ) -> dict[str, Any] | None:
        """What the server answers; None if there is no reply yet."""
        query = "" if body is not None else f"?{urlencode({'id': id, **asked})}"
        url = f"{self._url}/api/topics/{quote(check_name(name, argument='topic'), safe='')}/calls{query}"
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        try:
            answer = outbound.request(
                method, url, headers=headers, body=body, private=True, seconds=seconds + MORE_SECONDS
            )
            found = parse_object(answer.body)
        except (outbound.Refused, outbound.Failed, HeadraceError) as error:
            raise CallFailed(topic=name, id=id, why=_said(error)) from None
        if answer.status == 200:
            return found
        refusal = refused(found, name, id)
        if isinstance(refusal, CallTimeout):
            return None
        raise refusal


def refused(answer: Mapping[str, Any], topic: str, id: str) -> HeadraceError:
    """The error that a server answered with."""
    said = answer.get("error")
    if not isinstance(said, dict):
        return CallFailed(topic=topic, id=id, why="what answers there is no server of headrace")
    kind, facts = getattr(errors, str(said.get("type")), None), said.get("facts")
    if kind is CallTimeout:
        return CallTimeout(topic=topic, id=id, seconds=0.0)
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and isinstance(facts, dict):
        try:
            return kind(**facts)
        except TypeError:  # of another version
            pass
    return CallFailed(topic=topic, id=id, why=str(said.get("message")))


def _said(error: Exception) -> str:
    return "its answer is no JSON object" if isinstance(error, HeadraceError) else str(error)


def _span(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))} milliseconds"
