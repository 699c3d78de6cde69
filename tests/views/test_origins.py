"""Positions through the flows before a view: a chain of three over one topic, whose commits, sends and notes come in
any order, beside a model that knows what each has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.position import Position
from headrace.testing.view_contract import commit, counted, counting
from headrace.views.contract import FlowState, Outgoing, Place, feed_topic
from headrace.views.open import open_views
from headrace.views.origins import STEPS_MAX, Branch, branches, latest, position_of, reached, thinned
from headrace.views.standing import lag_of, sources_of
from tests.views.folded import SqliteViews

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CHAIN = ("up", "middle", "down")
few = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # which flow
        st.sampled_from(["commit", "commit", "send", "note", "begin"]),
        st.integers(0, 3),  # how many records it reads
        st.integers(0, 2),  # how many rows come of it
    ),
    max_size=30,
)


class Chain:
    """Three flows, each over the changes of the one before, and the topics between them."""

    def __init__(self, home: Path) -> None:
        self.store, self.views = SqliteViews(home), open_views(home)
        self.store._db.execute("PRAGMA synchronous=OFF")
        self.read, self.done = [0, 0, 0], [-1, -1, -1]
        self.topics: list[list[int]] = [[], [], [], []]
        """Of each row, how far the flow that wrote it had read before that commit."""
        self.waiting: list[list[tuple[int, int, int]]] = [[], [], []]
        self.states: list[FlowState] = [self._begin(number) for number in range(3)]

    def _topic(self, number: int) -> str:
        return "clicks" if number == 0 else feed_topic(CHAIN[number - 1], "updates")

    def _begin(self, number: int) -> FlowState:
        spec = replace(counting(CHAIN[number]), sources=(self._topic(number),), feeds=("updates",))
        return self.store.begin(spec)

    def begin(self, number: int) -> None:
        self.states[number] = self._begin(number)

    def commit(self, number: int, records: int, rows: int) -> None:
        if number == 0:
            self.topics[0] += [0] * records
        state, before = self.states[number], self.read[number]
        self.read[number] = min(len(self.topics[number]), before + records)
        name = self._topic(number)
        outgoing = [Outgoing(self._topic(number + 1), pa.table({"n": [0] * rows}))] if rows else []
        self.waiting[number] += [(state.sequence, rows, before)] if rows else []
        facts = {"relayed": self.done[number], "written": self._written(number), "outgoing": outgoing}
        places = {name: {0: Place(self.read[number], None)}}
        self.states[number] = self.store.commit(
            state, commit(state, places=places, topic_ids={name: f"{number}d"}, **facts)
        )

    def send(self, number: int) -> None:
        for sequence, rows, before in self.waiting[number]:
            self.topics[number + 1] += [before] * rows
            self.done[number] = sequence
        self.waiting[number].clear()

    def _written(self, number: int) -> Position:
        return Position.of(self._topic(number + 1), f"{number + 1}d", {0: len(self.topics[number + 1])})

    def note(self, number: int) -> None:
        self.store.note_relayed(self.states[number], self.done[number], self._written(number))

    def claimed(self, number: int) -> int:
        return self.all_claimed()[number]

    def all_claimed(self) -> list[int]:
        flows = self.views.readers()
        return [position_of(branches(flow, flows)).offsets("clicks").get(0, 0) for flow in CHAIN]


@few
@given(found=steps)
def test_what_is_claimed_is_there_and_all_of_it_in_the_end(found: list[tuple[int, str, int, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as home:
        chain = Chain(Path(home))
        before = [0, 0, 0]
        for number, what, records, rows in found:
            match what:
                case "commit":
                    chain.commit(number, records, rows)
                case "begin":
                    chain.begin(number)
                case "send":
                    chain.send(number)
                case _:
                    chain.note(number)
            claimed = chain.all_claimed()
            for flow in range(3):
                assert before[flow] <= claimed[flow] <= _complete(chain, flow, chain.read[flow]), (flow, what)
            before = claimed
        for number in range(3):
            chain.commit(number, 100, 1)
            chain.send(number)
            chain.note(number)
        chain.commit(2, 100, 0)
        assert chain.all_claimed() == [len(chain.topics[0])] * 3
        assert chain.views.are_at(Position.of("clicks", "0d", {0: len(chain.topics[0])}))
        chain.store.close()


def _complete(chain: Chain, flow: int, read: int) -> int:
    """Up to which source record a flow has all that was made of it, once it has read so far: what the flow before had
    read before the first commit of which a row is missing."""
    if flow == 0:
        return read
    waiting = [before for _, rows, before in chain.waiting[flow - 1] for _ in range(rows)]
    missing = [*chain.topics[flow], *waiting][read:]
    return _complete(chain, flow - 1, missing[0] if missing else chain.read[flow - 1])


def test_a_commit_that_writes_nothing_carries_the_position_on(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    for records in (3, 2):
        chain.commit(0, records, 0)
    chain.commit(1, 0, 0)
    chain.commit(2, 0, 0)
    assert chain.all_claimed() == [5, 5, 5]
    chain.commit(0, 4, 1)
    assert chain.all_claimed() == [9, 5, 5], "what is in the outbox has not arrived"
    chain.send(0)
    chain.note(0)
    assert chain.claimed(1) == 5, "and then it is not read"
    chain.commit(1, 1, 0)
    assert chain.all_claimed() == [9, 9, 9]
    chain.store.close()


def test_few_steps_are_kept_however_many_commits_there_were(tmp_path: Path) -> None:
    """And a reader that is far behind is still said to have something, and never too much."""
    chain, commits = Chain(tmp_path), STEPS_MAX + 20
    chain.commit(1, 0, 0)

    def go_on() -> int:
        for _ in range(commits):
            chain.commit(0, 1, 1)
            chain.send(0)
        return int(chain.views.query("select count(*) as n from _steps where flow = 'up'")["n"][0].as_py())

    assert 10 < go_on() <= STEPS_MAX
    for read in (commits // 4, commits - 30, commits - 3):
        chain.commit(1, read - chain.read[1], 0)
        assert read - (commits - read) // 4 <= chain.claimed(1) <= read, "the nearer the end, the closer"
    claimed = chain.claimed(1)
    go_on()
    assert chain.claimed(1) == claimed, "the step at which somebody is stays"
    chain.store.close()


@given(gaps=st.lists(st.integers(1, 1000), min_size=1, max_size=400), held=st.sets(st.integers(0, 400), max_size=5))
def test_steps_are_thinned_to_a_bound(gaps: list[int], held: set[int]) -> None:
    kept: list[int] = []
    for number, at in enumerate(accumulate(gaps)):
        kept.append(at)
        held = {at if each == number else each for each in held}
        if len(kept) > STEPS_MAX:
            gone = thinned(kept, held)
            assert not held & {*gone}
            kept = [each for each in kept if each not in gone]
        assert len(kept) <= STEPS_MAX and kept[-1] == at and kept[0] == gaps[0]


def test_changes_that_are_fed_later_are_no_ones_before(tmp_path: Path) -> None:
    """A view gets a reader of its changes: steps from before do not know them, and say nothing about that reader."""
    with SqliteViews(tmp_path) as store:
        spec = replace(counting("up"), feeds=("final",))
        state = store.begin(spec)
        at = {"places": {"clicks": {0: Place(7, None)}}, "topic_ids": {"clicks": "0d"}}
        state = store.commit(state, commit(state, **at))
        store.begin(replace(spec, feeds=("final", "updates")))
        reader = replace(counting("down"), sources=(feed_topic("up", "updates"),))
        state = store.begin(reader)
        (branch,) = [each for each in open_views(tmp_path).branches("down") if each.topic == "clicks"]
        assert branch.offsets == {0: 7}, "the view is empty: so is what is told of it"


def test_changes_that_are_fed_later_say_nothing_of_other_readers(tmp_path: Path) -> None:
    """A reader of the view's changes is behind when its final results get a reader, too: it stays behind."""
    with SqliteViews(tmp_path) as store:
        topic, spec = feed_topic("up", "updates"), replace(counting("up"), feeds=("updates",))
        state = store.begin(spec)
        at = {"places": {"clicks": {0: Place(7, None)}}, "topic_ids": {"clicks": "0d"}}
        state = store.commit(state, commit(state, counted(spec, [(0, "/", 7)]), **at))
        store.note_relayed(state, 0, Position.of(topic, "1d", {0: 1}))
        down = store.begin(replace(counting("down"), sources=(topic,)))
        down = store.commit(down, commit(down, places={topic: {0: Place(0, None)}}, topic_ids={topic: "1d"}))

        def offsets() -> Mapping[int, int]:
            (branch,) = [each for each in open_views(tmp_path).branches("down") if each.topic == "clicks"]
            return branch.offsets

        assert offsets() == {}
        state = store.begin(replace(spec, feeds=("updates", "final")))
        assert offsets() == {}
        state = store.commit(state, commit(state, **at))
        assert offsets() == {}, "what it wrote before was not read yet"
        store.commit(down, commit(down, places={topic: {0: Place(1, None)}}, topic_ids={topic: "1d"}))
        assert offsets() == {0: 7}


