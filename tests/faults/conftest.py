"""Fixtures of the fault kit: children that never outlive their test, and the disk shim, built once."""

from __future__ import annotations

from collections.abc import Iterator

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
