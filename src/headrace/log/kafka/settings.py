"""How a Kafka cluster is reached: servers, TLS, SASL, and a prefix for names. Owns the address text, and which settings
there are: nobody can name a login module or a URL to fetch a token from. Secrets are references (`env:NAME`,
`file:PATH`) that are resolved when a client is made; a `Kafka` value, its address and its errors hold no secret.
Touches nothing when it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from headrace.errors import InvalidArgument
from headrace.names import NAME_MAX
from headrace.places import without_secrets
from headrace.references import secret_of

__all__ = ["SCHEME", "Kafka", "parse_address"]

SCHEME = "kafka"
SWITCHES = ("tls", "registry_private")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_PREFIX = re.compile(r"[A-Za-z0-9._-]*")
_LOOPBACK = re.compile(r"(127\.\d+\.\d+\.\d+|localhost|\[::1\])")
_REGISTRY = re.compile(r"(https?)://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_REFERENCE = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka cluster. `servers`: HOST:PORT, several with commas. `prefix`: before the names of all topics, groups and
    transactional ids, so that several logs share a cluster. `username` and `password` (a reference, `env:NAME` or
    `file:PATH`): SASL, by `mechanism`. `tls`: by default with a username. `ca`, `certificate`, `key`: files with PEM
    texts; `key_password`: a reference. `registry`: the address of a schema registry, with a login of its own;
    `registry_private`: it may be in this machine's network."""

    servers: str
    prefix: str = ""
    username: str | None = None
    password: str | None = None
    mechanism: str = "SCRAM-SHA-512"
    tls: bool | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    registry: str | None = None
    registry_username: str | None = None
    registry_password: str | None = None
    registry_private: bool = False

    def __post_init__(self) -> None:
        for name in ("password", "key_password", "registry_password"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not _REFERENCE.fullmatch(value)):
                raise InvalidArgument(name, "…", "must be a reference to the secret: 'env:NAME' or 'file:PATH'")
        hosts = [_SERVER.fullmatch(each) for each in self.servers.split(",")] if isinstance(self.servers, str) else []
        if not hosts or None in hosts:
            raise InvalidArgument("servers", without_secrets(self.servers), "must be HOST:PORT, several with commas")
        if not isinstance(self.prefix, str) or not _PREFIX.fullmatch(self.prefix) or len(self.prefix) > NAME_MAX // 2:
            raise InvalidArgument("prefix", self.prefix, "has letters, digits, '.', '_' and '-', 124 at most")
        if self.mechanism not in MECHANISMS:
            raise InvalidArgument("mechanism", self.mechanism, f"must be one of {', '.join(MECHANISMS)}")
        if (self.username is None) != (self.password is None):
            raise InvalidArgument("username", self.username, "needs a password, and a password needs a username")
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("certificate", self.certificate, "needs its key, and a key needs its certificate")
        self._check_registry()
        if not self.uses_tls:
            if self.ca or self.certificate:
                raise InvalidArgument("tls", self.tls, "must not be off where certificates are given")
            if self.username and not all(host and _LOOPBACK.fullmatch(host[1]) for host in hosts):
                raise InvalidArgument("tls", self.tls, "must not be off: the password would cross the network in clear")

    def _check_registry(self) -> None:
        if (self.registry_username is None) != (self.registry_password is None):
            why = "needs a password, and a password needs a username"
            raise InvalidArgument("registry_username", self.registry_username, why)
        if not isinstance(self.registry_private, bool):
            raise InvalidArgument("registry_private", self.registry_private, "must be true or false")
        if self.registry is None:
            if self.registry_username is not None or self.registry_private:
                raise InvalidArgument("registry", None, "must be given where its login or its network is")
            return
        if not isinstance(self.registry, str) or not (found := _REGISTRY.fullmatch(self.registry)):
            why = "must be https://HOST:PORT, perhaps with a path, and without a login: registry_username= has that"
            raise InvalidArgument("registry", without_secrets(self.registry), why)
        if found[1] == "http" and self.registry_username and not _LOOPBACK.fullmatch(found[2]):
            why = "must be https where there is a login: the password would cross the network in clear"
            raise InvalidArgument("registry", self.registry, why)

    @property
    def uses_tls(self) -> bool:
        given = any((self.username, self.ca, self.certificate))
        return given if self.tls is None else bool(self.tls)

    @property
    def address(self) -> str:
        """The text that `parse_address` turns back into this value."""
        given = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        said = {name: value for name, value in given.items() if value is not None and value != _DEFAULTS[name]}
        query = urlencode({name: str(value).lower() if name in SWITCHES else value for name, value in said.items()})
        return f"{SCHEME}://{self.servers}{'?' if query else ''}{query}"

    def client_config(self) -> dict[str, Any]:
        """What librdkafka is told, secrets included: for a client, and for nothing else."""
        protocol = f"{'SASL_' if self.username else ''}{'SSL' if self.uses_tls else 'PLAINTEXT'}"
        config: dict[str, Any] = {"bootstrap.servers": self.servers, "security.protocol": protocol}
        if self.username and self.password:
            config |= {"sasl.mechanisms": self.mechanism, "sasl.username": self.username}
            config["sasl.password"] = secret_of(self.password, argument="password")
        if self.uses_tls:
            config["ssl.endpoint.identification.algorithm"] = "https"
            files = {"ssl.ca.location": self.ca, "ssl.certificate.location": self.certificate}
            files["ssl.key.location"] = self.key
            config |= {name: value for name, value in files.items() if value is not None}
            if self.key_password:
                config["ssl.key.password"] = secret_of(self.key_password, argument="key_password")
        return config


_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Kafka)[1:]}


def parse_address(address: str) -> Kafka:
    """`kafka://HOST:PORT,…?prefix=…&username=…&password=env:NAME`."""
    try:
        parts = urlsplit(address)
        said = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True))
    except ValueError:
        raise InvalidArgument("log", without_secrets(address), "is not an address such as kafka://HOST:PORT") from None
    if "@" in parts.netloc:
        why = "has a user in it; write ?username=NAME&password=env:NAME, so that no secret is in the address"
        raise InvalidArgument("log", without_secrets(address), why)
    if parts.path not in ("", "/") or parts.fragment:
        raise InvalidArgument("log", without_secrets(address), "has a path; an address is kafka://HOST:PORT?prefix=…")
    unknown = [name for name in said if name not in _DEFAULTS]
    if unknown:
        why = f"has the unknown setting {unknown[0]!r}; there are {', '.join(sorted(_DEFAULTS))}"
        raise InvalidArgument("log", without_secrets(address), why)
    given: dict[str, Any] = dict(said)
    for name in SWITCHES:
        if name in said:
            given[name] = {"true": True, "false": False}.get(said[name])
            if given[name] is None:
                raise InvalidArgument(name, said[name], "must be true or false")
    return Kafka(parts.netloc, **given)
