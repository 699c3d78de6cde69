"""The behaviour any log must show, as a pytest suite to inherit. Owns the promises behind `headrace.log.contract`,
one test each; knows no implementation. Needs pytest, pyarrow, polars and pandas.

    class TestEmbeddedLog(LogContract):
        def open_log(self, home): return open_log(home)

A test marked `embedded_only` shows what a log of several machines need not do (atomic visibility across topics,
conditional appends, a clock that can be set): it is skipped unless the class says `embedded = True`. The hooks
`silence` and `clock` have to be overridden only then. A known gap is `xfail(strict=True, reason=…)` in the subclass."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.durations import from_us
from headrace.errors import (
    Closed,
    CommitBackwards,
    ForgottenSequence,
    HeadraceError,
    IncompatibleSchema,
    InvalidArgument,
    InvalidName,
    InvalidSchema,
    MemberFenced,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Overloaded,
    ProducerFenced,
    RecordRejected,
    RecordTooLarge,
    TopicExists,
    TopicReplaced,
    UnknownGroup,
    UnknownTopic,
    VersionConflict,
    WaitTimeout,
)
from headrace.log.capabilities import Files
from headrace.log.contract import META, Offsets, Record
from headrace.position import Position

__all__ = ["Clock", "LogContract", "at", "click", "values"]

embedded_only = pytest.mark.embedded_only

CLICKS = "user string, page string, ms int, at timestamp"
T0 = datetime(2020, 1, 1, tzinfo=UTC)
KEY_VECTORS = [("u1", 2), ("", 0), (None, 0), ("123456789", 2), ("größe", 1)]
"""Published: the partition of four that a text key goes to, crc32 of its UTF-8 bytes modulo 4."""


def at(seconds: float) -> datetime:
    """That many seconds after T0: well in the past, so arrival caps nothing."""
    return T0 + timedelta(seconds=seconds)


def click(user: str | None = "u1", seconds: float | None = 0, **more: Any) -> dict[str, Any]:
    """A row of CLICKS."""
    return {"user": user, "page": "/", "ms": 1, "at": None if seconds is None else at(seconds), **more}


def values(topic: Any, column: str, **how: Any) -> list[Any]:
    """One column of all records, in the order they are read."""
    return [record.value[column] for record in topic.records(**how)]


def progress(topic: Any, partition: int = 0) -> list[float | None]:
    """`_progress` of every record of a partition, in seconds after T0."""
    found = [batch.column("_progress").to_pylist() for batch in topic.batches(partition, columns=["_progress"])]
    return [None if p is None else (p - T0).total_seconds() for column in found for p in column]


def the_same(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def polled(member: Any, count: int) -> list[Record]:
    """The next `count` records; waits for each, never for a fixed time."""
    out: list[Record] = []
    while len(out) < count:
        found = member.poll(timeout="10 seconds", max_records=count - len(out))
        assert found, f"only {len(out)} of {count} records came"
        out += found
    return out


def eventually(what: Callable[[], Any], seconds: float = 10) -> Any:
    """The first true answer. For states nobody announces: a lease that runs out, a member that was put out."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it never happened"
        threading.Event().wait(0.005)
    return found


class Clock:
    """A wall clock that stands still until it is moved."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def ns(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)

    def replace_machine_clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The machine's clock, and the time since its boot, which confirms that so much time has passed."""
        monkeypatch.setattr(time, "time_ns", self.ns)
        monkeypatch.setattr(time, "clock_gettime_ns", lambda _: self.ns())

    def seconds(self) -> float:
        """Since T0."""
        return (self.now - T0).total_seconds()


class Setting:
    """What every part of the suite stands on: how to open a log."""

    embedded = False

    def open_log(self, home: Path) -> Any:
        """Opens the log at `home`, made if there is none. What is closed and opened again holds the same."""
        raise NotImplementedError

    def silence(self, member: Any) -> None:
        """The member shows no more sign of life, as if its process were stopped; it can still be called."""
        raise NotImplementedError

    def stamps(self, topic: Any) -> Callable[[int], Any]:
        """Begins an epoch of a producer; then, for the number of a first record, what `append(stamp=…)` takes."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _only_what_applies(self, request: pytest.FixtureRequest) -> None:
        if request.node.get_closest_marker("embedded_only") and not self.embedded:
            pytest.skip("promised by the embedded log only")

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        return tmp_path / "log"

    @pytest.fixture
    def log(self, home: Path) -> Iterator[Any]:
        """A fresh log; whatever a test did to it, afterwards everything in it must verify."""
        with self.open_log(home) as log:
            yield log
        with self.open_log(home) as again:
            assert not isinstance(again, Files) or again.verify().problems == []

    @pytest.fixture
    def clicks(self, log: Any) -> Any:
        return log.create_topic("clicks", CLICKS, key="user", event_time="at", durability="os")

    @pytest.fixture
    def four(self, log: Any) -> Any:
        """Four partitions, by user."""
        return log.create_topic("four", CLICKS, key="user", event_time="at", partitions=4, durability="os")

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """The machine's clock, standing at 2020-02-01: T0 plus 31 days."""
        clock = Clock(datetime(2020, 2, 1, tzinfo=UTC))
        clock.replace_machine_clocks(monkeypatch)
        return clock


class Topics(Setting):
    """Create, alter, list, describe, delete."""

    def test_a_created_topic_is_described_as_it_was_asked_for(self, log: Any) -> None:
        topic = log.create_topic(
            "clicks", CLICKS, key="user", event_time="at", partitions=3, retention="30 days", extra="keep"
        )
        told = topic.describe()
        assert (told.name, told.schema_version, told.records) == ("clicks", 1, 0)
        assert told.schema == CLICKS
        assert told.settings.key == ("user",)
        assert told.settings.event_time == "at"
        assert told.settings.partitions == 3
        assert told.settings.retention_us == 30 * 86_400_000_000
        assert told.settings.extra == "keep"

    def test_defaults(self, log: Any) -> None:
        settings = log.create_topic("t", "n int").settings
        assert (settings.partitions, settings.durability, settings.cleanup) == (1, "fsync", "delete")
        assert (settings.max_ahead_us, settings.forget_us) == (3_600_000_000, 7 * 86_400_000_000)
        assert (settings.key, settings.event_time, settings.extra, settings.versioned) == ((), None, "forbid", False)

    def test_description_counts_records_and_bytes(self, clicks: Any) -> None:
        clicks.append([click() for _ in range(5)])
        clicks.append(click())
        told = clicks.describe()
        assert told.records == 6  # 5 + 1
        assert told.bytes > 0

    def test_topics_are_listed_by_name(self, log: Any) -> None:
        for name in ("b", "c", "a"):
            log.create_topic(name, "n int")
        assert [topic.name for topic in log.topics()] == ["a", "b", "c"]

    def test_a_topic_is_there_after_opening_again(self, log: Any, home: Path) -> None:
        made = log.create_topic("clicks", CLICKS, key="user")
        log.close()
        with self.open_log(home) as again:
            assert again.topic("clicks").topic_id == made.topic_id
            assert again.topic("clicks").settings.key == ("user",)

    def test_an_unknown_topic_names_what_there_is(self, log: Any) -> None:
        log.create_topic("clicks", CLICKS)
        with pytest.raises(UnknownTopic, match="Did you mean 'clicks'") as error:
            log.topic("click")
        assert (error.value.topic, error.value.known) == ("click", ["clicks"])

    def test_a_name_is_given_once(self, log: Any) -> None:
        log.create_topic("clicks", CLICKS)
        with pytest.raises(TopicExists):
            log.create_topic("clicks", CLICKS)

    def test_names_that_differ_only_in_case_clash(self, log: Any) -> None:
        log.create_topic("clicks", CLICKS)
        with pytest.raises(TopicExists) as error:
            log.create_topic("Clicks", CLICKS, exist_ok=True)
        assert error.value.topic == "clicks"

    def test_exist_ok_returns_the_topic_as_it_is(self, log: Any) -> None:
        first = log.create_topic("clicks", CLICKS, partitions=2)
        again = log.create_topic("clicks", "n int", partitions=9, exist_ok=True)
        assert again.topic_id == first.topic_id
        assert again.settings.partitions == 2
        assert again.schema.names == ["user", "page", "ms", "at"]

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250, "__mine", "a\n", 5])
    def test_names_outside_the_rule_are_refused(self, log: Any, name: Any) -> None:
        with pytest.raises(InvalidName) as error:
            log.create_topic(name, "n int")
        assert error.value.argument == "name"

    def test_the_longest_name(self, log: Any) -> None:
        topic = log.create_topic("x" * 249, "n int")
        topic.append({"n": 1})
        assert values(log.topic("x" * 249), "n") == [1]

    def test_headraces_own_topics_cannot_be_deleted(self, log: Any) -> None:
        topic = log.create_topic("t", "at timestamp", event_time="at", max_ahead="1 hour")
        topic.append({"at": datetime(9000, 1, 1, tzinfo=UTC)})  # makes the topic of the dead letters
        with pytest.raises(InvalidName):
            log.delete_topic("__dead_letters")
        assert len(list(log.dead_letters())) == 1

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("key", "nobody"),
            ("key", ("user", "user")),
            ("key", 5),
            ("key", (5,)),
            ("event_time", "when"),
            ("event_time", "ms"),
            ("event_time", 5),
            ("partitions", 0),
            ("partitions", "4"),
            ("partitions", True),
            ("partitions", 1_000_000),
            ("retention", "soon"),
            ("retention", "0 days"),
            ("retention_bytes", 0),
            ("retention_bytes", 1.5),
            ("cleanup", "burn"),
            ("cleanup", "compact"),  # without a key
            ("durability", "maybe"),
            ("durability", None),
            ("compression", "gzip"),
            ("compression", None),
            ("versioned", True),  # without a key
            ("max_ahead", None),
            ("max_ahead", "-1 hour"),
            ("forget", "0 days"),
            ("extra", "eat"),
        ],
    )
    def test_a_setting_that_makes_no_sense_is_named(self, log: Any, argument: str, value: Any) -> None:
        with pytest.raises(InvalidArgument) as error:
            log.create_topic("t", CLICKS, **{argument: value})
        assert error.value.argument == argument
        assert log.topics() == []

    def test_a_key_of_a_type_that_is_not_equal_or_unequal_is_refused(self, log: Any) -> None:
        with pytest.raises(InvalidSchema, match="ratio"):
            log.create_topic("t", "ratio double", key="ratio")

    @pytest.mark.parametrize("schema", ["", "n", "n int, n int", "n nothing", "_offset bigint", 5])
    def test_a_schema_that_makes_no_sense_is_refused(self, log: Any, schema: Any) -> None:
        with pytest.raises((InvalidSchema, InvalidArgument)):
            log.create_topic("t", schema)
        assert log.topics() == []

    def test_an_arrow_schema_will_do(self, log: Any) -> None:
        topic = log.create_topic("t", pa.schema([("n", pa.int64()), ("s", pa.string())]))
        assert topic.describe().schema == "n bigint, s string"

    def test_every_type_comes_back_as_it_went_in(self, log: Any) -> None:
        from decimal import Decimal

        topic = log.create_topic(
            "t",
            "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary, j date, "
            "k timestamp, l timestamp_ntz, m decimal(10,2), n array<int>, o map<string,int>, p struct<x:int,y:string>",
        )
        row = {
            "a": True,
            "b": -128,
            "c": 32767,
            "d": -(2**31),
            "e": 2**63 - 1,
            "f": 0.5,
            "g": 0.1,
            "h": "größe",
            "i": b"\x00\xff",
            "j": date(2026, 1, 31),
            "k": at(0.000001),
            "l": datetime(2026, 1, 31, 12, 0, 0, 1),
            "m": Decimal("12345678.90"),
            "n": [1, None, 3],
            "o": {"x": 1},
            "p": {"x": 1, "y": None},
        }
        topic.append(row)
        topic.append(dict.fromkeys(row))
        assert [record.value for record in topic.records()] == [row, dict.fromkeys(row)]

    # -- ids ---------------------------------------------------------------------------------------

    def test_a_topic_made_again_is_another_one(self, log: Any) -> None:
        old = log.create_topic("clicks", CLICKS)
        old.append(click())
        log.delete_topic("clicks")
        new = log.create_topic("clicks", CLICKS)
        assert new.topic_id != old.topic_id
        assert list(new.records()) == []

    @pytest.mark.parametrize(
        "use",
        [
            lambda topic: topic.append(click()),
            lambda topic: topic.append([]),
            lambda topic: topic.append([click()] * 100),
            lambda topic: list(topic.records()),
            lambda topic: list(topic.batches(0)),
            lambda topic: topic.offsets(),
            lambda topic: topic.describe(),
            lambda topic: topic.settings,
            lambda topic: topic.alter(retention="1 day"),
            lambda topic: topic.group("g").join(),
            lambda topic: topic.group("g").rewind("earliest"),
            lambda topic: topic.producer("p"),
        ],
    )
    def test_a_handle_on_a_topic_made_again_says_so(self, log: Any, use: Callable[[Any], Any]) -> None:
        old = log.create_topic("clicks", CLICKS)
        old.append(click())
        log.delete_topic("clicks")
        new = log.create_topic("clicks", CLICKS)
        with pytest.raises(TopicReplaced) as error:
            use(old)
        assert (error.value.topic, error.value.topic_id) == ("clicks", old.topic_id)
        assert new.offsets()[0].next == 0

    def test_a_group_of_a_topic_that_was_deleted_says_so(self, log: Any, clicks: Any) -> None:
        group = clicks.group("g")
        group.join().close()
        log.delete_topic("clicks")
        with pytest.raises(TopicReplaced):
            group.lag()

    def test_a_member_of_a_topic_that_was_deleted_says_so_and_can_be_closed(self, log: Any, clicks: Any) -> None:
        member = clicks.group("g").join()
        log.delete_topic("clicks")
        with pytest.raises(TopicReplaced):
            member.poll(timeout="0 seconds")
        member.close()

    def test_deleting_an_unknown_topic(self, log: Any) -> None:
        with pytest.raises(UnknownTopic):
            log.delete_topic("clicks")

    # -- altering ----------------------------------------------------------------------------------

    def test_settings_can_be_altered(self, clicks: Any) -> None:
        clicks.alter(retention="30 days", max_ahead="2 hours")
        assert clicks.settings.retention_us == 30 * 86_400_000_000
        assert clicks.settings.max_ahead_us == 2 * 3_600_000_000

    @pytest.mark.parametrize(
        "change", [{"key": "page"}, {"event_time": None}, {"versioned": True}, {"colour": 1}, {"partitions": 0}]
    )
    def test_what_cannot_be_altered_is_named_and_changes_nothing(self, clicks: Any, change: dict[str, Any]) -> None:
        before = clicks.describe()
        with pytest.raises(InvalidArgument) as error:
            clicks.alter(retention="1 day", **change)
        assert error.value.argument == next(iter(change))
        assert clicks.describe() == before

    def test_partitions_can_be_added_not_taken(self, four: Any) -> None:
        four.append(click("u1"))  # crc32("u1") % 4 = 2
        four.alter(partitions=5)
        assert sorted(four.offsets()) == [0, 1, 2, 3, 4]
        assert four.append(click("größe")).ranges == {zlib.crc32("größe".encode()) % 5: range(0, 1)}  # 0x5bd3a989
        with pytest.raises(InvalidArgument) as error:
            four.alter(partitions=4)
        assert error.value.argument == "partitions"

    def test_records_of_a_key_are_found_in_its_old_and_its_new_partition(self, four: Any) -> None:
        user = next(f"v{n}" for n in range(100) if zlib.crc32(f"v{n}".encode()) % 4 != zlib.crc32(f"v{n}".encode()) % 5)
        four.append(click(user, ms=1))
        four.alter(partitions=5)
        four.append(click(user, ms=2))
        assert len({record.partition for record in four.records(key=user)}) == 2
        assert values(four, "ms", key=user) == [1, 2]

    @pytest.mark.parametrize("settings", [{"cleanup": "compact"}, {"versioned": True}])
    def test_partitions_of_a_topic_whose_keys_must_stay_are_fixed(self, log: Any, settings: dict[str, Any]) -> None:
        topic = log.create_topic("t", CLICKS, key="user", partitions=2, **settings)
        with pytest.raises(InvalidArgument) as error:
            topic.alter(partitions=3)
        assert error.value.argument == "partitions"

    def test_a_topic_whose_keys_have_moved_cannot_become_compacted(self, four: Any) -> None:
        four.alter(partitions=5)
        with pytest.raises(InvalidArgument) as error:
            four.alter(cleanup="compact")
        assert error.value.argument == "cleanup"

    def test_another_handle_appends_by_the_altered_settings(self, log: Any, four: Any) -> None:
        other = log.topic("four")
        other.append(click("u1"))
        four.alter(partitions=5)
        assert list(other.append(click("u1")).ranges) == [zlib.crc32(b"u1") % 5]

    # -- evolution ---------------------------------------------------------------------------------

    def test_an_added_column_is_null_in_old_records(self, clicks: Any) -> None:
        clicks.append(click(ms=1))
        clicks.alter(schema=CLICKS + ", country string")
        clicks.append(click(ms=2, country="de"))
        assert [(r.value["ms"], r.value["country"]) for r in clicks.records()] == [(1, None), (2, "de")]
        assert clicks.describe().schema_version == 2

    def test_an_added_column_can_be_read_alone(self, clicks: Any) -> None:
        clicks.append(click())
        clicks.alter(schema=CLICKS + ", country string")
        (batch,) = clicks.batches(0, columns=["country"])
        assert batch.column("country").to_pylist() == [None]

    def test_a_widened_column_keeps_old_values(self, clicks: Any) -> None:
        clicks.append(click(ms=2**31 - 1))
        clicks.alter(schema=CLICKS.replace("ms int", "ms bigint"))
        clicks.append(click(ms=2**31))
        assert values(clicks, "ms") == [2**31 - 1, 2**31]

    @pytest.mark.parametrize(
        ("schema", "column"),
        [
            ("user string, ms int, at timestamp", "page"),  # missing
            (CLICKS.replace("ms int", "ms smallint"), "ms"),  # narrower
            (CLICKS.replace("ms int", "ms string"), "ms"),
            (CLICKS.replace("page string", "page string NOT NULL"), "page"),
            (CLICKS + ", country string NOT NULL", "country"),  # old records have none
            (CLICKS.replace("user string", "user binary"), "user"),  # the key
        ],
    )
    def test_an_incompatible_change_names_the_column(self, clicks: Any, schema: str, column: str) -> None:
        with pytest.raises(IncompatibleSchema) as error:
            clicks.alter(schema=schema)
        assert error.value.column == column
        assert clicks.describe().schema_version == 1

    def test_the_same_schema_again_is_no_new_version(self, clicks: Any) -> None:
        clicks.alter(schema=CLICKS)
        assert clicks.describe().schema_version == 1

    def test_a_transaction_prepared_before_an_alteration_goes_through(self, log: Any, clicks: Any) -> None:
        with log.transaction() as tx:
            tx.append("clicks", click(ms=1))
            clicks.alter(schema=CLICKS + ", country string")
        assert [(r.value["ms"], r.value["country"]) for r in clicks.records()] == [(1, None)]


