from __future__ import annotations

import pytest

from headrace.errors import InvalidName
from headrace.names import check_name


@pytest.mark.parametrize("name", ["clicks", "a", "A.b_c-9", "_x", "a" * 249, "...", "9"])
def test_good_names_come_back_as_they_are(name: str) -> None:
    assert check_name(name, argument="topic") == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "directory"),
        ("..", "directory"),
        ("a" * 250, "250 characters; at most 249"),
        ("a/b", "'/'"),
        ("a b", "' '"),
        ("a\n", "'\\n'"),
        ("é", "'é'"),
        ("a\x00", "'\\x00'"),
        ("__dead", "reserved"),
        (7, "not int"),
        (None, "not NoneType"),
    ],
)
def test_bad_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name, argument="topic")
    assert caught.value.argument == "topic"
    assert reason in str(caught.value)


def test_headraces_own_names_need_to_be_asked_for() -> None:
    assert check_name("__dead_letters", argument="topic", system=True) == "__dead_letters"
    with pytest.raises(InvalidName):
        check_name("../x", argument="topic", system=True)
