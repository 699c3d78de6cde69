"""A table: a changelog and its rows. Owns the latest row of each key; `changelog` owns the order of changes, and
`table_history` the versions, where they are kept.

Without a history the latest row of a key is that of the last change by position. With one it is the version with the
largest valid time, and of several the last by position. A delete takes the row away. So rows are a function of the
changelog, in whatever order its partitions are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import format_duration
from headrace.errors import InvalidArgument
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.changelog import (
    CHANGE,
    POSITION,
    LatestRows,
    Replaced,
    changes_of,
    columns_of,
    keys_in,
    later_changes,
)
from headrace.operators.joins.table_history import OTHER_VERSION, OWN, VALID, History, valid_times, version_column
from headrace.operators.result_rows import CORRECTIONS, Pieces, aligned, column, joined_writes
from headrace.views.contract import RESULTS
from headrace.views.keyed import Column, State, TableSpec

__all__ = ["INPUT", "Kept", "TableRows"]

INPUT = "records"
OP = "op"
Kept = Literal["latest", "versions", "bitemporal"]


@dataclass(frozen=True)
class TableRows:
    """`schema`: the table's columns. `valid_from`: the column with a row's valid time; without one, and where it is
    null, arrival is. `history`: which versions are kept; `keep_us`: for how long after they were valid."""

    schema: pa.Schema
    key: tuple[str, ...]
    valid_from: str | None = None
    history: Kept = "latest"
    keep_us: int | None = None
    latest: LatestRows = field(init=False, repr=False, compare=False)
    versions: History | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._refuse_names()
        others = [name for name in self.schema.names if name not in self.key]
        key, values = columns_of(self.schema, self.key), columns_of(self.schema, others)
        valid = () if self.history == "latest" else (VALID,)
        latest = LatestRows(RESULTS, key, (*values, self.version, CORRECTIONS, *valid))
        object.__setattr__(self, "latest", latest)
        versions = None
        if self.history != "latest":
            plain = [each for each in values if each.name not in OWN]
            versions = History(key, plain, bitemporal=self.history == "bitemporal", keep_us=self.keep_us)
        object.__setattr__(self, "versions", versions)

    def _refuse_names(self) -> None:
        if self.history not in ("latest", "versions", "bitemporal"):
            raise InvalidArgument("history", self.history, "must be 'latest', 'versions' or 'bitemporal'")
        if self.keep_us is not None and self.history != "versions":
            why = "bounds a history of versions: leave it out, or make the table with history='versions'"
            raise InvalidArgument("keep", format_duration(self.keep_us), why)
        unknown = [name for name in (*self.key, self.valid_from) if name not in (None, *self.schema.names)]
        if not self.key or unknown:
            raise InvalidArgument("key", unknown or self.key, f"must be columns of the table: {self.schema.names}")
        own = {OP, CHANGE, OTHER_VERSION.name, CORRECTIONS.name, POSITION[0].name}
        own |= set() if self.history == "latest" else {*OWN}
        for name in self.schema.names:
            if name.lower() in own and not (name == self.valid_from == OWN[0] and name not in self.key):
                raise InvalidArgument("schema", name, "is a column that headrace adds to a table: choose another name")

    @property
    def version(self) -> Column:
        """Which record made a row."""
        return version_column(self.schema.names)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        columns = (*columns_of(self.schema, self.schema.names), Column(CHANGE, "string"))
        return (Input(INPUT, columns, self.key, first=True),)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        if self.versions is None:
            return self.latest.rows, self.latest.deletes
        return self.latest.rows, self.versions.spec, self.versions.deletes

    @property
    def output(self) -> Output:
        return Output(RESULTS, None, None)

    @property
    def timers(self) -> tuple[Timer, ...]:
        return ()

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        return times[INPUT]

    def reset(self) -> None:
        """It knows nothing between steps."""

    # -- one step --------------------------------------------------------------------------------------

    def step(
        self, batch: Mapping[str, pa.Table], state: State, times: Mapping[str, InputTimes], *, changes: bool
    ) -> Step:
        pieces, records = Pieces(), batch.get(INPUT)
        given = None if records is None or not records.num_rows else self._changes(records)
        replaced = None
        if self.versions is None:
            replaced = self.latest.fold(given, state, times[INPUT].reach_us, pieces)
        elif given is not None:
            replaced = self._fold_versions(self.versions, given, state, times[INPUT].reach_us, pieces)
        return Step(joined_writes(pieces, self.tables, state), self._changes_of(replaced) if changes else None)

    def _changes(self, records: pa.Table) -> pa.Table:
        found = changes_of(records, self.schema)
        place = [pc.cast(column(found, each.name), pa.string()) for each in POSITION[1:]]
        found = found.append_column(self.version.name, pc.binary_join_element_wise(*place, ":"))
        found = found.append_column(CORRECTIONS.name, pa.array(np.zeros(found.num_rows, np.int64)))
        if self.versions is None:
            return found
        return found.append_column(VALID.name, valid_times(found, self.valid_from))

    def _fold_versions(
        self, versions: History, given: pa.Table, state: State, reach_us: int | None, pieces: Pieces
    ) -> Replaced:
        keys = keys_in(given, self.key)
        rows = state.get(RESULTS, keys.rows)
        without = keys.rows.filter(pa.array(aligned(keys.rows, rows, self.key) < 0))
        deletes = versions.last_deletes(without, state)
        order = [each.name for each in (VALID, *POSITION)]
        replaced = later_changes(given, keys, rows, deletes, order)
        self.latest.write(replaced, pieces)
        versions.fold(given, keys, rows, deletes, state, pieces, versions.drop(reach_us, pieces))
        return replaced

    def _changes_of(self, replaced: Replaced | None) -> pa.Table:
        """What went and what came of each key."""
        hidden = {each.name for each in (VALID, *POSITION[1:])}
        names = [name for name in self.latest.rows.names if name not in hidden]
        if replaced is None:
            none = self.latest.schema.empty_table().select(names)
            return none.add_column(0, OP, pa.nulls(0, pa.string()))
        new = replaced.new.select(names)
        both = pa.concat_tables([replaced.old.select(names).cast(new.schema), new])
        number = np.concatenate((replaced.of, np.flatnonzero(replaced.upserts)))
        comes = np.repeat([0, 1], [replaced.old.num_rows, new.num_rows])
        order = np.lexsort((comes, number))
        return both.take(pa.array(order)).add_column(0, OP, pa.array(["-", "+"]).take(pa.array(comes[order])))
