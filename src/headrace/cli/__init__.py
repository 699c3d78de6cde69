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
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The entry point of `headrace`."""
    import gc
    import signal

    from headrace.cli.stopping import terminated

    gc.disable()  # while modules are loaded there is no garbage, only its search
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(run(sys.argv[1:]))
