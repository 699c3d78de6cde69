"""`headrace new`: a directory with a program, its test, and what belongs to them. Owns the names of the files; their
texts are beside this, in `starter/`. Writes into a new or empty directory only."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.options import home_option
from headrace.cli.output import note

FILES = {
    "app.py": "app.py.txt",
    "test_app.py": "test_app.py.txt",
    "conftest.py": "conftest.py.txt",
    "README.md": "README.md.txt",
    "requirements.txt": "requirements.txt.txt",
    ".gitignore": "gitignore.txt",
}
PROGRAMS = ("app.py", "README.md")
"""What has the project's name in it, as {name}."""


@click.command()
@click.argument("name")
@home_option
def new(name: str) -> None:
    """Make a starter project in the directory NAME: a program, its test, and what to type next.

    \b
    Example:
      headrace new shop
      cd shop && python -m pytest
    """
    from headrace.names import check_name

    if name.startswith("-") or name.startswith("."):
        raise click.BadParameter("a project's name begins with a letter or a digit", param_hint="NAME")
    folder = Path(check_name(name, argument="name"))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise click.BadParameter(f"{name} is here already, and {what}: choose another name", param_hint="NAME")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        why = f"{name} cannot be made in {Path.cwd()}: {error.strerror}"
        raise click.BadParameter(why, param_hint="NAME") from None
    for file, template in FILES.items():
        text = Path(__file__).with_name("starter").joinpath(template).read_text("utf-8")
        with (folder / file).open("x", encoding="utf-8") as written:  # never over a file that came meanwhile
            written.write(text.format(name=name) if file in PROGRAMS else text)
    note(f"{name}/ has app.py and its test. Next:")
    for line in (
        f"cd {name}",
        "python -m pytest           # the test; pip install pytest, if it is not there",
        "headrace check app.py      # can it be run?",
        "headrace run app.py        # until Ctrl-C; README.md says what to type meanwhile",
    ):
        note(f"  {line}")
