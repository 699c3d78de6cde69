"""What `headrace doctor --spark` asks of executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.cli.deployment import executors


def test_doctor_asks_the_executors(headrace_spark: Any, tmp_path: Path) -> None:
    sound = list(executors(headrace_spark, None, tmp_path, tmp_path))
    assert {each.state for each in sound} == {"ok"}
    assert sound[0].check == "executors" and [each.check.split()[-1] for each in sound[1:]] == ["clock", "versions"]
    views = "postgresql://u:canary@127.0.0.1:1/d"
    found = [each for each in executors(headrace_spark, None, tmp_path / "no", views) if each.state == "fail"]
    assert [each.found.split(": ")[0] for each in found] == ["127.0.0.1:1", str(tmp_path / "no")]
    assert "canary" not in str(found)
