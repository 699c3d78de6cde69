"""A standalone Spark cluster with two workers that have nothing of ours: the log is on Kafka, the views are in
Postgres, the package comes with the job. Whatever is killed, paused or cut off, the rows are those of the oracle."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import headrace as hr
from bench.servers import spark_daemon
from headrace.flows.spark import shipping
from headrace.views.open import open_views
from tests.databases import PostgresServer, Proxy
from tests.flows.on_cluster import quick_java
from tests.flows.on_machines import MORE, NAMES, program
from tests.flows.oracle import expected, records_of
from tests.flows.shop import QUERIES, ledger_in, rows_in, some_rows
from tests.flows.test_cluster import executor_of

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the executor")
ROOT = Path(__file__).parents[2]
ROWS = 180


class Machines:
    """What a program needs that runs on many, and the program, in processes of their own."""

    def __init__(self, folder: Path, master: str, log: str, server: str, views: str, python: str) -> None:
        self._folder, self._master, self.log, self.server, self.views = folder, master, log, server, views
        self._python, self._drivers = python, list[subprocess.Popen[str]]()
        self.marks = folder / "marks"
        self.marks.mkdir()

    def prepare(self, dice: random.Random, names: Sequence[str]) -> None:
        self.names, self.batch_rows = names, dice.randrange(20, 100)
        with program(self._folder / "maker", "local[1]", self.log, self.views, "", names) as app:
            for table in app._tables.values():
                table.upsert([{"word": word, "name": word.upper()} for word in "abc"])
            topic = app.log.topic("events")
            self.position = topic.append(some_rows(dice, ROWS)).position
            self.records = records_of(topic)

    def drive(self, views: str = "", cores: int = 2) -> subprocess.Popen[str]:
        """A driver, with a home of its own."""
        home = self._folder / f"home-{len(self._drivers)}"
        where = str(home), self._master, self.log, views or self.views, str(self.marks), str(self.position)
        command = [sys.executable, "-m", "tests.flows.on_machines", *where]
        problems = (self._folder / f"problems-{len(self._drivers)}").open("w")
        environment = {**os.environ, "PYSPARK_PYTHON": self._python, "CORES": str(cores)}
        environment |= {"NAMES": " ".join(self.names), "BATCH_ROWS": str(self.batch_rows)}
        self._drivers.append(
            subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=problems, text=True, env=environment,
                start_new_session=True,
            )
        )  # fmt: skip
        return self._drivers[-1]

    def says(self, driver: subprocess.Popen[str], what: str) -> None:
        assert driver.stdout is not None
        said = driver.stdout.readline()
        problems = self._folder / f"problems-{self._drivers.index(driver)}"
        assert said == f"{what}\n", problems.read_text()[-3000:]

    def working(self, driver: subprocess.Popen[str]) -> int:
        """A worker that has begun with records, since this was asked."""
        for mark in self.marks.iterdir():
            mark.unlink()
        until = time.monotonic() + 200
        while not (found := [mark for mark in self.marks.iterdir() if "\n" in mark.read_text()]):
            assert driver.poll() is None and time.monotonic() < until, self.says(driver, "")
            time.sleep(0.01)
        return int(found[0].name)

    def end(self) -> None:
        for each in self._drivers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGCONT)
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, list[Path]]]:
    """The master, the workers' Python, which has all libraries but not headrace, and the workers' directories."""
    folder = tmp_path_factory.mktemp("cluster")
    venv.create(folder / "python", symlinks=True)
    (packages,) = (folder / "python" / "lib").glob("python*/site-packages")
    libraries = Path(pytest.__file__).parent.parent
    (packages / "libraries.pth").write_text(f"{libraries}\n")  # but not what its .pth files name
    python = str(folder / "python" / "bin" / "python")
    look = [python, "-E", "-c", "import pyarrow, headrace"]
    found = subprocess.run(look, cwd=folder, capture_output=True, text=True)
    assert "No module named 'headrace'" in found.stderr, found.stderr
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(spark_daemon(folder / "master", "master.Master", java_options=quick_java()))
        places = [folder / f"worker-{number}" for number in range(2)]
        for place in places:
            stack.enter_context(spark_daemon(place, "worker.Worker", "-c", "1", master, java_options=quick_java()))
        yield master, python, places


@pytest.fixture
def machines(
    cluster: tuple[str, str, list[Path]], broker: str, postgres: PostgresServer, tmp_path: Path
) -> Iterator[Machines]:
    master, python, _ = cluster
    log = f"kafka://{broker}?prefix=m{uuid.uuid4().hex[:8]}."
    found = Machines(tmp_path, master, log, postgres.url, postgres.schema(tmp_path), python)
    try:
        yield found
    finally:
        found.end()


@contextlib.contextmanager
def looking(machines: Machines) -> Iterator[list[Any]]:
    """What any client sees meanwhile that is no whole commit: of the view without windows all that was read."""
    seen: list[Any] = []
    done = threading.Event()
    schema = machines.views.rpartition("=")[2]
    both = f"SELECT (SELECT coalesce(sum(records), 0) FROM {schema}.slow), "
    both += f"(SELECT coalesce(sum(offset_next), 0) FROM {schema}._positions WHERE flow = 'slow')"

    def look() -> None:
        while not done.wait(0.02):
            with contextlib.suppress(psycopg.Error), psycopg.connect(machines.server, autocommit=True) as plain:
                while not done.wait(0.005):
                    seen.append(plain.execute(both).fetchone())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def check(machines: Machines, seen: list[Any]) -> None:
    """0 lost, 0 doubled, the ledger balanced, whole commits only."""
    views = open_views(machines.views)
    for name in machines.names:
        rows, ledger = expected(machines.records, QUERIES[name])
        assert rows_in(views, name) == rows
        assert ledger_in(views, name) == ledger
    slow = {row["word"]: row["records"] for row in views.to_arrow("slow").to_pylist()}
    assert slow == Counter(record["word"] for record in machines.records)
    named = Counter((row["word"], row["name"]) for row in views.to_arrow("named").to_pylist())
    assert named == {(word, word.upper() if word in ("a", "b", "c") else None): n for word, n in slow.items()}
    assert len(set(seen)) > 1 and all(rows == read for rows, read in seen), set(seen)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["executor", *(pytest.param(each, marks=pytest.mark.soak) for each in
    ("driver", "postgres", "network", "paused"))])  # fmt: skip
def test_on_many_machines(
    machines: Machines, cluster: tuple[str, str, list[Path]], postgres: PostgresServer, seed: int, what: str
) -> None:
    dice = random.Random(f"{what} {seed}")
    machines.prepare(dice, NAMES if what == "executor" else MORE)
    with looking(machines) as seen, contextlib.ExitStack() as stack:
        proxied = ""
        if what == "network":
            armed = threading.Event()
            proxy = Proxy(machines.views, lambda said: _cut(dice, said) if armed.is_set() else "")
            stack.callback(proxy.close)
            proxied = proxy.url
        cores = 1 if what == "paused" else 2  # it keeps its executors
        driver = machines.drive(proxied, cores)
        machines.says(driver, "started")
        worker = machines.working(driver)
        place, package = (machines.marks / str(worker)).read_text().split("\n")
        assert any(Path(place).is_relative_to(each) for each in cluster[2])
        assert package.startswith(place), "not what is installed there"
        match what:
            case "network":
                armed.set()
            case "executor":
                os.kill(executor_of(worker), signal.SIGKILL)
            case "postgres":
                postgres.kill()
            case "driver":
                os.killpg(driver.pid, signal.SIGKILL)
                driver = machines.drive()
                machines.says(driver, "started")
            case "paused":
                paused = driver
                os.killpg(paused.pid, signal.SIGSTOP)
                driver = machines.drive(cores=cores)
                machines.says(driver, "started")
        machines.says(driver, "done")
        if what == "paused":  # what it had half done is refused
            os.killpg(paused.pid, signal.SIGCONT)
            paused.wait(100)
    check(machines, seen)


def _cut(dice: random.Random, said: bytes) -> str:
    return dice.choice(("before", "after")) if dice.random() < (0.2 if b"COMMIT" in said else 0.002) else ""


def test_a_log_in_a_directory_is_refused_where_workers_cannot_read_it(
    headrace_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers look for a file that the driver has put there."""
    shipping.refuse_far_workers(headrace_spark, "spark://there:7077", 2, tmp_path)
    shipping.refuse_far_workers(headrace_spark, "spark://there:7077", 2, None)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Path, "touch", lambda *_: None)  # as on a disk of another machine
    with pytest.raises(hr.WorkersElsewhere, match="Use a log on Kafka") as told:
        shipping.refuse_far_workers(headrace_spark, "spark://there:7077", 2, tmp_path)
    assert (told.value.log, told.value.host) == (str(tmp_path), socket.gethostname())


