"""Options that many commands have, and the log and views they lead to. Owns where home is: `--home` before or after the
command, else HEADRACE_HOME, else `.headrace`. The log may be elsewhere: `--log`, else HEADRACE_LOG."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.output import busy, counted
from headrace.errors import HeadraceError, InvalidArgument, LogMissing
from headrace.places import directory, without_secrets

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from headrace.log.contract import Log, Topic
    from headrace.views.reading import SqlViews

HOME = "headrace.home"
LOG = "headrace.log"
VIEWS = "headrace.views"
FORMATS = ("table", "json", "csv", "arrow")

F = TypeVar("F", bound=Callable[..., Any])


def _set_home(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta[HOME] = value


def _set_log(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta[LOG] = value


def _set_views(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta[VIEWS] = value


_home = click.option(
    "--home",
    metavar="DIR",
    expose_value=False,
    callback=_set_home,
    help="The log's directory; default: $HEADRACE_HOME, else .headrace.",
)
_log = click.option(
    "--log",
    metavar="URL",
    expose_value=False,
    callback=_set_log,
    help="The log, if it is not in the home: kafka://HOST:PORT; default: $HEADRACE_LOG.",
)
_views = click.option(
    "--views",
    metavar="URL",
    expose_value=False,
    callback=_set_views,
    help="Where views are: postgresql://…; default: $HEADRACE_VIEWS, else the home.",
)


where_option = click.option(
    "--start", required=True, metavar="WHERE", help="earliest, latest, a time with zone, or P:OFFSET,P:OFFSET."
)


def home_option(command: F) -> F:
    """Where a command works: `--home`, `--log` and `--views`."""
    return _home(_log(_views(command)))


format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="How to print; default: a table on a terminal, else JSON lines.",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def columns_of(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """`a,b` as ("a", "b")."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise click.BadParameter(f"{value!r} has an empty name; write them as a,b")
    return names


def home() -> Path:
    """The log's directory of the command that runs now."""
    chosen = click.get_current_context().meta.get(HOME)
    return directory(chosen or os.environ.get("HEADRACE_HOME") or ".headrace").absolute()


def log_url() -> str | None:
    """The log's address, if it is not in the home."""
    chosen = click.get_current_context().meta.get(LOG)
    return chosen or os.environ.get("HEADRACE_LOG") or None


def log_at() -> str | None:
    """The same, checked; InvalidArgument if it means no log."""
    from headrace.log.open import log_address

    url = log_url()
    return None if url is None else log_address(url).address


def views_at() -> str | Path:
    """Where the views are of the command that runs now."""
    said = click.get_current_context().meta.get(VIEWS) or os.environ.get("HEADRACE_VIEWS")
    if said and "://" in said and not said.startswith(("postgresql://", "postgres://")):
        why = "must be an address of Postgres, postgresql://USER@HOST/DATABASE, or a directory"
        raise InvalidArgument("views", without_secrets(said), why)
    return said or home()


def opened(*, create: bool = False) -> Log:
    """The log, in home or where `--log` says. Only commands that write what was not there before create one in home."""
    from headrace.log.open import log_address, open_address

    _collect_again()
    url = log_url()
    if url is None:
        return open_address(home(), create=create)
    at = log_address(url)
    with busy(f"asking {at.address}"):
        return open_address(at)


def opened_views() -> SqlViews:
    """The views of the home, for reading; there may be none."""
    from headrace.views.open import open_views

    _collect_again()
    return open_views(views_at())


def _collect_again() -> None:
    """main() turned the collector off while modules were loaded; these stay."""
    import gc

    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def opened_if_any() -> Log | None:
    """The log in home; None if there is none yet."""
    try:
        return opened()
    except LogMissing as error:
        if error.path == str(home()):
            return None
        raise


def writable(name: str) -> str:
    """The name of a topic that users may change: headrace's own ('__…') are there to be read."""
    from headrace.names import check_name

    return check_name(name, argument="topic")


