"""The command line: `headrace COMMAND …`. Owns the process around a command: its exit code, signals, the closed pipe.
Does not know what commands do; each group of them is a module here, loaded when it is asked for.

Exit codes: 0 done; 1 a typed error, said in one line; 2 wrong usage; 3 a check found something; 130 on Ctrl-C;
143 when asked to stop with SIGTERM. A closed pipe is a reader who has enough: quiet, 0."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main", "run"]


def run(arguments: Sequence[str]) -> int:
    """Runs one command in this process; its exit code."""
    import click

    from headrace.cli.root import cli

    try:
        code = cli.main(args=list(arguments), prog_name="headrace", standalone_mode=False)
    except click.Abort:
        return 130
    except SystemExit:  # click's way to meet a closed pipe while it prints help
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The entry point of `headrace`."""
    import gc
    import os
    import signal

    from headrace.cli.stopping import terminated

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us: headrace … >&-
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    gc.disable()  # while modules are loaded there is no garbage, only the search for it
    signal.signal(signal.SIGTERM, terminated)
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except (OSError, ValueError):
            code = code or 1
    # Logs are closed and output is out: taking the interpreter apart would cost a fifth of a short command.
    os._exit(code)
