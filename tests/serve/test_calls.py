"""Requests: taken back, waited for, and asked over HTTP. A thread answers in place of a flow. No Spark."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace as hr
from headrace.calls import Requests, answers_of, cancelled_of
from headrace.errors import CallCancelled, CallFailed, CallTimeout, InvalidArgument, RecordRejected, UnknownTopic
from headrace.log.embedded.log import EmbeddedLog
from headrace.serve.server import Server
from headrace.serve.shapes import ANSWERS
from tests.cli.conftest import Shell, shell

__all__ = ["shell"]

QUOTES = "id string, sku string, price decimal(9,2), deadline timestamp"
TOKEN = "a-token-that-nobody-may-see"


class Shop:
    """A log with requests, and somebody who answers them while `answering`: each with a number of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log: EmbeddedLog = hr.open_log(home)
        self.quotes = self.log.create_topic("quotes", QUOTES, key="id", versioned=True)
        self.answers = self.log.create_topic("quotes.answers", "id string, n int", key="id", versioned=True)
        self._numbers = iter(range(1, 1_000_000))

    def answer(self, id: str) -> int:
        number = next(self._numbers)
        self.answers.append({"id": id, "n": number})
        return number

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        ended = threading.Event()

        def answer() -> None:
            read = 0
            while not ended.is_set():
                seen = self.log.news([self.quotes])
                for record in self.quotes.records({0: read}):
                    read = record.offset + 1
                    self.answer(record.value["id"])
                self.log.wait(seen, 0.2)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "home")
    with made.log:
        yield made


