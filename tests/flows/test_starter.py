"""What `headrace new` makes works as it is: its test passes, and it can be run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import app as apps
from headrace.cli import run
from tests.lending import jvm_of


@pytest.mark.timeout(240)
def test_the_starter_project(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test ends with the session stopped; the check takes the session that is there."""
    monkeypatch.chdir(tmp_path)
    assert run(["new", "shop"]) == 0
    environment = {**os.environ, **jvm_of(spark, "pytest")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    tested = subprocess.run(
        command, cwd="shop", env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout
    assert sorted(path.name for path in Path("shop", ".headrace").iterdir() if path.suffix == ".db") == ["log.db"]
    monkeypatch.setattr(apps, "overrides", {})
    monkeypatch.setitem(sys.modules, "app", None)  # put back as it was, afterwards
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run(["check", "shop/app.py", "--home", str(tmp_path / "home")]) == 0
