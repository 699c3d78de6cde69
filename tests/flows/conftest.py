"""One Spark session for all tests of flows: starting one takes seconds."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark(headrace_spark: Any) -> Any:
    return headrace_spark
