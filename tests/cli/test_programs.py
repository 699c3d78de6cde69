"""Programs that cannot be loaded: what is said, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell

PROGRAM = """
import headrace as hr
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
app = hr.App("shop")
{line}
"""


@pytest.mark.parametrize(
    "line",
    [
        "total = hr.sum(F.col('v'))",
        "twos = hr.count(where=F.expr('v = 2'))",
        "@F.udf('int')\ndef double(v): return 2 * v",
        "double = F.udf(lambda v: 2 * v, 'int')",
    ],
)
def test_what_needs_a_session_is_answered_with_what_needs_none(
    shell: Shell, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)  # that of other tests in this process
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    path = tmp_path / "needs_session.py"
    path.write_text(PROGRAM.format(line=line))
    done = shell("check", str(path))
    assert done.code == 1
    assert "hr.sum('v'), hr.sum('v * 2')" in done.err and "@F.udf(IntegerType())" in done.err
    assert line.splitlines()[0] in done.err, "the line of the program is shown"


def test_what_is_recommended_needs_no_session(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "needs_none.py"
    path.write_text(
        PROGRAM.format(
            line="hr.sum('v'), hr.sum('v * 2'), hr.count(where='v > 2')\n"
            "@F.udf(IntegerType())\ndef double(v): return 2 * v\nraise SystemError('so far')"
        )
    )
    assert "SystemError: so far" in shell("check", str(path)).err


def test_another_assertion_stays_what_it_is(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "asserts.py"
    path.write_text(PROGRAM.format(line="assert app.name == 'else', 'another app'"))
    assert "cannot be loaded: AssertionError: another app" in shell("check", str(path)).err


def test_a_program_that_would_take_the_place_of_a_module_of_python(shell: Shell, tmp_path: Path) -> None:
    """Other libraries would import it: `site`, `queue`."""
    path = tmp_path / "queue.py"
    path.write_text("import headrace as hr\napp = hr.App('shop')\n")
    done = shell("check", str(path))
    assert done.code == 2 and "named like Python's module 'queue'" in done.err and "rename the file" in done.err