class Appending(Setting):
    """What goes in, where it goes, what is refused."""

    ROWS: tuple[dict[str, Any], ...] = tuple(click(f"u{n}", n, ms=n) for n in range(5))

    def table(self) -> pa.Table:
        schema = pa.schema(
            [("user", pa.string()), ("page", pa.string()), ("ms", pa.int32()), ("at", pa.timestamp("us", "UTC"))]
        )
        return pa.Table.from_pylist([dict(row) for row in self.ROWS], schema=schema)

    def polars(self) -> Any:
        import polars

        return polars.from_arrow(self.table())

    @pytest.mark.parametrize(
        "make",
        [
            lambda self: list(self.ROWS),
            lambda self: self.ROWS,
            lambda self: (row for row in self.ROWS),
            lambda self: dict(enumerate(self.ROWS)).values(),
            lambda self: self.table(),
            lambda self: self.table().to_batches()[0],
            lambda self: pa.RecordBatchReader.from_batches(self.table().schema, self.table().to_batches(2)),
            lambda self: self.polars(),
            lambda self: self.table().to_pandas(),
            lambda self: pa.table(dict(reversed(list(self.table().to_pydict().items()))), schema=None),
        ],
        ids=["list", "tuple", "generator", "view", "table", "batch", "reader", "polars", "pandas", "other-order"],
    )
    def test_rows_in_every_shape(self, clicks: Any, make: Callable[[Any], Any]) -> None:
        done = clicks.append(make(self))
        assert done.ranges == {0: range(0, 5)}
        assert [record.value for record in clicks.records()] == list(self.ROWS)

    def test_one_mapping(self, clicks: Any) -> None:
        assert clicks.append(self.ROWS[0]).ranges == {0: range(0, 1)}
        assert [record.value for record in clicks.records()] == [self.ROWS[0]]

    def test_a_chunked_table_with_dictionary_columns(self, clicks: Any) -> None:
        table = self.table()
        coded = table.set_column(0, "user", table.column("user").dictionary_encode())
        clicks.append(pa.concat_tables([coded.slice(0, 2), coded.slice(2)]))
        assert [record.value for record in clicks.records()] == list(self.ROWS)

    def test_a_missing_field_is_null(self, clicks: Any) -> None:
        clicks.append({"user": "u1"})
        assert [record.value for record in clicks.records()] == [{"user": "u1", "page": None, "ms": None, "at": None}]

    @pytest.mark.parametrize("rows", [[], (), iter(()), pa.table({"user": pa.array([], pa.string())})])
    def test_an_empty_append_writes_nothing_and_says_how_far_the_topic_is(self, clicks: Any, rows: Any) -> None:
        position = clicks.append(click()).position
        done = clicks.append(rows)
        assert (done.ranges, done.position) == ({}, position)
        assert clicks.offsets()[0].next == 1

    @pytest.mark.parametrize("rows", [5, "u1", b"u1", None, [5], [click(), 5], [[("user", "u1")]]])
    def test_what_is_not_rows_is_refused(self, clicks: Any, rows: Any) -> None:
        with pytest.raises(InvalidArgument):
            clicks.append(rows)
        assert clicks.offsets()[0].next == 0

    @pytest.mark.parametrize(
        ("bad", "column"),
        [
            ({"ms": "12"}, "ms"),
            ({"ms": 2**31}, "ms"),
            ({"ms": 1.5}, "ms"),
            ({"user": 5}, "user"),
            ({"at": datetime(2020, 1, 1)}, "at"),  # which zone?
            ({"at": 1577836800}, "at"),  # which unit?
            ({"colour": "red"}, "colour"),
        ],
    )
    def test_a_bad_row_is_named_and_nothing_is_written(self, clicks: Any, bad: dict[str, Any], column: str) -> None:
        with pytest.raises(RecordRejected) as error:
            clicks.append([click(), click(), click() | bad])
        assert (error.value.topic, error.value.row, error.value.column) == ("clicks", 2, column)
        assert clicks.offsets()[0].next == 0

    def test_a_null_where_there_must_be_a_value(self, log: Any) -> None:
        topic = log.create_topic("t", "n int NOT NULL")
        for row in ({"n": None}, {}):
            with pytest.raises(RecordRejected) as error:
                topic.append(row)
            assert error.value.column == "n"

    def test_unknown_fields_are_ignored_if_the_topic_says_so(self, log: Any) -> None:
        topic = log.create_topic("t", "n int", extra="ignore")
        topic.append({"n": 1, "colour": "red"})
        topic.append(
            pa.table({"n": [2], "colour": ["blue"]}).cast(pa.schema([("n", pa.int32()), ("colour", pa.string())]))
        )
        assert [record.value for record in topic.records()] == [{"n": 1}, {"n": 2}]

    def test_unknown_fields_are_kept_if_the_topic_says_so(self, log: Any) -> None:
        topic = log.create_topic("t", "n int", extra="keep")
        topic.append([{"n": 1, "colour": "red", "size": [1, 2]}, {"n": 2}])
        assert [record.value for record in topic.records()] == [{"n": 1, "colour": "red", "size": [1, 2]}, {"n": 2}]

    def test_what_was_kept_stays_when_the_rule_changes(self, log: Any) -> None:
        topic = log.create_topic("t", "n int", extra="keep")
        topic.append({"n": 1, "colour": "red"})
        topic.alter(extra="forbid")
        topic.append({"n": 2})
        assert [record.value for record in topic.records()] == [{"n": 1, "colour": "red"}, {"n": 2}]
        with pytest.raises(RecordRejected):
            topic.append({"n": 3, "colour": "red"})

    def test_a_record_too_large_is_named_and_nothing_is_written(self, log: Any) -> None:
        topic = log.create_topic("t", "s string", durability="os")
        with pytest.raises(RecordTooLarge) as error:
            topic.append([{"s": "a"}, {"s": "b" * (17 << 20)}, {"s": "c"}])
        assert error.value.row == 1
        assert error.value.size_bytes > error.value.limit_bytes
        assert topic.offsets()[0].next == 0

    def test_many_records_larger_together_than_one_may_be(self, log: Any) -> None:
        topic = log.create_topic("t", "s string", durability="os")
        topic.append([{"s": str(n) * (1 << 20)} for n in range(10)] * 3)  # 30 MiB in records of 1 MiB
        assert [record.value["s"][0] for record in topic.records()] == [str(n) for n in range(10)] * 3

    def test_empty_text_and_empty_bytes_are_not_null(self, log: Any) -> None:
        topic = log.create_topic("t", "s string, b binary", key="s")
        topic.append([{"s": "", "b": b""}, {"s": None, "b": None}])
        assert [record.value for record in topic.records()] == [{"s": "", "b": b""}, {"s": None, "b": None}]

    # -- partitions and offsets --------------------------------------------------------------------

    @pytest.mark.parametrize(("key", "partition"), KEY_VECTORS)
    def test_a_key_finds_its_published_partition(self, four: Any, key: str | None, partition: int) -> None:
        assert zlib.crc32((key or "").encode()) % 4 == partition
        assert four.append(click(key)).ranges == {partition: range(0, 1)}
        assert four.append([click(key)] * 100).ranges == {partition: range(1, 101)}

    def test_a_composite_key_finds_its_published_partition(self, log: Any) -> None:
        topic = log.create_topic("t", "k string, n int", key=("k", "n"), partitions=4)
        assert topic.append({"k": "u1", "n": 7}).ranges == {3: range(0, 1)}  # 00000002 7531 00000001 37
        assert next(topic.records()).key == ("u1", 7)

    def test_rows_of_one_append_go_each_to_its_own_partition(self, four: Any) -> None:
        done = four.append([click(user) for user in ("u1", "123456789", "größe", "")])  # partitions 2, 2, 1, 0
        assert done.ranges == {0: range(0, 1), 1: range(0, 1), 2: range(0, 2)}

    def test_without_a_key_partitions_take_turns(self, log: Any) -> None:
        topic = log.create_topic("t", "n int", partitions=3, durability="os")
        for n in range(6):
            topic.append({"n": n})
        topic.append([{"n": n} for n in range(6, 12)])
        topic.append([{"n": n} for n in range(12, 312)])
        assert {p: o.next for p, o in topic.offsets().items()} == {0: 104, 1: 104, 2: 104}  # 312 / 3

    def test_offsets_increase(self, clicks: Any) -> None:
        given = [clicks.append([click()] * size).ranges[0] for size in (1, 3, 100, 1, 64, 65)]
        assert all(before.stop <= after.start for before, after in itertools.pairwise(given))
        offsets = [record.offset for record in clicks.records()]
        assert offsets == [offset for each in given for offset in each] == sorted(set(offsets))
        assert clicks.offsets()[0].next > offsets[-1]

    @embedded_only
    def test_offsets_are_dense_from_zero(self, clicks: Any) -> None:
        sizes = [1, 3, 100, 1, 64, 65]
        starts = [clicks.append([click()] * size).ranges[0] for size in sizes]
        assert starts == [range(sum(sizes[:n]), sum(sizes[: n + 1])) for n in range(6)]  # 0..1, 1..4, 4..104, …
        assert [record.offset for record in clicks.records()] == list(range(234))

    def test_a_refused_append_uses_no_offset(self, clicks: Any) -> None:
        clicks.append(click())
        with pytest.raises(RecordRejected):
            clicks.append(click(ms="x"))
        assert clicks.append(click()).ranges == {0: range(1, 2)}

    def test_records_come_back_after_opening_again(self, log: Any, home: Path, clicks: Any) -> None:
        clicks.append([click(ms=n) for n in range(3)])
        before = list(clicks.records())
        log.close()
        with self.open_log(home) as again:
            assert list(again.topic("clicks").records()) == before
            assert again.topic("clicks").append(click()).ranges == {0: range(3, 4)}

    @pytest.mark.parametrize("durability", ["fsync", "os"])
    def test_both_durabilities_hold_what_they_took(self, log: Any, home: Path, durability: str) -> None:
        for name, kind in (("a", durability), ("b", "fsync"), ("c", "os")):
            log.create_topic(name, "n int", durability=kind)
        for n in range(4):
            for name in "abc":
                log.topic(name).append({"n": n})
        log.close()
        with self.open_log(home) as again:
            assert [values(again.topic(name), "n") for name in "abc"] == [[0, 1, 2, 3]] * 3

    # -- position ----------------------------------------------------------------------------------

    def test_an_append_says_how_far_the_topic_is_now(self, four: Any) -> None:
        done = four.append([click("u1"), click("größe")])  # partitions 2 and 1
        assert done.position == Position.of("four", four.topic_id, {1: 1, 2: 1})
        assert four.append(click("u1")).position == Position.of("four", four.topic_id, {2: 2})

    def test_positions_travel_as_text_and_add_up(self, log: Any, four: Any) -> None:
        other = log.create_topic("other", "n int")
        one, two = four.append(click("u1")).position, other.append({"n": 1}).position
        both = Position.parse(str(one)) | Position.parse(str(two))
        assert both.offsets("four") == {2: 1} and both.offsets("other") == {0: 1}
        assert one <= both and two <= both and not both <= one

    def test_a_later_append_covers_an_earlier_one_of_its_partition(self, clicks: Any) -> None:
        first, second = clicks.append(click()).position, clicks.append(click()).position
        assert second > first and second | first == second

    # -- many at once ------------------------------------------------------------------------------

    def test_eight_threads_append_and_read(self, four: Any) -> None:
        seen: list[Any] = []

        def work(worker: int) -> None:
            for n in range(20):
                four.append(click(f"w{worker}", n, ms=n))
                if n % 5 == 0:
                    assert values(four, "ms", key=f"w{worker}") == list(range(n + 1))  # one's own writes are seen
            seen.append(worker)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(8))
        assert sum(o.next for o in four.offsets().values()) == 160  # 8 * 20
        for worker in range(8):
            assert values(four, "ms", key=f"w{worker}") == list(range(20))

    def test_a_bad_append_takes_none_of_its_neighbours_with_it(self, clicks: Any) -> None:
        start = threading.Barrier(8)
        outcomes: queue.Queue[Any] = queue.Queue()

        def work(worker: int) -> None:
            start.wait()
            for n in range(10):
                try:
                    outcomes.put(clicks.append(click(ms="bad" if worker == 0 else n)).ranges[0])
                except RecordRejected as error:
                    outcomes.put((worker, error.row))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [outcomes.get() for _ in range(80)]
        assert [f for f in found if isinstance(f, tuple)] == [(0, 0)] * 10
        assert sorted(f.start for f in found if isinstance(f, range)) == list(range(70))  # 7 * 10


