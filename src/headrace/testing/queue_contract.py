"""The behaviour of queues on a log's topics, as a pytest suite to inherit. Owns the promises of `topic.queue(…)`, one
test each; knows no implementation. Kafka has no queues, so this is apart from `LogContract`.

    class TestEmbeddedQueues(QueueContract):
        def open_log(self, home): return open_log(home)
        def set_lease_clock(self, monkeypatch, now_us): monkeypatch.setattr(queue_core, "now", now_us)"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    Closed,
    InvalidArgument,
    InvalidName,
    LeaseExpired,
    OffsetOutOfRange,
    TopicReplaced,
    UnknownQueue,
)
from headrace.testing.log_contract import CLICKS, Clock, Setting, click, values

__all__ = ["LeaseClock", "QueueContract"]


class LeaseClock:
    """The clock visibilities run by; it stands still until it is moved."""

    def __init__(self) -> None:
        self.now_us = 10**12

    def advance(self, **by: float) -> None:
        self.now_us += timedelta(**by) // timedelta(microseconds=1)


def numbers(messages: list[Any]) -> list[int]:
    return [message.value["ms"] for message in messages]


def fill(topic: Any, count: int, user: str | None = None) -> None:
    """`count` records, whose `ms` counts from 0; each of its own user, or all of one."""
    topic.append([click(user or f"u{i}", ms=i) for i in range(count)])


def drained(queue: Any, at_once: int = 100) -> list[Any]:
    """All messages there are, unanswered."""
    out: list[Any] = []
    while found := queue.receive(at_once):
        out += found
    return out


@contextlib.contextmanager
def waiting(queue: Any, count: int = 1) -> Iterator[list[Any]]:
    """Somebody waits for messages; inside the block they come, and at its end they are in the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(queue.receive(count, wait="30 seconds")))
    thread.start()
    yield found
    thread.join(20)
    assert not thread.is_alive(), "nobody woke it"


