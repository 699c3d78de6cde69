"""What tests of headrace and of programs on it share: suites to inherit. Needs pytest, and for views hypothesis; no
other part of headrace imports it.

    class TestMyLog(LogContract):
        def open_log(self, home): return my_log(home)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

_HOMES = {
    "LogContract": "headrace.testing.log_contract",
    "QueueContract": "headrace.testing.queue_contract",
    "ViewStoreContract": "headrace.testing.view_contract",
}
pytest.register_assert_rewrite(*_HOMES.values())  # before they are imported, so that asserts explain

if TYPE_CHECKING:
    from headrace.testing.log_contract import LogContract as LogContract
    from headrace.testing.queue_contract import QueueContract as QueueContract
    from headrace.testing.view_contract import ViewStoreContract as ViewStoreContract

__all__ = ["LogContract", "QueueContract", "ViewStoreContract"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