@pytest.fixture
def url(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server."""
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    server = Server(shop.home, port=0, token=TOKEN)
    server.start()
    yield server.url
    server.stop()


# -- taken back ------------------------------------------------------------------------------------------


def test_a_request_is_answered_or_cancelled_and_stays_so(shop: Shop, seed: int) -> None:
    """Replies and cancellations at the same time: whichever was first is what everybody sees, then and later."""
    dice, ids = random.Random(seed), [f"r{number}" for number in range(40)]
    for id in ids:
        with pytest.raises(CallTimeout):
            hr.call(shop.log, "quotes", {"sku": "k"}, id=id, timeout="1 millisecond")
    taken: dict[str, set[bool]] = {id: set() for id in ids}
    work = [(id, kind) for id in ids for kind in ("answer", "cancel", "cancel")]
    dice.shuffle(work)

    def run(mine: list[tuple[str, str]]) -> None:
        for id, kind in mine:
            if kind == "answer":
                shop.answers.append({"id": id, "n": 1})
            else:
                taken[id].add(hr.cancel(shop.log, "quotes", id))

    threads = [threading.Thread(target=run, args=(work[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for id in ids:
        (cancelled,) = taken[id]  # who asked twice was told the same
        assert hr.cancel(shop.log, "quotes", id) is cancelled
        for again in (None, {"sku": "k"}):
            if cancelled:
                with pytest.raises(CallCancelled, match="was taken back"):
                    hr.call(shop.log, "quotes", again, id=id)
            else:
                assert hr.call(shop.log, "quotes", again, id=id).value == {"id": id, "n": 1}
    assert {cancelled for (cancelled,) in taken.values()} == {True, False}
    assert sum(end.next for end in shop.quotes.offsets().values()) == len(ids), "nothing was asked again"


def test_who_waits_is_told_that_the_request_was_taken_back(shop: Shop) -> None:
    told: list[Exception] = []

    def ask() -> None:
        with pytest.raises(CallCancelled) as caught:
            hr.call(shop.home, "quotes", {"sku": "k"}, id="r1", timeout="1 minute")
        told.append(caught.value)

    thread = threading.Thread(target=ask)
    thread.start()
    shop.quotes.records({0: 0}, follow=True).__next__()
    assert hr.cancel(shop.home, "quotes", "r1")
    thread.join(10)
    assert told and not thread.is_alive()
    assert hr.cancel(shop.log, "quotes", "never-asked"), "it may still be on its way"
    with pytest.raises(CallCancelled):
        hr.call(shop.log, "quotes", {"sku": "k"}, id="never-asked")
    assert shop.quotes.version("never-asked") == 0


def test_a_reply_that_comes_behind_the_cancellation_is_not_delivered(shop: Shop) -> None:
    """Both come while it is looked at one topic, and at the other."""

    class Slow(Requests):
        behind: Callable[[str], str]
        id: str

        def _beside(self, of: Callable[[str], str]) -> Any:
            found = super()._beside(of)
            if of is self.behind and not shop.answers.version(self.id):
                assert hr.cancel(shop.log, "quotes", self.id)
                shop.answer(self.id)
            return found

    ways: list[tuple[str, Callable[[str], str]]] = [("r1", answers_of), ("r2", cancelled_of)]
    for id, behind in ways:
        slow = Slow(shop.log, "quotes")
        slow.id, slow.behind = id, behind
        with pytest.raises(CallCancelled):
            for _ in range(2):
                assert slow.reply(id, "earliest") is None


def test_what_cannot_be_taken_back(shop: Shop) -> None:
    shop.log.create_topic("others", "id string", key="id")
    with pytest.raises(InvalidArgument, match="no flow has answered"):
        hr.cancel(shop.log, "others", "r1")
    shop.log.create_topic("others.answers", "id string", key="id")
    with pytest.raises(InvalidArgument, match="keeps no versions"):
        hr.cancel(shop.log, "others", "r1")
    with pytest.raises(UnknownTopic):
        hr.cancel(shop.log, "nothing", "r1")
    with pytest.raises(InvalidArgument, match="names the request"):
        hr.cancel(shop.log, "quotes", "")
    with pytest.raises(InvalidArgument, match="names the request"):
        hr.call(shop.log, "quotes")


def test_a_request_has_its_deadline(shop: Shop) -> None:
    before = datetime.now(UTC)
    for given in ({}, {"deadline": "2030-01-01T00:00:00Z"}):
        with pytest.raises(CallTimeout):
            hr.call(shop.log, "quotes", {"sku": "k", **given}, timeout="20 milliseconds")
    first, second = (record.value["deadline"] for record in shop.quotes.records())
    assert 0.02 <= (first - before).total_seconds() < 10 and second == datetime(2030, 1, 1, tzinfo=UTC)


# -- over HTTP -------------------------------------------------------------------------------------------


def test_a_call_over_http(shop: Shop, url: str, shell: Shell, tmp_path: Path) -> None:
    with shop.answering():
        reply = hr.call(url, "quotes", {"sku": "k1", "price": 1.5}, id="a/b c", timeout="1 minute")
        assert reply.value == {"id": "a/b c", "n": 1} and reply.position.offsets("quotes.answers") == {0: 1}
        assert hr.call(url + "/", "quotes", id="a/b c") == reply == hr.call(shop.log, "quotes", id="a/b c")
        said = shell.ok("call", "quotes", '{"sku": "k2"}', "--server", url, "--format", "json")
        assert said.rows[0]["n"] == 2
        file = tmp_path / "token"
        file.write_text(TOKEN)
        file.chmod(0o600)
        asked = ("call", "quotes", "--id", "a/b c", "--server", url, "--token-file", str(file), "--format", "json")
        assert shell.ok(*asked).rows == [reply.value]
        assert shell.ok(*asked, "--cancel").rows == [{"id": "a/b c", "cancelled": False}]
    assert shell.ok("call", "quotes", "--id", "r9", "--cancel", "--format", "json").rows[0]["cancelled"] is True
    with pytest.raises(CallTimeout, match="id='late'"):
        hr.call(url, "quotes", {"sku": "k1"}, id="late", timeout="50 milliseconds")
    number = shop.answer("late")
    assert hr.call(url, "quotes", {"sku": "other"}, id="late").value["n"] == number
    assert shop.quotes.version("late") == 1
    assert hr.cancel(url, "quotes", "gone") and not hr.cancel(url, "quotes", "late")
    with pytest.raises(CallCancelled):
        hr.call(url, "quotes", id="gone")
    for wrong in (("--cancel",), ("{}", "--cancel", "--id", "x"), (), ("{}", "--token-file", "x")):
        assert shell("call", "quotes", *wrong).code == 2


def test_what_a_server_refuses_is_what_a_log_refuses(shop: Shop, url: str) -> None:
    shop.log.create_topic("clicks", "user string", key="user")
    for where in (shop.log, url):
        with pytest.raises(UnknownTopic):
            hr.call(where, "nothing", {})
        with pytest.raises(InvalidArgument, match="no topic of requests"):
            hr.call(where, "clicks", {})
        with pytest.raises(RecordRejected, match="price"):
            hr.call(where, "quotes", {"price": "much"})


def test_what_nobody_can_wait_for_or_name_is_refused_everywhere(shop: Shop, url: str) -> None:
    """A deadline behind the year 9999 is no time; half a character is no text."""
    for where in (shop.log, url):
        with pytest.raises(InvalidArgument, match="longer than a year"):
            hr.call(where, "quotes", {"sku": "k"}, timeout="3000000 days")
        for ask in (hr.call, hr.cancel):
            with pytest.raises(InvalidArgument, match="lone surrogate"):
                ask(where, "quotes", id="\ud800")
    body = {"request": {"sku": "k"}, "timeout": "3000000 days", "wait": "1 millisecond"}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.post(f"{url}/api/topics/quotes/calls", json=body, headers=headers).status_code == 400
    for path, wrong in (("topics/quotes/calls", {"request": {}, "wiat": "1 s"}), ("query", {"sql": "x", "asof": "x"})):
        said = httpx.post(f"{url}/api/{path}", json=wrong, headers=headers)
        assert said.status_code == 422 and [*wrong][1] in said.text, "what is misspelt is not left out silently"
    assert shop.quotes.offsets()[0].next == 0


def test_the_token_is_nowhere(shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def refused(where: str, match: str, **options: Any) -> None:
        with pytest.raises((InvalidArgument, CallFailed), match=match) as caught:
            hr.call(where, "quotes", {"sku": "k"}, id="r1", **options)
        error: BaseException | None = caught.value
        while error is not None:
            said.extend((str(error), repr(error), repr(vars(error))))
            error = error.__context__

    refused(f"{url}/?token={TOKEN}", "a reference of its own")
    refused(url.replace("//", f"//{TOKEN}@"), "a reference of its own")
    refused(url, "must be a reference", token=TOKEN)
    refused(str(shop.home), "is for a server", token=f"env:{TOKEN}")
    monkeypatch.setenv("OTHER", TOKEN + "x")
    refused(url, "no token, or another one", token="env:OTHER")
    monkeypatch.setenv("OTHER", TOKEN + "\nX: y")
    refused(url, "line end", token="env:OTHER")
    refused("http://127.0.0.1:9", "ConnectionRefusedError")
    refused("http://127.0.0.1:99999", "port")
    refused(f"http://[{TOKEN}", "port")
    monkeypatch.delenv("HEADRACE_TOKEN")
    refused(url, "not set")
    assert said and TOKEN not in "".join(said)
    assert shop.quotes.offsets()[0].next == 0


def test_many_who_wait_share_one_thread(shop: Shop, url: str) -> None:
    """A hundred at most; each gets its own reply, and those who are too many are told so."""
    found: dict[str, Any] = {}

    def ask(id: str) -> None:
        try:
            found[id] = hr.call(url, "quotes", {"sku": "k"}, id=id, timeout="1 minute").value["id"]
        except CallFailed as error:
            found[id] = str(error)

    asking = [threading.Thread(target=ask, args=(f"r{number}",)) for number in range(110)]
    for thread in asking:
        thread.start()
    limit = time.monotonic() + 60
    records = shop.quotes.records({0: 0}, follow=True, timeout="1 minute")
    asked = [next(records).value["id"] for _ in range(100)]
    while len(found) < 10 and time.monotonic() < limit:
        shop.log.wait(shop.log.news([]), 0.05)
    assert len(found) == 10 and all("at its limit of 100" in each for each in found.values())
    waiting = [each.name for each in threading.enumerate() if "AnyIO worker" in each.name]
    assert len(waiting) <= 16, "far fewer than who waits"
    for id in asked:
        shop.answer(id)
    for thread in asking:
        thread.join(60)
    assert {id: found[id] for id in asked} == {id: id for id in asked}


def test_waiting_is_bounded(shop: Shop, url: str) -> None:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        path = "/api/topics/quotes/calls"
        late = client.get(path, params={"id": "x", "wait": "61 seconds"})
        assert late.status_code == 400 and "ask again instead" in late.text
        none = client.post(path, json={"request": {}, "id": "x", "timeout": "1 hour", "wait": "1 millisecond"})
        assert none.status_code == 504 and none.json()["error"]["facts"]["id"] == "x"
        named = client.post(path, json={"request": {}, "timeout": "1 millisecond"}).json()["error"]["facts"]["id"]
        assert shop.quotes.version(named) == 1
        (first, _) = [record.value for record in shop.quotes.records()]
        assert (first["deadline"] - datetime.now(UTC)).total_seconds() > 3_000
        taken = client.delete(path, params={"id": "x"})
        assert taken.json() == {"id": "x", "cancelled": True}
        shop.answer(named)
        there = client.get(path, params={"id": named}).json()
        for method, found in (("GET", there), ("POST", there), ("DELETE", taken.json())):
            ANSWERS[method, "/api/topics/{topic}/calls"].model_validate(found)
        assert client.get(path, params={"id": "x"}).status_code == 409
        assert client.post(path, json={"request": {"id": "y"}}).status_code == 400
        assert client.get("/api/topics/quotes/calls?id=x", headers={"Authorization": "Bearer no"}).status_code == 401
