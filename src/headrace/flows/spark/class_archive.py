"""The archive of Spark's classes: with it a JVM starts in half the time. Owns one file for each version of Spark and
Java, in the virtual environment or else the user's cache directory; it is made when the first JVM ends, used by all
later ones, and may be deleted at any time.

The JVM checks an archive against its own build and its class path, and does without one that does not fit or is
damaged. Two that end at once each write a file of their own; a later start takes the first it finds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path

from headrace.flows.spark import java

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""What cannot be archived is nobody's business."""
WRITTEN_SECONDS = 5.0
"""A file that was not touched for so long is whole."""


def java_options(folder: Path | None = None) -> str:
    """What to start the JVM with; nothing where there is no Java, or no directory to write to."""
    try:
        archive = archive_path(folder)
        if archive is None:
            return ""
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _adopt(archive)
        if archive.exists():
            return f"-XX:SharedArchiveFile={archive} {QUIET}"
        if any(made_beside(archive)) or not os.access(archive.parent, os.W_OK) or " " in str(archive):
            return ""
        return f"-XX:ArchiveClassesAtExit={archive.with_suffix(f'.{os.getpid()}.new')} {QUIET}"
    except OSError:
        return ""


def archive_path(folder: Path | None = None) -> Path | None:
    """Where the archive is, or will be; None without Java, or where it has no archive of its own to build upon."""
    home = java.home()
    if home is None or not (home / "lib" / "server" / "classes.jsa").exists():
        return None
    return (folder or cache_folder()) / f"spark-{_fingerprint(home)}.jsa"


def made_beside(archive: Path) -> list[Path]:
    """What JVMs have left, or are writing."""
    return sorted(archive.parent.glob(f"{archive.stem}.*.new"))


def cache_folder() -> Path:
    """What is made once and used by all later starts."""
    if given := os.environ.get("HEADRACE_CACHE"):
        return Path(given)
    if sys.prefix != sys.base_prefix:  # a virtual environment: the archive goes with it
        return Path(sys.prefix, "headrace")
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "headrace"


def _adopt(archive: Path) -> None:
    """What an ended JVM has left becomes the archive; what one began and never ended goes."""
    for made in made_beside(archive):
        if time.time() - made.stat().st_mtime >= WRITTEN_SECONDS:
            with contextlib.suppress(OSError):
                if archive.exists() or made.stat().st_size == 0:
                    made.unlink()
                else:
                    made.rename(archive)


def _fingerprint(home: Path) -> str:
    """Changes with Spark, with Java and with where they are."""
    import pyspark

    said = [pyspark.__version__, str(Path(pyspark.__file__).parent), str(home)]
    with contextlib.suppress(OSError):
        said.append((home / "release").read_text("utf-8", errors="replace"))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
