"""Queues on Kafka, share groups of a real broker, keep what of the contract a share group can."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.log.kafka.consume import queues
from headrace.testing import QueueContract

GAPS = {
    **dict.fromkeys(
        (
            "test_a_slow_message_does_not_hold_up_others",
            "test_many_at_once_in_any_order",
            "test_one_of_many_too_late_refuses_all",
            "test_the_same_message_twice_in_one_answer",
            "test_many_threads_acknowledge_each_its_own",
            "test_a_block_acknowledges",
            "test_peeking_takes_nothing",
        ),
        "the broker counts, and its client cannot ask it",
    ),
    **dict.fromkeys(
        (
            "test_what_is_not_given_stays_as_it_is",
            "test_its_order_is_fixed",
            "test_order_by_key_does_not",
            "test_other_keys_go_on",
            "test_a_redriven_message_waits_for_its_key",
            "test_whoever_waits_is_woken_by_the_ack_before",
            "test_many_keys_over_partitions_stay_in_order",
            "test_a_null_key_is_a_key",
            "test_acks_of_many_keys_at_once",
            "test_with_order_by_key",
        ),
        "share groups know no order by key",
    ),
    **dict.fromkeys(
        ("test_where_a_new_queue_begins[start2-2]",), "a share group begins at the earliest or the latest offset"
    ),
    **dict.fromkeys(
        (
            "test_to_anywhere[earliest-first0]",
            "test_to_anywhere[latest-first1]",
            "test_to_anywhere[start2-first2]",
            "test_some_partitions_only",
            "test_where_there_is_nothing",
            "test_a_letter_whose_message_comes_anyway_just_ends",
        ),
        "the client cannot move a share group",
    ),
    **dict.fromkeys(
        (
            "test_results_and_acks_go_together",
            "test_an_exception_acknowledges_nothing",
            "test_a_late_ack_refuses_all",
            "test_acks_of_several_queues_and_offsets_of_a_group",
            "test_what_is_not_a_message_cannot_be_acknowledged",
            "test_a_block_in_which_it_was_answered_answers_no_more",
        ),
        "Kafka has no transactions over share groups",
    ),
    **dict.fromkeys(
        (
            "test_a_letter_can_be_dropped",
            "test_redriving_all_of_a_queue",
            "test_redriving_from_both_sides_puts_each_back_once",
            "test_a_redriven_message_can_die_again",
            "test_a_replayed_letter_is_delivered_by_its_queue_alone",
            "test_a_letter_of_a_deleted_queue_cannot_be_replayed",
        ),
        "a record cannot be put back into a share group: replay appends it again",
    ),
    **dict.fromkeys(
        (
            "test_letters_of_erased_records_are_gone_and_others_stay",
            "test_an_erased_message_lets_the_next_of_its_key_go",
            "test_compacted_messages_are_passed_over",
        ),
        "a log on Kafka has no erase and no maintain",
    ),
    **dict.fromkeys(
        (
            "test_more_consumers_than_partitions_have_work",
            "test_no_partition_starves",
            "test_added_partitions_are_received_too",
            "test_batches_of_any_size",
        ),
        "brokers hand out whole batches, and a consumer that owes answers keeps its partitions from others",
    ),
    "test_rejected_too_often": "what is rejected comes back behind what was fetched with it",
    "test_given_back_it_was_not_delivered": "the broker counts all deliveries",
    "test_it_is_there_after_opening_again": "the broker allows a minute of visibility at most",
    "test_a_waiting_consumer_gets_what_others_did_not_answer": "the broker allows no visibility this short",
}
"""What the contract asks of every queue, and a share group cannot do."""
CLOCKS = {"leases": "visibilities run by the broker's clock", "clock": "the broker stamps arrival"}
"""Fixtures that no test can have here."""
SLOW = {
    "test_every_message_goes_to_one_consumer": "may take longer than a message stays with a consumer",
    "test_all_partitions_are_received": "on a busy machine all answers arrive before the next batch is asked for",
}
"""What fails now and then."""


def gap(item: pytest.Item) -> pytest.MarkDecorator | None:
    """Why a test of the suite fails here, if it does: known before its fixtures are made, which may fail, too."""
    if item.name in SLOW:
        return pytest.mark.xfail(strict=False, reason=SLOW[item.name])
    clocks = [why for name, why in CLOCKS.items() if name in getattr(item, "fixturenames", ())]
    why = clocks[0] if clocks else GAPS.get(item.name)
    return None if why is None else pytest.mark.xfail(strict=True, reason=why)


SHORT = {
    "test_a_second_answer_is_refused",
    "test_a_setting_that_makes_no_sense_is_named",
    "test_a_deleted_queue_is_unknown",
}
"""What `make test` runs of the suite; `make soak` runs all of it (see conftest)."""


@pytest.fixture(autouse=True)
def _joined_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "JOIN_SECONDS", 4.0)  # this broker's share groups have a heartbeat of 0.1 seconds


class TestKafkaQueues(QueueContract):
    @pytest.fixture(autouse=True)
    def _broker(self, broker: str) -> None:
        self.broker = broker

    def open_log(self, home: Path) -> Any:
        prefix = hashlib.sha256(str(home).encode()).hexdigest()[:12] + "."
        return hr.open_log(f"kafka://{self.broker}?prefix={prefix}")


def test_what_is_rejected_or_not_answered_comes_again_then_is_a_dead_letter(broker: str, tmp_path: Path) -> None:
    with hr.open_log(f"kafka://{broker}?prefix=queues.") as log:
        mail = log.create_topic("mail", "n int")
        mail.append({"n": 1})
        queue = mail.queue("q", visibility="1 second", max_deliveries=2)
        (message,) = queue.receive(wait="20 seconds")
        assert (message.value, message.deliveries) == ({"n": 1}, 1)
        (again,) = mail.queue("q").receive(wait="20 seconds")  # nobody has answered for a second
        assert again.deliveries == 2
        with pytest.raises(hr.LeaseExpired):
            message.ack()
        again.nack("no")
        (letter,) = log.dead_letters()
        assert (letter.reason, letter.error, letter.deliveries) == ("deliveries", "no", 2)
        assert letter.origin.source == "queue q" and letter.value == {"n": 1}
        letter.replay()
        with queue.receive(wait="20 seconds")[0] as replayed:
            assert (replayed.offset, replayed.deliveries) == (1, 1)
        assert queue.receive() == []
        for refused in (queue.stats, queue.peek, queue.redrive, lambda: queue.rewind("earliest")):
            with pytest.raises(hr.Unsupported):
                refused()
        assert not list(tmp_path.iterdir())
