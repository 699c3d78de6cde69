"""`headrace new` makes a project, and only where there is none. That its test passes: tests/flows/test_starter.py."""

from pathlib import Path

import pytest

from headrace.cli.new import FILES
from tests.cli.conftest import Shell


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_project_is_made(shell: Shell) -> None:
    Path("shop-2").mkdir()
    said = shell.ok("new", "shop-2").err
    assert {path.name for path in Path("shop-2").iterdir()} == set(FILES)
    for file in FILES:
        text = Path("shop-2", file).read_text("utf-8")
        assert "{name}" not in text and "{{" not in text
        if file.endswith(".py"):
            compile(text, file, "exec")
    assert 'hr.App("shop-2")' in Path("shop-2", "app.py").read_text("utf-8")
    assert '\'{"user": "ann"' in Path("shop-2", "README.md").read_text("utf-8")
    assert "cd shop-2" in said and "python -m pytest" in said
    assert not shell.home.exists()


def test_nothing_is_overwritten(shell: Shell) -> None:
    Path("shop").mkdir()
    Path("shop", "app.py").write_text("mine")
    done = shell("new", "shop")
    assert (done.code, "is not empty" in done.err) == (2, True)
    assert [path.name for path in Path("shop").iterdir()] == ["app.py"]
    Path("file").touch()
    assert "is a file" in shell("new", "file").err


@pytest.mark.parametrize("name", ["", "a b", "../up", "/tmp/x", ".hidden", "a/b", "x" * 250, "__x", "-x"])
def test_a_name_that_is_none(shell: Shell, tmp_path: Path, name: str) -> None:
    assert shell("new", "--", name).code in (1, 2)
    assert [path for path in tmp_path.iterdir() if path != shell.home] == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a directory in which not even root can make one")
def test_a_directory_that_cannot_be_made_is_said_in_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")
    done = shell("new", "shop")
    assert (done.code, "shop cannot be made in /proc: " in done.err) == (2, True)
