"""Appends on a boundary: refused when an event that the query matches has come, and never for another reason."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import sourcing as es
from tests.searching import files_with


@dataclass(frozen=True)
class Opened:
    seats: int


@dataclass(frozen=True)
class Enrolled:
    student: str


EVENTS = [Opened, Enrolled]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with hr.open_log(tmp_path) as log:
        yield log


def enrolled(student: str, course: str) -> Any:
    return es.tagged(Enrolled(student), student=student, course=course)


def read(log: Any, query: es.Query) -> list[Any]:
    return [happened.event for happened in es.read(log, query, events=EVENTS)]


def test_events_are_read_by_what_they_are_about(log: Any) -> None:
    es.append(log, [es.tagged(Opened(2), course="c1"), es.tagged(Opened(9), course="c2")])
    es.append(log, [enrolled("ann", "c1")])
    behind = es.append(log, [enrolled("bob", "c1"), enrolled("ann", "c2")]).position
    es.append(log, [Enrolled("nobody")])
    assert read(log, es.query(tags={"course": "c1"})) == [Opened(2), Enrolled("ann"), Enrolled("bob")]
    assert read(log, es.query(tags={"course": "c1", "student": "ann"})) == [Enrolled("ann")]
    assert read(log, es.query(types=[Opened], tags={"course": "c1"})) == [Opened(2)]
    assert read(log, es.query(types=["Opened"]) | es.query(tags={"student": "ann"})) == [
        *(Opened(2), Opened(9), Enrolled("ann"), Enrolled("ann"))
    ]
    assert read(log, es.query(types=[Enrolled], after=behind)) == [Enrolled("nobody")]
    assert read(log, es.query(tags={"course": "none"})) == []
    assert [record.value["event"] for record in log.topic("events").records()] == [
        *("Opened", "Opened", "Enrolled", "Enrolled", "Enrolled", "Enrolled")
    ], "a flow reads each event once"


def test_an_append_is_refused_if_something_came_since(log: Any) -> None:
    es.append(log, [es.tagged(Opened(1), course="c1")])
    course = es.query(tags={"course": "c1"})
    with es.boundary(log, course, events=EVENTS) as seen:
        assert [each.event for each in seen.events] == [Opened(1)]
        es.append(log, [enrolled("bob", "c1")], unless=es.query(tags={"course": "c1"}, after=seen.position))
        with pytest.raises(es.BoundaryConflict, match="Enrolled came that matches query") as caught:
            seen.append(enrolled("ann", "c1"))
    assert (caught.value.topic, caught.value.event) == ("events", "Enrolled")
    assert read(log, course) == [Opened(1), Enrolled("bob")]
    with es.boundary(log, course, events=EVENTS) as seen:
        seen.append(enrolled("ann", "c1"))
    assert len(read(log, course)) == 3


def test_what_is_never_to_happen_twice(log: Any) -> None:
    """Without a position: there must be no such event at all."""
    unique = es.query(types=[Enrolled], tags={"student": "ann"})
    es.append(log, [es.tagged(Opened(1), student="ann")], unless=unique)
    es.append(log, [enrolled("ann", "c1")], unless=unique)
    with pytest.raises(es.BoundaryConflict):
        es.append(log, [enrolled("ann", "c2")], unless=unique)


def test_what_shares_a_tag_and_does_not_match_is_no_conflict(log: Any) -> None:
    with es.boundary(log, es.query(types=[Enrolled], tags={"course": "c1", "student": "ann"}), events=EVENTS) as seen:
        es.append(log, [enrolled("bob", "c1"), enrolled("ann", "c2"), es.tagged(Opened(1), course="c1")])
        seen.append(enrolled("ann", "c1"))


def test_an_append_of_an_id_is_made_once(log: Any) -> None:
    events = [enrolled("ann", "c1"), enrolled("ann", "c2")]
    first = es.append(log, events, id="e1")
    es.append(log, [enrolled("bob", "c1")])
    again = es.append(log, events, id="e1", unless=es.query(tags={"student": "ann"}))
    assert (again.position, again.duplicate) == (first.position, True)
    assert len(read(log, es.query(tags={"student": "ann"}))) == 2
    assert not es.append(log, [enrolled("ann", "c3")], id="e2").duplicate


def test_ids_of_appends_are_not_those_of_their_events(log: Any) -> None:
    """An append's second event has the append's id and a number: another append may be called so."""
    es.append(log, [enrolled("ann", "c1"), enrolled("bob", "c1")], id="order")
    for id in ("order/1", "order/1/0", "order/0"):
        assert not es.append(log, [enrolled(id, "c1")], id=id).duplicate
        assert es.append(log, [enrolled(id, "c1")], id=id).duplicate
    assert len(list(es.read(log, es.query(types=[Enrolled]), events=EVENTS))) == 5


def test_threads_fill_a_course_and_no_more(log: Any) -> None:
    es.append(log, [es.tagged(Opened(7), course="c1")])

    def enroll(number: int) -> None:
        for turn in itertools.count():
            student = f"s{number}-{turn}"
            with es.boundary(log, es.query(tags={"course": "c1"}), events=EVENTS) as seen:
                if len(seen.events) > 7:
                    return
                try:
                    seen.append(enrolled(student, "c1"))
                except es.BoundaryConflict:
                    continue

    threads = [threading.Thread(target=enroll, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(log, es.query(types=[Enrolled]))) == 7


TAGS = st.dictionaries(st.sampled_from(["course", "student"]), st.sampled_from(["x", "y"]), max_size=2)
TYPES = st.lists(st.sampled_from(EVENTS), max_size=1)
QUERIES = st.lists(st.tuples(TYPES, TAGS).filter(any), min_size=1, max_size=2)
STEPS = st.lists(
    st.tuples(st.sampled_from([Opened(1), Enrolled("z")]), TAGS, st.none() | QUERIES, st.integers(0, 5)), max_size=12
)


@settings(max_examples=25)
@given(STEPS)
def test_it_is_refused_if_and_only_if_the_query_matches(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    with hr.open_log(tmp_path_factory.mktemp("log")) as log:
        kept: list[tuple[Any, dict[str, str]]] = []
        positions: list[hr.Position | None] = [None]
        for event, tags, items, back in steps:
            unless, conflict = None, False
            if items is not None:
                seen = max(0, len(positions) - 1 - back)
                queries = [es.query(types=types, tags=wanted, after=positions[seen]) for types, wanted in items]
                unless = queries[0] if len(queries) == 1 else queries[0] | queries[1]
                conflict = any(
                    (not types or type(other) in types) and wanted.items() <= held.items()
                    for types, wanted in items
                    for other, held in kept[seen:]
                )
            try:
                done = es.append(log, [es.tagged(event, **tags)], unless=unless)
            except es.BoundaryConflict:
                assert conflict
                continue
            assert not conflict
            kept.append((event, tags))
            positions.append(done.position)
        for type_ in EVENTS:
            assert read(log, es.query(types=[type_])) == [event for event, _ in kept if type(event) is type_]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: es.query(), "a type or a tag"),
        (lambda: es.query(types="Opened"), "a list"),
        (lambda: es.query(tags={"a b": "x"}), "letters, digits"),
        (lambda: es.tagged(Opened(1), course=""), "not empty"),
        (lambda: es.query(types=[Opened]) | es.query(types=[Opened], after=hr.Position()), "same position"),
        (lambda: es.append(None, []), "one at least"),  # type: ignore[arg-type]
        (lambda: es.append(None, [Opened(1)], id=""), "names the append"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense(make: Any, why: str) -> None:
    with pytest.raises(hr.InvalidArgument, match=why):
        make()


def test_what_is_erased_is_in_no_file(log: Any, tmp_path: Path) -> None:
    """With its copies for each tag and type; a boundary that was read before meets no conflict by it."""
    es.append(log, [es.tagged(Opened(9), course="c1"), enrolled("canary-ann", "c1"), enrolled("bob", "c1")], id="a1")
    es.append(log, [enrolled("canary-ann", "c2")])
    with es.boundary(log, es.query(tags={"course": "c1"}), events=EVENTS) as seen:
        assert es.erase(log, es.query(tags={"student": "canary-ann"})) == 2
        seen.append(enrolled("cat", "c1"))
    assert files_with(tmp_path, "canary-") == []
    assert read(log, es.query(tags={"course": "c1"})) == [Opened(9), Enrolled("bob"), Enrolled("cat")]
    assert read(log, es.query(types=[Enrolled])) == [Enrolled("bob"), Enrolled("cat")]
    assert [record.value["event"] for record in log.topic("events").records()] == ["Opened", "Enrolled", "Enrolled"]
    assert es.erase(log, es.query(tags={"student": "canary-ann"})) == 0
    assert es.append(log, [Opened(9)], id="a1").duplicate
    assert log.verify().ok


def test_an_erasure_that_ended_between_its_topics_is_gone_on_with(log: Any, tmp_path: Path) -> None:
    es.append(log, [enrolled("canary-ann", "c1")], id="e1")
    log.topic("events").erase("e1")
    assert files_with(tmp_path, "canary-"), "its copies for tags and type are still there"
    assert es.erase(log, es.query(tags={"student": "canary-ann"})) == 0, "the event itself has gone before"
    assert files_with(tmp_path, "canary-") == []
