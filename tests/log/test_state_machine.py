"""The embedded log agrees with its model (tests/model.py), whatever is done to it in whatever order.

Two clocks are the machine's own: the wall clock (arrival, lateness, quarantine) and the one leases run by. After
every step all that can be read is compared: every record of every partition with its arrival and progress, offsets,
versions, groups, dead letters."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.durations import from_us
from headrace.errors import HeadraceError, OffsetOutOfRange, RecordRejected
from headrace.log.embedded import groups
from headrace.log.embedded.append import Stamp
from headrace.log.embedded.log import open_log
from tests import model
from tests.model import Refused

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
LEASE_US = HOUR_US
BEGIN_US = (datetime(2026, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

KINDS: dict[str, dict[str, Any]] = {
    "one": {"key": "k", "partitions": 1},
    "four": {"key": "k", "partitions": 4},
    "turns": {"partitions": 3},
    "versioned": {"key": "k", "partitions": 2, "versioned": True},
}
SCHEMA = [("k", pa.string()), ("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))]

names = st.sampled_from(["a", "b"])
keys = st.sampled_from(["u1", "u2", "u3", "größe", "", None])
lags = st.none() | st.sampled_from(
    [0, 1, -1, HOUR_US, HOUR_US + 1, 2 * HOUR_US, -5_000_000, -60_000_000, -DAY_US, -9 * DAY_US]
)
"""Event time less the clock, in microseconds: beyond HOUR_US it is put aside."""
drafts = st.lists(st.tuples(keys, lags), min_size=1, max_size=6)


@dataclass(eq=False, repr=False)
class Live:
    """A member, and what the model knows of it."""

    real: Any
    topic: model.Topic
    group: str
    member: model.Member

    def __repr__(self) -> str:
        return f"<{self.member.id[:4]} of {self.topic} {self.group}>"


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="headrace-machine-"))
        self.now_us, self.lease_now_us = BEGIN_US, 10 * HOUR_US
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch.object(time, "time_ns", self.wall_clock_ns))
        self.patches.enter_context(mock.patch.object(groups, "_now", self.lease_clock_us))
        self.log = open_log(self.home)
        self.model = model.Log()
        self.count = 0
        self.handles: dict[str, Any] = {}  # by topic id, those of deleted topics too
        self.known: list[model.Topic] = []
        self.live: list[Live] = []
        self.steps_open = 0
        self.sent: list[tuple[model.Intent, list[dict[str, Any]]]] = []  # stamped appends, to be repeated

    def teardown(self) -> None:
        try:
            assert self.log.verify().problems == []
        finally:
            for live in self.live:
                live.real.close()
            self.log.close()
            self.patches.close()
            shutil.rmtree(self.home)

    def wall_clock_ns(self) -> int:
        return self.now_us * 1000

    def lease_clock_us(self) -> int:
        return self.lease_now_us

    # -- both sides --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def refused_alike(self) -> Iterator[list[Any]]:
        """Inside, the rule notes how to do it for real, then asks the model; what the model refuses the log must
        refuse with the same error."""
        outcome: list[Any] = []
        try:
            yield outcome
        except Refused as refused:
            with pytest.raises(refused.kind):
                outcome[0]()

    def rows(self, drafted: list[tuple[str | None, int | None]]) -> tuple[list[dict[str, Any]], list[model.Row]]:
        """As the user writes them, and as the model has them. Each has a number of its own."""
        real, modelled = [], []
        for key, lag in drafted:
            self.count += 1
            event_us = None if lag is None else self.now_us + lag
            value = {"k": key, "n": self.count, "at": None if event_us is None else from_us(event_us)}
            real.append(value)
            modelled.append(model.Row(key, event_us, dict(value)))
        return real, modelled

    def pick(self, data: st.DataObject) -> model.Topic:
        return choose(data, list(self.model.topics.values()))

    def turn_of(self, topic: model.Topic, first: dict[str, Any]) -> int:
        """Without a key partitions take turns, beginning anywhere: see where the first row went."""
        if topic.keyed:
            return 0
        for number, partition in enumerate(topic.partitions):
            for record in self.handles[topic.uid].records({number: partition.next}, partition=number):
                if record.value["n"] == first["n"]:
                    return number
        return 0

    def both_append(self, topic: model.Topic, intent: model.Intent, form: Any, **how: Any) -> None:
        handle = self.handles[topic.uid]
        kept = [row for row in intent.rows if not model.ahead(topic, row, self.now_us)]
        with self.refused_alike() as real:
            real.append(lambda: handle.append(form, **how))
            if not topic.keyed:  # the log first, to see whose turn it was
                self.model.alive(topic)
                if intent.stamp is None or self.model.repetition(intent) is None:
                    done = handle.append(form, **how)
                    intent.turn = self.turn_of(topic, kept[0].value) if kept else 0
                    self.same(done, self.model.append([intent], self.now_us)[0], topic)
                    return
            expected = self.model.append([intent], self.now_us)[0]
            self.same(handle.append(form, **how), expected, topic)

    def same(self, done: Any, expected: model.Done, topic: model.Topic) -> None:
        assert done.ranges == expected.ranges, (done.ranges, expected.ranges)
        assert (done.quarantined, done.duplicate) == (expected.quarantined, expected.duplicate)
        nexts = {partition: given.stop for partition, given in expected.ranges.items()}
        assert done.position.offsets(topic.name) == nexts

    # -- topics ------------------------------------------------------------------------------------

    @initialize(kind=st.sampled_from(sorted(KINDS)))
    def begin(self, kind: str) -> None:
        self.make("a", kind)

    @rule(name=names, kind=st.sampled_from(sorted(KINDS)))
    def create(self, name: str, kind: str) -> None:
        self.make(name, kind)

    def make(self, name: str, kind: str) -> None:
        how = KINDS[kind]
        with self.refused_alike() as real:
            make = lambda: self.log.create_topic(name, pa.schema(SCHEMA), event_time="at", durability="os", **how)  # noqa: E731
            real.append(make)
            if name in self.model.topics:
                raise Refused(model.TopicExists)
            handle = make()
            made = model.Topic(
                name,
                handle.topic_id,
                "key" in how,
                "versioned" in how,
                HOUR_US,
                7 * DAY_US,
                [column for column, _ in SCHEMA],
                [model.Partition(self.now_us) for _ in range(how["partitions"])],
            )
            self.model.create(made)
            self.handles[made.uid] = handle
            self.known.append(made)

    @precondition(lambda self: len(self.model.topics) == 2)
    @rule(name=names)
    def delete(self, name: str) -> None:
        self.model.delete(name)
        self.log.delete_topic(name)

    @precondition(lambda self: any(len(topic.columns) < 6 for topic in self.model.topics.values()))
    @rule(data=st.data())
    def add_a_column(self, data: st.DataObject) -> None:
        topic = choose(data, [t for t in self.model.topics.values() if len(t.columns) < 6])
        column = f"x{len(topic.columns)}"
        self.log.topic(topic.name).alter(schema=self.handles[topic.uid].describe().schema + f", {column} string")
        topic.columns.append(column)

    @precondition(lambda self: any(grows(topic) for topic in self.model.topics.values()))
    @rule(data=st.data())
    def add_a_partition(self, data: st.DataObject) -> None:
        topic = choose(data, [t for t in self.model.topics.values() if grows(t)])
        self.handles[topic.uid].alter(partitions=len(topic.partitions) + 1)
        topic.partitions.append(model.Partition(self.now_us))

    # -- time --------------------------------------------------------------------------------------

    @rule(by=st.sampled_from([1, 1_000_000, 60_000_000, 2 * HOUR_US, 8 * DAY_US, -10_000_000]))
    def the_clock_goes_on_or_jumps_back(self, by: int) -> None:
        self.now_us += by

    # -- appending ---------------------------------------------------------------------------------

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data(), drafted=drafts, form=st.sampled_from(["rows", "first"]))
    def append(self, data: st.DataObject, drafted: list[tuple[str | None, int | None]], form: str) -> None:
        self.append_as(self.pick(data), drafted, form)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), drafted=drafts, form=st.sampled_from(["first", "generator", "table", "batch"]))
    def append_whatever_to_whichever(self, data: st.DataObject, drafted: list[Any], form: str) -> None:
        self.append_as(choose(data, self.known), drafted, form)  # to deleted topics, too

    def append_as(self, topic: model.Topic, drafted: list[tuple[str | None, int | None]], form: str) -> None:
        real, rows = self.rows(drafted[:1] if form == "first" else drafted)
        arrow = pa.Table.from_pylist(real, schema=pa.schema(SCHEMA))
        forms = {
            "rows": real,
            "first": real[0],
            "generator": (row for row in real),
            "table": arrow,
            "batch": arrow.to_batches()[0],
        }
        self.both_append(topic, model.Intent(topic, rows), forms[form])

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data(), drafted=drafts)
    def append_with_progress(self, data: st.DataObject, drafted: list[tuple[str | None, int | None]]) -> None:
        topic = self.pick(data)
        real, rows = self.rows(drafted)
        given = [data.draw(st.none() | st.sampled_from([-1, 0, -DAY_US, 5])) for _ in rows]
        for row, lag in zip(rows, given, strict=True):
            row.given, row.progress_us = True, None if lag is None else self.now_us + lag
        progress = [None if row.progress_us is None else from_us(row.progress_us) for row in rows]
        self.both_append(topic, model.Intent(topic, rows), real, progress=progress)

    @precondition(lambda self: any(topic.versioned for topic in self.model.topics.values()))
    @rule(data=st.data(), drafted=drafts, key=keys.filter(lambda key: key is not None), off=st.sampled_from([0, 0, 1]))
    def append_if(self, data: st.DataObject, drafted: list[Any], key: str, off: int) -> None:
        topic = choose(data, [t for t in self.model.topics.values() if t.versioned])
        real, rows = self.rows(drafted)
        expect = {key: topic.versions[key] + off}
        self.both_append(topic, model.Intent(topic, rows, expect), real, expect=expect)

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data(), drafted=drafts, column=st.sampled_from(["n", "at", "colour"]))
    def append_a_bad_row(self, data: st.DataObject, drafted: list[Any], column: str) -> None:
        topic = self.pick(data)
        real, _ = self.rows(drafted)
        real[-1][column] = "nonsense"
        with pytest.raises(RecordRejected) as error:
            self.handles[topic.uid].append(real)
        assert (error.value.row, error.value.column) == (len(real) - 1, column)

    # -- idempotence -------------------------------------------------------------------------------

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data(), name=st.sampled_from(["p", "q"]))
    def begin_an_epoch(self, data: st.DataObject, name: str) -> None:
        topic = self.pick(data)
        producer = topic.producers.setdefault(name, model.Producer())
        with self.handles[topic.uid].producer(name) as real:
            producer.epoch += 1
            assert (real._epoch, real.sequence) == (producer.epoch, producer.sequence)

    @precondition(lambda self: any(topic.producers for topic in self.model.topics.values()))
    @rule(data=st.data(), drafted=drafts, off=st.sampled_from([0, 0, 0, 0, 1, -1]), old=st.sampled_from([0, 0, 0, 1]))
    def append_stamped(self, data: st.DataObject, drafted: list[Any], off: int, old: int) -> None:
        topic = choose(data, [t for t in self.model.topics.values() if t.producers])
        name = data.draw(st.sampled_from(sorted(topic.producers)))
        producer = topic.producers[name]
        real, rows = self.rows(drafted)
        stamp = (name, producer.epoch - old, max(0, producer.sequence + off))
        intent = model.Intent(topic, rows, stamp=stamp)
        self.sent.append((intent, real))
        self.both_append(topic, intent, real, stamp=Stamp(*stamp))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat_a_stamped_append(self, data: st.DataObject) -> None:
        intent, real = choose(data, self.sent[-10:])
        assert intent.stamp is not None
        self.both_append(intent.topic, intent, real, stamp=Stamp(*intent.stamp))

    # -- transactions ------------------------------------------------------------------------------

    @precondition(lambda self: self.model.topics)
    @rule(
        data=st.data(),
        parts=st.lists(st.tuples(drafts, st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=3),
        fails=st.sampled_from([False, False, False, True]),
        commits=st.booleans(),
    )
    def transaction(self, data: st.DataObject, parts: list[Any], fails: bool, commits: bool) -> None:
        intents, reals = [], []
        versions: dict[str, int] = {}
        for drafted, off in parts:
            topic = self.pick(data)
            if not topic.keyed:
                continue
            real, rows = self.rows(drafted)
            expect = {}
            if topic.versioned:
                key = rows[0].key or ""
                before = versions.get(f"{topic.name} {key}", topic.versions[key])
                expect = {key: before + off}
                for row in rows:
                    if not model.ahead(topic, row, self.now_us):
                        mine = f"{topic.name} {row.key or ''}"
                        versions[mine] = versions.get(mine, topic.versions[row.key or ""]) + 1
            intents.append(model.Intent(topic, rows, expect))
            reals.append((topic.name, real, expect))
        live = choose(data, self.live) if commits and self.live else None

        def act() -> Any:
            with self.log.transaction() as tx:
                for name, real, expect in reals:
                    tx.append(name, real, expect=expect or None)
                if live is not None:
                    tx.commit(live.real)
                if fails:
                    raise ZeroDivisionError
            return tx

        if fails:
            with pytest.raises(ZeroDivisionError):
                act()
            return
        with self.refused_alike() as real_act:
            real_act.append(act)
            if live is not None:
                self.conditions_first(intents)
                self.model.check_commit(live.topic, live.group, live.member)
            expected = self.model.append(intents, self.now_us)
            if live is not None:
                self.model.commit(live.topic, live.group, live.member)
            tx = act()
            assert [done.ranges for done in tx.results] == [done.ranges for done in expected]

    def conditions_first(self, intents: list[model.Intent]) -> None:
        """Appends are refused before offsets are looked at: try them on a copy."""
        import copy

        copies: dict[int, model.Topic] = {}
        tried = model.Log()
        for intent in intents:
            topic = copies.setdefault(id(intent.topic), copy.copy(intent.topic))
            tried.topics[topic.name] = topic
            topic.versions = copy.copy(topic.versions)
            topic.partitions = [copy.copy(p) for p in topic.partitions]
            for partition in topic.partitions:
                partition.records = list(partition.records)
        tried.append(
            [model.Intent(copies[id(intent.topic)], intent.rows, intent.expect) for intent in intents], self.now_us
        )

    # -- dead letters ------------------------------------------------------------------------------

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data())
    def replay_a_letter(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.model.letters) - 1))
        letter = list(self.log.dead_letters())[number]
        row, topic = self.model.letters[number].row, self.model.topics.get(self.model.letters[number].topic)
        with self.refused_alike() as real:
            real.append(letter.replay)
            if topic is not None and not topic.keyed and topic.uid == self.model.letters[number].uid:
                if model.ahead(topic, row, self.now_us):
                    raise Refused(model.InvalidArgument)
                done = letter.replay()
                turn = self.turn_of(topic, row.value)
                assert done.ranges == self.model.replay(number, self.now_us, turn).ranges
                return
            expected = self.model.replay(number, self.now_us, 0)
            assert letter.replay().ranges == expected.ranges
        if (
            topic is not None
            and letter.origin.topic_id == topic.uid
            and letter.id not in {left.id for left in self.log.dead_letters()}
        ):
            with pytest.raises(model.InvalidArgument):  # a second time
                letter.replay()

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data())
    def drop_a_letter(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.model.letters) - 1))
        list(self.log.dead_letters())[number].drop()
        del self.model.letters[number]

    # -- groups ------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.topics and len(self.live) < 5)
    @rule(data=st.data(), name=st.sampled_from(["g", "g", "g", "h"]), start=st.sampled_from(["earliest", "latest"]))
    def join(self, data: st.DataObject, name: str, start: str) -> None:
        self.do_join(self.pick(data), name, start)

    def do_join(self, topic: model.Topic, name: str, start: str) -> None:
        real = self.handles[topic.uid].group(name).join(lease=timedelta(microseconds=LEASE_US), start=start)
        member = model.Member(real.id, LEASE_US, 0, start)
        self.model.join(topic, name, member, self.lease_now_us)
        self.live.append(Live(real, topic, name, member))
        assert real.partitions == tuple(sorted(member.held))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), most=st.sampled_from([1000, 1000, 3, 1]))
    def poll(self, data: st.DataObject, most: int) -> None:
        live = choose(data, self.live)
        if self.model.topics.get(live.topic.name) is not live.topic:
            with pytest.raises(model.TopicReplaced):
                live.real.poll(timeout="0 seconds")
            return
        self.do_poll(live, most)

    def do_poll(self, live: Live, most: int) -> None:
        found = live.real.poll(timeout="0 seconds", max_records=most)
        self.model.before_poll(live.topic, live.group, live.member, live.real.id, self.lease_now_us)
        assert live.real.partitions == tuple(sorted(live.member.held))
        waiting = 0
        for number, held in live.member.held.items():
            partition = live.topic.partitions[number]
            waiting += partition.next - held.position
            got = [record for record in found if record.partition == number]
            assert [record.offset for record in got] == list(range(held.position, held.position + len(got)))
            assert [r.value for r in got] == [live.topic.value(partition.records[r.offset].row) for r in got]
            held.position += len(got)
        assert len(found) == min(most, waiting)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.do_commit(choose(data, self.live))

    def do_commit(self, live: Live) -> None:
        with self.refused_alike() as real:
            real.append(live.real.commit)
            self.model.commit(live.topic, live.group, live.member)
            live.real.commit()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), back=st.integers(-1, 3))
    def commit_up_to(self, data: st.DataObject, back: int) -> None:
        live = choose(data, self.live)
        if self.model.topics.get(live.topic.name) is not live.topic or not live.member.held:
            return
        number = data.draw(st.sampled_from(sorted(live.member.held)))
        offset = live.member.held[number].position - 1 - back
        if not 0 <= offset < live.topic.partitions[number].next:
            return
        record = next(self.handles[live.topic.uid].records({number: offset}, partition=number))
        with self.refused_alike() as real:
            real.append(lambda: live.real.commit(record))
            self.model.commit(live.topic, live.group, live.member, (number, offset))
            live.real.commit(record)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        live = choose(data, self.live)
        self.live.remove(live)
        live.real.close()
        self.model.leave(live.topic, live.group, live.member, self.lease_now_us)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        live = choose(data, self.live)
        live.real.beat()
        self.model.beat(live.topic, live.group, live.member, self.lease_now_us)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def some_fall_silent(self, data: st.DataObject) -> None:
        """More than a lease goes by; only those drawn show signs of life meanwhile."""
        self.go_silent([live for live in self.live if data.draw(st.booleans())])

    def go_silent(self, alive: list[Live]) -> None:
        for _ in range(2):  # 0.6 + 0.6 leases
            self.lease_now_us += LEASE_US * 6 // 10
            for live in alive:
                live.real.beat()
                self.model.beat(live.topic, live.group, live.member, self.lease_now_us)

    @precondition(lambda self: self.model.topics)
    @rule(
        data=st.data(),
        name=st.sampled_from(["g", "h"]),
        start=st.sampled_from(["earliest", "latest", "offset", "time"]),
    )
    def rewind(self, data: st.DataObject, name: str, start: str) -> None:
        topic = self.pick(data)
        watched = [live for live in self.live if self.model.topics.get(live.topic.name) is live.topic]
        if watched and data.draw(st.booleans()):  # under the eyes of a member
            live = choose(data, watched)
            topic, name = live.topic, live.group
        where: Any = start
        offsets = {n: 0 if start == "earliest" else p.next for n, p in enumerate(topic.partitions)}
        if start == "offset":
            number = data.draw(st.integers(0, len(topic.partitions) - 1))
            where = offsets = {number: data.draw(st.integers(0, topic.partitions[number].next + 1))}
        elif start == "time":
            when_us = self.some_time(data, topic)
            where = from_us(when_us)
            offsets = {n: first_at(p, when_us) for n, p in enumerate(topic.partitions)}
        group = self.handles[topic.uid].group(name)
        with self.refused_alike() as real:
            real.append(lambda: group.rewind(where))
            self.model.rewind(topic, name, offsets)
            assert group.rewind(where) == offsets

    @precondition(lambda self: self.live)
    @rule(data=st.data(), what=st.sampled_from(["rewind", "silence", "newcomer", "deletion"]))
    def something_happens_between_poll_and_commit(self, data: st.DataObject, what: str) -> None:
        number = data.draw(st.integers(0, len(self.live) - 1))
        live = self.live[number]
        if self.model.topics.get(live.topic.name) is not live.topic:
            return
        self.do_poll(live, 1000)
        if what == "rewind":
            offsets = dict.fromkeys(range(len(live.topic.partitions)), 0)
            self.model.rewind(live.topic, live.group, offsets)
            assert self.handles[live.topic.uid].group(live.group).rewind("earliest") == offsets
        elif what == "silence":
            self.go_silent([other for other in self.live if other is not live])
        elif what == "newcomer":
            self.do_join(live.topic, live.group, "earliest")
            self.do_poll(self.live[-1], 1000)
        else:
            self.handles[live.topic.uid].group(live.group).delete()
            del live.topic.groups[live.group]
        self.do_commit(live)

    @precondition(lambda self: any(topic.groups for topic in self.model.topics.values()) and self.steps_open > 5)
    @rule(data=st.data())
    def delete_a_group(self, data: st.DataObject) -> None:
        topic = choose(data, [t for t in self.model.topics.values() if t.groups])
        name = data.draw(st.sampled_from(sorted(topic.groups)))
        self.handles[topic.uid].group(name).delete()
        del topic.groups[name]

    # -- opening again -----------------------------------------------------------------------------

    @precondition(lambda self: self.steps_open > 10)
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        """Some members leave before; the others' leases run on without them."""
        for live in self.live:
            if data.draw(st.booleans()):
                live.real.close()
                self.model.leave(live.topic, live.group, live.member, self.lease_now_us)
        self.log.close()
        for live in self.live:
            with pytest.raises(HeadraceError):
                live.real.poll(timeout="0 seconds")
            live.real.close()
        self.live, self.steps_open = [], 0
        self.log = open_log(self.home, create=False)
        for topic in self.model.topics.values():
            self.handles[topic.uid] = self.log.topic(topic.name)
        self.known = list(self.model.topics.values())
        self.sent = [(intent, real) for intent, real in self.sent if intent.topic in self.known]

    # -- reading -----------------------------------------------------------------------------------

    def some_time(self, data: st.DataObject, topic: model.Topic) -> int:
        arrivals = sorted({record.arrived_us for p in topic.partitions for record in p.records})
        near = st.sampled_from(arrivals) if arrivals else st.just(self.now_us)
        return data.draw(near) + data.draw(st.sampled_from([-1, 0, 1]))

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data())
    def read_a_range(self, data: st.DataObject) -> None:
        topic = self.pick(data)
        number = data.draw(st.integers(0, len(topic.partitions) - 1))
        records = topic.partitions[number].records
        start = data.draw(st.integers(0, len(records) + 1))
        stop = data.draw(st.integers(start, len(records) + 2))
        columns = data.draw(st.lists(st.sampled_from(["n", "_offset", "_progress", "_arrived_at"]), unique=True))
        if start > len(records):
            with pytest.raises(OffsetOutOfRange):
                self.handles[topic.uid].batches(number, start, stop)
            return
        batches = list(self.handles[topic.uid].batches(number, start, stop, columns=columns))
        expected = list(enumerate(records))[start:stop]
        assert sum(batch.num_rows for batch in batches) == len(expected)
        wanted = {
            "n": [record.row.value["n"] for _, record in expected],
            "_offset": [offset for offset, _ in expected],
            "_progress": [instant(record.progress_us) for _, record in expected],
            "_arrived_at": [instant(record.arrived_us) for _, record in expected],
        }
        for name in columns:
            assert [value for batch in batches for value in batch.column(name).to_pylist()] == wanted[name]

    @precondition(lambda self: any(topic.keyed for topic in self.model.topics.values()))
    @rule(data=st.data(), key=keys.filter(lambda key: key is not None))
    def read_a_key(self, data: st.DataObject, key: str) -> None:
        topic = choose(data, [t for t in self.model.topics.values() if t.keyed])
        found = [record.value["n"] for record in self.handles[topic.uid].records(key=key)]
        expected = in_order((p, o, r) for p, o, r in everything(topic) if (r.row.key or "") == key)
        assert found == [record.row.value["n"] for _, _, record in expected]

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data())
    def read_from_a_time(self, data: st.DataObject) -> None:
        topic = self.pick(data)
        when_us = self.some_time(data, topic)
        handle = self.handles[topic.uid]
        found = [(record.partition, record.offset) for record in handle.records(start=from_us(when_us))]
        expected = in_order((p, o, r) for p, o, r in everything(topic) if r.arrived_us >= when_us)
        assert found == [(partition, offset) for partition, offset, _ in expected]
        at = handle.offsets(at=from_us(when_us))
        assert {n: o.next for n, o in at.items()} == {n: first_at(p, when_us) for n, p in enumerate(topic.partitions)}

    # -- after every step --------------------------------------------------------------------------

    @invariant()
    def all_that_can_be_read_agrees(self) -> None:
        self.steps_open += 1
        assert [topic.name for topic in self.log.topics()] == sorted(self.model.topics)
        for topic in self.model.topics.values():
            handle = self.handles[topic.uid]
            assert {n: (o.earliest, o.next, o.progress) for n, o in handle.offsets().items()} == {
                n: (0, p.next, instant(p.progress_us)) for n, p in enumerate(topic.partitions)
            }
            assert [(r.partition, r.offset, r.arrived_at, r.progress, r.key, r.value) for r in handle.records()] == [
                (
                    n,
                    o,
                    instant(r.arrived_us),
                    instant(r.progress_us),
                    r.row.key if topic.keyed else None,
                    topic.value(r.row),
                )
                for n, o, r in in_order(everything(topic))
            ]
            if topic.versioned:
                for key in ("u1", "u2", ""):
                    assert handle.version(key) == topic.versions[key]
            assert [group.name for group in handle.groups()] == sorted(topic.groups)
            for name, group in topic.groups.items():
                committed = {n: s.committed for n, s in group.shares.items() if s.committed is not None}
                assert handle.group(name).committed() == committed
                assert {info.member: info.partitions for info in handle.group(name).members()} == {
                    id: tuple(n for n, s in sorted(group.shares.items()) if s.owner == id) for id in group.members
                }
        assert [self.number_of(letter) for letter in self.log.dead_letters()] == [
            letter.row.value["n"] for letter in self.model.letters
        ]

    def number_of(self, letter: Any) -> int:
        import json

        value = letter.value if isinstance(letter.value, dict) else json.loads(letter.value)
        return int(value["n"])


