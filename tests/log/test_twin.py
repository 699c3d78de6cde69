"""A second log keeps the parts of the contract that flows stand on: topics, appending, times, transactions, reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.log.capabilities import Clock, Erasure, Files, Queues, Usage, Versions, capability
from headrace.log.contract import Log, Topic
from headrace.testing import log_contract
from tests.log.twin import TwinLog

GAPS = {
    "test_headraces_own_topics_cannot_be_deleted": "no topic of dead letters",
    "test_a_handle_on_a_topic_made_again_says_so[<lambda>9]": "no groups",
    "test_a_handle_on_a_topic_made_again_says_so[<lambda>10]": "no groups",
    "test_a_handle_on_a_topic_made_again_says_so[<lambda>11]": "no producers",
    "test_a_group_of_a_topic_that_was_deleted_says_so": "no groups",
    "test_a_member_of_a_topic_that_was_deleted_says_so_and_can_be_closed": "no groups",
    "test_after_its_end_it_is_closed": "no groups",
    "test_a_handle_of_another_opening_sees_an_alteration_too": "one handle for all",
    "test_offsets_and_records_go_together": "no groups",
    "test_an_exception_commits_no_offsets": "no groups",
    "test_a_member_that_lost_its_partitions_refuses_all": "no groups",
    "test_a_rewind_inside_the_block_is_not_undone_by_polling_again": "no groups",
}


class Memory:
    """The logs of a test, by where they would be."""

    @pytest.fixture(autouse=True)
    def _logs(self, request: pytest.FixtureRequest) -> None:
        self.logs: dict[Path, TwinLog] = {}
        if request.node.name in GAPS:
            request.applymarker(pytest.mark.xfail(strict=True, reason=GAPS[request.node.name]))

    def open_log(self, home: Path) -> Any:
        known = self.logs.get(home)
        if known is None or known.closed:
            made = TwinLog()
            if known is not None:
                made.contents = known.contents
            self.logs[home] = known = made
        return known


class TestTopics(Memory, log_contract.Topics):
    pass


class TestTransactions(Memory, log_contract.Transactions):
    pass


class TestAppending(Memory, log_contract.Appending):
    pass


class TestTimes(Memory, log_contract.Times):
    pass


class TestReading(Memory, log_contract.Reading):
    pass


def test_a_twin_is_a_log_and_has_none_of_the_capabilities() -> None:
    log = TwinLog()
    topic = log.create_topic("t", "a int", key="a")
    assert isinstance(log, Log) and isinstance(topic, Topic) and isinstance(topic.ref().open(), Topic)
    for handle, kind in (
        (topic, Queues),
        (topic, Erasure),
        (topic, Usage),
        (topic, Versions),
        (log, Files),
        (log, Clock),
    ):
        with pytest.raises(hr.Unsupported, match=f"has no {kind.__name__.lower()}"):
            capability(handle, kind)


def test_offsets_may_have_holes() -> None:
    topic = TwinLog(stride=3).create_topic("t", "a int")
    assert [topic.append([{"a": 1}] * 2).ranges[0] for _ in range(2)] == [range(0, 6, 3), range(6, 12, 3)]
    assert [record.offset for record in topic.records({0: 4})] == [6, 9]
    assert sum(batch.num_rows for batch in topic.batches(0, 1, 7)) == 2
