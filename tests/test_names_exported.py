"""The public names: all of them, and nothing imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace as hr


def test_every_public_name_is_there() -> None:
    for name in dir(hr):
        assert getattr(hr, name) is not None


def test_types_for_a_programs_own_functions() -> None:
    for name in "Duration", "Start", "Position":
        assert name in dir(hr)
    assert hr.correct() == hr.correct(within="1 hour", dropped_to=None) and hr.drop() == hr.drop(dropped_to=None)


def test_a_submodule_can_be_imported_from_the_package_first() -> None:
    program = "from headrace import failpoints, errors, log"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne_log'"):
        _ = hr.opne_log


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("mean", "hr.avg(column)"),
        ("median", "hr.percentile(column, 0.5)"),
        ("nunique", "hr.count_distinct(column)"),
        ("std", "hr.stddev(column)"),
        ("opne_log", "Did you mean 'open_log'?"),
        ("tumblin", "Did you mean 'tumbling'?"),
    ],
)
def test_a_name_of_other_libraries_names_ours(name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(hr, name)
    assert f"no attribute {name!r}" in str(error.value) and instead in str(error.value)


def test_the_names_that_are_suggested_exist() -> None:
    for instead in hr._OTHER_NAMES.values():
        assert instead.removeprefix("hr.").partition("(")[0] in dir(hr)
