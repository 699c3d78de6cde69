"""Is a view what it should be? The same query once more, as a batch over the log up to where the view is, into a store
of its own; then row by row and window by window. Owns the comparison; writes nothing to log or views."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.flows.loop import FlowLoop
from headrace.flows.query import FlowQuery
from headrace.views.contract import ViewSpec
from headrace.views.reading import LEDGER_COLUMNS, Views, open_views
from headrace.views.sqlite import SqliteViews

if TYPE_CHECKING:
    from headrace.log.embedded.log import EmbeddedLog

SHOWN = 100
"""So many differences of a view are told, the rest counted."""
UNROUNDED = 1e-9
"""Sums of doubles depend on their order this much, of the larger of the two."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`stored` is what the view has, `expected` what the log says; None where there is no such row."""

    view: str
    row: str
    column: str
    stored: Any
    expected: Any


@dataclass(slots=True)
class Audited:
    views: int = 0
    rows: int = 0
    found: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.found == 0


def audit(flows: list[FlowQuery], log: EmbeddedLog) -> Audited:
    """Recomputes every view that has been run."""
    out = Audited()
    real = open_views(log.home)
    for query in flows:
        flow = query.compiled.flow
        if flow.target is not None or flow.name not in real.names():
            continue
        (state,) = [state for state in real.states() if state.name == flow.name]
        with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder, SqliteViews(Path(folder)) as store:
            loop = FlowLoop(query, log=log, store=store, until=state)
            loop.begin()
            loop.drain()
            compare(out, real, open_views(folder), real.spec(flow.name))
    return out


def compare(out: Audited, real: Views, fresh: Views, spec: ViewSpec) -> None:
    """Notes in `out` where a view and its ledger differ from what they are in `fresh`. How far they were called final
    is not compared."""
    out.views += 1
    key = [*spec.key, *([] if spec.shaped is None else [ROW])]
    columns = [column.name for column in spec.columns if column.name not in (*key, "_status")]
    stored, expected = (_by_key(_numbered(views.to_arrow(spec.name).to_pylist(), spec), key) for views in (real, fresh))
    out.rows += len(expected)
    _differ(out, spec.name, "", stored, expected, columns)
    stored, expected = (_by_key(views.ledger(spec.name).to_pylist(), ["window_start"]) for views in (real, fresh))
    _differ(out, spec.name, "ledger ", stored, expected, LEDGER_COLUMNS[2:])


ROW = "/row"


def _numbered(rows: list[dict[str, Any]], spec: ViewSpec) -> list[dict[str, Any]]:
    """Of one result a transform may have made several rows: they are compared in order. Doubles decide last: they may
    differ in their last digits."""
    if spec.shaped is None:
        return rows
    names = [*spec.key, *(each.name for each in spec.shaped if each.type not in ("double", "float"))]
    names += [each.name for each in spec.shaped if each.type in ("double", "float")]
    seen: Counter[tuple[Any, ...]] = Counter()
    out = []
    for row in sorted(rows, key=lambda row: [str(row[name]) for name in names]):
        place = tuple(row[name] for name in spec.key)
        out.append({**row, ROW: seen[place]})
        seen[place] += 1
    return out


Rows = dict[tuple[Any, ...], dict[str, Any]]


def _by_key(rows: list[dict[str, Any]], key: list[str]) -> Rows:
    return {tuple(row[name] for name in key): row for row in rows}


def _differ(out: Audited, view: str, what: str, stored: Rows, expected: Rows, columns: list[str]) -> None:
    for key in sorted(stored.keys() | expected.keys(), key=str):
        left, right = stored.get(key), expected.get(key)
        name = what + (", ".join("null" if part is None else str(part) for part in key) or "the row")
        if left is None or right is None:
            _note(out, Difference(view, name, "", left and "there", right and "there"))
            continue
        for column in columns:
            if not _same(left[column], right[column]):
                _note(out, Difference(view, name, column, left[column], right[column]))


def _note(out: Audited, difference: Difference) -> None:
    out.found += 1
    if len(out.differences) < SHOWN:
        out.differences.append(difference)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=UNROUNDED, abs_tol=0.0) or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


__all__ = ["Audited", "Difference", "audit", "compare"]