class Times(Setting):
    """Arrival and event-time progress, as DESIGN's "Time" has them: P(o) is the largest min(t, a) below o."""

    def test_arrival_is_now(self, clicks: Any) -> None:
        before = datetime.now(UTC)
        clicks.append(click())
        (record,) = clicks.records()
        assert before - timedelta(seconds=1) <= record.arrived_at <= datetime.now(UTC) + timedelta(seconds=1)

    def test_arrival_never_goes_back_within_a_partition(self, clicks: Any) -> None:
        for _ in range(20):
            clicks.append(click())
        arrived = [record.arrived_at for record in clicks.records()]
        assert arrived == sorted(arrived)

    @embedded_only
    def test_arrival_stands_still_when_the_clock_jumps_back(self, clock: Clock, clicks: Any) -> None:
        arrived = []
        for step in (0, 10, -3600, 1, 3700):
            clock.advance(seconds=step)
            clicks.append(click())
            arrived.append(clock.now)
        clicks.append(click())
        first, second, _, _, last = arrived
        assert [r.arrived_at for r in clicks.records()] == [first, second, second, second, last, last]

    @embedded_only
    def test_partitions_keep_their_own_arrival(self, clock: Clock, four: Any) -> None:
        four.append(click("u1"))  # partition 2
        clock.advance(seconds=-60)
        four.append(click("größe"))  # partition 1 got nothing later than this yet, but its creation
        created = clock.now + timedelta(seconds=60)
        assert {r.partition: r.arrived_at for r in four.records()} == {2: created, 1: created}

    def test_progress_is_the_largest_event_time_below(self, clicks: Any) -> None:
        clicks.append([click(seconds=s) for s in (10, 5, 20)])
        clicks.append(click(seconds=15))
        clicks.append([click(seconds=30), click(seconds=1)])
        #       offsets      0     1   2   3   4   5
        #       event time  10     5  20  15  30   1
        assert progress(clicks) == [None, 10, 10, 20, 20, 30]
        assert clicks.offsets()[0] == Offsets(0, 6, at(30))

    def test_progress_is_per_partition(self, four: Any) -> None:
        four.append([click("u1", 10), click("größe", 99), click("u1", 5), click("größe", 1)])
        assert progress(four, 2) == [None, 10]
        assert progress(four, 1) == [None, 99]
        assert progress(four, 0) == []

    @embedded_only
    def test_progress_is_capped_at_arrival(self, clock: Clock, clicks: Any) -> None:
        now = clock.seconds()
        clicks.append([click(seconds=now + 1800), click(seconds=now - 5), click(seconds=now)])  # half an hour ahead
        clock.advance(seconds=60)
        clicks.append([click(seconds=now + 10), click(seconds=now + 30), click(seconds=now + 70)])
        #  min(t, a): now, now - 5, now | now + 10, now + 30, now + 60
        assert progress(clicks) == [None, now, now, now, now + 10, now + 30]
        assert clicks.offsets()[0].progress == at(now + 60)

    def test_untimed_records_move_nothing(self, clicks: Any) -> None:
        clicks.append([click(seconds=s) for s in (None, 10, None, 5, None)])
        clicks.append(click(seconds=None))
        assert progress(clicks) == [None, None, 10, 10, 10, 10]

    def test_only_untimed_records_make_no_progress(self, clicks: Any) -> None:
        clicks.append(click(seconds=None))
        clicks.append([click(seconds=None)] * 2)
        assert progress(clicks) == [None, None, None]
        assert clicks.offsets()[0].progress is None

    def test_a_topic_without_event_time_makes_no_progress(self, log: Any) -> None:
        topic = log.create_topic("t", CLICKS)
        topic.append([click(seconds=10)] * 3)
        assert progress(topic) == [None] * 3

    def test_times_before_1970_count_like_others(self, clicks: Any) -> None:
        before = [datetime(1969, 7, 20, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
        clicks.append([click() | {"at": when} for when in (*before, None)])
        found = [record.progress for record in clicks.records()]
        assert found == [None, before[0], before[0]]

    def test_progress_is_the_same_from_wherever_one_reads(self, clicks: Any) -> None:
        for size in (3, 1, 70, 2):
            clicks.append([click(seconds=(7 * n) % 50 + size) for n in range(size)])
        whole = progress(clicks)
        for start in range(76):
            part = [b.column("_progress").to_pylist() for b in clicks.batches(0, start, columns=["_progress"])]
            found = [None if p is None else (p - T0).total_seconds() for column in part for p in column]
            assert found == whole[start:]

    def test_progress_stays_over_opening_again(self, log: Any, home: Path, clicks: Any) -> None:
        clicks.append([click(seconds=s) for s in (10, 5, 20)])
        log.close()
        with self.open_log(home) as again:
            topic = again.topic("clicks")
            topic.append([click(seconds=1), click(seconds=2)])
            assert progress(topic) == [None, 10, 10, 20, 20]

    # -- the floor ---------------------------------------------------------------------------------

    @embedded_only
    def test_a_partition_that_slept_longer_than_forget_wakes_at_the_floor(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, key="user", event_time="at", partitions=4, forget="1 day")
        day = 86_400.0
        topic.append(click("größe", 100))  # partition 1
        clock.advance(days=1)
        now = clock.seconds()
        topic.append(click("u1", now))  # partition 2, nothing for exactly a day: no floor yet
        clock.advance(seconds=1)
        topic.append([click("größe", 7), click("größe", 8)])  # slept 1 day and 1 second
        topic.append(click("größe", 9))
        assert progress(topic, 2) == [None]
        assert progress(topic, 1) == [None, now - day, now - day, now - day]  # the topic's largest less a day
        assert topic.offsets()[1].progress == at(now - day)

    @embedded_only
    def test_the_floor_never_lowers_progress(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, key="user", event_time="at", forget="1 day")
        topic.append(click(seconds=1000))
        clock.advance(days=10)
        topic.append([click(seconds=0)] * 2)  # its own 1000 is the topic's largest, less a day is below
        assert progress(topic) == [None, 1000, 1000]

    @embedded_only
    def test_creation_counts_as_an_arrival(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, key="user", event_time="at", partitions=4, forget="1 day")
        clock.advance(hours=23)
        topic.append(click("u1", clock.seconds()))
        topic.append([click("größe", 5), click("größe", 6)])  # fresh, not asleep
        assert progress(topic, 1) == [None, 5]

    @embedded_only
    def test_a_partition_added_later_is_not_asleep(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, key="user", event_time="at", partitions=4, forget="1 day")
        topic.append(click("u1", 100))
        clock.advance(days=5)
        topic.alter(partitions=5)
        user = next(f"v{n}" for n in range(100) if zlib.crc32(f"v{n}".encode()) % 5 == 4)
        topic.append([click(user, 1), click(user, 2)])
        assert progress(topic, 4) == [None, 1]

    # -- given by the writer -----------------------------------------------------------------------

    def test_progress_given_for_all_rows(self, clicks: Any) -> None:
        clicks.append(click(seconds=10))
        clicks.append([click(seconds=500), click(seconds=600)], progress=at(50))
        clicks.append([click(seconds=60), click(seconds=1)])
        #  given progress is the record's own; event times beside it move nothing
        assert progress(clicks) == [None, 50, 50, 50, 60]

    @pytest.mark.parametrize("column", [False, True])
    def test_progress_given_row_by_row(self, clicks: Any, column: bool) -> None:
        given = [None, at(20), at(10)]
        instants = pa.chunked_array([given[:1], given[1:]], pa.timestamp("us", tz="UTC"))
        clicks.append([click(), click(), click()], progress=instants if column else given)
        clicks.append(click(seconds=1))
        assert progress(clicks) == [None, 20, 10, 20]

    def test_given_progress_below_the_partitions_does_not_lower_it(self, clicks: Any) -> None:
        clicks.append(click(seconds=100))
        clicks.append(click(seconds=200), progress=at(50))
        clicks.append(click(seconds=0))
        assert progress(clicks) == [None, 50, 100]
        assert clicks.offsets()[0].progress == at(100)

    def test_that_there_is_none_may_be_given_too(self, clicks: Any) -> None:
        clicks.append([click(seconds=500), click(seconds=600)], progress=[None, None])
        clicks.append([click(seconds=1), click(seconds=2)])
        assert progress(clicks) == [None, None, None, 1]

    def test_given_progress_follows_its_row_into_its_partition(self, four: Any) -> None:
        four.append([click("u1"), click("größe"), click("u1")], progress=[at(1), at(2), at(3)])
        assert (progress(four, 2), progress(four, 1)) == ([1, 3], [2])

    @pytest.mark.parametrize("given", [[at(1)], [at(1)] * 3, datetime(2020, 1, 1), 5, pa.chunked_array([[1, 2]])])
    def test_given_progress_that_makes_no_sense(self, clicks: Any, given: Any) -> None:
        with pytest.raises(InvalidArgument) as error:
            clicks.append([click(), click()], progress=given)
        assert error.value.argument == "progress"
        assert clicks.offsets()[0].next == 0


class DeadLetters(Setting):
    """Records that could not go where they should."""

    def ahead(self, hours: float, **more: Any) -> dict[str, Any]:
        """An event that many hours ahead of the clock."""
        return click() | {"at": from_us(time.time_ns() // 1000) + timedelta(hours=hours)} | more

    def test_an_event_too_far_ahead_is_put_aside(self, log: Any, clicks: Any) -> None:
        done = clicks.append([click(seconds=1, ms=1), self.ahead(2, ms=2), click(seconds=3, ms=3)])
        assert (done.ranges, done.quarantined) == ({0: range(0, 2)}, 1)
        assert values(clicks, "ms") == [1, 3]
        (letter,) = log.dead_letters()
        assert (letter.reason, letter.origin.topic, letter.value["ms"]) == ("max_ahead", "clicks", 2)

    def test_a_single_row_ahead_is_put_aside_too(self, log: Any, clicks: Any) -> None:
        done = clicks.append(self.ahead(2))
        assert (done.ranges, done.quarantined) == ({}, 1)
        assert len(list(log.dead_letters())) == 1

    def test_ahead_but_not_too_far_is_taken(self, log: Any, clicks: Any) -> None:
        assert clicks.append(self.ahead(0.9)).quarantined == 0
        assert list(log.dead_letters()) == []

    @embedded_only
    def test_the_limit_itself_is_not_beyond_it(self, clock: Clock, log: Any, clicks: Any) -> None:
        limit = clock.now + timedelta(hours=1)  # max_ahead
        clicks.append([click() | {"at": limit}, click() | {"at": limit + timedelta(microseconds=1)}])
        assert [record.value["at"] for record in clicks.records()] == [limit]
        assert [letter.value["at"] for letter in log.dead_letters()] == [limit + timedelta(microseconds=1)]

    def test_letters_come_oldest_first(self, log: Any, clicks: Any) -> None:
        clicks.append([self.ahead(2, ms=n) for n in range(3)])
        clicks.append(self.ahead(2, ms=3))
        assert [letter.value["ms"] for letter in log.dead_letters()] == [0, 1, 2, 3]

    def test_a_letter_keeps_every_column_exactly(self, log: Any) -> None:
        topic = log.create_topic("t", "at timestamp, e bigint, g double, b binary, j date", event_time="at")
        row = self.ahead(2) | {"e": 2**63 - 1, "g": 0.1, "b": b"\x00\xff", "j": date(2026, 1, 31)}
        row = {name: row[name] for name in ("at", "e", "g", "b", "j")}
        topic.append(row)
        (letter,) = log.dead_letters()
        assert letter.value == row

    @embedded_only
    def test_replayed_once_its_time_has_come(self, clock: Clock, log: Any, clicks: Any) -> None:
        clicks.append(self.ahead(2, ms=7))
        clock.advance(hours=1)  # now it is one hour ahead: allowed
        (letter,) = log.dead_letters()
        assert letter.replay().ranges == {0: range(0, 1)}
        assert values(clicks, "ms") == [7]
        assert list(log.dead_letters()) == []

    @embedded_only
    def test_replayed_twice_is_refused(self, clock: Clock, log: Any, clicks: Any) -> None:
        clicks.append(self.ahead(2))
        clock.advance(hours=1)
        (letter,) = log.dead_letters()
        letter.replay()
        with pytest.raises(InvalidArgument, match="already"):
            letter.replay()
        assert clicks.offsets()[0].next == 1

    def test_a_replay_still_ahead_is_refused_and_the_letter_stays(self, log: Any, clicks: Any) -> None:
        clicks.append(self.ahead(2))
        (letter,) = log.dead_letters()
        with pytest.raises(InvalidArgument, match="again"):
            letter.replay()
        assert [found.id for found in log.dead_letters()] == [letter.id]
        assert clicks.offsets()[0].next == 0

    def test_dropped_once(self, log: Any, clicks: Any) -> None:
        clicks.append([self.ahead(2, ms=1), self.ahead(2, ms=2), self.ahead(2, ms=3)])
        list(log.dead_letters())[1].drop()
        assert [letter.value["ms"] for letter in log.dead_letters()] == [1, 3]
        first = next(log.dead_letters())
        first.drop()
        with pytest.raises(InvalidArgument, match="already"):
            first.drop()

    def test_letters_are_there_after_opening_again(self, log: Any, home: Path, clicks: Any) -> None:
        clicks.append(self.ahead(2, ms=7))
        log.close()
        with self.open_log(home) as again:
            assert [letter.value["ms"] for letter in again.dead_letters()] == [7]

    @embedded_only
    def test_a_letter_is_not_replayed_into_a_topic_made_again(self, clock: Clock, log: Any, clicks: Any) -> None:
        clicks.append(self.ahead(2))
        clock.advance(hours=1)
        log.delete_topic("clicks")
        new = log.create_topic("clicks", CLICKS, key="user", event_time="at")
        (letter,) = log.dead_letters()
        with pytest.raises(TopicReplaced):
            letter.replay()
        assert new.offsets()[0].next == 0

    def test_an_event_ahead_inside_a_transaction(self, log: Any, clicks: Any) -> None:
        with log.transaction() as tx:
            tx.append("clicks", [click(ms=1), self.ahead(2, ms=2)])
        assert values(clicks, "ms") == [1]
        assert [letter.value["ms"] for letter in log.dead_letters()] == [2]

    def test_a_refused_transaction_leaves_no_letter(self, log: Any) -> None:
        log.create_topic("clicks", CLICKS, event_time="at")
        with pytest.raises(ZeroDivisionError), log.transaction() as tx:
            tx.append("clicks", self.ahead(2))
            raise ZeroDivisionError
        assert list(log.dead_letters()) == []

    def test_progress_is_not_moved_by_what_was_put_aside(self, clicks: Any) -> None:
        clicks.append([click(seconds=5), self.ahead(2), click(seconds=1)])
        assert progress(clicks) == [None, 5]


class Idempotence(Setting):
    """Appends that carry (producer, epoch, number of the first record): a repetition changes nothing."""

    @pytest.fixture
    def stamp(self, clicks: Any) -> Callable[[int], Any]:
        return self.stamps(clicks)

    @embedded_only
    def test_a_repetition_returns_the_original_offsets(self, clicks: Any, stamp: Callable[[int], Any]) -> None:
        first = clicks.append([click(ms=1), click(ms=2)], stamp=stamp(0))
        clicks.append(click(ms=9))
        again = clicks.append([click(ms=1), click(ms=2)], stamp=stamp(0))
        assert (again.ranges, again.duplicate, first.duplicate) == (first.ranges, True, False)
        assert values(clicks, "ms") == [1, 2, 9]

    @embedded_only
    def test_an_earlier_append_can_be_repeated_too(self, clicks: Any, stamp: Callable[[int], Any]) -> None:
        ranges = [clicks.append([click()] * 2, stamp=stamp(2 * n)).ranges for n in range(5)]
        assert [clicks.append([click()] * 2, stamp=stamp(2 * n)).ranges for n in range(5)] == ranges
        assert clicks.offsets()[0].next == 10

    @embedded_only
    def test_a_gap_is_refused(self, clicks: Any, stamp: Callable[[int], Any]) -> None:
        clicks.append([click()] * 2, stamp=stamp(0))
        with pytest.raises(OutOfOrderSequence) as error:
            clicks.append(click(), stamp=stamp(3))
        assert (error.value.expected, error.value.sequence) == (2, 3)
        assert clicks.append(click(), stamp=stamp(2)).ranges == {0: range(2, 3)}

    @embedded_only
    def test_a_repetition_of_another_size_is_refused(self, clicks: Any, stamp: Callable[[int], Any]) -> None:
        clicks.append([click()] * 3, stamp=stamp(0))
        for rows, sequence in (([click()] * 2, 0), ([click()], 1)):
            with pytest.raises(OutOfOrderSequence):
                clicks.append(rows, stamp=stamp(sequence))
        assert clicks.offsets()[0].next == 3

    @embedded_only
    def test_a_repetition_too_old_is_refused_but_known(self, clicks: Any, stamp: Callable[[int], Any]) -> None:
        for n in range(200):
            clicks.append(click(), stamp=stamp(n))
        with pytest.raises(ForgottenSequence) as error:
            clicks.append(click(), stamp=stamp(0))
        assert 0 < error.value.remembered_from < 200
        assert clicks.append(click(), stamp=stamp(error.value.remembered_from)).duplicate
        assert clicks.offsets()[0].next == 200

    @embedded_only
    def test_a_second_producer_of_an_id_fences_the_first(self, clicks: Any) -> None:
        with clicks.producer("p") as old:
            old.send(click(ms=1)).result(10)
            with clicks.producer("p") as new:
                with pytest.raises(ProducerFenced) as error:
                    old.send(click(ms=2)).result(10)
                new.send(click(ms=3)).result(10)
        assert error.value.current_epoch == error.value.epoch + 1
        assert values(clicks, "ms") == [1, 3]

    @embedded_only
    def test_a_producer_goes_on_where_its_id_was(self, log: Any, home: Path, clicks: Any) -> None:
        with clicks.producer("p") as producer:
            for n in range(3):
                producer.send(click(ms=n))
        log.close()
        with self.open_log(home) as again:
            with again.topic("clicks").producer("p") as producer:
                assert producer.sequence == 3
                producer.send(click(ms=3))
            assert values(again.topic("clicks"), "ms") == [0, 1, 2, 3]

    @embedded_only
    def test_ids_do_not_know_each_other(self, clicks: Any) -> None:
        with clicks.producer("p") as p, clicks.producer("q") as q:
            p.send(click(ms=1)).result(10)
            q.send(click(ms=2)).result(10)
        assert values(clicks, "ms") == [1, 2]

    @embedded_only
    def test_what_was_put_aside_counts_in_the_sequence(self, clicks: Any, stamp: Callable[[int], Any]) -> None:
        far = datetime(9000, 1, 1, tzinfo=UTC)
        clicks.append([click(), click() | {"at": far}, click()], stamp=stamp(0))
        again = clicks.append([click(), click() | {"at": far}, click()], stamp=stamp(0))
        assert again.duplicate and again.ranges == {0: range(0, 2)}
        assert clicks.append(click(), stamp=stamp(3)).ranges == {0: range(2, 3)}


class Conditions(Setting):
    """Appends that go through only if a key is at the version its writer has read."""

    @pytest.fixture
    def carts(self, log: Any) -> Any:
        return log.create_topic("carts", "id string, n int", key="id", versioned=True, partitions=2)

    @embedded_only
    def test_a_version_counts_the_keys_records(self, carts: Any) -> None:
        carts.append([{"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "a", "n": 2}])
        carts.append({"id": "a", "n": 3})
        assert [carts.version(key) for key in ("a", "b", "c")] == [3, 1, 0]

    @embedded_only
    def test_the_expected_version_lets_it_through(self, carts: Any) -> None:
        carts.append({"id": "a", "n": 1}, expect={"a": 0})
        carts.append([{"id": "a", "n": 2}, {"id": "a", "n": 3}], expect={"a": 1})
        assert carts.version("a") == 3  # 1 + 2

    @embedded_only
    def test_another_version_refuses_all_of_it(self, carts: Any) -> None:
        carts.append({"id": "a", "n": 1})
        with pytest.raises(VersionConflict) as error:
            carts.append([{"id": "b", "n": 1}, {"id": "a", "n": 2}], expect={"b": 0, "a": 0})
        assert (error.value.key, error.value.expected, error.value.actual) == ("a", 0, 1)
        assert [carts.version(key) for key in ("a", "b")] == [1, 0]
        assert sum(o.next for o in carts.offsets().values()) == 1

    @embedded_only
    def test_a_key_that_is_not_appended_can_be_a_condition(self, carts: Any) -> None:
        with pytest.raises(VersionConflict):
            carts.append({"id": "a", "n": 1}, expect={"other": 1})
        carts.append([], expect={"other": 0})

    @embedded_only
    def test_of_many_writers_one_wins_each_version(self, carts: Any) -> None:
        won: list[int] = []

        def work() -> None:
            for _ in range(10):
                version = carts.version("a")
                try:
                    carts.append({"id": "a", "n": version}, expect={"a": version})
                    won.append(version)
                except VersionConflict:
                    pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(len(won)))  # each version was won once
        assert values(carts, "n", key="a") == sorted(won)

    @embedded_only
    def test_versions_are_there_after_opening_again(self, log: Any, home: Path, carts: Any) -> None:
        carts.append([{"id": "a", "n": 1}] * 2)
        log.close()
        with self.open_log(home) as again:
            assert again.topic("carts").version("a") == 2

    @embedded_only
    def test_a_topic_that_keeps_no_versions_says_so(self, clicks: Any) -> None:
        with pytest.raises(InvalidArgument, match="versioned=True"):
            clicks.append(click(), expect={"u1": 0})
        with pytest.raises(InvalidArgument, match="versioned=True"):
            clicks.version("u1")


class Transactions(Setting):
    """All or nothing, across partitions and topics."""

    @pytest.fixture
    def two(self, log: Any) -> tuple[Any, Any]:
        return log.create_topic("a", "n int", durability="os"), log.create_topic("b", "n int", durability="os")

    def test_all_of_it_is_written_when_the_block_ends(self, log: Any, two: tuple[Any, Any]) -> None:
        with log.transaction() as tx:
            tx.append("a", {"n": 1})
            tx.append("b", [{"n": 2}, {"n": 3}])
            tx.append("a", {"n": 4})
            assert values(two[0], "n") == []
        assert [values(topic, "n") for topic in two] == [[1, 4], [2, 3]]
        assert tx.position.offsets("a") == {0: 2} and tx.position.offsets("b") == {0: 2}

    def test_an_exception_inside_writes_nothing(self, log: Any, two: tuple[Any, Any]) -> None:
        with pytest.raises(ZeroDivisionError), log.transaction() as tx:
            tx.append("a", {"n": 1})
            raise ZeroDivisionError
        assert [values(topic, "n") for topic in two] == [[], []]
        with pytest.raises(Closed):
            _ = tx.position

    def test_a_bad_row_is_refused_at_once_and_nothing_is_written(self, log: Any, two: tuple[Any, Any]) -> None:
        with pytest.raises(RecordRejected), log.transaction() as tx:
            tx.append("a", {"n": 1})
            tx.append("b", {"n": "x"})
        assert [values(topic, "n") for topic in two] == [[], []]

    def test_an_unknown_topic_refuses_all(self, log: Any, two: tuple[Any, Any]) -> None:
        with pytest.raises(UnknownTopic), log.transaction() as tx:
            tx.append("a", {"n": 1})
            tx.append("c", {"n": 1})
        assert values(two[0], "n") == []

    def test_a_topic_deleted_meanwhile_refuses_all(self, log: Any, two: tuple[Any, Any]) -> None:
        with pytest.raises((TopicReplaced, UnknownTopic)), log.transaction() as tx:
            tx.append("a", {"n": 1})
            tx.append("b", {"n": 1})
            log.delete_topic("b")
        assert values(two[0], "n") == []

    def test_after_its_end_it_is_closed(self, log: Any, two: tuple[Any, Any]) -> None:
        with log.transaction() as tx:
            pass
        with pytest.raises(Closed):
            tx.append("a", {"n": 1})
        with two[0].group("g").join() as member, pytest.raises(Closed):
            tx.commit(member)

    def test_an_empty_transaction_is_fine(self, log: Any) -> None:
        with log.transaction() as tx:
            pass
        assert tx.position == Position()

    def test_two_transactions_at_once_do_not_mix(self, log: Any, two: tuple[Any, Any]) -> None:
        with log.transaction() as one, log.transaction() as other:
            one.append("a", {"n": 1})
            other.append("a", {"n": 2})
            one.append("a", {"n": 3})
        assert values(two[0], "n") == [2, 1, 3]  # the inner block ends first

    def test_a_handle_of_another_opening_sees_an_alteration_too(
        self, log: Any, home: Path, two: tuple[Any, Any]
    ) -> None:
        with self.open_log(home) as other, log.transaction() as tx:
            tx.append(other.topic("a"), {"n": 1})
            two[0].alter(schema="n int, s string")
        assert values(two[0], "n") == [1]

    @embedded_only
    def test_all_topics_show_it_at_once(self, log: Any, two: tuple[Any, Any]) -> None:
        """A reader that sees the record in one topic sees its twin in the other."""
        stop = threading.Event()
        torn: list[Any] = []

        def watch() -> None:
            while not stop.is_set():
                first = two[0].offsets()[0].next
                second = two[1].offsets()[0].next  # read later, so never behind
                if second < first:
                    torn.append((first, second))

        watcher = threading.Thread(target=watch)
        watcher.start()
        for n in range(50):
            with log.transaction() as tx:
                tx.append("b" if n % 2 else "a", {"n": n})
                tx.append("a" if n % 2 else "b", {"n": n})
        stop.set()
        watcher.join()
        assert torn == []
        assert [topic.offsets()[0].next for topic in two] == [50, 50]

    @embedded_only
    def test_a_condition_that_fails_refuses_all(self, log: Any, two: tuple[Any, Any]) -> None:
        log.create_topic("carts", "id string", key="id", versioned=True)
        with pytest.raises(VersionConflict), log.transaction() as tx:
            tx.append("a", {"n": 1})
            tx.append("carts", {"id": "x"}, expect={"x": 5})
        assert values(two[0], "n") == []

    @embedded_only
    def test_conditions_see_what_the_transaction_appended_before(self, log: Any) -> None:
        carts = log.create_topic("carts", "id string", key="id", versioned=True)
        with log.transaction() as tx:
            tx.append("carts", {"id": "x"}, expect={"x": 0})
            tx.append("carts", {"id": "x"}, expect={"x": 1})
        assert carts.version("x") == 2

    # -- with a member's offsets -------------------------------------------------------------------

    def test_offsets_and_records_go_together(self, log: Any, two: tuple[Any, Any]) -> None:
        source, target = two
        source.append([{"n": n} for n in range(3)])
        with source.group("g").join() as member:
            found = polled(member, 3)
            with log.transaction() as tx:
                tx.append("b", [{"n": record.value["n"] * 10} for record in found])
                tx.commit(member)
        assert values(target, "n") == [0, 10, 20]
        assert source.group("g").committed() == {0: 3}

    def test_an_exception_commits_no_offsets(self, log: Any, two: tuple[Any, Any]) -> None:
        two[0].append({"n": 1})
        with two[0].group("g").join() as member:
            polled(member, 1)
            with pytest.raises(ZeroDivisionError), log.transaction() as tx:
                tx.commit(member)
                raise ZeroDivisionError
            assert two[0].group("g").committed() == {}
            member.commit()  # the member can still do it on its own
        assert two[0].group("g").committed() == {0: 1}

    def test_a_member_that_lost_its_partitions_refuses_all(self, log: Any, two: tuple[Any, Any]) -> None:
        two[0].append([{"n": 1}, {"n": 2}])
        with two[0].group("g").join() as member:
            polled(member, 2)
            two[0].group("g").rewind("earliest")
            with pytest.raises(MemberFenced), log.transaction() as tx:
                tx.append("b", {"n": 1})
                tx.commit(member)
        assert values(two[1], "n") == []
        assert two[0].group("g").committed() == {0: 0}

    def test_a_rewind_inside_the_block_is_not_undone_by_polling_again(self, log: Any, two: tuple[Any, Any]) -> None:
        two[0].append([{"n": 1}, {"n": 2}])
        group = two[0].group("g")
        with group.join() as member:
            polled(member, 2)
            with pytest.raises(MemberFenced), log.transaction() as tx:
                tx.append("b", {"n": 1})
                tx.commit(member)  # what was polled before the rewind
                group.rewind("earliest")
                assert len(polled(member, 1)) == 1
        assert group.committed() == {0: 0}

    def test_what_is_not_a_member_cannot_be_committed(self, log: Any, two: tuple[Any, Any]) -> None:
        with pytest.raises(InvalidArgument) as error, log.transaction() as tx:
            tx.commit(two[0])
        assert error.value.argument == "member"


class Producers(Setting):
    """Rows sent one by one, appended in batches."""

    def test_each_row_is_told_how_far_the_topic_is(self, clicks: Any) -> None:
        with clicks.producer() as producer:
            positions = [producer.send(click(ms=n)) for n in range(10)]
            producer.flush()
            assert all(future.done() for future in positions)
        assert positions[-1].result() == Position.of("clicks", clicks.topic_id, {0: 10})
        assert values(clicks, "ms") == list(range(10))

    def test_rows_wait_for_company_as_long_as_linger(self, clicks: Any) -> None:
        with clicks.producer(linger="1 hour") as producer:
            futures = [producer.send(click(ms=n)) for n in range(10)]
            assert clicks.offsets()[0].next == 0
            producer.flush()
            assert clicks.offsets()[0].next == 10
            assert producer.stats.batches == 1
            assert all(future.done() for future in futures)

    def test_without_linger_nothing_waits(self, clicks: Any) -> None:
        with clicks.producer(linger="0 seconds") as producer:
            assert producer.send(click()).result(10).offsets("clicks") == {0: 1}

    def test_a_full_batch_does_not_wait(self, clicks: Any) -> None:
        with clicks.producer(linger="1 hour", batch_rows=5) as producer:
            futures = [producer.send(click(ms=n)) for n in range(12)]
            for future in futures[:10]:
                future.result(10)
            assert not futures[11].done()
            assert producer.stats.batches == 2  # 5 + 5, and 2 wait

    def test_closing_sends_what_waits(self, clicks: Any) -> None:
        with clicks.producer(linger="1 hour") as producer:
            future = producer.send(click())
        assert future.result(0)
        with pytest.raises(Closed):
            producer.send(click())
        producer.close()

    def test_a_bad_row_fails_alone(self, clicks: Any) -> None:
        with clicks.producer(linger="1 hour") as producer:
            futures = [producer.send(click(ms="bad" if n in (3, 7) else n)) for n in range(10)]
        for n in (3, 7):
            with pytest.raises(RecordRejected) as error:
                futures[n].result(0)
            assert (error.value.row, error.value.column) == (0, "ms")
        assert values(clicks, "ms") == [0, 1, 2, 4, 5, 6, 8, 9]
        assert (producer.stats.sent, producer.stats.acked, producer.stats.failed) == (10, 8, 2)

    def test_what_is_not_a_row_is_refused_at_once(self, clicks: Any) -> None:
        with clicks.producer() as producer, pytest.raises(InvalidArgument) as error:
            producer.send([click()])
        assert error.value.argument == "row"

    @pytest.mark.parametrize(
        ("argument", "value"),
        [("linger", "soon"), ("batch_rows", 0), ("buffer_bytes", 0), ("overload", "panic"), ("id", "a b")],
    )
    def test_a_setting_that_makes_no_sense_is_named(self, clicks: Any, argument: str, value: Any) -> None:
        with pytest.raises(InvalidArgument) as error:
            clicks.producer(**{argument: value})
        assert error.value.argument == argument

    def test_a_flush_can_be_limited(self, clicks: Any) -> None:
        with clicks.producer(linger="1 hour") as producer, self.held_up(producer):
            producer.send(click())
            with pytest.raises(WaitTimeout):
                producer.flush(timeout="10 milliseconds")

    def test_a_topic_deleted_meanwhile_fails_the_rows(self, log: Any, clicks: Any) -> None:
        with clicks.producer(linger="1 hour") as producer:
            future = producer.send(click())
            log.delete_topic("clicks")
        with pytest.raises(TopicReplaced):
            future.result(0)

    # -- when rows come faster than they go: every row here counts 64 + 4 * 16 + 3 = 131 bytes or a little more ------

    @contextlib.contextmanager
    def held_up(self, producer: Any) -> Iterator[None]:
        """Nothing the producer sends gets through until the block ends."""
        gate = threading.Event()
        append = producer._append_rows

        def slow(*args: Any) -> Any:
            gate.wait(30)
            return append(*args)

        producer._append_rows = slow
        try:
            yield
        finally:
            gate.set()

    def test_overload_drop_counts_what_it_drops(self, clicks: Any) -> None:
        producer = clicks.producer(linger="0 seconds", buffer_bytes=1000, overload="drop")
        with producer:
            with self.held_up(producer):
                futures = [producer.send(click(ms=n)) for n in range(20)]
            dropped = [n for n, future in enumerate(futures) if isinstance(future.exception(10), Overloaded)]
        stats = producer.stats
        assert 0 < len(dropped) == stats.dropped
        assert (stats.sent, stats.acked, stats.failed) == (20, 20 - len(dropped), 0)
        assert stats.buffered_bytes_max <= 1000
        assert (stats.buffered_rows, stats.buffered_bytes) == (0, 0)
        assert values(clicks, "ms") == [n for n in range(20) if n not in dropped]

    def test_overload_buffer_refuses_what_is_beyond_the_bound(self, clicks: Any) -> None:
        producer = clicks.producer(linger="0 seconds", buffer_bytes=1000, overload="buffer")
        accepted = 0
        with producer, self.held_up(producer):
            with pytest.raises(Overloaded) as error:
                for _ in range(20):
                    producer.send(click())
                    accepted += 1
            assert error.value.limit_bytes == 1000
        assert (producer.stats.refused, producer.stats.acked) == (1, accepted)
        assert clicks.offsets()[0].next == accepted

    def test_overload_block_waits_for_space_and_loses_nothing(self, clicks: Any) -> None:
        producer = clicks.producer(linger="0 seconds", buffer_bytes=1000, overload="block")

        def send() -> None:
            for n in range(20):
                producer.send(click(ms=n))

        sender = threading.Thread(target=send)
        with producer:
            with self.held_up(producer):
                sender.start()
                eventually(lambda: producer.stats.blocked == 1)
                assert producer.stats.sent < 20
            sender.join()
        assert producer.stats.blocked >= 1 and producer.stats.blocked_seconds > 0
        assert values(clicks, "ms") == list(range(20))

    def test_a_row_larger_than_the_buffer_passes_when_it_is_alone(self, clicks: Any) -> None:
        with clicks.producer(linger="0 seconds", buffer_bytes=10) as producer:
            producer.send(click(page="x" * 1000)).result(10)
        assert clicks.offsets()[0].next == 1

    # -- asyncio -----------------------------------------------------------------------------------

    def test_an_awaited_row_is_committed(self, clicks: Any) -> None:
        async def main() -> Position:
            async with clicks.async_producer() as producer:
                position: Position = await producer.send(click(ms=7))
                assert values(clicks, "ms") == [7]
                return position

        assert asyncio.run(main()).offsets("clicks") == {0: 1}

    def test_the_event_loop_is_never_blocked(self, clicks: Any) -> None:
        async def main() -> list[float]:
            pauses, done = [], False

            async def pulse() -> None:
                while not done:
                    began = time.perf_counter()
                    await asyncio.sleep(0)
                    pauses.append(time.perf_counter() - began)

            async with clicks.async_producer(linger="1 millisecond") as producer:
                beat = asyncio.create_task(pulse())
                for first in range(0, 5000, 100):
                    await asyncio.gather(*(producer.send(click(ms=n)) for n in range(first, first + 100)))
                done = True
                await beat
            return pauses

        # A blocked loop would stand for a whole sync, fifty times; a busy machine makes it stand now and then.
        assert sum(pause > 0.1 for pause in asyncio.run(main())) < 5
        assert sorted(values(clicks, "ms")) == list(range(5000))

    def test_a_full_buffer_is_awaited_while_the_loop_goes_on(self, clicks: Any) -> None:
        async def main() -> Any:
            async with clicks.async_producer(linger="0 seconds", buffer_bytes=1000) as producer:
                with self.held_up(producer._producer):
                    sends = [asyncio.create_task(producer.send(click(ms=n))) for n in range(20)]
                    for _ in range(20):
                        await asyncio.sleep(0)  # the loop turns although senders wait
                    assert producer.stats.sent < 20
                await asyncio.gather(*sends)
                return producer.stats

        stats = asyncio.run(main())
        assert stats.acked == 20 and stats.blocked >= 1
        assert sorted(values(clicks, "ms")) == list(range(20))

    def test_a_bad_row_fails_its_own_await(self, clicks: Any) -> None:
        async def main() -> list[Any]:
            async with clicks.async_producer() as producer:
                sends = (producer.send(click(ms=ms)) for ms in (1, "bad", 3))
                return await asyncio.gather(*sends, return_exceptions=True)

        first, second, third = asyncio.run(main())
        assert isinstance(second, RecordRejected)
        assert isinstance(first, Position) and isinstance(third, Position)

    def test_a_cancelled_await_harms_nobody(self, clicks: Any) -> None:
        async def main() -> None:
            async with clicks.async_producer(linger="20 milliseconds") as producer:
                lost = asyncio.create_task(producer.send(click(ms=1)))
                await asyncio.sleep(0)
                lost.cancel()
                await producer.send(click(ms=2))

        asyncio.run(main())
        assert values(clicks, "ms")[-1] == 2

    def test_used_without_async_with_it_says_so(self, clicks: Any) -> None:
        with pytest.raises(Closed, match="async with"):
            asyncio.run(clicks.async_producer().send(click()))


class Reading(Setting):
    """By offset, by time, by key, by column; and following the end."""

    @pytest.fixture
    def ten(self, clicks: Any) -> Any:
        """Offsets 0 to 9 with ms = offset, in appends of 1, 2, 3 and 4 records."""
        first = 0
        for size in (1, 2, 3, 4):
            clicks.append([click(seconds=n, ms=n) for n in range(first, first + size)])
            first += size
        return clicks

    def ms(self, batches: Iterator[pa.RecordBatch]) -> list[int]:
        return [n for batch in batches for n in batch.column("ms").to_pylist()]

    def test_any_range_of_offsets(self, ten: Any) -> None:
        for start in range(11):
            for stop in range(start, 13):
                assert self.ms(ten.batches(0, start, stop)) == list(range(start, min(stop, 10)))

    def test_up_to_the_end_of_now(self, ten: Any) -> None:
        batches = ten.batches(0, 8)
        ten.append(click(ms=10))
        assert self.ms(batches) == [8, 9]

    def test_ends_by_name(self, ten: Any) -> None:
        assert self.ms(ten.batches(0, "earliest")) == list(range(10))
        assert self.ms(ten.batches(0, "latest")) == []
        assert values(ten, "ms", start="latest") == []

    def test_by_offsets_per_partition(self, four: Any) -> None:
        four.append([click(user, ms=n) for n, user in enumerate(["u1", "u1", "größe", "größe"])])
        found = sorted((r.partition, r.offset) for r in four.records(start={2: 1}))
        assert found == [(1, 0), (1, 1), (2, 1)]  # those not named begin with the earliest

    @pytest.mark.parametrize("offset", [11, 10**12, -1])
    def test_offsets_outside_the_log_are_an_error_with_the_facts(self, ten: Any, offset: int) -> None:
        for read, start in ((ten.records, {0: offset}), (lambda start: ten.batches(0, start), offset)):
            with pytest.raises(OffsetOutOfRange) as error:
                read(start)
            facts = error.value
            assert (facts.topic, facts.partition, facts.offset, facts.earliest, facts.next) == (
                "clicks", 0, offset, 0, 10,
            )  # fmt: skip

    @pytest.mark.parametrize("start", ["soonest", 1.5, True, datetime(2020, 1, 1), None])
    def test_a_start_that_makes_no_sense_is_named(self, ten: Any, start: Any) -> None:
        with pytest.raises(InvalidArgument) as error:
            ten.records(start)
        assert error.value.argument == "start"

    @pytest.mark.parametrize("partition", [1, -1])
    def test_a_partition_there_is_not(self, ten: Any, partition: int) -> None:
        with pytest.raises(InvalidArgument) as error:
            ten.batches(partition)
        assert error.value.argument == "partition"

    def test_columns_and_metadata(self, ten: Any) -> None:
        (batch,) = ten.batches(0, 1, 3, columns=["ms", *META])
        assert batch.schema.names == ["ms", "_partition", "_offset", "_arrived_at", "_progress"]
        assert batch.column("_partition").to_pylist() == [0, 0]
        assert batch.column("_offset").to_pylist() == [1, 2]
        assert batch.column("_progress").to_pylist() == [at(0), at(1)]  # below 1: t = 0; below 2: 0, 1
        assert len(set(batch.column("_arrived_at").to_pylist())) == 1  # appended together

    def test_columns_come_in_the_order_asked_for(self, ten: Any) -> None:
        (batch,) = ten.batches(0, 0, 1, columns=["_offset", "ms", "user"])
        assert batch.schema.names == ["_offset", "ms", "user"]

    def test_no_columns_still_count(self, ten: Any) -> None:
        assert sum(batch.num_rows for batch in ten.batches(0, 2, 9, columns=[])) == 7

    def test_an_unknown_column_names_the_nearest(self, ten: Any) -> None:
        with pytest.raises(InvalidArgument, match="Did you mean 'user'"):
            list(ten.batches(0, columns=["usr"]))

    def test_an_empty_topic(self, clicks: Any) -> None:
        assert list(clicks.batches(0)) == []
        assert list(clicks.records()) == []
        assert clicks.offsets() == {0: Offsets(0, 0, None)}

    def test_a_record_says_what_it_is(self, ten: Any) -> None:
        record = list(ten.records())[3]
        assert (record.topic, record.partition, record.offset, record.key) == ("clicks", 0, 3, "u1")
        assert record.value == click(seconds=3, ms=3)
        assert record.progress == at(2)
        assert record.arrived_at.tzinfo is UTC

    def test_records_of_all_partitions_in_order_of_arrival(self, four: Any) -> None:
        users = ["u1", "größe", "", "u1", "größe", "u1"]
        for n, user in enumerate(users):
            four.append(click(user, ms=n))
        found = list(four.records())
        assert [(r.arrived_at, r.partition, r.offset) for r in found] == sorted(
            (r.arrived_at, r.partition, r.offset) for r in found
        )
        assert sorted(r.value["ms"] for r in found) == list(range(6))

    def test_records_of_one_partition(self, four: Any) -> None:
        four.append([click(user, ms=n) for n, user in enumerate(["u1", "größe", "u1"])])
        assert values(four, "ms", partition=2) == [0, 2]
        with pytest.raises(InvalidArgument):
            four.records(partition=4)

    def test_records_of_one_partition_when_others_were_added(self, four: Any) -> None:
        four.append([click(user, ms=n) for n, user in enumerate(["u1", "größe", "u1"])])
        four.alter(partitions=5)
        assert values(four, "ms", partition=2) == [0, 2]

    def test_records_of_one_key(self, four: Any) -> None:
        four.append([click(user, ms=n) for n, user in enumerate(["u1", "123456789", "größe", "u1"])])  # 2, 2, 1, 2
        assert values(four, "ms", key="u1") == [0, 3]
        assert values(four, "ms", key="nobody") == []

    def test_records_of_a_composite_key(self, log: Any) -> None:
        topic = log.create_topic("t", "k string, n int, v int", key=("k", "n"), partitions=3)
        topic.append([{"k": k, "n": n, "v": v} for k, n, v in (("a", 1, 0), ("a", 2, 1), ("b", 1, 2), ("a", 1, 3))])
        assert values(topic, "v", key=("a", 1)) == [0, 3]

    def test_a_key_of_the_wrong_type_is_refused(self, log: Any, four: Any) -> None:
        with pytest.raises(InvalidArgument):
            four.records(key=5)
        with pytest.raises(InvalidArgument) as error:
            log.create_topic("t", "n int").records(key=5)
        assert error.value.argument == "key"

    # -- by time -----------------------------------------------------------------------------------

    def test_from_a_time_on(self, ten: Any) -> None:
        arrived = [record.arrived_at for record in ten.records()]
        for when in sorted(set(arrived)):
            assert values(ten, "ms", start=when) == [n for n in range(10) if arrived[n] >= when]
        assert values(ten, "ms", start=arrived[-1] + timedelta(seconds=1)) == []
        assert values(ten, "ms", start=arrived[0] - timedelta(days=1)) == list(range(10))

    @embedded_only
    def test_offsets_as_they_were_at_a_time(self, clock: Clock, clicks: Any) -> None:
        begun = clock.now
        for n in range(4):
            clock.advance(seconds=10)
            clicks.append([click(seconds=n), click(seconds=n)])
        found = {s: clicks.offsets(at=begun + timedelta(seconds=s))[0] for s in (0, 10, 11, 20, 40, 41)}
        #  arrivals: 10 → [0, 2), 20 → [2, 4), 30 → [4, 6), 40 → [6, 8); next is the first that arrived at s or later
        assert {s: o.next for s, o in found.items()} == {0: 0, 10: 0, 11: 2, 20: 2, 40: 6, 41: 8}
        assert {s: o.progress for s, o in found.items()} == {
            0: None, 10: None, 11: at(0), 20: at(0), 40: at(2), 41: at(3),
        }  # fmt: skip

    def test_a_time_without_zone_is_refused(self, clicks: Any) -> None:
        with pytest.raises(InvalidArgument) as error:
            clicks.offsets(at=datetime(2020, 1, 1))
        assert error.value.argument == "at"

    # -- following ---------------------------------------------------------------------------------

    def test_a_follower_is_woken(self, clicks: Any) -> None:
        found: queue.Queue[int] = queue.Queue()

        def follow() -> None:
            for record in clicks.records(follow=True):
                found.put(record.value["ms"])
                if record.value["ms"] == 9:
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        clicks.append(click(ms=0))
        assert found.get(timeout=10) == 0
        worst = 0.0
        for n in range(1, 10):
            clicks.append(click(ms=n))
            began = time.monotonic()
            assert found.get(timeout=10) == n
            worst = max(worst, time.monotonic() - began)
        follower.join()
        assert worst < 1

    def test_a_follower_gives_up_after_its_timeout(self, ten: Any) -> None:
        began = time.monotonic()
        assert len(list(ten.records(follow=True, timeout="50 milliseconds"))) == 10
        assert time.monotonic() - began < 5

    def test_a_follower_of_a_key_sees_only_it(self, four: Any) -> None:
        four.append([click("u1", ms=1), click("123456789", ms=2), click("u1", ms=3)])
        assert values(four, "ms", key="u1", follow=True, timeout="10 milliseconds") == [1, 3]

    def test_a_follower_sees_added_partitions_and_columns(self, four: Any) -> None:
        records = four.records(follow=True, timeout="10 seconds")
        four.append(click("u1", ms=1))
        assert next(records).value["ms"] == 1
        four.alter(partitions=5, schema=CLICKS + ", country string")
        user = next(f"v{n}" for n in range(100) if zlib.crc32(f"v{n}".encode()) % 5 == 4)
        four.append(click(user, ms=2, country="de"))
        record = next(records)
        assert (record.partition, record.value["ms"], record.value["country"]) == (4, 2, "de")

    def test_a_follower_of_a_key_goes_with_it_into_another_partition(self, four: Any) -> None:
        user = next(f"v{n}" for n in range(100) if zlib.crc32(f"v{n}".encode()) % 5 == 4)  # one of 0 to 3 before
        records = four.records(key=user, follow=True, timeout="10 seconds")
        four.append(click(user, ms=1))
        assert next(records).value["ms"] == 1
        four.alter(partitions=5)
        four.append(click(user, ms=2))
        assert (record := next(records)).partition == 4 and record.value["ms"] == 2

    def test_a_follower_of_a_deleted_topic_is_told(self, log: Any, clicks: Any) -> None:
        records = clicks.records(follow=True, timeout="10 seconds")
        clicks.append(click())
        next(records)
        log.delete_topic("clicks")
        with pytest.raises(TopicReplaced):
            next(records)

    def test_a_follower_is_told_when_the_log_is_closed(self, log: Any, clicks: Any) -> None:
        records = clicks.records(follow=True, timeout="30 seconds")
        clicks.append(click())
        next(records)
        closer = threading.Thread(target=log.close)
        closer.start()
        with pytest.raises(Closed):
            next(records)
        closer.join()


class Groups(Setting):
    """Members share partitions; offsets are kept by the log."""

    @pytest.fixture
    def group(self, four: Any) -> Any:
        return four.group("g")

    def users(self) -> list[str]:
        """One user per partition, 0 to 3."""
        found: dict[int, str] = {}
        for n in range(100):
            found.setdefault(zlib.crc32(f"v{n}".encode()) % 4, f"v{n}")
        return [found[partition] for partition in range(4)]

    def fill(self, topic: Any, each: int = 1) -> None:
        """`each` records in every partition."""
        for user in self.users():
            topic.append([click(user, n, ms=n) for n in range(each)])

    def test_a_single_member_has_all_partitions_and_reads_all(self, four: Any, group: Any) -> None:
        self.fill(four, 3)
        with group.join() as member:
            assert sorted(the_same(polled(member, 12))) == [(p, o) for p in range(4) for o in range(3)]
            assert member.partitions == (0, 1, 2, 3)
            assert member.poll(timeout="0 seconds") == []

    def test_records_of_a_partition_come_in_order_and_at_most_as_many_as_asked_for(self, clicks: Any) -> None:
        clicks.append([click(ms=n) for n in range(10)])
        with clicks.group("g").join() as member:
            parts = [member.poll(timeout="0 seconds", max_records=4) for _ in range(4)]
        assert [[r.offset for r in part] for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]

    def test_no_partition_starves(self, four: Any, group: Any) -> None:
        self.fill(four, 20)
        with group.join() as member:
            seen = {member.poll(timeout="0 seconds", max_records=1)[0].partition for _ in range(4)}
        assert seen == {0, 1, 2, 3}

    def test_a_waiting_member_is_woken(self, clicks: Any) -> None:
        with clicks.group("g").join() as member:
            found: queue.Queue[Any] = queue.Queue()
            waiter = threading.Thread(target=lambda: found.put(member.poll(timeout="30 seconds")))
            waiter.start()
            clicks.append(click(ms=7))
            assert [r.value["ms"] for r in found.get(timeout=3)] == [7]
            waiter.join()

    def test_what_was_committed_is_not_read_again(self, clicks: Any) -> None:
        clicks.append([click(ms=n) for n in range(5)])
        with clicks.group("g").join() as member:
            polled(member, 3)
            member.commit()
        assert clicks.group("g").committed() == {0: 3}
        with clicks.group("g").join() as member:
            assert [r.offset for r in polled(member, 2)] == [3, 4]

    def test_what_was_not_committed_is_read_again(self, clicks: Any) -> None:
        clicks.append([click(ms=n) for n in range(5)])
        with clicks.group("g").join() as member:
            polled(member, 5)
        with clicks.group("g").join() as member:
            assert [r.offset for r in polled(member, 5)] == [0, 1, 2, 3, 4]

    def test_committed_offsets_are_there_after_opening_again(self, log: Any, home: Path, clicks: Any) -> None:
        clicks.append([click()] * 3)
        with clicks.group("g").join() as member:
            polled(member, 2)
            member.commit()
        log.close()
        with self.open_log(home) as again, again.topic("clicks").group("g").join() as member:
            assert [r.offset for r in polled(member, 1)] == [2]

    def test_a_commit_up_to_a_record(self, four: Any, group: Any) -> None:
        self.fill(four, 3)
        with group.join() as member:
            records = polled(member, 12)
            member.commit(next(r for r in records if (r.partition, r.offset) == (2, 1)))
            assert group.committed() == {2: 2}
            member.commit()
            assert group.committed() == {0: 3, 1: 3, 2: 3, 3: 3}

    def test_a_commit_never_goes_back(self, clicks: Any) -> None:
        clicks.append([click()] * 3)
        with clicks.group("g").join() as member:
            records = polled(member, 3)
            member.commit(records[2])
            with pytest.raises(CommitBackwards) as error:
                member.commit(records[0])
            assert (error.value.committed, error.value.offset) == (3, 1)
        assert clicks.group("g").committed() == {0: 3}

    def test_a_commit_of_what_was_never_polled_is_refused(self, log: Any, clicks: Any) -> None:
        clicks.append([click()] * 3)
        other = log.create_topic("other", CLICKS)
        other.append([click()] * 3)
        with clicks.group("g").join() as member:
            polled(member, 1)
            for never in (next(other.records()), list(clicks.records())[2]):
                with pytest.raises(InvalidArgument) as error:
                    member.commit(never)
                assert error.value.argument == "upto"
        assert clicks.group("g").committed() == {}

    def test_committing_nothing_new_is_fine(self, clicks: Any) -> None:
        clicks.append(click())
        with clicks.group("g").join() as member:
            polled(member, 1)
            member.commit()
            member.commit()
        assert clicks.group("g").committed() == {0: 1}

    def test_groups_do_not_know_each_other(self, clicks: Any) -> None:
        clicks.append([click()] * 2)
        for name in ("g", "h"):
            with clicks.group(name).join() as member:
                assert len(polled(member, 2)) == 2
                member.commit()
        assert [found.name for found in clicks.groups()] == ["g", "h"]

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "__g"])
    def test_a_group_has_a_name(self, clicks: Any, name: str) -> None:
        with pytest.raises(InvalidName) as error:
            clicks.group(name)
        assert error.value.argument == "group"

    # -- where to begin ----------------------------------------------------------------------------

    def test_a_new_group_can_begin_at_the_end(self, clicks: Any) -> None:
        clicks.append(click(ms=1))
        with clicks.group("g").join(start="latest") as member:
            clicks.append(click(ms=2))
            assert [r.value["ms"] for r in polled(member, 1)] == [2]

    def test_a_new_group_can_begin_at_offsets(self, clicks: Any) -> None:
        clicks.append([click(ms=n) for n in range(4)])
        with clicks.group("g").join(start={0: 3}) as member:
            assert [r.value["ms"] for r in polled(member, 1)] == [3]

    def test_a_committed_offset_counts_more_than_start(self, clicks: Any) -> None:
        clicks.append([click(ms=n) for n in range(4)])
        clicks.group("g").rewind({0: 1})
        with clicks.group("g").join(start="latest") as member:
            assert [r.value["ms"] for r in polled(member, 3)] == [1, 2, 3]

    @pytest.mark.parametrize(("how", "argument"), [({"start": "soonest"}, "start"), ({"lease": "0 seconds"}, "lease")])
    def test_a_join_that_makes_no_sense_leaves_no_member(self, clicks: Any, how: dict[str, Any], argument: str) -> None:
        with pytest.raises(InvalidArgument) as error:
            clicks.group("g").join(**how)
        assert error.value.argument == argument
        assert clicks.group("g").members() == []

    def test_a_join_beyond_the_end_leaves_no_member(self, clicks: Any) -> None:
        with pytest.raises(OffsetOutOfRange):
            clicks.group("g").join(start={0: 5})
        assert clicks.group("g").members() == []

    @pytest.mark.parametrize(("argument", "value"), [("timeout", "soon"), ("max_records", 0)])
    def test_a_poll_that_makes_no_sense(self, clicks: Any, argument: str, value: Any) -> None:
        with clicks.group("g").join() as member, pytest.raises(InvalidArgument) as error:
            member.poll(**{argument: value})
        assert error.value.argument == argument

    # -- sharing -----------------------------------------------------------------------------------

    def test_two_members_share(self, four: Any, group: Any) -> None:
        self.fill(four, 5)
        with group.join() as one, group.join() as two:
            one.poll(timeout="0 seconds", max_records=1)  # hands over what the second waits for
            found_two = polled(two, 10)
            assert len(one.partitions) == len(two.partitions) == 2
            assert set(one.partitions) | set(two.partitions) == {0, 1, 2, 3}
            assert {r.partition for r in found_two} == set(two.partitions)

    def test_rebalancing_moves_few(self, group: Any) -> None:
        with contextlib.ExitStack() as stack:
            members: list[Any] = []
            for count in range(1, 5):
                before = {member: set(member.partitions) for member in members}
                members.append(stack.enter_context(group.join()))
                for member in members:
                    member.poll(timeout="0 seconds")
                for member in members:
                    member.poll(timeout="0 seconds")
                sizes = sorted(len(member.partitions) for member in members)
                assert sizes[-1] - sizes[0] <= 1 and sum(sizes) == 4
                lost = sum(len(had - set(member.partitions)) for member, had in before.items())
                assert lost == (0 if count == 1 else len(members[-1].partitions))  # only what the new one got

    def test_a_member_without_a_partition_waits_for_one(self, clicks: Any) -> None:
        clicks.append(click(ms=1))
        with clicks.group("g").join() as second_chance:
            first = clicks.group("g").join()
            assert second_chance.partitions == (0,) and first.partitions == ()
            assert first.poll(timeout="0 seconds") == []
            second_chance.close()
            assert [r.value["ms"] for r in polled(first, 1)] == [1]
            first.close()

    def test_a_member_that_leaves_is_replaced_at_once(self, four: Any, group: Any) -> None:
        self.fill(four)
        one = group.join()
        with group.join() as two:
            one.close()
            two.poll(timeout="0 seconds")
            assert two.partitions == (0, 1, 2, 3)
            assert [info.member for info in group.members()] == [two.id]

    def test_a_hand_over_after_a_commit_delivers_nothing_twice(self, four: Any, group: Any) -> None:
        self.fill(four, 10)
        with group.join() as one:
            mine = polled(one, 20)
            with group.join() as two:
                one.commit()  # before polling again: then partitions change hands
                mine += one.poll(timeout="0 seconds")
                one.commit()
                theirs: list[Record] = []
                while len(mine) + len(theirs) < 40:
                    theirs += two.poll(timeout="100 milliseconds")
                    two.commit()
                    mine += one.poll(timeout="100 milliseconds")
                    one.commit()
        assert sorted(the_same(mine + theirs)) == [(p, o) for p in range(4) for o in range(10)]
        assert theirs

    def test_a_member_asked_to_hand_over_can_still_commit_what_it_polled(self, four: Any, group: Any) -> None:
        self.fill(four, 2)
        with group.join() as one:
            polled(one, 8)
            with group.join():
                one.commit()
            assert group.committed() == {0: 2, 1: 2, 2: 2, 3: 2}

    def test_added_partitions_are_shared_too(self, four: Any, group: Any) -> None:
        with group.join(lease="200 milliseconds") as member:
            four.alter(partitions=6)
            eventually(lambda: member.poll(timeout="0 seconds") == [] and len(member.partitions) == 6)

    # -- leases ------------------------------------------------------------------------------------

    def test_a_member_that_fell_silent_is_replaced_and_cannot_commit(self, clicks: Any) -> None:
        clicks.append([click(ms=1), click(ms=2)])
        group = clicks.group("g")
        zombie = group.join(lease="50 milliseconds")
        with zombie:
            assert len(polled(zombie, 2)) == 2
            self.silence(zombie)
            with group.join(lease="2 seconds") as heir:
                assert [r.value["ms"] for r in polled(heir, 2)] == [1, 2]  # not committed: read again
                with pytest.raises(MemberFenced) as error:
                    zombie.commit()
                assert error.value.partitions == [0]
                assert group.committed() == {}
                heir.commit()
            assert group.committed() == {0: 2}

    def test_a_zombie_comes_back_as_a_new_member(self, clicks: Any) -> None:
        clicks.append([click(ms=1), click(ms=2)])
        group = clicks.group("g")
        with group.join(lease="50 milliseconds") as zombie:
            old = zombie.id
            self.silence(zombie)
            with group.join(lease="2 seconds") as heir:
                polled(heir, 2)
                heir.commit()
                zombie.poll(timeout="0 seconds")
                assert zombie.id != old
                assert {info.member for info in group.members()} == {heir.id, zombie.id}
            assert zombie.poll(timeout="1 second") == []  # all was committed by the heir

    def test_a_member_that_never_polls_is_asked_once_then_dispossessed(self, clicks: Any) -> None:
        """Alive, but stuck: its lease bounds how long it can keep others waiting."""
        topic = clicks
        topic.alter(partitions=2)
        topic.append([click(f"v{n}", ms=n) for n in range(10)])
        group = topic.group("g")
        with group.join(lease="100 milliseconds") as stuck:
            polled(stuck, 10)
            with group.join(lease="100 milliseconds") as other:
                got = eventually(lambda: other.poll(timeout="100 milliseconds"))
                assert {r.partition for r in got} == set(other.partitions)
                with pytest.raises(MemberFenced):
                    stuck.commit()
                assert group.committed() == {}  # all or nothing

    @pytest.mark.parametrize("in_transaction", [False, True])
    def test_after_a_refused_commit_what_is_still_ones_own_is_polled_again(
        self, log: Any, clicks: Any, in_transaction: bool
    ) -> None:
        """One partition was lost, the commit of all was refused: the others' records must not be passed over."""
        clicks.alter(partitions=2)
        clicks.append([click(f"v{n}", ms=n) for n in range(20)])
        group = clicks.group("g")
        with group.join() as member:
            first = polled(member, 20)
            assert {record.partition for record in first} == {0, 1}
            group.rewind({0: 3})
            with pytest.raises(MemberFenced):
                if in_transaction:
                    with log.transaction() as tx:
                        tx.commit(member)
                else:
                    member.commit()
            again = polled(member, sum(record.partition == 1 or record.offset >= 3 for record in first))
            assert {record.offset for record in again if record.partition == 1} == {
                record.offset for record in first if record.partition == 1
            }
            member.commit()
        assert not sum(lag.records for lag in group.lag().values())

    # -- looking in --------------------------------------------------------------------------------

    def test_lag_in_records_and_in_time(self, clicks: Any) -> None:
        clicks.append([click()] * 5)
        group = clicks.group("g")
        with group.join() as member:
            assert (group.lag()[0].committed, group.lag()[0].records) == (None, 5)
            member.commit(polled(member, 2)[-1])
            lag = group.lag()[0]
            assert (lag.committed, lag.next, lag.records) == (2, 5, 3)
            polled(member, 3)
            member.commit()
            assert (group.lag()[0].records, group.lag()[0].time) == (0, timedelta(0))

    @embedded_only
    def test_lag_in_time_is_the_age_of_the_oldest_unread_record(self, clock: Clock, clicks: Any) -> None:
        group = clicks.group("g")
        clicks.append(click())
        clock.advance(seconds=10)
        clicks.append(click())
        clock.advance(seconds=5)
        group.rewind("earliest")
        assert group.lag()[0].time == timedelta(seconds=15)
        group.rewind({0: 1})
        assert group.lag()[0].time == timedelta(seconds=5)

    def test_members_are_listed(self, group: Any) -> None:
        with group.join() as member:
            (info,) = group.members()
            assert (info.member, info.partitions, info.alive) == (member.id, (0, 1, 2, 3), True)
        assert group.members() == []

    def test_an_unknown_group_names_the_nearest(self, clicks: Any) -> None:
        clicks.group("billing").join().close()
        with pytest.raises(UnknownGroup, match="Did you mean 'billing'"):
            clicks.group("biling").lag()

    def test_a_deleted_group_has_forgotten_all(self, clicks: Any) -> None:
        clicks.append(click())
        group = clicks.group("g")
        with group.join() as member:
            polled(member, 1)
            member.commit()
            group.delete()
            with pytest.raises(UnknownGroup):
                group.lag()
        assert clicks.groups() == []
        with pytest.raises(UnknownGroup):
            group.delete()
        with group.join() as member:
            assert len(polled(member, 1)) == 1

    def test_a_member_of_a_deleted_group_cannot_commit(self, clicks: Any) -> None:
        clicks.append(click())
        group = clicks.group("g")
        with group.join() as member:
            polled(member, 1)
            group.delete()
            with pytest.raises(MemberFenced):
                member.commit()
        assert group.committed() == {}

    # -- rewinding ---------------------------------------------------------------------------------

    @pytest.mark.parametrize(("start", "offset"), [("earliest", 0), ("latest", 6), ({0: 4}, 4)])
    def test_rewinding_while_a_member_lives(self, clicks: Any, start: Any, offset: int) -> None:
        clicks.append([click(ms=n) for n in range(6)])
        group = clicks.group("g")
        with group.join() as member:
            polled(member, 5)
            member.commit()
            assert group.rewind(start) == {0: offset}
            clicks.append(click(ms=6))
            assert [r.offset for r in polled(member, 7 - offset)] == list(range(offset, 7))

    def test_what_was_polled_before_a_rewind_cannot_be_committed(self, clicks: Any) -> None:
        clicks.append([click()] * 3)
        group = clicks.group("g")
        with group.join() as member:
            polled(member, 3)
            group.rewind("earliest")
            with pytest.raises(MemberFenced):
                member.commit()
            assert group.committed() == {0: 0}
            assert len(polled(member, 3)) == 3
            member.commit()
        assert group.committed() == {0: 3}

    @embedded_only
    def test_rewinding_to_a_time(self, clock: Clock, clicks: Any) -> None:
        for n in range(4):
            clicks.append(click(ms=n))
            clock.advance(seconds=10)
        group = clicks.group("g")
        assert group.rewind(clock.now - timedelta(seconds=20)) == {0: 2}  # arrivals at -40, -30, -20, -10
        assert group.rewind(clock.now - timedelta(seconds=21)) == {0: 2}
        assert group.rewind(clock.now) == {0: 4}

    def test_rewinding_some_partitions_leaves_the_others(self, four: Any, group: Any) -> None:
        self.fill(four, 3)
        group.rewind("latest")
        assert group.rewind({1: 2}) == {1: 2}
        assert group.committed() == {0: 3, 1: 2, 2: 3, 3: 3}

    def test_rewinding_where_there_is_nothing(self, clicks: Any) -> None:
        group = clicks.group("g")
        with pytest.raises(OffsetOutOfRange):
            group.rewind({0: 1})
        with pytest.raises(InvalidArgument):
            group.rewind({7: 0})
        with pytest.raises(InvalidArgument):
            group.rewind("soonest")
        assert group.committed() == {}


class Upkeep(Setting):
    """What goes with time, and what stays as it was."""

    @embedded_only
    def test_what_is_too_old_goes_and_whoever_asks_for_it_is_told(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, retention="1 hour")
        topic.append([click(ms=0), click(ms=1)])
        clock.advance(hours=1)
        topic.append(click(ms=2))
        assert log.maintain().records_deleted == 0  # one hour is not more than one hour
        clock.advance(seconds=1)
        assert log.maintain().records_deleted == 2
        assert (values(topic, "ms"), topic.offsets()[0].earliest) == ([2], 2)
        for read in (topic.records, topic.group("g").rewind, functools.partial(topic.batches, 0)):
            with pytest.raises(OffsetOutOfRange) as error:
                read({0: 1})
            assert (error.value.offset, error.value.earliest, error.value.next) == (1, 2, 3)

    @embedded_only
    def test_a_group_that_was_overtaken_is_told_and_can_go_on(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, retention="1 hour")
        with topic.group("g").join() as member:
            topic.append(click(ms=0))
            clock.advance(hours=2)
            topic.append(click(ms=1))
            assert [(one.consumer, one.start, one.stop) for one in log.maintain().overtaken] == [("g", 0, 1)]
            with pytest.raises(OffsetOutOfRange):
                member.poll(timeout="0 seconds")
            topic.group("g").rewind("earliest")
            assert [record.value["ms"] for record in polled(member, 1)] == [1]

    @embedded_only
    def test_unread_records_are_kept_if_the_topic_says_so(self, clock: Clock, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, retention="1 hour", unread="keep")
        with topic.group("g").join() as member:
            topic.append(click(ms=0))
            clock.advance(hours=2)
            topic.append(click(ms=1))
            clock.advance(hours=2)
            assert log.maintain().records_deleted == 0
            member.commit(polled(member, 2)[0])
            assert log.maintain().records_deleted == 1
        assert values(topic, "ms") == [1]

    @embedded_only
    def test_compaction_keeps_the_newest_of_a_key_where_it_was(self, log: Any) -> None:
        topic = log.create_topic("t", CLICKS, key="user", event_time="at", cleanup="compact")
        topic.append([click("a", 1, ms=0), click("b", 5, ms=1), click("a", 3, ms=2)])
        topic.append([click("c", 2, ms=3), click("a", 4, ms=4)])
        before = list(topic.records())
        assert log.maintain().records_compacted == 2
        assert list(topic.records()) == [before[1], before[3], before[4]]
        assert topic.append(click("b")).ranges == {0: range(5, 6)}

    @embedded_only
    def test_an_erased_key_is_gone_and_the_others_are_where_they_were(self, log: Any, four: Any) -> None:
        four.append([click(user, ms=n) for n in range(3) for user in ("a", "b", "c")])
        before = list(four.records())
        done = four.erase("b")
        assert (done.records, done.incomplete) == (3, [])
        assert list(four.records()) == [record for record in before if record.key != "b"]
        assert list(four.records(key="b")) == []
        four.append(click("b", ms=9))
        assert values(four, "ms", key="b") == [9]
        assert log.verify().ok


class Handles(Setting):
    """Opening, closing, sharing."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda log, _: log.topics(),
            lambda log, _: log.create_topic("t", "n int"),
            lambda log, _: log.topic("clicks"),
            lambda log, _: log.delete_topic("clicks"),
            pytest.param(lambda log, _: log.verify(), marks=embedded_only),
            lambda log, _: log.dead_letters(),
            lambda log, _: log.transaction().__enter__(),
            lambda _, topic: topic.append(click()),
            lambda _, topic: topic.append([click()] * 100),
            lambda _, topic: topic.records(),
            lambda _, topic: topic.batches(0),
            lambda _, topic: topic.offsets(),
            lambda _, topic: topic.describe(),
            lambda _, topic: topic.group("g"),
            lambda _, topic: topic.producer(),
        ],
    )
    def test_a_closed_log_says_so(self, log: Any, clicks: Any, use: Callable[[Any, Any], Any]) -> None:
        log.close()
        with pytest.raises(Closed):
            use(log, clicks)

    def test_closing_twice_is_fine(self, log: Any) -> None:
        log.close()
        log.close()

    def test_a_closed_member_says_so(self, clicks: Any) -> None:
        member = clicks.group("g").join()
        member.close()
        member.close()
        for use in (member.poll, member.commit):
            with pytest.raises(Closed):
                use()

    def test_members_and_producers_can_be_closed_after_the_log(self, log: Any, clicks: Any) -> None:
        member, producer = clicks.group("g").join(), clicks.producer("p")
        log.close()
        with pytest.raises(Closed):
            member.poll(timeout="0 seconds")
        with pytest.raises(Closed):
            producer.send(click())
        member.close()
        producer.close()

    def test_two_handles_see_each_other(self, home: Path, clicks: Any) -> None:
        with self.open_log(home) as other:
            other.topic("clicks").append(click(ms=1))
            assert values(clicks, "ms") == [1]
            clicks.alter(schema=CLICKS + ", country string")
            other.topic("clicks").append(click(ms=2, country="de"))
        assert values(clicks, "ms") == [1, 2]

    def test_closing_one_handle_leaves_the_other(self, home: Path, clicks: Any) -> None:
        other = self.open_log(home)
        theirs = other.topic("clicks")
        other.close()
        clicks.append(click(ms=1))
        assert values(clicks, "ms") == [1]
        with pytest.raises(Closed):
            other.topics()
        with pytest.raises(Closed):  # whether others have it open makes no difference
            theirs.append(click(ms=2))

    def test_every_error_is_headraces(self) -> None:
        for kind in (Closed, InvalidArgument, MemberFenced, OffsetOutOfRange, RecordRejected, TopicReplaced):
            assert issubclass(kind, HeadraceError)


class LogContract(
    Topics,
    Appending,
    Times,
    DeadLetters,
    Idempotence,
    Conditions,
    Transactions,
    Producers,
    Reading,
    Groups,
    Upkeep,
    Handles,
):
    """All of it. Inherit this, say how to open a log, and run pytest."""
