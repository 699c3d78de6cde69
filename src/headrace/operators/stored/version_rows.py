"""Versions as rows of an operator's state, and as records of the topic that they come from. Owns the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.operators.joins.changelog import CHANGE, without_marks
from headrace.operators.result_rows import column
from headrace.operators.stored.versions import Version
from headrace.views.keyed import Column, TableSpec, Writes
from headrace.views.values import INSTANT, us_column

__all__ = ["EVERY", "VERSIONS", "VersionRows"]

TEXT, VERSIONS, DELETED = "text", "versions", "/deleted"
PLACE = (Column("/arrived_at", "timestamp"), Column("/partition", "int"), Column("/offset", "bigint"))
EVERY = pa.table({"/one": pa.array([1], pa.int32())}).select([])
"""The prefix of all rows."""


@dataclass(frozen=True)
class VersionRows:
    """`key`: the columns that name what has versions."""

    key: tuple[str, ...]

    @property
    def spec(self) -> TableSpec:
        columns = (Column(TEXT, "string"), Column(DELETED, "boolean"))
        return TableSpec(VERSIONS, (*(Column(name, "string") for name in self.key), *PLACE), columns)

    def read(self, rows: pa.Table) -> list[Version]:
        """Of rows of the state."""
        keys = zip(*(column(rows, name).to_pylist() for name in self.key), strict=True)
        order = [us_column(rows[PLACE[0].name]).tolist(), *(rows[each.name].to_pylist() for each in PLACE[1:])]
        texts = [
            None if deleted else text
            for deleted, text in zip(rows[DELETED].to_pylist(), rows[TEXT].to_pylist(), strict=True)
        ]
        return [
            Version(key, place, text) for key, place, text in zip(keys, zip(*order, strict=True), texts, strict=True)
        ]

    def of_records(self, records: pa.Table) -> list[Version]:
        """Of records that have a key."""
        records = without_marks(records)
        valid = [column(records, name).is_valid() for name in self.key]
        for each in valid:
            records = records.filter(each) if not pc.all(each).as_py() else records
        keys = zip(*(records[name].to_pylist() for name in self.key), strict=True)
        order = [us_column(records["_arrived_at"]).tolist()]
        order += [records[name].to_pylist() for name in ("_partition", "_offset")]
        deleted = pc.equal(records[CHANGE], "delete").to_pylist()
        return [
            Version(key, place, None if gone else text or "")
            for key, place, text, gone in zip(
                keys, zip(*order, strict=True), records[TEXT].to_pylist(), deleted, strict=True
            )
        ]

    def writes(self, new: Sequence[Version], forgotten: Sequence[Version]) -> Writes:
        """What a step writes that reads some versions, and forgets some."""
        gone = {version.at: version for version in forgotten}
        puts = [version for version in new if version.at not in gone]
        deletes = {VERSIONS: self._table([*gone.values()]).drop_columns([TEXT, DELETED])} if gone else {}
        return Writes(puts={VERSIONS: self._table(puts)} if puts else {}, deletes=deletes)

    def _table(self, versions: Sequence[Version]) -> pa.Table:
        keys = {name: pa.array([each.key[at] for each in versions], pa.string()) for at, name in enumerate(self.key)}
        return pa.table(
            {
                **keys,
                PLACE[0].name: pa.array([each.place[0] for each in versions], pa.int64()).cast(INSTANT),
                PLACE[1].name: pa.array([each.place[1] for each in versions], pa.int32()),
                PLACE[2].name: pa.array([each.place[2] for each in versions], pa.int64()),
                TEXT: pa.array([each.text for each in versions], pa.string()),
                DELETED: pa.array([each.text is None for each in versions], pa.bool_()),
            }
        )

    def letters(self, records: pa.Table, refused: Mapping[tuple[int, int], HeadraceError]) -> pa.Table | None:
        """The records that are refused, by partition and offset, with the reason."""
        if not refused:
            return None
        records = without_marks(records)
        places = list(zip(records["_partition"].to_pylist(), records["_offset"].to_pylist(), strict=True))
        chosen = [at for at, place in enumerate(places) if place in refused]
        errors = pa.array([str(refused[places[at]]) for at in chosen], pa.string())
        return records.take(pa.array(chosen, pa.int64())).append_column("/error", errors)
