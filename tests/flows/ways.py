"""How many random ways through a log a test tries, each with many cuts: one in `make test`, some in `make soak`."""

import pytest

one_way_or_many = pytest.mark.parametrize(
    "ways", [1, pytest.param(5, marks=pytest.mark.soak)], ids=["one way", "five ways"]
)