GROUPS = (
    "join",
    "poll",
    "commit",
    "commit_up_to",
    "leave",
    "beat",
    "some_fall_silent",
    "rewind",
    "delete_a_group",
    "something_happens_between_poll_and_commit",
)
STAMPS = ("begin_an_epoch", "append_stamped", "repeat_a_stamped_append")
LETTERS = ("replay_a_letter", "drop_a_letter")
READS = ("read_a_range", "read_a_key", "read_from_a_time")
REST = ("create", "delete", "add_a_column", "append_with_progress", "append_if", "append_a_bad_row")


def without(*rules: str) -> type[LogMachine]:
    """The machine with fewer rules, so that those left meet more often. What is checked stays the same."""
    return type("LogMachine", (LogMachine,), dict.fromkeys(rules))


MACHINES = {
    "everything": LogMachine,
    "groups": without(*STAMPS, *LETTERS, *READS, *REST, "append_whatever_to_whichever"),
    "records": without(*GROUPS),
    "stamps": without(*GROUPS, *LETTERS, *READS, *REST, "append", "append_whatever_to_whichever"),
}


def choose(data: st.DataObject, among: list[Any]) -> Any:
    """By number: a failing run then prints numbers, not whole models."""
    return among[data.draw(st.integers(0, len(among) - 1))]


