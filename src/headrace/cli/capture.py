"""`headrace capture …`: databases as streams, without a program and without Spark. Owns what is stored of a capture
that the command line runs: its address (never a password), its tables and its masks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cdc.choice import Choice
from headrace.cdc.journal import Journal, captures, recorded
from headrace.cdc.open import check_address, choice_for, may_be_stored, open_source, source_findings
from headrace.cdc.running import CaptureStatus, CaptureThread, status_of
from headrace.cli.options import (
    complete_capture,
    complete_captured,
    confirm,
    format_option,
    home,
    home_option,
    opened,
    yes_option,
)
from headrace.cli.output import FOUND, counted, note, print_rows
from headrace.cli.stopping import stoppable
from headrace.errors import AlreadyRunning, InvalidArgument, LogMissing, UnknownCapture
from headrace.names import check_name
from headrace.places import without_secrets
from headrace.views.owner import FlowLock

if TYPE_CHECKING:
    from headrace.cdc.source import Source
    from headrace.log.contract import Log

EMPTY = "No captures yet: headrace capture add shop 'postgresql://user@host/db?password=env:SHOP_PASSWORD'"
TABLE_COLUMNS = ("capture", "table", "state", "topic", "copied", "epoch", "why")
new_argument = click.argument("name")
name_argument = click.argument("name", shell_complete=complete_capture)
url_option = click.option("--url", metavar="URL", help="The database, if the capture was added without one.")


@click.group()
@home_option
def capture() -> None:
    """Capture the tables of a database: what they have, then what is done to them.

    \b
    Example:
      headrace capture add shop 'postgresql://app@db/shop?password=env:SHOP_PASSWORD' --table 'public.*'
      headrace capture run shop
    """


@capture.command()
@new_argument
@click.argument("url")
@click.option("--table", "tables", metavar="PATTERN", multiple=True, help="Tables: 'public.*', '!public.audit' not.")
@click.option("--mask", "masks", metavar="COLUMN=HOW", multiple=True, help="users.email=hash, or =null.")
@click.option("--debezium", metavar="PREFIX", help="Write events in Debezium's envelope, too: PREFIX.SCHEMA.TABLE.")
@click.option("--debezium-schemas", is_flag=True, help="With a schema block in each event.")
@home_option
def add(
    name: str,
    url: str,
    tables: tuple[str, ...],
    masks: tuple[str, ...],
    debezium: str | None,
    debezium_schemas: bool,
) -> None:
    """Store what a capture is. Nothing of the database is read before `capture run`.

    A password is not stored: write password=env:NAME or password=file:PATH behind the address's '?'.

    \b
    Example:
      headrace capture add shop 'postgresql://app@db/shop?password=env:SHOP_PASSWORD' --mask users.email=hash
      headrace capture add shop 'mysql://app@db/shop?password=env:SHOP_PASSWORD' --table users
      headrace capture add shop sqlite:////var/lib/shop.db
    """
    check_name(name, argument="name")
    if not may_be_stored(url):
        why = "has a password, which would be stored: write ?password=env:NAME or ?password=file:PATH in its place"
        raise InvalidArgument("url", without_secrets(url), why)
    given = dict(_pair(each) for each in masks)
    choice = choice_for(url, tables or None, given, debezium=debezium, schemas=debezium_schemas)
    with contextlib.closing(opened(create=True)) as log, _locked(name):
        spec = {
            "url": url,
            "tables": [*choice.tables],
            "mask": given,
            "debezium": debezium,
            "schemas": debezium_schemas,
        }
        before = _known(log, name).get(("spec", ""))
        Journal(log, name).write([], {("spec", ""): spec})
    done = "added" if before is None else "changed" if before != spec else "as it was"
    note(f"capture {name} is {done}; headrace capture run {name}")


def _known(log: Log, name: str) -> dict[tuple[str, str], Any]:
    try:
        return recorded(log, name)
    except UnknownCapture:
        return {}


def _pair(text: str) -> tuple[str, str]:
    column, given, how = text.partition("=")
    if not given:
        raise click.BadParameter(f"{text!r}: write it as users.email=hash", param_hint="--mask")
    return column, how


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """While this process captures, no other of the home does."""
    lock = FlowLock(home(), f"capture/{name}")
    lock.take()
    try:
        yield
    finally:
        lock.release()


def _spec(log: Log, name: str, url: str | None) -> tuple[str, Choice]:
    states = recorded(log, name)
    spec = states.get(("spec", "")) or states.get(("capture", ""), {})
    address = url or spec.get("url")
    if not address:
        why = f"capture {name!r} is a program's, which has its address: say it here, too, with --url"
        raise InvalidArgument("url", None, why)
    return check_address(address), choice_for(
        address,
        spec.get("tables"),
        spec.get("mask"),
        debezium=spec.get("debezium") or None,
        schemas=bool(spec.get("schemas")),
    )


def _source(log: Log, name: str, url: str | None) -> Source:
    address, choice = _spec(log, name, url)
    return open_source(log, name, address, choice, home())


@capture.command()
@name_argument
@click.option("--drain", is_flag=True, help="Capture all that is committed now, then end.")
@url_option
@home_option
def run(name: str, drain: bool, url: str | None) -> None:
    """Capture until Ctrl-C or SIGTERM. A lost connection is tried again.

    \b
    Example:
      headrace capture run shop
      headrace capture run shop --drain
    """
    with contextlib.closing(opened()) as log, _locked(name), stoppable() as stopping:
        source = _source(log, name, url)
        if drain:
            before = _copied(log, name)
            changes = counted(source.drain(), "change")
            rows = _copied(log, name) - before
            note(f"{counted(rows, 'row')} copied, {changes} captured" if rows > 0 else f"{changes} captured")
            _say_what_is_not(log, name)
            return
        thread = CaptureThread(source)
        thread.start()
        note(f"capturing {name}; Ctrl-C stops")
        while not stopping.is_set() and not thread.join(0.2):
            pass
        thread.stop()
        if thread.error is not None:
            raise thread.error
    note("stopped")
    stopping.tell()


def _copied(log: Log, name: str) -> int:
    """Rows that its tables had when they were first read. An outbox's are changes."""
    found = status_of(log, name)
    return 0 if found.facts.get("source") == "outbox" else sum(table.copied for table in found.tables)


