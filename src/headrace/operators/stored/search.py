"""Records with the stored queries that find them: `stream.search(queries, text=[…])`. Owns the versions of queries, and
for which records each of them counts. Which queries find a record is `headrace.search`'s.

A version of a query counts for the records that arrived after it, until its query is put again or removed: so what is
found is a function of the two logs, and no record is found by a query that was not there yet. Queries are read to their
end before the records, so a step has all versions that it needs. A version that ended is kept as long as a record may
come that arrived before its end.

What this remembers between steps is an index of the versions of the state. A step says of which queries it writes
versions, and the next one reads these again: so a step that is made again, or never committed, does no harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidArgument, UnknownColumn
from headrace.operators.contract import Input, InputTimes, Kernel, Output, Step, Timer
from headrace.operators.joins.rows import FINAL_AT, ID, gone_and_come
from headrace.operators.records import OP, columns_of
from headrace.operators.stored.version_rows import EVERY, VERSIONS, VersionRows
from headrace.operators.stored.versions import StoredQueries
from headrace.search.batch import Batch
from headrace.search.fields import fields_of
from headrace.search.highlight import Highlighter
from headrace.search.index import Hits
from headrace.views.contract import LedgerRow
from headrace.views.keyed import Column, State, TableSpec
from headrace.views.values import INSTANT, us_column

__all__ = ["FACTS", "QUERIES", "Search"]

I64 = npt.NDArray[np.int64]
FACTS, QUERIES = "facts", "queries"
QUERY, VERSION, HIGHLIGHTS = "query", "version", "highlights"
ROWS = 8_192
"""So many records are looked at at a time."""


@dataclass(frozen=True)
class Search:
    """`facts`: the columns of the records. `queries`: those of the stored queries: `tenant`, `query`, `text`. `text`:
    the columns that are searched for words. `called`: the topic of the queries. `tenant`: the column of both that says
    whose they are."""

    facts: pa.Schema
    queries: pa.Schema
    text: tuple[str, ...]
    time: str | None
    called: str = "queries"
    tenant: str | None = None
    as_of_us: int | None = None

    def __post_init__(self) -> None:
        known = self.facts.names
        for name in (*self.text, *([] if self.tenant is None else [self.tenant])):
            if name not in known:
                raise UnknownColumn("search", name, known)
            if not (pa.types.is_string(kind := self.facts.field(name).type) or pa.types.is_large_string(kind)):
                why = f"is {kind}, and must be a string: cast it, in .transform(…)"
                raise InvalidArgument("tenant" if name == self.tenant else "text", name, why)
        for name in (QUERY, VERSION, HIGHLIGHTS):
            if name in {each.lower() for each in known}:
                why = "search(…) adds a column of this name. Rename the records' own, in .transform(…)"
                raise InvalidArgument("column", name, why)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Input, ...]:
        by = () if self.tenant is None else (self.tenant,)
        return (
            Input(FACTS, columns_of(self.facts), by, changes=True),
            Input(QUERIES, columns_of(self.queries), by, changes=True, first=True),
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self._rows_of_versions.spec,)

    @property
    def output(self) -> Output:
        own = (Column(QUERY, "string"), Column(VERSION, "string"))
        return Output(None, self.time, FINAL_AT, (*own, *columns_of(self.facts), Column(HIGHLIGHTS, "string")), (ID,))

    @property
    def timers(self) -> tuple[Timer, ...]:
        return ()

    def kernel(self, input: str) -> Kernel | None:  # noqa: ARG002
        return None

    def ahead(self, times: Mapping[str, InputTimes]) -> InputTimes:
        """Records go on as they came."""
        return times[FACTS]

    def reset(self) -> None:
        self.__dict__.pop("_stored", None)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_stored", "_fields")}

    @property
    def _key(self) -> tuple[str, ...]:
        return (QUERY,) if self.tenant is None else (self.tenant, QUERY)

    @property
    def _rows_of_versions(self) -> VersionRows:
        return VersionRows(self._key)

    # -- a step ----------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, pa.Table],
        state: State,
        times: Mapping[str, InputTimes],
        *,
        changes: bool,  # noqa: ARG002 (what goes on is what the step is for)
    ) -> Step:
        stored = self._remembered(state)
        new = self._rows_of_versions.of_records(batch[QUERIES]) if QUERIES in batch else []
        refused = stored.add(new)
        gone, come = gone_and_come(batch[FACTS]) if FACTS in batch else (self._none, self._none)
        made = pa.concat_tables([self._found("-", gone, stored), self._found("+", come, stored)])
        deleted = stored.forget(self._needed_from_us(times))
        on_time = come.num_rows - gone.num_rows
        return Step(
            self._rows_of_versions.writes(new, deleted),
            made,
            (LedgerRow(None, None, on_time=on_time),) if on_time else (),
            refused=self._rows_of_versions.letters(batch[QUERIES], refused) if refused else None,
        )

    @cached_property
    def _none(self) -> pa.Table:
        return self.facts.empty_table()

    def _remembered(self, state: State) -> StoredQueries:
        """The versions of the state, in an index."""
        known: StoredQueries | None = self.__dict__.get("_stored")
        if known is None:
            known = StoredQueries(fields_of(self.facts, self.text), self.as_of_us, self.called)
            known.add(self._rows_of_versions.read(state.scan(VERSIONS, EVERY)))
            self.__dict__["_stored"] = known
        elif touched := known.touched():
            keys = [pa.array([key[at] for key in touched], pa.string()) for at in range(len(self._key))]
            rows = state.scan(VERSIONS, pa.table(keys, names=list(self._key)))
            known.replace(touched, self._rows_of_versions.read(rows))
        known.begin()
        return known

    def _needed_from_us(self, times: Mapping[str, InputTimes]) -> int | None:
        """Records still to come arrived then or later; None: that is not known."""
        come_us, reach_us = times[FACTS].arrived_us, times[QUERIES].reach_us
        return None if come_us is None or reach_us is None else min(come_us, reach_us)

    # -- what comes of it ------------------------------------------------------------------------------

    @cached_property
    def _schema(self) -> pa.Schema:
        head = [(OP, pa.string()), (QUERY, pa.string()), (VERSION, pa.string())]
        tail = [(HIGHLIGHTS, pa.string()), (ID, pa.string()), (FINAL_AT, INSTANT), ("_corrections", pa.int64())]
        return pa.schema([*head, *self.facts, *tail, ("_updated_at", INSTANT), ("_progress", INSTANT)])

    def _found(self, op: str, facts: pa.Table, stored: StoredQueries) -> pa.Table:
        made = [self._schema.empty_table()]
        for begin in range(0, facts.num_rows, ROWS):
            some = facts.slice(begin, ROWS).combine_chunks()
            batch = Batch(some, stored.index.fields)
            whose = None if self.tenant is None else some[self.tenant].to_pylist()
            found = stored.index.hits(batch, us_column(some["_arrived_at"]), whose)
            if len(found.rows):
                made.append(self._rows(op, some, found, stored))
        return pa.concat_tables(made)

    def _rows(self, op: str, facts: pa.Table, found: Hits, stored: StoredQueries) -> pa.Table:
        both = zip(found.rows.tolist(), found.slots.tolist(), strict=True)
        ordered = sorted(both, key=lambda hit: (hit[0], stored.versions[hit[1]].place))
        slots = [slot for _, slot in ordered]
        rows = facts.take(pa.array([row for row, _ in ordered], pa.int64()))
        versions = [stored.versions[slot] for slot in slots]
        marked = self._marked(ordered, rows, stored)
        ids = pa.array([f"|{each.version_id(stored.topic)}" for each in versions], pa.string())
        made = {
            OP: pa.repeat(op, len(slots)),
            QUERY: pa.array([each.key[-1] for each in versions], pa.string()),
            VERSION: pa.array([each.name for each in versions], pa.string()),
            HIGHLIGHTS: pa.array(marked, pa.string()),
            ID: pc.binary_join_element_wise(rows[ID].cast(pa.string()), ids, ""),
            FINAL_AT: rows["_arrived_at"],
            "_corrections": pa.array(np.zeros(len(slots), np.int64)),
            "_updated_at": rows["_arrived_at"],
        }
        columns = [made[name] if name in made else rows[name] for name in self._schema.names]
        return pa.table(columns, schema=self._schema)

    def _marked(self, ordered: list[tuple[int, int]], rows: pa.Table, stored: StoredQueries) -> list[str]:
        """Where each row has what its query asked for. `ordered`: place of the record, and slot, of each."""
        texts = {name: rows[name].to_pylist() for name in self.text}
        out, place, highlighter = [], -1, Highlighter({})
        for at, (row, slot) in enumerate(ordered):
            if row != place:
                place, highlighter = row, Highlighter({name: some[at] for name, some in texts.items()})
            out.append(highlighter.of(stored.index.asks(slot)))
        return out
