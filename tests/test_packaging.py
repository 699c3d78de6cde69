"""What is shipped: a wheel and an sdist that build without a network, whole and without anything else; a command, types
and shell completion that work from the installed wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.test_repository import ROOT, git


def done(*command: str | Path, cwd: Path, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HEADRACE_HOME")}
    run = subprocess.run(command, cwd=cwd, env={**env, **environment}, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_every_extra_is_documented() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []


def test_the_extra_of_the_site_has_what_the_reference_imports() -> None:
    docs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["docs"]
    suites = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "headrace" / "testing").glob("*.py"))
    needed = {name for name in ("pytest", "hypothesis") if f"\nimport {name}" in suites or f"\nfrom {name}" in suites}
    assert needed and needed <= {requirement.split(">=")[0] for requirement in docs}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is tracked, elsewhere, and beside it what must not be shipped."""
    pytest.importorskip("hatchling", reason="building needs hatchling: pip install 'headrace[dev]'")
    folder = tmp_path_factory.mktemp("copy")
    for path in git():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for litter in ("src/headrace/__pycache__/x.pyc", "src/headrace/.headrace/log.db", ".venv/pyvenv.cfg"):
        (folder / litter).parent.mkdir(exist_ok=True)
        (folder / litter).write_text("litter")
    return folder


@pytest.fixture(scope="module")
def wheel(copy: Path) -> Path:
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
    )
    done(*pip, "--quiet", "--wheel-dir", "built", cwd=copy)
    (found,) = (copy / "built").glob("*.whl")
    return found


def test_the_wheel_is_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}
    assert names == {str(path.relative_to(ROOT / "src")) for path in git("src")}
    assert {"headrace/py.typed", "headrace/cli/starter/app.py.txt", "pyspark_headrace/__init__.py"} <= names
    assert about >= {"METADATA", "entry_points.txt", "licenses/LICENSE"}


def test_the_sdist_is_whole_and_nothing_else(copy: Path) -> None:
    done(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", "built", cwd=copy)
    (found,) = (copy / "built").glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {str(path.relative_to(ROOT)) for path in git()} - {".ci/run"}
    assert names - {"PKG-INFO"} == tracked


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with nothing in it but the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    done(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", "env/bin/python", "install")
    done(*pip, "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "env" / "bin"


PROGRAM = """
import headrace as hr
app = hr.App("shop", home=":temp:")
clicks = app.topic("clicks", "page string, at timestamp", event_time="at")
view = app.stream(clicks).window(hr.tumbling("1 minute")).group_by("page").agg(n=hr.count()).to_view("per_minute")
found: dict[str, object] | None = view.get(page="/")
"""


def test_users_programs_are_type_checked(installed: Path, tmp_path: Path) -> None:
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        installed / "python",
        "--cache-dir",
        "cache",
    )
    (tmp_path / "right.py").write_text(PROGRAM)
    assert "Success" in done(*mypy, "right.py", cwd=tmp_path)
    (tmp_path / "wrong.py").write_text(f"{PROGRAM}app.drain(close='yes')\nhr.tumbling(5)\nview.nothing()\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wrong = subprocess.run((*mypy, "wrong.py"), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert [line.split(":")[1] for line in wrong.stdout.splitlines() if "error:" in line] == ["7", "8", "9"]


COMPLETE = """
eval "$(headrace completion bash)"
complete -p headrace >&2
asked() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _headrace_completion headrace
    echo "${COMPREPLY[@]}"
}
asked headrace prod
asked headrace topics sh
asked headrace consume cl
asked headrace consume clicks --st
"""


def test_the_command_completes_in_bash(installed: Path, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    here = [path for path in sys.path if path.endswith("site-packages")]  # what the wheel depends on
    (found,) = (installed.parent / "lib").glob("python*/site-packages")
    (found / "dependencies.pth").write_text("\n".join(here))
    path = f"{installed}{os.pathsep}{os.environ['PATH']}"
    where = done("python", "-c", "import headrace; print(headrace.__file__)", cwd=tmp_path, PATH=path)
    assert Path(where.strip()).is_relative_to(found)
    done("headrace", "topics", "create", "clicks", "page string", cwd=tmp_path, PATH=path)
    said = done(bash, "--norc", "-c", COMPLETE, cwd=tmp_path, PATH=path)
    assert said.splitlines() == ["produce", "show", "clicks", "--start"]
