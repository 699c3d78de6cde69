"""`headrace tables …`: lists tables, shows one, and prints its rows as they were at a time. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import format_option, home_option, opened_if_any, opened_views, view_argument
from headrace.cli.output import chosen, note, print_one, print_rows
from headrace.views.past import rows_at, table_of
from headrace.views.standing import table_facts

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
    """List the tables: key, history, rows, versions, lag.

    The lag are changes that are not read yet.

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
    log = opened_if_any()
    try:
        facts = table_facts(log, found, spec)
    finally:
        if log is not None:
            log.close()
    return {**facts, "key": ", ".join(facts["key"])}


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
    spec = table_of(found, view)
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
    """Print the rows of a table that were valid at TIME.

    TIME is ISO, with a zone: 2026-01-01T00:00:00Z.

    \b
    Example:
      headrace tables as-of users 2026-01-01T00:00:00Z
    """
    from headrace.rows import to_rows

    found = opened_views()
    asked = rows_at(table_of(found, view), time, known)
    rows = found.query(asked.sql, asked.values)
    kind = chosen(format_)
    if kind == "arrow":
        from headrace.cli.batches import BatchPrinter

        BatchPrinter(rows.schema, kind).print_all(rows.to_batches())
        return
    print_rows((row for batch in rows.to_batches() for row in to_rows(batch)), rows.column_names, kind)
