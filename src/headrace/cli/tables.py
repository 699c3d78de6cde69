"""`headrace tables …`: lists tables, shows one, and prints its rows as they were at a time. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import format_option, home_option, opened_if_any, opened_views, view_argument
from headrace.cli.output import chosen, note, print_one, print_rows
from headrace.errors import InvalidArgument, UnknownView
from headrace.views.standing import lag_of, sources_of

if TYPE_CHECKING:
    from headrace.views.contract import FlowSpec
    from headrace.views.reading import SqlViews

EMPTY = "No tables yet. An app makes them: app.table('users', 'id string, name string', key='id')"
LISTED = ("table", "app", "key", "history", "rows", "versions", "lag_records", "committed_at")


@click.group()
@home_option
def tables() -> None:
    """List and show tables, and their rows as of a time.

    \b
    Example:
      headrace tables list
    """


@tables.command("list")
@format_option
@home_option
def list_(format_: str | None) -> None:
    """List the tables: key, history, rows, kept versions, and changes that are not read yet.

    \b
    Example:
      headrace tables list
    """
    found = opened_views()
    specs = [spec for spec in found.specs() if spec.is_table]
    if not specs:
        note(EMPTY)
        return
    print_rows([_listed(found, spec) for spec in specs], LISTED, format_)


def _listed(found: SqlViews, spec: FlowSpec) -> dict[str, Any]:
    assert spec.view is not None
    status, log, versions = found.status(spec.name), opened_if_any(), None
    try:
        lag = lag_of(sources_of(log, found.branches(spec.name), found.state(spec.name)))
    finally:
        if log is not None:
            log.close()
    if spec.history != "latest":
        (versions,) = found.query(f'select count(*) as n from "{spec.name}_history"')["n"].to_pylist()
    return {
        "table": spec.name,
        "app": status.app,
        "key": ", ".join(each.name for each in spec.view.groups),
        "history": spec.history,
        "rows": status.rows,
        "versions": versions,
        "lag_records": lag,
        "committed_at": status.committed_at,
    }


def _table(found: SqlViews, name: str) -> FlowSpec:
    spec = found.flow(name)
    if not spec.is_table:
        raise UnknownView(
            view=f"{name} (a view, not a table)", known=[each.name for each in found.specs() if each.is_table]
        )
    return spec


@tables.command()
@view_argument
@format_option
@home_option
def show(view: str, format_: str | None) -> None:
    """Show a table: columns, key, history, rows.

    \b
    Example:
      headrace tables show users
    """
    found = opened_views()
    spec = _table(found, view)
    assert spec.view is not None
    columns = [{"column": column.name, "type": column.type} for column in spec.view.columns]
    print_one({**_listed(found, spec), "columns": columns}, format_)


@tables.command("as-of")
@view_argument
@click.argument("time")
@click.option("--known", metavar="TIME", help="As it was known at this time; for a bitemporal table.")
@format_option
@home_option
def as_of(view: str, time: str, known: str | None, format_: str | None) -> None:
    """Print the rows of a table that were valid at TIME: ISO with a zone, 2026-01-01T00:00:00Z.

    \b
    Example:
      headrace tables as-of users 2026-01-01T00:00:00Z
    """
    from headrace.durations import from_us, instant_us
    from headrace.rows import to_rows

    found = opened_views()
    spec = _table(found, view)
    assert spec.view is not None
    if spec.history == "latest":
        raise InvalidArgument("history", spec.history, f"table {view!r} keeps its latest rows only")
    if known is not None and spec.history != "bitemporal":
        raise InvalidArgument(
            "known", known, f"table {view!r} does not keep what was known before: it is not bitemporal"
        )
    values = [from_us(instant_us(time, argument="time"))]
    conditions = ["valid_from <= ?1", "(valid_to IS NULL OR valid_to > ?1)"]
    if known is not None:
        values.append(from_us(instant_us(known, argument="known")))
        conditions += ["known_from <= ?2", "(known_to IS NULL OR known_to > ?2)"]
    elif spec.history == "bitemporal":
        conditions.append("known_to IS NULL")
    rows = found.query(f'select * from "{view}_history" where {" and ".join(conditions)}', values)
    kind = chosen(format_)
    if kind == "arrow":
        from headrace.cli.batches import BatchPrinter

        BatchPrinter(rows.schema, kind).print_all(rows.to_batches())
        return
    print_rows((row for batch in rows.to_batches() for row in to_rows(batch)), rows.column_names, kind)
