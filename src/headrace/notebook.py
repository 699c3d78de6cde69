"""Views in notebooks: a view's rows as a table, and a table that follows its view while other cells run. Owns a thread
for each of these. IPython is not imported before it is there already; knows neither apps nor flows."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.durations import Duration, duration_us
from headrace.errors import HeadraceError, InvalidArgument, WatchLost
from headrace.rendering import ROWS_MAX, html_table
from headrace.views.reading import quoted

if TYPE_CHECKING:
    from headrace.views.reading import SqlViews, Watch

__all__ = ["Live", "view_table"]

DRAW_SECONDS = 0.25
"""A view that changes more often is drawn so often."""
LOOK_SECONDS = 0.1
"""How soon a table sees that it was told to stop."""


def view_table(views: SqlViews, view: str, rows: int = ROWS_MAX, note: str = "") -> str:
    """The view's rows, in its order: of a windowed one the last, else the first."""
    spec, status = views.spec(view), views.status(view)
    windowed = spec.window_us is not None
    names = (*spec.key, *(column.name for column in spec.shaped or ()))
    order = ", ".join(quoted(name) + (" DESC" if windowed else "") for name in names) or "1"
    columns, chunks = views.rows(f"SELECT * FROM {quoted(view)} ORDER BY {order} LIMIT {rows}")
    found = [row for chunk in chunks for row in chunk]
    shown = found[::-1] if windowed else found
    part = f"the {'last' if windowed else 'first'} {len(found)} rows" if status.rows > len(found) else ""
    complete = "" if status.frontier is None else f", complete to {status.frontier:%Y-%m-%d %H:%M:%S}Z"
    caption = f"view {view}: {status.rows:,} {'row' if status.rows == 1 else 'rows'}{complete}"
    return html_table(caption, columns, shown, " · ".join(filter(None, (part, note))))


class Live:
    """A table in the output of the cell that made it, drawn again when its view changes, until `stop()`, `app.stop()`,
    or another live table of the view. The cell is done at once; `wait()` is for one that should wait."""

    def __init__(self, view: str, table: Callable[[str], str], watch: Callable[[], Watch]) -> None:
        display = _display(view)
        self.view, self._table, self._watch_again = view, table, watch
        self._over, self._ended = threading.Event(), threading.Event()  # a join that is interrupted forgets its thread
        self._watch = watch()
        self._output = display(self._bundle("live"), raw=True, display_id=True)
        threading.Thread(target=self._run, name=f"headrace-live-{view}", daemon=True).start()

    def __repr__(self) -> str:
        return f"<live view {self.view!r}, {'running' if self.running else 'stopped'}>"

    def _ipython_display_(self) -> None:
        """Nothing more: the table is there already."""

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def stop(self) -> None:
        """Draws the table for the last time."""
        self._over.set()
        self._ended.wait()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Until it is stopped, or for `timeout`; the kernel's interrupt stops it. True: it has stopped."""
        try:
            self._ended.wait(None if timeout is None else duration_us(timeout, argument="timeout") / 1e6)
        except KeyboardInterrupt:
            self.stop()
        return not self.running

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._ended.set()

    def _follow(self) -> None:
        note = "stopped"
        try:
            changed, drawn = True, 0.0  # something may have come since the cell drew it
            while not self._over.is_set():
                changed = self._changed() or changed
                if changed and time.monotonic() - drawn >= DRAW_SECONDS:
                    self._output.update(self._bundle("live"), raw=True)
                    changed, drawn = False, time.monotonic()
        except HeadraceError as error:
            note = f"stopped: {error}"
        finally:
            self._watch.close()
        with contextlib.suppress(HeadraceError):  # gone: the rows that were seen last stay
            self._output.update(self._bundle(note), raw=True)

    def _changed(self) -> bool:
        try:
            return self._watch.next_commit(LOOK_SECONDS) is not None
        except WatchLost:  # left behind by a laptop that slept, or made again by a cell that was run again
            self._watch.close()
            self._watch = self._watch_again()
            return True

    def _bundle(self, note: str) -> dict[str, str]:
        return {"text/html": self._table(note), "text/plain": f"<live view {self.view!r}>"}


def _display(view: str) -> Callable[..., Any]:
    """IPython's display, where there is a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if ipython is None or not hasattr(shell, "kernel"):
        raise InvalidArgument(
            "live",
            view,
            "is for notebooks (pip install 'headrace[notebook]'). In a program use view.changes(), in a shell "
            f"headrace watch {view}",
        )
    found: Callable[..., Any] = ipython.display.display
    return found
