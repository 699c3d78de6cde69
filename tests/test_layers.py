"""The architecture, enforced: imports point down, run in no circle (those inside functions included), and importing
headrace does no work.

To add a module, put its name (what follows `headrace.`) into its layer below."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS: list[set[str]] = [  # lowest first; a module may import its own layer and the ones before it
    {
        "errors",
        "formats",
        "config",
        "durations",
        "horizon",
        "libpq",
        "names",
        "outbound",
        "references",
        "places",
        "schema",
        "rows",
        "jsonrows",
        "keys",
        "time",
        "windows",
        "aggregates",
        "sketches",
        "storage",
        "bloom",
        "position",
        "failpoints",
        "fingerprint",
        "rendering",
        "retrying",
    },
    {"cep", "search"},
    {"log"},
    {"cdc", "sourcing", "connect"},
    {"views"},
    {"kernels"},
    {"operators"},
    {"flows"},
    {
        "app",
        "beside",
        "calls",
        "capture",
        "copying",
        "erasure",
        "joined",
        "joining",
        "keeping",
        "queries",
        "remote",
        "rules",
        "sink",
        "streams",
        "supervised",
        "table",
        "traces",
        "view",
        "why",
        "notebook",
    },
    {""},  # headrace itself, the public names: for what users would write, so only the top uses it
    {"cli", "serve", "testing", "demo", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

SQLITE = (
    "headrace.storage.cache",
    "headrace.storage.sqlite",
    "headrace.sourcing.snapshots",
    "headrace.log.embedded",
    "headrace.views.sqlite",
    "headrace.cdc.sqlite",
    "headrace.connect.index",
    "headrace.cli.checks",
    "headrace.traces",
)
"""Who has a SQLite file; `headrace checks` asks for its version."""

SOURCE = Path(__file__).parent.parent / "src"


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def modules() -> dict[str, str]:
    """Every module of headrace with its source."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


def statements(node: ast.AST, runs: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import below `node`, and whether it ever runs: one for type checkers does not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, runs
        else:
            typing = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from statements(child, runs and not typing)


IMPLEMENTATIONS = {
    "headrace.log.embedded": ("headrace.log.open", "headrace.testing"),
    "headrace.log.kafka": ("headrace.log.open", "headrace.testing"),
    "headrace.views.sqlite": ("headrace.views.open", "headrace.testing"),
    "headrace.views.postgres": ("headrace.views.open", "headrace.testing"),
    "headrace.cdc.postgres": ("headrace.cdc.open", "headrace.cdc.outbox.on_postgres", "headrace.testing"),
    "headrace.cdc.sqlite": ("headrace.cdc.open", "headrace.cdc.outbox.on_sqlite", "headrace.testing"),
    "headrace.cdc.debezium": ("headrace.cdc.open", "headrace.testing"),
    "headrace.cdc.mysql": ("headrace.cdc.open", "headrace.cdc.outbox.on_mysql", "headrace.testing"),
}
"""Packages that stand behind a contract, and who may import them: nobody else, inside functions neither."""


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def reaches_around(name: str, target: str) -> str | None:
    """Who opens the implementation that the module imports, where it should use the contract."""
    for package, allowed in IMPLEMENTATIONS.items():
        if within(target, package) and not any(within(name, each) for each in (package, *allowed)):
            return allowed[0]
    return None


def problems(sources: dict[str, str]) -> list[str]:
    """What is wrong with the imports of `sources` (module name -> text), one sentence each."""
    wrong = []
    imports: dict[str, set[str]] = {name: set() for name in sources}
    for name, text in sources.items():
        tree = ast.parse(text)
        if not ast.get_docstring(tree):
            wrong.append(f"{name}: no docstring; open with what it owns, does not know, and promises after a crash")
        if layer(name) not in RANK:
            wrong.append(f"{name}: in no layer; add {layer(name)!r} to its layer in LAYERS, tests/test_layers.py")
            continue
        for statement, runs in statements(tree):
            where = f"{name}:{statement.lineno}"
            if isinstance(statement, ast.Import):
                targets = [alias.name for alias in statement.names]
            elif statement.level:
                wrong.append(f"{where}: relative import; write it from headrace on")
                continue
            else:
                base = statement.module or ""
                full = [f"{base}.{alias.name}" for alias in statement.names]
                targets = [target if target in sources else base for target in full]
            for target in targets:
                top = target.split(".")[0]
                if top == "pyspark" and layer(name) != "flows":
                    wrong.append(f"{where}: imports pyspark; only headrace.flows may")
                if top == "sqlite3" and not name.startswith(SQLITE):
                    wrong.append(f"{where}: imports sqlite3; only {' and '.join(SQLITE)} may")
                if top != "headrace":
                    continue
                if target not in sources:
                    wrong.append(f"{where}: imports {target}, which does not exist")
                elif opener := reaches_around(name, target):
                    wrong.append(f"{where}: imports {target}; only {opener} opens an implementation")
                elif RANK.get(layer(target), -1) > RANK[layer(name)]:
                    wrong.append(f"{where}: imports {target}, which is in a higher layer")
                elif runs:
                    imports[name].add(target)
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        wrong.append("import cycle: " + " -> ".join(reversed(error.args[1])))
    return wrong


def test_imports_point_down() -> None:
    assert problems(modules()) == []


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("headrace.errors", "import headrace.log", "headrace.log, which is in a higher layer"),
        ("headrace.errors", "from headrace import log", "headrace.log, which is in a higher layer"),
        ("headrace.errors", "def f():\n from headrace.log import x", "headrace.log, which is in a higher layer"),
        ("headrace.errors", "if TYPE_CHECKING:\n import headrace.log", "headrace.log, which is in a higher layer"),
        ("headrace.log.a", "import headrace as hr", "imports headrace, which is in a higher layer"),
        ("headrace.log.a", "from headrace.log.b import x", "import cycle: headrace.log."),
        ("headrace.log.a", "def f(): from headrace.log.b import x", "import cycle: headrace.log."),
        ("headrace.log.a", "import headrace.log.a", "import cycle: headrace.log.a -> headrace.log.a"),
        ("headrace.log.a", "from . import b", "relative import"),
        ("headrace.log.a", "def f(): import pyspark.sql", "imports pyspark"),
        ("headrace.log.a", "import headrace.nothing", "does not exist"),
        ("headrace.log.a", "import sqlite3", "imports sqlite3; only"),
        ("headrace.flows", "def f(): import headrace.views.sqlite.store", "only headrace.views.open opens"),
        ("headrace.utils", "", "add 'utils' to its layer"),
        ("headrace.cli", "def f(): from headrace.log.embedded import x", "only headrace.log.open opens"),
        ("headrace.log.a", "if TYPE_CHECKING:\n import headrace.log.embedded", "only headrace.log.open opens"),
    ],
)
def test_each_rule_bites(module: str, text: str, problem: str) -> None:
    sound = {
        "headrace": '"""."""',
        "headrace.errors": '"""."""',
        "headrace.log": '"""."""\nfrom headrace import errors\nfrom headrace.log import a, b',
        "headrace.log.a": '"""."""\nif TYPE_CHECKING:\n from headrace.log import b',
        "headrace.log.b": '"""."""\nfrom headrace.log.a import f',
        "headrace.log.embedded": '"""."""',
        "headrace.log.open": '"""."""\nfrom headrace.log import embedded',
        "headrace.views.open": '"""."""\ndef f(): from headrace.views.sqlite.store import x',
        "headrace.views.sqlite.store": '"""."""\nimport sqlite3',
        "headrace.flows": '"""."""\nfrom pyspark.sql import functions',
        "headrace.cli": '"""."""\nimport headrace as hr',
    }
    assert problems(sound) == []
    (found,) = problems(sound | {module: f'"""."""\n{text}'})
    assert problem in found