def _say_what_is_not(log: Log, name: str) -> None:
    """Whoever expects a table should not have to ask why it is not there."""
    tables = status_of(log, name).tables
    for table in tables:
        if table.state == "stopped":
            note(f"{table.table} is not captured: {table.why}")
    if not tables:
        note(f"no table is captured: the database has none that --table chooses (headrace capture doctor {name})")


@capture.command()
@click.argument("name", required=False, shell_complete=complete_capture)
@format_option
@home_option
def status(name: str | None, format_: str | None) -> None:
    """Print how far captures are, and their tables.

    Also what the database keeps for them. One line for each table. `slot_bytes`: the log that the database keeps;
    `safe_wal_size`: so many bytes more may be written before it is lost, in `seconds_to_loss` at the pace of the last
    measurements.

    \b
    Example:
      headrace capture status shop
    """
    with contextlib.closing(opened()) as log:
        found = [status_of(log, each) for each in ([name] if name else captures(log))]
    if not found:
        note(EMPTY)
        return
    for each in found:
        note(_line(each))
    rows = [{"capture": each.capture, **asdict(table)} for each in found for table in each.tables]
    print_rows(rows, TABLE_COLUMNS, format_)


def _line(found: CaptureStatus) -> str:
    said = f"{found.capture}: {found.database or 'not run yet'}"
    if found.committed_at is not None:
        said += f", captured to {found.committed_at:%Y-%m-%d %H:%M:%S}"
    if found.position:
        said += f" ({found.position})"
    if found.slot_bytes is not None:
        said += f", the slot keeps {found.slot_bytes:,} bytes ({found.wal_status})"
    if found.safe_wal_size is not None:
        said += f", {found.safe_wal_size:,} more are safe"
    if found.seconds_to_loss is not None:
        said += f", {found.seconds_to_loss:,.0f} s to loss if nothing is read"
    return said


@capture.command()
@name_argument
@click.argument("tables", nargs=-1, shell_complete=complete_captured)
@url_option
@home_option
def snapshot(name: str, tables: tuple[str, ...], url: str | None) -> None:
    """Read tables again, and write what differs.

    The way on after a gap, or after a table was stopped. Without TABLES all are read again, from a new slot. A capture
    that runs elsewhere is asked to read TABLES again.

    \b
    Example:
      headrace capture snapshot shop users
    """
    with contextlib.closing(opened()) as log:
        source = _source(log, name, url)
        try:
            with _locked(name):
                changes = source.drain(again=tables)
        except AlreadyRunning:
            if not tables:
                raise
            source.ask_again(tables)
            note(f"asked the process that captures {name} to read {', '.join(tables)} again")
            return
    note(f"read again; {counted(changes, 'change')} captured since")


@capture.command()
@name_argument
@url_option
@yes_option
@home_option
def uninstall(name: str, url: str | None, yes: bool) -> None:
    """Remove what a capture has made in the database.

    That is outbox and triggers, or slot and publication, or the row that says who reads an outbox. The topics stay. If
    the capture is run again, it makes what it needs, and reads all tables again. Before a migration that the capture's
    triggers stand in the way of, and for a capture that is not wanted any more.

    \b
    Example:
      headrace capture uninstall shop --yes
    """
    with contextlib.closing(opened()) as log, _locked(name):
        source = _source(log, name, url)
        confirm(f"remove what capture {name} has made in the database: it would read all tables again", yes)
        gone = source.uninstall()
    note(f"removed {', '.join(gone)}" if gone else f"capture {name} has made nothing in the database")


@capture.command()
@name_argument
@url_option
@format_option
@home_option
def doctor(name: str, url: str | None, format_: str | None) -> None:
    """Look whether a database can be captured.

    Settings, rights, slots, tables. Changes nothing; the exit code is 3 if something is missing.

    \b
    Example:
      headrace capture doctor shop
      headrace capture doctor shop --url 'postgresql://app@db/shop?password=env:SHOP_PASSWORD'
    """
    try:
        with contextlib.closing(opened()) as log:
            address, choice = _spec(log, name, url)
    except (LogMissing, UnknownCapture):
        if url is None:
            raise
        address = check_address(url)
        choice = choice_for(address, None, None)
    found = source_findings(name, address, choice)
    rows: list[dict[str, Any]] = [asdict(each) for each in found]
    print_rows(rows, ("check", "ok", "says"), format_)
    if any(each.ok is False for each in found):
        raise click.exceptions.Exit(FOUND)
