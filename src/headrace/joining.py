"""How joins are written: which columns are equal, which are taken over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import COLUMNS_NAMED_MAX, InvalidArgument, nearest

__all__ = ["names_of", "pairs_of"]

Pairs = tuple[tuple[str, str], ...]


def pairs_of(
    on: str | Iterable[str] | Mapping[str, str],
    left: Sequence[str] | None,
    right: Sequence[str] | None,
    *,
    of: tuple[str, str],
) -> Pairs:
    """`on` as pairs of columns: a name, names, or a mapping from the left side's to the right side's. `left`, `right`:
    the columns there are, where that is known; `of`: what to call the sides."""
    given = {on: on} if isinstance(on, str) else dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    if not given or not all(isinstance(name, str) and name for pair in given.items() for name in pair):
        why = "must be a column, a tuple of columns, or a mapping {'user': 'id'} where they are called differently"
        raise InvalidArgument("on", on, why)
    for at, known in enumerate((left, right)):
        for pair in given.items():
            if known is not None and pair[at] not in known:
                why = f"{of[at]} has no column {pair[at]!r}.{nearest(pair[at], list(known)) or _listed(known)}"
                raise InvalidArgument("on", pair[at], why)
    return tuple(given.items())


def _listed(known: Sequence[str]) -> str:
    more = "" if len(known) <= COLUMNS_NAMED_MAX else ", …"
    return f" There are: {', '.join(known[:COLUMNS_NAMED_MAX])}{more}."


def names_of(
    columns: Iterable[str] | Mapping[str, str] | None, known: Sequence[str], *, of: str, but: Iterable[str] = ()
) -> Pairs:
    """Columns that are taken over, each with its name in the output: names, or a mapping to new ones; None: all but
    `but`."""
    if columns is None:
        left_out = {*but}
        return tuple((name, name) for name in known if name not in left_out)
    if isinstance(columns, str):
        columns = [columns]
    given = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    for name, new in given.items():
        if name not in known:
            raise InvalidArgument(
                "columns", name, f"{of} has no such column.{nearest(name, list(known)) or _listed(known)}"
            )
        if not isinstance(new, str) or not new:
            raise InvalidArgument("columns", new, "must be the column's name in the output")
    if len({*given.values()}) < len(given):
        raise InvalidArgument("columns", columns, "gives two columns the same name")
    return tuple(given.items())