def test_what_a_session_says_for_executors_elsewhere(tmp_path: Path) -> None:
    assert shipping.settings("local[2]", {}, tmp_path) == {} and shipping.not_for("local[*]") == ()
    assert shipping.not_for("spark://127.0.0.1:7077") == ()
    assert shipping.not_for("spark://there:7077") == ("spark.driver.host", "spark.driver.bindAddress")
    given = {"spark.files": "/a.txt", "spark.executorEnv.PYTHONPATH": "b.zip"}
    made = shipping.settings("spark://there:7077", given, tmp_path)
    (path,) = tmp_path.iterdir()
    assert made == {"spark.files": f"/a.txt,{path}", "spark.executorEnv.PYTHONPATH": f"{path.name}{os.pathsep}b.zip"}
    look = "import sys; sys.path.insert(0, sys.argv[1]); import headrace.log.kafka.reading as r; print(r.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", look.replace("log.kafka.reading", "durations"), str(path)],
        capture_output=True, text=True, cwd=tmp_path, env={})  # fmt: skip
    assert done.stdout.startswith(str(path)), done.stderr


def test_functions_of_a_program_go_to_workers_whole(headrace_spark: Any, tmp_path: Path) -> None:
    """Its file need not be where workers can import it."""
    (tmp_path / "at_home.py").write_text("FACTOR = 3\n\n\ndef times(n):\n    return n * FACTOR\n")
    spec = importlib.util.spec_from_file_location("at_home", tmp_path / "at_home.py")
    assert spec is not None and spec.loader is not None
    sys.modules["at_home"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        shipping.by_value("at_home")
        shipping.register_programs()
        found = headrace_spark.range(3).select(F.udf(module.times, "long")("id").alias("n")).toArrow()
    finally:
        shipping._by_value.discard("at_home")
        del sys.modules["at_home"]
    assert found["n"].to_pylist() == [0, 3, 6]
