"""Draws docs/pictures/demo.svg: the story as `headrace demo` really tells it, on a terminal. Starts Spark twice, as the
demo does; run it when the story has changed. Text and colours only: the picture asks no server for a font.

    python scripts/picture_of_demo.py [FILE with the output of an earlier run]"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "demo.svg"
COLUMNS = 108
SHOWN = tuple(f"{number}. " for number in range(2, 12))
"""The steps in the picture, by number: the first is mostly waiting, the last shows a path of one machine."""


def told() -> str:
    """What the demo prints to a terminal."""
    ours, theirs = pty.openpty()
    said = b""
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen([sys.executable, "-m", "headrace", "demo"], stdout=theirs, env=env) as demo:
        os.close(theirs)
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # how a terminal says that nobody writes any more
            pass
    os.close(ours)
    if demo.returncode:
        raise SystemExit(f"the demo ended with {demo.returncode}")
    return said.decode().replace("\r\n", "\n")


def drawn(text: str) -> str:
    steps = re.split(r"\n(?=\n\x1b\[1;36m\d+\. )", text)
    kept = [steps[0], *(step for step in steps[1:] if step.lstrip().removeprefix("\x1b[1;36m").startswith(SHOWN))]
    with tempfile.TemporaryFile("w") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi("$ headrace demo\n" + "\n".join(kept).rstrip()))
        form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        form = form.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
        return console.export_svg(
            title="headrace demo", theme=MONOKAI, code_format=form, unique_id="demo", font_aspect_ratio=0.6
        )


def main() -> None:
    picture = drawn(Path(sys.argv[1]).read_text("utf-8") if len(sys.argv) > 1 else told())
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(re.sub(r"\n\s*\n+", "\n", picture), "utf-8")
    print(f"{PICTURE}: {len(picture):,} bytes")


if __name__ == "__main__":
    main()
