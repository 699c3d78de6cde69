"""Requests over topics: answered once, found by their id, whoever asks and whenever."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.cli.conftest import Shell, shell

__all__ = ["shell"]

REQUESTS = "id string, sku string, at timestamp"


def shop(home: Path, spark: Any) -> tuple[hr.App, hr.Table]:
    app = hr.App("shop", home=home, spark=spark)
    prices = app.table("prices", "sku string, cents int", key="sku")
    quotes = app.topic("quotes", REQUESTS, key="id", event_time="at", versioned=True)
    app.answers("quotes", app.stream(quotes).enrich(prices, on="sku", columns=["cents"]))
    return app, prices


@pytest.fixture
def made(tmp_path: Path, headrace_spark: Any) -> Iterator[tuple[hr.App, hr.Table]]:
    app, prices = shop(tmp_path / "home", headrace_spark)
    with app:
        prices.upsert([{"sku": "k1", "cents": 5}, {"sku": "k2", "cents": 7}])
        yield app, prices


def test_a_flow_answers(made: tuple[hr.App, hr.Table], shell: Shell, tmp_path: Path) -> None:
    app, _ = made
    app.start()
    reply = hr.call(app, "quotes", {"sku": "k1"}, timeout="1 minute")
    assert reply.value["cents"] == 5 and reply.value["id"] == reply.id and "op" not in reply.value
    found: dict[str, int] = {}

    def ask(id: str, sku: str) -> None:
        found[id] = hr.call(tmp_path / "home", "quotes", {"sku": sku}, id=id, timeout="1 minute").value["cents"]

    threads = [threading.Thread(target=ask, args=(f"r{n % 4}", f"k{n % 2 + 1}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"r0": 5, "r1": 7, "r2": 5, "r3": 7}
    assert app.log.topic("quotes").offsets()[0].next == 5, "each id is one request"
    said = shell.ok("call", "quotes", '{"sku": "k2"}', "--id", "r9", "--timeout", "1 minute", "--format", "json")
    assert json.loads(said.out)["cents"] == 7
    app.stop()


def test_a_column_op_of_a_reply_is_one_like_any_other(tmp_path: Path) -> None:
    """Only in a topic of changes it says what is taken back. No Spark."""
    with hr.open_log(tmp_path) as log:
        log.create_topic("sums", "id string, op string", key="id", versioned=True)
        log.create_topic("sums.answers", "id string, op string, x int", key="id").append({"id": "a", "op": "-", "x": 5})
        assert hr.call(log, "sums", {"op": "-"}, id="a").value == {"id": "a", "op": "-", "x": 5}
        with pytest.raises(hr.InvalidArgument, match="must be a mapping"):
            hr.call(log, "sums", ["-"])  # type: ignore[arg-type]


def test_a_request_stands(made: tuple[hr.App, hr.Table]) -> None:
    """Nobody answers; later somebody does."""
    app, _ = made
    app.drain()
    with pytest.raises(hr.CallTimeout, match="call again with id='order-1'") as caught:
        hr.call(app, "quotes", {"sku": "k1"}, id="order-1", timeout="10 milliseconds")
    assert (caught.value.topic, caught.value.id) == ("quotes", "order-1")
    app.drain()
    first = hr.call(app, "quotes", {"sku": "k1"}, id="order-1")
    assert first.value["cents"] == 5
    app.drain()
    assert hr.call(app, "quotes", {"sku": "k1"}, id="order-1") == first
    assert app.log.topic("quotes.answers").offsets()[0].next == 1


def test_a_request_is_taken_back_before_the_flow_reads_it(made: tuple[hr.App, hr.Table]) -> None:
    """The flow answers all the same, too late: that reply is nobody's."""
    app, _ = made
    app.drain()
    for id in ("order-1", "order-2"):
        with pytest.raises(hr.CallTimeout):
            hr.call(app, "quotes", {"sku": "k1"}, id=id, timeout="1 millisecond")
    assert hr.cancel(app, "quotes", "order-1")
    app.drain()
    assert app.log.topic("quotes.answers").offsets()[0].next == 2
    with pytest.raises(hr.CallCancelled):
        hr.call(app, "quotes", id="order-1")
    assert hr.call(app, "quotes", id="order-2").value["cents"] == 5
    assert not hr.cancel(app, "quotes", "order-2") and hr.cancel(app, "quotes", "order-1")


def test_a_flow_can_leave_out_what_arrived_too_late(tmp_path: Path, headrace_spark: Any) -> None:
    with hr.App("sums", home=tmp_path / "home", spark=headrace_spark) as app:
        sums = app.topic("sums", "id string, n int, deadline timestamp", key="id", versioned=True)
        in_time = app.stream(sums).transform(lambda df: df.where("deadline >= _arrived_at"))
        app.answers("sums", in_time)
        for id, deadline in (("late", "2020-01-01T00:00:00Z"), ("early", "2200-01-01T00:00:00Z")):
            with pytest.raises(hr.CallTimeout):
                hr.call(app, "sums", {"n": 1, "deadline": deadline}, id=id, timeout="1 millisecond")
        app.drain()
        assert [record.key for record in app.log.topic("sums.answers").records()] == ["early"]


def test_requests_that_make_no_sense(made: tuple[hr.App, hr.Table]) -> None:
    app, _ = made
    app.log.create_topic("clicks", "user string", key="user")
    with pytest.raises(hr.InvalidArgument, match="no topic of requests"):
        hr.call(app, "clicks", {"user": "ann"})
    with pytest.raises(hr.InvalidArgument, match="give it as id="):
        hr.call(app, "clicks", {"id": "1"})
    with pytest.raises(hr.InvalidArgument, match="names the request"):
        hr.call(app, "clicks", {}, id="")
    with pytest.raises(hr.UnknownTopic):
        hr.call(app, "nothing", {})
