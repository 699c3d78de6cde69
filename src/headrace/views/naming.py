"""Which names a view and its columns may have, in any store: so that a program means the same in each. Stores fold the
case of names, and have columns of their own."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import InvalidArgument, InvalidName
from headrace.names import check_name
from headrace.views.contract import COUNTS_FROM, ON_TIME_FROM, ROWS, TAIL, VERSIONS, WINDOW, ViewSpec

__all__ = ["NUMBER", "check_names"]

NUMBER = "/number"
"""Of a row that a transform made, among those of its result."""
COLUMNS_MAX = 1_990
"""SQLite's own limit is 2,000."""


def check_names(spec: ViewSpec, columns: int) -> None:
    """Refuses names that SQLite could not hold apart: it does not tell 'User' from 'user'. `columns`: of its table."""
    base, _, version = spec.name.partition("/")
    check_name(base if version in VERSIONS else spec.name, argument="view", system=True)
    if spec.public and spec.name.lower().startswith(("_", "sqlite_")):
        why = "names that begin with '_' or 'sqlite_' are the store's own tables: choose another"
        raise InvalidName("view", spec.name, why)
    if columns > COLUMNS_MAX:
        why = f"its state needs {columns} columns, and {COLUMNS_MAX} fit into a table: make several views"
        raise InvalidArgument("agg", spec.name, why)
    own = (NUMBER, *TAIL, *(WINDOW if spec.window_us else ()), *(() if spec.public else ("op", "_progress")))
    own += (COUNTS_FROM, ON_TIME_FROM) if spec.windows == "sliding" else ()
    results = {result.name for result in spec.results if result.name not in {slot.name for slot in spec.slots}}
    slots = [slot.name for slot in spec.slots if slot.name != ROWS]
    users = [*(("group_by", group.name) for group in spec.groups), *(("agg", name) for name in slots)]
    _refuse_alike(spec.name, own, [*users, *(("agg", name) for name in sorted(results))])
    groups = [("group_by", group.name) for group in spec.groups]
    _refuse_alike(spec.name, own, [*groups, *(("transform", column.name) for column in spec.shaped or ())])


def _refuse_alike(view: str, own: Sequence[str], users: Sequence[tuple[str, str]]) -> None:
    taken = {name.lower(): "headrace's own" for name in own}
    for argument, name in users:
        other = taken.setdefault(name.lower(), f"{argument} {name!r}")
        if other != f"{argument} {name!r}" or "\0" in name:
            why = f"view {view!r} cannot have a column of this name: it is {other}. Rename it in a transform"
            raise InvalidArgument(argument, name, why)