class QueueSetting(Setting):
    def set_lease_clock(self, monkeypatch: pytest.MonkeyPatch, now_us: Callable[[], int]) -> None:
        """Visibilities run by this clock from now on."""
        raise NotImplementedError

    @pytest.fixture
    def leases(self, monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
        clock = LeaseClock()
        self.set_lease_clock(monkeypatch, lambda: clock.now_us)
        return clock

    @pytest.fixture
    def queue(self, clicks: Any) -> Any:
        return clicks.queue("q", visibility="30 seconds", max_deliveries=3)


class Opening(QueueSetting):
    """What a queue is."""

    def test_a_queue_is_made_when_it_is_first_used(self, clicks: Any) -> None:
        queue = clicks.queue("q")
        assert (queue.name, queue.visibility, queue.max_deliveries, queue.order) == (
            "q",
            timedelta(seconds=30),
            5,
            "none",
        )
        assert [found.name for found in clicks.queues()] == ["q"]

    def test_what_is_not_given_stays_as_it_is(self, clicks: Any) -> None:
        clicks.queue("q", visibility="1 minute", max_deliveries=2, order="key")
        again = clicks.queue("q")
        assert (again.visibility, again.max_deliveries, again.order) == (timedelta(minutes=1), 2, "key")
        assert clicks.queue("q", max_deliveries=7).visibility == timedelta(minutes=1)
        assert again.max_deliveries == 7  # every handle sees it

    def test_its_order_is_fixed(self, clicks: Any) -> None:
        clicks.queue("q", order="key")
        with pytest.raises(InvalidArgument, match="has order 'key', for ever"):
            clicks.queue("q", order="none")

    def test_order_by_key_needs_a_key(self, log: Any) -> None:
        with pytest.raises(InvalidArgument, match="has no key"):
            log.create_topic("plain", "n int").queue("q", order="key")

    def test_it_can_be_asked_for_without_making_it(self, clicks: Any) -> None:
        clicks.queue("mailer")
        with pytest.raises(UnknownQueue, match="Did you mean 'mailer'") as error:
            clicks.queue("mailr", create=False)
        assert (error.value.topic, error.value.queue, error.value.known) == ("clicks", "mailr", ["mailer"])
        assert clicks.queue("mailer", create=False).name == "mailer"

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("visibility", "0 seconds"),
            ("visibility", "soon"),
            ("visibility", "9999 days"),
            ("max_deliveries", 0),
            ("max_deliveries", True),
            ("order", "fifo"),
            ("start", "soonest"),
        ],
    )
    def test_a_setting_that_makes_no_sense_is_named(self, clicks: Any, argument: str, value: Any) -> None:
        with pytest.raises(InvalidArgument) as error:
            clicks.queue("q", **{argument: value})
        assert error.value.argument == argument
        assert clicks.queues() == []

    @pytest.mark.parametrize("name", ["", "a/b", "__mine", 5])
    def test_a_queue_has_a_name(self, clicks: Any, name: Any) -> None:
        with pytest.raises(InvalidName):
            clicks.queue(name)

    def test_headraces_own_topics_have_none(self, log: Any, clicks: Any) -> None:
        clicks.bury([{"reason": "bad_input", "raw": b"x"}])
        with pytest.raises(InvalidArgument):
            log.topic("__dead_letters").queue("q")

    @pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", None), ({0: 2}, 2)])
    def test_where_a_new_queue_begins(self, clicks: Any, start: Any, first: int | None) -> None:
        fill(clicks, 4)
        assert numbers(clicks.queue("q", start=start).receive()) == ([] if first is None else [first])

    def test_beginning_at_a_time(self, clock: Clock, clicks: Any) -> None:
        clicks.append(click(ms=0))
        clock.advance(hours=1)
        clicks.append(click(ms=1))
        assert numbers(clicks.queue("q", start=clock.now).receive(9)) == [1]

    def test_it_is_there_after_opening_again(self, log: Any, home: Path, clicks: Any) -> None:
        fill(clicks, 4)
        queue = clicks.queue("q", visibility="10 minutes")
        done, held = queue.receive(2)
        done.ack()
        log.close()
        with self.open_log(home) as again:
            queue = again.topic("clicks").queue("q")
            assert queue.visibility == timedelta(minutes=10)
            assert numbers(queue.receive(9)) == [2, 3]  # 0 is done, 1 is with somebody
        assert held.value["ms"] == 1

    def test_a_deleted_queue_is_unknown(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        (message,) = queue.receive()
        queue.delete()
        for use in (queue.receive, queue.stats, queue.peek, queue.redrive, message.ack, message.nack, queue.delete):
            with pytest.raises(UnknownQueue):
                use()
        assert numbers(clicks.queue("q").receive(9)) == [0, 1]  # another one of that name

    def test_a_queue_of_a_deleted_topic_says_so(self, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        log.delete_topic("clicks")
        for use in (queue.receive, queue.stats, message.ack):
            with pytest.raises(TopicReplaced):
                use()

    def test_a_closed_log_says_so(self, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        log.close()
        for use in (queue.receive, queue.stats, message.ack, message.nack, lambda: clicks.queue("q")):
            with pytest.raises(Closed):
                use()


class Receiving(QueueSetting):
    """Who gets what."""

    def test_a_message_says_what_it_is(self, clicks: Any, queue: Any) -> None:
        clicks.append(click("u1", ms=7))
        (record,), (message,) = clicks.records(), queue.receive()
        assert (message.topic, message.queue, message.partition, message.offset) == ("clicks", "q", 0, 0)
        assert (message.key, message.value, message.arrived_at) == ("u1", record.value, record.arrived_at)
        assert message.deliveries == 1

    def test_messages_come_in_order_and_at_most_as_many_as_asked_for(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 5)
        assert [numbers(queue.receive(2)) for _ in range(4)] == [[0, 1], [2, 3], [4], []]

    @pytest.mark.parametrize("count", [0, -1, True, 1.5, 10_001])
    def test_a_count_that_makes_no_sense(self, queue: Any, count: Any) -> None:
        with pytest.raises(InvalidArgument):
            queue.receive(count)

    def test_every_message_goes_to_one_consumer(self, home: Path, clicks: Any, queue: Any) -> None:
        fill(clicks, 1000)
        with self.open_log(home) as other:
            queues = [queue, clicks.queue("q"), other.topic("clicks").queue("q")]
            found: list[int] = []
            while got := [number for each in queues for number in numbers(each.receive(7))]:
                found += got
        assert sorted(found) == list(range(1000))

    def test_more_consumers_than_partitions_have_work(self, clicks: Any) -> None:
        fill(clicks, 8)  # one partition
        assert [numbers(clicks.queue("q").receive()) for _ in range(8)] == [[i] for i in range(8)]

    def test_a_slow_message_does_not_hold_up_others(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 3)
        (slow,) = queue.receive()
        for message in queue.receive(2):
            message.ack()
        assert queue.stats().acked == 2
        slow.ack()

    def test_queues_do_not_know_each_other(self, clicks: Any) -> None:
        fill(clicks, 2)
        one, two = clicks.queue("one"), clicks.queue("two")
        one.ack(one.receive(2))
        assert numbers(two.receive(2)) == [0, 1]

    def test_groups_and_readers_are_not_disturbed(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 3)
        with clicks.group("g").join() as member:
            queue.ack(queue.receive(3))
            assert [record.value["ms"] for record in member.poll()] == [0, 1, 2]
            member.commit()
        assert values(clicks, "ms") == [0, 1, 2]
        assert clicks.group("g").committed() == {0: 3}

    def test_no_partition_starves(self, four: Any) -> None:
        fill(four, 400)
        queue = four.queue("q")
        assert sorted(queue.receive()[0].partition for _ in range(4)) == [0, 1, 2, 3]

    def test_all_partitions_are_received(self, four: Any) -> None:
        fill(four, 400)
        assert sorted(numbers(drained(four.queue("q"), 30))) == list(range(400))

    def test_added_partitions_are_received_too(self, four: Any) -> None:
        queue = four.queue("q")
        fill(four, 10)
        assert len(drained(queue)) == 10
        four.alter(partitions=8)
        fill(four, 100)
        assert {message.partition for message in drained(queue)} == set(range(8))

    def test_batches_of_any_size(self, clicks: Any, queue: Any) -> None:
        for size in (1, 1, 900, 5, 2000, 3, 64, 1):
            clicks.append([click(ms=i) for i in range(size)])
        assert len(drained(queue, 333)) == 2975  # 1 + 1 + 900 + 5 + 2000 + 3 + 64 + 1

    def test_an_added_column_is_seen(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        queue.receive()
        clicks.alter(schema=CLICKS + ", country string")
        clicks.append(click(country="de"))
        assert [message.value.get("country") for message in drained(queue)][-1] == "de"

    def test_nothing_to_receive(self, queue: Any) -> None:
        assert queue.receive() == []
        assert queue.receive(wait="10 milliseconds") == []

    def test_a_waiting_consumer_is_woken(self, clicks: Any, queue: Any) -> None:
        with waiting(queue) as found:
            clicks.append(click(ms=5))
        assert numbers(found) == [5]

    def test_a_waiting_consumer_is_woken_by_a_nack(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        with waiting(clicks.queue("q")) as found:
            message.nack()
        assert [(again.offset, again.deliveries) for again in found] == [(0, 2)]

    def test_a_waiting_consumer_gets_what_others_did_not_answer(self, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", visibility="50 milliseconds")
        queue.receive()
        assert [again.deliveries for again in queue.receive(wait="20 seconds")] == [2]

    def test_waiting_can_be_ended_from_outside(self, queue: Any) -> None:
        with waiting(queue) as found:
            queue.interrupt()
        assert found == []

    def test_peeking_takes_nothing(self, four: Any) -> None:
        fill(four, 40)
        queue = four.queue("q")
        (rejected,) = queue.receive()
        rejected.nack()
        peeked = queue.peek(5)
        assert (peeked[0].partition, peeked[0].offset) == (rejected.partition, rejected.offset)
        assert len(peeked) == 5
        assert len(queue.peek(100)) == 40
        assert queue.stats().ready == 39


class Answering(QueueSetting):
    """Ack, nack, extend, and what an answer that comes too late gets."""

    def test_what_is_acknowledged_never_comes_back(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 3)
        for message in queue.receive(3):
            message.ack()
        leases.advance(days=1)
        assert queue.receive() == []
        assert queue.stats().acked == 3

    def test_what_is_not_answered_is_delivered_again(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 3)
        first = queue.receive(3)
        first[1].ack()
        leases.advance(seconds=29)
        assert queue.receive(9) == []
        leases.advance(seconds=1)
        assert [(again.value["ms"], again.deliveries) for again in queue.receive(9)] == [(0, 2), (2, 2)]

    def test_what_is_due_comes_before_what_is_new(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 4)
        queue.receive(2)
        leases.advance(seconds=30)
        assert numbers(queue.receive(3)) == [0, 1, 2]

    def test_a_few_of_many_that_are_due(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 10)
        queue.receive(10)
        leases.advance(seconds=30)
        assert [numbers(queue.receive(4)) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_a_second_answer_is_refused(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        acked, rejected = queue.receive(2)
        acked.ack()
        rejected.nack()
        for message in (acked, rejected):
            for answer in (message.ack, message.nack, lambda message=message: message.extend("1 minute")):
                with pytest.raises(LeaseExpired):
                    answer()

    def test_an_answer_after_somebody_else_got_it_is_refused(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (late,) = queue.receive()
        leases.advance(seconds=30)
        (now,) = queue.receive()
        with pytest.raises(LeaseExpired) as error:
            late.ack()
        assert (error.value.topic, error.value.queue, error.value.partition, error.value.offset) == (
            "clicks",
            "q",
            0,
            0,
        )
        now.ack()

    def test_late_but_before_anybody_else_is_in_time(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        leases.advance(hours=1)
        message.ack()
        assert queue.receive() == []

    def test_many_at_once_in_any_order(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 100)
        messages = queue.receive(100)
        queue.ack(messages[::-3])  # 34 of them
        queue.ack(messages[0:0])
        stats = queue.stats()
        assert (stats.acked, stats.in_flight) == (34, 66)
        queue.nack(message for i, message in enumerate(messages) if i % 3)
        assert len(drained(queue)) == 66

    def test_one_of_many_too_late_refuses_all(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 5)
        messages = queue.receive(5)
        messages[3].ack()
        for answer in (queue.ack, queue.nack, lambda some: queue.extend(some, "1 minute")):
            with pytest.raises(LeaseExpired) as error:
                answer(messages)
            assert error.value.offset == 3
        assert queue.stats().in_flight == 4

    def test_the_same_message_twice_in_one_answer(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        queue.ack([message, message])
        assert queue.stats().acked == 1

    def test_messages_of_another_queue_are_refused(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        for wrong in (clicks.queue("other").receive()[0], next(iter(clicks.records())), None):
            with pytest.raises(InvalidArgument):
                queue.ack([wrong])

    def test_many_threads_acknowledge_each_its_own(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 200)
        messages = queue.receive(200)
        messages[7].ack()
        refused = []

        def work(mine: list[Any]) -> None:
            for message in mine:
                try:
                    message.ack()
                except LeaseExpired:
                    refused.append(message.offset)

        threads = [threading.Thread(target=work, args=(messages[i::8],)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == [7]
        assert queue.stats().acked == 200

    def test_a_rejected_message_can_wait(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        queue.receive()[0].nack("busy", delay="10 seconds")
        assert queue.receive() == []
        leases.advance(seconds=10)
        assert queue.receive()[0].deliveries == 2

    def test_extending_keeps_it(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        long, short = queue.receive(2)
        long.extend("1 hour")
        leases.advance(minutes=30)
        assert numbers(queue.receive(9)) == [1]
        long.ack()
        with pytest.raises(LeaseExpired):
            short.ack()

    def test_given_back_it_was_not_delivered(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 3)
        queue.give_back(queue.receive(3))
        assert [message.deliveries for message in queue.receive(3)] == [1, 1, 1]

    def test_a_block_acknowledges(self, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        with queue.receive()[0] as message:
            assert message.value["ms"] == 0
        assert queue.stats().acked == 1

    def test_a_block_that_raises_rejects_and_lets_it_through(self, log: Any, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", max_deliveries=1)
        with pytest.raises(KeyError), queue.receive()[0]:
            raise KeyError("total")
        (letter,) = log.dead_letters()
        assert letter.error == "KeyError: 'total'"

    def test_a_block_in_which_it_was_answered_answers_no_more(self, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        one, two = queue.receive(2)
        with one:
            one.nack("not now")
        with two, log.transaction() as tx:
            tx.ack(two)
        stats = queue.stats()
        assert (stats.due, stats.acked) == (1, 1)

    def test_what_a_block_raises_says_more_than_a_late_answer(
        self, leases: LeaseClock, clicks: Any, queue: Any
    ) -> None:
        fill(clicks, 1)
        with pytest.raises(ZeroDivisionError), queue.receive()[0]:
            leases.advance(minutes=1)
            queue.receive()[0].ack()
            raise ZeroDivisionError
        assert queue.stats().acked == 1

    @pytest.mark.parametrize("delay", ["soon", "-1 second", "9999 days"])
    def test_a_delay_that_makes_no_sense(self, clicks: Any, queue: Any, delay: str) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        with pytest.raises(InvalidArgument):
            message.nack(delay=delay)
        with pytest.raises(InvalidArgument):
            message.extend(delay)
        with pytest.raises(InvalidArgument):
            message.nack(error=5)
        message.ack()

    def test_where_everything_is(self, clock: Clock, leases: LeaseClock, clicks: Any) -> None:
        fill(clicks, 10)
        queue = clicks.queue("q", max_deliveries=2)
        clock.advance(seconds=90)
        messages = queue.receive(6)
        messages[0].ack()
        messages[1].nack()
        messages[2].nack(delay="1 hour")
        stats = queue.stats()
        assert (stats.ready, stats.in_flight, stats.due, stats.waiting) == (4, 4, 1, 0)  # 3 with somebody, 1 later
        assert (stats.delivered, stats.redelivered, stats.acked, stats.dead) == (6, 0, 1, 0)
        assert stats.oldest == timedelta(seconds=90)
        queue.receive()[0].nack()  # number 1, for the second time
        leases.advance(seconds=30)
        stats = queue.stats()
        assert (stats.in_flight, stats.due, stats.redelivered, stats.dead, stats.dead_open) == (1, 3, 1, 1, 1)
        clicks.queue("q", max_deliveries=9)
        queue.ack(drained(queue))
        leases.advance(hours=1)
        queue.ack(drained(queue))
        stats = queue.stats()
        assert (stats.ready + stats.in_flight + stats.due, stats.acked, stats.oldest) == (0, 9, timedelta(0))


class Dying(QueueSetting):
    """Delivered too often: dead letters, and back."""

    def test_rejected_too_often(self, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        before = datetime.now(UTC)
        for error in ("first", "second", "third"):
            queue.receive()[0].nack(error)
        (letter,) = log.dead_letters()
        assert (letter.reason, letter.error, letter.deliveries) == ("deliveries", "third", 3)
        origin = letter.origin
        assert (origin.topic, origin.partition, origin.offset, origin.source) == ("clicks", 0, 0, "queue q")
        assert before <= letter.died_at <= datetime.now(UTC)
        assert letter.value == next(iter(clicks.records())).value
        assert numbers(queue.receive(9)) == [1]
        assert (queue.stats().dead, queue.stats().dead_open) == (1, 1)

    def test_never_answered(self, leases: LeaseClock, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 2)
        for _ in range(3):
            assert len(queue.receive(9)) == 2
            leases.advance(seconds=30)
        assert list(log.dead_letters()) == []
        assert queue.receive(9) == []
        assert [(letter.deliveries, letter.origin.offset) for letter in log.dead_letters()] == [(3, 0), (3, 1)]
        assert "not acknowledged" in next(log.dead_letters()).error

    def test_others_are_handed_out_meanwhile(self, leases: LeaseClock, log: Any, clicks: Any) -> None:
        fill(clicks, 3)
        queue = clicks.queue("q", max_deliveries=1)
        queue.receive(2)
        leases.advance(seconds=30)
        assert numbers(queue.receive(3)) == [2]
        assert len(list(log.dead_letters())) == 2

    def test_an_answer_after_it_died_is_refused(self, leases: LeaseClock, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", max_deliveries=1)
        (message,) = queue.receive()
        leases.advance(seconds=30)
        queue.receive()
        for answer in (message.ack, message.nack):
            with pytest.raises(LeaseExpired):
                answer()

    def test_some_of_many_die_and_the_others_come_again(self, leases: LeaseClock, log: Any, clicks: Any) -> None:
        fill(clicks, 4)
        queue = clicks.queue("q", max_deliveries=2)
        queue.receive(2)
        leases.advance(seconds=30)
        messages = queue.receive(4)
        queue.nack(messages, "broken")  # 0 and 1 for the second time
        assert [letter.origin.offset for letter in log.dead_letters()] == [0, 1]
        assert [(message.offset, message.deliveries) for message in queue.receive(4)] == [(2, 2), (3, 2)]

    def test_fewer_deliveries_from_now_on(self, leases: LeaseClock, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        clicks.queue("q", max_deliveries=1)
        message.nack()
        assert len(list(log.dead_letters())) == 1
        assert leases.now_us

    def test_any_text_will_do_as_an_error(self, log: Any, clicks: Any) -> None:
        queue = clicks.queue("q", max_deliveries=1)
        for error in ("", "a\nb", "\ud800", "x" * 100_000):
            clicks.append(click())
            queue.receive()[0].nack(error)
        assert [letter.error[:9] for letter in log.dead_letters()] == ["", "a\nb", "?", "x" * 9]

    def test_a_replayed_letter_is_delivered_by_its_queue_alone(self, log: Any, clicks: Any) -> None:
        fill(clicks, 2)
        dying, other = clicks.queue("q", max_deliveries=1), clicks.queue("other")
        other.ack(other.receive(2))
        dying.receive()[0].nack("x")
        (letter,) = log.dead_letters()
        done = letter.replay()
        assert done.ranges == {0: range(1)}
        assert values(clicks, "ms") == [0, 1]  # not appended again
        assert other.receive() == []
        assert [(message.value["ms"], message.deliveries) for message in dying.receive(2)] == [(0, 1), (1, 1)]
        with pytest.raises(InvalidArgument, match="replayed or dropped already"):
            letter.replay()
        assert list(log.dead_letters()) == []

    def test_a_letter_can_be_dropped(self, log: Any, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", max_deliveries=1)
        queue.receive()[0].nack()
        next(log.dead_letters()).drop()
        assert (queue.receive(), queue.redrive(), queue.stats().dead_open) == ([], 0, 0)

    def test_redriving_all_of_a_queue(self, log: Any, four: Any) -> None:
        fill(four, 40)
        queue, other = (four.queue(name, max_deliveries=1) for name in ("q", "other"))
        for each in (queue, other):
            each.nack(drained(each), "down")
        assert len(list(log.dead_letters())) == 80
        assert queue.redrive() == 40
        assert queue.redrive() == 0
        assert sorted(numbers(drained(queue))) == list(range(40))
        assert len(list(log.dead_letters())) == 40

    def test_redriving_from_both_sides_puts_each_back_once(self, home: Path, clicks: Any) -> None:
        fill(clicks, 300)
        queue = clicks.queue("q", max_deliveries=1)
        queue.nack(queue.receive(300))
        counts: list[int] = []
        with self.open_log(home) as other:
            sides = [queue, other.topic("clicks").queue("q")]
            threads = [threading.Thread(target=lambda side=side: counts.append(side.redrive())) for side in sides]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(counts) == 300
        assert len(drained(queue)) == 300

    def test_a_redriven_message_can_die_again(self, log: Any, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", max_deliveries=1)
        for error in ("one", "two"):
            queue.receive()[0].nack(error)
            assert [letter.error for letter in log.dead_letters()] == [error]
            queue.redrive()
        assert queue.stats().dead == 2

    def test_a_letter_of_a_deleted_queue_cannot_be_replayed(self, log: Any, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", max_deliveries=1)
        queue.receive()[0].nack()
        queue.delete()
        (letter,) = log.dead_letters()
        with pytest.raises(InvalidArgument, match=r"its queue was deleted \(queue q\)"):
            letter.replay()
        letter.drop()

    def test_a_letter_whose_message_comes_anyway_just_ends(self, log: Any, clicks: Any) -> None:
        fill(clicks, 3)
        queue = clicks.queue("q", max_deliveries=1)
        for message in queue.receive(2):
            message.nack()
        queue.rewind("earliest")
        queue.receive()
        assert queue.redrive() == 2  # 0 is with somebody, 1 was not handed out since
        assert numbers(drained(queue)) == [1, 2]
        assert list(log.dead_letters()) == []

    def test_letters_of_erased_records_are_gone_and_others_stay(self, log: Any, clicks: Any) -> None:
        fill(clicks, 2)
        queue = clicks.queue("q", max_deliveries=1)
        queue.nack(queue.receive(2))
        clicks.erase("u0")
        assert [letter.origin.offset for letter in log.dead_letters()] == [1]
        assert queue.redrive() == 1

    def test_a_letter_whose_record_is_gone_says_what_to_do(self, clock: Clock, log: Any, clicks: Any) -> None:
        fill(clicks, 1)
        queue = clicks.queue("q", max_deliveries=1)
        queue.receive()[0].nack()
        clicks.alter(retention="1 hour")
        clock.advance(hours=2)
        log.maintain()
        (letter,) = log.dead_letters()
        assert queue.redrive() == 0
        with pytest.raises(InvalidArgument, match=r"no longer in the topic\. Append the value again"):
            letter.replay()
        clicks.append(letter.value)
        letter.drop()
        assert numbers(queue.receive()) == [0]


class Ordering(QueueSetting):
    """What redelivery does to order, and the order that keeps it."""

    def test_redelivery_reorders(self, clicks: Any, queue: Any) -> None:
        """m1 m2 m3 m4 of one key; m3 fails once. Its second delivery comes after m4: the price of not waiting."""
        fill(clicks, 5, "ann")
        seen = []
        for message in queue.receive(5):
            if message.value["ms"] == 3:
                message.nack("try again")
            else:
                seen.append(message.value["ms"])
                message.ack()
        (again,) = queue.receive(5)
        seen.append(again.value["ms"])
        assert seen == [0, 1, 2, 4, 3]

    def test_order_by_key_does_not(self, clicks: Any) -> None:
        fill(clicks, 5, "ann")
        queue = clicks.queue("ordered", order="key")
        seen, failed = [], False
        while found := queue.receive(5):
            (message,) = found  # one of a key at a time
            if message.value["ms"] == 3 and not failed:
                failed = True
                message.nack("try again")
            else:
                seen.append(message.value["ms"])
                message.ack()
        assert seen == [0, 1, 2, 3, 4]

    @pytest.fixture
    def ordered(self, clicks: Any) -> Any:
        return clicks.queue("q", order="key", max_deliveries=3)

    def test_other_keys_go_on(self, clicks: Any, ordered: Any) -> None:
        clicks.append([click("a", ms=0), click("a", ms=1), click("b", ms=2), click("a", ms=3), click("b", ms=4)])
        a, b = ordered.receive(9)
        assert numbers([a, b]) == [0, 2]
        assert ordered.stats().waiting == 3
        b.ack()
        assert numbers(ordered.receive(9)) == [4]
        a.ack()
        assert numbers(ordered.receive(9)) == [1]

    def test_a_key_waits_while_its_message_is_delivered_again(
        self, leases: LeaseClock, clicks: Any, ordered: Any
    ) -> None:
        fill(clicks, 2, "ann")
        ordered.receive()
        leases.advance(seconds=30)
        (again,) = ordered.receive(9)
        assert (again.value["ms"], again.deliveries) == (0, 2)
        again.nack(delay="1 hour")
        assert ordered.receive(9) == []
        assert ordered.peek() == []

    def test_a_message_that_died_lets_the_next_go(self, leases: LeaseClock, log: Any, clicks: Any) -> None:
        fill(clicks, 3, "ann")
        ordered = clicks.queue("q", order="key", max_deliveries=1)
        ordered.receive()[0].nack("poison")
        assert numbers(ordered.receive(9)) == [1]
        leases.advance(seconds=30)
        assert numbers(ordered.receive(9)) == [2]
        assert [letter.origin.offset for letter in log.dead_letters()] == [0, 1]

    def test_a_redriven_message_waits_for_its_key(self, clicks: Any) -> None:
        fill(clicks, 3, "ann")
        ordered = clicks.queue("q", order="key", max_deliveries=1)
        ordered.receive()[0].nack()
        (one,) = ordered.receive(9)
        ordered.redrive()
        assert ordered.receive(9) == []
        one.ack()
        assert numbers(ordered.receive(9)) == [0]  # the lowest that waits

    def test_whoever_waits_is_woken_by_the_ack_before(self, clicks: Any, ordered: Any) -> None:
        fill(clicks, 2, "ann")
        (first,) = ordered.receive(2)
        with waiting(clicks.queue("q")) as found:
            first.ack()
        assert numbers(found) == [1]

    def test_many_keys_over_partitions_stay_in_order(self, four: Any) -> None:
        four.append([click(f"u{i % 7}", ms=i) for i in range(500)])
        queue = four.queue("q", order="key")
        seen: dict[str, list[int]] = {}
        while found := queue.receive(3):
            for message in found:
                seen.setdefault(message.key, []).append(message.value["ms"])
            queue.ack(found)
        assert sum(map(len, seen.values())) == 500
        assert all(numbers == sorted(numbers) for numbers in seen.values())

    def test_a_null_key_is_a_key(self, clicks: Any, ordered: Any) -> None:
        clicks.append([click(None, ms=0), click(None, ms=1)])
        assert numbers(ordered.receive(9)) == [0]

    def test_acks_of_many_keys_at_once(self, clicks: Any, ordered: Any) -> None:
        clicks.append([click(f"u{i % 10}", ms=i) for i in range(30)])
        for turn in range(3):
            found = ordered.receive(99)
            assert numbers(found) == list(range(10 * turn, 10 * turn + 10))
            ordered.ack(found)
        assert ordered.receive(99) == []


class InTransactions(QueueSetting):
    """`tx.ack`: results and acks together."""

    def test_results_and_acks_go_together(self, log: Any, clicks: Any, queue: Any) -> None:
        done = log.create_topic("done", "n int")
        fill(clicks, 3)
        messages = queue.receive(3)
        with log.transaction() as tx:
            tx.append("done", [{"n": message.value["ms"]} for message in messages])
            tx.ack(*messages)
        assert values(done, "n") == [0, 1, 2]
        assert queue.stats().acked == 3

    def test_an_exception_acknowledges_nothing(self, log: Any, clicks: Any, queue: Any) -> None:
        fill(clicks, 1)
        (message,) = queue.receive()
        with pytest.raises(ZeroDivisionError), log.transaction() as tx:
            tx.ack(message)
            raise ZeroDivisionError
        assert queue.stats().in_flight == 1

    def test_a_late_ack_refuses_all(self, log: Any, clicks: Any, queue: Any) -> None:
        done = log.create_topic("done", "n int")
        fill(clicks, 2)
        one, two = queue.receive(2)
        two.nack()
        with pytest.raises(LeaseExpired), log.transaction() as tx:
            tx.append("done", {"n": 1})
            tx.ack(one)
            tx.ack(two)
        assert values(done, "n") == []
        assert queue.stats().in_flight == 1

    def test_acks_of_several_queues_and_offsets_of_a_group(self, log: Any, clicks: Any) -> None:
        fill(clicks, 1)
        queues = [clicks.queue("one"), clicks.queue("two", order="key")]
        with clicks.group("g").join() as member:
            member.poll()
            with log.transaction() as tx:
                for queue in queues:
                    tx.ack(*queue.receive())
                tx.commit(member)
        assert [queue.stats().acked for queue in queues] == [1, 1]
        assert clicks.group("g").committed() == {0: 1}

    def test_what_is_not_a_message_cannot_be_acknowledged(self, log: Any, clicks: Any) -> None:
        clicks.append(click())
        with pytest.raises(InvalidArgument), log.transaction() as tx:
            tx.ack(next(iter(clicks.records())))


class Rewinding(QueueSetting):
    """Setting a queue anew, on purpose or because records are gone."""

    @pytest.mark.parametrize(("start", "first"), [("earliest", [0, 1, 2, 3]), ("latest", []), ({0: 2}, [2, 3])])
    def test_to_anywhere(self, clicks: Any, queue: Any, start: Any, first: list[int]) -> None:
        fill(clicks, 4)
        messages = queue.receive(3)
        messages[0].ack()
        queue.rewind(start)
        assert numbers(queue.receive(9)) == first
        for late in messages[1:]:
            with pytest.raises(LeaseExpired):
                late.ack()

    def test_some_partitions_only(self, four: Any) -> None:
        fill(four, 40)
        queue = four.queue("q")
        held = drained(queue)
        queue.rewind({2: 0})
        again = drained(queue)
        assert {message.partition for message in again} == {2}
        queue.ack(message for message in held if message.partition != 2)
        assert queue.stats().acked == 40 - len(again)

    def test_where_there_is_nothing(self, clicks: Any, queue: Any) -> None:
        with pytest.raises(OffsetOutOfRange):
            queue.rewind({0: 1})
        for start in ({7: 0}, "soonest"):
            with pytest.raises(InvalidArgument):
                queue.rewind(start)
        assert clicks.queues()

    def test_with_order_by_key(self, clicks: Any) -> None:
        fill(clicks, 3, "ann")
        queue = clicks.queue("q", order="key")
        queue.receive()
        queue.rewind("earliest")
        assert numbers(queue.receive(9)) == [0]

    @pytest.fixture
    def overtaken(self, clock: Clock, log: Any) -> Any:
        """A queue that has handed out two of five messages when retention takes them all, and one comes."""
        topic = log.create_topic("short", CLICKS, key="user", retention="1 hour", durability="os", partitions=2)
        queue = topic.queue("q")
        topic.append([click("u1", ms=i) for i in range(5)])
        queue.receive(2)
        clock.advance(hours=2)
        log.maintain()
        return topic, queue

    def test_a_queue_that_retention_overtook_is_told_every_time(self, overtaken: Any) -> None:
        topic, queue = overtaken
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange) as error:
                queue.receive(9, wait="1 hour")
            assert (error.value.offset, error.value.earliest) == (2, 5)
        topic.append(click("u1", ms=9))
        with pytest.raises(OffsetOutOfRange):
            queue.receive()
        queue.rewind("earliest")
        assert numbers(queue.receive(9)) == [9]
        assert queue.stats().lost == 5  # two that were not answered, three that were never handed out

    def test_other_partitions_go_on(self, overtaken: Any) -> None:
        topic, queue = overtaken
        topic.append([click(f"u{i}", ms=7) for i in range(20)])
        behind = topic.append(click("u1")).ranges.keys()
        assert {message.partition for message in queue.receive(99)} == {0, 1} - behind
        with pytest.raises(OffsetOutOfRange):
            queue.receive(99)

    def test_an_erased_message_is_not_delivered_again(self, leases: LeaseClock, clicks: Any, queue: Any) -> None:
        fill(clicks, 4)
        queue.receive(2)
        clicks.erase("u1")
        clicks.erase("u2")
        leases.advance(seconds=30)
        assert numbers(drained(queue)) == [0, 3]
        stats = queue.stats()
        assert (stats.lost, stats.dead, stats.ready) == (0, 0, 0)

    def test_an_erased_message_lets_the_next_of_its_key_go(self, leases: LeaseClock, log: Any) -> None:
        topic = log.create_topic("pairs", CLICKS, key=("user", "page"), durability="os")
        topic.append([click("a", page="/", ms=0), click("b", page="/", ms=1), click("b", page="/", ms=2)])
        queue = topic.queue("q", order="key")
        queue.receive(9)
        topic.erase(("b", "/"))
        topic.append(click("b", page="/", ms=3))
        leases.advance(seconds=30)
        assert numbers(drained(queue)) == [0, 3]

    def test_compacted_messages_are_passed_over(self, log: Any) -> None:
        topic = log.create_topic("latest", CLICKS, key="user", cleanup="compact", durability="os")
        queue = topic.queue("q")
        for turn in range(5):
            topic.append([click(f"u{i}", ms=10 * turn + i) for i in range(3)])
        assert numbers(queue.receive(4)) == [0, 1, 2, 10]
        log.maintain()
        held = values(topic, "ms")
        assert len(held) < 15
        assert numbers(drained(queue, 2)) == [number for number in held if number > 10]


class QueueContract(
    Opening,
    Receiving,
    Answering,
    Dying,
    Ordering,
    InTransactions,
    Rewinding,
):
    """All of it. Inherit this, say how to open a log and how to set the clock of leases, and run pytest."""
