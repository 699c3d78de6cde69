"""Which of an aggregation's changes go out: to a topic, or to flows over the view. Owns their choice and order; what is
said of a row is `views.changes`. Pure: a step says what changed, and the state before it what was there.

"updates": every result that changed. "final": those of windows that were final before, and all results of the windows
that this step is the first to call final."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.aggregate import OP, Aggregation, Bounds
from headrace.operators.contract import Step
from headrace.operators.result_rows import aligned, column, differ, in_order, together
from headrace.views.contract import WINDOW, Emit
from headrace.views.keyed import State
from headrace.views.values import us_column

__all__ = ["closing", "comes_in", "emitted", "final_before", "without_same"]

COMES = pa.scalar("+")
Tell = Callable[[pa.Table], pa.Table]


def emitted(
    operator: Aggregation, step: Step, state: State, emit: Emit, now: Bounds, before: Bounds, tell: Tell
) -> pa.Table:
    """The step's changes, as `tell` tells of rows."""
    assert step.changes is not None, "who tells of changes asks for them"
    changes = step.changes
    if emit == "updates":
        return without_same(tell(changes))
    told = [without_same(tell(final_before(changes, before))), tell(closing(operator, step, state, now, before))]
    return together(told)


def final_before(changes: pa.Table, before: Bounds) -> pa.Table:
    """Changes of windows that were final before this step."""
    if before.final_us is None:
        return changes.slice(0, 0)
    return changes.filter(pa.array(us_column(changes[WINDOW[1]]) <= before.final_us))


def closing(operator: Aggregation, step: Step, state: State, now: Bounds, before: Bounds) -> pa.Table:
    """All rows of the windows that are final now, and were not before, as if they came."""
    assert step.changes is not None
    if now.final_us is None or (before.final_us is not None and now.final_us <= before.final_us):
        return step.changes.slice(0, 0)
    table, names = operator.rows.table, operator.rows.key_names
    after_us = None if before.final_us is None else operator.row_time(before.final_us)
    there = state.due(table, operator.row_time(now.final_us), after_us=after_us).select(operator.told)
    changes = step.changes.drop_columns([OP])
    there = there.filter(pa.array(aligned(there, changes, names) < 0))
    come = changes.filter(pa.array(comes_in(step.changes) & _between(changes, before.final_us, now.final_us)))
    rows = together([there, come])
    rows = in_order(rows, operator.view.key)
    return rows.add_column(0, OP, pa.repeat("+", rows.num_rows))


def comes_in(changes: pa.Table) -> npt.NDArray[np.bool_]:
    """Which of the changes are rows that come."""
    return np.asarray(pc.equal(column(changes, OP), COMES))


def _between(rows: pa.Table, after_us: int | None, upto_us: int) -> npt.NDArray[np.bool_]:
    ends = us_column(rows[WINDOW[1]])
    return (ends <= upto_us) & (True if after_us is None else ends > after_us)


def without_same(changes: pa.Table) -> pa.Table:
    """Without rows that went and came the same: what changed of them is not told."""
    if changes.num_rows < 2:
        return changes
    op, *names = changes.column_names
    comes = np.asarray(pc.equal(column(changes, op), COMES))
    first = np.flatnonzero(~comes[:-1] & comes[1:])
    rows = changes.select(names)
    same = first[~differ(rows.take(pa.array(first)), rows.take(pa.array(first + 1)))]
    if not len(same):
        return changes
    kept = np.ones(changes.num_rows, np.bool_)
    kept[same] = kept[same + 1] = False
    return changes.filter(pa.array(kept))
