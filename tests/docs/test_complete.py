"""The documentation is complete: every command, option, setting, environment variable, metric, error and public name
has its line; what the chapter map names exists; the site builds without a warning and asks nobody for anything."""

from __future__ import annotations

import dataclasses
import html
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headrace as hr
from headrace import errors, testing
from headrace.aggregates.table import SHRINKS, TABLE
from headrace.log.embedded.log import EmbeddedLog
from headrace.log.embedded.topic import EmbeddedTopic

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def test_every_aggregate_has_its_line() -> None:
    assert [name for name in TABLE if f"`{name}(" not in page("aggregates.md")] == []
    taken_back = page("chains.md").split("## Which aggregates")[1].split("When the last row")[0]
    assert [name for name in SHRINKS if f"`{name}`" not in taken_back] == []


def first_cells(text: str) -> list[str]:
    """What stands in backticks in the first cell of a table's rows."""
    rows = re.findall(r"^\| (`[^|]+?`) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


# -- names ---------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference(reference: ModuleType) -> None:
    listed = {
        each if isinstance(each, str) else each.__name__ for _, names in reference.CHAPTERS.values() for each in names
    }
    public = set(dir(hr)) - set(errors.__all__) - {"__version__"}
    assert public | set(testing.__all__) <= listed
    text = reference.api()
    for name in public:
        assert re.search(rf"^### (hr\.)?{name}$", text, re.MULTILINE), name


def test_every_name_and_method_says_what_it_is(reference: ModuleType) -> None:
    silent = []
    for chapter, (_, names) in reference.CHAPTERS.items():
        for each in names:
            thing = getattr(testing if chapter == "Testing" else hr, each) if isinstance(each, str) else each
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            text = thing.__doc__ or ""
            if not text or text.startswith(f"{thing.__name__}("):  # what a dataclass says of itself
                silent.append(thing.__name__)
            if inspect.isclass(thing) and not thing.__name__.endswith("Contract"):
                silent += [f"{thing.__name__}.{n}" for n, each in reference.methods(thing) if not reference.prose(each)]
    assert silent == []


def test_what_is_left_out_is_there(reference: ModuleType) -> None:
    classes = {
        thing.__name__: thing
        for _, names in reference.CHAPTERS.values()
        for each in names
        if inspect.isclass(thing := getattr(hr, each, None) if isinstance(each, str) else each)
    }
    gone = [name for name in reference.BETWEEN_LAYERS if not hasattr(classes[name.split(".")[0]], name.split(".")[1])]
    assert gone == []


# -- errors --------------------------------------------------------------------------------------------


def test_every_error_has_its_line() -> None:
    assert sorted(first_cells(page("errors.md"))) == sorted(errors.__all__)
    rows = [row.strip("| ").split(" | ") for row in page("errors.md").splitlines() if row.startswith("| `")]
    assert [row[0] for row in rows if len(row) < 3 and row[0] != "`StorageError`"] == []  # what to do


def test_every_error_is_in_the_tree() -> None:
    for name in errors.__all__:
        assert re.search(rf"\b{name}\b", errors.__doc__ or ""), name


# -- settings ------------------------------------------------------------------------------------------


def section(name: str) -> list[str]:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", page("settings.md"), re.MULTILINE | re.DOTALL)
    assert found, name
    return first_cells(found[1])


def parameters(*functions: Any) -> set[str]:
    found = {name: p for function in functions for name, p in inspect.signature(function).parameters.items()}
    return {name for name, p in found.items() if name != "self" and p.kind is not p.VAR_KEYWORD}


def test_every_environment_variable_has_its_line() -> None:
    read = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"(?<![\w])HEADRACE_[A-Z_]+", path.read_text("utf-8"))
    }
    assert sorted(section("Environment")) == sorted(read)


def test_every_setting_has_its_line() -> None:
    assert set(section("An app")) == parameters(hr.App.__init__)
    assert set(section("A topic")) == parameters(EmbeddedLog.create_topic) | {"create"}
    assert set(section("A queue")) == parameters(EmbeddedTopic.queue) - {"name"}
    assert set(section("A producer")) == parameters(EmbeddedTopic.producer, EmbeddedTopic.async_producer)
    flow = parameters(hr.App.stream, hr.Stream.window, hr.Aggregated.to_view, hr.Aggregated.to_topic)
    assert set(section("A flow")) == flow - {"source", "window"}