FILES_MAX = 16
CROWDED = {
    ".": "the public names and what they are made of",
    "cli": "a catalogue: a file for each command",
}
"""Folders that may have more files than a reader takes in at one glance, and why."""


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    crowded = {folder for folder in folders if len(list(folder.glob("*.py"))) > FILES_MAX}
    assert {str(folder.relative_to(SOURCE / "headrace")) for folder in crowded} == set(CROWDED)


def test_a_module_without_docstring_is_found() -> None:
    assert "no docstring" in problems({"headrace.log": "x = 1"})[0]


IMPORT_AND_WATCH = """
import os, sys, threading
seen = []
def watch(event, args):
    if event == "open" and not str(args[0]).endswith((".py", ".pyc")):
        seen.append(f"opened {args[0]}")
    elif event.split(".")[0] in {"subprocess", "socket", "sqlite3"} or event in {
        "_thread.start_new_thread", "_thread.start_joinable_thread", "os.exec", "os.fork", "os.forkpty",
        "os.posix_spawn", "os.spawn", "os.system", "os.mkdir", "os.putenv", "os.unsetenv",
    }:
        seen.append(f"{event} {args}")
class Environment(type(os.environ)):
    def __getitem__(self, name):
        frame = sys._getframe(1)
        while frame.f_globals["__name__"] in {"os", "collections.abc", "_collections_abc"}:  # get()
            frame = frame.f_back
        if frame.f_globals["__name__"].split(".")[0] == "headrace":
            seen.append(f"read {name} from the environment")
        return super().__getitem__(name)
os.environ.__class__ = Environment
sys.addaudithook(watch)
import headrace
seen += [f"imported {name}" for name in ("pyspark", "pyarrow", "pandas") if name in sys.modules]
seen += [f"left running {thread}" for thread in threading.enumerate()[1:]]
print("\\n".join(seen), end="")
"""


def test_importing_headrace_does_no_work() -> None:
    done = subprocess.run([sys.executable, "-B", "-c", IMPORT_AND_WATCH], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []
