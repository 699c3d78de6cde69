"""docs/cli.md and --help are complete: every command has its section and its example, and on the site all of its
options, which `scripts/reference.py` writes."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.cli.root import COMMANDS, cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "cli.md"


def loaded() -> Any:
    """`scripts/reference.py`, which is no package's."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None and spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return reference


reference = loaded()
commands = reference.commands


def sections() -> dict[str, str]:
    """As the site has them."""
    parts = re.split(r"^## (headrace .+)$", reference.with_options(DOCS.read_text("utf-8")), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SECTIONS = sections()


def test_the_sections_are_the_commands() -> None:
    assert sorted(SECTIONS) == sorted(name for name, _ in commands())


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_option_is_documented(name: str, command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            long = max(parameter.opts, key=len)
            line = re.search(rf"^\| `[^|]*{long}(?![\w-]).*$", SECTIONS[name], re.MULTILINE)
            assert parameter.help and line and parameter.help.split("|")[0] in line[0], f"{name} {long}"


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


@pytest.mark.parametrize("name", ["topics", "groups", "queue", "dead", "views"])
def test_the_list_of_a_group_cuts_no_line_off(name: str) -> None:
    """click takes the first sentence of each command, and cuts it off where it does not fit."""
    with click.Context(cli) as ctx:
        group = cli.get_command(ctx, name)
    assert group is not None
    with click.Context(group, info_name=name, terminal_width=80) as ctx:
        listed = group.get_help(ctx).split("Commands:")[1]
    assert "..." not in listed


def test_options_are_written_once() -> None:
    assert "| option |" not in DOCS.read_text("utf-8"), "options come from the commands' help: scripts/reference.py"
