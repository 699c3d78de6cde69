"""The embedded log agrees with its model (tests/model.py), whatever is done to it in whatever order.

Two clocks are the machine's own: the wall clock (arrival, lateness, quarantine) and the one leases run by. After
every step all that can be read is compared: every record of every partition with its arrival and progress, offsets,
versions, groups, lag, dead letters; and the batches must be such as retention may rely on.

Upkeep may run at any point. In some runs its limits are tiny (`TIGHT`), so that few records reach what else only
millions would. What the runs have reached is counted, and the test looks at the counts."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
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

from headrace.durations import from_us, instant_us
from headrace.errors import HeadraceError, OffsetOutOfRange, RecordRejected, TopicFull
from headrace.log.contract import Lag
from headrace.log.embedded.consume import groups
from headrace.log.embedded.read import reading
from headrace.log.embedded.storage import background, committer, retention
from headrace.log.embedded.storage.committer import is_small
from headrace.log.embedded.storage.index import BATCHES, PARTITIONS
from headrace.log.embedded.upkeep import compaction, reclaiming, rounds, sealing
from headrace.log.embedded.write import append, dead_letters
from headrace.log.embedded.write.append import Stamp
from headrace.log.open import open_log
from tests import model
from tests.conftest import SEED_FIXED
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
AGED = {"retention": "3 hours"}
BOUNDED = {"retention_bytes": 1200}  # three or four batches
COMPACTED = {"cleanup": "compact", "tombstone_grace": "1 hour"}
UPKEPT: dict[str, dict[str, Any]] = {
    "aged": {"key": "k", "partitions": 2, **AGED},
    "aged, kept": {"key": "k", "partitions": 2, "unread": "keep", **AGED},
    "bounded": {"key": "k", "partitions": 2, **BOUNDED},
    "bounded, kept": {"key": "k", "partitions": 2, "unread": "keep", **BOUNDED, **AGED},
    "compacted": {"key": "k", "partitions": 2, **COMPACTED},
    "compacted, one": {"key": "k", "partitions": 1, **COMPACTED},
    "compacted, versioned, aged": {"key": "k", "partitions": 2, "versioned": True, **COMPACTED, **AGED},
}
TIGHT: list[tuple[Any, dict[str, int]]] = [
    (append, {"FRAME_ROWS_MAX": 4}),
    (committer, {"SMALL_RECORDS": 8}),
    (sealing, {"SMALL_RECORDS": 8, "SWAP_RECORDS": 12, "SWAP_BATCHES": 3}),
    (compaction, {"SWAP_RECORDS": 6, "SWAP_BATCHES": 3, "PASS_KEYS": 2, "MERGE_RECORDS": 3}),
    (retention, {"STEP_BATCHES": 2}),
    (reading, {"INDEX_ROWS": 3}),
    (reclaiming, {"MOVE_BATCHES": 2, "ROLL_BYTES": 1000}),
]
TIGHT_FILE_BYTES = 3000
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
    kinds: ClassVar = {**KINDS, **UPKEPT}
    reached: ClassVar[Counter[str]] = Counter()
    """What upkeep has met, over all runs."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # upkeep syncs a lot, and nothing is lost here
        self.home = Path(tempfile.mkdtemp(prefix="headrace-machine-", dir=memory))
        self.now_us, self.lease_now_us = BEGIN_US, 10 * HOUR_US
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch.object(time, "time_ns", self.wall_clock_ns))
        self.patches.enter_context(mock.patch.object(time, "clock_gettime_ns", self.wall_clock_ns))
        self.patches.enter_context(mock.patch.object(groups, "_now", self.lease_clock_us))
        self.patches.enter_context(
            mock.patch.object(background, "PERIOD_SECONDS", 1e6)
        )  # only when the machine says so
        self.patches.enter_context(mock.patch.object(append, "make_room", self.make_room))
        self.room = 0
        self.tight = False
        self.log = open_log(self.home)
        self.model = model.Log()
        dead_letters.home(self.log._catalog)  # now: later, making it would be an arrival that the model does not see
        self.model.arrival(self.now_us)
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

    def wall_clock_ns(self, _: int = 0) -> int:
        return self.now_us * 1000

    def lease_clock_us(self) -> int:
        return self.lease_now_us

    def make_room(self, tx: Any, topic: Any, size: int) -> None:
        """How many bytes an append takes, the model has to be told."""
        if not topic.name.startswith("__"):
            self.room = size
        retention.make_room(tx, topic, size)

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
        if topic.retention_bytes is not None:
            done = self.outcome(lambda: handle.append(form, **how))
            intent.bytes = self.room
            with self.refused_alike() as real:
                real.append(done)
                expected = self.model.append([intent], self.now_us)[0]
                self.same(done(), expected, topic)
            self.look_at_batches(topic)
            return
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

    def outcome(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """Does it now; what came of it, result or error, when called."""
        try:
            done = act()
        except HeadraceError as error:
            refused = error
            if isinstance(error, TopicFull):
                self.reached["an append refused: full of what a group has not read"] += 1

            def fail() -> Any:
                raise refused

            return fail
        return lambda: done

    def same(self, done: Any, expected: model.Done, topic: model.Topic) -> None:
        assert done.ranges == expected.ranges, (done.ranges, expected.ranges)
        assert (done.quarantined, done.duplicate) == (expected.quarantined, expected.duplicate)
        nexts = {partition: given.stop for partition, given in expected.ranges.items()}
        assert done.position.offsets(topic.name) == nexts

    # -- topics ------------------------------------------------------------------------------------

    @initialize(data=st.data(), tight=st.booleans())
    def begin(self, data: st.DataObject, tight: bool) -> None:
        if tight:
            self.tight, self.log._engine.files.file_bytes_max = True, TIGHT_FILE_BYTES
            for module, limits in TIGHT:
                self.patches.enter_context(mock.patch.multiple(module, **limits))
        self.make("a", data.draw(st.sampled_from(sorted(self.kinds))))

    @rule(data=st.data(), name=names)
    def create(self, data: st.DataObject, name: str) -> None:
        self.make(name, data.draw(st.sampled_from(sorted(self.kinds))))

    def make(self, name: str, kind: str) -> None:
        how = self.kinds[kind]
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
                [model.Partition(self.model.arrival(self.now_us)) for _ in range(how["partitions"])],
                retention_us=3 * HOUR_US if "retention" in how else None,
                retention_bytes=how.get("retention_bytes"),
                unread=how.get("unread", "delete"),
                cleanup=how.get("cleanup", "delete"),
                grace_us=HOUR_US if "tombstone_grace" in how else DAY_US,
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
        topic.partitions.append(model.Partition(self.model.arrival(self.now_us)))
        topic.partitions_added = True

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
            if not topic.keyed or topic.retention_bytes is not None:
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
        tried = model.Log(newest_us=self.model.newest_us)
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
            self.room = 0
            done = self.outcome(letter.replay)
            real[:] = [done]
            expected = self.model.replay(number, self.now_us, 0, self.room)
            assert done().ranges == expected.ranges
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
    @rule(data=st.data(), most=st.sampled_from([1000, 1000, 3, 1]), commits=st.booleans())
    def poll(self, data: st.DataObject, most: int, commits: bool) -> None:
        live = choose(data, self.live)
        if self.model.topics.get(live.topic.name) is not live.topic:
            with pytest.raises(model.TopicReplaced):
                live.real.poll(timeout="0 seconds")
            return
        self.do_poll(live, most)
        if commits:
            self.do_commit(live)

    def do_poll(self, live: Live, most: int) -> None:
        """What retention overtook is never passed over in silence; what upkeep removed is passed over."""
        found, overtaken = [], None
        try:
            found = live.real.poll(timeout="0 seconds", max_records=most)
        except OffsetOutOfRange as error:
            overtaken = error
        self.model.before_poll(live.topic, live.group, live.member, live.real.id, self.lease_now_us)
        assert live.real.partitions == tuple(sorted(live.member.held))
        waiting = 0
        for number, held in live.member.held.items():
            partition = live.topic.partitions[number]
            got = [(record.offset, record.value) for record in found if record.partition == number]
            position = live.real._held[number].position
            if held.position < partition.earliest:
                assert (got, position) == ([], held.position)
                continue
            unread = [(offset, live.topic.value(record.row)) for offset, record in partition.held(held.position)]
            waiting += len(unread)
            assert got == unread[: len(got)]
            rest = [offset for offset, _ in unread[len(got) :]]
            assert (got[-1][0] + 1 if got else held.position) <= position <= min([partition.next, *rest])
            if position - held.position > len(got):
                self.reached["a poll over a hole"] += 1
            held.position = position
        behind = {n: h.position for n, h in live.member.held.items() if h.position < live.topic.partitions[n].earliest}
        if overtaken is not None:
            partition = live.topic.partitions[overtaken.partition]
            assert (overtaken.offset, overtaken.earliest) == (behind[overtaken.partition], partition.earliest)
            self.reached["a poll of what retention has deleted"] += 1
        else:
            assert len(found) == min(most, waiting)
            assert found or not behind

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
        if not live.topic.partitions[number].held(max(offset, 0), offset + 1):
            return
        record = next(self.handles[live.topic.uid].records({number: offset}, partition=number))
        with self.refused_alike() as real:
            real.append(lambda: live.real.commit(record))
            self.model.commit(live.topic, live.group, live.member, (number, offset))
            live.real.commit(record)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.do_leave(choose(data, self.live))

    def do_leave(self, live: Live) -> None:
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
        offsets = {n: p.earliest if start == "earliest" else p.next for n, p in enumerate(topic.partitions)}
        if start == "offset":
            number = data.draw(st.integers(0, len(topic.partitions) - 1))
            where = offsets = {number: data.draw(st.integers(0, topic.partitions[number].next + 1))}
        elif start == "time":
            when_us = self.some_time(data, topic)
            where = from_us(when_us)
            offsets = {n: at.next for n, at in self.offsets_at(topic, when_us).items()}
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
            offsets = {n: p.earliest for n, p in enumerate(live.topic.partitions)}
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

    # -- upkeep ------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.topics)
    @rule(
        data=st.data(),
        several=st.lists(st.tuples(drafts, st.booleans()), min_size=2, max_size=5),
        apart=st.sampled_from([0, 1, HOUR_US]),
    )
    def append_several(self, data: st.DataObject, several: list[tuple[Any, bool]], apart: int) -> None:
        """Some are tombstones, where there are such."""
        topic = self.pick(data)
        for drafted, ends in several:
            ends ^= bool(apart)  # so that the simplest examples have some, too
            self.now_us += apart
            if ends and topic.cleanup == "compact":
                real, rows = self.rows([(key, None) for key, _ in drafted])
                for value in (*real, *(row.value for row in rows)):
                    value["n"] = None
            else:
                real, rows = self.rows(drafted)
            self.both_append(topic, model.Intent(topic, rows), real)

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data(), name=st.sampled_from(["g", "h"]), most=st.sampled_from([1000, 4]), commits=st.booleans())
    def a_group_reads(self, data: st.DataObject, name: str, most: int, commits: bool) -> None:
        """A member comes, reads and goes."""
        topic = self.pick(data)
        self.do_join(topic, name, "earliest")
        live = self.live[-1]
        self.do_poll(live, most)
        if commits:
            self.do_commit(live)
        self.do_leave(live)

    @precondition(lambda self: self.model.topics)
    @rule(
        data=st.data(),
        change=st.sampled_from(
            [
                {"retention": None},
                {"retention": "3 hours"},
                {"unread": "keep"},
                {"unread": "delete"},
                {"cleanup": "compact"},
                {"cleanup": "delete"},
            ]
        ),
    )
    def alter_the_rules(self, data: st.DataObject, change: dict[str, Any]) -> None:
        topic = self.pick(data)
        with self.refused_alike() as real:
            real.append(lambda: self.handles[topic.uid].alter(**change))
            if change.get("cleanup") == "compact" and (
                not topic.keyed or (topic.partitions_added and topic.cleanup != "compact")
            ):
                raise Refused(model.InvalidArgument)
            self.handles[topic.uid].alter(**change)
            if "retention" in change:
                topic.retention_us = 3 * HOUR_US if change["retention"] else None
            topic.unread = change.get("unread", topic.unread)
            topic.cleanup = change.get("cleanup", topic.cleanup)

    @rule(after=st.sampled_from([0, 2 * HOUR_US, 4 * HOUR_US]))
    def maintain(self, after: int) -> None:
        self.now_us += after
        done = self.log.maintain()
        assert (done.problems, done.incomplete) == ([], [])
        held, compacted, overtaken = self.count_held(), 0, {}
        for name, topic in sorted(self.model.topics.items()):
            overtaken |= {(name, *who): what for who, what in self.model_retains(topic).items()}
            compacted += self.model_compacts(topic)
        assert done.records_deleted == held - compacted - self.count_held()
        assert done.records_compacted == compacted
        self.told(done.overtaken, overtaken)
        self.reached["batches sealed"] += done.batches_sealed
        self.reached["files removed"] += done.files_removed
        self.read_in_every_way()

    def read_in_every_way(self) -> None:
        """After upkeep: by time, by key, by columns."""
        assert self.log.verify().problems == []
        for topic in self.model.topics.values():
            for when_us in sorted({record.arrived_us for _, _, record in everything(topic)})[:8]:
                for around_us in (when_us - 1, when_us):
                    self.do_read_from(topic, around_us)
            for number, partition in enumerate(topic.partitions):
                self.do_read_range(topic, number, partition.earliest, partition.next, ["_progress", "n", "_offset"])
            if topic.keyed:
                for key in ("u1", "größe", ""):
                    self.do_read_key(topic, key)

    @precondition(lambda self: self.model.topics)
    @rule(
        data=st.data(),
        what=st.sampled_from(["retain", "compact", "seal", "reclaim"]),
        after=st.sampled_from([0, 2 * HOUR_US, 4 * HOUR_US]),
    )
    def a_step_of_upkeep(self, data: st.DataObject, what: str, after: int) -> None:
        """In whatever order."""
        self.now_us += after
        topic = self.pick(data)
        engine, catalog = self.log._engine, self.log._catalog
        state = catalog.named(topic.name)
        with rounds.alone(engine, wait=True):
            if what == "reclaim":
                self.reached["bytes moved"] += reclaiming.reclaim(engine, catalog).moved_bytes
            elif what == "retain":
                overtaken = retention.retain(engine, state).overtaken
                expected = self.model_retains(topic)
                self.told(overtaken, {(topic.name, *who): what for who, what in expected.items()})
            for number in range(len(topic.partitions)):
                if what == "seal":
                    self.reached["batches sealed"] += sealing.seal(engine, catalog, state, number)
                elif what == "compact" and topic.cleanup == "compact":
                    compaction.compact(engine, catalog, state, number, self.now_us)
        if what == "compact" and topic.cleanup == "compact":
            self.model_compacts(topic)
        self.read_in_every_way()

    def told(self, overtaken: list[Any], expected: dict[tuple[str, str, int], tuple[int, int]]) -> None:
        found: dict[tuple[str, str, int], tuple[int, int]] = {}
        for one in overtaken:
            who = (one.topic, one.consumer, one.partition)
            start, stop = found.get(who, (one.start, one.stop))
            found[who] = (min(start, one.start), max(stop, one.stop))
        assert found == expected
        self.reached["a group overtaken"] += len(found)

    def count_held(self) -> int:
        return sum(len(p.held()) for topic in self.model.topics.values() for p in topic.partitions)

    def model_retains(self, topic: model.Topic) -> dict[tuple[str, int], tuple[int, int]]:
        held = self.count_held()
        overtaken = self.model.retain(topic, self.now_us)
        if self.count_held() < held:
            self.reached["retention"] += 1
        old_us = self.now_us - topic.retention_us if topic.retention_us else 0
        if topic.unread == "keep" and any(p.spans and p.spans[0].arrived_us < old_us for p in topic.partitions):
            self.reached["retention waits for a group"] += 1
        return overtaken

    def model_compacts(self, topic: model.Topic) -> int:
        if topic.cleanup != "compact":
            return 0
        ends = {(n, o) for n, o, r in everything(topic) if topic.is_tombstone(r.row)}
        gone = self.model.compact(topic, self.now_us)
        left = [(n, o, r) for n, o, r in everything(topic) if topic.is_tombstone(r.row)]
        newest = {(n, r.row.key): o for n, o, r in everything(topic)}
        dead = {
            (n, o) for n, o in ends if (n, topic.partitions[n].records[o].row.key) not in newest
        }  # the key is gone with it
        self.reached["records compacted"] += gone
        self.reached["tombstones ended"] += len(dead)
        for _, _, record in left:
            young = record.arrived_us >= self.now_us - topic.grace_us
            self.reached["a tombstone waits for its grace" if young else "a tombstone waits for a group"] += 1
        return gone

    @precondition(lambda self: self.known)
    @rule(data=st.data(), key=keys)
    def erase(self, data: st.DataObject, key: str | None) -> None:
        topic = choose(data, self.known)
        handle = self.handles[topic.uid]
        with self.refused_alike() as real:
            real.append(lambda: handle.erase(key))
            expected = self.model.erase(topic, key)
            done = handle.erase(key)
            assert (done.records, done.dead_letters, done.incomplete) == (*expected, [])
            self.reached["records erased"] += done.records
            self.reached["letters erased"] += done.dead_letters
            self.reached["erased where partitions were added"] += bool(done.records and topic.partitions_added)
        self.read_in_every_way()

    def look_at_batches(self, topic: model.Topic) -> None:
        """What retention goes by. A batch has the arrival of its last record, or of what once was its last."""
        if self.model.topics.get(topic.name) is not topic:
            return  # deleted: appends to it are refused, and there are none
        with self.log._engine.index.reading() as db:
            (named,) = db.execute("SELECT id FROM topics WHERE name = ?", (topic.name,)).fetchone()
            for number, partition in enumerate(topic.partitions):
                rows = BATCHES.select(db, "WHERE topic = ? AND partition = ? ORDER BY base", named, number)
                state = PARTITIONS.get(db, named, number)
                assert state is not None
                assert state.small == sum(map(is_small, rows))
                for row in rows:
                    last = max([record.arrived_us for _, record in partition.held(row.base, row.next)], default=0)
                    assert last <= row.arrived <= partition.records[row.next - 1].arrived_us
                    assert may_be_progress(partition, row.base, row.progress)
                partition.spans = [model.Span(row.base, row.next, row.arrived, row.length) for row in rows]

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
        if self.tight:
            self.log._engine.files.file_bytes_max = TIGHT_FILE_BYTES
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
        partition = topic.partitions[number]
        start = data.draw(st.integers(0, partition.next + 1))
        stop = data.draw(st.integers(start, partition.next + 2))
        columns = data.draw(st.lists(st.sampled_from(["n", "_offset", "_progress", "_arrived_at"]), unique=True))
        if not partition.earliest <= start <= partition.next:
            with pytest.raises(OffsetOutOfRange):
                self.handles[topic.uid].batches(number, start, stop)
            return
        self.do_read_range(topic, number, start, stop, columns)

    def do_read_range(self, topic: model.Topic, number: int, start: int, stop: int, columns: list[str]) -> None:
        batches = list(self.handles[topic.uid].batches(number, start, stop, columns=columns))
        expected = topic.partitions[number].held(start, stop)
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
        self.do_read_key(choose(data, [t for t in self.model.topics.values() if t.keyed]), key)

    def do_read_key(self, topic: model.Topic, key: str) -> None:
        found = [record.value["n"] for record in self.handles[topic.uid].records(key=key)]
        expected = in_order((p, o, r) for p, o, r in everything(topic) if (r.row.key or "") == key)
        assert found == [record.row.value["n"] for _, _, record in expected]

    @precondition(lambda self: self.model.topics)
    @rule(data=st.data())
    def read_from_a_time(self, data: st.DataObject) -> None:
        topic = self.pick(data)
        self.do_read_from(topic, self.some_time(data, topic))

    def do_read_from(self, topic: model.Topic, when_us: int) -> None:
        handle = self.handles[topic.uid]
        found = [(record.partition, record.offset) for record in handle.records(start=from_us(when_us))]
        expected = in_order((p, o, r) for p, o, r in everything(topic) if r.arrived_us >= when_us)
        assert found == [(partition, offset) for partition, offset, _ in expected]
        self.offsets_at(topic, when_us)

    def offsets_at(self, topic: model.Topic, when_us: int) -> dict[int, Any]:
        """Behind all that came before, and before all that came then or later; in a hole, anywhere."""
        at = self.handles[topic.uid].offsets(at=from_us(when_us))
        for number, partition in enumerate(topic.partitions):
            before = [offset for offset, record in partition.held() if record.arrived_us < when_us]
            later = [offset for offset, record in partition.held() if record.arrived_us >= when_us]
            found = at[number].next
            lowest, highest = max([partition.earliest, *(o + 1 for o in before)]), min([partition.next, *later])
            assert lowest <= found <= highest
            reached = None if at[number].progress is None else instant_us(at[number].progress, argument="")
            if found == partition.next:
                assert reached == partition.progress_us
            elif partition.records[found].gone:
                assert may_be_progress(partition, found, reached)
                self.reached["the offset of a time, in a hole"] += 1
            else:
                assert reached == partition.records[found].progress_us or may_be_progress(partition, found, reached)
        return dict(at)

    # -- after every step --------------------------------------------------------------------------

    @invariant()
    def all_that_can_be_read_agrees(self) -> None:
        self.steps_open += 1
        assert [topic.name for topic in self.log.topics()] == sorted(self.model.topics)
        for topic in self.model.topics.values():
            handle = self.handles[topic.uid]
            assert {n: (o.earliest, o.next, o.progress) for n, o in handle.offsets().items()} == {
                n: (p.earliest, p.next, instant(p.progress_us)) for n, p in enumerate(topic.partitions)
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
                assert handle.group(name).lag() == {n: self.lag(topic, name, n) for n in range(len(topic.partitions))}
                assert {info.member: info.partitions for info in handle.group(name).members()} == {
                    id: tuple(n for n, s in sorted(group.shares.items()) if s.owner == id) for id in group.members
                }
            self.look_at_batches(topic)
        assert [self.number_of(letter) for letter in self.log.dead_letters()] == [
            letter.row.value["n"] for letter in self.model.letters
        ]
        with self.log._engine.index.reading() as db:
            assert db.execute("SELECT count(*) FROM dead").fetchone() == (len(self.model.letters),)

    def lag(self, topic: model.Topic, name: str, number: int) -> Lag:
        partition, committed = topic.partitions[number], topic.groups[name].share(number).committed
        at = max(partition.earliest, committed or 0)
        oldest = next((self.now_us - record.arrived_us for _, record in partition.held(at)), 0)
        return Lag(committed, partition.next, partition.next - at, timedelta(microseconds=max(0, oldest)))

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
UPKEEP = ("append_several", "a_group_reads", "alter_the_rules", "maintain", "a_step_of_upkeep", "erase")
NOT_OF_UPKEEP = (
    *("leave", "beat", "some_fall_silent", "something_happens_between_poll_and_commit", "commit_up_to", "commit"),
    *("append", "append_a_bad_row", "append_if", "append_whatever_to_whichever", "transaction", "join", "poll"),
    *("create", "delete", "delete_a_group", "the_clock_goes_on_or_jumps_back", *STAMPS, *LETTERS, *READS),
)


def without(*rules: str, kinds: dict[str, dict[str, Any]] = KINDS) -> type[LogMachine]:
    """The machine with fewer rules, so that those left meet more often. What is checked stays the same."""
    return type("LogMachine", (LogMachine,), {**dict.fromkeys(rules), "kinds": kinds})


MACHINES = {
    "everything": LogMachine,
    "groups": without(*STAMPS, *LETTERS, *READS, *REST, *UPKEEP, "append_whatever_to_whichever"),
    "records": without(*GROUPS, *UPKEEP),
    "stamps": without(*GROUPS, *LETTERS, *READS, *REST, *UPKEEP, "append", "append_whatever_to_whichever"),
    "retention": without(*NOT_OF_UPKEEP, kinds={kind: UPKEPT[kind] for kind in UPKEPT if "compacted" not in kind}),
    "compaction": without(
        *NOT_OF_UPKEEP, "alter_the_rules", kinds={kind: UPKEPT[kind] for kind in UPKEPT if "compacted" in kind}
    ),
}
REACHED = {
    "retention": {
        "retention",
        "retention waits for a group",
        "a group overtaken",
        "a poll of what retention has deleted",
        "an append refused: full of what a group has not read",
        "batches sealed",
        "files removed",
        "records erased",
        "erased where partitions were added",
        "letters erased",
    },
    "compaction": {
        "records compacted",
        "a tombstone waits for its grace",
        "a tombstone waits for a group",
        "tombstones ended",
        "a poll over a hole",
        "the offset of a time, in a hole",
        "batches sealed",
        "bytes moved",
        "files removed",
        "records erased",
    },
}


def choose(data: st.DataObject, among: list[Any]) -> Any:
    """By number: a failing run then prints numbers, not whole models."""
    return among[data.draw(st.integers(0, len(among) - 1))]


def instant(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def grows(topic: model.Topic) -> bool:
    return not topic.versioned and topic.cleanup == "delete" and len(topic.partitions) < 6


def may_be_progress(partition: model.Partition, offset: int, us: int | None) -> bool:
    """Of a batch that begins there: as the record's there, who may be gone. Where records were given theirs, no less
    than those below have, and no more than any up to there had."""
    up_to = partition.records[: offset + 1]
    if not any(record.row.given for record in partition.records):
        return us == up_to[-1].progress_us
    lowest = [record.progress_us or 0 for _, record in partition.held(stop=offset)]
    highest = [time_us or 0 for record in up_to for time_us in (record.progress_us, record.before_us)]
    return max(lowest, default=0) <= (us or 0) <= max(highest)


def everything(topic: model.Topic) -> Iterator[tuple[int, int, model.Stored]]:
    for number, partition in enumerate(topic.partitions):
        for offset, record in partition.held():
            yield number, offset, record


def in_order(found: Iterator[tuple[int, int, model.Stored]]) -> list[tuple[int, int, model.Stored]]:
    return sorted(found, key=lambda item: (item[2].arrived_us, item[0], item[1]))


SETTINGS = settings(
    max_examples=12,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("which", MACHINES)
def test_the_log_agrees_with_its_model(which: str, seed: int) -> None:
    LogMachine.reached.clear()
    run_state_machine_as_test(MACHINES[which], settings=SETTINGS)
    if seed == SEED_FIXED:
        assert REACHED.get(which, set()) <= {what for what, often in LogMachine.reached.items() if often}


@pytest.mark.soak
def test_the_log_agrees_with_its_model_for_long(soak_seconds: float, seed: int) -> None:
    """Each turn has a seed of its own: with the run's one, every turn would be the first again."""
    until = time.monotonic() + soak_seconds
    for turn, machine in enumerate(itertools.cycle(MACHINES.values())):
        if time.monotonic() >= until:
            break
        fresh = hypothesis.seed(seed + turn)(type("LogMachine", (machine,), {}))
        run_state_machine_as_test(fresh, settings=settings(SETTINGS, max_examples=5, stateful_step_count=150))