def confirm(what: str, yes: bool) -> None:
    """Before something is destroyed: `--yes`, or yes at the terminal; anything else is wrong usage."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"This would {what}. Say --yes to do it.")
    if not click.confirm(f"This will {what}. Go on?", err=True):
        raise click.ClickException("Nothing was done.")


def start_of(text: str) -> Any:
    """`--start` as the log takes it: an end, `P:OFFSET,…`, or a time with its zone."""
    from headrace.errors import InvalidArgument
    from headrace.log import starting

    try:
        return starting.start_of(text)
    except InvalidArgument as error:
        raise click.BadParameter(f"{text!r}: {error.why}", param_hint="--start") from None


def key_of(topic: Topic, texts: Sequence[str], *, hint: str) -> Any:
    """A key as it is typed, by the types of its columns. Of several columns: a text for each, or one for all, as A,B or
    as a JSON array, which takes commas and null."""
    from headrace.rows.texts import field_value

    columns, schema = topic.settings.key, topic.schema
    if not columns:
        raise click.BadParameter(f"topic {topic.name!r} has no key", param_hint=hint)
    parts: list[Any] = list(texts)
    if len(columns) > 1 and len(parts) == 1:
        parts = _json_array(parts[0], hint) if parts[0].startswith("[") else parts[0].split(",")
    if len(parts) != len(columns):
        named = counted(len(columns), "part")
        raise click.BadParameter(f"the key of {topic.name!r} has {named}: {','.join(columns)}", param_hint=hint)
    values = [
        field_value(schema.field(name), part) if isinstance(part, str) else part
        for name, part in zip(columns, parts, strict=True)
    ]
    return values[0] if len(values) == 1 else tuple(values)


def values_of(topic: Topic, column: str, texts: Sequence[str]) -> list[Any]:
    """Values of a column as they are typed, by its type."""
    from headrace.rows.texts import field_value

    if column not in topic.schema.names:
        columns = ", ".join(topic.schema.names)
        raise click.BadParameter(f"topic {topic.name!r} has no such column; it has {columns}", param_hint="--column")
    return [field_value(topic.schema.field(column), text) for text in texts]


def _json_array(text: str, hint: str) -> list[Any]:
    import json

    try:
        found: list[Any] = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no JSON array: {error}", param_hint=hint) from None
    return found


# -- completion ----------------------------------------------------------------------------------------


def _names(ctx: click.Context, find: Callable[[Log], list[str]], incomplete: str) -> list[CompletionItem]:
    """Names out of the log; silence when there is none, or when it cannot be read."""
    from click.shell_completion import CompletionItem

    try:
        with ctx.scope(cleanup=False):
            log = opened_if_any()
            if log is None:
                return []
            with log:
                return [CompletionItem(name) for name in find(log) if name.startswith(incomplete)]
    except (HeadraceError, OSError):
        return []


def complete_topic(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _names(ctx, lambda log: [topic.name for topic in log.topics()], incomplete)


def complete_group(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The groups of the topic that was typed already, else those of all."""

    def find(log: Log) -> list[str]:
        named: str | None = ctx.params.get("topic")
        topics: Sequence[Topic] = [log.topic(named)] if named else log.topics()
        return sorted({group.name for topic in topics for group in topic.groups()})

    return _names(ctx, find, incomplete)


def complete_queue(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The queues of the topic that was typed already."""

    def find(log: Log) -> list[str]:
        from headrace.log.standing import queues_of

        return [queue.name for queue in queues_of(log.topic(ctx.params["topic"]))] if ctx.params.get("topic") else []

    return _names(ctx, find, incomplete)


def complete_view(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        with ctx.scope(cleanup=False):
            return [CompletionItem(name) for name in opened_views().names() if name.startswith(incomplete)]
    except (HeadraceError, OSError):
        return []


def complete_capture(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from headrace.cdc.journal import captures

    return _names(ctx, captures, incomplete)


def complete_captured(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The tables of the capture that was typed already, as `capture snapshot` takes them."""
    from headrace.cdc.running import status_of

    return _names(ctx, lambda log: [each.table for each in status_of(log, ctx.params["name"]).tables], incomplete)


def complete_index(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from headrace.connect.index.standing import index_names

    return _names(ctx, index_names, incomplete)


def complete_sink(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from headrace.connect.journal import sinks

    return _names(ctx, lambda log: [*sinks(log)], incomplete)


topic_argument = click.argument("topic", shell_complete=complete_topic)
group_argument = click.argument("group", shell_complete=complete_group)
queue_argument = click.argument("queue", shell_complete=complete_queue)
view_argument = click.argument("view", shell_complete=complete_view)
