"""Joins as programs have them, where something about them is odd. Without a JVM."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.flows.folding import meeting
from tests.operators.sparkless_joins import without_spark

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return ZERO + timedelta(seconds=seconds)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[hr.App]:
    without_spark(monkeypatch.setattr)
    with hr.App("odd", home=":temp:") as app:
        yield app


def rows(view: hr.View, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in view.to_arrow().to_pylist()), key=str)


def test_a_change_of_many_joined_rows_is_warned_of(
    app: hr.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting, "FAN_OUT_ROWS", 400)
    posts, authors = app.table("posts", "id int, author int", key="id"), app.table("authors", "id int, n int", key="id")
    timeline = posts.join(authors, on={"author": "id"}).to_view("timeline")
    authors.upsert([{"id": n, "n": n} for n in (1, 2)])
    with caplog.at_level(logging.WARNING):
        posts.upsert([{"id": n, "author": n % 2} for n in range(500)])
        app.drain()
        assert not caplog.messages
        authors.upsert({"id": 1, "n": 7})
        app.drain()
    assert caplog.messages == ["flow timeline: 1 changes of its tables made 500 changes of joined rows, in one commit"]
    assert timeline.to_arrow().num_rows == 250


def test_rows_of_self_joins_that_are_joined_again_have_different_ids(app: hr.App) -> None:
    """A row without a match on the left, of one without a match on the right, is not that the other way around."""
    clicks = app.topic("clicks", "user string, at timestamp", event_time="at")
    stream = app.stream(clicks)
    one, other = (
        stream.join(stream, on="user", how=how, suffix=f"_{how}", grace="0 seconds") for how in ("right", "full")
    )
    view = one.join(other, on="user", how="full", suffix="_2", grace="0 seconds").to_view("v")
    clicks.append({"user": None, "at": at(5)})
    app.drain()
    names = ("at", "at_right", "at_2", "at_full")
    none = None
    assert rows(view, *names) == sorted(
        [(none, at(5), none, none), (none, none, at(5), none), (none, none, none, at(5))], key=str
    )
    for (id_,) in rows(view, "_id"):
        assert [(each.topic, each.offset) for each in view.why(id_).origins] == [("clicks", 0)]
