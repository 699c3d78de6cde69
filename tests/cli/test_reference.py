"""docs/cli.md and --help are complete: every command has its section, its example and all of its options."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from headrace.cli.root import COMMANDS, cli

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(command: click.Command = cli, name: str = "headrace") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its whole name."""
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            for part in command.list_commands(ctx):
                found = command.get_command(ctx, part)
                assert found is not None
                yield from commands(found, f"{name} {part}")
    else:
        yield name, command


def sections() -> dict[str, str]:
    parts = re.split(r"^## (headrace .+)$", DOCS.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_sections_are_the_commands() -> None:
    assert sorted(sections()) == sorted(name for name, _ in commands())


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_option_is_documented(name: str, command: click.Command) -> None:
    text = sections()[name]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            long = max(parameter.opts, key=len)
            assert re.search(rf"{long}(?![\w-])", text), f"{name}: {long} is not in docs/cli.md"
            assert parameter.help, f"{name} {long} has no help"


@pytest.mark.parametrize(("name", "command"), [("headrace", cli), *commands()])
def test_every_help_has_an_example(name: str, command: click.Command) -> None:
    with click.Context(command, info_name=name) as ctx:
        text = command.get_help(ctx)
    assert "Example:" in text
    example = text[text.index("Example:") :]
    assert name in example


def test_the_short_help_of_the_list() -> None:
    for name, (_, text) in COMMANDS.items():
        assert text.endswith("."), name


def test_groups_take_home_too() -> None:
    for name in ("topics", "groups", "dead"):
        with click.Context(cli) as ctx:
            group = cli.get_command(ctx, name)
        assert group is not None
        assert any("--home" in parameter.opts for parameter in group.params)
        with click.Context(group, info_name=name) as ctx:
            assert "Example:" in group.get_help(ctx)
