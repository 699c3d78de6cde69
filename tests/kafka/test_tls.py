"""TLS and a login by SCRAM on a real broker, with certificates made here. The password is a canary: it is searched for
in all that headrace says, sends or leaves behind."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace.serve.server import Server
from tests.broker import started

CANARY = f"canary-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Secure:
    servers: str
    folder: Path

    def kafka(self, **given: Any) -> Any:
        settings = {"servers": self.servers, "username": "ann", "password": f"file:{self.folder / 'password'}"}
        return hr.kafka(**{**settings, "ca": str(self.folder / "ca.pem"), **given})


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    try:
        make_certificates(folder)
    except FileNotFoundError:
        pytest.skip("no certificates: there is no openssl on the PATH")
    for name, text in (("password", CANARY), ("wrong", f"not-{CANARY}")):
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    with started("--tls", str(folder), "--user", f"ann:{folder / 'password'}") as servers:
        yield Secure(servers, folder)


def make_certificates(folder: Path) -> None:
    """`ca.pem`, and `broker.pem` for localhost, which that authority has signed; `other.pem`: another authority."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    openssl("req", *key[:-2], "-keyout", "broker.key", "-out", "broker.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    signed = ("-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    openssl("x509", "-req", *signed, "-extfile", "names", "-out", "broker.crt")
    parts = [(folder / name).read_text() for name in ("broker.key", "broker.crt", "ca.pem")]
    (folder / "broker.pem").touch(0o600)
    (folder / "broker.pem").write_text("".join(parts))


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"password": "file:{folder}/wrong"}, "_AUTHENTICATION", "username, password and mechanism"),
        ({"mechanism": "PLAIN"}, "_AUTHENTICATION", "SCRAM-SHA-512"),
        ({"ca": "{folder}/other.pem"}, "_SSL", "Look at ca"),
        ({"servers": "127.0.0.1:{port}"}, "_SSL", "host in servers"),  # the certificate is for localhost
        ({"ca": "{folder}/missing.pem"}, "_INVALID_ARG", "ssl.ca.location"),
    ],
)
def test_a_login_or_a_certificate_that_is_refused_says_so_at_once(
    secure: Secure, wrong: dict[str, str], code: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = secure.servers.rpartition(":")[2]
    given = {name: value.format(folder=secure.folder, port=port) for name, value in wrong.items()}
    with caplog.at_level(logging.DEBUG), pytest.raises(hr.KafkaFailed) as error:
        hr.open_log(secure.kafka(**given))
    assert error.value.code == code and said in str(error.value)
    assert CANARY not in str(error.value) + repr(vars(error.value)) + caplog.text


def test_the_password_is_in_nothing_that_is_said_or_sent(
    secure: Secure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    with caplog.at_level(logging.DEBUG), hr.open_log(secure.kafka()) as log:
        clicks = log.create_topic("clicks", "user string", key="user")
        clicks.append({"user": "ann"})
        with log.transaction() as tx:
            tx.append("clicks", {"user": "bob"})
        assert [record.value["user"] for record in clicks.records()] == ["ann", "bob"]
        with clicks.group("g").join() as member:
            assert len(member.poll(timeout="20 seconds")) == 2
            member.commit()
        app = hr.App("shop", home=tmp_path / "home", log=secure.kafka())
        said += [repr(log), log.address, repr(app), repr(app.log_at), str(pickle.dumps(clicks.ref())), repr(clicks)]
        with Server(tmp_path / "home", port=0, log=secure.kafka().address) as server:
            token = {"Authorization": f"Bearer {server.token}"}
            with httpx.Client(base_url=server.url, headers=token, timeout=30) as client:
                paths = ("overview", "topics", "topics/clicks", "topics/clicks/records", "groups", "dead-letters")
                answers = [client.get(f"/api/{path}") for path in (*paths, "topics/none")]
                answers.append(client.get("/metrics"))
                assert [answer.status_code for answer in answers] == [*[200] * 6, 404, 200]
                said += [answer.text + str(answer.headers) for answer in answers]
        said.append(subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout)
    assert CANARY not in "".join(said) + caplog.text


PROGRAM = """
import subprocess, sys
import headrace as hr

app = hr.App("shop", home=sys.argv[1], log=sys.argv[2], driver_rows=0,
             spark={"spark.eventLog.enabled": "true", "spark.eventLog.dir": sys.argv[3]})
clicks = app.topic("seen", "user string", key="user")
views = app.stream(clicks).group_by("user").agg(n=hr.count()).to_view("by_user")
clicks.append([{"user": "ann"}, {"user": "bob"}])
app.drain()
assert views.to_arrow().num_rows == 2
print(app.status(), views.status(), app.flows, repr(app))
print(subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout)
app.close()
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_password_is_in_no_plan_and_no_event_log(secure: Secure, tmp_path: Path) -> None:
    events, home = tmp_path / "events", tmp_path / "home"
    events.mkdir()
    address = secure.kafka().address
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), address, str(events)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    written = [path for folder in (events, home) for path in folder.rglob("*") if path.is_file()]
    assert any(events in path.parents and path.stat().st_size for path in written)  # Spark has written plans
    for text in (done.stdout, done.stderr, *(path.read_bytes() for path in written)):
        assert CANARY.encode() not in text
