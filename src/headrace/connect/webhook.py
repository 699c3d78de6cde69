"""A sink that is a web address: each row is posted to it, one after the other. Owns what is sent, its signature, and
what an answer means. Where a row is in the topic, and that it comes again after a failure, is `calling`'s.

A row that comes again has the same id and the same bytes, so a receiver that remembers ids acts on each once. The
signature is that of Standard Webhooks: HMAC-SHA256 of `id.timestamp.body`, with a new timestamp for each attempt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace import outbound
from headrace.connect.calling import Calling
from headrace.errors import InvalidArgument, SinkFailed, WebhookGone
from headrace.jsonrows import encode_row
from headrace.references import secret_of
from headrace.rows import to_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.contract import Log, Topic

__all__ = ["Webhook", "signature", "webhook"]

KEY_PREFIX = "whsec_"
AGAIN = (408, 409, 425, 429)
"""Statuses below 500 that ask for another attempt."""
GONE = 410
ROWS_MAX = 1
"""Each row has a key of its own: of several, those before the one that failed would be posted again."""
PLACE = ("_partition", "_offset")
OWN_HEADERS = {
    *("webhook-id", "webhook-timestamp", "webhook-signature"),
    *("content-type", "content-length", "transfer-encoding", "host", "user-agent"),
}
_REFERENCE = ("env:", "file:")


def webhook(
    url: str,
    *,
    secret: str | None = None,
    headers: dict[str, str] | None = None,
    attempts: int | None = None,
    per_minute: int | None = None,
    private: bool = False,
    ca: str | None = None,
) -> Webhook:
    """A sink that posts each row as JSON. `url`, `secret` and the values of `headers` may be references: `env:NAME`,
    `file:PATH`; a secret must be one. `attempts`: after so many a row becomes a dead letter; None goes on for ever.
    `per_minute`: at most so many rows. `private`: the address may be in the network of this machine. `ca`: a file with
    the certificates that are trusted."""
    if not isinstance(url, str) or not url.startswith((*_REFERENCE, "https://", "http://")):
        raise InvalidArgument("url", "…", "must be https://…, http://… or a reference to one: env:NAME, file:PATH")
    if not url.startswith(_REFERENCE):
        _check_url(url)
    if secret is not None and not (isinstance(secret, str) and secret.startswith(_REFERENCE)):
        raise InvalidArgument("secret", "…", "must be a reference, env:NAME or file:PATH: programs are read by many")
    for name, value in (("attempts", attempts), ("per_minute", per_minute)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidArgument(name, value, "must be a whole number above zero, or None")
    given = tuple((headers or {}).items())
    for name, text in given:
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidArgument("headers", name, "must be texts: {'Authorization': 'env:NAME'}")
        if name.lower() in OWN_HEADERS:
            raise InvalidArgument("headers", name, "is a header that every request has: leave it out")
    _check_headers({name: "" if text.startswith(_REFERENCE) else text for name, text in given})
    return Webhook(url, secret, given, attempts, per_minute, private, ca)


@dataclass(frozen=True)
class Webhook:
    url: str = field(repr=False)  # it may be all that one needs to post there
    secret: str | None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    attempts: int | None = None
    per_minute: int | None = None
    private: bool = False
    ca: str | None = None
    kind: str = "webhook"
    tries: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """How often the row that is next was tried, by its key: a sink is opened again after each failure."""

    def facts(self) -> dict[str, Any]:
        return {"host": None if self.url.startswith(_REFERENCE) else urlsplit(self.url).hostname}

    def over(
        self,
        name: str,
        log: Log,
        topic: Topic,
        home: Path,  # noqa: ARG002
        key: tuple[str, ...] | None,  # noqa: ARG002
    ) -> Calling:
        return Calling(name, log, topic, Posting(self, name, topic), ROWS_MAX)


class Posting:
    """What is called with each row."""

    def __init__(self, hook: Webhook, name: str, topic: Topic) -> None:
        self._hook, self._name, self._topic = hook, name, topic
        self._url = _resolved(hook.url, "url")
        _check_url(self._url)
        self._key = None if hook.secret is None else _key_of(_resolved(hook.secret, "secret"))
        self._headers = {header: _resolved(value, "headers") for header, value in hook.headers}
        _check_headers(self._headers)
        self._next = 0.0

    def __call__(self, rows: pa.Table, key: str) -> None:
        for row in rows.to_batches():
            for each in to_rows(row):
                self._post(each, key)

    def _post(self, row: dict[str, Any], key: str) -> None:
        body, tries = body_of(self._name, key, row), self._hook.tries
        self._pace()
        try:
            status = self._status(key, body)
        except outbound.Refused as error:
            hint = ": allow that with private=True" if isinstance(error, outbound.NearRefused) else ""
            raise SinkFailed(self._name, key, f"{self._where()}: {error}{hint}") from None
        except outbound.Failed as error:
            status, said = None, str(error)
        else:
            said = f"it answered with status {status}"
        if status is not None and 200 <= status < 300:
            tries.pop(key, None)
            return
        if status == GONE:
            raise WebhookGone(self._name, self._where())
        tries[key] = tries.get(key, 0) + 1
        again = status is None or status >= 500 or status in AGAIN
        if again and (self._hook.attempts is None or tries[key] < self._hook.attempts):
            raise SinkFailed(self._name, key, f"{self._where()}: {said}")
        times = "" if tries[key] == 1 else f", {tries[key]} times"
        letter = {"reason": "webhook", "error": f"{self._where()} refused the row: {said}{times}", "raw": body}
        self._topic.bury([{**letter, "source": f"sink {self._name}"}])
        tries.pop(key, None)

    def _status(self, key: str, body: bytes) -> int:
        at = int(time.time())
        headers = {"Content-Type": "application/json", **self._headers, "webhook-id": key, "webhook-timestamp": str(at)}
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, key, at, body)
        hook = self._hook
        return outbound.request(
            "POST", self._url, headers=headers, body=body, ca=hook.ca, private=hook.private, bytes_max=None
        ).status

    def _pace(self) -> None:
        if self._hook.per_minute is not None:
            now = time.monotonic()
            time.sleep(max(0.0, self._next - now))
            self._next = max(self._next, now) + 60 / self._hook.per_minute

    def _where(self) -> str:
        return f"the webhook at {urlsplit(self._url).hostname}"


def body_of(sink: str, key: str, row: dict[str, Any]) -> bytes:
    """What is posted: the same bytes whenever the row comes."""
    data = {name: value for name, value in row.items() if name not in PLACE}
    return b'{"type":%s,"id":%s,"data":%s}' % (_json(sink), _json(key), encode_row(data))


def signature(secret: bytes, id: str, at: int, body: bytes) -> str:
    """Of Standard Webhooks, version 1."""
    signed = f"{id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def _json(text: str) -> bytes:
    return encode_row({"": text})[4:-1]


def _key_of(secret: str) -> bytes:
    """`whsec_` and base64, as Standard Webhooks has it; any other text is its own bytes."""
    if not secret.startswith(KEY_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(KEY_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidArgument("secret", "…", f"begins with {KEY_PREFIX} and is not base64 behind it") from None


def _resolved(value: str, argument: str) -> str:
    return secret_of(value, argument=argument) if value.startswith(_REFERENCE) else value


def _check_headers(headers: dict[str, str]) -> None:
    try:
        outbound.check_headers(headers)
    except outbound.Refused as error:
        raise InvalidArgument("headers", "…", str(error)) from None


def _check_url(url: str) -> None:
    try:
        outbound.check_url(url)
    except outbound.Refused as error:
        raise InvalidArgument("url", "…", str(error)) from None
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.fragment:
        raise InvalidArgument("url", "…", "must be https://HOST/PATH or http://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("url", "…", "has a login in it: use headers={'Authorization': 'env:NAME'}")
