"""Transactions that hold readers up: what was written behind the first open one of a partition is not seen until it
ends. Owns which are told: those that have been open for longer than a transaction of ours can be. The client library
does not ask brokers for the producers of a partition, so a producer's id is not known here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.durations import from_us
from headrace.log.capabilities import OpenTransaction
from headrace.log.kafka.client import REQUEST_SECONDS, Client, Place
from headrace.log.kafka.transactional import TRANSACTION_SECONDS

__all__ = ["open_transactions"]

HELD_SECONDS = float(TRANSACTION_SECONDS)


def open_transactions(client: Client, topic: str, physical: str, numbers: Sequence[int]) -> list[OpenTransaction]:
    """Those of the partitions that have been open for long, the one of each that holds readers up."""
    from confluent_kafka.admin import OffsetSpec

    places: list[Place] = [(physical, number) for number in numbers]
    stable = client.offsets(places, OffsetSpec.latest())
    written = client.offsets(places, OffsetSpec.latest(), committed=False)
    found = []
    for place in places:
        offset, end = stable[place].offset, written[place].offset
        since_us = _first_us(client, place, offset) if offset < end else None
        if since_us is not None and since_us < time.time_ns() // 1000 - HELD_SECONDS * 1e6:
            found.append(OpenTransaction(topic, physical, place[1], offset, end, from_us(since_us)))
    return found


def _first_us(client: Client, place: Place, offset: int) -> int | None:
    """Kafka's timestamp of the first record of the open transaction; None if it has ended meanwhile."""
    from confluent_kafka import TopicPartition

    consumer = client.new_consumer(isolation_level="read_uncommitted", queued_min_messages=1)
    try:
        consumer.assign([TopicPartition(*place, offset)])
        until = time.monotonic() + REQUEST_SECONDS / 10
        while time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                return int(message.timestamp()[1]) * 1000
            if message is not None:
                return None
        return None
    finally:
        consumer.close()