def instant(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def grows(topic: model.Topic) -> bool:
    return not topic.versioned and len(topic.partitions) < 6


def everything(topic: model.Topic) -> Iterator[tuple[int, int, model.Stored]]:
    for number, partition in enumerate(topic.partitions):
        for offset, record in enumerate(partition.records):
            yield number, offset, record


def in_order(found: Iterator[tuple[int, int, model.Stored]]) -> list[tuple[int, int, model.Stored]]:
    return sorted(found, key=lambda item: (item[2].arrived_us, item[0], item[1]))


def first_at(partition: model.Partition, when_us: int) -> int:
    return sum(record.arrived_us < when_us for record in partition.records)


SETTINGS = settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("which", MACHINES)
def test_the_log_agrees_with_its_model(which: str) -> None:
    run_state_machine_as_test(MACHINES[which], settings=SETTINGS)


@pytest.mark.soak
def test_the_log_agrees_with_its_model_for_long(soak_seconds: float, seed: int) -> None:
    """Each turn has a seed of its own: with the run's one, every turn would be the first again."""
    until = time.monotonic() + soak_seconds
    for turn, machine in enumerate(itertools.cycle(MACHINES.values())):
        if time.monotonic() >= until:
            break
        fresh = hypothesis.seed(seed + turn)(type("LogMachine", (machine,), {}))
        run_state_machine_as_test(fresh, settings=settings(SETTINGS, max_examples=5, stateful_step_count=150))
