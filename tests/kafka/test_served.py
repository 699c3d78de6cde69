"""Commands, the HTTP API and the page's overview on a log in Kafka."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace.calls import Requests
from headrace.log.kafka import client as client_module
from headrace.serve.server import Server
from tests.cli.conftest import Shell

CLICKS = "user string, page string, ms int, at timestamp"
AT = "2026-01-01T00:00:00Z"


@pytest.fixture
def address(broker: str) -> str:
    return hr.kafka(broker, prefix=f"s{uuid.uuid4().hex[:8]}.").address


@pytest.fixture
def log(address: str) -> Iterator[Any]:
    with hr.open_log(address) as log:
        yield log


@contextlib.contextmanager
def serving(home: Path, address: str) -> Iterator[httpx.Client]:
    with Server(home, port=0, log=address) as server:
        token = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=token, timeout=30) as client:
            yield client


def test_topics_groups_and_letters_of_a_cluster_over_http(log: Any, address: str, tmp_path: Path) -> None:
    clicks = log.create_topic("clicks", CLICKS, key="user", event_time="at", partitions=2)
    clicks.append([{"user": f"u{n}", "ms": n, "at": AT} for n in range(10)])
    with clicks.group("billing").join() as member:
        polled = 0
        while polled < 4:
            polled += len(member.poll(timeout="10 seconds", max_records=4 - polled))
        member.commit()
    clicks.bury([{"reason": "bad_input", "raw": b"x", "error": "no row"}])
    with serving(tmp_path / "home", address) as client:
        assert [each["name"] for each in client.get("/api/topics").json()] == ["clicks"]
        found = client.get("/api/topics/clicks").json()
        assert sum(each["next"] for each in found["partitions"]) == 10
        (group,) = found["groups"]
        assert (group["group"], group["lag_records"], group["lag_seconds"] > 0) == ("billing", 6, True)
        assert client.get("/api/groups").json()[0]["group"] == "billing"
        done = client.post("/api/topics/clicks/records", json={"user": "ann", "ms": 99, "at": AT})
        assert done.json()["position"]
        records = client.get("/api/topics/clicks/records", params={"limit": 100}).json()
        assert len(records["records"]) == 11 and sum(records["next"].values()) == 11
        (letter,) = client.get("/api/dead-letters").json()["dead_letters"]
        assert client.post(f"/api/dead-letters/{letter['id']}/drop").status_code == 200
        assert client.get("/api/dead-letters").json()["count"] == 0
        assert client.get("/api/queues").json() == []
        facts = client.get("/api/overview").json()
        (topic,) = facts["topics"]
        assert (topic["name"], topic["records"], len(topic["partitions"])) == ("clicks", 11, 2)
        assert [(each["group"], each["lag"]) for each in facts["groups"]] == [("billing", 7)]
        assert facts["problems"] == []
        assert 'headrace_topic_records{name="clicks"} 11' in client.get("/metrics").text
    assert not (tmp_path / "home").exists()  # looking makes nothing


def test_a_topic_is_shown_without_reading_it(log: Any, address: str, tmp_path: Path, monkeypatch: Any) -> None:
    from headrace.log.kafka.reading import Reader

    clicks = log.create_topic("clicks", CLICKS, event_time="at")
    clicks.append({"user": "ann", "at": AT})
    monkeypatch.setattr(Reader, "chunks", None)  # a topic may have billions of records
    with serving(tmp_path, address) as client:
        (topic,) = client.get("/api/overview").json()["topics"]
        (found,) = topic["partitions"]
        assert (found["earliest"], found["next"], found["progress"]) == (0, 1, None)


def test_views_are_shown_while_no_broker_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka", reason="Kafka's client is not installed")
    monkeypatch.setattr(client_module, "REQUEST_SECONDS", 0.3)
    with serving(tmp_path, "kafka://127.0.0.1:1") as client:
        facts = client.get("/api/overview").json()
        assert facts["views"] == [] and "Kafka at 127.0.0.1:1" in facts["problems"][0]
        answer = client.get("/api/topics")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "KafkaFailed")


def test_commands_on_a_cluster(log: Any, address: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")

    def headrace(*arguments: str, stdin: bytes = b"") -> Any:
        return shell.ok("--home", str(shell.home), "--log", address, *arguments, stdin=stdin)

    headrace("topics", "create", "clicks", CLICKS, "--key", "user", "--event-time", "at")
    headrace("produce", "clicks", stdin=b'{"user": "ann", "ms": 7, "at": "%s"}\n' % AT.encode())
    assert [row["ms"] for row in headrace("consume", "clicks", "--group", "g", "--max", "1").rows] == [7]
    (shown,) = headrace("topics", "show", "clicks").rows
    assert [each["next"] for each in shown["partitions"]] == [1] and shown["groups"][0]["lag_records"] == 0
    headrace("produce", "clicks", stdin=b'{"user": "bob", "ms": 8, "at": "%s"}\n' % AT.encode())
    assert [(row["group"], row["lag_records"]) for row in headrace("groups", "list").rows] == [("g", 1)]
    headrace("groups", "rewind", "g", "clicks", "--start", "earliest")
    assert headrace("groups", "show", "g", "clicks").rows[0]["lag_records"] == 2
    headrace("topics", "alter", "clicks", "--retention", "30 days")
    log.topic("clicks").bury([{"reason": "bad_input", "raw": b"x", "error": "no row"}])
    (letter,) = headrace("dead", "list").rows
    headrace("dead", "drop", str(letter["id"]), "--yes")
    assert headrace("dead", "list").rows == []
    (found,) = [row for row in headrace("doctor").rows if row["check"] == "log"]
    assert found["state"] == "ok" and address in found["found"]
    assert "1 topic" in headrace("verify").err
    done = shell("--home", str(shell.home), "--log", address, "maintain")
    assert done.code == 1 and "has no" in done.err, done
    done = shell("--home", str(shell.home), "--log", address, "erase", "clicks", "ann", "--yes")
    assert done.code == 1 and "a record with the key and no value" in done.rows[0]["do"], done
    headrace("topics", "delete", "clicks", "--yes")
    assert headrace("topics", "list").rows == []


def test_requests_on_a_cluster(log: Any, address: str, tmp_path: Path) -> None:
    """Answered by the log and over HTTP; without versions nothing can be taken back."""
    quotes = log.create_topic("quotes", "id string, sku string", key="id", partitions=2)
    answers = log.create_topic("quotes.answers", "id string, n int", key="id", partitions=2)
    answers.append([{"id": f"old{n}", "n": 0} for n in range(4)])
    with pytest.raises(hr.CallTimeout):
        hr.call(log, "quotes", {"sku": "a"}, id="a", timeout="10 milliseconds")
    requests = Requests(log, "quotes")
    start = requests.answered_from("a", fresh=True)
    assert isinstance(start, dict) and sum(start.values()) >= 4 and requests.reply("a", start) is None
    seen = requests.news()
    answers.append({"id": "a", "n": 1})
    requests.wait(seen, 60)
    reply = requests.reply("a", start)
    assert reply is not None and reply == hr.call(address, "quotes", id="a") and reply.value == {"id": "a", "n": 1}
    with serving(tmp_path / "home", address) as client:
        path = "/api/topics/quotes/calls"
        late = client.post(path, json={"request": {"sku": "c"}, "id": "c", "timeout": "10 milliseconds"})
        assert late.status_code == 504 and late.json()["error"]["type"] == "CallTimeout"
        answers.append({"id": "c", "n": 2})
        found = client.get(path, params={"id": "c", "wait": "20 seconds"}).json()
        assert found["value"] == {"id": "c", "n": 2}
        refused = client.delete(path, params={"id": "c"})
        assert refused.status_code == 400 and "keeps no versions" in refused.text
    assert sorted(record.key for record in quotes.records()) == ["a", "c"]