def test_every_metric_has_its_line() -> None:
    """On one page, once."""
    named = r'"(headrace_(?:flow|topic|group|queue|view|join|capture|index|log|dead|http|runner|api)_[a-z_]+)"'
    found = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(named, path.read_text("utf-8"))}
    assert found, "the pattern finds none"
    told = [name for path in DOCS.glob("*.md") for name in first_cells(path.read_text("utf-8"))]
    assert sorted(found) == sorted(name for name in told if name.startswith("headrace_"))


# -- the chapter map ------------------------------------------------------------------------------------


def test_what_the_chapter_map_names_exists() -> None:
    rows = [line.strip("| ").split(" | ") for line in page("chapter-map.md").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "idea"]
    assert len(rows) > 40
    for row in rows:
        if len(row) < 4:
            assert "**not yet**" in row[1], row
            continue
        example, test = row[2].strip("`"), row[3].strip("` |")
        assert (ROOT / example).is_file(), example
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), test
    shown = {row[2].strip("`") for row in rows if len(row) == 4}
    examples = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert examples <= shown, f"not in the chapter map: {examples - shown}"


# -- the site ------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | {"api.md"}


def test_the_index_of_decisions_is_complete() -> None:
    linked = set(re.findall(r"- \[([^]]+)\]\(architecture/", " ".join(page("architecture.md").split())))
    decided = {
        title
        for path in (DOCS / "architecture").glob("*.md")
        for title in re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE)
    }
    assert linked == decided


def test_the_site_has_the_colours_of_the_page() -> None:
    shown = (ROOT / "src" / "headrace" / "serve" / "page" / "app.css").read_text("utf-8")
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", page("site.css")):
        assert f"--{name}: light-dark({light}, {dark})" in shown, name


@pytest.mark.timeout(240)
def test_the_site_builds_and_asks_nobody_for_anything(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: make docs installs it")
    # Not --quiet: then a warning is no warning, and --strict finds none.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = []
    for path in (tmp_path / "site").rglob("*"):
        if path.suffix == ".html":
            text = path.read_text("utf-8")
            assert "```" not in text, f"{path}: a block of code that is none"
            asked += re.findall(r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//[^>]+", text)
            links = re.findall(r"<link[^>]+>", text)
            asked += [link for link in links if "//" in link and not re.search(r"rel=[\"']?canonical", link)]
        elif path.suffix in (".css", ".svg"):
            asked += re.findall(r"(?:url\([\"']?|@import [\"'])(?:https?:)?//[^)\"']+", path.read_text("utf-8"))
    assert asked == []


def test_every_picture_and_file_that_the_readme_names_is_there() -> None:
    named = re.findall(r'(?:\]\(|src="|srcset=")(?!https?:)([^)#"]+)', (ROOT / "README.md").read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_picture_of_the_demo_is_of_the_story_in_the_readme() -> None:
    drawn = html.unescape(re.sub(r"<[^>]+>", "\n", (DOCS / "pictures" / "demo.svg").read_text("utf-8")))
    told = re.search(r"^```console\n\$ make demo\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.DOTALL)
    assert told
    lines = [part.strip() for line in told[1].splitlines() for part in line.split("…") if part.strip()]
    drawn = drawn.replace("\N{NO-BREAK SPACE}", " ")
    assert lines and [part for part in lines if part not in drawn] == []


def test_no_picture_is_large() -> None:
    large = {path.name: path.stat().st_size for path in (DOCS / "pictures").iterdir() if path.stat().st_size > 300_000}
    assert large == {}


def test_values_of_the_reference_are_dataclasses_or_documented(reference: ModuleType) -> None:
    """So that each is shown with its fields, or with its methods."""
    for _, names in reference.CHAPTERS.values():
        for each in names:
            if inspect.isclass(each):
                assert dataclasses.is_dataclass(each) or list(reference.methods(each)), each
