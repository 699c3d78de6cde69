"""What tests of headrace and of programs on it share: suites to inherit. Needs pytest; no other part of headrace
imports it.

    class TestMyLog(LogContract):
        def open_log(self, home): return my_log(home)"""

import pytest

pytest.register_assert_rewrite("headrace.testing.log_contract", "headrace.testing.queue_contract")

from headrace.testing.log_contract import LogContract  # noqa: E402  (after the line above, so that asserts explain)
from headrace.testing.queue_contract import QueueContract  # noqa: E402

__all__ = ["LogContract", "QueueContract"]
