"""The contract's suite is long on a broker: `make test` runs a short selection of it, `make soak` all."""

from __future__ import annotations

import pytest

from tests.kafka.test_kafka_log import SHORT, TestKafkaLog


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "cls", None) is TestKafkaLog and getattr(item, "originalname", "") not in SHORT:
            item.add_marker(pytest.mark.soak)
