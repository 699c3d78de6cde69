"""Fixtures of the fault kit: children that never outlive their test, and the disk shim, built once."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.children import Children
from tests.faults.disk import Shim, ShimUnavailable


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Shim:
    try:
        return Shim.build(tmp_path_factory.mktemp("shim"))
    except ShimUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder for logs that are many and synced often: in memory, where there is such a place."""
    shared = Path("/dev/shm")
    folder = shared / f"headrace-{os.getpid()}-{time.monotonic_ns()}" if shared.is_dir() else tmp_path / "memory"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
