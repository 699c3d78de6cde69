"""A view by its name, as programs and notebooks use it: rows, changes, ledger, status. Owns no rows: `views` does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from headrace.durations import Duration
from headrace.errors import HeadraceError, InvalidArgument, UnknownView
from headrace.flows import graph
from headrace.joined import Joinable, JoinedTables, join_tables, joinable_view
from headrace.operators.joins.meetings import How
from headrace.rendering import ROWS_MAX, html_table
from headrace.rows import to_rows
from headrace.storage.reserve import to_free_space
from headrace.views.contract import Emit
from headrace.views.reading import schema_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from headrace.app import App
    from headrace.flows.flow import DataFrame
    from headrace.notebook import Live
    from headrace.views.reading import ViewStatus, Watch
    from headrace.why import Why


class View:
    """A view by its name: its rows, changes, ledger and status."""

    def __init__(self, app: App, name: str) -> None:
        self.app, self.name = app, name

    def __repr__(self) -> str:
        return f"<view {self.name!r} of {self.app!r}>"

    def _repr_html_(self) -> str:
        """For notebooks: some of its rows."""
        from headrace.notebook import view_table

        try:
            with self._known():
                return view_table(self.app.views, self.name)
        except HeadraceError as error:  # not run yet, dropped: a notebook shows that, not a traceback
            return html_table(f"view {self.name}", (), (), str(error))

    def to_arrow(self) -> pa.Table:
        """All rows, typed, sorted by window and group."""
        return self._rows()

    def to_pandas(self) -> pd.DataFrame:
        """All rows, for pandas."""
        return self._rows().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows, for polars, which must be installed."""
        import polars

        return polars.DataFrame(self._rows())

    def to_spark(self) -> DataFrame:
        """All rows, as a DataFrame of the app's session."""
        return self.app.running.spark.createDataFrame(self._rows())

    def arrow(self) -> pa.Table:
        """The same as `to_arrow()`, for notebooks."""
        return self.to_arrow()

    def df(self) -> DataFrame:
        """The same as `to_spark()`, for notebooks: a `df` is Spark's here, as everywhere in headrace."""
        return self.to_spark()

    def live(self, rows: int = ROWS_MAX) -> Live:
        """In a notebook: a table of this many rows in the cell's output. It is drawn again when the view changes, while
        you run other cells. Ends with `stop()`, with `app.stop()`, or when the cell is run again. `view.live().wait()`
        keeps the cell busy until the kernel is interrupted."""
        from headrace.notebook import Live, view_table

        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise InvalidArgument("rows", rows, "must be a whole number, 1 or more")
        lives, views, name = self.app._lives, self.app.views, self.name
        if name in lives:
            lives.pop(name).stop()
        with self._known():  # its thread asks the views alone: an app that closes waits for it
            made = Live(
                name, lambda note: view_table(views, name, rows, note), lambda: views.watch(name, snapshot=False)
            )
        lives[name] = made
        return made

    def drop(self) -> None:
        """Deletes the view, its rows, its ledger and its offsets. The next run computes it again from the log. Refused
        while it runs."""
        with to_free_space(self.app.home):
            self.app.running.drop(self.name)

    def get(self, **columns: Any) -> dict[str, Any] | None:
        """The one row whose columns have these values; None if there is none."""
        found = self._rows(columns)
        if found.num_rows > 1:
            raise InvalidArgument(
                "columns", columns, f"{found.num_rows} rows of view {self.name!r} have these: name more"
            )
        return to_rows(found.combine_chunks().to_batches()[0])[0] if found.num_rows else None

    def changes(
        self,
        emit: Emit = "updates",
        *,
        start: Literal["earliest", "latest"] = "earliest",
        timeout: Duration | None = None,
    ) -> Watch:
        """The view's changes as they are committed, each a dict: `op` ('+' for a new row, '-' for the row it replaces
        or removes), the row, and `_position`, the number of the commit. `start`: "earliest" begins with the rows as
        they are, "latest" with the next change. `emit="final"` gives each result once, when its window is final, and
        then only corrections. Ends when there was no change for `timeout`; without it, never. Before the app's first
        run it waits for that run."""
        if start not in ("earliest", "latest"):
            raise InvalidArgument(
                "start",
                start,
                "must be 'earliest' (the rows as they are, then changes) or 'latest' (changes only): old changes are "
                "not kept. A flow that ends with .to_topic(…) keeps them all",
            )
        snapshot, ours = start == "earliest", self.name in self.app.flows
        return self.app.views.watch(self.name, snapshot=snapshot, emit=emit, timeout=timeout, wait=ours)

    def _rows(self, where: Mapping[str, Any] | None = None) -> pa.Table:
        """Before the app's first run there are none; their types are what Spark says of the flow."""
        try:
            return self.app.views.to_arrow(self.name, where)
        except UnknownView:
            self.app._check_open()  # a temporary home goes when its app is closed
            spec = self.app.running.spec(self.name)
            if spec is None:
                raise
            return schema_of(spec.columns).empty_table()

    @contextlib.contextmanager
    def _known(self) -> Iterator[None]:
        try:
            yield
        except UnknownView as error:
            if self.name in self.app.flows:
                made = "app.drain(), or headrace run APP.py, makes its views."
                why = f"view {self.name!r}: its app was not run yet. {made}"
                raise UnknownView(view=self.name, known=error.known, why=why) from None
            raise

    def why(self, *key: Any) -> Why:
        """Where a row comes from: the records that it was made of, and what it waits for if it is open. `key`: of
        joined rows their `_id`; of a table its key; of windows the window's start, then the groups."""
        from headrace.why import why

        with self._known():
            return why(self.app.views, self.app.log, self.name, *key)

    def as_of(self, time: datetime | str) -> pa.Table:
        """The rows that were there at that time, by arrival; for a view of joined tables with `history="versions"`."""
        from headrace.views.past import rows_at

        with self._known():
            asked = rows_at(self.app.views.flow(self.name), time)
            return self.app.views.query(asked.sql, asked.values)

    # -- joining ---------------------------------------------------------------------------------------

    def join(
        self,
        other: View,
        on: str | Iterable[str] | Mapping[str, str],
        *,
        how: How = "inner",
        suffix: str = "_right",
    ) -> JoinedTables:
        """The rows of two tables or views, joined, as they change. `on`: columns that are equal, `{"author": "id"}` if
        they are called otherwise in the other. `how`: "inner", "left", "right" or "full". `suffix`: for columns of the
        other whose names are taken."""
        return join_tables(self, other, on, how, suffix)

    def _joinable(self) -> Joinable:
        table = self.app._tables.get(self.name)
        if table is not None and table is not self:
            return table._joinable()
        flow = self.app._flow(self.name)
        return joinable_view(flow, graph.Changes(flow, self.app._feed(self.name, "updates")))

    def ledger(self) -> pa.Table:
        """The ledger: for each window, how many records were on time, corrected, dropped and untimed."""
        with self._known():
            return self.app.views.ledger(self.name)

    def status(self) -> ViewStatus:
        """How far the view is: rows, commits, frontier, position, and the process that makes it."""
        with self._known():
            return self.app.views.status(self.name)
