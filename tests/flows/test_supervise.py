"""What is said of a flow that fails and is started again."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.flows.supervise import starting_again


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (hr.TopicFull("t", 9, 8), "use unread='delete'; starting again in 0.5 s"),
        (OSError("no space"), "flow v: no space; starting again in 0.5 s"),
    ],
)
def test_two_sentences_are_one(error: Exception, line: str) -> None:
    assert starting_again("v", error, 0.5).endswith(line)
