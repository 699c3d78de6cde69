"""What workers are forked from, and what they note of functions that fail."""

from __future__ import annotations

import importlib
import sys
import traceback
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pandas as pd
import pytest

pytest.importorskip("pyspark")

from headrace.flows.spark.daemon import forget_archives, located
from headrace.flows.spark.session import LOCATED


def test_a_worker_reads_no_archive_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And finds in it what is imported later."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archived/__init__.py", "")
        file.writestr("archived/later.py", "found = True")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("archived")
    assert any(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
    forget_archives()
    assert not any(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
    assert importlib.import_module("archived.later").found


def noted(error: BaseException) -> int:
    found = LOCATED.search("".join(traceback.format_exception(error)))
    assert found is not None
    return int(found[1])


def test_a_function_that_fails_notes_at_which_row() -> None:
    function = located(lambda n: 100 // n, many=False)
    assert [function(n) for n in (1, 2, 5)] == [100, 50, 20]
    with pytest.raises(ZeroDivisionError) as caught:
        function(0)
    assert noted(caught.value) == 3


def test_a_function_of_columns_that_fails_is_asked_for_which_row() -> None:
    def inverse(n: pd.Series, by: pd.Series) -> pd.Series:
        return pd.Series([each // other for each, other in zip(n, by, strict=True)])

    function = located(inverse, many=True)
    assert list(function(pd.Series([6, 8]), by=pd.Series([2, 4]))) == [3, 2]
    with pytest.raises(ZeroDivisionError) as caught:
        function(pd.Series(range(9)), by=pd.Series([1, 1, 1, 1, 1, 0, 1, 0, 1]))
    assert noted(caught.value) == 2 + 5


def test_spark_takes_the_note_for_its_own_and_leaves_it_out_of_tracebacks() -> None:
    from pyspark.util import try_simplify_traceback

    with pytest.raises(ZeroDivisionError) as caught:
        located(lambda n: 100 // n, many=False)(0)
    assert caught.tb.tb_next is not None
    (told,) = traceback.format_tb(try_simplify_traceback(caught.tb.tb_next))  # what is behind this line
    assert "in <lambda>" in told
