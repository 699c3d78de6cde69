"""The root command: which commands there are, and what becomes of what they raise. Owns the list of commands, whose
modules are imported when one is run (help and completion of names need none of them)."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from headrace import __version__
from headrace.cli.options import home_option
from headrace.cli.output import flush, say
from headrace.cli.stopping import EXIT_TERMINATED, ReaderGone, Terminated
from headrace.errors import HeadraceError

COMMANDS: dict[str, tuple[str, str]] = {  # name: (module below headrace.cli, what it is for)
    "demo": ("story", "Streams into views in half a minute: close, correct, kill, audit."),
    "new": ("new", "Create a starter project, with its test."),
    "topics": ("topics", "Create, alter, list, show and delete topics."),
    "produce": ("produce", "Append records from files or standard input."),
    "consume": ("consume", "Print records, once or continuously, alone or in a group."),
    "groups": ("groups", "List, show, wait for, rewind and delete consumer groups."),
    "queue": ("queue", "List, show, peek into, redrive, rewind and delete queues."),
    "work": ("work", "Run a function on the messages of a queue."),
    "run": ("run", "Run every flow of a program, supervised."),
    "check": ("run", "Check a program without running it."),
    "rebuild": ("rebuild", "Compute a view again beside the old one, compare, switch."),
    "audit": ("run", "Recompute every view from the log, and compare."),
    "dead": ("dead", "List, show, replay and drop dead letters."),
    "query": ("query", "Read views with SQL, or a whole view by its name."),
    "watch": ("watch", "Print a view's rows, then its changes as they are committed."),
    "views": ("views", "List, show and drop views."),
    "tables": ("tables", "List and show tables, and their rows as of a time."),
    "queries": ("queries", "Put, remove, list and explain stored queries, which find records."),
    "rules": ("rules", "Put, remove, list and explain rules, which match records while flows run."),
    "capture": ("capture", "Capture the tables of a database: add, run, status, snapshot, uninstall, doctor."),
    "index": ("index", "Full-text indexes: add, run, list, search, audit, rebuild."),
    "sinks": ("sinks", "List and drop sinks, and let one begin anew."),
    "ledger": ("views", "Count a view's records by window: on time, corrected, dropped."),
    "why": ("why", "Show where a row of a view comes from, and what it waits for."),
    "call": ("call", "Append a request to a topic, and wait for its reply."),
    "serve": ("serve", "Serve the page and the HTTP API of the log and its views."),
    "maintain": ("upkeep", "Apply retention, compact, seal, and free disk space, now."),
    "erase": ("upkeep", "Remove a subject from a topic and all that was made of it."),
    "clock": ("clock", "Compare the clock with the log; confirm it, or repair topics."),
    "backup": ("keeping", "Copy the home while it is in use, and check the copy."),
    "restore": ("keeping", "Make a home of a backup."),
    "copy": ("copying", "Copy topics between logs, or views between stores, and compare."),
    "verify": ("checks", "Read and check everything the log holds."),
    "doctor": ("checks", "Check this machine and the home directory."),
    "completion": ("completion", "Print the completion script of a shell."),
}


class Root(click.Group):
    """Commands by name, imported on use; errors as exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"headrace.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from headrace.errors import nearest

            hint = nearest(args[0], list(COMMANDS)) or f" There are: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            flush()
            return result
        except HeadraceError as error:
            from headrace.cli.advice import sentence

            flush()
            say(sentence(error))
            code = 1
        except (BrokenPipeError, ReaderGone):
            code = 0
            _forget_stdout()
        except KeyboardInterrupt:
            code = 130
        except Terminated:
            code = EXIT_TERMINATED
        except OSError as error:  # a disk that is full behind `> file`, a terminal that went away
            say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
            code = 1
        raise click.exceptions.Exit(code)


def _forget_stdout() -> None:
    """What is left in the buffer has no reader; Python would complain about it on its way out."""
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, sys.stdout.fileno())
        os.close(quiet)
    except (OSError, ValueError):
        pass


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headrace")
@home_option
def cli() -> None:
    """Stream processing for PySpark, and the log, queues and views it needs, in a directory.

    \b
    Example:
      headrace topics create clicks "user string, page string, at timestamp" --key user --event-time at
      headrace produce clicks clicks.csv
      headrace consume clicks --max 5

    Output is a table on a terminal and one JSON object per line when piped; --format chooses. Exit codes: 0 done,
    1 an error (one line says what, where, what to do), 2 wrong usage, 3 a check found something, 130 Ctrl-C.
    """
