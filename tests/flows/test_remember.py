"""Answers of an impure function: asked for once a key, recorded with the records, and used again by a rebuild."""

from __future__ import annotations

import itertools
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import InvalidArgument, TransformRefused


@pytest.fixture
def app(spark: Any) -> Iterator[hr.App]:
    with hr.App("texts", home=":temp:", spark=spark) as app:
        app.topic("texts", "id int, text string", partitions=2)
        yield app


def test_it_is_asked_once_for_each_key_and_never_again(app: hr.App) -> None:
    asked, numbers = Counter[str](), itertools.count(1)

    def label(text: str) -> str:
        asked[text] += 1
        return f"{text}{next(numbers)}"  # another answer each time

    stream = app.stream("texts").remember(label, key="text", column="label", type="string")
    view = stream.group_by("text", "label").agg(n=hr.count()).to_view("labels")
    topic = app.log.topic("texts")
    for start in (0, 10):
        topic.append([{"id": start + n, "text": "ab"[n % 2]} for n in range(10)])
        app.drain()
    assert asked == {"a": 1, "b": 1}
    found = {(row["text"], row["n"]): row["label"] for row in view.to_arrow().to_pylist()}
    assert set(found) == {("a", 10), ("b", 10)}
    again = app.rebuild("labels")
    assert again.diff().num_rows == 0
    again.discard()
    assert asked == {"a": 1, "b": 1}


def test_a_service_that_does_not_answer_is_asked_again(app: hr.App) -> None:
    failures = [ConnectionError("refused")]

    def label(text: str) -> str:
        if failures:
            raise failures.pop()
        return text.upper()

    numbered = app.stream("texts").remember(label, key="text", column="label", type="string").to_topic("labelled")
    app.log.topic("texts").append({"id": 1, "text": "a"})
    with pytest.raises(ConnectionError):
        app.drain()
    app.drain()
    assert [record.value["label"] for record in numbered.records()] == ["A"]


def fetch(text: str) -> str:
    return urllib.request.urlopen(f"http://localhost/{text}").read().decode()  # type: ignore[no-any-return]


def test_a_transform_that_asks_the_world_outside_is_refused_and_told_what_to_use(app: hr.App) -> None:
    asking = F.udf(fetch)
    app.stream("texts").transform(lambda df: df.withColumn("label", asking("text"))).to_topic("labelled")
    with pytest.raises(TransformRefused, match=r"urllib asks the world outside.*\.remember\("):
        app.running.check()


def test_bad_arguments_are_refused(app: hr.App) -> None:
    with pytest.raises(InvalidArgument, match="without '_'"):
        app.stream("texts").remember(str, key="text", column="_label")
    with pytest.raises(InvalidArgument, match="depends on"):
        app.stream("texts").remember(str, key=(), column="label")
