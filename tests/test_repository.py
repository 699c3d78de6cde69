"""What may be in the repository: nothing of one machine, nothing generated, nothing large, pins for all."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_BYTES_MAX = 1024 * 1024
LINE_CHARACTERS_MAX = 120
OF_ONE_MACHINE = re.compile(r"(?<![\w.~-])/(?:work|root|(?:home|Users)/\w+)/")
OF_ONE_REGISTRY = re.compile(
    r"https?://\S*(?:pypi|pythonhosted|artifactory|nexus|devpi|/simple\b)|--(?:extra-)?index-url|--find[-]links"
)


def git(*arguments: str) -> list[Path]:
    """Files as git lists them; skips the test where there is no git checkout of headrace (an sdist, say)."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of tracked files")
    try:
        done = subprocess.run(["git", "ls-files", "-z", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("git is not installed: there is no list of tracked files")
    if done.returncode:
        pytest.skip(f"git cannot list the tracked files: {done.stderr.strip()}")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_generated_file_is_tracked() -> None:
    assert git("--cached", "--ignored", "--exclude-standard") == []


def test_no_file_is_large() -> None:
    assert [path for path in git() if path.stat().st_size > FILE_BYTES_MAX] == []


def test_nothing_names_one_machine_or_registry() -> None:
    found = []
    for path in git():
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            if OF_ONE_MACHINE.search(line) or OF_ONE_REGISTRY.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_lines_of_pages_fit_a_screen() -> None:
    """But for rows of tables, which Markdown does not let anybody break."""
    found = []
    for path in git("*.md"):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if len(line) > LINE_CHARACTERS_MAX and not line.startswith("|"):
                found.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} characters")
    assert found == []


def test_the_patterns_bite() -> None:
    for path in "/work" + "/x", "'/root" + "/x'", "/home" + "/ann/x", "/Users" + "/ann/x":
        assert OF_ONE_MACHINE.search(path), path
    for path in "src/work/x", "https://example.org/home/ann/x", "/home/<user>/x", "$HOME/x":
        assert not OF_ONE_MACHINE.search(path), path
    assert OF_ONE_REGISTRY.search("https:" + "//pypi.org/project/x")
    assert not OF_ONE_REGISTRY.search("https://example.org")


def test_every_dependency_is_pinned() -> None:
    pins = set()
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = re.fullmatch(r"([\w.-]+)==[\w.+!]+", line)
            assert pin, f"constraints.txt: {line!r} is not a plain name==version"
            pins.add(re.sub(r"[-_.]+", "-", pin[1]).lower())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [text for part in (project["dependencies"], *project["optional-dependencies"].values()) for text in part]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in wanted}
    names.discard("headrace")  # an extra may hold another
    assert names <= pins, f"pin in constraints.txt: {', '.join(sorted(names - pins))}"
