"""What tests of headrace and of programs on it share: a program run as steps, the same log cut in many ways, crashes at
every point, suites to inherit. Suites need pytest, and for views hypothesis; no other part of headrace imports this.

    run_steps(app, add("clicks", {"page": "/", "at": "2026-01-01T09:00:05Z"}), expect("views", [{"page": "/", "n": 1}]))

    class TestMyLog(LogContract):
        def open_log(self, home): return my_log(home)"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

_SUITES = {
    "KeyedTablesContract": "headrace.testing.keyed_contract",
    "LogContract": "headrace.testing.log_contract",
    "OperatorContract": "headrace.testing.operator_contract",
    "QueueContract": "headrace.testing.queue_contract",
    "ViewStoreContract": "headrace.testing.view_contract",
}
_HOMES = {
    **_SUITES,
    **dict.fromkeys(("add", "advance", "expect", "restart"), "headrace.testing.steps"),
    "MemoryTables": "headrace.testing.memory_tables",
    "given": "headrace.testing.decisions",
    "run_steps": "headrace.testing.trial",
    **dict.fromkeys(("CRASH_POINTS", "assert_cut_invariant", "crash_points"), "headrace.testing.invariance"),
}
if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(*_SUITES.values())  # before they are imported: asserts explain

if TYPE_CHECKING:
    from headrace.testing.decisions import given as given
    from headrace.testing.invariance import CRASH_POINTS as CRASH_POINTS
    from headrace.testing.invariance import assert_cut_invariant as assert_cut_invariant
    from headrace.testing.invariance import crash_points as crash_points
    from headrace.testing.keyed_contract import KeyedTablesContract as KeyedTablesContract
    from headrace.testing.log_contract import LogContract as LogContract
    from headrace.testing.memory_tables import MemoryTables as MemoryTables
    from headrace.testing.operator_contract import OperatorContract as OperatorContract
    from headrace.testing.queue_contract import QueueContract as QueueContract
    from headrace.testing.steps import add as add
    from headrace.testing.steps import advance as advance
    from headrace.testing.steps import expect as expect
    from headrace.testing.steps import restart as restart
    from headrace.testing.trial import run_steps as run_steps
    from headrace.testing.view_contract import ViewStoreContract as ViewStoreContract

__all__ = [
    "CRASH_POINTS",
    "KeyedTablesContract",
    "LogContract",
    "MemoryTables",
    "OperatorContract",
    "QueueContract",
    "ViewStoreContract",
    "add",
    "advance",
    "assert_cut_invariant",
    "crash_points",
    "expect",
    "given",
    "restart",
    "run_steps",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
