"""`headrace run` runs process managers, without Spark; killed, it goes on where it was."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import headrace as hr
from headrace import sourcing as es
from tests.cli.conftest import SECONDS_MAX, Shell, Spawner
from tests.sourcing.chance import Add, Kick, check, evolve, manager_in, react

PROGRAM = """
from datetime import UTC, datetime
import headrace as hr
from tests.sourcing.chance import manager_in

app = hr.App("chance")
app.supervise(manager_in(app.log, lambda: datetime.now(UTC)))
"""


def sends(kick: Kick, key: str) -> bool:
    """Whether the process sends a command to an entity at once."""
    asked = react(evolve("", kick), kick, key)
    return any(isinstance(action, es.Send) and isinstance(action.command, Add) for action in asked)


def test_it_is_killed_and_goes_on(shell: Shell, spawn: Spawner, tmp_path: Path) -> None:
    program = tmp_path / "chance.py"
    program.write_text(PROGRAM)
    kicks = {key: next(Kick(number) for number in count() if sends(Kick(number), key)) for key in "abc"}
    with hr.open_log(shell.home) as log:
        manager = manager_in(log, lambda: datetime.now(UTC))
        for key, kick in kicks.items():
            runner = spawn("run", str(program))
            manager.handle(key, kick)
            replies = manager.topic.records(key=key, follow=True, timeout=f"{SECONDS_MAX} seconds")
            assert next(replies).value["event"] == "Kick"
            next(replies)  # what came of a command
            runner.kill()
            runner.wait()
        shell.ok("run", str(program), "--drain")
        seen = check(log, manager, datetime.now(UTC))
        assert seen["Kick"] == 3 and seen["CommandAccepted"] + seen["CommandRejected"] >= 3
