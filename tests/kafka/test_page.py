"""The page about Kafka is executed where there is a broker, and so are the commands that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


def test_its_program_runs(broker: str) -> None:
    programs = re.findall(r"^```python broker\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(programs) == 1
    exec(compile(programs[0], str(PAGE), "exec"), {"broker": broker})


def test_commands_take_the_log_from_an_option(broker: str, tmp_path: Path) -> None:
    def headrace(*arguments: str, typed: str = "") -> str:
        command = [sys.executable, "-m", "headrace", "--log", f"kafka://{broker}?prefix=cli.", *arguments]
        return subprocess.run(command, cwd=tmp_path, input=typed, capture_output=True, text=True, check=True).stdout

    headrace("topics", "create", "clicks", "user string, ms int", "--key", "user")
    headrace("produce", "clicks", typed='{"user": "ann", "ms": 7}\n')
    assert json.loads(headrace("consume", "clicks", "--max", "1"))["ms"] == 7
    assert [json.loads(line)["topic"] for line in headrace("topics", "list").splitlines()] == ["clicks"]
    assert not list(tmp_path.iterdir())  # nothing is in a home