def test_lag_is_of_source_records_and_of_what_others_wrote(tmp_path: Path) -> None:
    import headrace as hr

    with hr.open_log(tmp_path) as log, SqliteViews(tmp_path) as store:
        clicks, copy = (log.create_topic(name, "user string") for name in ("clicks", "copy"))
        clicks.append([{"user": "u"}] * 5)
        up = store.begin(replace(counting("up"), view=None, target="copy"))
        at = {"places": {"clicks": {0: Place(3, None)}}, "topic_ids": {"clicks": clicks.topic_id}}
        up = store.commit(up, commit(up, **at, outgoing=[Outgoing("copy", pa.table({"user": ["u"] * 3}))]))
        down = store.begin(replace(counting("down"), sources=("copy",)))
        views = open_views(tmp_path)

        def lag() -> int | None:
            return lag_of(sources_of(log, views.branches("down"), views.state("down")))

        assert lag() == 5
        done = copy.append([{"user": "u"}] * 3)
        store.note_relayed(up, 0, done.position)
        assert lag() == 5, "nothing of it was read"
        ids = {"copy": copy.topic_id}
        down = store.commit(down, commit(down, places={"copy": {0: Place(3, None)}}, topic_ids=ids))
        assert lag() == 2
        copy.append([{"user": "somebody else"}] * 4)
        assert lag() == 6, "what nobody's flow wrote waits, too"
        store.commit(down, commit(down, places={"copy": {0: Place(7, None)}}, topic_ids=ids))
        assert lag() == 2
        assert str(views.status("down").position) == f"clicks~{clicks.topic_id}:0=3;copy~{copy.topic_id}:0=7"


@pytest.mark.parametrize(
    ("offsets", "topic_id", "wanted"),
    [({0: 5}, "1d", True), ({0: 4}, "1d", False), ({}, None, False), ({0: 9}, "2d", None)],
)
def test_branches_that_begin_at_the_position(
    offsets: dict[int, int], topic_id: str | None, wanted: bool | None
) -> None:
    found = [Branch("clicks", topic_id, offsets, direct=True), Branch("orders", "7", {}, direct=True)]
    assert reached(found, Position.of("clicks", "1d", {0: 5})) is wanted


def test_a_topic_of_headraces_own_that_no_flow_writes_is_a_source() -> None:
    """The dead letters, say, or what is left of a view that was dropped."""
    own, between = Branch("__dead", "1d", {0: 3}, direct=True), Branch("__changes.v", "2d", {0: 4}, True, written={})
    assert position_of([own, between]) == Position.of("__dead", "1d", {0: 3})


def test_a_topic_that_was_made_again_takes_the_place_of_the_old_one() -> None:
    old, new = Position.of("copy", "1d", {0: 9}), Position.of("copy", "2d", {0: 1})
    other = Position.of("late", "3d", {0: 2})
    assert latest(old | other, new) == new | other
