"""The contracts' suites are long on a broker: `make test` runs a short selection of them, `make soak` all."""

from __future__ import annotations

import pytest

from tests.kafka import test_kafka_log, test_queues

SHORT = {test_kafka_log.TestKafkaLog: test_kafka_log.SHORT, test_queues.TestKafkaQueues: test_queues.SHORT}


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        short = SHORT.get(getattr(item, "cls", None))  # type: ignore[arg-type]
        if short is not None and getattr(item, "originalname", "") not in short:
            item.add_marker(pytest.mark.soak)
        if getattr(item, "cls", None) is test_queues.TestKafkaQueues and (mark := test_queues.gap(item)) is not None:
            item.add_marker(mark)
