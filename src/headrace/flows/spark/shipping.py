"""Our code on Spark's workers, wherever they are. Owns the archive that goes to the executors of a cluster: this
package as it is here, so that they compute with the same version whatever is installed there (of our own package; Arrow
and the clients of log and views must be). And the one job that asks workers, before any flow runs, whether they can do
what they will be asked: read the log, with this version.

An archive has compiled modules only: Python reads no cache beside an archive, and would compile at every start."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import InvalidArgument, WorkersElsewhere

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["archive", "by_value", "is_elsewhere", "refuse_far_workers", "settings", "to_given"]

LOOPBACK = ("127.", "localhost", "[::1]")
DRIVER_HOST = ("spark.driver.host", "spark.driver.bindAddress")
FILES, PATH = "spark.files", "spark.executorEnv.PYTHONPATH"
_by_value: set[str] = set()


def version() -> str:
    """Of this package, in whatever process."""
    return str(sys.modules["headrace"].__version__)


def is_elsewhere(master: str) -> bool:
    """Whether executors are processes of their own, with a disk of their own for all that is known."""
    return not master.startswith("local")


def archive(folder: Path) -> Path:
    """The package, as one file that Python imports from."""
    path = folder / f"headrace-{version()}.zip"
    with contextlib.closing(zipfile.PyZipFile(str(path), "w", zipfile.ZIP_STORED, optimize=0)) as made:
        made.writepy(str(Path(errors.__file__).parent))
    return path


def settings(master: str, given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a session of ours says differently for executors elsewhere: they find the driver by its name, and the
    archive in the directory that they run in, before whatever is installed there."""
    if not is_elsewhere(master):
        return {}
    path = archive(folder)
    files = ",".join(filter(None, (given.get(FILES), str(path))))
    return {FILES: files, PATH: os.pathsep.join(filter(None, (path.name, given.get(PATH))))}


def not_for(master: str) -> tuple[str, ...]:
    """Settings of ours that would keep executors on other machines from the driver."""
    host = master.partition("://")[2]
    return DRIVER_HOST if is_elsewhere(master) and not host.startswith(LOOPBACK) else ()


def to_given(spark: SparkSession, *, connected: bool) -> None:
    """The archive, to the executors of a session that is the user's, or of a server of Spark Connect."""
    with tempfile.TemporaryDirectory(prefix="headrace-ship-") as folder:
        path, before = archive(Path(folder)), list(sys.path)
        try:
            if connected:
                spark.addArtifacts(str(path), pyfile=True)
            else:
                spark.sparkContext.addPyFile(str(path))
        finally:
            sys.path[:] = before  # this process has the package


def by_value(module: str) -> None:
    """Functions of a program's module go to workers whole: they cannot import it."""
    _by_value.add(module)


def register_programs() -> None:
    from pyspark.cloudpickle import register_pickle_by_value

    for name in _by_value & sys.modules.keys():
        register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


# -- asking workers ----------------------------------------------------------------------------------


def refuse_far_workers(spark: SparkSession, master: str, tasks: int, log: Path | None) -> None:
    """WorkersElsewhere if a worker cannot read the log's directory; `log`: None for one that has an address."""
    mark = None if log is None else log / f".workers-{uuid.uuid4().hex}"
    if mark is not None:
        mark.touch(0o600)
    try:
        job = spark.range(0, tasks, 1, tasks).mapInArrow(_asking(None if mark is None else str(mark)), "said string")
        found = [json.loads(said) for said in job.toArrow()["said"].to_pylist()]
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)
    for said in found:
        if said["version"] != version():
            why = f"its worker on {said['host']} has headrace {said['version']}, and this is {version()}"
            raise InvalidArgument("spark", master, f"{why}: install the same there")
        if not said["reads"]:
            raise WorkersElsewhere(log=str(log), host=said["host"])


def _asking(mark: str | None) -> Any:
    def ask(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in numbers:
            there = {"host": socket.gethostname(), "version": version()}
            said = json.dumps({**there, "reads": mark is None or os.path.exists(mark)})
            yield pa.record_batch({"said": pa.array([said])})

    return ask
