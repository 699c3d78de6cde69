"""Transactions of Kafka. Owns what one is: begun when its records are complete, so that nothing is open while a caller
thinks. A producer that dies inside one leaves nothing that a reader sees. Knows no rows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from headrace.errors import Fenced, HeadraceError, KafkaFailed
from headrace.failpoints import reach
from headrace.log.kafka.client import REQUEST_SECONDS, Client, Outgoing

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

__all__ = ["TRANSACTION_SECONDS", "ProducerReplaced", "Transactional"]

TRANSACTION_SECONDS = 15
"""A transaction whose producer died is aborted by the broker after so long; until then readers wait for it."""
OFFSETS_SECONDS = 3.0
"""A producer whose offsets the group's coordinator does not take for so long is given up. The next one of its id ends
what it has open."""


class ProducerReplaced(Fenced):
    """Another producer has taken the transactional id."""


class Transactional:
    """A producer with a transactional id. Taking the id ends what an earlier holder has open, and fences it."""

    def __init__(self, client: Client, id: str, seconds: int = TRANSACTION_SECONDS) -> None:
        self._client, self.id = client, id
        self._producer = client.new_producer(
            transactional_id=id, transaction_timeout_ms=seconds * 1000, message_timeout_ms=10_000
        )
        with client.translated(f"taking the transactional id {id!r}"):
            self._retried(lambda: self._producer.init_transactions(REQUEST_SECONDS))

    def run(
        self,
        sending: Iterable[tuple[str, Sequence[Outgoing]]],
        commits: Sequence[tuple[Sequence[TopicPartition], Any]] = (),
    ) -> list[dict[int, range]]:
        """One transaction: records for topics, and offsets of groups, all or none. The offsets that each topic's
        records got. Returns when readers can see them. `sending` is asked for the next records when those before are
        with the producer."""
        from confluent_kafka import KafkaException

        try:
            self._producer.begin_transaction()
            asked = [(topic, self._client.produce(self._producer, topic, records)) for topic, records in sending]
            found = [(topic, each.wait()) for topic, each in asked]
            reach("kafka.sent")
            for positions, group in commits:
                send = self._producer.send_offsets_to_transaction
                self._retried(
                    lambda send=send, at=positions, of=group: send(list(at), of, OFFSETS_SECONDS), OFFSETS_SECONDS
                )
            self._retried(lambda: self._producer.commit_transaction(REQUEST_SECONDS))
            reach("kafka.committed")
        except BaseException as error:
            self._abort()
            if isinstance(error, KafkaException):
                raise self._translated(error.args[0]) from None
            raise
        nexts = {(topic, partition): given.stop for topic, ranges in found for partition, given in ranges.items()}
        self._client.wait_visible(nexts)
        return [ranges for _, ranges in found]

    def _retried(self, request: Any, seconds: float = REQUEST_SECONDS) -> None:
        from confluent_kafka import KafkaException

        until = time.monotonic() + seconds
        while True:
            try:
                self._answered(request, seconds)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise

    def _answered(self, request: Callable[[], object], seconds: float) -> None:
        """The client library does not keep to the time it is given where a group's coordinator was restarted: it never
        returns. The thread that waits for it is left behind, with the producer."""
        done: Future[object] = Future()

        def ask() -> None:
            try:
                done.set_result(request())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=ask, name=f"headrace-kafka-{self.id}", daemon=True).start()
        try:
            done.result(seconds + 1)
        except TimeoutError:
            servers, why = self._client.settings.servers, "the client library does not return"
            raise KafkaFailed(servers, "a transaction", "timeout", why, True) from None

    def _abort(self) -> None:
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):  # a fenced producer has nothing to abort
            self._producer.abort_transaction(OFFSETS_SECONDS)

    def _translated(self, error: Any) -> HeadraceError:
        from confluent_kafka import KafkaError

        fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
        if error.code() in fenced:
            return ProducerReplaced()
        return self._client.failed("a transaction", error)
