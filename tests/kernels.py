"""A notebook in a real kernel, cell by cell, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

needs_kernel = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="needs a kernel: pip install 'headrace[notebook]'",
)
CELL_SECONDS_MAX = 120


class Shown(HTMLParser):
    """The texts of a table, and every tag and attribute it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


class Kernel:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._cells = {cell["id"]: cell for cell in client.nb.cells}

    def begun(self) -> list[str]:
        """The cells the notebook has."""
        return list(self._cells)

    def execute(self, cell: str) -> None:
        self._client.execute_cell(self._cells[cell], self._client.nb.cells.index(self._cells[cell]))

    def run(self, source: str, name: str = "more") -> str:
        """One more cell; what it printed."""
        from nbformat.v4 import new_code_cell

        self._cells[name] = new_code_cell(source, id=name)
        self._client.nb.cells.append(self._cells[name])
        done = self._client.execute_cell(self._cells[name], len(self._client.nb.cells) - 1)
        return "".join(each["text"] for each in done.outputs if each["output_type"] == "stream")

    def source(self, cell: str) -> str:
        return str(self._cells[cell]["source"])

    def html(self, cell: str) -> str:
        (found,) = [each["data"]["text/html"] for each in self._cells[cell].outputs if "data" in each]
        return str(found)

    def rows(self, cell: str) -> list[list[str]]:
        return [[text.strip() for text in row] for row in Shown(self.html(cell)).rows[1:]]

    def text(self, cell: str) -> str:
        outputs = self._cells[cell].outputs
        return "".join(each["text"] if "text" in each else each["data"]["text/plain"] for each in outputs)


@contextmanager
def kernel_of(notebook: str | None, folder: Path) -> Iterator[Kernel]:
    """A kernel that has run nothing yet of the notebook; whatever it leaves is in the folder."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionComplete

    class Client(NotebookClient):  # type: ignore[misc]
        async def _async_poll_output_msg(self, parent_msg_id: str, cell: Any, cell_index: int) -> None:
            """As front ends do it: an output is updated by its id, whichever cell was run last when that was sent."""
            while True:
                message = await self.kc.iopub_channel.get_msg(timeout=None)
                of_cell = message["parent_header"].get("msg_id") == parent_msg_id
                if of_cell or message["msg_type"] == "update_display_data":
                    try:
                        self.process_message(message, cell, cell_index)
                    except CellExecutionComplete:
                        return

    read = nbformat.v4.new_notebook() if notebook is None else nbformat.reads(notebook, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    client = Client(read, timeout=CELL_SECONDS_MAX, kernel_name="python3", resources=place)
    own = {name: str(folder) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "TMPDIR")}
    with client.setup_kernel(env={**os.environ, **own}):
        yield Kernel(client)
