"""Several processes run the suite together: each takes the next module that nobody has taken yet, and passes over the
others. Owns what a process takes at once, and how: by a file that only one can make, in the folder that
HEADRACE_TESTS_TAKEN names (`scripts/tests.py`). Without it a process runs all that it was asked for."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

TAKEN = "HEADRACE_TESTS_TAKEN"
FOLDER = os.environ.pop(TAKEN, None)  # not for processes that tests start


def together(module: str) -> str:
    """What is taken with the module: those that share a server are one, or each process would start its own."""
    for folder in ("tests/kafka", "tests/mysql"):
        if module.startswith(f"{folder}/"):
            return folder
    if module.startswith("tests/cdc/") or ("postgres" in module and not module.startswith("tests/flows/")):
        return "postgres"
    return module


@functools.cache
def ours(what: str) -> bool:
    """Whether this process takes it; asked once."""
    assert FOLDER is not None
    try:
        Path(FOLDER, what.replace("/", ":")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """True: nothing is left to do for the test."""
    if FOLDER and not ours(together(item.nodeid.split("::")[0])):
        return True
    if FOLDER:  # pytest kept what the next test would have needed, if that had not been passed over
        item.session._setupstate.teardown_exact(item)
    return None
