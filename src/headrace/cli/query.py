"""`headrace query`. Owns what a parameter typed on the command line stands for; `views.reading` owns what SQL may do.
Streams: the rows of a large result are printed while the rest is read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import complete_view, format_option, home_option, opened, opened_views
from headrace.cli.output import chosen, print_rows

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from headrace.position import Position
    from headrace.views.reading import SqlViews

LATEST = "latest"
BESIDE = ("_partials", "_history")
"""What a pattern's view, and a table with a history, have beside them."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# As SQLite writes them, so that a text column equals them too: 007 and 1e3 stay text.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_BROKEN = re.compile(r"-?(0|[1-9][0-9]{0,6})\.(0|[0-9]{0,6}[1-9])")


@click.command()
@click.argument("sql", metavar="SQL|VIEW", shell_complete=complete_view)
@click.option("--param", "params", multiple=True, metavar="V", help="The value of the next ? in the SQL; repeated.")
@click.option(
    "--wait-for",
    metavar="POSITION",
    help="First wait until the views have read up to there; latest: all that is in the log now.",
)
@click.option("--timeout", metavar="DURATION", help="With --wait-for: how long; default: 5 seconds.")
@click.option("--as-of", metavar="WHEN", help="As it was at a time with zone, or at a position; where history is kept.")
@format_option
@home_option
def query(
    sql: str,
    params: tuple[str, ...],
    wait_for: str | None,
    timeout: str | None,
    as_of: str | None,
    format_: str | None,
) -> None:
    """Read views with SQL (SQLite's, or Postgres' with --views), or a whole view by its name. Nothing can be written.

    --param binds a value, which is never part of the SQL: a number as a number, a time with a zone
    (2026-01-31T12:00:00Z) as a time, anything else as text.

    \b
    Example:
      headrace query views_per_minute
      headrace query "select page, sum(views) from views_per_minute where page <> ? group by page" --param /health
      headrace query prices --as-of 2026-01-31T12:00:00Z
    """
    name = _NAME.fullmatch(sql) is not None
    if name and params:
        raise click.UsageError("--param is for SQL with ?; a view's name takes none.")
    if timeout is not None and wait_for is None and as_of is None:
        raise click.UsageError("--timeout is for --wait-for, and for a position in --as-of.")
    kind = chosen(format_)
    views = opened_views()
    time = None if as_of is None else _time_of(as_of, views, timeout)
    if wait_for is not None:
        from headrace.position import Position

        limit, position = timeout or "5 seconds", None if wait_for == LATEST else Position.parse(wait_for)
        views.wait_for_any(timeout=limit)  # the app may be starting
        views.wait_for(position or _latest(views), timeout=limit)
    if name and (time is not None or _is_beside(sql, views.names())):
        name, sql = False, f'SELECT * FROM "{sql}"'
    if name:
        _whole(views, sql, kind)
    elif kind == "arrow":
        from headrace.cli.batches import BatchPrinter

        table = views.query(sql, _values(params), as_of=time)
        BatchPrinter(table.schema, kind).print_all(table.to_batches())
    else:
        names, chunks = views.rows(sql, _values(params), as_of=time)
        print_rows((dict(zip(names, row, strict=True)) for chunk in chunks for row in chunk), names, kind)


def _time_of(as_of: str, views: SqlViews, timeout: str | None) -> datetime:
    """A position is the time when its last record arrived; the views must have read it."""
    from headrace.position import Position
    from headrace.views.past import arrival_of, parse_as_of

    time = parse_as_of(as_of)
    if isinstance(time, Position):
        views.wait_for(time, timeout=timeout or "5 seconds")
        with opened() as log:
            return arrival_of(log, time)
    return time


def _is_beside(name: str, views: Collection[str]) -> bool:
    """Whether a name may be that of rows which SQL finds beside a view."""
    return name not in views and any(name.endswith(end) and name.removesuffix(end) in views for end in BESIDE)


def _whole(views: SqlViews, view: str, kind: str) -> None:
    from headrace.cli.batches import BatchPrinter
    from headrace.rows import to_rows

    schema, batches = views.batches(view)
    if kind in ("json", "arrow"):
        BatchPrinter(schema, kind).print_all(batches)
    else:
        print_rows((row for batch in batches for row in to_rows(batch)), schema.names, kind)


def _latest(views: SqlViews) -> Position:
    from headrace.position import Position

    found = Position()
    sources = {topic for spec in views.specs() for topic in spec.sources}
    with opened() as log:
        for topic in log.topics():
            if topic.name in sources:
                nexts = {number: at.next for number, at in topic.ends().items()}
                found |= Position.of(topic.name, topic.describe().topic_id, nexts)
    return found


def _values(params: tuple[str, ...]) -> list[Any]:
    return [value_of(text) for text in params]


def value_of(text: str) -> Any:
    """What a parameter stands for. SQLite compares a number with a text column as text, so a number is safe there."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if _BROKEN.fullmatch(text):
        return float(text)
    from headrace.durations import from_us, instant_us
    from headrace.errors import InvalidArgument

    try:
        return from_us(instant_us(text, argument="param"))
    except InvalidArgument:
        return text
