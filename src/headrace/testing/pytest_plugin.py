"""For pytest: the fixture `headrace_spark`, one Spark session for the whole run, made when a test first asks for it.

# conftest.py, the topmost one
pytest_plugins = ["headrace.testing.pytest_plugin"]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.flows.flow import SparkSession


@pytest.fixture(scope="session")
def headrace_spark() -> Iterator[SparkSession]:
    """A local Spark session, for `hr.App(…, spark=headrace_spark)` or plain PySpark."""
    from headrace.testing.spark import shared_session

    session = shared_session()
    yield session
    session.stop()
