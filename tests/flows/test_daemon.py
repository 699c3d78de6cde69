"""What workers are forked from."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

pytest.importorskip("pyspark")

from headrace.flows.daemon import forget_archives


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
